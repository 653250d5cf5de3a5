"""Keyword arguments of the engine's calls: fields of EngineConfig, of SamplingParams, and of its
StructuredOutput.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from spaninfer_engine.errors import InvalidSampling
from spaninfer_engine.nearest import did_you_mean
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.request.structured import KINDS, StructuredOutput


def check_keywords(
    given: Mapping[str, Any], kind: type, caller: str, others: Sequence[str] = ()
) -> None:
    """Raise TypeError, as Python does, for keyword arguments that no field of a dataclass takes.

    `others` are names that are known as well.
    """
    known = [*(field.name for field in fields(kind)), *others]
    for name in given:
        if name not in known:
            raise TypeError(
                f"{caller}() got an unexpected keyword argument {name!r}{did_you_mean(name, known)}"
            )


def with_keywords(sampling: object, given: Mapping[str, Any], caller: str) -> SamplingParams:
    """Return sampling parameters with those on top that came as keyword arguments.

    The fields of StructuredOutput are keywords as well: `regex="[0-9]+"` says what
    `structured=StructuredOutput(regex="[0-9]+")` says.

    Raises InvalidSampling for what is no SamplingParams.
    """
    if not isinstance(sampling, SamplingParams):
        allowed = "a SamplingParams; or pass its fields as keyword arguments"
        raise InvalidSampling("sampling", sampling, allowed)
    if not given:
        return sampling
    check_keywords(given, SamplingParams, caller, KINDS)
    forms = {name: value for name, value in given.items() if name in KINDS}
    if not forms:
        return replace(sampling, **given)
    if "structured" in given:
        raise InvalidSampling("structured", given["structured"], f"none beside {', '.join(forms)}")
    fields_given = {name: value for name, value in given.items() if name not in KINDS}
    return replace(sampling, **fields_given, structured=StructuredOutput(**forms))


def single_sampling(
    sampling: SamplingParams | Sequence[SamplingParams], given: Mapping[str, Any], caller: str
) -> SamplingParams:
    """Return the parameters of a single prompt; InvalidSampling for several, or several choices."""
    if isinstance(sampling, list | tuple):
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
    """Return the parameters of each of that many prompts; InvalidSampling for another number."""
    if not isinstance(sampling, list | tuple):
        return [with_keywords(sampling, given, caller)] * num_prompts
    if len(sampling) != num_prompts:
        allowed = f"one for all of {num_prompts} prompts, or one for each"
        raise InvalidSampling("sampling", f"a list of {len(sampling)}", allowed)
    return [with_keywords(each, given, caller) for each in sampling]
