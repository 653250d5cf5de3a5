"""A hub on loopback with the routes that huggingface_hub uses: listings, and files with ranges."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import spaninfer_demo

TINY = {file.name: file.read_bytes() for file in Path(spaninfer_demo.path()).iterdir()}
BESIDE = {"README.md": b"# tiny", "pytorch_model.bin": b"pickle", "onnx/model.onnx": b"onnx"}


@dataclass
class Hub:
    """Repositories by name, each a table of files; what was asked; what goes wrong."""

    repos: dict[str, dict[str, bytes]]
    gated: set[str] = field(default_factory=set)
    cut_after: dict[str, int] = field(default_factory=dict)  # bytes, once per file
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)  # of each request, in the same order
    sends_on: tuple[str, str] = ("", "")  # paths that begin so are at another host, at its address
    tells_sizes: bool = True
    rests_s: float = 0.0  # between quarters of a file
    url: str = ""

    def commit(self, repo: str) -> str:
        """Return the commit of a repository."""
        return commit_of(repo)

    def fetched(self) -> list[str]:
        """Return the files that were sent, in order."""
        return [
            path.rpartition("/")[2]
            for method, path, _ in self.asked
            if method == "GET" and "/resolve/" in path
        ]


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = urlsplit(self.path).path
        self.hub.asked.append((self.command, path, self.headers.get("Range")))
        self.hub.tokens.append(self.headers.get("Authorization"))
        begin, host = self.hub.sends_on
        if host and path.startswith(begin):
            headers = {"Location": f"{host}{self.path}"}
            if "/resolve/" in path:  # what the hub knows of the file
                body = self.hub.repos["/".join(path.split("/")[1:3])][path.rpartition("/")[2]]
                headers |= {"X-Repo-Commit": path.split("/")[4], "X-Linked-Size": str(len(body)),
                            "X-Linked-ETag": f'"{_oid(body)}"'}  # fmt: skip
            return self._send(307, b"", headers)
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            return self._listing("/".join(parts[2:4]), parts[4:])
        return self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]), with_body)

    def _refused(self, repo: str, revision: str) -> bool:
        """Answer for a repository, or a revision, that may not be read."""
        if repo not in self.hub.repos:
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif repo in self.hub.gated:
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif revision not in ("main", "v1", commit_of(repo)):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            return False
        return True

    def _listing(self, repo: str, rest: list[str]) -> None:
        kind, revision = (rest[0], rest[1]) if len(rest) > 1 else ("revision", "main")
        if self._refused(repo, revision):
            return
        files = self.hub.repos[repo].items()
        if kind == "tree":
            tree = [
                {"type": "file", "path": name, "size": len(body), "oid": _oid(body)}
                for name, body in files
            ]
            self._send(200, json.dumps(tree).encode())
            return
        told = self.hub.tells_sizes
        siblings = [
            {"rfilename": name, "size": len(body) if told else None, "blobId": _oid(body)}
            for name, body in files
        ]
        info = {
            "id": repo,
            "modelId": repo,
            "sha": commit_of(repo),
            "siblings": siblings,
            "tags": [],
        }
        self._send(200, json.dumps(info).encode())

    def _file(self, repo: str, revision: str, name: str, with_body: bool) -> None:
        if self._refused(repo, revision):
            return
        body = self.hub.repos[repo][name]
        told = {
            "ETag": f'"{_oid(body)}"',
            "X-Repo-Commit": commit_of(repo),
            "Accept-Ranges": "bytes",
        }
        status, first = 200, 0
        if (asked := self.headers.get("Range")) is not None:
            first = int(asked.removeprefix("bytes=").partition("-")[0])
            told["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
            status = 206
        cut = self.hub.cut_after.pop(name, None) if with_body else None
        self._send(status, body[first:], told, with_body=with_body, cut=cut)

    def _send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        *,
        with_body: bool = True,
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body and self.command != "HEAD":
            quarter = -(-len(body) // 4)
            for start in range(0, len(body[:cut]), max(quarter, 1)):
                self.wfile.write(body[:cut][start : start + quarter])
                time.sleep(self.hub.rests_s)
        if cut is not None:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def commit_of(repo: str) -> str:
    """Return the only commit of a repository."""
    return _oid(repo.encode())


def _oid(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


@contextmanager
def serving(hub: Hub, host: str = "127.0.0.1") -> Iterator[Hub]:
    """Serve a hub on a free port of loopback while the block runs."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer((host, 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        hub.url = f"http://{host}:{server.server_address[1]}"
        yield hub
        server.shutdown()


@pytest.fixture
def elsewhere() -> Iterator[Hub]:
    """A host of another name with the same files."""
    with serving(Hub({"org/tiny": TINY | BESIDE}), "127.0.0.2") as hub:
        yield hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with a model and a repository of GGUF files; the local cache is empty."""
    for name in ("HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    files = {"m-Q8_0.gguf": b"GGUF" * 9, "m-F16.gguf": b"G"}
    with serving(Hub({"org/tiny": TINY | BESIDE, "org/files": files})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub
