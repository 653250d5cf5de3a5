"""The bridge to llguidance: a vocabulary, grammars in its own form, and matchers.

llguidance walks its trie of all tokens once per mask, in Rust and without the interpreter's lock,
and writes a bit per token into memory that it is given. Copies of a matcher share its lexer and
wait for each other there, so masks of one grammar are computed side by side only where it has
several lexers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import count
from threading import Lock
from time import perf_counter
from typing import Any, TypeAlias, cast

import numpy as np
from llguidance import (
    LLExecutor,
    LLMatcher,
    LLParserLimits,
    LLTokenizer,
    StructTag,
    TokenizerWrapper,
)
from llguidance.gbnf_to_lark import any_to_lark
from numpy.typing import NDArray
from spaninfer_host_limits import usable_cpus

from spaninfer_engine.errors import InvalidGrammar
from spaninfer_engine.grammar.exact import InexactSchema, exact
from spaninfer_engine.grammar.schema import refuse_large
from spaninfer_engine.grammar.white_space import bounded, bounded_in_lark, options
from spaninfer_engine.request.request import FilledMasks, MaskJob, Matcher, fill_each
from spaninfer_engine.request.structured import StructuredOutput
from spaninfer_engine.text import Tokenizer

Bits = NDArray[np.uint8]
_Asked: TypeAlias = tuple[LLMatcher, int]  # a matcher, and the row of its mask

MAX_THREADS = 8  # of masks
MAX_LEXERS = 32  # of a grammar; each learns states by itself, some 0.3 MB of them for a schema
FEW_MASKS = 8  # take less than it takes to wake threads
QUICK_S = 0.05  # a grammar compiled in less gets more lexers where several requests have it
MAX_KEPT_TEXTS, MAX_KEPT_TEXT_BYTES = 4096, 256  # texts whose tokens are kept, and what one may be
MAX_PIECE_BYTES = 128  # of tokens tried for a text that the tokenizer cannot write as it is

# Parts of a vocabulary that a mask has whole where a grammar takes all texts of the kind: white
# space, and strings of JSON by their length. The tokens of other parts are walked through. Where a
# string with a `maxLength` is nearly full, those are most tokens: of 152,000 up to 322,000 nodes of
# the trie with the library's own lengths, 10 and 30, and 196,000 with these.
_STRING = r'[^"\\\x00-\x1F\x7F]'
_LENGTHS = (4, 6, 8, 12)
SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    *(f"{_STRING}{{1,{most}}}" for most in _LENGTHS),
    f"{_STRING}+",
]

# Items of a row of the parser. Where brackets end what they begin, as in JSON, a row has some for
# each alternative. In grammars that read a text in many ways it has more at each token, and its
# time grows with their square: 20 ms at 500, 370 ms and more at 2,000, in which all others wait.
MAX_ITEMS, MAX_GRAMMAR_ITEMS = 2000, 500


def _limits(kind: str) -> LLParserLimits:
    """Return half to a fifth of what llguidance allows by itself.

    It bounds a mask by some 20 ms, and a grammar that is refused by 1.3 s; states take 2 kB each.
    """
    return LLParserLimits(
        max_items_in_row=MAX_GRAMMAR_ITEMS if kind == "grammar" else MAX_ITEMS,
        initial_lexer_fuel=500_000,
        step_lexer_fuel=100_000,
        max_grammar_size=100_000,
        max_lexer_states=50_000,
        verbose_errors=False,
    )


class Vocabulary:
    """A tokenizer as llguidance wants to see it."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes], end_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self.tokens, self.eos_token_id = tokens, min(end_ids)
        special = tokenizer.special_ids | frozenset(end_ids)
        self.special_token_ids = sorted(each for each in special if each < len(tokens))
        self._by_bytes = {piece: i for i, piece in enumerate(tokens) if i not in special}
        self._longest = min(max(map(len, tokens)), MAX_PIECE_BYTES)
        self._kept = lru_cache(MAX_KEPT_TEXTS)(self._tokenized)

    def __call__(self, text: bytes | str) -> list[int]:
        """Return the tokens in which the model would write a text that a grammar forces.

        A grammar forces few texts, but those in every answer: 64 masks of a step took a third less
        once they are kept.
        """
        data = text if isinstance(text, bytes) else text.encode()
        return (self._kept if len(data) <= MAX_KEPT_TEXT_BYTES else self._tokenized)(data)

    def _tokenized(self, data: bytes) -> list[int]:
        """Their bytes are the text's: llguidance panics where a dummy space comes before them."""
        plain = data.decode(errors="replace")
        for before in ("", "\n"):
            ids = self._behind(before, plain)
            if b"".join(self.tokens[each] for each in ids) == data:
                return ids
        return self._longest_first(data)

    def _behind(self, before: str, text: str) -> list[int]:
        """Return the tokens of a text, without those of what stands before it."""
        ids = self._tokenizer.encode(before + text, add_special=False)
        known = [each for each in ids if each < len(self.tokens)]
        seen = b""
        for index, each in enumerate(known):
            if seen.endswith(before.encode()):
                return known[index:]
            seen += self.tokens[each]
        return []

    def _longest_first(self, data: bytes) -> list[int]:
        """Return the longest tokens from left to right, as far as there are any."""
        ids: list[int] = []
        at = 0
        while at < len(data):
            sizes = range(min(self._longest, len(data) - at), 0, -1)
            size = next((size for size in sizes if data[at : at + size] in self._by_bytes), None)
            if size is None:
                break
            ids.append(self._by_bytes[data[at : at + size]])
            at += size
        return ids


def token_table(tokenizer: Tokenizer, vocab: int) -> list[bytes]:
    """Return the bytes [V] of every token; none for ids that only the model has."""
    known = min(tokenizer.vocab_size, vocab)
    return [tokenizer.token_bytes(each) for each in range(known)] + [b""] * (vocab - known)


def open_vocabulary(tokenizer: Tokenizer, vocab: int, end_ids: Collection[int]) -> LLTokenizer:
    """Return the vocabulary of a model; 2 s for 150,000 tokens."""
    wrapped = TokenizerWrapper(Vocabulary(tokenizer, token_table(tokenizer, vocab), end_ids))
    return LLTokenizer(wrapped, n_vocab=vocab, eos_token=sorted(end_ids), slices=SLICES)


def grammar_text(structured: StructuredOutput, special: Collection[str]) -> str:
    """Return a form of answers as llguidance's own grammar; `special` are texts of control tokens.

    Raises InvalidGrammar for what is no grammar or tag, and for schemas that are not followed.
    """
    source = structured.source
    match structured.kind:
        case "json_object":
            return _json_grammar({"type": "object"})
        case "json_schema":
            return _json_grammar(_followed("json_schema", json.loads(source)))
        case "regex":
            return str(LLMatcher.grammar_from_regex(source))
        case "choice":  # alternatives in Lark take a row of the parser each, and there are 2,000
            assert structured.choice is not None
            return str(LLMatcher.grammar_from_regex("|".join(map(_escaped, structured.choice))))
        case "grammar":
            return _lark(source)
        case "structural_tag":
            return _tags(json.loads(source), special)


def _json_grammar(schema: Any) -> str:
    return str(LLMatcher.grammar_from_json_schema(json.dumps(schema), options(schema)))


def _followed(kind: str, schema: Any) -> Any:
    """Return a schema that llguidance follows exactly; raises InvalidGrammar where there is none.

    It sees no other: some end the process.
    """
    if (reason := refuse_large(schema)) is not None:
        raise InvalidGrammar(kind, reason)
    try:
        return exact(schema)
    except InexactSchema as refused:
        raise InvalidGrammar(kind, str(refused)) from refused


def _escaped(text: str) -> str:
    return re.sub(r"[\\.+*?()|\[\]{}^$#&~/-]", r"\\\g<0>", text)


def _lark(source: str) -> str:
    """Return a grammar in Lark's syntax; one in GBNF is converted."""
    followed = partial(_followed, "grammar")
    try:
        return str(LLMatcher.grammar_from_lark(bounded_in_lark(any_to_lark(source), followed)))
    except InvalidGrammar:
        raise
    except RecursionError as deep:
        raise InvalidGrammar("grammar", "its brackets are nested too deep") from deep
    except Exception as wrong:  # the library raises bare Exception
        raise InvalidGrammar("grammar", f"it is neither Lark nor GBNF: {wrong}") from wrong


def _tags(tag: dict[str, Any], special: Collection[str]) -> str:
    """Return the grammar of {"structures": [{"begin", "schema", "end"}], "triggers": [...]}."""
    try:
        triggers = [str(each) for each in tag["triggers"]]
        made = [
            StructTag(
                trigger=next(each for each in triggers if part["begin"].startswith(each)),
                begin=part["begin"],
                grammar=bounded(_followed("structural_tag", part["schema"])),
                end=part["end"],
            )
            for part in tag["structures"]
        ]
        is_control = any(each in special for each in triggers)
        return str(StructTag.to_grammar(made, assume_special=is_control))
    except (KeyError, TypeError, AttributeError, AssertionError, StopIteration, ValueError) as bad:
        raise InvalidGrammar(
            "structural_tag",
            'a tag is {"structures": [{"begin": text, "schema": JSON schema, "end": text}], '
            '"triggers": [text]}, and each begin begins with a trigger',
        ) from bad


class GuidanceGrammar:
    """A compiled grammar. Raises ValueError with llguidance's reason for one that is refused.

    The first mask is computed here as well: it finds what has no valid answer, or is too much work.
    """

    def __init__(self, kind: str, text: str, vocabulary: LLTokenizer) -> None:
        self._kind, self._text, self._vocabulary = kind, text, vocabulary
        begin = perf_counter()
        self._starts = [self._compiled()]
        is_quick = perf_counter() - begin < QUICK_S
        self._turns = count()
        self._num_lexers = 1
        self._most = MAX_LEXERS if is_quick and num_mask_threads() > 1 else 1
        first = self._starts[0].deep_copy()
        first.compute_bitmask()
        if first.is_error():
            raise ValueError(_reason(first))

    def matcher(self, end_ids: tuple[int, ...], min_tokens: int) -> GuidanceMatcher:
        """Return a matcher at the beginning of an answer; 2 µs."""
        start = self._starts[next(self._turns) % len(self._starts)]
        return GuidanceMatcher(self._kind, start, end_ids, min_tokens)

    def reserve_lexer(self) -> bool:
        """Return True if `add_lexer` is to be called once more; callers take turns."""
        is_wanted = self._num_lexers < self._most
        self._num_lexers += is_wanted
        return is_wanted

    def add_lexer(self) -> None:
        """Compile the grammar again: some of its later matchers do not wait for the others."""
        self._starts.append(self._compiled())

    def _compiled(self) -> LLMatcher:
        limits = _limits(self._kind)
        start = LLMatcher(self._vocabulary, self._text, log_level=0, limits=limits)
        if start.is_error():
            raise ValueError(start.get_error())
        return start


class GuidanceMatcher(Matcher):
    """A Matcher of llguidance's, which begins as a copy of `start` and shares its lexer."""

    def __init__(
        self, kind: str, start: LLMatcher, end_ids: tuple[int, ...], min_tokens: int
    ) -> None:
        self._kind, self._start, self._matcher = kind, start, start.deep_copy()
        self._end_ids, self._min_tokens = np.array(end_ids, np.int64), min_tokens
        self._num_read = 0

    def fill(self, output_ids: NDArray[np.int32], bits: Bits) -> Bits:
        """Write the allowed tokens; raises InvalidGrammar where following them fails."""
        self._read(output_ids)
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        self._finish(len(output_ids), bits)
        return bits

    @staticmethod
    def begin_all(jobs: Sequence[MaskJob], bits: Bits) -> FilledMasks | Callable[[], FilledMasks]:
        """Do the same for several: many by other threads, while the caller does something else."""
        own = [cast("GuidanceMatcher", job.matcher) for job in jobs]
        has_one_lexer = len({id(each._start) for each in own}) == 1
        threads = None if len(jobs) < FEW_MASKS or has_one_lexer else _threads()
        try:
            for each, job in zip(own, jobs, strict=True):
                each._read(job.output_ids)
            asked = [(each._matcher, job.row) for each, job in zip(own, jobs, strict=True)]
            if threads is not None:
                for each in own:
                    each._tokenize_forced()
                # Threads take runs of the list: those with one lexer, which wait for each other,
                # come one behind the other.
                order = sorted(range(len(own)), key=lambda place: id(own[place]._start))
                computed = threads.begin([asked[place] for place in order], bits)
                return partial(GuidanceMatcher._filled, own, jobs, bits, computed)
            first, size = bits.ctypes.data, bits.shape[1]
            for matcher, row in asked:
                matcher.unsafe_compute_mask_ptr(first + size * row, size)
        except BaseException:  # a panic, of one of them
            return GuidanceMatcher._one_by_one(own, jobs, bits)
        return GuidanceMatcher._finished(own, jobs, bits)

    @staticmethod
    def _filled(
        own: Sequence[GuidanceMatcher],
        jobs: Sequence[MaskJob],
        bits: Bits,
        computed: Callable[[], None],
    ) -> FilledMasks:
        """Wait until masks are computed, and return them."""
        try:
            computed()
        except BaseException:  # a panic, of one of them
            return GuidanceMatcher._one_by_one(own, jobs, bits)
        return GuidanceMatcher._finished(own, jobs, bits)

    @staticmethod
    def _finished(
        own: Sequence[GuidanceMatcher], jobs: Sequence[MaskJob], bits: Bits
    ) -> FilledMasks:
        """Return masks that are computed, or why there is none."""
        found: FilledMasks = []
        for each, (_, output_ids, row) in zip(own, jobs, strict=True):
            try:
                each._finish(len(output_ids), bits[row])
                found.append(bits[row])
            except InvalidGrammar as error:
                found.append(error)
        return found

    @staticmethod
    def _one_by_one(
        own: Sequence[GuidanceMatcher], jobs: Sequence[MaskJob], bits: Bits
    ) -> FilledMasks:
        """Compute all masks anew, so that a matcher that panics fails alone."""
        for each in own:
            each._restart()
        return fill_each(jobs, bits)

    def _read(self, output_ids: NDArray[np.int32]) -> None:
        """Take in the new tokens; go back to fewer."""
        num_tokens, num_read = len(output_ids), self._num_read
        if num_tokens == num_read:
            return
        if num_tokens < num_read:
            self._matcher.rollback(num_read - num_tokens)
        elif self._matcher.is_stopped():
            return  # behind a complete answer there is an end id, which a step ahead may hold
        self._num_read = num_tokens
        if num_tokens > num_read:
            self._matcher.consume_tokens(output_ids[num_read:].tolist())

    def _tokenize_forced(self) -> None:
        """Find the tokens of a text that is forced: threads would wait for Python's lock to."""
        if not self._matcher.is_stopped():
            self._matcher.compute_ff_tokens()

    def _finish(self, num_tokens: int, bits: Bits) -> None:
        """Look at what was computed behind so many tokens; raises InvalidGrammar."""
        if self._matcher.is_error():
            reason = _reason(self._matcher)
            raise InvalidGrammar(self._kind, f"it failed at token {num_tokens}: {reason}")
        if num_tokens < self._min_tokens:
            self._ban_ends(bits)

    def _restart(self) -> None:
        """Forget what was read."""
        self._matcher, self._num_read = self._start.deep_copy(), 0

    def _ban_ends(self, bits: Bits) -> None:
        """Ban the end ids, unless nothing else is possible: the answer is complete."""
        kept = bits.copy()
        ends, places = self._end_ids // 8, (1 << self._end_ids % 8).astype(np.uint8)
        np.bitwise_and.at(kept, ends, ~places)
        if kept.any():
            bits[:] = kept


def num_mask_threads() -> int:
    """Return how many threads compute masks, one CPU being left for the engine's."""
    return min(max(usable_cpus() - 1, 1), MAX_THREADS)


class _MaskThreads:
    """Threads that compute masks without Python's lock: a pool of llguidance's, and one that calls
    it, for which a caller of `begin` waits until it has that lock, and soon lets go of it.
    """

    def __init__(self, number: int) -> None:
        self._pool = LLExecutor(number)
        self._calls = ThreadPoolExecutor(1, thread_name_prefix="masks")

    def begin(self, asked: list[_Asked], bits: Bits) -> Callable[[], None]:
        """Begin to compute the masks of matchers into rows of bits; return what waits for them."""
        about = bits.ctypes.data, bits.shape[1], len(bits)
        begun = Lock()
        begun.acquire()

        def compute() -> None:
            begun.release()
            self._pool.unsafe_compute_mask_ptr(asked, *about)

        call = self._calls.submit(compute)
        begun.acquire()
        return call.result


@lru_cache
def _threads() -> _MaskThreads | None:
    """Return the threads of masks; None where there would be only one."""
    return _MaskThreads(num_mask_threads()) if num_mask_threads() > 1 else None


def _reason(matcher: LLMatcher) -> str:
    said = str(matcher.get_error()).split("\n<non-verbose/>")[0]
    return "nothing matches it" if said.startswith("NoExtension") else said
