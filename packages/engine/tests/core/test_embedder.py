"""Engines with an encoder: inputs, results and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from assembled import wait_until
from encoders import CLS, MAX_LEN, SEP, VOCAB, EncoderOracle, write_modules, write_words
from oracle import prompt
from random_llama import write_model
from spaninfer_engine import (
    ConfigError,
    Engine,
    EngineAsleep,
    EngineClosed,
    EngineConfig,
    EngineState,
    InvalidPrompt,
    InvalidSampling,
    NoMemory,
    NotBuilt,
    TextTooLong,
    UnsupportedTask,
)
from spaninfer_engine.errors import StepTimeout
from spaninfer_engine.request.texts import Text
from spaninfer_engine.run.embedding import EmbeddingRunner
from spaninfer_engine.startup.build import build
from spaninfer_engine.startup.components import Parts
from spaninfer_engine.tools.conversion import convert

TEXTS = [prompt(length, seed=length) for length in (3, 20, 9, 41)]


@pytest.fixture(scope="module")
def oracle() -> EncoderOracle:
    return EncoderOracle()


@pytest.fixture
def folder(oracle: EncoderOracle, tmp_path: Path) -> Path:
    """A BERT with a tokenizer of a few words, between [CLS] and [SEP]."""
    write_words(tmp_path)
    return oracle.save(tmp_path)


def engine(folder: Path, **options: Any) -> Engine:
    return Engine(folder, backend="reference", **options)


def parts_with(folder: Path, launch: Callable[[EmbeddingRunner, Any], Any]) -> Parts:
    """Return parts whose runner launches something else first, or instead."""

    class Runner(EmbeddingRunner):
        def launch(self, texts: Sequence[Any]) -> Any:
            return launch(super(), texts)  # type: ignore[arg-type]

    parts = build(EngineConfig(model=folder, backend="reference"))
    runner = Runner.__new__(Runner)
    runner.__dict__ |= parts.runner.__dict__
    return replace(parts, runner=runner)


# ---- vectors -------------------------------------------------------------------------------------


def test_vectors_are_normalised_as_the_files_say_unless_the_caller_says_otherwise(
    folder: Path, oracle: EncoderOracle
) -> None:
    plain = oracle.vectors(TEXTS, "mean")
    unit = plain / np.linalg.norm(plain, axis=1, keepdims=True)

    with engine(folder) as by_default:
        np.testing.assert_allclose(by_default.embed(TEXTS), plain, atol=1e-4)
        np.testing.assert_allclose(by_default.embed(TEXTS, normalize=True), unit, atol=1e-4)
    write_modules(folder, "mean", normalised=True)
    with engine(folder) as by_files:
        np.testing.assert_allclose(by_files.embed(TEXTS), unit, atol=1e-4)
        np.testing.assert_allclose(by_files.embed(TEXTS, normalize=False), plain, atol=1e-4)


def test_a_text_is_what_the_tokenizer_makes_of_it(folder: Path) -> None:
    with engine(folder) as encoder:
        of_texts = encoder.embed(["fox crow", "Fox"])
        of_ids = encoder.embed([[CLS, 4, 5, SEP], [CLS, 8, SEP]])

    np.testing.assert_array_equal(of_texts, of_ids)


def test_texts_are_put_into_lower_case_where_the_files_say_so(folder: Path) -> None:
    write_modules(folder, "mean", do_lower_case=True)

    with engine(folder) as encoder:
        np.testing.assert_array_equal(encoder.embed(["FOX"]), encoder.embed([[CLS, 4, SEP]]))


@pytest.mark.parametrize("one", ["fox", [CLS, 4, SEP], np.array([CLS, 4, SEP])], ids=type)
def test_one_text_alone_is_a_list_of_one(folder: Path, one: Any) -> None:
    with engine(folder) as encoder:
        assert encoder.embed(one).tolist() == encoder.embed(["fox"]).tolist()


def test_no_texts_have_no_vectors(folder: Path) -> None:
    with engine(folder) as encoder:
        assert encoder.embed([]).shape == (0, 64)


def test_callers_in_many_threads_get_their_own_vectors(folder: Path, oracle: EncoderOracle) -> None:
    expected = oracle.vectors(TEXTS, "mean")

    with engine(folder) as encoder, ThreadPoolExecutor(8) as pool:
        vectors = list(pool.map(encoder.embed, [[text] for text in TEXTS] * 6))

    np.testing.assert_allclose(np.concatenate(vectors), np.tile(expected, (6, 1)), atol=1e-4)


# ---- prompts and pairs ---------------------------------------------------------------------------


def write_prompts(folder: Path, **said: Any) -> None:
    write_modules(folder, "mean")
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))


def test_prompts_stand_in_front_of_texts_by_name_by_default_or_as_given(folder: Path) -> None:
    write_prompts(folder, prompts={"ask": "crow ", "say": "wine "}, default_prompt_name="ask")

    with engine(folder) as encoder:
        for given, expected in (
            ({}, [CLS, 5, 4, SEP]),
            ({"prompt_name": "say"}, [CLS, 7, 4, SEP]),
            ({"prompt": "grapes "}, [CLS, 6, 4, SEP]),
            ({"prompt": ""}, [CLS, 4, SEP]),
        ):
            np.testing.assert_array_equal(
                encoder.embed(["fox"], **given), encoder.embed([expected])
            )
        with pytest.raises(InvalidPrompt, match=r"prompt_name is 'sing'; .* 'ask', 'say'"):
            encoder.embed(["fox"], prompt_name="sing")
        with pytest.raises(InvalidPrompt, match="in front of texts, and this one is token ids"):
            encoder.embed([[4]], prompt_name="say")


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("fox " * 90, "crow", (60, 1)),
        ("fox", "crow " * 90, (1, 60)),
        ("fox " * 90, "crow " * 80, (31, 30)),
        ("fox " * 80, "crow " * 90, (30, 31)),
        ("fox " * 40, "crow " * 90, (30, 31)),
        ("fox " * 20, "crow " * 41, (20, 41)),
    ],
)
def test_of_a_pair_that_is_too_long_the_longer_text_loses_its_end(
    folder: Path, first: str, second: str, kept: tuple[int, int]
) -> None:
    """As transformers does with longest_first: 61 tokens have room between the special ones."""
    from transformers import PreTrainedTokenizerFast

    library = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    expected = library(
        first, second, truncation="longest_first", max_length=MAX_LEN, return_token_type_ids=True
    )

    with engine(folder) as encoder:
        ids, second_from = encoder.tokenizer.encode_pair(first, second, MAX_LEN)

    assert (ids.count(4), ids.count(5)) == kept
    assert ids == expected["input_ids"]
    assert second_from == expected["token_type_ids"].index(1)


def test_scores_of_vectors_are_cosines_of_a_query_or_of_each_pair(folder: Path) -> None:
    documents = ["crow wine", "fox", "grapes grapes"]

    with engine(folder) as encoder:
        unit = encoder.embed(documents, normalize=True)
        query = encoder.embed("fox", normalize=True)[0]

        np.testing.assert_allclose(encoder.score("fox", documents), unit @ query, atol=1e-6)
        np.testing.assert_allclose(encoder.score(documents, documents), 1, atol=1e-6)
        with pytest.raises(InvalidPrompt, match="2 queries and 3 documents do not pair up"):
            encoder.score(documents[:2], documents)


@pytest.mark.parametrize("dimensions", [0, 65])
def test_vectors_have_no_other_dimensions_than_the_model(folder: Path, dimensions: int) -> None:
    with engine(folder) as encoder, pytest.raises(InvalidSampling, match="allowed is 1 to 64"):
        encoder.embed("fox", dimensions=dimensions)


# ---- lengths -------------------------------------------------------------------------------------


def test_a_text_that_is_too_long_is_refused_by_its_number_and_nothing_is_computed(
    folder: Path,
) -> None:
    with engine(folder) as encoder:
        with pytest.raises(TextTooLong, match=f"text 1 has {MAX_LEN + 1} tokens.* {MAX_LEN};"):
            encoder.embed([[CLS], [CLS] * (MAX_LEN + 1)])

        assert encoder.stats().embedded_texts == 0
        assert encoder.embed([[CLS] * MAX_LEN]).shape == (1, 64)


def test_a_truncated_text_keeps_what_belongs_behind_it(folder: Path) -> None:
    ids = [CLS, *[4] * (MAX_LEN - 2), SEP]

    with engine(folder) as encoder:
        expected = encoder.embed([ids])
        text = encoder.embed(["fox " * 1000], truncate=True)
        given = encoder.embed([[CLS, *[4] * 1000, SEP]], truncate=True)
        short = encoder.embed(["fox"], truncate=True)

        np.testing.assert_array_equal(text, expected)
        np.testing.assert_array_equal(given, expected)
        np.testing.assert_array_equal(short, encoder.embed(["fox"]))


def test_ids_that_nothing_belongs_behind_are_cut(folder: Path) -> None:
    with engine(folder) as encoder:
        cut = encoder.embed([[4] * (MAX_LEN + 9)], truncate=True)

        np.testing.assert_array_equal(cut, encoder.embed([[4] * MAX_LEN]))


def test_the_files_length_holds_and_the_callers_where_it_is_shorter(folder: Path) -> None:
    write_modules(folder, "mean", max_seq_length=20)

    with engine(folder) as encoder:
        assert encoder.context == 20
    with engine(folder, max_len=8) as encoder:
        assert encoder.context == 8
    with pytest.raises(ConfigError, match="max_len is 21; the model was made for texts of 20"):
        engine(folder, max_len=21)


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ([[]], "the prompt is empty"),
        ([[4], [VOCAB]], f"holds token id {VOCAB}; this model knows 0 to {VOCAB - 1}"),
        ([[-1]], "holds token id -1"),
        ([[4.5]], "a prompt is text or token ids"),
        ([None], "this one is NoneType"),
        (b"fox", "this one is bytes"),
        (7, "this one is int"),
    ],
    ids=str,
)
def test_what_is_no_text_is_refused(folder: Path, texts: Any, told: str) -> None:
    with engine(folder) as encoder, pytest.raises(InvalidPrompt, match=told):
        encoder.embed(texts)


def test_without_a_tokenizer_token_ids_are_embedded_and_texts_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()

    with engine(folder) as encoder:
        assert encoder.embed([[4, 5]]).shape == (1, 64)
        with pytest.raises(InvalidPrompt, match="no tokenizer files"):
            encoder.embed(["fox"])


def test_an_encoder_generates_nothing(folder: Path) -> None:
    with engine(folder) as encoder:
        for ask in (encoder.generate, encoder.start_request):
            with pytest.raises(UnsupportedTask, match=r"an encoder .bert.*Engine.embed"):
                ask([4, 5])
        with pytest.raises(UnsupportedTask, match="does not generate"):
            encoder.cache_map()


def test_a_decoder_embeds_nothing(tmp_path: Path) -> None:
    write_model(tmp_path / "model", 1, float)

    with (
        engine(tmp_path / "model") as decoder,
        pytest.raises(
            UnsupportedTask,
            match=r"does not embed; vectors of texts need an encoder.* for: generate",
        ),
    ):
        decoder.embed([[4, 5]])


@pytest.mark.parametrize(
    "option", [{"memory": 1 << 20}, {"span_len": 16}, {"chat_template": Path("x.jinja")}], ids=str
)
def test_options_of_decoders_are_refused(folder: Path, option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(option))} is .* neither KV cache nor chat"):
        engine(folder, **option)


def test_an_encoder_is_not_converted(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NotBuilt, match="holds an encoder"):
        convert(folder, tmp_path / "packed")


# ---- its life ------------------------------------------------------------------------------------


def test_stats_count_texts_tokens_and_steps(folder: Path) -> None:
    with engine(folder, max_running=2) as encoder:
        encoder.embed([[4, 5, 6], [4], [5, 6]])

        stats = encoder.stats()

    assert (stats.embedded_texts, stats.prefilled_tokens, stats.steps) == (3, 6, 2)
    assert stats.state is EngineState.RUNNING
    assert stats.span_usage == 0.0
    assert stats.step_s >= stats.last_step_s > 0


def test_rows_of_ids_are_texts(folder: Path) -> None:
    with engine(folder) as encoder:
        rows = encoder.embed(np.array([[4, 5], [6, 7]]))  # type: ignore[arg-type]

        assert np.array_equal(rows, encoder.embed([[4, 5], [6, 7]]))


def test_a_closed_engine_embeds_no_more_and_may_be_closed_again(folder: Path) -> None:
    encoder = engine(folder)

    encoder.close()
    encoder.close()

    assert encoder.stats().state is EngineState.CLOSED
    with pytest.raises(EngineClosed, match="the engine is closed and embeds no more"):
        encoder.embed([[4]])


def test_calls_under_way_finish_while_the_engine_drains_and_no_others_begin(folder: Path) -> None:
    encoder = engine(folder)
    core: Any = encoder._core
    with ThreadPoolExecutor(1) as pool:
        with core._call():  # as embed does between two steps
            closing = pool.submit(encoder.close, 120.0)
            wait_until(lambda: encoder.stats().state is not EngineState.RUNNING)
            with pytest.raises(EngineClosed, match="the engine is draining"):
                encoder.embed([[4]])

            assert core._compute([Text(np.array([4]))])[0].shape == (1, 64)
        closing.result(120)
    assert encoder.stats().state is EngineState.CLOSED


def test_a_call_under_way_ends_with_an_engine_that_does_not_drain(folder: Path) -> None:
    encoder = engine(folder)
    core: Any = encoder._core

    with core._call():
        encoder.close()

        with pytest.raises(EngineClosed, match="the engine is closed"):
            core._compute([Text(np.array([4]))])


def test_calls_are_told_that_an_engine_falls_asleep(folder: Path) -> None:
    with engine(folder) as encoder:
        core: Any = encoder._core

        with core._call():
            core.close(for_sleep=True)

            with pytest.raises(EngineAsleep):
                core._compute([Text(np.array([4]))])
        with pytest.raises(EngineAsleep):  # until the slot has another one
            encoder.embed([[4]])
        encoder.close()
        with pytest.raises(EngineClosed):
            encoder.embed([[4]])


def test_a_step_that_hangs_is_not_waited_for_longer_than_the_callers_patience(
    folder: Path,
) -> None:
    begun, go_on = Event(), Event()

    def hang(runner: EmbeddingRunner, texts: Any) -> Any:
        begun.set()
        assert go_on.wait(120)
        return runner.launch(texts)

    encoder = Engine(parts_with(folder, hang))
    with ThreadPoolExecutor(1) as pool:
        vectors = pool.submit(encoder.embed, [[4]])
        assert begun.wait(120)

        with pytest.raises(StepTimeout):
            encoder.close(patience_s=0.01)
        go_on.set()

        assert vectors.result(120).shape == (1, 64)
    encoder.close()


def test_a_step_that_fails_ends_the_engine(folder: Path) -> None:
    def fail(_runner: EmbeddingRunner, _texts: Any) -> Any:
        raise RuntimeError("the device is gone")

    encoder = Engine(parts_with(folder, fail))

    with pytest.raises(RuntimeError, match="the device is gone"):
        encoder.embed([[4]])
    with pytest.raises(EngineClosed, match="a step failed"):
        encoder.embed([[4]])
    assert encoder.stats().state is EngineState.FAILED
    encoder.close()
    assert encoder.stats().state is EngineState.FAILED


def test_a_step_without_memory_is_repeated_text_by_text(folder: Path) -> None:
    def lack(runner: EmbeddingRunner, texts: Any) -> Any:
        if sum(len(text.ids) for text in texts) > 1:
            raise NoMemory(2, 0)
        return runner.launch(texts)

    with engine(folder) as whole, Engine(parts_with(folder, lack)) as encoder:
        found, expected = encoder.embed([[4], [5]]), whole.embed([[4], [5]])
        np.testing.assert_allclose(found, expected, atol=1e-5)
        with pytest.raises(NoMemory):
            encoder.embed([[4, 5]])
        assert encoder.embed([[4]]).shape == (1, 64)


@pytest.mark.parametrize("num_beside", [0, 3])
def test_a_text_that_cannot_be_computed_costs_those_beside_it_nothing(
    folder: Path, num_beside: int
) -> None:
    def refuse(runner: EmbeddingRunner, texts: Any) -> Any:
        if any(7 in text.ids for text in texts):
            raise ZeroDivisionError("of the seven")
        return runner.launch(texts)

    asked = [Text(np.array([4, number])) for number in [*range(10, 10 + num_beside), 7]]
    with engine(folder) as whole, Engine(parts_with(folder, refuse)) as encoder:
        rows, errors = encoder.rows_and_errors(asked)
        expected = whole.rows_of(asked)

        np.testing.assert_allclose(rows[:-1], expected[:-1], atol=1e-5)
        assert [(number, str(error)) for number, error in errors.items()] == [
            (num_beside, "of the seven")
        ]
        with pytest.raises(ZeroDivisionError):
            encoder.rows_of(asked)
        assert encoder.stats().state is EngineState.RUNNING


class Ahead:
    """A device that computes by itself what was launched; it notes what is asked of it."""

    lookahead = 1

    def __init__(self, device: Any) -> None:
        self._device, self.asked = device, ""

    def launch(self, batch: Any, updates: Any) -> Ahead.Step:
        self.asked += "launch "
        step = self._device.launch(batch, updates)
        step.wait()
        return Ahead.Step(self, step.vectors())

    def close(self) -> None:
        self._device.close()

    @dataclass
    class Step:
        """A step that was computed when it was launched."""

        device: Ahead
        rows: Any

        def wait(self) -> None:
            self.device.asked += "wait "

        def vectors(self) -> Any:
            return self.rows


def test_a_step_is_launched_before_the_one_in_front_of_it_is_waited_for(folder: Path) -> None:
    parts = build(EngineConfig(model=folder, backend="reference", step_tokens=41, max_running=2))
    device = Ahead(parts.runner._device)
    runner = EmbeddingRunner(device, parts.runner._sequences, parts.runner._pool)
    with engine(folder) as at_once:
        expected = at_once.embed(TEXTS)

    with Engine(replace(parts, runner=runner)) as encoder:
        vectors = encoder.embed(TEXTS)

    assert device.asked.split() == ["launch", "launch", "wait", "launch", "wait", "wait"]
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_a_dropped_engine_gives_its_weights_back(folder: Path) -> None:
    parts = build(EngineConfig(model=folder, backend="reference"))
    device = parts.runner._device

    Engine(parts)

    assert device._held is None
