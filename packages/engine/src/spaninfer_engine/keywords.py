"""Keyword arguments of the engine's calls: fields of EngineConfig and of SamplingParams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from spaninfer_engine.errors import InvalidSampling
from spaninfer_engine.nearest import did_you_mean
from spaninfer_engine.request import SamplingParams


def check_keywords(given: Mapping[str, Any], kind: type, caller: str) -> None:
    """Raise TypeError, as Python does, for keyword arguments that no field of a dataclass takes."""
    known = [field.name for field in fields(kind)]
    for name in given:
        if name not in known:
            raise TypeError(
                f"{caller}() got an unexpected keyword argument {name!r}{did_you_mean(name, known)}"
            )


def with_keywords(
    sampling: SamplingParams, given: Mapping[str, Any], caller: str
) -> SamplingParams:
    """Return sampling parameters with those on top that came as keyword arguments."""
    if not given:
        return sampling
    check_keywords(given, SamplingParams, caller)
    return replace(sampling, **given)


def single_sampling(
    sampling: SamplingParams | Sequence[SamplingParams], given: Mapping[str, Any], caller: str
) -> SamplingParams:
    """Return the parameters of a single prompt; InvalidSampling for several, or several choices."""
    if not isinstance(sampling, SamplingParams):
        raise InvalidSampling("sampling", "a list", "one for a single prompt; or pass [prompt]")
    whole = with_keywords(sampling, given, caller)
    if whole.n > 1:
        raise InvalidSampling("n", "more than 1", "1 for a single prompt; or pass [prompt]")
    return whole


def samplings_of(
    sampling: SamplingParams | Sequence[SamplingParams],
    num_prompts: int,
    given: Mapping[str, Any],
    caller: str,
) -> list[SamplingParams]:
    """Return the parameters of each of so many prompts; InvalidSampling for another number."""
    if isinstance(sampling, SamplingParams):
        return [with_keywords(sampling, given, caller)] * num_prompts
    if len(sampling) != num_prompts:
        allowed = f"one for all of {num_prompts} prompts, or one for each"
        raise InvalidSampling("sampling", f"a list of {len(sampling)}", allowed)
    return [with_keywords(each, given, caller) for each in sampling]
