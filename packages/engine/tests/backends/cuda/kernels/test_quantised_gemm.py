"""GEMMs with quantised weights whose x is quantised in front of them, without a GPU.

A kernel here is its definition on the host: it reads and writes the addresses that it is given.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from host_packing import pack_on_host  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from spaninfer_engine.backends.cuda.kernels import kernels as kernels_module  # noqa: E402
from spaninfer_engine.backends.cuda.kernels.kernels import Kernels  # noqa: E402
from spaninfer_engine.backends.cuda.kernels.quantised_gemm import QuantizedGemm  # noqa: E402
from spaninfer_engine.backends.cuda.weights.quantised import (  # noqa: E402
    quantize_weight,
    round_weight,
)
from spaninfer_kernels_cuda import quantize, quantized_gemm  # noqa: E402
from spaninfer_kernels_cuda.quantized_gemm import QuantizedFormat, Shape, Tile  # noqa: E402
from spaninfer_op_reference import gated, quantize_fp8  # noqa: E402

Array = NDArray[Any]

FORMAT = QuantizedFormat(4, 32, activations="e4m3")
OUTPUTS, INNER = 48, 80
BFLOAT16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


def _at(address: int, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return the array at an address."""
    num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = (ctypes.c_uint8 * num_bytes).from_address(address)
    return np.frombuffer(memory, np.uint8).view(dtype).reshape(shape)


@dataclass
class HostGemm:
    """The GEMM of one shape with these numbers, for x in e4m3."""

    shape: Shape
    numbers: Array
    gate: Any
    row_stride: int
    workspace_bytes: int = 0

    def launch(self, x: int, records: int, factors: int, **at: int) -> None:
        """Write what the kernel would."""
        assert records
        assert factors
        rows, outputs, inner = self.shape.rows, self.shape.outputs, self.shape.inner
        codes = _at(x, (rows, self.row_stride), E4M3)[:, :inner].astype(np.float64)
        y = codes * _at(at["x_scales"], (rows, 1), np.float32) @ self.numbers.T
        if at["bias"]:
            y += _at(at["bias"], (outputs,), BFLOAT16).astype(np.float64)
        if self.gate is not None:
            y = gated(*np.split(y, 2, 1), self.gate)
        if at["residual"]:
            y += _at(at["residual"], y.shape, BFLOAT16).astype(np.float64)
        _at(at["out"], y.shape, BFLOAT16)[:] = y.astype(BFLOAT16)


@dataclass
class HostQuantize:
    """The quantisation of rows to e4m3."""

    rows: int
    channels: int

    def launch(self, x: int, *, out: tuple[int, int], stream: int) -> None:
        """Write what the kernel would."""
        assert stream == 0
        numbers = _at(x, (self.rows, self.channels), BFLOAT16).astype(np.float32)
        codes, scales = quantize_fp8(numbers)
        _at(out[0], codes.shape, E4M3)[:] = codes.astype(E4M3)
        _at(out[1], scales.shape, np.float32)[:] = scales


class Host:
    """A weight[48 80] for x in e4m3, and the tiles that its GEMMs were prepared with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, batch_invariant: bool = False) -> None:
        pack_on_host(monkeypatch)
        gpu = SimpleNamespace(arch="sm_90a", shared_bytes=232_448)
        monkeypatch.setattr(Kernels, "gpu", gpu)
        monkeypatch.setattr(Kernels, "stream", 0)
        monkeypatch.setattr(
            quantize, "prepare", lambda _, *, rows, channels, **__: HostQuantize(rows, channels)
        )
        monkeypatch.setattr(quantized_gemm, "prepare", self._prepare)
        monkeypatch.setattr(kernels_module, "InvariantGemm", Mock)  # cuBLAS, which is not used
        device = torch.device("cpu")
        self.kernels = Kernels(torch.bfloat16, device, batch_invariant=batch_invariant)
        self.gemm, self.tiles = QuantizedGemm(self.kernels), list[Tile | None]()
        weight = torch.randn(OUTPUTS, INNER, generator=torch.Generator().manual_seed(0))
        codes, scales, factors = (each.numpy() for each in round_weight(weight, FORMAT))
        spread = np.repeat(scales.astype(np.float64), 32, 1)[:, :INNER]
        self.numbers = (codes.astype(np.float64) - 8) * spread * factors[:, None]
        self.plain, self.gated = (
            quantize_weight([weight], FORMAT, self.gemm, gated=each) for each in (False, True)
        )

    def _prepare(
        self, shape: Shape, format: QuantizedFormat, *, tile: Tile | None, **options: Any
    ) -> HostGemm:
        assert format == FORMAT
        self.tiles.append(tile)
        return HostGemm(shape, self.numbers, options["gate"], options["row_stride"])


def _meant(x: Any, host: Host) -> Array:
    """Return the product of x as its codes say it, with the weight."""
    codes, scales = quantize_fp8(x.float().numpy())
    product: Array = codes.astype(np.float64) * scales @ host.numbers.T
    return product


def _check(found: Any, expected: Array) -> None:
    """Assert that results are a rounding to bfloat16 away; unquantised x would be 2.6 %."""
    np.testing.assert_allclose(found.float().numpy(), expected, rtol=2.0**-8, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 8, 64, 256])
def test_rows_are_quantised_in_front_of_weights_that_are_packed_for_it(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(monkeypatch)
    x = torch.randn(rows, 2 * INNER).bfloat16()[:, :INNER]  # rows that lie apart
    bias, residual = torch.randn(OUTPUTS).bfloat16(), torch.randn(rows, OUTPUTS).bfloat16()
    before = residual.double().numpy()

    product = _meant(x, host)

    shift = bias.double().numpy()
    _check(host.plain.multiply(x, bias), product + shift)
    _check(host.gated.multiply(x, gate="silu"), gated(*np.split(product, 2, 1), "silu"))
    _check(host.plain.multiply(x, bias, residual=residual), product + shift + before)
    assert set(host.tiles) == {None}  # the kernels' choice


def test_rows_that_a_norm_wrote_as_codes_are_not_quantised_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host(monkeypatch)
    x = torch.randn(5, INNER).bfloat16()
    normed = torch.empty((5, INNER), dtype=torch.bfloat16, device="meta")  # of which there are none
    written = host.kernels.scaled.coded_rows(normed)
    assert written is not None
    codes, scales = quantize_fp8(x.float().numpy())
    written.codes.copy_(torch.from_numpy(codes).to(torch.float8_e4m3fn))
    written.scales.copy_(torch.from_numpy(scales[:, 0]))

    _check(host.plain.multiply(normed), _meant(x, host))


def test_batch_invariance_has_one_tile_for_any_number_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host(monkeypatch, batch_invariant=True)
    x = torch.randn(300, INNER).bfloat16()

    for rows in (1, 40, 300):
        _check(host.plain.multiply(x[:rows]), _meant(x[:rows], host))

    [tile] = set(host.tiles)
    assert tile == quantized_gemm.invariant_tile(OUTPUTS, FORMAT, "sm_90a", 232_448, gated=False)
