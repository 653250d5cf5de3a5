"""The request for a ragged attention, and the variants of prefill's kernels that serve it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spaninfer_kernel_launch import Element, ShapeError, Variant

from span_attention.layout import Format
from span_attention.prefill import general, hopper
from span_attention.prefill.options import PrefillOptions, element_for
from span_attention.prefill.tuning import HopperTiles, Tiles, ragged_tiles, tiles

GRAIN: Final = 8  # elements that are copied to shared memory at once
MAX_HEAD_SIZE: Final = 256
_FRAGMENT: Final = 16  # elements of a head that one matrix instruction takes
_FORMATS: Final = {"float16": Format.FLOAT16, "bfloat16": Format.BFLOAT16}


@dataclass(frozen=True, slots=True)
class RaggedOptions:
    """A request for a variant: the element type of all arrays, and the elements of a head.

    `dtype` is "float16" or "bfloat16", `head_size` a multiple of 8 up to 256. `biased`: scores get
    biases by distance.
    """

    dtype: str
    head_size: int
    biased: bool = False

    @property
    def element(self) -> Element:
        """The element type. Raises DTypeError for types that tensor cores do not take."""
        return element_for(PrefillOptions(self.dtype), _FORMATS.get(self.dtype, Format.FLOAT16))

    def check(self) -> None:
        """Raise ShapeError for heads that the kernels do not take."""
        size = self.head_size
        if not 0 < size <= MAX_HEAD_SIZE or size % GRAIN:
            raise ShapeError(
                f"head_size is {size}; ragged attention takes multiples of {GRAIN} up to "
                f"{MAX_HEAD_SIZE}"
            )


def general_variant(options: RaggedOptions, shared_bytes: int) -> tuple[Variant, Tiles]:
    """Return the variant of general.cu for so much shared memory, and its tiles."""
    options.check()
    element, width = options.element, options.head_size
    size = -(-width // _FRAGMENT) * _FRAGMENT
    cut = tiles(size, size, in_keys=False, bits=16, shared_bytes=shared_bytes)
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "STORED": element.name,
        "KEY_SIZE": size,
        "VALUE_SIZE": size,
        "VALUE_TILE": cut.value_tile,
        "IN_KEYS": False,
        "BLOCK": cut.block,
        "M_TILES": cut.m_tiles,
        "WARPS": cut.warps,
        "LSE": False,
        "RAGGED": True,
        "WIDTH": width,
        "BIASED": options.biased,
    }
    variant = Variant.of("prefill_general", general.SOURCE, macros, element.architectures)
    return variant, cut


def hopper_variant(options: RaggedOptions) -> tuple[Variant, HopperTiles] | None:
    """Return the variant of hopper.cu and its tiles; None for heads that it is not for."""
    options.check()
    cut = ragged_tiles(options.head_size)
    if cut is None:
        return None
    macros: dict[str, str | int | bool] = {
        "T": options.element.name,
        "KEY_SIZE": cut.key_size,
        "VALUE_SIZE": cut.value_size,
        "ROW_BYTES": cut.row_bytes,
        "BLOCK": cut.block,
        "CONSUMERS": cut.consumers,
        "STAGES": cut.stages,
        "QUERY_STAGES": cut.query_stages,
        "KEEPS": cut.keeps,
        "LEAVES": cut.leaves,
        "SPLITS": False,
        "LSE": False,
        "RAGGED": True,
        "WIDTH": options.head_size,
        "BIASED": options.biased,
    }
    return Variant.of("prefill_hopper", hopper.SOURCE, macros, (hopper.ARCHITECTURE,)), cut
