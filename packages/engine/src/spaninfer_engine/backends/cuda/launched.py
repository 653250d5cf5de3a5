"""A launched step on a GPU: what it sends to the host, and what it lacks to sample its tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spaninfer_engine.backends.cuda.graphs.sampling import SamplingLaunches
from spaninfer_engine.backends.cuda.graphs.shapes import Padding
from spaninfer_engine.backends.cuda.sampling.buffers import SamplingBuffers
from spaninfer_engine.backends.cuda.sampling.sampler import Reported, Sampled
from spaninfer_engine.step.batch import Batch
from spaninfer_engine.step.device import Bytes, Logprobs, Samples, TokenMasks

Floats = NDArray[np.float32]


class UnsampledStep(NamedTuple):
    """A launched step whose tokens are not all sampled yet; `rows` are those of its slices.

    It needs the results of `launches`; its graph has `sampled` by others, or not at all (None).
    """

    batch: Batch
    rows: tuple[int, ...]
    padding: Padding
    logits: Tensor
    launches: SamplingLaunches
    sampled: SamplingLaunches | None


class CudaStep:
    """step.device.Launched: what a step sends to the host."""

    def __init__(
        self,
        sample: Callable[[CudaStep, TokenMasks], None],
        params: SamplingBuffers,
        unsampled: UnsampledStep,
        logits: Tensor | None,
    ) -> None:
        self._sample, self._logits = sample, logits  # `sample` waits for masks
        self._params = params
        self._unsampled: UnsampledStep | None = unsampled  # until tokens are sampled
        self._padding = unsampled.padding
        self.reported: Reported | None = None
        self._arriving: Sampled | None = None

    @property
    def unsampled(self) -> UnsampledStep:
        """The state that the device needs to sample the tokens."""
        assert self._unsampled is not None, "tokens are sampled once"
        return self._unsampled

    def arrive(self, sampled: Sampled) -> None:
        """Take note of what is on its way to the host."""
        self._arriving, self._unsampled = sampled, None

    @property
    def _sampled(self) -> Sampled:
        assert self._arriving is not None, "the step waits for its masks"
        return self._arriving

    def mask_bits(self, count: int, vocab: int) -> Bytes:
        """Return pinned memory for token masks."""
        return self._params.mask_bits(count, vocab, self.unsampled.logits.shape[1])

    def sample(self, masks: TokenMasks) -> None:
        """Sample the tokens of a batch with masks."""
        self._sample(self, masks)

    def wait(self) -> None:
        """Wait for the step."""
        self._sampled.wait()

    @property
    def is_done(self) -> bool:
        """True if everything has arrived."""
        return self._arriving is not None and self._arriving.is_there

    def samples(self) -> Samples:
        """Return the tokens that were sampled."""
        return Samples(*map(self._padding.remove, self._sampled.samples()))

    def logprobs(self, rows: tuple[int, ...], count: int) -> Callable[[], Logprobs]:
        """Copy log-probabilities of tokens; return what makes arrays of the copy."""
        if self._padding.shift:
            rows = tuple(self._padding.place(np.array(rows, np.int32)).tolist())
        return self._sampled.logprobs(rows, count)

    def prompt_logprobs(self) -> Logprobs | None:
        """Return log-probabilities of prompt tokens; None where no sequence asked."""
        return None if self.reported is None else self.reported.logprobs()

    def logits(self) -> Floats:
        """Return the logits [N V] that the host samples from."""
        assert self._logits is not None, "no logits were requested"
        rows: Floats = self._logits.numpy()
        return rows
