import hashlib

import httpx
import pytest
from fastapi.testclient import TestClient
from spaninfer_engine import ConfigError
from spaninfer_engine.grammar import GrammarCompiler
from spaninfer_serving import create_app
from spaninfer_serving.admission.keys import KeyLimits, UserKey, read_admin_file, read_key_file
from spaninfer_serving.engine.in_flight import KeyMeter
from spaninfer_serving.settings import Settings
from spaninfer_serving.wire.errors import Problem

ONE = hashlib.sha256(b"one").hexdigest()
TWO = hashlib.sha256(b"two").hexdigest()


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "keys"
        path.write_text(text)
        return path

    return write


def test_a_file_of_keys_opens_the_server_to_them_with_their_limits(written):
    path = written(
        f'[[key]]\nname = "a"\nsha256 = "{ONE}"\nrequests_per_minute = 5\n'
        f'[[key]]\nname = "b"\nsha256 = "sha256:{TWO.upper()}"\n'
    )

    a, b = read_key_file(path)
    settings = Settings(user_keys=(a, b))

    assert (a.limits, b.limits) == (KeyLimits(requests_per_minute=5), KeyLimits())
    assert settings.needs_key
    assert settings.accepts("one")
    assert settings.accepts("two")
    assert not any(settings.accepts(key) for key in (None, "", "three", ONE, "a"))
    assert settings.client_of("two", ("10.0.0.1", 5)).account == "key b"
    assert not settings.is_admin("one")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[key]", "is not TOML"),
        ("x = 1", r"should hold tables \[\[key\]\]"),
        (f'[[key]]\nsha256 = "{ONE}"', "needs a name"),
        ('[[key]]\nname = "a"\nsha256 = "secret"', "has 64 hexadecimal digits"),
        ('[[key]]\nname = "a"', "has 64 hexadecimal digits"),
        (f'[[key]]\nname = "a"\nsha256 = "{ONE}"\nrate = 5', "has 'rate'; allowed are name"),
        (f'[[key]]\nname = "a"\nsha256 = "{ONE}"\ntokens_per_minute = 0', "a whole number from 1"),
        (f'[[key]]\nname = "a"\nsha256 = "{ONE}"\n' * 2, "two keys with the same name"),
    ],
)
def test_a_file_that_is_wrong_is_refused_without_repeating_secrets(written, text, says):
    with pytest.raises(ConfigError, match=says) as refused:
        read_key_file(written(text))

    assert "secret" not in str(refused.value)


def test_an_admin_file_holds_hashes_and_comments(written):
    path = written(f"# mine\n{ONE}  # of 2026\n\nsha256:{TWO}\n")

    settings = Settings(admin_hashes=read_admin_file(path))

    assert settings.is_admin("one")
    assert settings.is_admin("two")
    assert not any(settings.is_admin(key) for key in (None, "", "three", ONE))


@pytest.mark.parametrize("text", ["", "# nothing", "the-key-itself"])
def test_an_admin_file_without_hashes_is_refused(written, text):
    with pytest.raises(ConfigError, match="spaninfer hash-key"):
        read_admin_file(written(text))


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        read_key_file(tmp_path / "none")


def test_nobody_is_an_admin_where_there_is_no_key():
    assert not any(Settings().is_admin(key) for key in (None, "", "any"))


def test_a_key_whose_hash_is_alike_in_parts_opens_nothing():
    def bytes_of(key):
        return hashlib.sha256(key.encode()).digest()

    known = bytes_of("root")
    names = [str(number) for number in range(2000)]
    alike = [name for at in (0, -1) for name in names if bytes_of(name)[at] == known[at]]
    settings = Settings(admin_hashes=(known,), user_keys=(UserKey("root", known),))

    assert settings.accepts("root")
    assert settings.is_admin("root")
    assert len(alike) > 2
    alike.append(known.hex())  # the hash itself, as a file holds it
    assert not any(settings.accepts(name) or settings.is_admin(name) for name in alike)


def test_an_admin_key_opens_what_users_keys_open():
    settings = Settings(user_keys=(UserKey("a", bytes.fromhex(ONE)),),
                        admin_hashes=(bytes.fromhex(TWO),))  # fmt: skip

    assert settings.accepts("two")


def refused_wait_s(meter, num_tokens, now_s):
    with pytest.raises(Problem) as refused:
        meter.admit(num_tokens, now_s)
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    return int(refused.value.headers["Retry-After"])


@pytest.fixture
def meter(monkeypatch):
    """What makes a meter at the time 0."""
    monkeypatch.setattr("spaninfer_serving.engine.in_flight.monotonic", lambda: 0.0)
    return lambda **limits: KeyMeter(KeyLimits(**limits))


def test_requests_come_back_steadily_over_a_minute(meter):
    meter = meter(requests_per_minute=6)
    for _ in range(6):
        meter.admit(1, 0.0)

    assert refused_wait_s(meter, 1, 0.0) == 10
    assert refused_wait_s(meter, 1, 9.0) == 1
    meter.admit(1, 10.0)
    assert refused_wait_s(meter, 1, 10.0) == 10


def test_tokens_of_answers_are_owed_and_waited_for(meter):
    meter = meter(tokens_per_minute=600)
    meter.admit(100, 0.0)
    meter.charge(1000)

    assert refused_wait_s(meter, 100, 0.0) == 60
    assert refused_wait_s(meter, 100, 30.0) == 30
    meter.admit(100, 60.0)


def test_a_prompt_larger_than_the_limit_passes_when_all_of_it_is_there(meter):
    meter = meter(tokens_per_minute=600)
    meter.admit(1200, 0.0)

    assert refused_wait_s(meter, 1200, 60.0) == 60
    meter.admit(1200, 120.0)


def test_what_is_refused_costs_nothing(meter):
    meter = meter(requests_per_minute=2, tokens_per_minute=60)
    meter.admit(60, 0.0)

    waits = [refused_wait_s(meter, 60, 1.0) for _ in range(5)]

    assert waits == 5 * [59]
    meter.admit(60, 60.0)  # raises no Problem


@pytest.mark.parametrize("is_shared", [False, True])
def test_requests_with_different_keys_share_prefixes_only_where_the_operator_says_so(
    engine, is_shared
):
    settings = Settings(api_keys=("one", "two"), share_prefixes=is_shared)
    client = TestClient(create_app(engine, settings))

    def cached(key):
        body = {"prompt": [5 + is_shared, *range(7, 40)], "max_tokens": 1}
        answer = client.post(
            "/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"}
        )
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached("one") == 0
    assert cached("one") > 0
    assert (cached("two") > 0) == is_shared


@pytest.mark.parametrize("is_shared", [False, True])
def test_what_a_schema_or_a_list_of_bad_words_costs_tells_nothing_of_other_keys(
    engine, live, monkeypatch, is_shared
):
    pytest.importorskip("llguidance")
    compiled, encoded = [], []
    compile_one, encode = GrammarCompiler._compile, type(engine.tokenizer).encode

    def compiling(self, structured, vocabulary):
        compiled.append(structured.source)
        return compile_one(self, structured, vocabulary)

    def encoding(self, text, **options):
        encoded.append(text)
        return encode(self, text, **options)

    monkeypatch.setattr(GrammarCompiler, "_compile", compiling)
    monkeypatch.setattr(type(engine.tokenizer), "encode", encoding)
    word = f"Winterreise {is_shared}"
    host, port = live(api_keys=("one", "two"), share_prefixes=is_shared).address

    for key in ("one", "one", "two"):
        answer = httpx.post(
            f"http://{host}:{port}/v1/completions",
            json={
                "prompt": [5],
                "max_tokens": 1,
                "structured_outputs": {"choice": [word]},
                "bad_words": [f"not {word}"],
            },
            headers={"Authorization": f"Bearer {key}"},
            timeout=120,
        )
        assert answer.status_code == 200, answer.text

    times = 1 if is_shared else 2
    assert len(compiled) == times
    assert encoded.count(f"not {word}") == times


def test_tenants_are_keys_and_without_keys_there_are_none():
    by_file = Settings(user_keys=(UserKey("a", bytes.fromhex(ONE), KeyLimits()),))

    assert Settings().tenant_of("anything") == Settings().tenant_of(None) == ""
    assert by_file.tenant_of("one") != by_file.tenant_of("two")
    assert "one" not in by_file.tenant_of("one")
