"""Round trips of values across the link."""

from dataclasses import fields, is_dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
from spaninfer_engine import CacheMap, Engine, EngineConfig, SamplingParams, StructuredOutput
from spaninfer_engine import errors as engine_errors
from spaninfer_engine.config import Resolved
from spaninfer_engine.errors import EngineError, InvalidSampling, PromptTooLong
from spaninfer_engine.request.logprobs import LogprobAt, TokenLogprobs
from spaninfer_engine.request.media import Levels, MediaItem, Mixture, PromptMedia, TowerInput
from spaninfer_serving import Settings
from spaninfer_serving.admission.keys import KeyLimits, UserKey, hash_of
from spaninfer_serving.api_server import records
from spaninfer_serving.error_mapping import busy, problem_of

CHANGED = {
    "max_tokens": 7,
    "min_tokens": 2,
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.25,
    "min_p": 0.125,
    "typical_p": 0.5,
    "repetition_penalty": 1.5,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "no_repeat_ngram": 3,
    "logit_bias": {5: -3.5, 70_000: 2.0},
    "bad_words": ("a", "\ud800"),
    "stop": ("é", "\n\n"),
    "stop_ids": (1, 2),
    "include_stop": True,
    "ignore_eos": True,
    "seed": 2**64 - 1,
    "n": 3,
    "logprobs": 0,
    "prompt_logprobs": 20,
    "processed_logprobs": True,
    "skip_special": False,
    "keep_special": (9,),
    "structured": StructuredOutput(choice=["a", "b"]),
}


def test_every_field_of_sampling_parameters_travels() -> None:
    assert set(CHANGED) == {each.name for each in fields(SamplingParams)} - {"mask"}
    for name, value in CHANGED.items():
        if name == "bad_words":  # half a surrogate pair has no bytes
            value = ("a",)
        rest = {"ignore_eos": False} if name == "structured" else {}
        sampling = SamplingParams(**{name: value}, **rest)
        assert records.typed_sampling(bytes(records.plain_sampling(sampling))) == sampling


@pytest.mark.parametrize(
    "form",
    [
        {"json_object": True},
        {"json_schema": {"type": "object"}},
        {"regex": "a+"},
        {"grammar": 'start: "a"'},
        {"structural_tag": {"type": "structural_tag"}},
    ],
)
def test_every_form_of_an_answer_travels(form: dict[str, object]) -> None:
    sampling = SamplingParams(structured=StructuredOutput(**form))
    assert records.typed_sampling(bytes(records.plain_sampling(sampling))) == sampling


def test_a_mask_is_refused_by_name() -> None:
    with pytest.raises(InvalidSampling, match="mask"):
        records.plain_sampling(SamplingParams(mask=lambda _: None))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop_ids", (10**30,)),
        ("logit_bias", {2**64: 1.0}),
    ],
)
def test_numbers_that_no_message_holds_are_refused_by_name(name: str, value: object) -> None:
    sampling = SamplingParams(**{name: value})

    with pytest.raises(InvalidSampling, match=f"^{name} is .*below 2\\^64"):
        records.plain_sampling(sampling)


@pytest.mark.parametrize("number", [2**63, 2**64, 10**30])
def test_more_tokens_than_any_context_holds_may_be_asked_for(number: int) -> None:
    asked = SamplingParams(max_tokens=number)

    assert records.typed_sampling(bytes(records.plain_sampling(asked))).max_tokens == 2**63 - 1


def _classes(kind: type[EngineError] = EngineError) -> list[type[EngineError]]:
    return [kind, *(each for sub in kind.__subclasses__() for each in _classes(sub))]


@pytest.mark.parametrize(
    "kind", [each for each in _classes() if each.__module__ == engine_errors.__name__]
)
def test_an_error_of_the_engine_is_answered_as_in_its_process(kind: type[EngineError]) -> None:
    error = kind.__new__(kind)
    Exception.__init__(error, "what went wrong")
    for name in ("parameter", "place", "problem"):
        setattr(error, name, "top_k")
    found = records.error_of(records.fault_of(error))
    assert type(found) is kind
    assert problem_of(found, "prompt").body() == problem_of(error, "prompt").body()
    assert problem_of(found, "prompt").status == problem_of(error, "prompt").status


def test_numbers_of_errors_and_refusals_travel() -> None:
    found = records.error_of(records.fault_of(PromptTooLong(9, 8)))
    assert isinstance(found, PromptTooLong)
    assert (found.prompt_len, found.limit) == (9, 8)
    refused = records.error_of(records.fault_of(busy("too many")))
    assert problem_of(refused, "").body() == busy("too many").body()
    assert problem_of(refused, "").headers == busy("too many").headers


def test_other_errors_are_not_disclosed() -> None:
    found = records.error_of(records.fault_of(ZeroDivisionError("secret")))
    assert problem_of(found, "prompt").status == 500
    assert "secret" not in str(problem_of(found, "prompt").body())


def test_options_travel(engine: Engine, tmp_path: Path) -> None:
    config = EngineConfig(
        model=tmp_path, spec=tmp_path / "a.toml", memory="1GiB", chat_template=Path("t.jinja")
    )
    found = records.typed_config(_sent(records.plain_config(config)))
    assert found.model == str(tmp_path)
    assert found.spec == tmp_path / "a.toml"
    assert found.chat_template == Path("t.jinja").absolute()
    assert records.typed(_sent(records.plain(engine.resolved)), Resolved) == engine.resolved
    settings = Settings(
        api_keys=("a",),
        user_keys=(UserKey("u", hash_of("k"), KeyLimits(tokens_per_minute=3)),),
        admin_hashes=(hash_of("x"),),
        media_folder=tmp_path,
        api_servers=3,
    )
    assert records.typed(_sent(records.plain(settings)), Settings) == settings


def test_statistics_travel(engine: Engine) -> None:
    stats = engine.stats()
    assert records.typed_stats(_sent(records.plain_stats(stats))) == stats
    picture = engine.cache_map()
    found = records.typed_map(_sent(records.plain_map(picture)))
    assert isinstance(found, CacheMap)
    assert found.span_len == picture.span_len
    for one, other in zip(found.groups, picture.groups, strict=True):
        np.testing.assert_array_equal(one.states, other.states)
        np.testing.assert_array_equal(one.owners, other.owners)


def test_log_probabilities_of_a_prompt_travel_as_arrays() -> None:
    random = np.random.default_rng(0)
    entries = TokenLogprobs(
        random.integers(0, 99, 5).astype(np.int32),
        random.normal(size=5).astype(np.float32),
        random.integers(1, 9, 5).astype(np.int32),
        random.integers(0, 99, (5, 2)).astype(np.int32),
        random.normal(size=(5, 2)).astype(np.float32),
    )
    assert records.typed_logprobs(_sent(records.plain_logprobs(entries))) == entries
    assert records.typed_logprobs(_sent(records.plain_logprobs(()))) == ()


def test_media_of_every_kind_travel() -> None:
    random = np.random.default_rng(0)
    features = random.normal(size=(6, 4)).astype(np.float32)
    mixture = Mixture(np.ones((2, 3), np.int32), np.ones((2, 3), np.float32))
    inputs = [
        TowerInput("image", features, 2, b"\x00\xff", grid_thw=(1, 2, 3)),
        TowerInput("audio", features[:3], 3, b"b", num_valid=7),
        TowerInput("video", features, 2, b"", mixture=mixture),
        TowerInput("image", features.astype(np.uint8), 2, b"c", levels=Levels(features, 2)),
    ]
    items = tuple(MediaItem(each, ((at, 2), (at + 9, 1))) for at, each in enumerate(inputs))
    for positions in (None, random.integers(0, 9, (3, 40)).astype(np.int32)):
        media = PromptMedia(items, positions, -5, bidirectional=True)
        found = records.typed_media(_sent(records.plain_media(media)))
        assert found is not None
        np.testing.assert_equal(_plain(found), _plain(media))
        assert found.runs() == media.runs()
    assert records.typed_media(_sent(records.plain_media(None))) is None


def _plain(value: object) -> object:
    """Return dataclasses and tuples as lists, arrays as they are."""
    if is_dataclass(value):
        return [_plain(getattr(value, each.name)) for each in fields(value)]
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _sent(value: object) -> object:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


def test_log_probabilities_of_sampled_tokens_travel_as_arrays() -> None:
    random = np.random.default_rng(0)
    steps = [TokenLogprobs.empty(3, count) for count in (2, 5)]
    for step in steps:
        step.token_ids[:], step.ranks[:], step.logprobs[:] = 7, 2, random.normal(size=3)
        step.top_ids[:], step.top[:] = 3, random.normal(size=step.top.shape)
    places = [LogprobAt(steps[0], 1, 2), LogprobAt(steps[0], 2, 0), LogprobAt(steps[1], 0, 4)]
    found = records.typed_entries(_sent(records.plain_entries(places)))
    assert [place.entry for place in found] == [place.entry for place in places]
    assert records.typed_entries(_sent(records.plain_entries([]))) == []
