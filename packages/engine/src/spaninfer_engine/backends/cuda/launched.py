"""A launched step on a GPU: what it sends to the host, and what it lacks to sample its tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spaninfer_engine.backends.cuda.graph_shapes import Padding
from spaninfer_engine.backends.cuda.sampler import Reported, Tokens, logprobs_of
from spaninfer_engine.step.batch import Batch
from spaninfer_engine.step.device import Logprobs, Samples, TokenMasks
from spaninfer_engine.step.sampling import SamplingWork

Floats = NDArray[np.float32]


class InFlight(NamedTuple):
    """A launched step whose tokens are not sampled yet: `rows` are those of its slices."""

    batch: Batch
    rows: tuple[int, ...]
    work: SamplingWork
    padding: Padding
    logits: Tensor
    samples_later: bool


class CudaStep:
    """step.device.Launched: what a step sends to the host."""

    def __init__(
        self,
        sample: Callable[[CudaStep, TokenMasks], None],
        in_flight: InFlight,
        logits: Tensor | None,
    ) -> None:
        self._sample, self._logits = sample, logits  # `sample` waits for masks
        self._in_flight: InFlight | None = in_flight  # until tokens are sampled
        self._padding = in_flight.padding
        self.reported: Reported | None = None
        self._reported: Tensor | None = None
        self._tokens: Tokens | None = None

    @property
    def in_flight(self) -> InFlight:
        """What the device needs to sample the tokens."""
        assert self._in_flight is not None, "tokens are sampled once"
        return self._in_flight

    def arrive(self, reported: Tensor | None, tokens: Tokens) -> None:
        """Take note of what is on its way to the host."""
        self._reported, self._tokens, self._in_flight = reported, tokens, None

    def sample(self, masks: TokenMasks) -> None:
        """Sample the tokens of a batch with masks."""
        self._sample(self, masks)

    def wait(self) -> None:
        """Wait for the step."""
        assert self._tokens is not None, "the step waits for its masks"
        self._tokens.wait()

    def samples(self) -> Samples:
        """Return the tokens that were sampled."""
        assert self._tokens is not None, "the step waits for its masks"
        return Samples(*map(self._padding.remove, self._tokens.samples()))

    def logprobs(self) -> Logprobs | None:
        """Return log-probabilities of sampled tokens; None where no sequence asked."""
        if self._reported is None:
            return None
        remove, reported = self._padding.remove, logprobs_of(self._reported.numpy())
        chosen, top = remove(reported.chosen), remove(reported.top)
        return Logprobs(chosen, remove(reported.ranks), remove(reported.top_ids), top)

    def prompt_logprobs(self) -> Logprobs | None:
        """Return log-probabilities of prompt tokens; None where no sequence asked."""
        return None if self.reported is None else self.reported.logprobs()

    def logits(self) -> Floats:
        """Return the logits [N V] that the host asked for."""
        assert self._logits is not None, "no logits were requested"
        rows: Floats = self._logits.numpy()
        return rows

    def vectors(self) -> Floats:
        """Backend cuda computes decoders alone."""
        raise AssertionError("a decoder makes no vectors")
