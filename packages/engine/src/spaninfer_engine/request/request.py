"""Requests and outputs: the data that callers send, and the data they get back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from numbers import Integral, Real
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.errors import InvalidSampling, RequestError, as_exception, shown
from spaninfer_engine.flags import flags_of, settle_flags
from spaninfer_engine.request.media import PromptMedia
from spaninfer_engine.request.structured import StructuredOutput

TokenIds: TypeAlias = NDArray[np.int64]

MAX_STOP_STRINGS = 16
MAX_BAD_WORDS = 128
MAX_WORD_LEN = 256  # characters: words become tokens in the time of the caller
MAX_STOP_IDS = 1024
MAX_BIASES = 4096
MAX_LOGPROBS = 20
MAX_CHOICES = 128
MAX_PRIORITY = 100  # bounds the skew: a level counts as ten seconds of waiting
MAX_COUNT = 2**30  # added to a prompt's length it still fits the 32 bits of samplers


class FinishReason(Enum):
    """Why a request will produce nothing more."""

    STOP = "stop"  # an end id, a stop id or a stop string
    LENGTH = "length"  # max_tokens, or the end of the context
    STOPPED = "stopped"  # the caller stopped it, or went away
    DEADLINE = "deadline"  # its time was up
    ERROR = "error"  # Output.error says what


class Status(Enum):
    """The state of a request."""

    WAITING = "waiting"
    RUNNING = "running"  # prefilling or decoding, also while preempted
    FINISHED = "finished"


TokenMask: TypeAlias = Callable[[NDArray[np.int32]], NDArray[np.bool_ | np.uint8] | None]
"""Returns the allowed tokens behind the tokens that a choice has sampled so far, as bool [V] or as
bits, uint8 [ceil(V / 8)], the lowest first; None: all.

It is called in the engine's thread, once per token, and must depend on its argument alone.
"""


class MaskJob(NamedTuple):
    """A token mask to compute: of the tokens behind `output_ids`, into a row of a step's masks."""

    matcher: Matcher
    output_ids: NDArray[np.int32]
    row: int


FilledMasks: TypeAlias = list[NDArray[np.uint8] | Exception]


class Matcher(Protocol):
    """Follows the answer of one sequence through a grammar; keeps what it has seen."""

    def fill(self, output_ids: NDArray[np.int32], bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the tokens allowed behind `output_ids`, all that were sampled so far.

        They are written into bits [4 ceil(V / 32)], a bit per token, the lowest first; or what is
        returned is another such array, which is read-only and never changes. `output_ids` may also
        be fewer than last time: a sequence that is computed again. Raises InvalidGrammar.
        """
        ...

    @staticmethod
    def begin_all(
        jobs: Sequence[MaskJob], bits: NDArray[np.uint8]
    ) -> FilledMasks | Callable[[], FilledMasks]:
        """Return what `fill` returns or raises, for matchers of one class, each with a row of
        bits [M 4 ceil(V / 32)]; or what waits for that, where other threads have begun it.

        One that fails, also where a library panics, fails alone.
        """
        return fill_each(jobs, bits)


def fill_each(jobs: Sequence[MaskJob], bits: NDArray[np.uint8]) -> FilledMasks:
    """Return what `fill` returns or raises, one matcher after the other."""
    found: FilledMasks = []
    for matcher, output_ids, row in jobs:
        try:
            found.append(matcher.fill(output_ids, bits[row]))
        except BaseException as error:
            found.append(as_exception(error))
    return found


class Grammar(Protocol):
    """A compiled form of answers (structured output)."""

    def matcher(self, end_ids: tuple[int, ...], min_tokens: int) -> Matcher:
        """Return a matcher for a new sequence.

        It bans `end_ids` before `min_tokens`, unless the answer is complete and cannot go on.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling and stopping parameters of a request.

    Logits pass through bias, masks, penalties, temperature, top-k, typical, top-p and min-p in
    that order (spaninfer_op_reference.sample says why). The random numbers depend only on the seed,
    the position in the request and the token id, never on what else is in the batch. Raises
    InvalidSampling, which names the parameter, its value and what is allowed.
    """

    max_tokens: int | None = None  # 1 or more; None: as many as the context holds
    min_tokens: int = 0  # until then, end ids and stop ids are masked
    temperature: float = 1.0  # 0 (greedy) to 2
    top_k: int = 0  # 0: the whole vocabulary
    top_p: float = 1.0  # above 0, to 1
    min_p: float = 0.0  # 0 to 1
    typical_p: float = 1.0  # above 0, to 1
    repetition_penalty: float = 1.0  # 0.01 to 10, over prompt and output
    presence_penalty: float = 0.0  # -2 to 2, over the output
    frequency_penalty: float = 0.0  # -2 to 2, over the output
    no_repeat_ngram: int = 0  # length of n-grams; 0: off
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # -100 to 100 by id; copied
    bad_words: Sequence[str] = ()  # up to MAX_BAD_WORDS; a string stands for a tuple of it
    stop: Sequence[str] = ()  # up to MAX_STOP_STRINGS; likewise
    stop_ids: Sequence[int] = ()  # up to MAX_STOP_IDS token ids
    include_stop: bool = False  # keep the stop string in the text
    ignore_eos: bool = False
    seed: int | None = None  # 64 bits; None: drawn by the engine and reported in the output
    n: int = 1  # choices, up to MAX_CHOICES
    logprobs: int | None = None  # None: off; 0 to 20: the sampled token's and the k most likely
    prompt_logprobs: int | None = None  # the same for every prompt token but the first
    processed_logprobs: bool = False  # after penalties and temperature, not of the raw logits
    skip_special: bool = True  # leave special tokens out of the text
    keep_special: Sequence[int] = ()  # ids of special tokens that stay in the text
    structured: StructuredOutput | None = None  # JSON schema, regex, choice, grammar, tags
    mask: TokenMask | None = None  # the tokens allowed next

    def __post_init__(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidSampling("logit_bias", self.logit_bias, "a mapping of ids to numbers")
        settle_flags(self, _FLAGS, InvalidSampling)
        # Most fields of most requests are what they are by default: half of the time otherwise.
        given = {
            name: value
            for name, default in _DEFAULTS.items()
            if (value := getattr(self, name)) is not default
        }
        for name, low, high, allowed in _RANGES:
            if name in given:
                self._settle(name, _as_number(name, given[name], low, high, allowed))
        for name, least, most in _INTEGERS:
            if name in given:
                self._settle(name, _as_integer(name, given[name], least, most))
        for name in _STRING_LIMITS:
            if name in given:
                self._settle(name, _as_tuple(given[name]))
                _check_strings(name, getattr(self, name))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidSampling(
                "min_tokens", self.min_tokens, f"0 to max_tokens = {self.max_tokens}"
            )
        for name in _ID_LISTS:
            if name in given:
                self._settle(name, _as_ids(name, _as_tuple(given[name])))
        if len(self.logit_bias) > MAX_BIASES:
            got = f"{len(self.logit_bias)} items"
            raise InvalidSampling("logit_bias", got, f"at most {MAX_BIASES}")
        if self.mask is not None and not callable(self.mask):
            raise InvalidSampling("mask", self.mask, "a function of the tokens sampled so far")
        if self.structured is not None:
            _check_structured(self)
        # A copy: what the caller does to a mapping later must not reach the engine's threads.
        self._settle("logit_bias", _as_biases(self.logit_bias))

    def _settle(self, name: str, value: object) -> None:
        """Store what a field's value means, in types of Python."""
        object.__setattr__(self, name, value)

    @property
    def is_greedy(self) -> bool:
        """True if the most likely token is taken without sampling."""
        return self.temperature == 0.0


_FLAGS = flags_of(SamplingParams)
# name, smallest, largest, the range in words
_RANGES = (
    ("temperature", 0.0, 2.0, "0 (greedy) to 2"),
    ("top_p", math.nextafter(0.0, 1.0), 1.0, "above 0, to 1"),
    ("min_p", 0.0, 1.0, "0 to 1"),
    ("typical_p", math.nextafter(0.0, 1.0), 1.0, "above 0, to 1"),
    ("repetition_penalty", 0.01, 10.0, "0.01 to 10"),  # logits over less are infinite in float32
    ("presence_penalty", -2.0, 2.0, "-2 to 2"),
    ("frequency_penalty", -2.0, 2.0, "-2 to 2"),
)
_INTEGERS = (
    ("max_tokens", 1, None),
    ("min_tokens", 0, MAX_COUNT),
    ("top_k", 0, MAX_COUNT),
    ("no_repeat_ngram", 0, MAX_COUNT),
    ("seed", 0, 2**64 - 1),
    ("n", 1, MAX_CHOICES),
    ("logprobs", 0, MAX_LOGPROBS),
    ("prompt_logprobs", 0, MAX_LOGPROBS),
)
_ID_LISTS = ("stop_ids", "keep_special")
_STRING_LIMITS = {"stop": MAX_STOP_STRINGS, "bad_words": MAX_BAD_WORDS}
_CHECKED = {each[0] for each in (*_RANGES, *_INTEGERS)} | {*_STRING_LIMITS, *_ID_LISTS}
_DEFAULTS = {each.name: each.default for each in fields(SamplingParams) if each.name in _CHECKED}


def _as_number(name: str, value: object, low: float, high: float, allowed: str) -> float:
    """Return a number of any library as Python's; InvalidSampling for none, or one out of range."""
    number = _as_float(value)
    if number is None or not low <= number <= high:
        raise InvalidSampling(name, value, allowed)
    return number


def _as_float(value: object) -> float | None:
    """Return a number of any library as Python's; None for what is none, or larger than all.

    Compared as it is, a float32 would round the limits to its own numbers.
    """
    if type(value) is float:  # asked first: of an abstract class it takes ten times as long
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _as_integer(name: str, value: object, low: int, high: int | None) -> int:
    """Return a whole number of any library as Python's; InvalidSampling as `_as_number`."""
    allowed = f"a whole number from {low}" + (f" to {high}" if high is not None else "")
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Integral)):
        raise InvalidSampling(name, value, allowed)
    number = int(value)
    if number < low or (high is not None and number > high):
        raise InvalidSampling(name, value, allowed)
    return number


def _as_biases(biases: Mapping[int, float]) -> dict[int, float]:
    return {
        _as_integer("logit_bias (token id)", token_id, 0, None): _as_number(
            "logit_bias", bias, -100.0, 100.0, "-100 to 100"
        )
        for token_id, bias in biases.items()
    }


def _check_structured(sampling: SamplingParams) -> None:
    if not isinstance(sampling.structured, StructuredOutput):
        raise InvalidSampling("structured", sampling.structured, "a StructuredOutput, or None")
    if sampling.mask is not None:
        raise InvalidSampling("mask", sampling.mask, "None beside structured output: give one")
    if sampling.ignore_eos:
        why = "False with structured output, which ends where its form is complete"
        raise InvalidSampling("ignore_eos", True, why)


def _as_ids(name: str, ids: object) -> tuple[int, ...]:
    if not isinstance(ids, tuple):
        raise InvalidSampling(name, ids, "a token id, or a list of them")
    if len(ids) > MAX_STOP_IDS:
        raise InvalidSampling(name, f"{len(ids)} items", f"at most {MAX_STOP_IDS}")
    return tuple(_as_integer(name, token_id, 0, None) for token_id in ids)


def _as_tuple(values: object) -> object:
    """Return a list as a tuple, and one string or number as a tuple of it."""
    if isinstance(values, str | Integral):
        return (values,)
    return tuple(values) if isinstance(values, list) else values


def _check_strings(name: str, values: object) -> None:
    limit = _STRING_LIMITS[name]
    allowed = f"at most {limit} strings of 1 to {MAX_WORD_LEN} characters"
    if not isinstance(values, tuple):
        raise InvalidSampling(name, values, f"a string, or a list of {allowed}")
    are_words = all(isinstance(value, str) and 1 <= len(value) <= MAX_WORD_LEN for value in values)
    if len(values) > limit or not are_words:
        raise InvalidSampling(name, values, allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The place of a request among others: priority, deadline, tenant and client.

    Raises RequestError for values out of range.
    """

    priority: int = 0  # -100 to 100, smaller first; a level is worth policy.LEVEL_S of waiting
    deadline_s: float | None = None  # seconds from arrival; then it finishes with DEADLINE
    tenant: str = ""  # prefixes are shared only within a tenant
    client: str = ""  # waiting clients get equal shares of the engine
    adapter: str | None = None  # a LoRA adapter; none can be loaded yet

    def __post_init__(self) -> None:
        object.__setattr__(self, "priority", _as_priority(self.priority))
        if self.deadline_s is not None:
            object.__setattr__(self, "deadline_s", _as_deadline(self.deadline_s))
        for name in ("tenant", "client"):
            if not isinstance(value := getattr(self, name), str):
                raise RequestError(f"{name} is {shown(value)}; allowed is a string")
        if not isinstance(self.adapter, str | None):
            raise RequestError(f"adapter is {shown(self.adapter)}; allowed is a string, or None")


def _as_priority(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or abs(int(value)) > MAX_PRIORITY:
        raise RequestError(
            f"priority is {shown(value)}; allowed is a whole number from "
            f"-{MAX_PRIORITY} to {MAX_PRIORITY}"
        )
    return int(value)


def _as_deadline(value: object) -> float:
    seconds = _as_float(value)
    if seconds is None or not 0 <= seconds < math.inf:
        allowed = "None, and 0 or more seconds that are no infinity"
        raise RequestError(f"deadline_s is {shown(value)}; allowed are {allowed}")
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A validated request, with all defaults resolved; choice i has the number id + i."""

    id: int
    prompt_ids: TokenIds
    sampling: SamplingParams
    placement: Placement
    seed: int  # choice i samples with seed + i
    arrived_s: float  # on a monotonic clock
    fair_start_s: float = 0.0  # later if its client has sent much: policy.fair_start
    end_ids: frozenset[int]  # the model's end ids unless ignored, and the caller's stop ids
    banned: tuple[tuple[int, ...], ...] = ()  # bad words as token ids
    grammar: Grammar | None = None  # of sampling.structured
    media: PromptMedia | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of a token, its rank (1: the most likely), and the most likely others."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()  # (token id, log-probability), most likely first


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Counts and times of one choice of a request; times in seconds of a monotonic clock."""

    prompt_len: int
    output_len: int
    cached_len: int  # prompt tokens found in the prefix cache
    arrived_s: float
    scheduled_s: float | None  # first time in a step
    first_token_s: float | None
    finished_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The progress of one choice since its last Output; the last one has a finish reason.

    `token_ids`, `text` and `logprobs` hold what is new. Text may lag behind the tokens: incomplete
    characters and possible stop strings are held back until they are settled. `texts` splits the
    text by token where there are several; `each_token` makes an Output of each.
    """

    index: int  # which of the n choices
    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: Sequence[TokenLogprob] = ()
    prompt_logprobs: Sequence[TokenLogprob] = ()  # once, with the first output
    finish_reason: FinishReason | None = None
    matched: str | int | None = None  # the stop string or id that ended it
    error: Exception | None = None  # with FinishReason.ERROR
    seed: int = 0
    usage: Usage | None = None  # with a finish reason
    texts: tuple[str, ...] = field(default=(), compare=False)  # of as many tokens; () for one


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Completion:
    """The whole result of one choice of a finished request; see Output for the fields."""

    index: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    logprobs: Sequence[TokenLogprob]
    prompt_logprobs: Sequence[TokenLogprob]
    finish_reason: FinishReason
    matched: str | int | None
    seed: int
    usage: Usage

    def __repr__(self) -> str:
        """Return the text, why it ended, and how long prompt and answer are."""
        return (
            f"<Completion {self.text!r}: {self.finish_reason.value}, "
            f"{self.usage.prompt_len} + {self.usage.output_len} tokens>"
        )
