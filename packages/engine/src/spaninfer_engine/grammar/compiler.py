"""The compiler of structured output: in threads of its own, with a time limit and a cache."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Lock, stack_size
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from spaninfer_engine.errors import (
    EngineClosed,
    EngineUnavailable,
    InvalidGrammar,
    UnsupportedTask,
)
from spaninfer_engine.grammar.schema import explain
from spaninfer_engine.request.request import Grammar
from spaninfer_engine.request.structured import StructuredOutput
from spaninfer_engine.text import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from spaninfer_engine.grammar.llguidance import GuidanceGrammar

COMPILE_S = 5.0  # schemas take 0.3 ms at the median, and 40 at the most in the public test suite
MAX_CACHED = 256  # grammars, those that were refused among them
STACK_BYTES = 1 << 27  # of a thread that compiles: llguidance follows references by recursion
MAX_CACHED_BYTES = 1 << 21  # of their sources; a grammar takes up to a hundred times as much
NUM_THREADS = 2

P = ParamSpec("P")
T = TypeVar("T")
Key = tuple[str, str, str]  # tenant, kind and source


class GrammarCompiler:
    """Compiles the forms of answers of one model.

    What was compiled is kept: a grammar as long as anything uses it, the newest ones longer. A
    refusal is kept as well, so that a costly one costs once. Each tenant's are found by its own
    requests alone: a schema of seconds would else tell that another tenant has sent it.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int, end_ids: Collection[int]) -> None:
        self._tokenizer, self._vocab = tokenizer, vocab
        self._end_ids = sorted(each for each in end_ids if each < vocab)
        self._opened: LLTokenizer | None = None
        self._opening = Lock()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="grammar")
        self._newest: OrderedDict[Key, Future[GuidanceGrammar]] = OrderedDict()  # under the lock
        self._num_bytes = 0  # of the sources of these
        self._in_use: WeakValueDictionary[Key, GuidanceGrammar] = WeakValueDictionary()
        self._lock = Lock()

    def compile(self, structured: StructuredOutput, tenant: str = "") -> Grammar:
        """Return the grammar of a tenant's form; waits while it is compiled, COMPILE_S at the most.

        Raises InvalidGrammar for one that cannot be used, EngineUnavailable where too many others
        are being compiled, UnsupportedTask where the model or the installation has no way to.
        """
        vocabulary = self._vocabulary()
        key = (tenant, structured.kind, structured.source)
        with self._lock:
            if (known := self._in_use.get(key)) is not None:
                self._share(known)
                return known
            job = self._job(key, structured, vocabulary)
        try:
            grammar = job.result(COMPILE_S)
        except TimeoutError:
            if job.cancel():
                message = "too many schemas and grammars are being compiled; try again later"
                raise EngineUnavailable(message) from None
            limit = f"it takes more than {COMPILE_S:g} s to compile; make it smaller"
            raise InvalidGrammar(structured.kind, limit) from None
        except InvalidGrammar as refused:  # raised anew: it is kept, and others get it as well
            raise InvalidGrammar(refused.parameter, refused.problem) from None
        with self._lock:
            return self._in_use.setdefault(key, grammar)

    def close(self) -> None:
        """End the threads; idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _job(
        self, key: Key, structured: StructuredOutput, vocabulary: LLTokenizer
    ) -> Future[GuidanceGrammar]:
        """Return what compiles a form, or has; the newest in the cache then."""
        job = self._newest.pop(key, None)
        if job is None or job.cancelled():
            try:
                job = self._submit(self._compile, structured, vocabulary)
            except RuntimeError as ended:
                raise EngineClosed("the engine is closed") from ended
            self._num_bytes += len(structured.source)
        self._newest[key] = job
        while len(self._newest) > MAX_CACHED or self._num_bytes > MAX_CACHED_BYTES:
            (*_, source), _ = self._newest.popitem(last=False)
            self._num_bytes -= len(source)
        return job

    def _share(self, grammar: GuidanceGrammar) -> None:
        """Compile another lexer of a grammar that several requests have, in the background."""
        if grammar.reserve_lexer():
            with suppress(RuntimeError):  # the engine is closed
                self._submit(grammar.add_lexer)

    def _submit(self, call: Callable[P, T], *given: P.args, **named: P.kwargs) -> Future[T]:
        """Have something done by a thread, which is begun with STACK_BYTES if it is a new one."""
        usual = stack_size(STACK_BYTES)
        try:
            return self._threads.submit(call, *given, **named)
        finally:
            stack_size(usual)

    def _vocabulary(self) -> LLTokenizer:
        with self._opening:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def _open(self) -> LLTokenizer:
        if self._tokenizer.is_wordless:
            raise UnsupportedTask(
                "structured output needs a tokenizer, and this model has no tokenizer files"
            )
        if not self._end_ids:
            raise UnsupportedTask(
                "structured output ends with the model's end-of-sequence token, and this model "
                "names none in config.json, generation_config.json or its tokenizer's files"
            )
        try:
            from spaninfer_engine.grammar.llguidance import open_vocabulary
        except ImportError as missing:
            raise UnsupportedTask(
                "structured output needs llguidance: pip install llguidance"
            ) from missing
        return open_vocabulary(self._tokenizer, self._vocab, self._end_ids)

    def _compile(self, structured: StructuredOutput, vocabulary: LLTokenizer) -> GuidanceGrammar:
        from spaninfer_engine.grammar.llguidance import GuidanceGrammar, grammar_text

        kind = structured.kind
        schema = json.loads(structured.source) if kind == "json_schema" else None
        try:
            text = grammar_text(structured, self._control_texts())
            return GuidanceGrammar(kind, text, vocabulary)
        except ValueError as refused:
            raise InvalidGrammar(kind, explain(schema, str(refused))) from refused
        except BaseException as broken:  # a panic of the library is no Exception
            if isinstance(broken, InvalidGrammar):
                raise
            raise InvalidGrammar(kind, f"llguidance failed: {broken}") from broken

    def _control_texts(self) -> set[str]:
        ids = self._tokenizer.special_ids
        return {self._tokenizer.token_bytes(each).decode(errors="replace") for each in ids}
