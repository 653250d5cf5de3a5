"""NF4 and FP4 against bitsandbytes' own dequantisation.

`bitsandbytes.npz` holds tensors as bitsandbytes 0.50.2 saves them (`QuantState.as_dict`) for a
random weight of 7 x 60 in blocks of 64, which so cross rows, and the float32 numbers that its
`dequantize_4bit` returns for them.
"""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.load.quantised.bitsandbytes import read_4bit
from spaninfer_engine.load.quantised.module import Module

SAVED = np.load(Path(__file__).with_name("bitsandbytes.npz"))
NAMES = ("nf4", "nf4 nested", "fp4", "fp4 nested")


class _Entry:
    def __init__(self, array):
        self.shape, self.dtype, self._array = array.shape, array.dtype, array

    def read(self):
        return self._array


def module_of(name, **changed):
    tensors = {
        key.partition("|")[2]: SAVED[key] for key in SAVED.files if key.partition("|")[0] == name
    }
    del tensors["numbers"]
    entries = {suffix: _Entry(array) for suffix, array in (tensors | changed).items()}
    return Module("here", "m", entries, np.dtype(ml_dtypes.bfloat16), {})


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_those_of_bitsandbytes_exactly(name):
    expected = SAVED[f"{name}|numbers"]

    entry = read_4bit(module_of(name))

    assert entry.shape == expected.shape == (7, 60)
    np.testing.assert_array_equal(entry.read(), expected.astype(ml_dtypes.bfloat16))
    exact = type(entry)(
        entry.format, entry.shape, np.dtype(np.float32), entry.num_bytes, entry.load
    )
    np.testing.assert_array_equal(exact.read(), expected)


@pytest.mark.parametrize("storage", [np.uint16, ml_dtypes.bfloat16])
def test_codes_may_be_stored_as_other_numbers(storage):
    """bnb_4bit_quant_storage: the same bytes under another number format, for FSDP."""
    stored = SAVED["nf4|weight"].reshape(-1).view(storage)[:, None]

    np.testing.assert_array_equal(
        read_4bit(module_of("nf4", weight=stored)).read(), read_4bit(module_of("nf4")).read()
    )


def test_blocks_that_are_missing_are_named():
    with pytest.raises(CheckpointError, match=r"weight.absmax is \[6\], expected \[7\]"):
        read_4bit(module_of("nf4", **{"weight.absmax": SAVED["nf4|weight.absmax"][:6]}))
