"""What a matrix product is compiled for, as a constant that Numba functions hand on.

Every recipe is a Numba type of its own: functions that take one are compiled per recipe, its
numbers are constants in their code, and intrinsics read them off its type. Kernels have their
recipes in their closure, so Numba's cache on disk keeps machine code apart by recipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from numba.core import types
from numba.core.imputils import lower_constant, lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import models, register_model, typeof_impl

from spaninfer_kernels_cpu.dots import DOTS
from spaninfer_kernels_cpu.layout import (
    CHANNELS_PER_STEP,
    LANES,
    PANEL,
    STEP_BYTES,
    STEPS_AT_ONCE,
    Kind,
)
from spaninfer_kernels_cpu.tiers import ByteDot, Tier

WIDENED_ROWS = 4

Way = ByteDot | Literal["fma", "bf16_dot"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The kind of the weights, the way of multiplying, and the tile: rows by blocks of 16 outputs.

    Bytes of activations follow from the way: float32 for "fma", pairs of bfloat16 for "bf16_dot",
    codes of 8 bits, or of 16 where `dots` multiplies 8-bit weights so.
    """

    kind: Kind
    way: Way
    rows: int
    blocks: int

    @property
    def weight_bytes(self) -> int:
        """Bytes of a panel that the inner loop takes at once."""
        return STEP_BYTES * STEPS_AT_ONCE[self.kind]

    @property
    def channel_bytes(self) -> int:
        """Bytes of one activation."""
        if self.way == "fma":
            return 4
        if self.way == "bf16_dot":
            return 2
        return 2 if self.kind == "int8" and DOTS[self.way].wide_codes else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of activations that the inner loop takes at once."""
        return self.channel_bytes * CHANNELS_PER_STEP[self.kind] * STEPS_AT_ONCE[self.kind]


def recipes(kind: Kind, *, rounded: bool, tier: Tier) -> tuple[Recipe, Recipe]:
    """Return how a tier multiplies one row with weights of a kind, and how several.

    `rounded`: activations are bfloat16, which matters to weights that are bfloat16 too.
    """
    way: Way = "fma"
    if kind in ("int8", "int4"):
        way = tier.byte_dot
    elif kind == "bfloat16" and rounded and tier.has_bf16_dot:
        way = "bf16_dot"
    # Where a vector is two registers of sixteen, widened bfloat16 weights take four more, and six
    # rows spill: 64 Gop/s against 83 with four, other kinds are faster with six (EPYC Zen 3).
    rows = WIDENED_ROWS if (kind, way, tier.blocks) == ("bfloat16", "fma", 1) else tier.rows
    return Recipe(kind, way, 1, PANEL // LANES), Recipe(kind, way, rows, tier.blocks)


# ---- as Numba sees it --------------------------------------------------------------------------


class RecipeType(types.Type):
    """The type whose only value is `recipe`."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        super().__init__(name=repr(recipe))


register_model(RecipeType)(models.OpaqueModel)


@typeof_impl.register(Recipe)
def _type_of_recipe(recipe: Recipe, _context: Any) -> RecipeType:
    return RecipeType(recipe)


@lower_constant(RecipeType)  # type: ignore[no-untyped-call, untyped-decorator]
def _no_value(context: Any, _builder: Any, _kind: Any, _recipe: Any) -> Any:
    return context.get_dummy_value()


@infer_getattr
class _RecipeAttributes(AttributeTemplate):
    """All attributes that kernels read are whole numbers."""

    key = RecipeType

    def generic_resolve(  # type: ignore[override]
        self, _kind: RecipeType, _name: str
    ) -> types.Type:
        return types.int64


@lower_getattr_generic(RecipeType)  # type: ignore[no-untyped-call, untyped-decorator]
def _attribute(context: Any, _builder: Any, kind: RecipeType, _value: Any, name: str) -> Any:
    return context.get_constant(types.int64, getattr(kind.recipe, name))
