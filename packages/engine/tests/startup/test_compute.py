from dataclasses import fields

import numpy as np
import pytest
from machines import BARE, KERNELS_ALONE, ON_TURING, WITH_GPU, WITH_KERNELS, WITH_TORCH
from spaninfer_engine.backends.cuda.backend import refuse_varying
from spaninfer_engine.config import EngineConfig
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.load.tensors.dtype import checkpoint_dtype
from spaninfer_engine.ops.bound import Result
from spaninfer_engine.startup.compute import decide_compute


def asked(**options):
    return EngineConfig(model="m", **options)


@pytest.mark.parametrize(
    ("machine", "options", "expected"),
    [
        (BARE, {}, ("cpu", "cpu", "float32")),
        (WITH_TORCH, {}, ("cpu", "cpu", "float32")),
        (WITH_TORCH, {"dtype": "float16"}, ("torch", "cpu", "float16")),
        (WITH_TORCH, {"backend": "torch"}, ("torch", "cpu", "bfloat16")),
        (WITH_GPU, {}, ("torch", "cuda", "bfloat16")),
        (WITH_GPU, {"device": "cuda:1"}, ("torch", "cuda:1", "bfloat16")),
        (WITH_GPU, {"device": "cpu"}, ("cpu", "cpu", "float32")),
        (WITH_GPU, {"device": "GPU"}, ("torch", "cuda", "bfloat16")),
        (WITH_KERNELS, {"device": "gpu:1"}, ("cuda", "cuda:1", "bfloat16")),
        (WITH_TORCH, {"device": "CPU"}, ("cpu", "cpu", "float32")),
        (WITH_GPU, {"backend": "cpu"}, ("cpu", "cpu", "float32")),
        (BARE, {"backend": "reference"}, ("reference", "cpu", "float32")),
        (WITH_KERNELS, {}, ("cuda", "cuda", "bfloat16")),
        (WITH_KERNELS, {"device": "cuda:1"}, ("cuda", "cuda:1", "bfloat16")),
        (WITH_KERNELS, {"dtype": "float16"}, ("cuda", "cuda", "float16")),
        (WITH_KERNELS, {"dtype": "float32"}, ("torch", "cuda", "float32")),
        (WITH_KERNELS, {"span_len": 48}, ("torch", "cuda", "bfloat16")),
        (WITH_KERNELS, {"device": "cpu"}, ("cpu", "cpu", "float32")),
        (WITH_KERNELS, {"backend": "torch"}, ("torch", "cuda", "bfloat16")),
        (ON_TURING, {}, ("torch", "cuda", "bfloat16")),
        (ON_TURING, {"dtype": "float16"}, ("cuda", "cuda", "float16")),
        (ON_TURING, {"backend": "cuda"}, ("cuda", "cuda", "float16")),
        (KERNELS_ALONE, {}, ("cpu", "cpu", "float32")),
    ],
)
def test_what_computes_follows_from_what_was_asked_and_what_is_there(machine, options, expected):
    compute = decide_compute(asked(**options), "bfloat16", machine)

    assert (compute.backend.name, compute.device, compute.dtype) == expected
    assert all(decision.why for decision in compute.decisions)


@pytest.mark.parametrize(
    ("machine", "options", "way_out"),
    [
        (BARE, {"backend": "torch"}, "nox -s install -- torch"),
        (BARE, {"dtype": "float16"}, "or use float32"),
        (
            BARE,
            {"quantize": "int7"},
            "allowed are bfloat16, fp8, w8a8, w4afp8, w8a16, w7a7, w13a13, int8, int6, int5, int4, "
            "iq4_nl, int3.5, int3, int2",
        ),
        (BARE, {"quantize": "int3_5"}, r"did you mean 'int3\.5'\?"),
        (BARE, {"quantize": "3.5"}, r"did you mean 'int3\.5'\?"),
        (BARE, {"quantize": "int35"}, r"did you mean 'int3\.5'\?"),
        (BARE, {"quantize": "w4a8"}, r"did you mean 'w4afp8'\?"),
        (BARE, {"backend": "refernce"}, "did you mean 'reference'"),
        (BARE, {"quantize_group": 32}, "quantize_group only applies to"),
        (
            BARE,
            {"quantize": "bfloat16", "quantize_group": 32},
            "quantize_group only applies to",
        ),
        (BARE, {"quantize": "int8", "quantize_group": 48}, "allowed are 32, 64, 128, row"),
        (BARE, {"quantize": "w13a13", "quantize_group": "row"}, "choose 32, 64 or 128, or leave"),
        (
            WITH_KERNELS,
            {"quantize": "w4afp8", "quantize_group": "row"},
            "'row' for w4afp8, .* 14 bits of FP8's tensor cores; choose 32, 64 or 128, or leave",
        ),
        (BARE, {"quantize": "w4afp8"}, r"quantize w4afp8 requires --backend cuda \(got cpu\)"),
        (
            WITH_TORCH,
            {"quantize": "w4afp8", "backend": "torch"},
            r"requires --backend cuda \(got torch",
        ),
        (
            BARE,
            {"quantize": "w4afp8", "backend": "reference"},
            r"requires --backend cuda \(got reference",
        ),
        (WITH_TORCH, {"quantize": "fp8", "backend": "torch"}, r"requires --backend cuda \(got t"),
        (
            WITH_KERNELS,
            {"quantize": "w8a16", "backend": "cuda"},
            r"requires --backend cpu \(got cuda",
        ),
        (BARE, {"device": "cuda"}, "omit --device to auto-select"),
        (WITH_TORCH, {"device": "cuda"}, "no CUDA device can be used"),
        (WITH_GPU, {"device": "cuda", "backend": "cpu"}, "device cuda needs --backend cuda or"),
        (BARE, {"backend": "cuda"}, "nox -s install -- cuda"),
        (WITH_GPU, {"backend": "cuda"}, "nox -s install -- cuda"),
        (KERNELS_ALONE, {"backend": "cuda"}, "no CUDA device can be used"),
        (WITH_KERNELS, {"backend": "cuda", "device": "cpu"}, "computes on a GPU"),
        (WITH_KERNELS, {"backend": "cuda", "dtype": "float32"}, "choose --backend torch"),
        (WITH_KERNELS, {"backend": "cuda", "span_len": 48}, "powers of two from 16"),
        (ON_TURING, {"backend": "cuda", "dtype": "bfloat16"}, "needs compute capability 8.0"),
        (WITH_TORCH, {"backend": "cpu", "dtype": "float16"}, "choose --backend torch"),
        (BARE, {"batch_invariant": True}, r"batch_invariant requires --backend cuda \(got cpu\)"),
        (BARE, {"keep_head": True}, "keep_head only applies to quantize; add --quantize"),
        (
            BARE,
            {"quantize": "int4", "keep_head": True},
            r"keep_head requires --backend cuda \(got cpu\)",
        ),
        (BARE, {"graphs": True}, r"graphs requires --backend cuda \(got cpu\)"),
        (BARE, {"backend": "reference", "tune": True}, r"tune requires --backend cpu \(got ref"),
        (WITH_GPU, {"batch_invariant": True}, "batch_invariant requires --backend cuda"),
        (BARE, {"backend": "onnx"}, "allowed are cuda, cpu, torch, reference"),
        (BARE, {"dtype": "int8"}, "allowed are float32, bfloat16, float16"),
        (BARE, {"max_running": 0}, "max_running is 0; allowed is a whole number, 1 or more"),
        (BARE, {"memory": "lots"}, "'lots' is not a size; write for example 512MiB, 8GiB"),
        (BARE, {"memory": "0GiB"}, "memory is 0; allowed is a whole number, 1 or more"),
        (BARE, {"memory": 1.5}, "memory is 1.5; allowed is a whole number"),
        (BARE, {"device": "my gpu"}, "device is 'my gpu'; allowed are cpu, cuda"),
        (BARE, {"device": "gpu"}, "device cuda needs torch"),
        (WITH_TORCH, {"device": "gpu"}, "device cuda was requested, but no CUDA device"),
        *(
            (
                BARE,
                {"seed": seed},
                "seed is .*; allowed is a whole number from 0 to 184467440737095",
            )
            for seed in ("x", -1, 2**64, 1.5, True, None)
        ),
        *(
            (BARE, {each.name: "no"}, f"{each.name} is 'no'; allowed is True or False")
            for each in fields(EngineConfig)
            if each.type in ("bool", "bool | None")
        ),
        (BARE, {"prefix_cache": None}, "prefix_cache is None; allowed is True or False$"),
        (BARE, {"max_running": True}, "max_running is True; allowed is a whole number, 1 or more"),
        (BARE, {"memory": True}, "memory is True; allowed is a whole number, 1 or more"),
        (BARE, {"backend": "CPU"}, "allowed are cuda, cpu, torch, reference; did you mean 'cpu'"),
        (BARE, {"dtype": "BFloat16"}, "did you mean 'bfloat16'"),
        (BARE, {"device": 5}, "device is 5; allowed are cpu, cuda"),
        (BARE, {"device": "cud4"}, "allowed are cpu, cuda .*; did you mean 'cuda'"),
        (BARE, {"served_name": 5}, "served_name is 5; allowed is a string"),
        (BARE, {"step_timeout_s": "1h"}, "step_timeout is '1h' seconds; allowed is a number above"),
        (BARE, {"step_timeout_s": float("nan")}, "step_timeout is nan seconds; allowed is a num"),
        (BARE, {"max_len": 12.0}, "max_len is 12.0; allowed is a whole number"),
        (BARE, {"span_len": 4096}, "span_len is 4096; allowed is 1 to 1024"),
    ],
)
def test_what_does_not_go_together_is_refused_with_a_way_out(machine, options, way_out):
    with pytest.raises(ConfigError, match=way_out):
        decide_compute(asked(**options), "float32", machine)


def test_a_boolean_of_numpy_is_one_of_python_s():
    assert asked(graphs=np.False_, prefix_cache=np.True_) == asked(graphs=False, prefix_cache=True)
    assert asked(graphs=np.False_).graphs is False
    assert decide_compute(asked(seed=2**64 - 1, graphs=None), "float32", BARE)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"quantize": "bfloat16"}, "requested: rounded from what is stored"),
        ({"quantize": "int8"}, "requested: one scale per group of 32 channels"),
        ({"quantize": "int4"}, "requested: one scale per group of 32 channels"),
        ({"quantize": "int8", "quantize_group": "row"}, "requested: one scale per row"),
        ({"quantize": "int4", "quantize_group": "64"}, "requested: one scale per group of 64 cha"),
        ({"quantize": "int4", "quantize_group": 64}, "requested: one scale per group of 64 chan"),
    ],
)
def test_the_start_says_what_weights_become(options, why):
    decisions = decide_compute(asked(**options), "float32", BARE).decisions

    (weights,) = (decision for decision in decisions if decision.what == "weights")
    assert weights.value == options["quantize"]
    assert weights.why.startswith(why)


def test_the_start_says_that_the_head_is_kept():
    def why(**options):
        options = {"backend": "cuda", "quantize": "fp8", **options}
        decisions = decide_compute(asked(**options), "bfloat16", WITH_KERNELS).decisions
        return next(decision.why for decision in decisions if decision.what == "weights")

    assert why(keep_head=True) == "requested: rounded from what is stored, the head in 16 bits"
    assert "head" not in why()


def test_the_start_says_that_answers_depend_on_their_request_alone():
    def what(**options):
        compute = decide_compute(asked(**options), "bfloat16", WITH_KERNELS)
        return [decision.what for decision in compute.decisions]

    assert "batch invariant" in what(batch_invariant=True)
    assert "batch invariant" not in what()


def test_programs_with_steps_that_mix_rows_are_refused_where_no_bit_may_change():
    refuse_varying(["project_rotate_append", "span_attention", "routed_experts", "linear"])

    with pytest.raises(
        ConfigError, match="for this model: it needs head_linear, plain_attention, whose kernels"
    ):
        refuse_varying(["linear", "plain_attention", "head_linear"])


def test_a_dtype_that_torch_does_not_compute_in_becomes_float32():
    compute = decide_compute(asked(backend="torch"), "float8_e4m3fn", WITH_TORCH)

    assert compute.dtype == "float32"


def test_weights_in_float32_are_rounded_where_the_cuda_backend_is_asked_for():
    asked_for = decide_compute(asked(backend="cuda"), "float32", WITH_KERNELS)
    unasked = decide_compute(asked(), "float32", WITH_KERNELS)

    assert (asked_for.backend.name, asked_for.dtype) == ("cuda", "bfloat16")
    assert (unasked.backend.name, unasked.dtype) == ("torch", "float32")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "torch.float16"}, "float16"),
        ({"text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({"dtype": 16, "text_config": ["bfloat16"]}, "float32"),
        ({}, "float32"),
    ],
)
def test_the_dtype_of_a_config_has_two_spellings(config, expected):
    assert checkpoint_dtype(config) == expected


@pytest.mark.parametrize(
    ("machine", "options", "expected"),
    [
        (BARE, {}, "cpu"),
        (WITH_KERNELS, {}, "cuda"),
        (WITH_KERNELS, {"dtype": "float16"}, "cuda"),
        (WITH_KERNELS, {"dtype": "float32"}, "torch"),
        (WITH_KERNELS, {"quantize": "int4"}, "torch"),
        (WITH_KERNELS, {"device": "cpu"}, "cpu"),
    ],
)
def test_encoders_are_computed_where_decoders_are(machine, options, expected):
    compute = decide_compute(asked(**options), "bfloat16", machine, result=Result.VECTORS)

    assert compute.backend.name == expected


def test_an_encoder_in_codes_on_backend_cuda_is_refused_with_the_backends_that_have_it():
    with pytest.raises(ConfigError, match=r"an encoder in quantize int8 requires --backend cpu"):
        decide_compute(
            asked(backend="cuda", quantize="int8"), "bfloat16", WITH_KERNELS, result=Result.VECTORS
        )


@pytest.mark.parametrize("quantize", ["fp8", "w4afp8"])
def test_an_encoder_in_codes_that_no_backend_has_is_refused(quantize):
    with pytest.raises(ConfigError, match=f"an encoder in quantize {quantize} is supported by no"):
        decide_compute(asked(quantize=quantize), "bfloat16", WITH_KERNELS, result=Result.VECTORS)


@pytest.mark.parametrize(
    ("machine", "backend", "quantize", "held"),
    [
        (BARE, "cpu", "int3.5", ""),
        (BARE, "cpu", "w8a16", ""),
        (BARE, "cpu", "w7a7", ""),
        (BARE, "cpu", "w13a13", ""),
        (BARE, "reference", "int3.5", "; held in 32 bits"),
        (WITH_TORCH, "torch", "int6", "; held in 16 bits"),
        (WITH_KERNELS, "cuda", "int3.5", "; held in 4 bits"),
        (WITH_KERNELS, "cuda", "int5", "; held in 8 bits"),
        (WITH_KERNELS, "cuda", "int4", ""),
        (WITH_KERNELS, "cuda", "w4afp8", ""),
        (BARE, "cpu", "iq4_nl", ""),
        (WITH_KERNELS, "cuda", "iq4_nl", "; held in 8 bits"),
    ],
)
def test_the_plan_says_where_rounded_weights_take_more_bits_than_they_have(
    machine, backend, quantize, held
):
    compute = decide_compute(asked(backend=backend, quantize=quantize), "bfloat16", machine)

    (weights,) = [each for each in compute.decisions if each.what == "weights"]
    assert weights.value == quantize
    group = {"w13a13": 64, "w4afp8": 128}.get(quantize, 32)
    assert weights.why == f"requested: one scale per group of {group} channels" + held
