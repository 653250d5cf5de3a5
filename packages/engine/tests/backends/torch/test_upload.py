"""Upload of weights to a device: equal values for every format and length."""

import gc
import threading

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from spaninfer_engine.backends.torch.ops import TorchOps  # noqa: E402
from spaninfer_engine.backends.torch.upload import CHUNK_BYTES, Uploader, fill  # noqa: E402
from spaninfer_engine.dummy_array import DummyArray  # noqa: E402
from spaninfer_engine.errors import ConfigError  # noqa: E402

FORMATS = [np.float32, np.float16, ml_dtypes.bfloat16, np.float64]


def random(shape, dtype):
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_an_array_arrives_rounded_to_the_wanted_format(dtype, wanted):
    array = random((7, 5), dtype)
    array.flags.writeable = False
    out = torch.full((7, 5), torch.nan, dtype=wanted)

    fill(array, out)

    assert torch.equal(out, torch.from_numpy(array.astype(np.float64)).to(wanted))


def test_a_view_arrives_in_its_own_order():
    array = random((6, 4, 3), np.float32).swapaxes(1, 2)
    out = torch.empty(6, 3, 4)

    fill(array, out)

    assert np.array_equal(out.numpy(), array)


def test_noise_has_the_mean_and_the_deviation_that_were_asked_for():
    out = torch.empty(500, 400)

    fill(DummyArray((500, 400), mean=1.0, std=0.02, seed=3), out)

    assert out.mean().item() == pytest.approx(1.0, abs=3e-4)
    assert out.std().item() == pytest.approx(0.02, rel=0.02)


def num_uploading() -> int:
    """How many threads are there that upload."""
    return sum(each.name.startswith("spaninfer-upload") for each in threading.enumerate())


def test_packing_puts_the_rows_of_all_arrays_below_one_another():
    first, second = random((3, 4), np.float32), random((2, 4), ml_dtypes.bfloat16)

    packed = TorchOps("float32").pack(
        [first, second, DummyArray((5, 4), 0.0, 1.0, seed=0)], "plain"
    )

    assert packed.shape == (10, 4)
    assert np.array_equal(packed[:5].numpy(), np.concatenate([first, second.astype(np.float32)]))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("length", [0, 1, 1023, CHUNK_BYTES // 4, 3 * CHUNK_BYTES + 7])
def test_every_chunk_arrives_on_a_gpu_where_it_belongs(dtype, length):
    array = random(length, dtype)
    out = torch.full((length,), torch.nan, dtype=torch.bfloat16, device="cuda")

    Uploader(torch.device("cuda")).fill(array, out)

    expected = torch.from_numpy(array.astype(np.float64)).to(torch.bfloat16)
    assert torch.equal(out.cpu(), expected)


@pytest.mark.gpu
def test_uploads_one_after_the_other_do_not_mix_on_a_gpu():
    uploader = Uploader(torch.device("cuda"))
    arrays = [random(CHUNK_BYTES * 5 + n, np.float16) + np.float16(n) for n in range(4)]
    outs = [torch.empty(array.shape, dtype=torch.float16, device="cuda") for array in arrays]

    for array, out in zip(arrays, outs, strict=True):
        uploader.fill(array, out)

    for array, out in zip(arrays, outs, strict=True):
        assert np.array_equal(out.cpu().numpy(), array)


@pytest.mark.gpu
def test_threads_and_pinned_memory_last_from_the_first_array_to_the_end_on_a_gpu():
    uploader = Uploader(torch.device("cuda"))
    out = torch.empty(3 * CHUNK_BYTES, dtype=torch.uint8, device="cuda")
    array = random(len(out) // 4, np.float32).view(np.uint8)

    uploader.fill(DummyArray((4, 4), 0.0, 1.0, seed=0), torch.empty((4, 4), device="cuda"))
    assert num_uploading() == 0
    for _ in range(2):
        uploader.fill(array, out)
        assert num_uploading() > 0
        uploader.close()
        assert num_uploading() == 0

    assert np.array_equal(out.cpu().numpy(), array)


@pytest.mark.gpu
def test_uploaders_that_are_collected_inside_of_a_capture_do_not_end_it():
    out = torch.zeros(CHUNK_BYTES, dtype=torch.uint8, device="cuda")
    array = random(len(out) // 4, np.float32).view(np.uint8)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()

    gc.disable()
    try:
        abandon(array, out)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            inverse = 255 - out
            assert gc.collect() > 0
            graph.capture_end()
    finally:
        gc.enable()
    graph.replay()
    Uploader(torch.device("cuda")).fill(array[::-1], out)

    assert np.array_equal(inverse.cpu().numpy(), 255 - array)
    assert np.array_equal(out.cpu().numpy(), array[::-1])


def abandon(array, out):
    """Fill `out` by an uploader that nothing but a collection of cycles ends."""
    uploader = Uploader(torch.device("cuda"))
    uploader.fill(array, out)
    uploader.itself = uploader


@pytest.mark.gpu
def test_what_cannot_be_read_is_an_error_every_time_and_not_a_wait_for_ever():
    uploader = Uploader(torch.device("cuda"))
    out = torch.empty(40 * CHUNK_BYTES, dtype=torch.uint8, device="cuda")

    for _ in range(2):
        with pytest.raises(AttributeError):  # torch has no such type
            uploader.fill(np.zeros(out.shape, ml_dtypes.float8_e3m4), out)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("foo", "torch has no device 'foo'; give --device cpu"),
        ("cuda:x", "torch has no device 'cuda:x'"),
        ("cuda:99", "device cuda:99 cannot be used: .*; choose another --device"),
    ],
)
def test_a_device_that_is_not_there_is_refused_by_name(name, words):
    with pytest.raises(ConfigError, match=words):
        TorchOps(device=name)
