"""http and https URLs, parsed once and strictly: the checked host is the one connected to.

Where two parsers disagree about the host, a guard can be talked around. So there is one parser
here, and it refuses what others would repair: backslashes, spaces, credentials, hosts that are
numbers in disguise.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urljoin

from spaninfer_multimodal.errors import Forbidden

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_MAX_URL = 8192

_URL: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<query>\?[^#]*)?(?:#.*)?",
    re.I | re.A | re.S,
)
_AUTHORITY: Final = re.compile(
    r"(?:\[(?P<six>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>\d*))?", re.A
)
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.A)
_NUMBER: Final = re.compile(r"\d+|0x[0-9a-f]*", re.A)


@dataclass(frozen=True, slots=True)
class Url:
    """A parsed URL: `host` is a lower-case name or an address, without brackets."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The Host header: the port only where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def parse_url(text: str) -> Url:
    """Return the parts of an http or https URL; raises Forbidden for every other text."""
    if len(text) > _MAX_URL:
        raise Forbidden(f"the URL has {len(text)} characters; at most {_MAX_URL} are accepted")
    if re.search(r"[\x00-\x20\x7f\\]", text):
        raise Forbidden(f"the URL has a space, control character or backslash: {text[:80]!r}")
    found = _URL.fullmatch(text)
    scheme = found["scheme"].lower() if found else ""
    if found is None or scheme not in _DEFAULT_PORTS:
        raise Forbidden(f"{text[:80]!r} is no http or https URL")
    host, port = _parse_authority(found["authority"], _DEFAULT_PORTS[scheme])
    target = quote((found["path"] or "/") + (found["query"] or ""), safe="/?&=%:@!$'()*+,;~[]|")
    return Url(scheme, host, port, target)


def follow(url: Url, location: str) -> Url:
    """Return where a redirect from `url` leads; a relative `location` is resolved."""
    if re.search(r"[\x00-\x20\x7f\\]", location):
        raise Forbidden("the redirect's target has a space, control character or backslash")
    try:
        return parse_url(urljoin(str(url), location))
    except ValueError as error:
        raise (
            error
            if isinstance(error, Forbidden)
            else Forbidden(f"the redirect leads to {location[:80]!r}, which is no URL")
        ) from error


def _parse_authority(authority: str, default_port: int) -> tuple[str, int]:
    """Return host and port."""
    if "@" in authority:
        raise Forbidden(
            "a URL with a user name or password is not fetched: remove what is before @"
        )
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        raise Forbidden(f"{authority[:80]!r} is no host and port")
    port = int(found["port"]) if found["port"] else default_port
    if not 0 < port < 65536:
        raise Forbidden(f"port {port} is not between 1 and 65535")
    if found["six"] is not None:
        return _address(found["six"], 6), port
    return _host(found["name"].lower()), port


def _host(name: str) -> str:
    """Return a host name or IPv4 address in the one spelling that is accepted."""
    if not name.isascii():
        raise Forbidden(f"host {name[:80]!r} is not ASCII: write it in its xn-- form")
    labels = name.removesuffix(".").split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return _address(name, 4)
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise Forbidden(f"{name[:80]!r} is no host name")
    return name


def _address(text: str, version: int) -> str:
    """Return an IP address in its canonical spelling; 127.1, 0x7f.1 and 2130706433 are none."""
    try:
        address = ipaddress.IPv4Address(text) if version == 4 else ipaddress.IPv6Address(text)
    except ValueError as error:
        raise Forbidden(
            f"{text[:80]!r} is no IPv{version} address as RFC 3986 writes it"
        ) from error
    if "%" in str(address):
        raise Forbidden("an address with a zone belongs to this machine's own networks")
    return str(address)
