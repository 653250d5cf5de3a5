"""The program builder: appends operators and names their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spaninfer_engine.ops.operation import Constant, Operation, ScaledRows, Transposed, Use
from spaninfer_engine.spec.attention_nodes import AxialRope, Rope
from spaninfer_engine.spec.nodes import CacheGroup
from spaninfer_engine.spec.weight_nodes import Linear, Norm, Ones, Weight


class ProgramBuilder:
    """Operations so far; values are named after what they hold, numbered in order.

    `ropes` and `groups` are what constants of rotations and attentions count in.
    """

    def __init__(self, ropes: Sequence[Rope | AxialRope], groups: Sequence[CacheGroup]) -> None:
        self.operations: list[Operation] = []
        self.layer: int | None = None
        self.ropes, self.groups = ropes, groups
        self._counts: dict[str, int] = {}
        self.selected = ""  # what the last indexer so far has selected

    def add(
        self,
        operator: str,
        *inputs: str,
        name: str,
        uses: tuple[Use, ...] = (),
        **constants: Constant,
    ) -> str:
        """Append an operation with one output; return the output."""
        return self.add_many(operator, *inputs, names=(name,), uses=uses, **constants)[0]

    def add_many(
        self,
        operator: str,
        *inputs: str,
        names: tuple[str, ...],
        uses: tuple[Use, ...] = (),
        **constants: Constant,
    ) -> tuple[str, ...]:
        """Append an operation; return its outputs."""
        outputs = tuple(self._fresh(name) for name in names)
        self.operations.append(
            Operation(operator, inputs, outputs, uses, tuple(constants.items()), self.layer)
        )
        return outputs

    def linear(self, linear: Linear, x: str, name: str) -> str:
        """Append x @ weight.T + bias."""
        uses = affine(linear.weight, linear.bias)
        if linear.scale is not None:
            uses = tuple(
                replace(use, tensors=(*use.tensors, linear.scale), view=ScaledRows())
                for use in uses
            )
        if linear.transposed:
            uses = (replace(uses[0], view=Transposed()), *uses[1:])
        return self.add("linear", x, name=name, uses=uses)

    def norm(self, norm: Norm | None, x: str) -> str:
        """Append a norm; without one, x stays as it is."""
        if norm is None:
            return x
        uses = affine(norm.weight, norm.bias)
        if norm.kind == "layer":
            return self.add("layer_norm", x, name="norm", uses=uses, eps=norm.eps)
        return self.add("rms_norm", x, name="norm", uses=uses, eps=norm.eps, plus_one=norm.plus_one)

    def _fresh(self, name: str) -> str:
        number = self._counts[name] = self._counts.get(name, -1) + 1
        return f"{name}.{number}"

    def layer_in_group(self, group: int) -> int:
        """Return the number of the present layer in its cache group."""
        assert self.layer is not None
        return self.groups[group].layers.index(self.layer)


def affine(weight: Weight | Ones, bias: Weight | None) -> tuple[Use, ...]:
    """Return the uses of a linear layer's or a norm's weights."""
    uses = (Use("weight", (weight,)),)
    return uses if bias is None else (*uses, Use("bias", (bias,)))
