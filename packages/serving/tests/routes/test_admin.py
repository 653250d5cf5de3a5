"""The routes of operators: authorisation, and their effect on running requests."""

import hashlib
import http.client
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from spaninfer_serving.admission.keys import KeyLimits, UserKey
from spaninfer_serving.routes.admin import NOT_SUPPORTED, router

ADMIN = (hashlib.sha256(b"root").digest(),)
LONG = {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "seed": 1}
ROUTES = sorted((method, route.path) for route in router.routes for method in route.methods)


def ask(address, path, body=None, key="root", method="POST", **headers):
    """Return the status and the body of the answer."""
    with closing(http.client.HTTPConnection(*address, timeout=120)) as connection:
        given = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"} | headers
        connection.request(method, path, None if body is None else json.dumps(body), given)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


@pytest.fixture
def operated(live):
    """A server with a user's key and an operator's."""
    return live(api_keys=("user",), admin_hashes=ADMIN)


def test_there_are_routes_to_guard():
    assert len(ROUTES) > 20


@pytest.mark.parametrize("key", [None, "", "user", "wrong"])
def test_no_key_but_an_operators_opens_any_route_of_theirs(serving, key):
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with_key = serving(api_keys=("user",), admin_hashes=ADMIN)
    statuses = {with_key.request(*route, headers=headers).status_code for route in ROUTES}

    assert statuses == ({403} if key == "user" else {401})


@pytest.mark.parametrize("settings", [{}, {"api_keys": ("user",)}, {"no_auth": True}])
def test_without_an_operators_key_nobody_operates_the_server(serving, settings):
    client = serving(**settings)

    for method, path in ROUTES:
        answer = client.request(method, path, headers={"Authorization": "Bearer user"})
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "admin_key_needed"


def test_no_way_to_write_a_path_gets_around_the_key(operated):
    for path in ("//pause", "/pause/", "/PAUSE", "/v1/../pause", "/%70ause", "/pause?key=root",
                 "/health/../pause"):  # fmt: skip
        assert ask(operated.address, path, key="user")[0] in (403, 404)
        assert ask(operated.address, path, key="none")[0] in (401, 404)


def test_a_request_is_ended_by_its_id_and_keeps_what_it_has(operated, frozen):
    address, service = operated.address, operated.server._service
    with ThreadPoolExecutor(2) as threads:
        first, second = (
            threads.submit(ask, address, "/v1/completions", LONG, **{"X-Request-Id": name})
            for name in ("mine", "other")
        )
        with frozen(service.engine, 2):
            said = ask(address, "/abort_requests", {"request_ids": ["mine", "unknown"]})
            status, ended = first.result()
        _, whole = second.result()

    assert said == (200, {"aborted": ["mine"]})
    assert (status, ended["choices"][0]["finish_reason"]) == (200, "abort")
    assert whole["choices"][0]["text"].startswith(ended["choices"][0]["text"])
    assert (whole["choices"][0]["finish_reason"], whole["usage"]["completion_tokens"]) == (
        "length", 200,
    )  # fmt: skip


@pytest.mark.parametrize("pause", ["/pause?mode=keep", "/pause_generation?mode=in_place"])
def test_what_is_kept_through_a_pause_goes_on_as_if_nothing_was(operated, frozen, pause):
    address, service = operated.address, operated.server._service
    _, alone = ask(address, "/v1/completions", LONG)
    with ThreadPoolExecutor(2) as threads:
        kept = threads.submit(ask, address, "/v1/completions", LONG)
        with frozen(service.engine):
            paused = ask(address, pause)
            late = threads.submit(ask, address, "/v1/completions", LONG | {"max_tokens": 2})
            assert ask(address, "/is_paused", method="GET")[1] == paused[1]
            assert (kept.done(), late.done()) == (False, False)
            resumed = ask(address, "/resume")
        assert kept.result()[1]["choices"] == alone["choices"]
        assert late.result()[0] == 200

    assert paused == (200, {"is_paused": True, "is_frozen": True})
    assert resumed == (200, {"is_paused": False, "is_frozen": False})


@pytest.mark.parametrize(("mode", "reason"), [("abort", "abort"), ("wait", "length")])
def test_a_pause_ends_what_runs_or_waits_for_it(operated, until, frozen, mode, reason):
    address, service = operated.address, operated.server._service
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(ask, address, "/v1/completions", LONG)
        with frozen(service.engine):
            paused = threads.submit(ask, address, f"/pause?mode={mode}&clear_cache=true")
            until(lambda: ask(address, "/is_paused", method="GET")[1]["is_paused"])
        assert paused.result()[0] == 200
        assert service.engine.stats().running == 0
        late = threads.submit(ask, address, "/v1/completions", LONG | {"max_tokens": 2})
        assert running.result()[1]["choices"][0]["finish_reason"] == reason
        ask(address, "/resume")
        assert late.result()[0] == 200


def test_who_leaves_while_the_server_is_paused_is_forgotten(operated, until):
    address, server = operated.address, operated.server
    before = server._service.engine.stats().generated_tokens
    ask(address, "/pause?mode=keep")
    with closing(http.client.HTTPConnection(*address, timeout=120)) as connection:
        headers = {"Authorization": "Bearer user", "Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(LONG), headers)
        until(lambda: server.server_state.tasks)
    until(lambda: not server.server_state.tasks)
    ask(address, "/resume")

    counted = ask(address, "/v1/completions", LONG | {"max_tokens": 3})[1]
    assert counted["usage"]["completion_tokens"] == 3
    assert server._service.engine.stats().generated_tokens == before + 3


def test_a_drained_server_refuses_until_it_is_resumed(operated):
    address = operated.address

    assert ask(address, "/drain")[0] == 200
    refused, ready = ask(address, "/v1/completions", LONG), ask(address, "/health", method="GET")
    ask(address, "/resume")

    assert (refused[0], refused[1]["error"]["code"], ready[0]) == (503, "draining", 503)
    assert ask(address, "/v1/completions", LONG | {"max_tokens": 1})[0] == 200


@pytest.mark.parametrize("path", ["/reset_prefix_cache", "/flush_cache"])
def test_a_prefix_is_computed_again_after_a_reset(operated, path):
    body = {"prompt": path * 9, "max_tokens": 1}

    def cached():
        _, answer = ask(operated.address, "/v1/completions", body)
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    ask(operated.address, "/reset_prefix_cache")
    before = (cached(), cached())
    assert ask(operated.address, path)[0] == 200

    assert before[0] == 0 < before[1]
    assert cached() == 0


def test_the_rest_says_what_the_server_is(operated):
    address = operated.address

    assert ask(address, "/get_world_size", method="GET") == (200, {"world_size": 1})
    awake = {"is_sleeping": False, "weights": "in memory"}
    assert ask(address, "/is_sleeping", method="GET") == (200, awake)
    assert ask(address, "/version", method="GET", key="user")[0] == 200
    status, info = ask(address, "/server_info?config_format=json", method="GET")
    assert (status, info["model"]) == (200, "tiny")
    assert not {"root", "user", ADMIN[0].hex()} & set(json.dumps(info).split('"'))


def test_the_log_is_as_loud_as_operators_say(operated):
    logger = logging.getLogger("spaninfer_serving")
    before = logger.level
    try:
        assert ask(operated.address, "/log_level", {"level": "error"})[0] == 200
        assert logger.level == logging.ERROR
        assert ask(operated.address, "/log_level", {"level": "loud"})[0] == 400
    finally:
        logger.setLevel(before)
        logging.getLogger("spaninfer_engine").setLevel(before)


def test_what_cannot_be_done_is_refused_by_name(serving):
    client = serving(admin_hashes=ADMIN)

    for path in NOT_SUPPORTED:
        answer = client.post(path, headers={"Authorization": "Bearer root"})
        assert answer.status_code == 501
        assert path in answer.json()["error"]["message"]


def test_modes_that_there_are_not_are_refused(serving):
    client = serving(admin_hashes=ADMIN)

    answer = client.post("/pause?mode=later", headers={"Authorization": "Bearer root"})

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "mode")


def test_keys_with_limits_wait_and_others_do_not(live, until):
    keys = tuple(
        UserKey(name, hashlib.sha256(name.encode()).digest(), limits)
        for name, limits in (
            ("few", KeyLimits(concurrent_requests=1)),
            ("slow", KeyLimits(requests_per_minute=1)),
            ("asks", KeyLimits(tokens_per_minute=20)),
            ("writes", KeyLimits(tokens_per_minute=20)),
            ("free", KeyLimits()),
        )
    )
    server = live(user_keys=keys, admin_hashes=ADMIN)
    address, service = server.address, server.server._service
    short = LONG | {"max_tokens": 1}
    ask(address, "/pause?mode=keep")
    ask(address, "/resume")
    service.engine.freeze()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(ask, address, "/v1/completions", short, key="few")
        until(lambda: len(service.client.control.in_flight) == 1)
        refused = ask(address, "/v1/completions", short, key="few")
        service.engine.thaw()
        assert running.result()[0] == 200
    until(lambda: len(service.client.control.in_flight) == 0)

    assert (refused[0], refused[1]["error"]["code"]) == (429, "rate_limit_exceeded")
    assert ask(address, "/v1/completions", short, key="few")[0] == 200
    assert [ask(address, "/v1/completions", short, key="slow")[0] for _ in range(2)] == [200, 429]
    assert [ask(address, "/v1/completions", short, key="free")[0] for _ in range(3)] == [200] * 3
    long = short | {"prompt": "x" * 15}  # tokens are bytes: two prompts are more than a minute's
    assert [ask(address, "/v1/completions", long, key="asks")[0] for _ in range(2)] == [200, 429]
    assert ask(address, "/v1/completions", LONG | {"max_tokens": 40}, key="writes")[0] == 200
    until(lambda: len(service.client.control.in_flight) == 0)
    owed = ask(address, "/v1/completions", short, key="writes")
    assert (owed[0], owed[1]["error"]["code"]) == (429, "rate_limit_exceeded")
