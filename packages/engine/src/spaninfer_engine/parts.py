"""What an engine is made of, put together by build.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from spaninfer_engine.config import Resolved
from spaninfer_engine.plan import StepPlan, StepResult
from spaninfer_engine.request import SamplingParams
from spaninfer_engine.spec.nodes import Decoder
from spaninfer_engine.text.template import ChatTemplate
from spaninfer_engine.text.tokenizer import Tokenizer


class PlanRunner(Protocol):
    """Computes plans, in order; owns the memory of the span cache."""

    def run(self, plan: StepPlan) -> StepResult:
        """Compute the plan's slices; return what was drawn."""
        ...

    def close(self) -> None:
        """Give the memory back; harmless when repeated."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A model ready to run, with everything around it."""

    resolved: Resolved
    decoder: Decoder
    runner: PlanRunner
    tokenizer: Tokenizer
    template: ChatTemplate
    sampling: SamplingParams  # where a request brings none: what generation_config.json says
    end_ids: frozenset[int]  # all ids that end an answer
    listing: str = ""  # the bound program, for people
