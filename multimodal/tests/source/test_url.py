"""URL parsing: one reading per URL; disguised hosts are refused."""

import pytest
from spaninfer_multimodal import Forbidden
from spaninfer_multimodal.source.url import Url, follow, parse_url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://a.example/x.png", Url("https", "a.example", 443, "/x.png")),
        ("HTTPS://A.Example", Url("https", "a.example", 443, "/")),
        ("http://a.example:8080/?q=1#part", Url("http", "a.example", 8080, "/?q=1")),
        ("https://a.example:/x", Url("https", "a.example", 443, "/x")),
        ("https://8.8.8.8/x", Url("https", "8.8.8.8", 443, "/x")),
        ("https://[2606:4700::1111]:444/", Url("https", "2606:4700::1111", 444, "/")),
        ("https://a.example/ä/%C3%A4", Url("https", "a.example", 443, "/%C3%A4/%C3%A4")),
        ("https://xn--bcher-kva.example/", Url("https", "xn--bcher-kva.example", 443, "/")),
        ("https://a_b.example/@x:y", Url("https", "a_b.example", 443, "/@x:y")),
    ],
)
def test_urls_have_one_reading(text, expected):
    assert parse_url(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "a.example/x", "//a.example/x", "ftp://a.example/x", "file:///etc/passwd",
        "https:a.example", "https:/a.example", "https:///x", "https://:443/x",
        "http://user@a.example/", "http://user:word@a.example/", "http://a.example@127.0.0.1/",
        "http://a.example\\@127.0.0.1/", "http://a.example /", "http://a.example\r\nX: 1/",
        "http://a.example\0/", "http://127.1/", "http://2130706433/", "http://0x7f000001/",
        "http://0x7f.1/", "http://0177.0.0.1/", "http://127.0.0.01/", "http://127.0.0.1./",
        "http://1.2.3.4.5/", "http://256.0.0.1/", "http://[::1", "http://[::1%25eth0]/",
        "http://[fe80::1%eth0]/", "http://[127.0.0.1]/", "http://::1/", "http://[v1.x]/",
        "http://a.example:99999/", "http://a.example:0/", "http://a.example:8x/",
        "http://\uff11\uff12\uff17.0.0.1/", "http://bücher.example/", "http://a\u3002example/",
        "http://-a.example/", "http://a..example/", "http://a%2eexample/", "http://a.0x/",
        "https://a.example/" + "x" * 9000,
    ],
)  # fmt: skip
def test_what_others_would_repair_is_refused(text):
    with pytest.raises(Forbidden):
        parse_url(text)


def test_the_message_about_credentials_says_what_to_remove():
    with pytest.raises(Forbidden, match="user name or password is not fetched: remove what is"):
        parse_url("https://me:secret@a.example/")


def test_redirects_are_resolved_against_where_they_come_from():
    url = parse_url("https://a.example:444/x/y?z")

    assert str(follow(url, "w")) == "https://a.example:444/x/w"
    assert str(follow(url, "//b.example/v")) == "https://b.example/v"
    assert str(follow(url, "http://b.example")) == "http://b.example/"


def test_the_host_header_names_the_port_only_where_it_must():
    assert parse_url("https://a.example:443/").authority == "a.example"
    assert parse_url("http://a.example:443/").authority == "a.example:443"
    assert parse_url("https://[2606:4700::1]:1/").authority == "[2606:4700::1]:1"
