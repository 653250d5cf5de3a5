"""llama.cpp at the same batches, through llama-cpp-python where that is installed."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from time import perf_counter
from types import ModuleType, TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spaninfer_engine import ConfigError

from spaninfer.bench.workloads import Batch, TokenIds

_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_SILENCE = _LOG(lambda _level, _text, _data: None)  # kept here: the library calls it until the end


def llama_library() -> ModuleType:
    """Return the module llama_cpp, its log silenced."""
    library = import_module("llama_cpp")
    library.llama_log_set(_SILENCE, ctypes.c_void_p(0))
    return library


def instructions_of(library: ModuleType) -> str:
    """Return which instructions and parts llama.cpp was built with, for this CPU, by its names."""
    said: str = library.llama_print_system_info().decode()
    parts = said.partition(":")[2].split("|")
    return " ".join(part.split("=")[0].strip() for part in parts if part.strip().endswith("= 1"))


class Llama:
    """A GGUF model in llama.cpp's own batches: no sampling, answers are given beforehand.

    A context manager. `requests` are the most of a batch, `context` the tokens of each. It computes
    in threads of its own, loading included: where it was built with AMX, each of its threads sets
    up tiles only once, and kernels of ours that run in the same thread release them.
    """

    def __init__(
        self, library: ModuleType, path: Path, *, threads: int, requests: int, context: int
    ) -> None:
        self._library: Any = library
        self._thread = ThreadPoolExecutor(1)
        library.llama_backend_init()
        model_options = library.llama_model_default_params()
        model_options.n_gpu_layers = 0
        load = library.llama_model_load_from_file
        # With OpenMP's threads of another caller beside its own, all would sleep between operators:
        # 20 instead of 38 tokens a second of Q8_0 (two CPUs of a Xeon).
        self._model = self._thread.submit(load, str(path).encode(), model_options).result()
        if not self._model:
            raise ConfigError(f"llama.cpp cannot load {path.name}")
        options = library.llama_context_default_params()
        options.n_ctx, options.n_seq_max = requests * context, requests
        options.n_batch = options.n_ubatch = context
        options.n_threads = options.n_threads_batch = threads
        options.no_perf = True
        self._context = library.llama_init_from_model(self._model, options)
        if not self._context:
            library.llama_model_free(self._model)
            raise ConfigError(f"llama.cpp has no memory for {requests} x {context} tokens")

    def seconds(self, batch: Batch) -> float:
        """Return the time of a batch in which all requests are as long: prompts, then steps.

        The last prompt token gives the first token out, so n tokens are n - 1 further steps.
        """
        library = self._library
        library.llama_memory_clear(library.llama_get_memory(self._context), True)
        tokens, prompt_len = batch.output_lens[0], len(batch.prompts[0])
        firsts = tuple(prompt[:1] for prompt in batch.prompts)
        steps = [self._tokens(batch.prompts, 0)]
        steps += [self._tokens(firsts, prompt_len + i) for i in range(tokens - 1)]
        return self._computed(steps)

    def logits(self, text: TokenIds, rows: int) -> NDArray[np.float32]:
        """Return the logits[T V] of a text, `rows` tokens in a step."""
        library = self._library
        library.llama_memory_clear(library.llama_get_memory(self._context), True)
        vocab = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self._model))
        found = []
        for start in range(0, len(text), rows):
            part = text[start : start + rows]
            self._computed([self._tokens((part,), start, every=True)])
            pointer = library.llama_get_logits(self._context)
            found.append(np.ctypeslib.as_array(pointer, (len(part), vocab)).copy())
        return np.concatenate(found)

    def __enter__(self) -> Llama:
        """Return the model itself."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _raised: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Free context and model."""
        self._thread.shutdown()
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def _computed(self, steps: Sequence[Any]) -> float:
        """Compute llama.cpp's batches one after the other, free them, and return the seconds."""
        try:
            return self._thread.submit(self._compute, steps).result()
        finally:
            for step in steps:
                self._library.llama_batch_free(step)

    def _compute(self, steps: Sequence[Any]) -> float:
        begin = perf_counter()
        for step in steps:
            if self._library.llama_decode(self._context, step):
                raise ConfigError("llama.cpp could not compute a step of its batch")
        self._library.llama_synchronize(self._context)
        return perf_counter() - begin

    def _tokens(self, rows: tuple[TokenIds, ...], start: int, *, every: bool = False) -> Any:
        """Return llama.cpp's batch of these tokens, those of request r from position `start` on.

        Logits are those of each request's last token, or of `every` one.
        """
        batch = self._library.llama_batch_init(sum(map(len, rows)), 0, 1)
        place = 0
        for request, ids in enumerate(rows):
            for i, token in enumerate(ids):
                batch.token[place], batch.pos[place] = token, start + i
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, request
                batch.logits[place] = every or i == len(ids) - 1
                place += 1
        batch.n_tokens = place
        return batch
