"""Launch configurations: impossible ones are refused at construction."""

from typing import NamedTuple

import numpy as np
import pytest
from spaninfer_kernel_launch import (
    BEFORE_HOPPER,
    Array,
    Call,
    DriverError,
    Float32,
    Int32,
    Int64,
    Launch,
    Launches,
    Pointer,
    ShapeError,
    Signature,
    Variant,
    blocks_at_once,
    captured,
    clusters_at_once,
    compile_variant,
    get_gpu,
    load,
    new_stream,
    recording_kernels,
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(block=(1024, 2, 1)), "at most 1024 in all"),
        (dict(block=(0, 1, 1)), "at least 1"),
        (dict(grid=(0, 1, 1)), "at least 1"),
        (dict(grid=(1, 65536, 1)), "65535"),
        (dict(cluster=(32, 1, 1), grid=(32, 1, 1)), "at most 16 in all"),
        (dict(cluster=(2, 1, 1), grid=(5, 1, 1)), r"not made of \(2, 1, 1\) clusters"),
    ],
)
def test_too_much_and_nothing_are_refused(options, message):
    with pytest.raises(ShapeError, match=message):
        Launch(**(dict(grid=(1, 1, 1), block=(32, 1, 1)) | options))


KERNELS = """
extern "C" __global__ void fill(int n, float* out, float slope, long long first, int* last) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = slope * (first + i);
  if (i == 0) *last = n;
}
extern "C" __global__ void slowly(int* at, int value) {
  let_next_kernel_start();
  for (int n = 0; n < 1000; ++n) __nanosleep(1000);
  *at = value;
}
extern "C" __global__ void copy_after(const int* source, int* to) {
  wait_for_kernel_before();
  *to = *source;
}
extern "C" __global__ void size_of_cluster(int* out) {
#if __CUDA_ARCH__ >= 900
  int blocks;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  out[blockIdx.x] = blocks;
#endif
}
extern "C" __global__ void mark_shared(int* out, int bytes) {
  extern __shared__ char shared[];
  shared[bytes - 1 - threadIdx.x] = 7;
  __syncthreads();
  *out = shared[bytes - 1];
}
"""


class Fill(NamedTuple):
    n: Int32
    out: Pointer
    slope: Float32
    first: Int64
    last: Pointer


class FillOften(NamedTuple):
    n: Int32
    out: Pointer


class FillAlike(NamedTuple):
    slope: Float32
    first: Int64
    last: Pointer


class Slowly(NamedTuple):
    at: Pointer
    value: Int32


class Copy(NamedTuple):
    source: Pointer
    to: Pointer


class Out(NamedTuple):
    out: Pointer


class Mark(NamedTuple):
    out: Pointer
    bytes: Int32


FILL, FILL_OFTEN = Signature("fill", Fill), Signature("fill", FillOften, FillAlike)
SLOWLY, COPY_AFTER = Signature("slowly", Slowly), Signature("copy_after", Copy)
SIZE_OF_CLUSTER, MARK_SHARED = Signature("size_of_cluster", Out), Signature("mark_shared", Mark)
SIGNATURES = (FILL, FILL_OFTEN, SLOWLY, COPY_AFTER, SIZE_OF_CLUSTER, MARK_SHARED)


@pytest.fixture
def variant(source_of):
    """The kernels above."""
    return Variant.of("fill", source_of(KERNELS, ("overlap.cuh",), SIGNATURES), {})


@pytest.fixture
def kernel(variant):
    """Loads one of the kernels above."""
    gpu = get_gpu()
    compiled = compile_variant(variant, gpu.arch)
    return lambda signature: load(compiled, gpu, signature)


def test_the_kernels_of_these_tests_compile(variant):
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra cu12 or cu13")

    reports = compile_variant(variant, "sm_90a").reports

    assert reports.keys() == {signature.entry for signature in SIGNATURES}


@pytest.fixture
def stream():
    """A stream of the first GPU."""
    with get_gpu().current(), new_stream() as handle:
        yield handle


def read(array):
    """The contents of an array, after all work has ended."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.from_dlpack(array)
    torch.cuda.synchronize()
    return tensor.cpu().numpy()


@pytest.mark.gpu
def test_values_of_every_type_arrive_where_the_kernel_expects_them(kernel, stream):
    out = Array((1000,), np.float32, get_gpu(), stream)
    last = Array((1,), np.int32, get_gpu(), stream)
    call = Call(kernel(FILL), Launch((8, 1, 1), (128, 1, 1)))

    call(stream, Fill(1000, out.pointer, 0.5, 1 << 40, last.pointer))

    expected = np.float32(0.5) * (np.arange(1000) + (1 << 40)).astype(np.float32)
    np.testing.assert_array_equal(read(out), expected)
    assert read(last).tolist() == [1000]


@pytest.mark.gpu
def test_values_that_are_always_the_same_are_given_once(kernel, stream):
    out = Array((1000,), np.float32, get_gpu(), stream)
    last = Array((1,), np.int32, get_gpu(), stream)
    alike = FillAlike(0.5, 1 << 40, last.pointer)
    call = Call(kernel(FILL_OFTEN), Launch((8, 1, 1), (128, 1, 1)), alike)

    for first, count in ((0, 600), (600, 400)):
        call(stream, FillOften(count, out.pointer + 4 * first))

    expected = np.float32(0.5) * (np.arange(600) + (1 << 40)).astype(np.float32)
    np.testing.assert_array_equal(read(out), np.concatenate([expected, expected[:400]]))
    assert read(last).tolist() == [400]


@pytest.mark.gpu
def test_a_kernel_that_overlaps_waits_for_what_it_reads(kernel, stream):
    at, to = (Array((1,), np.int32, get_gpu(), stream) for _ in range(2))
    one = ((1, 1, 1), (1, 1, 1))
    first = Call(kernel(SLOWLY), Launch(*one))
    second = Call(kernel(COPY_AFTER), Launch(*one, overlaps=True))

    first(stream, Slowly(at.pointer, 41))
    first(stream, Slowly(at.pointer, 42))
    second(stream, Copy(at.pointer, to.pointer))

    assert read(to).tolist() == [42]


@pytest.mark.gpu
def test_who_reads_a_result_on_another_stream_comes_after_who_writes_it(kernel, stream):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    at = Array((1,), np.int32, get_gpu(), stream)
    write = Call(kernel(SLOWLY), Launch((1, 1, 1), (1, 1, 1)))
    write(stream, Slowly(at.pointer, 41))

    write(stream, Slowly(at.pointer, 42))

    assert torch.from_dlpack(at).clone().tolist() == [42]


@pytest.mark.gpu
def test_what_is_prepared_while_gathering_can_be_launched_and_does_nothing(variant, stream):
    gpu = get_gpu()
    out = Array((1000,), np.float32, gpu, stream)
    last = Array((1,), np.int32, gpu, stream)
    clusters = (4, 1, 1) if gpu.arch not in BEFORE_HOPPER else (1, 1, 1)
    wide = Launch((8, 1, 1), (1024, 1, 1), gpu.shared_bytes, cluster=clusters, overlaps=True)

    def fill(launch, slope):
        kernel = load(compile_variant(variant, gpu.arch), gpu, FILL)
        assert blocks_at_once(kernel, launch) >= gpu.sm_count
        Call(kernel, launch)(stream, Fill(1000, out.pointer, slope, 0, last.pointer))

    fill(Launch((8, 1, 1), (128, 1, 1)), 1.0)
    with recording_kernels() as wanted:
        fill(wide, 2.0)

    assert read(out).tolist() == list(range(1000))
    assert {each.variant for each in wanted} == {variant}


@pytest.mark.gpu
@pytest.mark.parametrize("blocks", [4, 16])
def test_blocks_form_clusters(kernel, stream, blocks):
    if get_gpu().arch not in ("sm_90a", "sm_100a"):
        pytest.skip("clusters of 16 blocks are of data center GPUs from Hopper on")
    out = Array((16,), np.int32, get_gpu(), stream)

    launch = Launch((16, 1, 1), (32, 1, 1), cluster=(blocks, 1, 1))
    Call(kernel(SIZE_OF_CLUSTER), launch)(stream, Out(out.pointer))

    assert read(out).tolist() == [blocks] * 16


@pytest.mark.gpu
def test_of_larger_clusters_fewer_run_at_once(kernel):
    if get_gpu().arch in BEFORE_HOPPER:
        pytest.skip("clusters came with Hopper")
    threads, size = (1024, 1, 1), kernel(SIZE_OF_CLUSTER)

    at_once = [
        clusters_at_once(size, Launch((n, 1, 1), threads, cluster=(n, 1, 1))) for n in (2, 4, 8)
    ]

    assert at_once == sorted(at_once, reverse=True)
    assert 1 <= at_once[-1] <= 2 * get_gpu().sm_count // 8


@pytest.mark.gpu
def test_of_larger_blocks_fewer_run_at_once(kernel):
    gpu, mark = get_gpu(), kernel(MARK_SHARED)

    at_once = [
        blocks_at_once(mark, Launch((1, 1, 1), (threads, 1, 1), shared_bytes=shared))
        for threads, shared in ((32, 0), (1024, 0), (1024, gpu.shared_bytes))
    ]

    assert at_once[0] > at_once[1] >= at_once[2] == gpu.sm_count


@pytest.mark.gpu
def test_blocks_get_as_much_shared_memory_as_the_gpu_has(kernel, stream):
    gpu = get_gpu()
    out = Array((1,), np.int32, gpu, stream)
    launch = Launch((1, 1, 1), (32, 1, 1), shared_bytes=gpu.shared_bytes)

    Call(kernel(MARK_SHARED), launch)(stream, Mark(out.pointer, gpu.shared_bytes))

    assert read(out).tolist() == [7]


@pytest.mark.gpu
def test_a_launch_with_less_shared_memory_leaves_the_others_theirs(kernel, stream):
    gpu = get_gpu()
    out = Array((1,), np.int32, gpu, stream)
    most, some = (
        Call(kernel(MARK_SHARED), Launch((1, 1, 1), (32, 1, 1), shared_bytes=size))
        for size in (gpu.shared_bytes, 50_000)
    )

    some(stream, Mark(out.pointer, 50_000))
    most(stream, Mark(out.pointer, gpu.shared_bytes))

    assert read(out).tolist() == [7]


@pytest.mark.gpu
def test_more_shared_memory_than_there_is_is_refused_in_the_drivers_words(kernel):
    launch = Launch((1, 1, 1), (32, 1, 1), shared_bytes=1 << 20)

    with pytest.raises(DriverError, match="invalid argument"):
        Call(kernel(MARK_SHARED), launch)


@pytest.mark.gpu
def test_launches_are_captured_and_replayed(kernel, stream):
    out = Array((10,), np.float32, get_gpu(), stream)
    last = Array((1,), np.int32, get_gpu(), stream)
    call = Call(kernel(FILL), Launch((1, 1, 1), (32, 1, 1)))

    def launch(at, number):
        call(at, Fill(10, out.pointer, 1.0, number, last.pointer))

    with captured(stream, launch, launches=3) as replay:
        replay()

    np.testing.assert_array_equal(read(out), np.arange(2, 12, dtype=np.float32))


@pytest.mark.gpu
def test_several_kernels_started_often_become_a_graph_that_reads_each_starts_arguments(kernel):
    gpu, names = get_gpu(), ("at", "value", "to", "out")
    block = (32, 1, 1)
    clusters = Launch((16, 1, 1), block, cluster=(1 if gpu.arch in BEFORE_HOPPER else 4, 1, 1))
    launches = Launches(
        [
            (Call(kernel(SLOWLY), Launch((1, 1, 1), block)), {}),
            (Call(kernel(COPY_AFTER), Launch((1, 1, 1), block, overlaps=True)), {"source": "at"}),
            (Call(kernel(SIZE_OF_CLUSTER), clusters), {}),
        ],
        names,
    )
    with gpu.current(), new_stream() as one, new_stream() as two:
        written, out = Array((1,), np.int32, gpu, one), Array((16,), np.int32, gpu, one)
        copies = Array((60,), np.int32, gpu, one)
        for number in range(60):
            place = copies.pointer + 4 * number
            stream = two if 20 <= number < 40 else one
            launches.start(stream, (written.pointer, number, place, out.pointer))
            if number in (19, 39):  # streams do not wait for each other
                read(copies)

        assert read(copies).tolist() == list(range(60))
        if gpu.arch not in BEFORE_HOPPER:
            assert read(out).tolist() == [4] * 16
        assert launches._graphs.keys() == {one, two}
        del written, out, copies  # memory is given back on a stream that exists


@pytest.mark.gpu
def test_a_stream_that_is_captured_takes_the_kernels_of_a_graph_one_by_one(kernel, stream):
    gpu, launch = get_gpu(), Launch((1, 1, 1), (32, 1, 1))
    calls = Call(kernel(SLOWLY), launch), Call(kernel(COPY_AFTER), launch)
    launches = Launches([(calls[0], {}), (calls[1], {"source": "at"})], ("at", "value", "to"))
    at, to = Array((1,), np.int32, gpu, stream), Array((3,), np.int32, gpu, stream)
    for _ in range(20):
        launches.start(stream, (at.pointer, 1, to.pointer))

    def start(captured_stream, number):
        launches.start(captured_stream, (at.pointer, 7 + number, to.pointer + 4 * number))

    with captured(stream, start, launches=3) as replay:
        replay()

    assert read(to).tolist() == [7, 8, 9]
