"""Sleep, wake-up and weight updates of engines."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from assembled import VOCAB, wait_until
from assembled import engine as engine_of_parts
from checking import BlockedRunner
from encoders import EncoderOracle, write_modules, write_words
from random_llama import write_model
from safetensors.numpy import load_file, save_file
from spaninfer_engine import (
    CheckpointError,
    ConfigError,
    Engine,
    EngineAsleep,
    EngineClosed,
    EngineState,
    EngineUnavailable,
    FinishReason,
    ResultQueue,
    SamplingParams,
    WeightsTimeout,
)

PROMPT = [5, 6, 7] * 20
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model."""
    folder = tmp_path_factory.mktemp("models") / "first"
    write_model(folder, 2, np.float32)
    return folder


def changed(folder: Path, to: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Copy a model to a folder with other weights."""
    shutil.copytree(folder, to)
    weights = load_file(to / "model.safetensors")
    change(weights)
    save_file(weights, to / "model.safetensors")
    return to


def configured(folder: Path, to: Path, **keys: Any) -> Path:
    """Copy a model to a folder with other keys of config.json."""
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(config | keys))
    return to


@pytest.fixture(scope="module")
def other(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with other weights, and without a tokenizer, as trainers save it."""

    def turn(weights: dict[str, Any]) -> None:
        for name, array in weights.items():
            weights[name] = np.ascontiguousarray(array[::-1])

    other = changed(folder, tmp_path_factory.mktemp("models") / "second", turn)
    (other / "tokenizer.json").unlink()
    return other


def made(folder: Path, backend: str = "reference") -> Engine:
    return Engine(folder, backend=backend, memory="8MiB", span_len=16, max_running=4)


def tokens(running: Engine) -> tuple[int, ...]:
    return running.generate(PROMPT, GREEDY).token_ids


@pytest.mark.parametrize("backend", ["reference", "cpu", "torch"])
def test_what_slept_answers_as_before_with_memory_that_is_new(folder: Path, backend: str) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    with made(folder, backend) as running:
        before = tokens(running)
        device: Any = running._core._runner._device  # type: ignore[union-attr]
        caches = [weakref.ref(cache.rows) for cache in device._held.memory.caches]
        assert all(cache() is not None for cache in caches)
        del device
        running.sleep()
        assert [cache() for cache in caches] == [None] * len(caches)
        assert running.is_asleep
        running.wake_up()
        assert not running.is_asleep
        assert tokens(running) == before


READ_RSS = """
import sys
from spaninfer_engine import Engine

def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))

with Engine(sys.argv[1], backend="cpu", memory="8MiB", tune=False) as engine:
    engine.generate([1, 2, 3], max_tokens=2)
    awake = resident()
    engine.sleep()
    asleep = resident()
    engine.wake_up()
    engine.generate([1, 2, 3], max_tokens=2)
    print(awake, asleep, resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_the_process_of_a_sleeping_engine_is_smaller_by_the_weights(tmp_path: Path) -> None:
    num_bytes = 4 * write_model(tmp_path / "wide", 12, np.float32)

    said = subprocess.check_output(
        [sys.executable, "-c", READ_RSS, str(tmp_path / "wide")], text=True
    )
    awake, asleep, again = map(int, said.split())

    assert awake - asleep > 0.9 * num_bytes
    assert abs(again - awake) < 0.2 * num_bytes


def test_who_sleeps_refuses_requests_and_keeps_words(folder: Path) -> None:
    with made(folder) as running:
        tokens(running)
        generated = running.stats().generated_tokens
        running.sleep()
        running.sleep()
        for refused in (running.start_request, running.generate):
            with pytest.raises(EngineAsleep, match="is asleep"):
                refused(PROMPT, GREEDY)
        running.reset_prefix_cache()
        running.thaw()
        assert running.tokenizer.encode("a") == [0]
        stats = running.stats()
        assert (stats.state, stats.generated_tokens) == (EngineState.ASLEEP, generated)
        running.wake_up()
        running.wake_up()
        assert running.stats().state is EngineState.RUNNING


@pytest.mark.parametrize(("drain_s", "reason"), [(0.0, "STOPPED"), (120.0, "LENGTH")])
def test_requests_that_run_are_stopped_or_waited_for(
    folder: Path, drain_s: float, reason: str
) -> None:
    with made(folder) as running:
        handle, queue = running.start_request(PROMPT, LONG)
        queue.get(timeout=60)
        running.sleep(drain_s)
        outputs = list(queue)
        assert outputs[-1].finish_reason is FinishReason[reason]
        running.release(handle)


@pytest.mark.parametrize("name", ["sleep", "update_weights"])
def test_a_request_that_has_not_begun_is_told_that_the_engine_sleeps(
    folder: Path, other: Path, name: str
) -> None:
    with made(folder) as running:
        running.freeze()
        queues = [running.start_request(PROMPT, LONG)[1] for _ in range(4)]  # all that may run
        _, waiting = running.start_request(PROMPT, replace(LONG, n=2))
        running.sleep() if name == "sleep" else running.update_weights(other)
        assert [list(queue)[-1].finish_reason for queue in queues] == [FinishReason.STOPPED] * 4
        outputs = list(waiting)
        assert [output.finish_reason for output in outputs] == [FinishReason.ERROR] * 2
        assert all(isinstance(output.error, EngineAsleep) for output in outputs)


@contextmanager
def closing_in_a_step(*, for_sleep: bool) -> Iterator[tuple[Engine, list[ResultQueue]]]:
    """Give an engine whose core closes in its first step, and the queues of a request that runs and
    of one that waits; the step ends with the block.
    """
    runner = BlockedRunner(4, (100,), vocab=VOCAB)
    running = engine_of_parts(runner, max_running=1)
    _, first = running.start_request([1, 2, 3], LONG)
    runner.wait_for_step()
    queues = [first, running.start_request([1, 2], LONG)[1]]
    close = partial(running._core.close, for_sleep=for_sleep)  # type: ignore[call-arg]
    closing = Thread(target=close)
    closing.start()
    wait_until(lambda: running.stats().state is EngineState.DRAINING)
    try:
        yield running, queues
    finally:
        runner.go()
        closing.join()
        running.close()


def test_who_comes_while_the_engine_falls_asleep_is_told_that_it_sleeps() -> None:
    with closing_in_a_step(for_sleep=True) as (running, _):
        for refused in (running.start_request, running.generate):
            with pytest.raises(EngineAsleep):
                refused([1], LONG)


def test_who_runs_when_the_engine_falls_asleep_is_stopped_and_who_waits_is_told() -> None:
    with closing_in_a_step(for_sleep=True) as (_, queues):
        pass
    ran, waited = (list(queue)[-1] for queue in queues)
    assert (ran.finish_reason, ran.error) == (FinishReason.STOPPED, None)
    assert isinstance(waited.error, EngineAsleep)


def test_who_waits_when_the_engine_is_closed_is_stopped() -> None:
    with closing_in_a_step(for_sleep=False) as (_, queues):
        pass
    assert [list(queue)[-1].finish_reason for queue in queues] == [FinishReason.STOPPED] * 2


def test_an_engine_that_is_closed_while_it_falls_asleep_is_closed() -> None:
    def is_closed() -> bool:
        with pytest.raises(EngineUnavailable) as refused:
            running.start_request([1], LONG)
        return refused.type is EngineClosed

    with closing_in_a_step(for_sleep=True) as (running, _):
        closing = Thread(target=running.close)
        closing.start()
        wait_until(is_closed)
    closing.join()
    assert is_closed()


def test_other_weights_give_what_an_engine_of_theirs_gives(folder: Path, other: Path) -> None:
    shutil.copy(folder / "tokenizer.json", other)
    with made(other) as alone:
        expected = tokens(alone)
    (other / "tokenizer.json").unlink()

    with made(folder) as running:
        before = tokens(running)
        running.update_weights(other)
        answer = running.generate(PROMPT, GREEDY)
        assert (answer.token_ids, answer.usage.cached_len) == (expected, 0)
        assert answer.text == running.tokenizer.decode(expected)
        assert running.stats().model == "first"
        running.sleep()
        running.wake_up()
        assert tokens(running) == expected
        running.update_weights(folder)
        assert tokens(running) == before != expected


def test_other_weights_that_come_in_its_sleep_are_those_it_wakes_up_with(
    folder: Path, other: Path
) -> None:
    with made(folder) as running:
        before = tokens(running)
        running.sleep()
        running.update_weights(other)
        assert running.is_asleep
        running.wake_up()
        assert tokens(running) != before


def shorter(weights: dict[str, Any]) -> None:
    weights["model.norm.weight"] = weights["model.norm.weight"][:-1].copy()


def without(weights: dict[str, Any]) -> None:
    del weights["model.layers.1.mlp.up_proj.weight"]


def test_another_model_is_refused_by_name_and_the_weights_stay(
    folder: Path, tmp_path: Path
) -> None:
    deep, empty = tmp_path / "deep", tmp_path / "empty"
    write_model(deep, 3, np.float32)
    empty.mkdir()
    cases = [
        (changed(folder, tmp_path / "shorter", shorter), r"model\.norm\.weight"),
        (changed(folder, tmp_path / "without", without), r"layers\.1\.mlp\.up_proj\.weight"),
        (configured(folder, tmp_path / "eps", rms_norm_eps=1e-3), r"eps is 0\.001, and 1e-05"),
        (configured(folder, tmp_path / "heads", num_attention_heads=4), r"is 4, and 8"),
        (deep, r"model\.layers\.2\..* has the shape .* is missing"),
        (empty, "config.json"),
        (tmp_path / "none", "none"),
    ]
    with made(folder) as running:
        before, steps = tokens(running), running.stats().steps
        for wrong, named in cases:
            with pytest.raises((CheckpointError, ConfigError), match=named):
                running.update_weights(wrong)
        assert running.stats().steps == steps  # the core is the one it was
        assert tokens(running) == before


def test_weights_that_cannot_be_read_after_all_leave_those_before(
    folder: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "tokenizer.json").write_text("{")
    with made(folder) as running:
        before = tokens(running)
        with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
            running.update_weights(broken)
        assert tokens(running) == before


def test_an_engine_whose_files_are_gone_sleeps_on(folder: Path, tmp_path: Path) -> None:
    there, away = tmp_path / "there", tmp_path / "away"
    shutil.copytree(folder, there)
    with made(there) as running:
        before = tokens(running)
        running.sleep()
        there.rename(away)
        with pytest.raises(ConfigError, match="there"):
            running.wake_up()
        assert running.is_asleep
        away.rename(there)
        running.wake_up()
        assert tokens(running) == before


def test_an_engine_that_is_closed_in_its_sleep_is_closed(folder: Path) -> None:
    running = made(folder)
    running.sleep()
    running.close()
    calls = [partial(running.start_request, PROMPT), partial(running.generate, PROMPT)]
    for call in (*calls, running.wake_up, running.freeze, running.thaw, running.reset_prefix_cache):
        with pytest.raises(EngineClosed):
            call()


def test_who_waits_for_the_end_waits_through_sleep(folder: Path) -> None:
    running = made(folder)
    waiting = Thread(target=running.wait_over)
    waiting.start()
    running.sleep()
    running.wake_up()
    running.sleep()
    assert waiting.is_alive()
    running.close()
    waiting.join(60)
    assert not waiting.is_alive()
    with pytest.raises(EngineClosed):
        running.wake_up()
    with pytest.raises(EngineClosed):
        running.sleep()


@contextmanager
def waited_for(path: Path) -> Iterator[Callable[[], bool]]:
    """Have whoever opens a file wait until the end of the block; gives whether somebody does."""
    fcntl = pytest.importorskip("fcntl")
    if not hasattr(fcntl, "F_SETLEASE"):
        pytest.skip("files have leases on Linux alone")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # told to the holder of a lease
    with path.open("r+b") as held:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        try:
            yield lambda: fcntl.fcntl(held, fcntl.F_GETLEASE) != fcntl.F_WRLCK
        finally:
            fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            signal.signal(signal.SIGIO, before)


@pytest.mark.parametrize("name", ["update_weights", "check_weights"])
def test_files_that_do_not_open_are_not_waited_for_longer_than_the_callers_patience(
    folder: Path, tmp_path: Path, name: str
) -> None:
    there = Path(shutil.copytree(folder, tmp_path / "there"))
    running, errors = made(folder), list[Exception]()

    def change() -> None:
        try:
            getattr(running, name)(there)
        except EngineClosed as error:
            errors.append(error)

    changing = Thread(target=change)
    with waited_for(there / "config.json") as is_waited_for:
        changing.start()
        wait_until(is_waited_for)
        with pytest.raises(WeightsTimeout, match=r"within 0\.01 s"):
            running.close(patience_s=0.01)
        assert running.stats().state is EngineState.CLOSED
        assert changing.is_alive()
    running.close()
    changing.join()

    assert len(errors) == (name == "update_weights")


def test_an_engine_of_parts_does_not_sleep() -> None:
    with engine_of_parts() as running, pytest.raises(ConfigError, match="built from components"):
        running.sleep()


def test_an_encoder_sleeps_as_well(tmp_path: Path) -> None:
    EncoderOracle().save(tmp_path)
    write_words(tmp_path)
    write_modules(tmp_path, "mean", normalised=True)
    with Engine(tmp_path, backend="reference") as running:
        before = running.embed("crow")
        running.sleep()
        with pytest.raises(EngineAsleep):
            running.embed("crow")
        running.wake_up()
        assert np.array_equal(running.embed("crow"), before)


def test_a_sleeping_engine_that_is_dropped_is_gone(folder: Path) -> None:
    running = made(folder)
    running.sleep()
    known = weakref.ref(running)
    del running
    wait_until(lambda: known() is None)


@pytest.mark.gpu
def test_a_gpu_has_its_memory_back_while_the_engine_sleeps(tmp_path: Path) -> None:
    import torch

    num_bytes = 2 * write_model(tmp_path / "wide", 12, np.float16)
    cache_bytes = 256 << 20
    options: Any = {"dtype": "bfloat16", "memory": cache_bytes}  # float16 does not hold its numbers
    with Engine(tmp_path / "wide", backend="cuda", **options) as running:
        before = tokens(running)
        awake = torch.cuda.memory_reserved()  # by this process: others may use the GPU, too
        running.sleep()
        asleep = torch.cuda.memory_reserved()
        assert awake - asleep > 0.9 * (num_bytes + cache_bytes)
        running.wake_up()
        assert tokens(running) == before
