"""A step from its launch until its result is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.request.request import FilledMasks, MaskJob
from spaninfer_engine.step.batch import Batch
from spaninfer_engine.step.device import Bytes, Launched
from spaninfer_engine.step.plan import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class MasksInFlight:
    """Token masks of slices, which other threads are filling `bits` with."""

    slices: NDArray[np.intp]
    bits: Bytes
    jobs: Sequence[MaskJob]
    wait: Callable[[], FilledMasks]


@dataclass(slots=True)
class InFlight:
    """A launched step, and its result once somebody had to know."""

    plan: StepPlan
    batch: Batch
    launched: Launched
    awaits_masks: bool
    unencoded: dict[int, Exception]  # by slice: its media could not be encoded
    failed_encodings: frozenset[bytes]
    masks: MasksInFlight | None = None  # begun, and not awaited yet
    mask_errors: dict[int, Exception] = field(default_factory=dict)  # by slice
    result: StepResult | None = None

    @property
    def is_sampled_on_host(self) -> bool:
        """True if later steps wait for tokens that the host samples."""
        return self.batch.num_samples > self.batch.num_device_samples


@dataclass(frozen=True, slots=True)
class Outcome:
    """startup.components.Outcome: of a step that was launched, or of none."""

    result: Callable[[], StepResult]
    step: InFlight | None = None

    def __call__(self) -> StepResult:
        """Wait for the step, and return its result."""
        return self.result()

    @property
    def is_done(self) -> bool:
        """True if the result is there."""
        step = self.step
        return step is None or step.result is not None or step.launched.is_done
