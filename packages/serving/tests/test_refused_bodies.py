"""Refused requests: freed immediately, without the garbage collector."""

import gc
import json
from types import FrameType

import pytest

LONG = "many words " * 1000


@pytest.fixture
def uncollected():
    """What returns the frames that wait for the garbage collector, which does not come by itself.

    A frame holds what its function worked on: a body, its text, its JSON.
    """
    gc.collect()
    gc.disable()
    was = gc.get_debug()
    gc.set_debug(gc.DEBUG_SAVEALL)

    def frames():
        gc.collect()
        ours = [found for found in gc.garbage if isinstance(found, FrameType)]
        return {
            frame.f_code.co_qualname
            for frame in ours
            if frame.f_globals["__name__"].startswith("spaninfer")
        }

    yield frames
    gc.set_debug(was)
    gc.garbage.clear()
    gc.enable()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": LONG}),  # too long
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/responses", {"input": LONG}),
        ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": LONG}]}),
        ("/v1/completions", {"prompt": "a", "unknown": LONG}),
        ("/v1/completions", {"prompt": "a", "temperature": [LONG]}),
        ("/v1/completions", {"prompt": "a", "model": LONG}),
        ("/tokenize", {"prompt": "a", "model": LONG}),
        ("/v1/completions", None),  # no JSON
    ],
)
def test_a_refused_body_is_not_kept(client, uncollected, path, body, stream):
    if stream and body is not None and path != "/tokenize":
        body = body | {"stream": True}
    data = json.dumps(body) if body is not None else "{" + LONG
    headers = {"Content-Type": "application/json"}

    answer = client.post(path, content=data, headers=headers)

    assert 400 <= answer.status_code < 500
    assert not uncollected()
