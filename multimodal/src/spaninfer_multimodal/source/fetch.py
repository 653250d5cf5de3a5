"""Bytes from http and https URLs, from the public internet only.

Each hop is parsed, checked against the policy, resolved once, and connected to at an address that
was checked; TLS still verifies the name. Nothing is read from the environment, and the body is
counted while it arrives.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import httpcore2

from spaninfer_multimodal.errors import Forbidden, TooLarge, TooSlow, Unreachable, Unreadable
from spaninfer_multimodal.source.address import Address, not_public, parse_address
from spaninfer_multimodal.source.policy import FetchPolicy, check_url
from spaninfer_multimodal.source.url import Url, follow, parse_url

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Maps host and port to addresses in text; raises OSError for names that do not exist."""

_REDIRECTS: Final = (301, 302, 303, 307, 308)
_TYPES: Final = ("image/", "video/", "audio/")
_UNTYPED: Final = ("application/octet-stream", "binary/octet-stream", "application/ogg", "")


async def fetch(
    url: str,
    max_bytes: int,
    policy: FetchPolicy,
    *,
    resolver: Resolver | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> bytes:
    """Return the body of `url`, at most `max_bytes`.

    `resolver` is the system's where none is given; `ssl_context` trusts the system's certificates.
    Raises Forbidden, Unreachable, TooLarge, TooSlow, and Unreadable for a page that is no media.
    """
    hop = _Hop(policy, resolver or resolve, ssl_context or _trusted())
    try:
        async with asyncio.timeout(policy.max_fetch_s):
            return await hop.follow(parse_url(url), max_bytes)
    except TimeoutError as error:
        raise TooSlow(
            f"fetching took longer than {policy.max_fetch_s:g} s, which is the limit"
        ) from error


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host, as the system resolves it."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@lru_cache(maxsize=1)
def _trusted() -> ssl.SSLContext:
    """Return the system's trust store; reading its certificates takes tens of milliseconds."""
    return httpcore2.default_ssl_context()


class _Hop:
    """One request at a time, and the state that all of them share."""

    def __init__(self, policy: FetchPolicy, resolver: Resolver, tls: ssl.SSLContext) -> None:
        self._policy = policy
        self._resolver = resolver
        self._tls = tls

    async def follow(self, url: Url, max_bytes: int) -> bytes:
        """Request `url` and follow redirects, each URL checked from the start."""
        for _ in range(self._policy.max_redirects + 1):
            answer = await self._get(url, max_bytes)
            if isinstance(answer, bytes):
                return answer
            url = answer
        raise Forbidden(
            f"the URL redirects more than {self._policy.max_redirects} times, which is the limit"
        )

    async def _get(self, url: Url, max_bytes: int) -> bytes | Url:
        """Return the body of one URL, or where it redirects to."""
        check_url(url, self._policy)
        backend = _Pinned(await self._addresses(url))
        headers = [("Host", url.authority), ("Accept-Encoding", "identity"), ("Accept", "*/*")]
        location = httpcore2.URL(scheme=url.scheme, host=url.host, port=url.port, target=url.target)
        try:
            async with (
                httpcore2.AsyncConnectionPool(self._tls, network_backend=backend) as pool,
                pool.stream("GET", location, headers=headers) as response,
            ):
                if response.status in _REDIRECTS:
                    return follow(url, _header(response, b"location"))
                return await _body(url, response, max_bytes)
        except (
            httpcore2.NetworkError,
            httpcore2.ProtocolError,
            httpcore2.TimeoutException,
        ) as error:
            raise Unreachable(
                f"{url.host} did not deliver: {error or type(error).__name__}"
            ) from error

    async def _addresses(self, url: Url) -> tuple[Address, ...]:
        """Resolve a host; one address that is not public condemns all."""
        try:
            found = [parse_address(text) for text in await self._resolver(url.host, url.port)]
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"host {url.host} does not resolve") from error
        if not found:
            raise Unreachable(f"host {url.host} has no address")
        for address in found:
            if (why := not_public(address, self._policy.allowed_networks)) is not None:
                raise Forbidden(f"host {url.host} is at {address}, which is not public: {why}")
        return tuple(found)


class _Pinned(httpcore2.AsyncNetworkBackend):
    """A backend that connects to addresses that were checked, whatever the name."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses
        self._sockets = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,  # noqa: ARG002  the name is for TLS and the Host header only
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first address that accepts."""
        for place, address in enumerate(self._addresses):
            try:
                return await self._sockets.connect_tcp(
                    str(address), port, timeout, local_address, socket_options
                )
            except httpcore2.ConnectError:
                if place == len(self._addresses) - 1:
                    raise
        raise AssertionError("there is at least one address")


def _header(response: httpcore2.Response, name: bytes) -> str:
    """Return a header, or an empty text."""
    values = [value for key, value in response.headers if key.lower() == name]
    return values[0].decode("latin-1") if values else ""


async def _body(url: Url, response: httpcore2.Response, max_bytes: int) -> bytes:
    """Return the body of an answer that is media, counting bytes as they arrive."""
    if response.status != 200:
        raise Unreachable(f"{url.host} answered with status {response.status}")
    if (coding := _header(response, b"content-encoding").lower()) not in ("", "identity"):
        raise Unreadable(
            f"{url.host} sent the body compressed ({coding[:40]}), which was not asked"
        )
    kind = _header(response, b"content-type").partition(";")[0].strip().lower()
    if not kind.startswith(_TYPES) and kind not in _UNTYPED:
        raise Unreadable(f"{url.host} sent {kind[:80]!r}, which is no image, video or audio")
    declared = _header(response, b"content-length")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise TooLarge(f"{url} has {declared} bytes; at most {max_bytes} are accepted")
    parts, total = [], 0
    async for part in response.aiter_stream():
        total += len(part)
        if total > max_bytes:
            raise TooLarge(f"{url} has more than {max_bytes} bytes, which is the limit")
        parts.append(part)
    return b"".join(parts)
