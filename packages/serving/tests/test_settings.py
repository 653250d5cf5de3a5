import hashlib
import secrets
from hmac import compare_digest

import pytest
from spaninfer_engine import ConfigError
from spaninfer_serving.admission.fair_queue import Client
from spaninfer_serving.settings import Settings


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_key(host):
    assert Settings(host=host).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "::", "example.org"])
def test_an_address_others_can_reach_needs_a_key_or_a_word(host):
    with pytest.raises(ConfigError, match="--api-key SECRET, or --no-auth"):
        Settings(host=host)

    assert Settings(host=host, api_keys=("k",)).api_keys == ("k",)
    assert Settings(host=host, no_auth=True).no_auth


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_cannot_be_is_refused(port):
    with pytest.raises(ConfigError, match=f"port is {port}"):
        Settings(port=port)


def test_an_empty_key_is_refused_instead_of_letting_everybody_in():
    with pytest.raises(ConfigError, match="is empty"):
        Settings(api_keys=("",))


@pytest.mark.parametrize("key", ["schlüssel", "two words", "line\n", "\x00"])
def test_a_key_that_no_client_could_send_is_refused_and_not_repeated(key):
    with pytest.raises(
        ConfigError, match="non-ASCII character, which clients cannot send"
    ) as refused:
        Settings(api_keys=("fine", key))

    assert key not in str(refused.value)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 86_401])
def test_a_drain_is_a_time_that_passes(seconds):
    with pytest.raises(ConfigError, match=r"drain is .* seconds; allowed is 0 to 86400"):
        Settings(drain_s=seconds)

    assert Settings(drain_s=0).drain_s == 0


def test_a_server_that_would_refuse_every_body_is_refused_itself():
    with pytest.raises(ConfigError, match="max_body is 0 bytes; allowed is 1 or more"):
        Settings(max_body_bytes=0)


def test_any_of_the_keys_opens_and_nothing_else_does():
    settings = Settings(api_keys=("one", "two"))

    assert settings.accepts("one")
    assert settings.accepts("two")
    assert not any(settings.accepts(key) for key in ("", "on", "onee", "ONE", None))


def test_the_same_comparisons_are_made_whichever_key_is_right_and_where_none_is(monkeypatch):
    compared = []

    def compare(given, known):
        compared.append(known)
        return compare_digest(given, known)

    monkeypatch.setattr(secrets, "compare_digest", compare)
    hashes = tuple(hashlib.sha256(name).digest() for name in (b"admin", b"other"))
    settings = Settings(api_keys=("one", "two"), priority_keys=("first",), admin_hashes=hashes)
    made = []
    for key in ("one", "two", "first", "admin", "twp", "", None):
        settings.accepts(key)
        made.append(tuple(compared))
        compared.clear()

    assert set(made) == {(b"one", b"two", b"first", *hashes)}


def test_without_keys_everybody_may_pass():
    assert Settings().accepts(None)


def test_a_priority_key_opens_and_is_the_only_one_to_prioritise():
    settings = Settings(api_keys=("plain",), priority_keys=("first",))

    assert settings.accepts("first")
    assert settings.accepts("plain")
    assert not settings.accepts(None)
    assert settings.may_prioritise("first")
    assert not any(settings.may_prioritise(key) for key in ("plain", "", None))


def test_a_priority_key_alone_closes_the_server_to_others():
    settings = Settings(host="0.0.0.0", priority_keys=("first",))

    assert settings.needs_key
    assert not settings.accepts("")


def test_without_keys_nobody_may_prioritise():
    assert not Settings().may_prioritise(None)


def test_an_empty_priority_key_is_refused():
    with pytest.raises(ConfigError, match="--priority-key is empty"):
        Settings(priority_keys=("",))


def test_an_account_is_a_key_and_does_not_say_it_or_where_there_are_none_a_host():
    settings = Settings(api_keys=("plain", "other"), priority_keys=("first",))
    clients = [settings.client_of(key, ("10.0.0.1", 5)) for key in ("plain", "other", "first")]

    assert [each.account for each in clients] == ["key 0", "key 1", "key 2"]
    assert Settings().client_of("whatever", ("10.0.0.1", 5)) == ("10.0.0.1", "10.0.0.1:5")


def test_a_parser_of_tool_calls_is_one_that_there_is():
    with pytest.raises(ConfigError, match=r"--tool-parser is 'chatty'; allowed are .*hermes"):
        Settings(tool_parser="chatty")

    assert Settings(tool_parser="hermes").tool_parser == "hermes"


@pytest.mark.parametrize(
    ("first", "account"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer two\r\n\r\n", "key 1"),
        (b"POST / HTTP/1.1\r\nAUTHORIZATION:bearer  one \r\nHost: a\r\n\r\nbody", "key 0"),
        (b"GET / HTTP/1.1\r\nx-api-key: two\r\n\r\n", "key 1"),
        (b"GET / HTTP/1.1\r\nAuthorization: Bearer other\r\n\r\n", "here"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\nx\r\nAuthorization: Bearer two\r\n", "here"),  # a body
        (b"GET / HTTP/1.1\r\nAuthorization: Bearer tw", "here"),  # the rest has not come
        (b"\x16\x03\x01", "here"),
    ],
)
def test_the_first_bytes_of_a_connection_say_whose_turn_it_takes(first, account):
    settings = Settings(api_keys=("one", "two"))

    assert settings.client_of_first(first, ("here", 5)) == Client(account, "here:5")
