"""The list of timed launches: built without a GPU, run on one."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("span_attention")
pytest.importorskip("spaninfer_kernels_cuda")

from spaninfer.bench.kernels.case import Case, Ceilings, num_sets, timed
from spaninfer.bench.kernels.ceiling import VARIANTS, measure_ceilings
from spaninfer.bench.kernels.run import KERNELS
from spaninfer.bench.targets import read_bars
from spaninfer_kernel_launch import compile_variant, get_gpu

OURS = Path(__file__).parents[5] / "benchmarks" / "targets.toml"
CASES = [case for cases in KERNELS.values() for case in cases()]


def test_no_two_cases_are_about_the_same():
    about = {(case.kernel, *case.sizes.items()) for case in CASES}

    assert len(about) == len(CASES)
    assert {case.kernel for case in CASES} == KERNELS.keys()


def test_every_bar_of_the_repository_is_for_one_case():
    if not OURS.is_file():
        pytest.skip("the package is tested outside of the repository")
    bars = [bar.of for bar in read_bars(OURS) if bar.of["benchmark"] == "kernel"]

    assert bars
    for bar in bars:
        wanted = {name: bar[name] for name in bar if name not in ("benchmark", "device")}
        fitting = [
            case
            for case in CASES
            if wanted.items() <= {"kernel": case.kernel, **case.sizes}.items()
        ]
        assert len(fitting) == 1, bar


@pytest.mark.parametrize(
    ("kernel", "sizes", "num_bytes", "flops"),
    [
        # 16 requests of 4096 tokens, 8 heads, 128 keys and 128 values of 2 bytes
        ("decode", {"lengths": "16 x 4096", "kv": "bfloat16"}, 16 * 4096 * 8 * 256 * 2, 0),
        # codes of a byte, and a scale of 4 bytes for keys and one for values
        (
            "decode",
            {"lengths": "64 x 4096", "heads": "28/4", "kv": "fp8"},
            64 * 4096 * 4 * (256 + 8),
            0,
        ),
        ("topk", {"rows": 128, "k": 50}, 128 * 151_936 * 4, 0),
        ("norm", {"rows": 64}, 64 * 3584 * 8, 0),
        # all experts have rows: 128 * 1536 * 2048 weights, 512 tokens, 8 results of each
        (
            "grouped_gemm",
            {"model": "qwen3-30b-a3b", "product": "gate and up", "tokens": 512},
            2 * (128 * 1536 * 2048 + 512 * 2048 + 512 * 8 * 768),
            0,
        ),
        (
            "grouped_gemm",
            {"model": "mixtral-8x7b", "product": "down", "tokens": 4096},
            2 * (8 * 4096 * 14_336 + 8192 * 14_336 + 8192 * 4096),
            2 * 8192 * 4096 * 14_336,
        ),
        # causal: half of the square, and its diagonal; products with keys and with values
        (
            "prefill",
            {"rows": "16384"},
            (32 * 2 + 8 * 2) * 16_384 * 128 * 2,
            4 * 32 * 128 * (16_384 * 16_385 // 2),
        ),
    ],
)
def test_bytes_and_operations_are_those_that_no_kernel_can_do_without(
    kernel, sizes, num_bytes, flops
):
    [case] = [
        case for case in CASES if case.kernel == kernel and sizes.items() <= case.sizes.items()
    ]

    assert (case.num_bytes, case.flops) == (num_bytes, flops)


def test_inputs_that_the_cache_could_hold_are_taken_in_turn():
    assert num_sets(64 << 20, l2_bytes=50 << 20) == 4
    assert num_sets(1, l2_bytes=50 << 20) == 20  # as many as there are launches
    assert num_sets(8 << 30, l2_bytes=50 << 20) == 1


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120"])
def test_the_kernels_of_the_ceilings_compile_without_spilling(variant, arch):
    assert compile_variant(variant, arch).report.spill_bytes == 0


@pytest.mark.gpu
def test_copies_are_slower_than_reads_and_both_are_possible():
    ceilings = measure_ceilings(get_gpu())

    assert ceilings.copy_gbps > 10
    assert 10 < ceilings.read_gbps < 10_000
    assert 1 < ceilings.tflops < 5_000


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_case_of_every_kernel_gives_a_record(kernel):
    smallest: Case = min(KERNELS[kernel](), key=lambda case: case.num_bytes)

    fields = timed(smallest, get_gpu(), Ceilings(read_gbps=4300, copy_gbps=4200, tflops=700))

    assert fields["kernel"] == kernel
    assert 0 < fields["least"] <= fields["median"] <= fields["most"]
    assert fields["of_ceiling"] > 0
