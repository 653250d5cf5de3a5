"""TLS over real sockets, with a certificate made for the test."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from spaninfer_engine import ConfigError
from spaninfer_serving import Settings
from spaninfer_serving.http.listener import bind, url_of

AUTHORITY = trustme.CA()
BODY = {"prompt": "abc", "max_tokens": 5, "ignore_eos": True}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate chain of 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    made = AUTHORITY.issue_cert("127.0.0.1")
    certificate, key = folder / "chain.pem", folder / "key.pem"
    made.private_key_pem.write_to_path(certificate)
    for each in made.cert_chain_pems:
        each.write_to_path(certificate, append=True)
    made.private_key_pem.write_to_path(key)
    return certificate, key


def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    return context


@pytest.mark.usefixtures("each_loop")
@pytest.mark.parametrize("has_key_file", [True, False])
def test_answers_travel_encrypted(
    live: Callable[..., Any], files: tuple[Path, Path], has_key_file: bool
) -> None:
    certificate, key = files
    server = live(ssl_certfile=certificate, ssl_keyfile=key if has_key_file else None)
    url = f"https://127.0.0.1:{server.address[1]}"

    with httpx.Client(base_url=url, verify=_trusting(), timeout=60) as client:
        whole = client.post("/v1/completions", json=BODY)
        with client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as streamed:
            lines = [line for line in streamed.iter_lines() if line]
        long = client.post("/v1/completions", json=BODY | {"prompt": "abc" * 400, "echo": True})

    assert whole.json()["usage"]["completion_tokens"] == 5
    assert lines[-1] == "data: [DONE]"
    assert len(lines) > 2
    assert long.status_code in (200, 400), "a body of several records arrived as a whole"
    assert "abc" * 400 in long.text or "context" in long.text


def test_who_does_not_speak_tls_is_left_and_others_are_answered(
    live: Callable[..., Any],
    files: tuple[Path, Path],
    until: Callable[[Callable[[], bool]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = live(ssl_certfile=files[0], ssl_keyfile=files[1])

    for said in (b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01", b""):
        with socket.create_connection(server.address, timeout=60) as plain:
            plain.sendall(said)
            plain.shutdown(socket.SHUT_WR)
            assert b"200" not in plain.recv(100)
    until(lambda: server.num_connections == 0)

    url = f"https://127.0.0.1:{server.address[1]}"
    assert httpx.get(f"{url}/health", verify=_trusting(), timeout=60).status_code == 200
    assert "Traceback" not in caplog.text


def test_the_url_says_that_it_is_encrypted(files: tuple[Path, Path]) -> None:
    settings = Settings(port=0, ssl_certfile=files[0], ssl_keyfile=files[1])
    with bind(settings) as listener:
        assert url_of(listener, settings).startswith("https://127.0.0.1:")


def test_files_that_cannot_be_used_are_refused_before_a_model_is_loaded(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    certificate, key = files
    other, empty = tmp_path / "other.pem", tmp_path / "empty.pem"
    AUTHORITY.issue_cert("localhost").private_key_pem.write_to_path(other)
    empty.write_bytes(b"")
    encrypted = tmp_path / "encrypted.pem"
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    encrypted.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )

    for given, said in [
        ((tmp_path / "none.pem", key), r"--ssl-certfile .*none\.pem.*No such file"),
        ((certificate, tmp_path / "none.pem"), r"--ssl-keyfile .*none\.pem.*No such file"),
        ((empty, key), r"empty\.pem.*PEM"),
        ((certificate, other), r"other\.pem.*(?i:mismatch)"),
        ((certificate, encrypted), r"is encrypted; decrypt it"),
        ((None, key), r"needs --ssl-certfile"),
    ]:
        with pytest.raises(ConfigError, match=said):
            Settings(ssl_certfile=given[0], ssl_keyfile=given[1])
