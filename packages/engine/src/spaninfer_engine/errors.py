"""Every error this package raises; the branch says who is at fault.

EngineError
├── ConfigError              the caller asked for something we cannot build
│   ├── UnknownArchitecture      no spec is registered for the model
│   ├── SpecError                a spec file is wrong: names file, section and key
│   └── NotBuilt                 the spec is known, its kind is not served yet
├── CheckpointError          the files on disk do not match the architecture, or are damaged
├── RequestError             one request is at fault; the others carry on
│   ├── InvalidSampling          a sampling parameter is out of range: names the parameter
│   ├── InvalidPrompt            the prompt is empty, or holds ids the model does not know
│   ├── InvalidMedia             an image, video or clip cannot be used: names the part
│   ├── PromptTooLong            the prompt does not fit the context
│   ├── Unread                   what was produced was not read, and became too much to keep
│   ├── TextTooLong              a text to embed has more tokens than the model takes
│   ├── UnsupportedTask          generation by an encoder, or embedding by a decoder
│   ├── InvalidMask              a token mask returned something else than a mask
│   ├── WrongThread              a mask made a call that waits for the engine, and so for itself
│   ├── InvalidGrammar           a schema or grammar cannot be used: names the place in it
│   └── TemplateError            the chat template refused the messages
├── NoToken                  no token can be chosen from a request's logits: NaN, or all are banned
└── EngineUnavailable       nothing wrong with the request: now is not the time
    ├── EngineClosed             the engine was closed, was dropped, or is draining
    ├── EngineAsleep             the engine has given its weights back; wake it up
    ├── StepTimeout              a step did not end, which closed the engine
    ├── WeightsTimeout           files were still being read when the engine was closed
    ├── QueueFull                too many requests wait; try again later
    └── NoMemory                 the device lacked memory for a step; others carry on
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from itertools import takewhile
from reprlib import Repr

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 100


class EngineError(Exception):
    """Root of every error raised by this package."""


class ConfigError(EngineError):
    """The caller asked for something we cannot build."""


class UnknownArchitecture(ConfigError):
    """No architecture file is registered under this name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        near = nearest_family(name, known)
        nearest = f"nearest are {', '.join(near)}; " if near else ""
        super().__init__(
            f"no architecture is called {name!r}; {nearest}`spaninfer spec list` shows all, "
            "and a TOML file of your own can be given with --spec"
        )


def nearest_family(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three known names of the family of a class, else those spelt most alike.

    A family is what a class is called before its digits and its task: `Gemma3nForCausalLM` is a
    Gemma, and Gemma3 is nearer to it than Gemma.
    """
    stem = _stem(name)
    related: dict[str, str] = {}
    for each in known:
        letters = re.match("[a-z]*", _stem(each))
        if letters and len(letters[0]) > 1 and stem.startswith(letters[0]):
            related.setdefault(_stem(each), each)
    if not related:
        return difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    by_length = sorted(related, key=lambda each: (-_shared(stem, each), len(each)))
    return [related[each] for each in by_length[:3]]


def _shared(one: str, other: str) -> int:
    """Return with how many letters both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _stem(name: str) -> str:
    """Return the name of a class without its task, in small letters."""
    return re.split("For[A-Z]|LMHead|TextModel|Model$", name)[0].lower()


class SpecError(ConfigError):
    """A spec file, or a config.json read through it, says something it may not say."""

    def __init__(self, source: str, section: str, key: str, problem: str) -> None:
        self.source, self.section, self.key, self.problem = source, section, key, problem
        place = f"[{section}] {key}" if section else key
        super().__init__(f"{source}: {place}: {problem}")


class NotBuilt(ConfigError):
    """The architecture is known but this version cannot run its kind."""


class CheckpointError(EngineError):
    """The files on disk do not match the architecture."""


class RequestError(EngineError):
    """One request is at fault; the others carry on."""


class InvalidSampling(RequestError):
    """A sampling parameter is out of range."""

    def __init__(self, parameter: str, value: object, allowed: str) -> None:
        self.parameter, self.value, self.allowed = parameter, value, allowed
        super().__init__(f"{parameter} is {shown(value)}; allowed is {allowed}")


class InvalidPrompt(RequestError):
    """The prompt is empty, or holds a token id outside the vocabulary."""


class InvalidMedia(RequestError):
    """An image, video or audio clip of a conversation cannot be used; `place` names the part."""

    def __init__(self, place: str, problem: str) -> None:
        self.place, self.problem = place, problem
        super().__init__(f"{place} {problem}")


class PromptTooLong(RequestError):
    """The prompt does not fit into the context window."""

    def __init__(self, prompt_len: int, limit: int) -> None:
        self.prompt_len, self.limit = prompt_len, limit
        super().__init__(
            # the words by which clients of OpenAI's recognise it
            f"this model's maximum context length is {limit} tokens; the prompt has {prompt_len} "
            "tokens, and the answer needs one at least: shorten the prompt"
        )


class Unread(RequestError):
    """The output of a request was not read and became too large to keep; the request is stopped."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"more than {limit} tokens and log-probabilities of the answer were waiting to be "
            "read, so it was stopped; read faster, or ask for fewer"
        )


class TextTooLong(RequestError):
    """A text to embed has more tokens than the model takes."""

    def __init__(self, number: int, num_tokens: int, limit: int) -> None:
        self.number, self.num_tokens, self.limit = number, num_tokens, limit
        super().__init__(
            f"text {number} has {num_tokens} tokens, and this engine takes at most {limit}; "
            'split it, or pass truncate=True (over HTTP "truncate_prompt_tokens": -1) to take its '
            "beginning"
        )


class UnsupportedTask(RequestError):
    """The model's kind does not do what was asked."""


class InvalidMask(RequestError):
    """A token mask returned something else than a mask."""


class WrongThread(RequestError):
    """A call that waits for the engine was made in a thread of its own, as by a token mask."""

    def __init__(self, call: str) -> None:
        self.call = call
        super().__init__(
            f"{call}() was called in the engine's own thread, where masks and listeners run, and "
            "would wait for itself; call it in another thread; stop() and stats() wait for nothing "
            "and are allowed"
        )


class InvalidGrammar(RequestError):
    """A schema, regex or grammar cannot be used, or was too much work while it was followed."""

    def __init__(self, parameter: str, problem: str) -> None:
        self.parameter, self.problem = parameter, problem
        super().__init__(f"{parameter}: {problem}")


class TemplateError(RequestError):
    """The chat template refused the messages, or is itself at fault."""


class NoToken(EngineError):
    """No token can be chosen from a request's logits: NaN or infinity, or every token is banned."""


class EngineUnavailable(EngineError):
    """Nothing is wrong with the request: now is not the time for it."""


class EngineClosed(EngineUnavailable):
    """The engine was closed, was dropped, or is draining, while something was asked of it."""


class EngineAsleep(EngineUnavailable):
    """The engine has given its weights back."""

    def __init__(self) -> None:
        super().__init__(
            "the engine is asleep or loading weights and takes no requests; try again later"
        )


class StepTimeout(EngineUnavailable):
    """A step did not end in time: the engine has failed, and all of its requests with it."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        super().__init__(f"a step did not end within {limit_s:g} s; the engine is closed")


class WeightsTimeout(EngineUnavailable):
    """Reading weights for a change of them did not end in time, while the engine was closed."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        super().__init__(
            f"a change of weights did not end within {limit_s:g} s, where its disk may not answer; "
            "the engine is closed"
        )


class QueueFull(EngineUnavailable):
    """The queue is full; try again later."""

    def __init__(self, waiting: int, limit: int, what: str = "requests") -> None:
        self.waiting, self.limit = waiting, limit
        name = "max_waiting" if what == "requests" else "what max_running and max_waiting allow"
        super().__init__(f"{waiting} {what} are waiting; {name} is {limit}; try again later")


class NoMemory(EngineUnavailable):
    """The device lacked memory for a step: the requests that took part in it end with this."""

    def __init__(self, num_tokens: int, free_bytes: int) -> None:
        self.num_tokens, self.free_bytes = num_tokens, free_bytes
        super().__init__(
            f"there was no memory for a step of {num_tokens} tokens: {free_bytes / 2**20:.0f} MiB "
            "were free; try again later, or start the engine with less --memory or --step-tokens"
        )


def shown(value: object) -> str:
    """Return a value of the caller's for a message: a megabyte of it would not help."""
    return _SHORT.repr(dict(value) if isinstance(value, Mapping) else value)


def as_exception(error: BaseException) -> Exception:
    """Return an error as one that callers catch: a panic of a library in Rust is no Exception."""
    if isinstance(error, Exception):
        return error
    wrapped = RuntimeError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
