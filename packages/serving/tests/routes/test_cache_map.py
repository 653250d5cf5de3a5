"""GET /cache_map: its picture of a running request, and who may see it."""

import hashlib

import pytest

LONG = {"prompt": "abcdefghij" * 4, "max_tokens": 40, "ignore_eos": True, "seed": 1}


def test_it_shows_a_request_while_it_runs_and_its_prefix_afterwards(serving, engine, at_rest):
    client = serving()
    at_rest()
    before = client.get("/cache_map").json()
    assert before["running"] == []

    with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as answer:
        lines = answer.iter_lines()
        next(lines)
        engine.freeze()
        try:
            during = client.get("/cache_map").json()
        finally:
            engine.thaw()
        for _ in lines:
            pass

    (running,) = during["running"]
    assert running["prompt_tokens"] == 40
    assert running["output_tokens"] >= 1
    assert running["decoding"]
    (group,) = during["groups"]
    used = [place for place, state in enumerate(group["states"]) if state == "2"]
    written = 40 + running["output_tokens"] - 1  # the step behind a token writes its keys
    spans = -(-written // during["span_len"])
    assert spans <= len(used) <= spans + 1, "a step may have been planned ahead"
    assert {group["owners"][place] for place in used} == {0}
    at_rest()
    after = client.get("/cache_map").json()
    assert "2" not in after["groups"][0]["states"]
    assert "1" in after["groups"][0]["states"], "the prompt may be requested again"
    assert after["generated_tokens"] - before["generated_tokens"] == 40
    assert sum(after["first_token_seconds"]["counts"]) == 1
    assert len(after["first_token_seconds"]["counts"]) == 1 + len(
        after["first_token_seconds"]["bounds"]
    )


@pytest.mark.parametrize(
    ("keys", "status"),
    [({}, 200), ({"api_keys": ("one",)}, 200), ({"api_keys": ("one", "two")}, 403)],
)
def test_of_several_keys_none_sees_what_the_others_do(serving, keys, status):
    client = serving(**keys)

    answer = client.get("/cache_map", headers={"Authorization": "Bearer one"})

    assert answer.status_code == status


def test_operators_see_it_and_strangers_do_not(serving):
    admin = (hashlib.sha256(b"root").digest(),)
    client = serving(api_keys=("one", "two"), admin_hashes=admin)

    assert client.get("/cache_map", headers={"Authorization": "Bearer root"}).status_code == 200
    assert client.get("/cache_map").status_code == 401
