"""The operator table: name, shapes and meaning of every operator; a backend implements it.

Letters: T rows of the step (one per token), C channels, O outputs, H query heads, K key/value
heads, D key width, E value width, I inner width, X experts, k chosen experts, W rows with logits,
V vocabulary, R slices. The definitions in numpy are in spaninfer_op_reference; where a backend
computes in 16 bits, norms, softmax, rotations and routing are computed in float32 and rounded once.

Inputs come by position, weights and constants by name. Operators with a `step` read the step's
context; all others are functions of their arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import (
    Any,
    Generic,
    Literal,
    Protocol,
    Required,
    TypeAlias,
    TypedDict,
    Unpack,
)

from spaninfer_engine.ops.bound import BoundProgram
from spaninfer_engine.ops.operation import Operation, Use
from spaninfer_engine.ops.scoring import RaggedScoring, Scoring
from spaninfer_engine.ops.step import A, Step
from spaninfer_engine.ops.tensors import Tensors
from spaninfer_engine.spec.attention_nodes import RopeStyle
from spaninfer_engine.spec.mlp_nodes import ActivationName, GateName, Routing
from spaninfer_engine.spec.pooling_nodes import PoolKind

Kernel: TypeAlias = Callable[..., Any]  # (step, *inputs) -> one array, a tuple of arrays, or None
Pack: TypeAlias = Callable[[Sequence[Use], str], Any]  # uses, layout -> the backend's weight


@dataclass(frozen=True, slots=True)
class Claim:
    """A sequence of operations that a backend computes as one.

    The pattern holds a line per operation, "outputs = operator inputs", whose letters stand for
    values: the same letter is the same value. `results` are the letters that the kernel returns;
    the others must not be used elsewhere, nor must those outside values that the kernel
    overwrites. `accepts` looks at constants and weights; `build` returns the kernel, which takes
    the outside values in order of first appearance.
    """

    name: str
    pattern: tuple[str, ...]
    results: str
    build: Callable[[Sequence[Operation], Pack], Kernel]
    accepts: Callable[[Sequence[Operation]], bool] = lambda operations: True  # noqa: ARG005
    overwrites: str = ""  # letters


class ExpertWeights(TypedDict, Generic[A], total=False):
    """The weights of `Ops.experts`, every expert's in one tensor: gate[X I C] and up[X I C], or
    gate_up[X 2I C]; down[X C I]; with layout "io" the last two axes are swapped.

    gate_up_bias[X 2I] and down_bias[X C] join the GEMMs.
    """

    down: Required[A]
    gate: A
    up: A
    gate_up: A
    gate_up_bias: A
    down_bias: A
    layout: Required[Literal["oi", "io"]]


class Ops(Tensors[A], Protocol[A]):
    """The operators of one backend, beside its tensors."""

    name: str

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The sequences that this backend fuses, tried in this order."""
        ...

    def chain(self, program: BoundProgram[A]) -> BoundProgram[A]:
        """Return the program as it is run: a backend may join neighbouring kernels to one."""
        ...

    def prepare(self, step: Step[A]) -> None:
        """Note where the arrays of the next step lie, for backends whose operators are compiled."""
        ...

    # ---- embedding -------------------------------------------------------------------------------

    def embed(self, step: Step[A], *, table: A, scale: float) -> A:
        """[T C]: rows of table[V C] by token id, times `scale`."""
        ...

    def replace_rows(self, step: Step[A], x: A) -> A:
        """x[T C] with the rows of `step.replaced` in place; only run in steps that have some."""
        ...

    def add_rows(self, step: Step[A], x: A, *, layer: int) -> A:
        """x[T C] plus the rows of `step.added[layer]`; only run in steps that have some."""
        ...

    def add_types(self, step: Step[A], x: A, *, table: A) -> A:
        """x[T C] + rows of table by token type: 0, or 1 in the second text of a pair."""
        ...

    def learned_positions(self, step: Step[A], *, table: A, offset: int) -> A:
        """[T C]: rows of table[P C] by position + offset."""
        ...

    def sinusoidal_positions(self, step: Step[A], *, dim: int, offset: int) -> A:
        """[T dim]: [sin | cos] of (position + offset) * 10000^(-i / (dim/2 - 1))."""
        ...

    def features(self, step: Step[A]) -> A:
        """[T F]: what the step brings of media, in the backend's type of activations."""
        ...

    def blended_positions(self, step: Step[A], *, table: A, square: int) -> A:
        """[T C]: rows of table[P C], summed by weights[T k]: both of `step.blends[square]`."""
        ...

    def learned_queries(self, step: Step[A], *, table: A) -> A:
        """[W C]: the whole table[Q C] once for each slice, W = R * Q."""
        ...

    def join_rows(self, x: A, *, count: int) -> A:
        """[T/count count*C]: every `count` neighbouring rows of x[T C] side by side."""
        ...

    def gather_rows(self, step: Step[A], x: A) -> A:
        """[W C]: the rows of x[T C] that get logits, in their order."""
        ...

    # ---- rows ------------------------------------------------------------------------------------

    def linear(self, x: A, *, weight: A, bias: A | None = None) -> A:
        """[T O]: x[T C] @ weight[O C].T + bias[O]."""
        ...

    def head_linear(self, x: A, *, weight: A) -> A:
        """[T H O]: x[T H C] @ weight[H C O], head by head."""
        ...

    def rms_norm(self, x: A, *, weight: A, eps: float, plus_one: bool) -> A:
        """X over its root mean square along the last axis, times weight (or 1 + weight)."""
        ...

    def layer_norm(self, x: A, *, weight: A, eps: float, bias: A | None = None) -> A:
        """X centred and over its deviation along the last axis, times weight, plus bias."""
        ...

    def add(self, x: A, y: A, *, scale: float) -> A:
        """X + y * scale."""
        ...

    def scale(self, x: A, *, factor: float) -> A:
        """X * factor."""
        ...

    def softcap(self, x: A, *, cap: float) -> A:
        """Cap * tanh(x / cap), in float32."""
        ...

    def activation(self, x: A, *, act: ActivationName) -> A:
        """act(x)."""
        ...

    def gate(self, gate: A, up: A, *, act: GateName) -> A:
        """act(gate) * up; see op_reference.gated."""
        ...

    def sigmoid_gate(self, x: A, gate: A) -> A:
        """x[T C] * sigmoid(gate), of gate[T C] or gate[T 1]."""
        ...

    def scale_rows(self, x: A, factor: A) -> A:
        """x[T C] * factor[T 1]."""
        ...

    # ---- heads -----------------------------------------------------------------------------------

    def split(self, x: A, *, sizes: tuple[int, ...]) -> tuple[A, ...]:
        """Cut the last axis into parts of these sizes."""
        ...

    def concat(self, x: A, y: A) -> A:
        """[x | y] along the last axis."""
        ...

    def split_heads(self, x: A, *, heads: int) -> A:
        """[T H D] of x[T H*D]."""
        ...

    def merge_heads(self, x: A) -> A:
        """[T H*D] of x[T H D]."""
        ...

    def split_groups(self, x: A, *, heads: int, kv_heads: int) -> tuple[A, A, A]:
        """[T H D], [T K D], [T K D] of x[T K*(H/K + 2)*D]: per kv head its queries, key, value."""
        ...

    def rotate(self, step: Step[A], x: A, *, rope: int, style: RopeStyle) -> A:
        """x[T H D], its first channels rotated by `step.rotations[rope]`."""
        ...

    def logn(self, step: Step[A], x: A, *, base: int) -> A:
        """x[T H D] * max(1, log_base(position + 1))."""
        ...

    def llama4_scale(self, step: Step[A], x: A, *, beta: float, length: int, offset: int) -> A:
        """x[T H D] * (1 + beta * log(1 + floor((position + offset) / length)))."""
        ...

    # ---- attention -------------------------------------------------------------------------------

    def append(
        self, step: Step[A], key: A, value: A | None = None, *, group: int, layer: int
    ) -> None:
        """Write key[T K D] and value[T K E] into the spans; no value where it lies in the key."""
        ...

    def attend(
        self,
        step: Step[A],
        query: A,
        *,
        group: int,
        layer: int,
        scoring: Scoring,
        sinks: A | None = None,
    ) -> A:
        """[T H E]: softmax(scores) over the values of the positions that each token sees.

        sinks[H] are scores of one key more, which has no value.
        """
        ...

    def select_keys(
        self, step: Step[A], query: A, weights: A, *, group: int, layer: int, top_k: int
    ) -> A:
        """[T k] int32: the positions of the keys that each token reads, ascending, then -1.

        Of an indexer's keys in the spans, k of those that the token sees: with the largest sums of
        weights[T H] * relu(q.k) over heads of query[T H D]; see op_reference.select_keys. k is
        top_k, or less where no request of the step is as long.
        """
        ...

    def attend_selected(
        self, step: Step[A], query: A, selected: A, *, group: int, layer: int, scale: float
    ) -> A:
        """[T H E]: softmax(scale * q.k) over the values of the positions selected[T k].

        Those are what `select_keys` has returned in this step.
        """
        ...

    def attend_ragged(
        self,
        step: Step[A],
        query: A,
        key: A,
        value: A,
        *,
        scoring: RaggedScoring,
        position_bias: A | None = None,
    ) -> A:
        """[T H E]: softmax(scores) over the values of the tokens that each token sees.

        query[T H D], key[T K D], value[T K E]: slices are whole texts, nothing is cached. The bias
        is position_bias[h, R + j - i] of position_bias[H 2R+1], farther than R that of R.
        """
        ...

    def cross_attend(self, step: Step[A], query: A, key: A, value: A, *, scale: float) -> A:
        """[W H E]: softmax(scale * q.k) over the values of a slice: query[W H D] are as many for
        each slice, key[T H D] and value[T H E] those of its rows.
        """
        ...

    def convolve(self, step: Step[A], x: A, *, weight: A, group: int, layer: int) -> A:
        """[T C]: the causal convolution of x[T C] by weight[C n], slice by slice, behind the inputs
        that the sequences' states keep; see op_reference.convolve.
        """
        ...

    def delta_gates(self, a: A, b: A, *, a_log: A, dt_bias: A) -> tuple[A, A]:
        """Decays [T H] and rates [T H] in float32, of a[T H] and b[T H]; see
        op_reference.delta_gates.
        """
        ...

    def delta_rule(
        self, step: Step[A], query: A, key: A, value: A, g: A, beta: A, *, group: int, layer: int
    ) -> A:
        """[T H E]: what the states say of query[T K D], after each has learned key[T K D] and
        value[T H E] of its token, in float32, rounded once; see op_reference.delta_rule.

        Where a step's pieces (`ops.states`) end, states are left in their spans.
        """
        ...

    def pool(self, step: Step[A], x: A, *, kinds: tuple[PoolKind, ...]) -> A:
        """[R C]: each slice's rows of x[T C] as a vector, side by side for each of some kinds."""
        ...

    # ---- experts ---------------------------------------------------------------------------------

    def router(self, x: A, *, weight: A, bias: A | None = None) -> A:
        """[T X] in float32: x[T C] @ weight[X C].T + bias[X]; a wrong choice is a large error."""
        ...

    def route(
        self,
        logits: A,
        *,
        routing: Routing,
        correction: A | None = None,
    ) -> tuple[A, A]:
        """Expert ids [T k] and weights [T k] of logits[T X]; see op_reference.route."""
        ...

    def experts(
        self,
        x: A,
        ids: A,
        weights: A,
        *,
        act: GateName,
        **mlps: Unpack[ExpertWeights[A]],
    ) -> A:
        """[T C]: sum of the gated MLPs ids[T k] of x[T C], times weights[T k]."""
        ...


OPTIONAL = frozenset({"replace_rows", "add_rows"})
"""Operators of one input and one output that steps without media leave out."""

FEWER_ROWS = frozenset({"gather_rows", "join_rows", "learned_queries"})
"""Operators behind which values have W rows in place of T."""


def reads_step(operator: str) -> bool:
    """Return True if the operator takes the step's context."""
    return "step" in inspect.signature(getattr(Ops, operator)).parameters
