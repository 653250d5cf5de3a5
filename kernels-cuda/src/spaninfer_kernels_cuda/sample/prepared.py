"""Sampling of one size, ready to be launched."""

from __future__ import annotations

from dataclasses import dataclass, fields

from spaninfer_kernel_launch import Call, pointer_of, stream_handle

from spaninfer_kernels_cuda.sample.arguments import Pools, Report
from spaninfer_kernels_cuda.sample.tuning import touched_bytes


@dataclass(frozen=True, slots=True)
class Prepared:
    """Sampling of one size, compiled and loaded: `launch` passes pointers, and nothing else.

    `workspace_bytes` is what revised rows need of 16-byte aligned memory, whatever is in it.
    """

    rows: int
    length: int
    top: int
    workspace_bytes: int
    _calls: tuple[Call, Call, Call] | None
    _row_stride: int
    _token_stride: int

    def launch(
        self,
        logits: object,
        *,
        parameters: object,
        slots: object,
        positions: object,
        out: object,
        status: object,
        tokens: object = 0,
        mask: object = 0,
        pools: Pools | None = None,
        report: Report | None = None,
        workspace: object = 0,
        stream: object = None,
    ) -> None:
        """Draw a token per row of logits[R V] into out[R] int32, its `Status` into status[R] int32.

        `parameters` are uint8[N 88], records of `PARAMETERS`; `mask` int32[N ceil(V / 32)], bit
        t % 32 of word t // 32 set where token t is allowed, read for records with `masked`.
        `tokens` int32[N token_stride] is the token buffer: what is drawn is also written to
        tokens[slot, position], and with a `workspace`, tokens[slot, :position] is what penalties
        and bans look at. Without a workspace, records must ask for neither them nor bias. With a
        `report`, log-probabilities follow. Arrays may be given as addresses. Without a stream, the
        current one of logits' framework.
        """
        if self._calls is None:
            return
        handle = stream_handle(stream, logits)
        at, wishes, slot, place = map(pointer_of, (logits, parameters, slots, positions))
        drawn, known, allowed = map(pointer_of, (out, tokens, mask))
        touched = pointer_of(workspace)
        revised = touched + touched_bytes(self.rows, self.length) if touched else 0
        revise, draw, _ = self._calls
        if touched:
            lists = pools or Pools()
            addresses = (pointer_of(getattr(lists, field.name)) for field in fields(Pools))
            revise(
                *(handle, touched, revised, at, wishes, slot, place, known, *addresses),
                *(self.length, self._row_stride, self._token_stride),
            )
        draw(
            *(handle, drawn, pointer_of(status), known, at, wishes, slot, place),
            *(allowed, touched, revised, self.length, self._row_stride, self._token_stride),
        )
        if report is not None:
            self.report(
                *(logits, report),
                parameters=parameters,
                slots=slots,
                positions=positions,
                drawn=out,
                status=status,
                mask=mask,
                workspace=workspace,
                stream=stream,
            )

    def report(
        self,
        logits: object,
        report: Report,
        *,
        parameters: object,
        slots: object,
        positions: object,
        drawn: object,
        status: object,
        mask: object = 0,
        workspace: object = 0,
        stream: object = None,
    ) -> None:
        """Write log-probabilities of the tokens drawn[R], which the last launch drew.

        The other arguments are those of that launch; `workspace` as it has left it is needed where
        a record asks for processed logits.
        """
        if self._calls is None:
            return
        at, wishes, slot, place = map(pointer_of, (logits, parameters, slots, positions))
        places = map(pointer_of, (report.chosen, report.ranks, report.top_ids, report.top))
        touched = pointer_of(workspace)
        revised = touched + touched_bytes(self.rows, self.length) if touched else 0
        *_, tell = self._calls
        tell(
            *(stream_handle(stream, logits), *places, self.top, pointer_of(drawn)),
            *(pointer_of(status), at, wishes, slot, place, pointer_of(mask), touched, revised),
            *(self.length, self._row_stride),
        )
