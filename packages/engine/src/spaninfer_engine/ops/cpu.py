"""The operators on the CPU in float32: products by BLAS, attention by spaninfer_kernels_cpu.

Weights of every number format are widened once, when they are packed. Arrays that an operator made
are finished in place: at a few hundred channels a pass over memory costs less than a new array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from spaninfer_kernels_cpu import Format, Packed, attention, pack
from spaninfer_kernels_cpu.layout import Kind
from spaninfer_kernels_cpu.team import Team, shared_team
from spaninfer_op_reference import gelu

from spaninfer_engine.ops.bound import Steps
from spaninfer_engine.ops.cpu_attention import scores_of
from spaninfer_engine.ops.cpu_claims import recorded_claims
from spaninfer_engine.ops.cpu_products import EXACT_PRODUCT, PRODUCT
from spaninfer_engine.ops.cpu_recorder import Inputs
from spaninfer_engine.ops.cpu_rows import TABLE
from spaninfer_engine.ops.cpu_script import chain
from spaninfer_engine.ops.host import HostOps, attend_by_definition
from spaninfer_engine.ops.operation import Packable
from spaninfer_engine.ops.products import Products
from spaninfer_engine.ops.step import Step
from spaninfer_engine.ops.table import AlibiKind, Claim
from spaninfer_engine.spec.nodes import ActivationName, RopeStyle

Array = NDArray[np.float32]

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class CpuOps(HostOps):
    """ops.table.Ops on numpy arrays of float32, on the threads of a team.

    Weights of products are packed: in `format`, or else as they are stored, bfloat16 in bfloat16
    (`stored_as` is what those of a model without weights would be stored in). Products see
    activations in `dtype`, everything else sees them in float32.
    """

    name = "cpu"

    def __init__(
        self,
        dtype: Literal["float32", "bfloat16"] = "float32",
        *,
        format: Format | None = None,
        stored_as: str = "float32",
        team: Team | None = None,
    ) -> None:
        super().__init__("float32")
        self._rounded = dtype == "bfloat16"
        self._format, self._stored_as = format, stored_as
        self._team = team or shared_team()
        self._inputs = Inputs()
        self._product = Products()

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What becomes calls of compiled kernels; the operators below serve the rest."""
        return recorded_claims(rounded=self._rounded)

    def chain(self, steps: Steps[Array]) -> Steps[Array]:
        """Run neighbours that are recorded as one script."""
        return chain(steps, self._team, self._inputs)

    def pack(self, arrays: Sequence[Packable], layout: str) -> Any:
        """Return weights of products packed, others as arrays."""
        if layout == PRODUCT:
            return self._packed(arrays, self._format)
        if layout == EXACT_PRODUCT:
            return self._packed(arrays, None)
        if layout == TABLE:
            return _table(super().pack(arrays, "stored"))
        return super().pack(arrays, layout)

    def _packed(self, arrays: Sequence[Packable], format: Format | None) -> Packed:
        stored = {getattr(array, "dtype", self._stored_as) for array in arrays}
        kind: Kind = "bfloat16" if stored <= {_BFLOAT16, "bfloat16"} else "float32"
        return pack(super().pack(arrays, "stored"), format or Format(kind))

    def prepare(self, step: Step[Array]) -> tuple[attention.Rows, ...]:
        """Tell scripts where this step's arrays are; return what attention by itself reads."""
        self._inputs.fill(step)
        return tuple(attention.Rows(table, step.request, step.position) for table in step.tables)

    # ---- rows ------------------------------------------------------------------------------------

    def linear(self, x: Array, *, weight: Array, bias: Array | None = None) -> Array:
        """X @ weight.T + bias."""
        y = self._product(x, weight)
        if bias is not None:
            y += bias
        return y

    def head_linear(self, x: Array, *, weight: Array) -> Array:
        """One matrix per head."""
        y: Array = np.matmul(x.swapaxes(0, 1), weight)
        return y.swapaxes(0, 1)

    def rms_norm(self, x: Array, *, weight: Array, eps: float, plus_one: bool) -> Array:
        """Over the last axis."""
        y = x * _inverse_root_mean_square(x, eps)
        y *= weight + np.float32(1) if plus_one else weight
        return y

    def layer_norm(
        self, x: Array, *, weight: Array, eps: float, bias: Array | None = None
    ) -> Array:
        """Over the last axis."""
        y: Array = x - x.mean(-1, keepdims=True)
        y *= _inverse_root_mean_square(y, eps)
        y *= weight
        if bias is not None:
            y += bias
        return y

    def softcap(self, x: Array, *, cap: float) -> Array:
        """Cap * tanh(x / cap)."""
        y: Array = np.tanh(x / np.float32(cap))
        y *= np.float32(cap)
        return y

    def activation(self, x: Array, *, act: ActivationName) -> Array:
        """act(x)."""
        return _ACTIVATIONS[act](x)

    def gate(self, gate: Array, up: Array, *, act: ActivationName) -> Array:
        """act(gate) * up."""
        y = _ACTIVATIONS[act](gate)
        y *= up
        return y

    def sigmoid_gate(self, x: Array, gate: Array) -> Array:
        """X * sigmoid(gate)."""
        return x * _sigmoid(gate)

    # ---- heads -----------------------------------------------------------------------------------

    def rotate(self, step: Step[Array], x: Array, *, rope: int, style: RopeStyle) -> Array:
        """Rotate the first channels."""
        cos, sin = (part[:, None] for part in step.rotations[rope])
        half = cos.shape[-1]
        y = np.empty(x.shape, np.float32)
        if style == "half":
            first, second = slice(0, half), slice(half, 2 * half)
        else:
            first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        a, b = x[..., first], x[..., second]
        y[..., first] = a * cos - b * sin
        y[..., second] = b * cos + a * sin
        y[..., 2 * half :] = x[..., 2 * half :]
        return y

    # ---- attention -------------------------------------------------------------------------------

    def attend(
        self,
        step: Step[Array],
        query: Array,
        *,
        group: int,
        layer: int,
        scale: float,
        softcap: float | None = None,
        window: int | None = None,
        alibi: AlibiKind | None = None,
    ) -> Array:
        """All requests in one call; Falcon's rounded ALiBi, which no kernel knows, one by one."""
        if alibi == "rounded":
            return attend_by_definition(
                *(step, query, group, layer),
                scale=scale,
                softcap=softcap,
                window=window,
                alibi=alibi,
            )
        keys, values = (part[layer] for part in step.caches[group])
        rows: attention.Rows = step.plan[group]
        scores = scores_of(query.shape[1], scale, softcap, window, alibi)
        out = np.empty((*query.shape[:2], values.shape[-1]), np.float32)
        attention.attend(np.ascontiguousarray(query), keys, values, rows, scores, out=out)
        return out

    # ---- experts ---------------------------------------------------------------------------------

    def router(self, x: Array, *, weight: Array, bias: Array | None = None) -> Array:
        """The scores of experts."""
        return self.linear(x, weight=weight, bias=bias)

    def experts(
        self,
        x: Array,
        ids: Array,
        weights: Array,
        *,
        act: ActivationName,
        down: Array,
        gate: Array | None = None,
        up: Array | None = None,
        gate_up: Array | None = None,
        layout: Literal["oi", "io"] = "oi",
    ) -> Array:
        """Expert by expert, over the tokens that chose it."""
        out = np.zeros(x.shape, np.float32)
        for expert in np.unique(ids):
            tokens, choices = np.nonzero(ids == expert)
            rows = x[tokens]
            if gate_up is None:
                assert gate is not None
                assert up is not None
                inner = self.gate(rows @ gate[expert].T, rows @ up[expert].T, act=act)
            else:
                both = rows @ _out_in(gate_up[expert], layout).T
                inner = self.gate(*np.split(both, 2, axis=1), act=act)
            y = inner @ _out_in(down[expert], layout).T
            y *= weights[tokens, choices, None]
            out[tokens] += y  # a token chooses an expert once, so no row occurs twice
        return out


def _out_in(weight: Array, layout: Literal["oi", "io"]) -> Array:
    return weight if layout == "oi" else weight.T


def _inverse_root_mean_square(x: Array, eps: float) -> Array:
    """[... 1]: 1 / sqrt(mean(x * x) + eps), without an array of squares."""
    y: Array = np.einsum("...c,...c->...", x, x)[..., None]
    y *= 1 / x.shape[-1]
    y += eps
    np.sqrt(y, out=y)
    return np.reciprocal(y, out=y)


def _table(array: NDArray[Any]) -> NDArray[Any]:
    """Return a table of rows as kernels read it: in place, if that can be."""
    return np.require(array, requirements=["C", "ALIGNED"])


# ---- activations, by tanh: it does not overflow, and numpy vectorises it -------------------------


def _sigmoid(x: Array) -> Array:
    y: Array = np.tanh(x * np.float32(0.5))
    y += np.float32(1)
    y *= np.float32(0.5)
    return y


def _silu(x: Array) -> Array:
    half = x * np.float32(0.5)
    y: Array = np.tanh(half)
    y += np.float32(1)
    y *= half
    return y


def _gelu_tanh(x: Array) -> Array:
    y = x * x
    y *= np.float32(0.044715 * math.sqrt(2 / math.pi))
    y += np.float32(math.sqrt(2 / math.pi))
    y *= x
    np.tanh(y, out=y)
    y += np.float32(1)
    y *= np.float32(0.5)
    y *= x
    return y


def _quick_gelu(x: Array) -> Array:
    return x * _sigmoid(x * np.float32(1.702))


def _relu(x: Array) -> Array:
    return np.maximum(x, np.float32(0))


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": _silu,
    "gelu": gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
    "quick_gelu": _quick_gelu,
}
