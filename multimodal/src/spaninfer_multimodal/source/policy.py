"""Policy for media sources; deny by default."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spaninfer_multimodal.errors import Forbidden
from spaninfer_multimodal.source.address import Network
from spaninfer_multimodal.source.url import Url


@dataclass(frozen=True, slots=True)
class FetchPolicy:
    """Policy for fetching over the network.

    Addresses must be public, or in `allowed_networks`. `allowed_hosts` narrows the names, without
    their subdomains; None allows all. `max_fetch_s` is for the whole fetch: DNS, redirects,
    TLS and body.
    """

    allow_http: bool = False
    allowed_hosts: frozenset[str] | None = None
    allowed_networks: tuple[Network, ...] = ()
    max_redirects: int = 3
    max_fetch_s: float = 30.0


@dataclass(frozen=True, slots=True)
class SourcePolicy:
    """The sources that are allowed besides data: URLs; none by default."""

    fetch: FetchPolicy | None = None
    folder: Path | None = None


def check_url(url: Url, policy: FetchPolicy) -> None:
    """Raise Forbidden for a URL that the policy excludes, before anything is resolved."""
    if url.scheme == "http" and not policy.allow_http:
        raise Forbidden(f"{url} is fetched over https only")
    hosts = policy.allowed_hosts
    if hosts is not None and url.host not in {host.lower() for host in hosts}:
        raise Forbidden(f"host {url.host} is not among the hosts that media are fetched from")
