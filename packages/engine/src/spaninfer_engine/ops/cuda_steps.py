"""Steps on a GPU: inputs, the model, drawn tokens, with nothing that waits for the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from spaninfer_kernels_cuda import inputs
from torch import Tensor

from spaninfer_engine.errors import NoMemory
from spaninfer_engine.ops.cuda import CudaOps
from spaninfer_engine.ops.cuda_draw import Drawing, Tokens, fetch_logits, reports_of
from spaninfer_engine.ops.cuda_forms import Form, Forms, Gap, pad
from spaninfer_engine.ops.cuda_graphs import Graphs
from spaninfer_engine.ops.cuda_memory import Sizes, StepMemory, lacks_memory
from spaninfer_engine.ops.cuda_rehearsal import SMALLER, largest_step
from spaninfer_engine.ops.device import Columns, Launch, Reports, Wish
from spaninfer_engine.ops.step import Rotation, SpanCache, Step

Words = NDArray[np.int32]
Floats = NDArray[np.float32]

_ON_DEVICE: Words = np.zeros(0, np.int32)
"""What the fields of a step say whose arrays are on the host elsewhere."""


class CudaSteps:
    """ops.device.Device on one GPU, on a stream of its own.

    `forward` is the bound program, `angles` are as in StepMemory, `num_axes` of positions are
    equal. Where the program `reads_all_columns` of the span tables, steps get narrow ones. Steps
    that fit one of `forms` are replayed as graphs.
    """

    def __init__(
        self,
        ops: CudaOps,
        forward: Callable[[Step[Tensor]], Tensor],
        caches: tuple[SpanCache[Tensor], ...],
        angles: Sequence[Rotation[Tensor] | int],
        sizes: Sizes,
        *,
        num_axes: int,
        reads_all_columns: bool,
        forms: Forms | None,
    ) -> None:
        self._ops, self._forward, self._caches = ops, forward, caches
        self.num_rows = sizes.requests
        self._num_axes, self._reads_all_columns = num_axes, reads_all_columns
        self._stream = torch.cuda.Stream(ops.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            kernels = inputs.prepare(gpu=ops.gpu)
            self._memory = StepMemory(sizes, angles, kernels, ops.device)
            self._drawing = Drawing(ops.gpu, self._memory)
        self._forms, self._graphs = forms, Graphs(self._compute_form, self._memory.blank)
        self._uncaptured = iter(() if forms is None or reads_all_columns else forms.others)
        torch.cuda.synchronize(ops.device)  # weights and angles were written on other streams

    # ---- what the host tells ---------------------------------------------------------------------

    def write_tokens(self, row: int, first: int, token_ids: Words) -> None:
        """Have tokens of a row known before the next step, from position `first` on."""
        self._memory.write(self._memory.known, row, first, token_ids)

    def write_spans(self, row: int, group: int, first: int, spans: Words) -> None:
        """Have span numbers in a row's table before the next step, from index `first` on."""
        self._memory.write(self._memory.tables[group], row, first, spans)

    def write_wish(self, row: int, wish: Wish) -> None:
        """Have the row's tokens drawn in this way from the next step on."""
        self._drawing.wishes.write(row, wish)

    def columns(self) -> Columns:
        """Return the columns of the next step, in pinned memory."""
        return self._memory.columns

    # ---- steps -----------------------------------------------------------------------------------

    def launch(self, launch: Launch) -> Answer:
        """Begin the step; returns at once."""
        try:
            return self._launch(launch)
        except (RuntimeError, MemoryError) as error:
            if not lacks_memory(error):
                raise
        # Not where the error is at hand: it would be kept with this one, and with it the tensors.
        self._memory.forget_written()
        raise NoMemory(launch.rows, self._ops.available_bytes())

    def _launch(self, launch: Launch) -> Answer:
        num_spans, columns = self._num_spans(launch.max_len), self._memory.columns
        form = self._find_form(launch, columns, num_spans)
        with torch.cuda.stream(self._stream):
            captured = None if form is None else self._graphs.find(form, num_spans)
            gap = Gap() if form is None or captured is None else pad(columns, launch, form)
            self._memory.send(launch, self._ops.stream)
            if captured is None:
                logits = self._compute(launch, num_spans)
            else:
                captured.graph.replay()
                logits = captured.logits
            chosen = fetch_logits(logits, gap.place(launch.logits))
            told = self._drawing.report(logits, self._ops.stream) if launch.reports else None
            return Answer(chosen, told, self._drawing.fetch(len(logits)), gap)

    def rehearse(self) -> None:
        """Compute the largest step, whose memory stays torch's, and ask for what others launch."""
        sizes, num_rotations = self._memory.sizes, len(self._memory.rotations)
        self._launch(largest_step(sizes, self.columns(), num_rotations)).token_ids()
        with torch.cuda.stream(self._stream):
            for form in SMALLER[:1] if self._reads_all_columns else SMALLER:
                self._memory.blank(form)
                self._compute_form(form, self._num_spans(max_len=1))
            self._ops.kernels.prepare_every_size()
        self._stream.synchronize()

    def graph_bytes(self) -> int:
        """Return what graphs will take, by capturing the largest ones."""
        if self._forms is None or self._reads_all_columns:
            return 0
        with torch.cuda.stream(self._stream):
            forms, columns = self._forms, self._memory.sizes.max_spans
            num_forms = len(forms.at_start) + len(forms.others)
            return self._graphs.measure(forms.at_start, num_forms, columns)

    def capture(self, progress: Callable[[int, int], None]) -> None:
        """Capture the graphs of a start; others are when there is time, or a step needs them."""
        if self._forms is None or self._reads_all_columns:
            return
        forms = self._forms.at_start
        with torch.cuda.stream(self._stream):
            for done, form in enumerate(forms):
                progress(done, len(forms))
                self._graphs.get(form, self._memory.sizes.max_spans)
        progress(len(forms), len(forms))

    def use_time(self) -> bool:
        """Capture one more graph that a step may need; return whether there was one that fits."""
        form = next(self._uncaptured, None)
        if form is None:
            return False
        with torch.cuda.stream(self._stream):
            captured = self._graphs.find(form, self._memory.sizes.max_spans)
        if captured is None:  # nor would the others; a step that needs one tries again
            self._uncaptured = iter(())
        return captured is not None

    def close(self) -> None:
        """Wait for what is under way and give weights, spans and graphs back; harmless when
        repeated. Tables of requests stay until Python collects them.
        """
        self._stream.synchronize()
        self._graphs.close()
        self._caches, self._forward = (), _closed
        torch.cuda.empty_cache()

    def _num_spans(self, max_len: int) -> int:
        """Return how many columns of the span tables a step reads: where it reads them all, the
        next power of two that its longest request needs.
        """
        sizes = self._memory.sizes
        if not self._reads_all_columns:
            return sizes.max_spans
        return min(sizes.max_spans, 1 << (-(-max_len // sizes.span_len) - 1).bit_length())

    def _find_form(self, launch: Launch, columns: Columns, num_spans: int) -> Form | None:
        """Return the form that a step is padded to: the smallest it fits into, or until that is
        captured, one of the start. None where the step is computed as it is.

        A step with prompts never waits for a capture of 20 to 300 ms: more rows cost it 1 to 2.
        """
        form = None if self._forms is None else self._forms.find(launch, columns)
        if self._forms is None or form is None or self._graphs.has(form, num_spans):
            return form
        for stand_in in self._forms.stand_ins(form):
            if self._graphs.has(stand_in, num_spans):
                return stand_in
        return None if form.prompts else form

    def _compute_form(self, form: Form, num_spans: int) -> Tensor:
        """Compute a step of a form."""
        return self._compute(form.launch(len(self._memory.rotations)), num_spans)

    def _compute(self, launch: Launch, num_spans: int) -> Tensor:
        """Compute the step whose columns were sent; return the logits [W V]."""
        memory, rows, wanted = self._memory, launch.rows, launch.wanted
        stream = self._ops.stream
        memory.derive(slices=launch.slices, rows=rows, wanted=wanted, stream=stream)
        slices = memory.slices(launch, num_spans)
        step = Step(
            token_ids=memory.token_ids[:rows],
            position=_ON_DEVICE,
            request=_ON_DEVICE,
            positions=memory.position[:rows].expand(self._num_axes, rows),
            tables=(),
            bounds=_ON_DEVICE,
            caches=self._caches,
            written=(),
            rotations=tuple(Rotation(*(part[:rows] for part in each)) for each in memory.rotations),
            wanted=memory.wanted[:wanted],
            plan=self._ops.plan(slices, self._caches),
        )
        logits = self._forward(step)
        if wanted:
            self._drawing.draw(logits, stream, revises=launch.revises)
        return logits


class Answer:
    """ops.device.Launched: what a step sends to the host."""

    def __init__(
        self, logits: Tensor | None, told: Tensor | None, tokens: Tokens, gap: Gap
    ) -> None:
        self._logits, self._told, self._tokens, self._gap = logits, told, tokens, gap

    def token_ids(self) -> Words:
        """Wait for the step; return the id per wanted row [W]."""
        return self._gap.close(self._tokens.wait())

    def reports(self) -> Reports:
        """Wait for the step; return the reports that the launch asked for."""
        assert self._told is not None, "no reports were asked for"
        self._tokens.wait()
        close, told = self._gap.close, reports_of(self._told.numpy())
        return Reports(close(told.chosen), close(told.ranks), close(told.top_ids), close(told.top))

    def logits(self) -> Floats:
        """Wait for the step; return the logits [n V] that the launch asked for."""
        assert self._logits is not None, "no logits were asked for"
        self._tokens.wait()
        rows: Floats = self._logits.numpy()
        return rows


def _closed(_step: Step[Tensor]) -> Tensor:
    raise AssertionError("the device is closed")
