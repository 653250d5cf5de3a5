"""The scheduling policy: the order of requests, and the tokens to compute next.

Functions of what they are given: no clock, no spans, no locks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, takewhile
from sys import maxsize
from types import MappingProxyType
from typing import Protocol, TypeVar

from spaninfer_engine.step.plan import Slice, Tuning

# A level of priority is worth this many seconds of waiting.
LEVEL_S = 10.0

# By how much a request puts off its client's next one, and at the most.
REQUEST_S = 0.01
TOKEN_S = 0.1e-3
LATEST_S = 60.0

# A step with prompts costs 1 ms more than its rows do (7B, H200: their attention, rows that fill no
# tile), and every decode waits for it. So few prompts wait for each other, up to three steps of 5
# to 9 ms: 1024 requests of mixed lengths, 256 at a time, then end 3 % sooner.
MANY_DECODES = 64
EVERY = 4
FEW_TILES = 4

# A step reads all weights for however few decodes: 4.7 ms for 64 of them, 8.7 for 256. So where
# many requests come at once, those that begin first wait for others, one step in two.
BURST = 8
PAUSE_EVERY = 2

# On a CPU each row of a step costs about as much as the one before: a step of the bundled model
# takes 1.9 ms, 0.78 more for each decode and 0.26 for each token of a prompt (two cores of an EPYC,
# 2026-11-23). So beside short requests of others, a client's long answers, and many tokens of its
# prompts, take part in every fourth step, and in one of 16 if the client has had more lately than a
# quarter of the tokens that those others had. Under attack, every fourth was half of all time in
# which ordinary requests ran, though attackers had the third besides in which none did. Steps with
# 33 to 64 tokens of prompts were 36 % of all time and took 25 ms; so where clients share the
# engine, prompts come in smaller parts.
LONG_EVERY = 4
SELDOM = 16

# Towers see media between two steps, and every decode waits: so one step in two at the most, but
# where many media wait. Decodes alone read all weights: 5 ms that 32 requests with a picture of
# 1024 x 1024 each had behind every 57 ms of encoding and prompt (Qwen2-VL-7B, H200).
ENCODE_EVERY = 2

# Slice(...) goes through a Python function; for 256 decodes that is 96 µs instead of 58
# (CPython 3.11, one core of a 2-core x86 machine, 2026-11-21).
_new = tuple.__new__


class Schedulable(Protocol):
    """The progress of a sequence, as far as the policy needs it.

        0 ............ done ......... prefill_end .......... max_pos
        | keys computed  | keys to recompute or prefill | decoded one by one |

    Keys below `prefill_end` belong to tokens that exist already; computing the last of them samples
    the next token. From then on each step computes one key and samples one token, up to `max_pos`.
    """

    seq_id: int
    client: str
    prompt_len: int
    num_scheduled: int
    prefill_end: int
    max_pos: int  # the key at this position is never needed
    logits_from: int  # logits are computed from here on, not just for samples
    rope_seq_len: int
    encoded_until: int  # prefills go no further: the media of the next tokens are not encoded
    uncut: Sequence[tuple[int, int]]  # positions [start, stop) that one step computes, ascending


P = TypeVar("P", bound=Schedulable)


def fair_start(arrived_s: float, prompt_len: int, last_s: float) -> float:
    """Return a request's fair start; that of its client's request before was `last_s`.

    Requests of one client are spaced as if each had arrived a little later than the one before: a
    client that sends a thousand at once stands behind those who send one each meanwhile. No request
    is deferred by more than `LATEST_S`.

    >>> [round(fair_start(100.0, 1000, last_s), 2) for last_s in (0.0, 100.0, 105.0, 900.0)]
    [100.0, 100.11, 105.11, 160.0]
    """
    return min(max(arrived_s, last_s + REQUEST_S + prompt_len * TOKEN_S), arrived_s + LATEST_S)


def sort_key(priority: int, fair_start_s: float) -> float:
    """Return a request's place in the order of all: smaller runs first.

    Aging without a clock: of two requests, one of a higher priority (a smaller number) goes first
    if its fair start is less than `LEVEL_S` per level after the other's. So none is overtaken for
    ever, however many requests of a higher priority arrive, and the order of two never changes.

    >>> sort_key(-1, 109.0) < sort_key(0, 100.0) < sort_key(-1, 111.0)
    True
    """
    return fair_start_s + priority * LEVEL_S


def plan_step(
    pending: Iterable[P],
    tuning: Tuning,
    *,
    may_pause: bool = True,
    number: int = 0,
    had: Mapping[str, int] = MappingProxyType({}),
) -> tuple[list[Slice], list[P]]:
    """Give every decode its token, then spend what is left on prefills, both in the given order;
    of prefills of several clients, one has no more than half.

    Beside decodes, prefills get `mixed_prompt_tokens` at the most; beside `MANY_DECODES`, whole
    tiles of `prompt_tile` tokens, and less than `FEW_TILES` in every `EVERY`th step by `number`
    alone. Those that want logits of their prompts share `prompt_logits` of them. Returns the
    slices, and whose they are.

    Decodes pause for a burst, if they may: where prefills fill `pause_tokens` and `BURST` of them
    sample their next token in these, every `PAUSE_EVERY`th step by `number` computes them alone. No
    decode waits for two such steps in a row, nor for prompts so long that few requests begin.

    Where several clients have requests, or `had` tokens computed lately, and `short_tokens` says
    so, steps are short: prefills get half as much beside decodes, `short_tokens` alone, and as few
    logits of prompts. While a request of another client is short, long ones take part in every
    `LONG_EVERY`th step by `number` alone: answers of `short_tokens` and more, and the prompts of a
    client that have more left together, unless those of all others have still more. In that step
    prefills get half as much again. Where one of their clients `had` more than one `LONG_EVERY`th
    of the tokens of one with short requests, it is every `SELDOM`th.
    """
    everybody = list(pending)
    if not tuning.short_tokens:
        return _plan_step(everybody, tuning, may_pause=may_pause, number=number)
    clients = {item.client for item in everybody}
    are_several = len(clients) > 1
    if are_several or not clients.issuperset(had):
        tuning = _among_clients(tuning)
    some = everybody
    if are_several:
        some = _in_turn(everybody, tuning.short_tokens)
        if some is not everybody and number % _long_every(everybody, some, had) == 0:
            some, tuning = everybody, _among_clients(tuning)
    found = _plan_step(some, tuning, may_pause=may_pause, number=number)
    if found[0] or some is everybody:
        return found
    # The short ones wait for something, such as their media.
    return _plan_step(everybody, tuning, may_pause=may_pause, number=number)


@cache
def _among_clients(tuning: Tuning) -> Tuning:
    """Return the tuning of steps that several clients share."""
    return replace(
        tuning,
        mixed_prompt_tokens=max(tuning.mixed_prompt_tokens // 2, 1),
        lone_prompt_tokens=tuning.short_tokens,
        prompt_logits=min(tuning.prompt_logits, tuning.short_tokens),
    )


def _plan_step(
    pending: list[P], tuning: Tuning, *, may_pause: bool, number: int
) -> tuple[list[Slice], list[P]]:
    slices: list[Slice] = []
    chosen: list[P] = []
    prefills: list[P] = []
    for item in pending:
        done = item.num_scheduled
        if done < item.prefill_end:
            prefills.append(item)
        elif done < item.max_pos:
            slices.append(_new(Slice, (item.seq_id, done, done + 1, done, True, item.rope_seq_len)))
            chosen.append(item)
    step_tokens, pause = tuning.step_tokens, tuning.pause_tokens if may_pause else 0
    del slices[step_tokens:], chosen[step_tokens:]
    if not prefills:
        return slices, chosen
    left = step_tokens - len(slices)
    least = _least(prefills)
    if slices:
        waiting = sum([item.prefill_end - item.num_scheduled for item in prefills])
        if 0 < pause <= waiting and number % PAUSE_EVERY == 0:
            alone = _prefills(prefills, pause, tuning.prompt_logits)
            if sum([part.samples for part in alone[0]]) >= BURST:
                return alone
        most = min(waiting, left, tuning.mixed_prompt_tokens)
        left = _beside(len(slices), most, tuning.prompt_tile, number)
        if left < least and number % PAUSE_EVERY == 0:  # an image is computed whole
            del slices[step_tokens - least :], chosen[step_tokens - least :]
            left = least
    elif tuning.lone_prompt_tokens:
        left = min(left, max(least, tuning.lone_prompt_tokens))
    parts, items = _prefills(prefills, left, tuning.prompt_logits)
    return slices + parts, chosen + items


def _in_turn(pending: list[P], short_tokens: int) -> list[P]:
    """Return what several clients have pending without the long requests beside short ones of
    others; the same list where there are none.
    """
    prompts = Counter[str]()  # tokens of prompts that are left, by client
    for item in pending:
        if item.num_scheduled < item.prefill_end:
            prompts[item.client] += item.prefill_end - item.num_scheduled
    # Of two clients, one has the fewer: that many ordinary clients share a key is not its fault.
    most = max(short_tokens, min(prompts.values()) if len(prompts) > 1 else 0)

    def is_short(item: P) -> bool:
        if item.num_scheduled < item.prefill_end:
            return prompts[item.client] <= most
        return item.num_scheduled - item.prompt_len < short_tokens

    short = {item.client for item in pending if is_short(item)}
    some = [item for item in pending if short <= {item.client} or is_short(item)]
    return pending if len(some) == len(pending) else some


def _long_every(everybody: list[P], some: list[P], had: Mapping[str, int]) -> int:
    """Return in how many steps those take part once who are not among `some`."""
    short = {item.client for item in some}
    most = max(had.get(client, 0) for client in short)
    long = {item.client for item in everybody} - short
    has_more = any(had.get(client, 0) * LONG_EVERY > most for client in long)
    return SELDOM if has_more else LONG_EVERY


def num_encodings(
    lengths: Sequence[int], tuning: Tuning, *, has_decodes: bool, number: int = 0
) -> int:
    """Return how many media of these lengths in tokens, in their order, towers see before a step.

    As many as have the tokens of a step, at least one. Beside decodes, which wait meanwhile, as
    many tokens as those of prompts: a decode waits for no more at a time (`encode_steps`). Where
    fewer than `pause_tokens` are left, that is in every `ENCODE_EVERY`th step by `number`.

    >>> tuning = Tuning(step_tokens=512, mixed_prompt_tokens=256, prompt_logits=32)
    >>> num_encodings([300, 200, 100], tuning, has_decodes=False)
    2
    >>> num_encodings([100, 100, 100], tuning, has_decodes=True)
    2
    >>> num_encodings([4000, 10], tuning, has_decodes=True, number=4)
    1
    >>> num_encodings([4000, 10], tuning, has_decodes=True, number=5)
    0
    """
    if not lengths:
        return 0
    is_burst = 0 < tuning.pause_tokens <= sum(lengths)
    if has_decodes and not is_burst and number % ENCODE_EVERY:
        return 0
    most = _encoded_at_once(tuning, has_decodes)
    return max(1, sum(1 for _ in takewhile(lambda total: total <= most, accumulate(lengths))))


def encode_steps(num_tokens: int, tuning: Tuning, *, has_decodes: bool) -> int:
    """Return how many steps share the encoding of media of so many tokens: one, but beside decodes
    as many as keep each step's share to that of prompts.

    >>> tuning = Tuning(step_tokens=512, mixed_prompt_tokens=256, prompt_logits=32)
    >>> [encode_steps(count, tuning, has_decodes=True) for count in (256, 257, 4000)]
    [1, 2, 16]
    """
    return -(-num_tokens // _encoded_at_once(tuning, has_decodes)) if has_decodes else 1


def _encoded_at_once(tuning: Tuning, has_decodes: bool) -> int:
    """Return the tokens of media that towers see before one step."""
    most = tuning.step_tokens
    return min(most, tuning.mixed_prompt_tokens) if has_decodes else most


def _prefills(prefills: Sequence[P], tokens: int, logits: int) -> tuple[list[Slice], list[P]]:
    """Spend that many tokens, and logits of prompts, on prefills: in order, but with no more than
    half of them for one client while others' wait.
    """
    slices: list[Slice] = []
    chosen: list[P] = []
    for item, granted in zip(prefills, _granted(prefills, tokens, logits), strict=True):
        if tokens == 0:
            break
        part = _prefill(item, min(granted, tokens), logits)
        if part.num_tokens == 0:
            continue  # until a step has logits for it
        slices.append(part)
        chosen.append(item)
        tokens -= part.num_tokens
        logits -= part.stop - part.logits_from - part.samples
    return slices, chosen


def _granted(prefills: Sequence[P], tokens: int, logits: int) -> list[int]:
    """Return how many of so many tokens each prefill may take: first no client more than half, then
    what is left, in order.
    """
    if len({item.client for item in prefills}) < 2:
        return [tokens] * len(prefills)
    wanted = [_prefill(item, tokens, logits).num_tokens for item in prefills]
    granted = [0] * len(prefills)
    halves = dict.fromkeys((item.client for item in prefills), max(tokens // 2, 1))
    halves[prefills[0].client] = max(halves[prefills[0].client], _uncut_tokens(prefills[0]))
    for is_shared in (True, False):
        for at, item in enumerate(prefills):
            more = min(wanted[at] - granted[at], tokens)
            if is_shared:
                more = min(more, halves[item.client])
                halves[item.client] -= more
            granted[at] += more
            tokens -= more
    return granted


def _beside(decodes: int, tokens: int, tile: int, number: int) -> int:
    """Return how many of that many tokens of prompts a step with decodes takes."""
    if decodes < MANY_DECODES or tile == 1:
        return tokens
    if tokens < FEW_TILES * tile and number % EVERY:
        return 0
    return tokens if tokens < tile else tokens - tokens % tile


def _least(prefills: Sequence[Schedulable]) -> int:
    """Return the tokens that the first prefill needs in one step, or it gets none."""
    ready = (item for item in prefills if item.num_scheduled < item.encoded_until)
    return next(map(_uncut_tokens, ready), 0)


def _uncut_tokens(item: Schedulable) -> int:
    """Return how many tokens of a prefill come next that one step computes; 0 for any number."""
    at = bisect_right(item.uncut, (item.num_scheduled, maxsize)) - 1
    return max(item.uncut[at][1] - item.num_scheduled, 0) if at >= 0 else 0


def _whole(item: Schedulable, stop: int) -> int:
    """Return `stop`, or where the tokens begin that it would cut."""
    at = bisect_left(item.uncut, (stop, 0)) - 1
    if at >= 0 and stop < item.uncut[at][1]:
        return max(item.uncut[at][0], item.num_scheduled)
    return stop


def _prefill(item: Schedulable, tokens: int, logits: int) -> Slice:
    stop = min(
        item.prefill_end,
        item.num_scheduled + tokens,
        max(item.num_scheduled, item.logits_from) + logits,
        max(item.num_scheduled, item.encoded_until),
    )
    if item.uncut:
        stop = _whole(item, stop)
    samples = stop == item.prefill_end
    logits_from = min(max(item.num_scheduled, item.logits_from), stop - samples)
    return Slice(item.seq_id, item.num_scheduled, stop, logits_from, samples, item.rope_seq_len)
