"""The OpenAPI description: every route is in it, and every example body is answered."""

import logging
import shutil

import pytest
from fastapi.testclient import TestClient
from small_encoders import write_encoder
from spaninfer_engine import Engine
from spaninfer_serving import Settings, create_app
from spaninfer_serving.admission.keys import hash_of
from spaninfer_serving.app import ROUTERS
from spaninfer_serving.engine.client import LOGGERS
from spaninfer_serving.openapi import EXAMPLES
from spaninfer_serving.routes.admin import NOT_SUPPORTED

ROOT = {"Authorization": "Bearer root"}
EMBEDS = ("/v1/embeddings", "/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score")
CLASSIFIES = ("/classify", "/v1/classify")


@pytest.fixture(scope="module")
def serves(tool_engine, tool_folder, tmp_path_factory):
    """What gives a client of a server whose model is for a path."""
    home = tmp_path_factory.mktemp("encoders")
    classes = {"small": ("BertModel", 0), "labels": ("BertForSequenceClassification", 3)}
    folders = [write_encoder(home / name, *given) for name, given in classes.items()]
    shutil.copytree(tool_folder, home / "step-100")
    settings = Settings(admin_hashes=(hash_of("root"),), weights_folder=home)
    made = {"backend": "reference", "weights": "dummy"}
    with Engine(folders[0], **made) as embeds, Engine(folders[1], **made) as labels:

        def client(path):
            engine = embeds if path in EMBEDS else labels if path in CLASSIFIES else tool_engine
            return TestClient(create_app(engine, settings), headers=ROOT)

        yield client


@pytest.fixture(scope="module")
def described(serves):
    return serves("/").get("/openapi.json").json()["paths"]


def bodies_of(operation):
    content = operation.get("requestBody", {}).get("content", {})
    return content.get("application/json", {}).get("examples", {})


def test_every_route_is_described_but_for_the_page_and_what_is_always_refused(described):
    hidden = {
        (method, route.path)
        for router in ROUTERS
        for route in router.routes
        for method in route.methods - {"HEAD"}
        if method.lower() not in described.get(route.path.replace(":path", ""), {})
    }

    page = {"/", "/docs", "/page/{name}", "/favicon.ico"}
    assert {path for _, path in hidden} <= {*NOT_SUPPORTED, *page}


def test_refusals_of_a_route_of_its_own_are_described_beside_its_answer(described):
    for path in ("/start_profile", "/stop_profile"):
        assert {"200", "403", "409", "507"} <= set(described[path]["post"]["responses"])


def test_every_body_that_a_route_reads_has_an_example_and_every_example_a_route(described):
    shown = {
        operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].split("/")[-1]
        for operations in described.values()
        for operation in operations.values()
        if "requestBody" in operation
    }

    assert shown == {kind.__name__ for kind in EXAMPLES}


def test_every_example_of_every_route_is_answered(described, serves):
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    answered = {}
    for path, operations in described.items():
        for method, operation in operations.items():
            for name, example in bodies_of(operation).items():
                answer = serves(path).request(method, path, json=example["value"])
                answered[path, name] = answer.status_code
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)

    assert {found for found, status in answered.items() if status != 200} == set()
    assert {path for path, _ in answered} == {
        path for path, each in described.items() if any(map(bodies_of, each.values()))
    }
    assert len(answered) > 30
