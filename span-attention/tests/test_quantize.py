"""Formats of quantised KV caches."""

from span_attention import Format
from span_attention.quantize import CODES


def test_every_format_with_scales_has_codes_and_no_other():
    assert set(CODES) == {format for format in Format if format.num_scales}
