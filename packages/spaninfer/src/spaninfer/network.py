"""The addresses under which other machines find this one."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import suppress

ANY = ("0.0.0.0", "::")  # all addresses of this machine
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))  # RFC 5737 and 3849


def reachable_urls(host: str, url: str) -> tuple[str, ...]:
    """Return the URLs of a server that listens on `host`, as others may write them.

    `url` is that for this machine itself, with the port. Of a server on all addresses these are
    the ones from which packets would leave and those of the machine's name; a router or a
    container may know it under others.
    """
    scheme, _, rest = url.partition("://")
    port = rest.rsplit(":", 1)[1]
    hosts = dict.fromkeys(_own_addresses()) if host in ANY else [host]
    wanted = [each for each in hosts if host != "0.0.0.0" or ":" not in each]
    return tuple(
        f"{scheme}://[{each}]:{port}" if ":" in each else f"{scheme}://{each}:{port}"
        for each in wanted
    )


def _own_addresses() -> Iterator[str]:
    for family, elsewhere in _ELSEWHERE:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))  # of datagrams this sends nothing: it picks a route
            yield probe.getsockname()[0]
    with suppress(OSError):
        for *_, address in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            found = ipaddress.ip_address(str(address[0]).partition("%")[0])
            if not found.is_loopback and not found.is_link_local:
                yield str(found)
