"""The guard against real sockets on loopback.

The operator of these tests allows 127.0.0.1, as one would an internal media store. Everything
else that is not public stays refused: 127.0.0.2 is where attacks want to go.
"""

import asyncio
import ipaddress
import shutil
import ssl
import subprocess

import httpcore2
import pytest
from site_server import names, ok, redirect, serving
from spaninfer_multimodal import (
    FetchPolicy,
    Forbidden,
    MediaError,
    TooLarge,
    TooSlow,
    Unreachable,
    Unreadable,
    fetch,
)

BODY = b"\x89PNG and more"
HOME = (ipaddress.ip_network("127.0.0.1/32"),)
POLICY = FetchPolicy(allow_http=True, allowed_networks=HOME)
HERE = "127.0.0.1"


def get(pages, path="/", policy=POLICY, max_bytes=1000, resolver=None, host="media.example"):
    """Fetch one page; return what came and the site."""

    async def run():
        async with serving(pages) as site:
            found = resolver or names(media_example=HERE)
            try:
                return await fetch(site.url(path, host), max_bytes, policy, resolver=found), site
            except MediaError as error:
                return error, site

    return asyncio.run(run())


def test_a_body_is_fetched_from_the_name_it_was_asked_of():
    body, site = get({"/a.png?size=2": ok(BODY)}, "/a.png?size=2")

    assert body == BODY
    (head,) = site.requests
    assert f"Host: media.example:{site.port}" in head
    assert "Accept-Encoding: identity" in head


def test_a_body_in_chunks_is_put_together():
    chunks = b"5\r\nfirst\r\n6\r\nsecond\r\n0\r\n\r\n"

    body, _ = get({"/": ok(chunks, Transfer_Encoding="chunked")})

    assert body == b"firstsecond"


@pytest.mark.parametrize(
    "address",
    ["127.0.0.2", "10.0.0.1", "169.254.169.254", "100.64.0.1", "::1", "::ffff:127.0.0.2",
     "fd00:ec2::254", "64:ff9b::7f00:2", "fe80::1%eth0", "0.0.0.0"],
)  # fmt: skip
def test_a_name_at_an_address_that_is_not_public_is_refused(address):
    error, site = get({"/": ok(BODY)}, resolver=names(media_example=address))

    assert isinstance(error, Forbidden)
    assert "not public" in str(error)
    assert site.requests == []


def test_one_address_that_is_not_public_condemns_all():
    error, site = get({"/": ok(BODY)}, resolver=names(media_example=(HERE, "10.0.0.1")))

    assert isinstance(error, Forbidden)
    assert site.requests == []


def test_without_a_network_that_is_allowed_loopback_is_refused():
    error, _ = get({"/": ok(BODY)}, policy=FetchPolicy(allow_http=True))

    assert str(error) == "host media.example is at 127.0.0.1, which is not public: loopback"


def test_a_name_that_changes_its_address_after_the_check_is_not_asked_again():
    resolver = names(media_example=[HERE, "127.0.0.2"])

    body, _ = get({"/": ok(BODY)}, resolver=resolver)

    assert body == BODY
    assert len(resolver.asked) == 1


def test_a_name_that_changes_its_address_between_redirects_is_checked_again():
    resolver = names(media_example=[HERE, "127.0.0.2"])

    error, site = get({"/": redirect("/again"), "/again": ok(BODY)}, resolver=resolver)

    assert isinstance(error, Forbidden)
    assert len(site.requests) == 1


@pytest.mark.parametrize(
    "location",
    ["http://127.0.0.2/", "http://inside.example/", "//10.0.0.1/", "http://[::1]/",
     "http://[::ffff:7f00:2]/", "http://2130706434/", "http://0x7f.2/", "http://127.2/",
     "file:///etc/passwd", "gopher://media.example/", "http://media.example@127.0.0.2/",
     "http:\\\\127.0.0.2/", "http://127.0.0.2\t/", "http://[fe80::1%25lo]/", "data:image/png,1"],
)  # fmt: skip
def test_a_redirect_to_a_forbidden_address_is_refused(location):
    resolver = names(media_example=HERE, inside_example="192.168.1.1")

    error, site = get({"/": redirect(location)}, resolver=resolver)

    assert isinstance(error, Forbidden)
    assert len(site.requests) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_few_redirects_are_followed(status):
    pages = {"/": redirect("/b", status), "/b": redirect("c?d=1", status), "/c?d=1": ok(BODY)}

    body, site = get(pages)

    assert body == BODY
    assert len(site.requests) == 3


def test_twenty_redirects_are_too_many():
    pages = {f"/{number}": redirect(f"/{number + 1}") for number in range(20)} | {"/20": ok(BODY)}

    error, site = get(pages, "/0")

    assert str(error) == "the URL redirects more than 3 times, which is the limit"
    assert len(site.requests) == 4


def test_a_redirect_without_a_target_goes_in_circles_until_the_limit():
    error, site = get({"/": b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"})

    assert isinstance(error, Forbidden)
    assert len(site.requests) == 4


def test_plain_http_needs_to_be_allowed_even_after_a_redirect():
    error, site = get({"/": ok(BODY)}, policy=FetchPolicy(allowed_networks=HOME))

    assert "fetched over https only" in str(error)
    assert site.requests == []


def test_hosts_can_be_narrowed_and_redirects_stay_among_them():
    policy = FetchPolicy(
        allow_http=True, allowed_networks=HOME, allowed_hosts=frozenset({"Media.example"})
    )
    resolver = names(media_example=HERE, evil_example=HERE)
    pages = {"/": redirect("http://evil.example/"), "/ok": ok(BODY)}

    assert get(pages, "/ok", policy, resolver=resolver)[0] == BODY
    assert "evil.example is not among" in str(get(pages, "/", policy, resolver=resolver)[0])
    assert "is not among" in str(get(pages, "/ok", policy, host="evil.example")[0])
    assert "is not among" in str(get(pages, "/ok", policy, host="media.example.evil.example")[0])


@pytest.mark.parametrize(
    "page",
    [ok(BODY, Content_Length=1001), ok(bytes(1001)), b"HTTP/1.1 200 OK\r\n\r\n" + bytes(2000),
     ok(b"3e9\r\n" + bytes(1001) + b"\r\n0\r\n\r\n", Transfer_Encoding="chunked")],
    ids=["declared", "sent", "until the end", "in chunks"],
)  # fmt: skip
def test_more_bytes_than_allowed_are_refused(page):
    error, _ = get({"/": page})

    assert isinstance(error, TooLarge)
    assert "100" in str(error)


def test_a_body_without_end_is_cut_at_the_limit():
    sent = []

    async def endless(writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n")
        while True:
            writer.write(bytes(1000))
            sent.append(1000)
            await writer.drain()

    error, _ = get({"/": endless}, max_bytes=100_000)

    assert isinstance(error, TooLarge)
    assert sum(sent) < 50e6  # what the buffers of two sockets hold


@pytest.mark.parametrize("where", ["head", "body"])
def test_a_server_that_drips_is_left_after_the_time_limit(where):
    async def drip(writer):
        head = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 100000\r\n"
        writer.write(head if where == "head" else head + b"\r\n")
        for number in range(10_000):
            writer.write(b"X-%d: 1\r\n" % number if where == "head" else b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    policy = FetchPolicy(allow_http=True, allowed_networks=HOME, max_fetch_s=0.3)
    error, _ = get({"/": drip}, policy=policy, max_bytes=10**6)

    assert isinstance(error, TooSlow)
    assert "longer than 0.3 s" in str(error)


def test_a_resolver_that_hangs_counts_as_fetching():
    async def hang(_host, _port):
        await asyncio.Event().wait()

    policy = FetchPolicy(allow_http=True, max_fetch_s=0.1)

    with pytest.raises(TooSlow):
        asyncio.run(fetch("http://media.example/", 1000, policy, resolver=hang))


@pytest.mark.parametrize(
    ("page", "error", "message"),
    [
        (ok(b"<html>", "text/html; charset=utf-8"), Unreadable, "sent 'text/html', which is no"),
        (ok(b"{}", "application/json"), Unreadable, "application/json"),
        (ok(BODY, Content_Encoding="gzip"), Unreadable, "compressed .gzip., which was not asked"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", Unreachable, "status 404"),
        (b"HTTP/1.1 206 Partial\r\nContent-Length: 0\r\n\r\n", Unreachable, "status 206"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", Unreachable, "status 500"),
        (b"SSH-2.0-OpenSSH\r\n", Unreachable, "did not deliver"),
        (b"", Unreachable, "did not deliver"),
        (ok(BODY, Content_Length=900), Unreachable, "did not deliver"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: " + b"x" * 200_000 + b"\r\n\r\n", Unreachable, "deliver"),
    ],
    ids=["html", "json", "gzip", "404", "206", "500", "ssh", "nothing", "short", "huge header"],
)  # fmt: skip
def test_what_is_no_media_is_refused_with_its_cause(page, error, message):
    found, _ = get({"/": page})

    with pytest.raises(error, match=message):
        raise found


@pytest.mark.parametrize(
    "kind", ["image/png", "video/mp4", "AUDIO/MPEG", "application/octet-stream"]
)
def test_media_and_untyped_bytes_are_accepted(kind):
    assert get({"/": ok(BODY, kind)})[0] == BODY


def test_an_address_is_fetched_where_its_network_is_allowed():
    async def run(host, written):
        async with serving({"/": ok(BODY)}, host) as site:
            policy = FetchPolicy(allow_http=True, allowed_networks=(ipaddress.ip_network(host),))
            body = await fetch(f"http://{written}:{site.port}/", 1000, policy)
            return body, f"Host: {written}:{site.port}" in site.requests[0]

    assert asyncio.run(run("127.0.0.1", "127.0.0.1")) == (BODY, True)
    try:
        assert asyncio.run(run("::1", "[::1]")) == (BODY, True)
    except OSError:
        pytest.skip("this machine has no IPv6")


def test_a_name_that_does_not_resolve_is_unreachable():
    error, _ = get({}, resolver=names())

    assert str(error) == "host media.example does not resolve"


def test_the_second_address_is_tried_where_the_first_refuses():
    both = (ipaddress.ip_network("127.0.0.0/30"),)
    policy = FetchPolicy(allow_http=True, allowed_networks=both)

    body, _ = get({"/": ok(BODY)}, policy=policy, resolver=names(media_example=("127.0.0.3", HERE)))

    assert body == BODY


def test_proxies_of_the_environment_are_not_used(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.2:9")

    assert get({"/": ok(BODY)})[0] == BODY


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """A certificate for media.example, and its key, that no system trusts."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the program openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "30",
         "-subj", "/CN=media.example", "-addext", "subjectAltName=DNS:media.example"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder


def test_tls_is_verified_against_the_name_at_the_address_that_was_checked(authority):
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority / "cert.pem", authority / "key.pem")
    named = []
    server.sni_callback = lambda _socket, name, _context: named.append(name)
    trusting = ssl.create_default_context(cafile=str(authority / "cert.pem"))
    resolver = names(media_example=HERE, other_example=HERE)
    policy = FetchPolicy(allowed_networks=HOME)

    async def run():
        async with serving({"/": ok(BODY)}, ssl=server) as site:

            async def ask(host, context):
                url = site.url("/", host, "https")
                return await fetch(url, 1000, policy, resolver=resolver, ssl_context=context)

            assert await ask("media.example", trusting) == BODY
            with pytest.raises(Unreachable, match=r"(?i)certificate|mismatch"):
                await ask("other.example", trusting)
            with pytest.raises(Unreachable, match=r"(?i)certificate"):
                await ask("media.example", httpcore2.default_ssl_context())

    asyncio.run(run())
    assert named == ["media.example", "other.example", "media.example"]
