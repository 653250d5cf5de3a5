"""Sleep, wake-up and weight updates over HTTP, while clients send requests."""

import hashlib
import http.client
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from api_servers import serving as serving_by_processes
from spaninfer_engine import Engine
from spaninfer_engine.serving import GcFreeze

KEYS = {"api_keys": ("user",), "admin_hashes": (hashlib.sha256(b"root").digest(),)}
PROMPT = {"prompt": "x" * 40, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
LONG = PROMPT | {"max_tokens": 200}


def ask(address, path, body=None, key="root", method="POST"):
    """Return the status and the body of the answer."""
    with closing(http.client.HTTPConnection(*address, timeout=120)) as connection:
        given = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), given)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def text_of(address, key="user"):
    status, answer = ask(address, "/v1/completions", PROMPT, key)
    assert status == 200, answer
    return answer["choices"][0]["text"]


@pytest.fixture(scope="module", autouse=True)
def _others_spared():
    """Sleep collects garbage: through all that other tests have left, in a second each time."""
    with closing(GcFreeze()):
        yield


@pytest.fixture(scope="module")
def steps(folder, tmp_path_factory):
    """A folder with checkpoints of the model: its own, others, and some that will not do."""
    steps = tmp_path_factory.mktemp("steps")
    for name in ("step-0", "step-1", "step-2", "wrong"):
        shutil.copytree(folder, steps / name)
    for name, change in (("step-1", lambda all: all[::-1]), ("step-2", np.negative)):
        path = steps / name / "model.safetensors"
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        values = np.ascontiguousarray(change(np.frombuffer(data[start:], "<f4")))
        path.write_bytes(data[:start] + values.tobytes())
    config = json.loads((steps / "wrong" / "config.json").read_text())
    wrong = json.dumps(config | {"intermediate_size": 48})
    (steps / "wrong" / "config.json").write_text(wrong)
    shutil.copytree(folder, steps.parent / "outside", dirs_exist_ok=True)
    return steps


def made(folder):
    return Engine(folder, backend="reference", memory=1 << 22, span_len=16)


@pytest.fixture(scope="module")
def expected(steps):
    """The text of each checkpoint, by an engine that was started with it."""
    sampling = {name: PROMPT[name] for name in ("max_tokens", "temperature", "ignore_eos")}
    found = {}
    for name in ("step-0", "step-1", "step-2"):
        with made(steps / name) as alone:
            found[name] = alone.generate(PROMPT["prompt"], **sampling).text
    assert len(set(found.values())) == 3
    return found


@pytest.fixture(scope="module")
def engine(folder):
    """An engine of its own: what sleeps is not there for other tests."""
    with made(folder) as running:
        yield running


@pytest.fixture(scope="module", params=[None, pytest.param(2, marks=pytest.mark.slow)])
def api_servers(request, engine, steps):
    """The address of API servers of their own processes; None: the engine's answers requests."""
    if request.param is None:
        yield None
        return
    with serving_by_processes(engine, drain_s=20, weights_folder=steps, **KEYS) as running:
        yield running.address


@pytest.fixture
def server(api_servers, engine, steps, live):
    """The address of a server whose engine is awake, and has the weights of its start."""
    address = api_servers or live(engine, weights_folder=steps, **KEYS).address
    yield address
    ask(address, "/wake_up")
    first = {"model_path": "step-0", "weight_version": "default"}
    ask(address, "/update_weights_from_disk", first)


SLEEPS = [("/sleep?level=1", None), ("/sleep?level=2&tags=", None),
          ("/release_memory_occupation", {"tags": ["kv_cache", "weights"]})]  # fmt: skip
WAKES = [("/wake_up", None), ("/wake_up?tags=weights&tags=kv_cache", None),
         ("/resume_memory_occupation", {"tags": ["weights"]})]  # fmt: skip


def test_a_server_that_slept_answers_as_before(server, expected):
    assert text_of(server) == expected["step-0"]
    for sleep, wake in zip(SLEEPS, WAKES, strict=True):
        assert ask(server, *sleep) == (200, {"is_sleeping": True, "weights": "on disk"})
        assert ask(server, *sleep)[0] == 200  # harmless
        assert ask(server, "/is_sleeping", method="GET")[1]["is_sleeping"]
        assert ask(server, *wake) == (200, {"is_sleeping": False, "weights": "in memory"})
        assert not ask(server, "/is_sleeping", method="GET")[1]["is_sleeping"]
        assert text_of(server) == expected["step-0"]


def test_requests_are_refused_while_it_sleeps_and_probes_say_so(server):
    ask(server, "/sleep")
    with ThreadPoolExecutor(8) as threads:
        bodies = [PROMPT, PROMPT | {"stream": True}] * 4
        refused = list(
            threads.map(lambda body: ask(server, "/v1/completions", body, "user"), bodies)
        )
    live, ready = (ask(server, f"/health/{name}", method="GET") for name in ("live", "ready"))
    ask(server, "/resume")  # ends a pause, and no sleep
    assert ask(server, "/v1/completions", PROMPT, "user")[0] == 503
    assert ask(server, "/pause?mode=keep")[0] == 503
    assert ask(server, "/reset_prefix_cache")[0] == 200
    assert ask(server, "/tokenize", {"prompt": "ab"}, "user")[1]["count"] == 2
    ask(server, "/wake_up")

    assert {(status, body["error"]["code"]) for status, body in refused} == {(503, "asleep")}
    assert "until an operator wakes it up" in refused[0][1]["error"]["message"]
    assert (live[0], ready) == (200, (503, {"status": "the engine is asleep"}))
    assert ask(server, "/health/ready", method="GET")[0] == 200


@pytest.mark.parametrize(("mode", "reason"), [("wait", "length"), ("abort", "abort")])
def test_it_falls_asleep_behind_what_runs_where_it_is_told_how(
    server, engine, until, frozen, mode, reason
):
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(ask, server, "/v1/completions", LONG, "user")
        with frozen(engine):
            refused = ask(server, "/sleep")
            released = ask(server, "/release_memory_occupation", {})
            asleep = threads.submit(ask, server, f"/sleep?mode={mode}")
            until(lambda: ask(server, "/health/ready", method="GET")[0] == 503)  # it has begun
        assert running.result()[1]["choices"][0]["finish_reason"] == reason
        assert asleep.result()[0] == 200

    assert (refused[0], refused[1]["error"]["code"]) == (409, "busy")
    assert released[0] == 409


def test_other_weights_answer_as_a_server_of_theirs_and_nothing_old_is_shared(server, expected):
    before = text_of(server)
    first = ask(server, "/get_weight_version", method="GET")
    body = {"model_path": "step-1", "weight_version": "1", "flush_cache": True}
    said = ask(server, "/update_weights_from_disk", body)
    _, answer = ask(server, "/v1/completions", PROMPT, "user")
    generated = ask(server, "/generate", {"text": "x", "sampling_params": {"max_new_tokens": 1}})

    assert before == expected["step-0"]
    assert first == (200, {"weight_version": "default"})
    assert said == (200, {
        "success": True, "message": "the weights are those of step-1",
        "num_paused_requests": 0, "weight_version": "1",
    })  # fmt: skip
    assert answer["choices"][0]["text"] == expected["step-1"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert ask(server, "/get_weight_version", method="GET")[1]["weight_version"] == "1"
    assert ask(server, "/server_info", method="GET")[1]["weight_version"] == "1"
    assert ask(server, "/model_info", key="user", method="GET")[1]["weight_version"] == "1"
    assert generated[1]["meta_info"]["weight_version"] == "1"
    # as in SGLang, an update that gives none changes none
    assert ask(server, "/update_weights_from_disk", {"model_path": "step-2"})[1] == said[1] | {
        "message": "the weights are those of step-2"
    }


def test_weights_that_come_in_its_sleep_are_those_it_wakes_up_with(server, expected):
    ask(server, "/sleep")
    assert ask(server, "/update_weights_from_disk", {"model_path": "step-2"})[0] == 200
    assert ask(server, "/is_sleeping", method="GET")[1]["is_sleeping"]
    ask(server, "/wake_up")
    assert text_of(server) == expected["step-2"]


def test_requests_before_and_behind_an_update_are_each_whole(server, engine, until, expected):
    body = {"model_path": "step-1"}
    with ThreadPoolExecutor(8) as threads:
        lasting = LONG | {"n": 8}  # one alone may end before the update begins
        running = threads.submit(ask, server, "/v1/completions", lasting, "user")
        until(lambda: engine.stats().running == 8)
        updated = threads.submit(ask, server, "/update_weights_from_disk", body)
        later = [threads.submit(text_of, server) for _ in range(5)]
        assert updated.result()[0] == 200
        texts = {each.result() for each in later}
        _, whole = running.result()

    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["choices"][0]["text"].startswith(expected["step-0"])
    assert updated.result()[1]["num_paused_requests"] >= 1
    assert texts <= {expected["step-0"], expected["step-1"]}
    assert text_of(server) == expected["step-1"]


def test_requests_that_a_pause_keeps_are_in_the_way_until_they_are_aborted(server, engine, frozen):
    with ThreadPoolExecutor(1) as threads:
        kept = threads.submit(ask, server, "/v1/completions", LONG, "user")
        with frozen(engine):
            ask(server, "/pause?mode=keep")
            body = {"model_path": "step-1"}
            assert ask(server, "/update_weights_from_disk", body)[0] == 409
            assert ask(server, "/sleep?mode=wait")[0] == 409
            body |= {"abort_all_requests": True}
            assert ask(server, "/update_weights_from_disk", body)[0] == 200
            assert kept.result()[1]["choices"][0]["finish_reason"] == "abort"
            assert ask(server, "/is_paused", method="GET")[1]["is_paused"]
            ask(server, "/resume")


def test_what_will_not_do_leaves_the_weights_in_service(server, expected, steps):
    (steps / "link").unlink(missing_ok=True)
    (steps / "link").symlink_to(steps.parent / "outside")
    (steps / "circle").unlink(missing_ok=True)
    (steps / "circle").symlink_to("circle")
    cases = {
        "wrong": "mlp.gate_proj.weight is [32, 16], expected [48, 16]",
        "step-3": "names nothing in",
        ".": "names nothing in",
        "..": "names nothing in",
        "../outside": "names nothing in",
        "link": "names nothing in",
        "circle": "names nothing in",
        str(steps.parent / "outside"): "names nothing in",
        "x" * 4000: "names nothing in",
        "a\0b": "names nothing in",
    }
    for path, named in cases.items():
        status, answer = ask(server, "/update_weights_from_disk", {"model_path": path})
        assert (status, answer["error"]["param"]) == (400, "model_path"), path
        assert named in answer["error"]["message"]
    for name in ({"load_format": "flash_rl"}, {"flush_cache": False}, {"is_async": True}):
        body = {"model_path": "step-1"} | name
        status, answer = ask(server, "/update_weights_from_disk", body)
        assert (status, answer["error"]["param"]) == (400, next(iter(name)))
    for path in ("/sleep?level=3", "/sleep?tags=weights", "/wake_up?tags=all", "/sleep?mode=keep"):
        assert ask(server, path)[0] == 400

    assert text_of(server) == expected["step-0"]
    assert ask(server, "/get_weight_version", method="GET")[1]["weight_version"] == "default"


def test_a_folder_that_will_not_do_costs_no_request_anything(server, engine, frozen):
    body = {"model_path": "wrong", "abort_all_requests": True}
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(ask, server, "/v1/completions", LONG, "user")
        with frozen(engine):
            assert ask(server, "/update_weights_from_disk", body)[0] == 400
        assert running.result()[1]["choices"][0]["finish_reason"] == "length"


def test_an_engine_whose_weights_are_gone_sleeps_on_and_says_why(server, steps, expected):
    shutil.copytree(steps / "step-1", steps / "gone")
    ask(server, "/update_weights_from_disk", {"model_path": "gone"})
    ask(server, "/sleep")
    (steps / "gone").rename(steps / "back")
    status, answer = ask(server, "/wake_up")
    assert (status, answer["error"]["code"]) == (503, "asleep")
    assert "still asleep" in answer["error"]["message"]
    assert ask(server, "/v1/completions", PROMPT, "user")[0] == 503
    (steps / "back").rename(steps / "gone")
    assert ask(server, "/wake_up")[0] == 200
    shutil.rmtree(steps / "gone")
    assert text_of(server) == expected["step-1"]


def test_without_a_folder_for_weights_none_are_read(live, engine):
    address = live(engine, **KEYS).address

    status, answer = ask(address, "/update_weights_from_disk", {"model_path": "step-1"})

    assert (status, answer["error"]["code"]) == (403, "not_supported")
    assert "--weights-folder" in answer["error"]["message"]
