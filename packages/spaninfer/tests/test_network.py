import ipaddress
import socket

import pytest
from spaninfer.network import reachable_urls


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("192.168.1.5", ("http://192.168.1.5:8123",)),
        ("box.local", ("http://box.local:8123",)),
        ("fd00::5", ("http://[fd00::5]:8123",)),
    ],
)
def test_a_server_on_one_address_is_reached_there(host, expected):
    assert reachable_urls(host, "http://127.0.0.1:8123") == expected


def test_urls_of_an_encrypted_server_say_so():
    assert reachable_urls("box.local", "https://127.0.0.1:8123") == ("https://box.local:8123",)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_server_on_all_addresses_is_reached_at_those_of_this_machine(host):
    """Each is one that a socket of this machine can be bound to."""
    urls = reachable_urls(host, "http://[::1]:8123")

    for url in urls:
        address = ipaddress.ip_address(url.removeprefix("http://").rsplit(":", 1)[0].strip("[]"))
        assert not address.is_loopback
        assert host == "::" or address.version == 4
        with socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET) as ours:
            ours.bind((str(address), 0))
