"""Encoders on NVIDIA GPUs: the kernels of towers, and what texts have besides."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from spaninfer_engine.backends.cuda.fusions.layers import FusedNorm
from spaninfer_engine.backends.cuda.tower import CudaTowerOps
from spaninfer_engine.ops.fuse import use_of
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.step import Step
from spaninfer_engine.ops.table import Claim, Kernel, Pack


class CudaEncoderOps(CudaTowerOps):
    """ops.table.Ops for the texts of an encoder; steps follow one another on one stream."""

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims of towers, and the sum of embeddings with its norm."""
        return (_embeddings(self), *super().claims)


def _embeddings(ops: CudaEncoderOps) -> Claim:
    """Claim the sum of the embeddings of token, position and type, and its norm.

    Positions and types share a table of their sums: a token reads two rows, not three.
    """

    def build(taken: Sequence[Operation], pack: Pack) -> Kernel:
        embedded, positioned, _, typed, normed = taken

        def table(operation: Operation) -> Tensor:
            packed: Tensor = pack(
                [use_of(operation, "table")], ops.layout(operation.operator, "table")
            )
            return packed

        tokens, positions, types = map(table, (embedded, positioned, typed))
        places = (types.float()[:, None] + positions.float()).to(tokens.dtype).flatten(0, 1)
        offset, count = int(positioned.number("offset")), len(positions)
        norm_of_sum = FusedNorm(ops, "layer", normed, pack, residual=True)
        scale = embedded.number("scale")

        def kernel(step: Step[Tensor]) -> Tensor:
            rows = step.positions[0] + offset
            if (second := step.attention.token_types()).any():
                rows = rows + ops.from_host(count * second)
            x = ops.embed(step, table=tokens, scale=scale)
            return norm_of_sum(F.embedding(rows, places), residual=x)

        return kernel

    pattern = (
        "x = embed",
        "p = learned_positions",
        "s = add x p",
        "t = add_types s",
        "n = layer_norm t",
    )
    return Claim("embeddings", pattern, "n", build, lambda taken: taken[2].constant("scale") == 1.0)
