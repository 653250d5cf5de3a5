"""The components of an engine, put together by build.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spaninfer_engine.backends.host.tower import HostTower
from spaninfer_engine.cache.span_files import SpanFiles
from spaninfer_engine.config import EngineConfig, Resolved
from spaninfer_engine.preprocess.layout import MediaSetup
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.run.embedding import EmbeddingRunner
from spaninfer_engine.run.pooling_head import PoolingHead
from spaninfer_engine.spec.nodes import Model
from spaninfer_engine.step.device import Bytes
from spaninfer_engine.step.plan import SpanCopy, StepPlan, StepResult
from spaninfer_engine.text.template import ChatTemplate
from spaninfer_engine.text.tokenizer import Tokenizer


class Outcome(Protocol):
    """The outcome of a step that was started."""

    def __call__(self) -> StepResult:
        """Wait for the step and return its result; called once."""
        ...

    @property
    def is_done(self) -> bool:
        """True if the result is there; asked only where steps run by themselves."""
        ...


class PlanRunner(Protocol):
    """Computes plans, in order; owns the memory of weights and spans."""

    @property
    def lookahead(self) -> int:
        """The number of plans taken before the outcome of the oldest must be requested.

        0: nothing runs by itself, a step is computed while its outcome is waited for.
        """
        ...

    def start(self, plan: StepPlan) -> Outcome:
        """Begin to compute the plan's slices; outcomes are fetched in the order of plans."""
        ...

    def copy_spans(self, copies: Sequence[SpanCopy]) -> Callable[[], None]:
        """Begin copies between spans and host slots; return what waits for them.

        They take place in this order, behind the plans started before and in front of the next.
        """
        ...

    @property
    def host_slots(self) -> tuple[Bytes, ...]:
        """Host slots per cache group, bytes [slots span_bytes]; () without KV cache offloading."""
        ...

    def run_idle_work(self) -> bool:
        """Do up to 0.1 s of idle work (e.g. capture one CUDA graph); False when none is left."""
        ...

    def close(self) -> None:
        """Give weights and spans back; idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A model ready to run, with everything around it."""

    resolved: Resolved
    model: Model
    runner: PlanRunner | EmbeddingRunner  # of decoders, of encoders
    tokenizer: Tokenizer
    template: ChatTemplate
    sampling: SamplingParams  # where a request brings none: what generation_config.json says
    end_ids: frozenset[int]  # all ids that end an answer
    weight_bytes: int = 0  # of packed weights, as the backend holds them
    listing: str = ""  # the bound program, for people
    head: PoolingHead | None = None  # of encoders
    media: MediaSetup | None = None  # of decoders that see or hear
    towers: tuple[HostTower[Any], ...] = ()  # of decoders that see or hear
    span_files: SpanFiles | None = None  # of KV cache offloading to disk
    asked: EngineConfig | None = None  # the options; None where the parts were made elsewhere
