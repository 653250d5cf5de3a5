import json
import socket
import sys
import threading
import urllib.request

import pytest
from spaninfer_engine import ConfigError
from spaninfer_serving import Settings, serve_in_thread


def test_a_server_answers_inside_the_block_and_nobody_listens_behind_it(engine):
    before = sys.getswitchinterval()

    with serve_in_thread(engine, Settings(port=0, api_servers=2)) as url:
        with urllib.request.urlopen(f"{url}/v1/models") as answer:
            listed = json.load(answer)
        port = int(url.rpartition(":")[2])

    assert [each["object"] for each in listed["data"]] == ["model"]
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0
    assert sys.getswitchinterval() == before
    assert not [each for each in threading.enumerate() if each.name == "server"]


def test_an_address_that_is_taken_is_refused_in_a_sentence(engine):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        with (
            pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"),
            serve_in_thread(engine, Settings(port=port)),
        ):
            pass
