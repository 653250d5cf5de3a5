"""Settings of the server; read once from the command line, then frozen."""

from __future__ import annotations

import ipaddress
import re
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Literal

from spaninfer_engine import ConfigError, Resolved

from spaninfer_serving.admission.fair_queue import Client
from spaninfer_serving.admission.keys import UserKey, hash_of
from spaninfer_serving.dialects.table import DIALECTS
from spaninfer_serving.tls import tls_context

DAY_S = 86_400
MAX_API_SERVERS = 64
SENDABLE = frozenset(map(chr, range(0x21, 0x7F)))  # visible ASCII: what headers carry unchanged
MIB = 1 << 20

# A token is 4 to 5 bytes of English; of what is not ASCII, and travels as \uXXXX, 6 or 12.
BODY_BYTES_PER_TOKEN = 32
MEDIA_BODY_BYTES = 48 * MIB  # an image of 32 MiB in base64, or some dozens of photographs
BODY_BYTES = 2 * MIB  # for what is not the prompt, and for lists of short prompts

_KEY_FIELD = re.compile(
    rb"\r\n(?:authorization:[ \t]*bearer +|x-api-key:[ \t]*)([!-~]+)[ \t]*(?:\r\n|$)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, and the key that it brings, valid or not."""

    key: str | None
    client: Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a server.

    Raises ConfigError for invalid values, and for an address other than loopback with neither a key
    nor `no_auth`: a server open to everyone must be a deliberate choice.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    priority_keys: tuple[str, ...] = ()  # further keys, whose requests may set `priority`
    user_keys: tuple[UserKey, ...] = ()  # further keys, from a file, with limits
    admin_hashes: tuple[bytes, ...] = ()  # SHA-256 of keys that may also operate the server
    further_names: tuple[str, ...] = ()  # of the model, in addition to the engine's
    no_auth: bool = False  # serve an open address without a key
    share_prefixes: bool = False  # and media, and schemas, between requests with different keys
    max_body_bytes: int | None = None  # None: derived from the model's context
    body_timeout_s: float = 60.0  # for a body to arrive
    keep_alive_s: float = 15.0  # silence in a stream after which a comment line is sent
    drain_s: float = 30.0  # that running requests get after SIGTERM
    log_requests: bool = True  # one line per request on standard error
    log_format: Literal["text", "json"] = "text"
    metrics_names: Literal["spaninfer", "both"] = "spaninfer"  # both: vLLM's names as well
    traces: bool = False  # OpenTelemetry traces, as the OTEL_* variables say
    allow_origins: tuple[str, ...] = ()  # CORS; empty: only the server's own page
    ssl_certfile: Path | None = None  # a certificate chain in PEM; None: without TLS
    ssl_keyfile: Path | None = None  # its private key; None: in the same file
    max_stored_responses: int = 1024  # of /v1/responses, kept in memory; 0: none
    tool_parser: str | None = None  # a dialect of tool calls; None: by the chat template
    profile_dir: Path | None = None  # the folder for profiles; None: no profiles
    weights_folder: Path | None = None  # operators may load other weights from this folder
    media_folder: Path | None = None  # file: URLs below it may be read
    media_fetch: bool = False  # https: URLs at public addresses may be fetched
    media_hosts: tuple[str, ...] = ()  # from these hosts only; empty: from all
    media_workers: int = 2  # decoder processes
    max_media: int = 64  # images, videos and clips per request
    engine_restarts: int = 0  # of the engine's process so far, for /metrics
    api_servers: int = 0  # API server processes; 0: the engine's process answers requests

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_names()
        self._check_files()
        _check_keys("--api-key", self.api_keys)
        _check_keys("--priority-key", self.priority_keys)
        if self.media_hosts and not self.media_fetch:
            raise ConfigError("--media-host has no effect without --media-fetch; add it")
        if self.api_servers and sys.platform == "win32":
            raise ConfigError("--api-server-count needs a POSIX system; leave it out")
        if not is_loopback(self.host) and not self.needs_key and not self.no_auth:
            raise ConfigError(
                f"{self.host} is reachable from other machines and no key is set; add "
                "--api-key SECRET, or --no-auth to let anyone use this server"
            )

    def _check_numbers(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port is {self.port}; allowed is 0 (any free port) to 65535")
        if self.max_body_bytes is not None and self.max_body_bytes < 1:
            raise ConfigError(f"max_body is {self.max_body_bytes} bytes; allowed is 1 or more")
        if not 0 <= self.drain_s <= DAY_S:
            raise ConfigError(f"drain is {self.drain_s:g} seconds; allowed is 0 to {DAY_S}")
        if self.max_stored_responses < 0:
            raise ConfigError(
                f"max_stored_responses is {self.max_stored_responses}; allowed is 0 (none) or more"
            )
        if not 0 <= self.api_servers <= MAX_API_SERVERS:
            raise ConfigError(
                f"--api-server-count is {self.api_servers}; allowed is 0 (the engine's process "
                f"answers requests itself) to {MAX_API_SERVERS}"
            )
        for name in ("media_workers", "max_media"):
            if getattr(self, name) < 1:
                option = name.replace("_", "-")
                raise ConfigError(f"--{option} is {getattr(self, name)}; allowed is 1 or more")

    def _check_names(self) -> None:
        if "" in self.further_names:
            raise ConfigError("a name of the model is empty; give --served-model-name a name")
        for name in self.further_names:
            if not name.isprintable():
                raise ConfigError(
                    f"the model's name {name!r} has characters that cannot be printed; give "
                    "--served-model-name another"
                )
        if self.tool_parser is not None and self.tool_parser not in DIALECTS:
            raise ConfigError(
                f"--tool-parser is {self.tool_parser!r}; allowed are {', '.join(sorted(DIALECTS))}"
            )

    def _check_files(self) -> None:
        if self.ssl_certfile is not None:
            tls_context(self.ssl_certfile, self.ssl_keyfile)  # before a model is loaded
        elif self.ssl_keyfile is not None:
            raise ConfigError("--ssl-keyfile needs --ssl-certfile; add it")
        for name in ("media_folder", "profile_dir", "weights_folder"):
            folder = getattr(self, name)
            if folder is not None and not folder.is_dir():
                option = name.replace("_", "-")
                raise ConfigError(f"--{option} is {folder}, and there is no such folder")

    @property
    def needs_key(self) -> bool:
        """True if every request but public ones needs a key."""
        return bool(self.api_keys or self.priority_keys or self.user_keys)

    def num_places(self, resolved: Resolved) -> int:
        """Return the number of requests that one process admits: its share of the engine's."""
        return ceil((resolved.max_running + resolved.max_waiting) / max(1, self.api_servers))

    def largest_body(self, context: int, *, takes_media: bool = False) -> int:
        """Return the largest body in bytes, for a model with a context of that many tokens."""
        if self.max_body_bytes is not None:
            return self.max_body_bytes
        return BODY_BYTES + BODY_BYTES_PER_TOKEN * context + takes_media * MEDIA_BODY_BYTES

    def accepts(self, key: str | None) -> bool:
        """Return whether a request with this key is admitted; constant time for wrong keys."""
        return not self.needs_key or any(
            [  # all of them: the time says nothing
                *_matches(key, self.api_keys + self.priority_keys),
                _has_one_of(key, [each.sha256 for each in self.user_keys]),
                self.is_admin(key),
            ]
        )

    def is_admin(self, key: str | None) -> bool:
        """Return whether a request with this key may operate the server; without one, none may."""
        return _has_one_of(key, self.admin_hashes)

    def may_watch(self, key: str | None) -> bool:
        """Return whether a request with this key may see what all requests do: operators may,
        and all clients where they have the same key or none.
        """
        num_keys = len(self.api_keys) + len(self.priority_keys) + len(self.user_keys)
        return num_keys <= 1 or self.is_admin(key)

    def client_of(self, key: str | None, address: Sequence[Any] | None) -> Client:
        """Return who sends a request: by the number of its key, which is not said, or by host."""
        host, port = address or ("", 0)
        matches = _matches(key, self.api_keys + self.priority_keys)
        account = f"key {matches.index(True)}" if any(matches) else host
        if self.user_keys and key is not None:
            given = hash_of(key)
            for known in self.user_keys:
                account = account_of(known) if known.sha256 == given else account
        return Client(account, f"{host}:{port}")

    def client_of_first(self, first: bytes, address: Sequence[Any]) -> Client:
        """Return whose connection it is that begins with these bytes; by host without a whole
        field that holds a key. It says whose turn it is, not who is let in.
        """
        head, _, _ = first.partition(b"\r\n\r\n")
        found = _KEY_FIELD.search(head)
        return self.client_of(found[1].decode("ascii") if found else None, address)

    def caller_of(self, authorization: str, address: Sequence[Any] | None) -> Caller:
        """Return who sends a request with this Authorization header, empty for none."""
        scheme, _, given = authorization.partition(" ")
        key = given if scheme.lower() == "bearer" else None
        return Caller(key, self.client_of(key, address))

    def tenant_of(self, key: str | None) -> str:
        """Return the name of those who share prefixes, media and schemas that the server keeps:
        requests with one key, unless `share_prefixes`.

        How fast an answer begins tells what a cache holds (CVE-2025-46570).
        """
        if key is None or self.share_prefixes or not self.needs_key:
            return ""
        return hash_of(key).hex()

    def may_prioritise(self, key: str | None) -> bool:
        """Return whether a request with this key may set a priority."""
        return any(_matches(key, self.priority_keys))


def _check_keys(option: str, keys: tuple[str, ...]) -> None:
    if any(not key for key in keys):
        raise ConfigError(f"an {option} is empty; give a secret, or --no-auth for none")
    if any(not SENDABLE.issuperset(key) for key in keys):
        raise ConfigError(
            f"an {option} has a space or a non-ASCII character, which clients cannot send "
            "in a header; use letters, digits and punctuation"
        )


def _matches(key: str | None, keys: tuple[str, ...]) -> list[bool]:
    """Return which of the keys this is; all are compared, so the time says nothing of them."""
    given = (key or "").encode()
    return [secrets.compare_digest(given, known.encode()) for known in keys]


def _has_one_of(key: str | None, hashes: Sequence[bytes]) -> bool:
    given = hash_of(key or "")
    matches = [secrets.compare_digest(given, known) for known in hashes]
    return any(matches)


def account_of(key: UserKey) -> str:
    """Return the account of a key of the file."""
    return f"key {key.name}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name: assume that others resolve it too
