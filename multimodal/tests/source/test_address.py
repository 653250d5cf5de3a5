"""Public addresses, against the standard library's classification."""

from ipaddress import ip_address, ip_network

import pytest
from spaninfer_multimodal.source.address import not_public, parse_address

REFUSED = """
0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1
127.255.255.254 168.63.129.16 169.254.0.1 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1
192.0.0.192 192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1
224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
:: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 64:ff9b::10.0.0.1
64:ff9b::a9fe:a9fe 64:ff9b:1::7f00:1 100::1 2001:db8::1 2001:2::1 2001:10::1 2001:20::1
2002:7f00:1:: 2002:a9fe:a9fe::1 2002:c0a8:1::1 2001:0:4136:e378:8000:63bf:80ff:fffe 3fff::1 5f00::1
fc00::1 fd00:ec2::254 fdff::1 fe80::1 fec0::1 ff02::1 4000::1
""".split()

PUBLIC = """
1.1.1.1 8.8.8.8 93.184.215.14 100.63.255.255 100.128.0.1 126.255.255.255 128.0.0.1 172.15.255.255
172.32.0.1 192.0.1.1 192.167.255.255 198.17.255.255 198.20.0.1 223.255.255.255
2606:4700:4700::1111 2a00:1450:4001:829::200e ::ffff:8.8.8.8 64:ff9b::808:808 2002:808:808::1
""".split()


@pytest.mark.parametrize("address", REFUSED)
def test_what_is_not_public_has_a_reason(address):
    assert not_public(parse_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_what_is_public_has_none(address):
    assert not_public(parse_address(address)) is None


def test_nothing_is_public_that_the_standard_library_calls_private():
    for first in range(256):
        for second in range(0, 256, 3):
            address = ip_address(f"{first}.{second}.7.9")
            if not address.is_global or address.is_multicast:
                assert not_public(address), address


def test_an_allowed_network_is_allowed_however_its_addresses_are_written():
    allowed = (ip_network("10.1.0.0/16"), ip_network("fd12::/16"))

    for text in ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd12::1"):
        assert not_public(parse_address(text), allowed) is None
    for text in ("10.2.0.1", "::ffff:10.2.0.1", "fd13::1", "127.0.0.1"):
        assert not_public(parse_address(text), allowed)
