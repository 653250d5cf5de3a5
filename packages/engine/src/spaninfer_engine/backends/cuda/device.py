"""Steps on a GPU: inputs, the model and sampled tokens, with nothing that waits for the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from spaninfer_kernels_cuda import inputs
from torch import Tensor

from spaninfer_engine.backends.cuda.attention.expanded import spans_of_prompts
from spaninfer_engine.backends.cuda.graphs.graphs import Captured, Graphs
from spaninfer_engine.backends.cuda.graphs.memory import Sizes, StepMemory, lacks_memory
from spaninfer_engine.backends.cuda.graphs.sampling import SamplingLaunches
from spaninfer_engine.backends.cuda.graphs.shapes import (
    GraphShape,
    GraphShapes,
    StepShape,
    write_columns,
)
from spaninfer_engine.backends.cuda.graphs.step_graphs import StepGraphs
from spaninfer_engine.backends.cuda.launched import CudaStep, UnsampledStep
from spaninfer_engine.backends.cuda.ops import CudaOps
from spaninfer_engine.backends.cuda.sampling.sampler import (
    GpuSampler,
    fetch_logits,
)
from spaninfer_engine.backends.cuda.warmup import LONGER, SMALLER, largest_batch
from spaninfer_engine.backends.encodings import Encodings
from spaninfer_engine.backends.setup import DeviceSetup, KVMemory
from spaninfer_engine.errors import NoMemory
from spaninfer_engine.ops.bound import BoundProgram
from spaninfer_engine.ops.rotary import Rotary
from spaninfer_engine.ops.step import Rotation, Rows, Step
from spaninfer_engine.request.media import TowerInput
from spaninfer_engine.step.batch import Batch, Run
from spaninfer_engine.step.device import Bytes, TokenMasks, Updates
from spaninfer_engine.step.mirror import SequenceMirror
from spaninfer_engine.step.plan import NewSequence, SpanCopy
from spaninfer_engine.step.sampling import DeviceSamplingParams, SamplingWork, fits_kernel

Words = NDArray[np.int32]
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

_AXES = 3  # of positions, at the most; in text all are equal


class _MediaContext(NamedTuple):
    """Replacements for a step's fields where tokens stand for media, or lie among them: such steps
    use no graph, and the host computes their angles.
    """

    positions: Tensor
    rotations: tuple[Rotation[Tensor], ...]
    replaced: Rows[Tensor] | None
    added: Mapping[int, Rows[Tensor]] | None


class _Among(NamedTuple):
    """A step with tokens among media: its context, and how far its rows see (`Batch.until`)."""

    context: _MediaContext
    until: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaProgram:
    """A model as its steps are computed.

    `forward` is the bound programs, `text` the one of steps without media. `angles` are as in
    StepMemory; `rotaries` has an entry for each of them, None where the device has a table;
    `ropes` compute the angles of media on the host. `num_axes` of positions are equal. A program
    that `reads_whole_tables`, of spans, is given narrow ones.
    """

    forward: Callable[[Step[Tensor]], Tensor]
    text: BoundProgram[Tensor] | None = None  # where steps are captured
    angles: Sequence[Rotation[Tensor] | int] = ()
    rotaries: tuple[Rotary | None, ...] = ()
    ropes: tuple[Rotary, ...] = ()
    num_axes: int = 1
    reads_whole_tables: bool = False


class CudaDevice:
    """step.device.Device on one GPU, on a stream of its own.

    Steps that fit one of `shapes` are replayed as graphs. With KV cache offloading, slots are
    pinned, one array per cache group.
    """

    lookahead = 1
    reports_prompts = True

    def __init__(
        self,
        ops: CudaOps,
        program: CudaProgram,
        sizes: Sizes,
        memory: KVMemory[Tensor],
        setup: DeviceSetup,
        shapes: GraphShapes | None,
    ) -> None:
        self._ops, self._forward, self._text = ops, program.forward, program.text
        self._caches, self._slots = memory.caches, memory.slots
        self._sequences, self._ropes = setup.sequences, program.ropes
        self._encodings = None if setup.encode is None else Encodings(setup.encode, ops)
        self._rotaries, self._num_axes = program.rotaries, program.num_axes
        self._reads_whole_tables = reads_whole_tables = program.reads_whole_tables
        self._stream = torch.cuda.Stream(ops.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            kernels = inputs.prepare(gpu=ops.gpu)
            self._memory = StepMemory(sizes, program.angles, kernels, ops.device)
            self._sampler = GpuSampler(ops.gpu, self._memory)
        self._mirror = SequenceMirror(setup.sequences, self, sizes.requests)
        self._graphs = graphs = Graphs(self._compute_shape, self._memory.blank)
        table_width = None if reads_whole_tables else sizes.max_spans
        self._most_prompt_spans = ops.most_prompt_spans
        self._step_graphs = None if shapes is None else StepGraphs(shapes, graphs, table_width)
        torch.cuda.synchronize(ops.device)  # weights and angles were written on other streams

    # ---- rows of sequences -----------------------------------------------------------------------

    def can_sample(self, sequence: NewSequence) -> bool:
        """Return True if the sampling kernel implements everything that the sequence requests."""
        return fits_kernel(sequence)

    def write_tokens(self, row: int, first: int, token_ids: Words) -> None:
        """Write tokens of a row before the next step, from position `first` on."""
        self._memory.write(self._memory.tokens, row, first, token_ids)

    def write_spans(self, row: int, group: int, first: int, spans: Words) -> None:
        """Write span numbers into a row's table before the next step, from index `first` on."""
        self._memory.write(self._memory.tables[group], row, first, spans)

    def write_sampling(self, row: int, params: DeviceSamplingParams) -> None:
        """Write a row's sampling parameters before the next step."""
        self._sampler.params.write(row, params)

    # ---- steps -----------------------------------------------------------------------------------

    def encode(
        self, inputs: Sequence[TowerInput], dropped: Sequence[bytes], num_steps: int = 1
    ) -> dict[bytes, Exception]:
        """Drop encodings and launch a share of others, in the order of the stream."""
        assert self._encodings is not None, "the model has no towers"
        with torch.cuda.stream(self._stream):
            return self._encodings.update(inputs, dropped, num_steps)

    def launch(self, batch: Batch, updates: Updates) -> CudaStep:
        """Begin a step; returns at once."""
        self._ops.gpu.make_current()  # steps are launched by a thread of their own
        try:
            rows = self._mirror.sync(batch, updates)
            return self._launch(batch, rows, self._mirror.sampling_work(batch))
        except (RuntimeError, MemoryError) as error:
            if not lacks_memory(error):
                raise
        # Not where the error is at hand: it would be kept with this one, and with it the tensors.
        self._memory.forget_written()
        self._mirror.reset()
        raise NoMemory(batch.num_tokens, self._ops.available_bytes())

    def _launch(self, batch: Batch, rows: Sequence[int], work: SamplingWork) -> CudaStep:
        table_width = self._table_width(batch.max_seq_len)
        angles = self._angles(batch)
        deltas = self._deltas(batch)
        launches = SamplingLaunches.of(work)
        sampling = None if batch.num_masked else launches
        with torch.cuda.stream(self._stream):
            replay = None
            if deltas is not None and self._step_graphs is not None and self._has_room(batch):
                with_angles = any(self._rotaries)
                replay = self._step_graphs.find(
                    batch, sampling, table_width, host_angles=with_angles
                )
            room = None if replay is None else replay.shape
            known = np.zeros_like(batch.starts) if deltas is None else deltas
            padding = write_columns(self._memory.columns, batch, rows, known, room)
            whole = StepShape.of(batch, sampling) if room is None else room.step
            self._memory.receive(whole.num_slices, angles, self._ops.stream)
            if replay is None:
                prefills = batch.runs(rows, first=batch.num_decodes)
                media = self._among_media(batch) if deltas is None else None
                logits, sampled = self._compute(whole, prefills, table_width, media), sampling
            else:
                replay.captured.graph.replay()
                if replay.shape.is_open:
                    num_logits = batch.num_logits + padding.shift
                    end = replace(replay.shape.step, num_logits=num_logits, sampling=sampling)
                    logits, sampled = self._finish_open(end, replay.captured, table_width), sampling
                else:
                    logits = replay.captured.logits
                    sampled = None if sampling is None else replay.shape.sampling
            chosen = fetch_logits(logits, padding.place(batch.host_logits))
            unsampled = UnsampledStep(batch, tuple(rows), padding, logits, launches, sampled)
            step = CudaStep(self._sample_masked, self._sampler.params, unsampled, chosen)
            if batch.has_reported:
                prompt_rows, next_ids = batch.reported(self._sequences)
                step.reported = self._sampler.report(
                    logits,
                    padding.place(prompt_rows),
                    next_ids,
                    count=min(batch.most_reported(self._sequences), logits.shape[1]),
                    stream=self._ops.stream,
                )
            if sampling is not None:
                self._finish(step)
            return step

    def _sample_masked(self, step: CudaStep, masks: TokenMasks) -> None:
        """Sample the tokens of a step that waited for its masks."""
        with torch.cuda.stream(self._stream):
            rows = [step.unsampled.rows[index] for index in masks.slices.tolist()]
            self._sampler.params.send_masks(rows, masks.fixed)
            self._finish(step)

    def _finish(self, step: CudaStep) -> None:
        """Sample what the step has not sampled; send tokens to the host, and log-probabilities."""
        at, stream = step.unsampled, self._ops.stream
        if at.sampled is None or not (at.sampled == at.launches or at.launches.samples_as_plain):
            self._sampler.sample_tokens(at.logits, at.launches, stream)
        elif at.sampled != at.launches:
            batch = self._sampler.batch(at.logits)
            self._sampler.compute_logprobs(at.logits, batch, at.launches, stream)
        has_logprobs = at.launches.logprobs > 0
        step.arrive(self._sampler.fetch(len(at.logits), stream, has_logprobs=has_logprobs))

    def copy_spans(self, copies: Sequence[SpanCopy]) -> Callable[[], None]:
        """Copy rows on the stream of the steps."""
        with torch.cuda.stream(self._stream):
            for group, span, slot, to_host in copies:
                row, host_row = self._caches[group].rows[span], self._slots[group][slot]
                target, source = (host_row, row) if to_host else (row, host_row)
                target.copy_(source, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        wait: Callable[[], None] = event.synchronize
        return wait

    @property
    def host_slots(self) -> tuple[Bytes, ...]:
        """The pinned slots, as numpy sees them."""
        return tuple(slots.numpy() for slots in self._slots)

    def warm_up(self) -> None:
        """Compute the largest step, whose memory torch keeps, and request all other kernels."""
        sizes = self._memory.sizes
        largest = largest_batch(sizes)
        self._launch(largest, largest.table_rows.tolist(), SamplingWork(penalties=1)).wait()
        # A prompt with nothing in front of it, which latent attention reads by another kernel.
        first = largest_batch(
            replace(sizes, requests=1, rows=min(sizes.rows, LONGER)), with_cached=False
        )
        self._launch(first, first.table_rows.tolist(), SamplingWork()).wait()
        if self._most_prompt_spans is not None:  # and one that is not worth their expansion
            short = largest_batch(replace(sizes, requests=1, rows=1), with_cached=False)
            self._launch(short, short.table_rows.tolist(), SamplingWork()).wait()
        with torch.cuda.stream(self._stream):
            for shape in SMALLER[:1] if self._reads_whole_tables else SMALLER:
                self._memory.blank(shape)
                self._compute_shape(shape, self._table_width(max_len=1))
            self._ops.prepare_every_size()
        self._stream.synchronize()

    def graph_bytes(self) -> int:
        """Return what graphs will take, by capturing the largest ones."""
        if self._step_graphs is None:
            return 0
        with torch.cuda.stream(self._stream):
            return self._step_graphs.measure()

    def capture(self, progress: Callable[[int, int], None]) -> None:
        """Capture the graphs of a start; others follow when idle, or when steps need them."""
        if self._step_graphs is not None:
            with torch.cuda.stream(self._stream):
                self._step_graphs.capture(progress)

    def run_idle_work(self) -> bool:
        """Capture one more graph that a step may need; False when none is left that fits."""
        if self._step_graphs is None:
            return False
        with torch.cuda.stream(self._stream):
            return self._step_graphs.capture_next()

    def close(self) -> None:
        """Wait for what is under way and give weights, KV cache and graphs back; idempotent.

        Tables of sequences stay until Python collects them.
        """
        self._stream.synchronize()
        self._graphs.close()
        self._caches, self._slots, self._forward, self._text = (), (), _closed, None
        if self._encodings is not None:
            self._encodings.close()
        torch.cuda.empty_cache()

    def _angles(self, batch: Batch) -> tuple[Rotation[Floats] | None, ...]:
        """Return the angles of rotary embeddings whose frequencies depend on length."""
        if not any(self._rotaries):
            return (None,) * len(self._rotaries)
        places = batch.places(self._sequences, _AXES)
        return tuple(
            None if rotary is None else rotary.of_batch(batch, places) for rotary in self._rotaries
        )

    def _deltas(self, batch: Batch) -> Ints | None:
        """Return what position embeddings see ahead of the positions of each slice; None where
        tokens stand for media, differ in their axes, or lie behind the device's tables of angles.
        """
        if not self._sequences.media:
            return np.zeros(batch.num_slices, np.int32)
        deltas = self._sequences.deltas[batch.table_rows]
        if batch.media or (batch.starts < self._sequences.deltas_from[batch.table_rows]).any():
            return None
        beyond = deltas.any() and (batch.stops + deltas).max() > self._sequences.max_len
        return None if beyond else deltas

    def _has_room(self, batch: Batch) -> bool:
        """Return True if the spans of a step's prompts fit where captured steps expand them."""
        most = self._most_prompt_spans
        return most is None or spans_of_prompts(batch, self._memory.sizes.span_len) <= most

    def _table_width(self, max_len: int) -> int:
        """Return how many columns of the span tables a step is given: where it reads them all, the
        next power of two that its longest sequence needs.
        """
        sizes = self._memory.sizes
        if not self._reads_whole_tables:
            return sizes.max_spans
        return min(sizes.max_spans, 1 << (-(-max_len // sizes.span_len) - 1).bit_length())

    def _compute_shape(self, shape: GraphShape, table_width: int) -> Sequence[Tensor | None]:
        """Compute a step of a shape; return what a graph of it leaves."""
        if not shape.is_open:
            return (self._compute(shape.step, (), table_width),)
        assert self._text is not None, "steps are captured"
        return self._text.begin(self._derived(shape.step, (), table_width))

    def _finish_open(self, end: StepShape, captured: Captured, table_width: int) -> Tensor:
        """Compute the logits of a step whose open graph has been replayed."""
        assert self._text is not None, "steps are captured"
        logits = self._text.finish(self._derived(end, (), table_width), list(captured.results))
        return self._sampled(logits, end)

    def _among_media(self, batch: Batch) -> _Among:
        until = batch.until(self._sequences)
        ends = None if until is None else self._ops.from_host(until)
        return _Among(self._media_context(batch), ends)

    def _media_context(self, batch: Batch) -> _MediaContext:
        """Return what the host knows of a step with tokens among media."""
        ops, encodings = self._ops, self._encodings
        places = batch.places(self._sequences, self._num_axes)
        angles = (rope.of_batch(batch, places) for rope in self._ropes)
        return _MediaContext(
            ops.from_host(places),
            tuple(Rotation(ops.from_host(cos), ops.from_host(sin)) for cos, sin in angles),
            encodings.replaced(batch.media) if encodings and batch.media else None,
            encodings.added(batch.media) if encodings and batch.media else None,
        )

    def _compute(
        self,
        shape: StepShape,
        prefills: tuple[Run, ...],
        table_width: int,
        media: _Among | None = None,
    ) -> Tensor:
        """Compute the step whose columns were sent; return the logits [W V]."""
        step = self._derived(shape, prefills, table_width, media)
        return self._sampled(self._forward(step), shape)

    def _derived(
        self,
        shape: StepShape,
        prefills: tuple[Run, ...],
        table_width: int,
        media: _Among | None = None,
    ) -> Step[Tensor]:
        """Return the step whose columns were sent."""
        memory, tokens = self._memory, shape.num_tokens
        memory.derive(shape, self._ops.stream)
        slices = memory.slices(shape, prefills, table_width)
        if media is not None:
            slices = replace(slices, until=media.until)
        step = Step(
            token_ids=memory.token_ids[:tokens],
            positions=memory.positions[:tokens].expand(self._num_axes, tokens),
            rotations=tuple(
                Rotation(*(part[:tokens] for part in each)) for each in memory.rotations
            ),
            logit_indices=memory.logit_indices[: shape.num_logits],
            attention=self._ops.plan(slices, self._caches),
        )
        return step if media is None else replace(step, **media.context._asdict())

    def _sampled(self, logits: Tensor, shape: StepShape) -> Tensor:
        """Sample tokens from the logits of a step, if its launches do; return the logits."""
        if shape.num_logits and shape.sampling is not None:
            self._sampler.sample_tokens(logits, shape.sampling, self._ops.stream)
        return logits


def _closed(_step: Step[Tensor]) -> Tensor:
    raise AssertionError("the device is closed")
