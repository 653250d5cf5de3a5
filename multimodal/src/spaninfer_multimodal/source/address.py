"""Addresses on the public internet.

The tables are written out (IANA's special-purpose registries, 2026, and addresses at which clouds
serve metadata), because those of the standard library differ between versions of Python.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_NOT_PUBLIC_4: Final = {
    IPv4Network(text): reason
    for text, reason in (
        ("0.0.0.0/8", "this network"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by a carrier (CGNAT)"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "cloud metadata"),
        ("169.254.0.0/16", "link-local, where cloud metadata is"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "protocol assignments"),
        ("192.0.2.0/24", "documentation"),
        ("192.31.196.0/24", "AS112"),
        ("192.52.193.0/24", "AMT"),
        ("192.88.99.0/24", "6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("192.175.48.0/24", "AS112"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
}

_PUBLIC_6: Final = IPv6Network("2000::/3")
"""The only IPv6 space that is assigned for the internet."""

_NOT_PUBLIC_6: Final = {
    IPv6Network(text): reason
    for text, reason in (
        ("2001::/23", "protocol assignments"),
        ("2001:db8::/32", "documentation"),
        ("2620:4f:8000::/48", "AS112"),
        ("3fff::/20", "documentation"),
    )
}

_SIX_TO_FOUR: Final = IPv6Network("2002::/16")
_TEREDO: Final = IPv6Network("2001::/32")
_NAT64: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
_COMPATIBLE: Final = IPv6Network("::/96")


def not_public(address: Address, allowed: Collection[Network] = ()) -> str | None:
    """Return the reason why `address` is not public; None if it is, or is in `allowed`.

    An IPv6 address that carries an IPv4 one (mapped, NAT64, 6to4, Teredo) is judged by that one.
    """
    inner = embedded(address)
    if any(network.version == inner.version and inner in network for network in allowed):
        return None
    if isinstance(inner, IPv4Address):
        return next((why for network, why in _NOT_PUBLIC_4.items() if inner in network), None)
    if inner not in _PUBLIC_6:
        return "loopback" if inner.is_loopback else "not in the public IPv6 space"
    return next((why for network, why in _NOT_PUBLIC_6.items() if inner in network), None)


def embedded(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for, or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    low = IPv4Address(int(address) & 0xFFFFFFFF)
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _SIX_TO_FOUR:
        return IPv4Address(int(address) >> 80 & 0xFFFFFFFF)
    if address in _TEREDO:
        return IPv4Address(int(low) ^ 0xFFFFFFFF)
    if any(address in network for network in _NAT64):
        return low
    if address in _COMPATIBLE and int(address) > 1:
        return low
    return address


def parse_address(text: str) -> Address:
    """Return an address as a resolver writes it, without its zone."""
    return ip_address(text.partition("%")[0])
