import os
from dataclasses import replace

import pytest
from machines import BARE, WITH_GPU, WITH_KERNELS
from spaninfer_engine.backends.registry import CPU, CUDA
from spaninfer_engine.cache.memory_plan import Needs
from spaninfer_engine.config import EngineConfig
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.load.gguf.blocks import BLOCK_TYPES
from spaninfer_engine.spec.nodes import CacheGroup, Decoder, Embedding, Head
from spaninfer_engine.spec.pooled import as_encoder
from spaninfer_engine.spec.pooling_nodes import HeadLayer, LogitScore, Pool
from spaninfer_engine.spec.weight_nodes import Linear, Weight
from spaninfer_engine.startup.compute import Compute, decide_compute
from spaninfer_engine.startup.limits import (
    Memory,
    decide_budget,
    decide_demand,
    has_graphs,
    resolve,
    served_name,
)
from spaninfer_engine.startup.weight_memory import (
    StoredWeights,
    estimated_weight_bytes,
    refuse_oversized,
)

GIB = 1 << 30


def asked(**options):
    return EngineConfig(model="m", **options)


def decoder(max_len=1024):
    """A model whose tokens take 2 layers x 1 head x (8 + 8) channels."""
    table = Weight("embedding", (50, 8))
    return Decoder(
        "m", 50, 8, max_len, Embedding(table), (), None, Head(Linear(table), tied=True),
        (CacheGroup(0, (0, 1), 1, 8, 8),),
    )  # fmt: skip


def decided(config=None, memory=GIB, **model):
    config = config or asked()
    compute = decide_compute(config, "float32", BARE)
    return resolve(config, "name", decoder(**model), compute, Memory(memory, "for the test"))


def test_keys_and_values_may_be_codes():
    compute = decide_compute(asked(kv_dtype="uint4"), "bfloat16", WITH_KERNELS)
    config = asked(kv_dtype="uint4", max_running=1000)
    codes = resolve(config, "name", decoder(), compute, Memory(GIB // 64, "for the test"))
    plain = resolve(
        asked(max_running=1000), "name", decoder(), compute, Memory(GIB // 64, "for the test")
    )

    assert (codes.kv_dtype, plain.kv_dtype) == ("uint4", "bfloat16")
    assert codes.num_spans[0] == pytest.approx(plain.num_spans[0] * 32 / 24, rel=0.01)


@pytest.mark.parametrize(
    ("backend", "kv_dtype"),
    [("cuda", "bfloat16"), ("cpu", "fp8"), ("torch", "int8"), ("reference", "float32")],
)
def test_what_a_backend_does_not_keep_keys_and_values_in_is_refused(backend, kv_dtype):
    with pytest.raises(ConfigError, match=f"{backend} does not store its KV cache in {kv_dtype}"):
        decide_compute(asked(backend=backend, kv_dtype=kv_dtype), "float32", WITH_KERNELS)


def test_on_the_cpu_keys_and_values_are_kept_in_what_is_computed_in_unless_asked_otherwise():
    kept = [
        decided(asked(backend="cpu", **options)).kv_dtype
        for options in ({}, {"dtype": "bfloat16"}, {"dtype": "bfloat16", "kv_dtype": "uint4"})
    ]

    assert kept == ["float32", "bfloat16", "uint4"]


def test_the_host_gives_a_share_of_its_memory_up_to_a_limit():
    compute = decide_compute(asked(), "float32", BARE)

    assert decide_budget(asked(), compute, 2 * GIB, 0.5, Needs()).budget == GIB
    assert decide_budget(asked(), compute, 100 * GIB, 0.5, Needs()).budget == 4 * GIB
    assert decide_budget(asked(memory=9 * GIB), compute, GIB, 0.5, Needs()).budget == 9 * GIB
    assert decide_budget(asked(memory="9GiB"), compute, GIB, 0.5, Needs()).budget == 9 * GIB


@pytest.mark.parametrize("window", [None, 100])
def test_the_table_says_how_many_of_the_longest_requests_fit_at_once(window):
    # A token of a layer takes 64 bytes, a span of 32 two kB: 32 of them for 1024 tokens, and behind
    # the window 21, for what a step of 512 tokens sees.
    layers = (CacheGroup(0, (0,), 1, 8, 8), CacheGroup(1, (1,), 1, 8, 8, window=window))
    compute = decide_compute(asked(), "float32", BARE)
    needed = (32 + (32 if window is None else 21)) * 2048

    memory = Memory(3 * needed, "for the test")
    resolved = resolve(asked(), "m", replace(decoder(), groups=layers), compute, memory)

    rows = {row.what: row.why for row in resolved.decisions}
    assert rows["spans"] == "of 32 tokens; 3.0 requests of full length at once"


def test_a_gpu_gives_its_share_without_a_limit():
    compute = decide_compute(asked(), "float32", WITH_GPU)

    assert decide_budget(asked(), compute, 100 * GIB, 0.9, Needs()).budget == 90 * GIB


def test_what_steps_and_graphs_need_is_not_for_spans():
    compute = decide_compute(asked(), "float32", WITH_GPU)
    needs = Needs(weights=14 * GIB, steps=2 * GIB, graphs=GIB)

    memory = decide_budget(asked(), compute, 103 * GIB, 0.9, needs)

    assert memory.budget == 90 * GIB
    assert memory.why.endswith("beside weights 14.0 GiB, steps 2.0 GiB, graphs 1.0 GiB")


@pytest.mark.parametrize(
    ("options", "available", "message"),
    [
        ({}, 3 * GIB, "needs some, and 0.0 GiB of the device's memory are left beside "
                      "weights 14.0 GiB, steps 2.0 GiB, graphs 1.0 GiB; lower --memory"),
        ({"memory": 5 * GIB}, 7 * GIB, "--memory is 5.0 GiB, and 4.0 GiB of the device's memory"),
    ],
)  # fmt: skip
def test_a_device_that_is_too_small_is_refused_with_the_numbers(options, available, message):
    compute = decide_compute(asked(), "float32", WITH_GPU)
    needs = Needs(weights=14 * GIB, steps=2 * GIB, graphs=GIB)

    with pytest.raises(ConfigError, match=message):
        decide_budget(asked(**options), compute, available, 0.9, needs)


def test_graphs_are_the_cuda_backends_own():
    on_gpu = Compute(CUDA, "cuda", "bfloat16", ())
    on_cpu = Compute(CPU, "cpu", "float32", ())

    assert has_graphs(asked(), on_gpu)
    assert not has_graphs(asked(graphs=False), on_gpu)
    assert not has_graphs(asked(), on_cpu)


def test_a_step_on_a_gpu_is_long_unless_it_is_told_otherwise():
    on_gpu = Compute(CUDA, "cuda", "bfloat16", ())

    assert decide_demand(asked(), on_gpu, decoder()).step_tokens == CUDA.tuning.step_tokens
    assert decide_demand(asked(step_tokens=7), on_gpu, decoder()).step_tokens == 7


def test_steps_of_an_encoder_on_a_gpu_take_many_texts_and_tokens():
    encoder = as_encoder(decoder(), Pool(("mean",), normalise=False))
    on_cpu, on_gpu = (Compute(backend, "cuda", "float16", ()) for backend in (CPU, CUDA))

    demand = decide_demand(asked(), on_gpu, encoder)

    tuning = CUDA.tuning
    assert (demand.step_tokens, demand.max_running) == (tuning.text_tokens, tuning.texts)
    assert decide_demand(asked(max_running=5000), on_gpu, encoder).max_running == 5000
    assert decide_demand(asked(step_tokens=9), on_gpu, encoder).step_tokens == 9
    assert decide_demand(asked(), on_cpu, encoder).max_running == asked().max_running


def test_spans_are_for_as_many_whole_requests_as_may_run_if_memory_allows():
    resolved = decided(asked(max_running=10, span_len=16))

    assert resolved.num_spans == (10 * 1024 // 16,)
    assert resolved.max_len == 1024


def test_a_context_that_does_not_fit_is_shortened_unasked_and_refused_when_asked():
    bytes_per_token = 2 * 16 * 4
    resolved = decided(asked(span_len=16), memory=100 * bytes_per_token)

    assert resolved.max_len == 96  # six whole spans
    assert any("what fits" in decision.why for decision in resolved.decisions)
    with pytest.raises(ConfigError, match=r"raise memory, or lower max_len$"):
        decided(asked(span_len=16, max_len=1024), memory=100 * bytes_per_token)


def test_a_context_beyond_the_model_is_refused():
    with pytest.raises(ConfigError, match="made for 1024 positions"):
        decided(asked(max_len=2000))


def test_a_step_holds_a_token_of_every_running_request():
    assert decided(asked(max_running=2000)).step_tokens == 2000
    assert decided(asked(max_running=4, step_tokens=64)).step_tokens == 64


def test_clients_find_the_model_under_the_name_asked_for():
    assert served_name(asked(), "folder") == "folder"
    assert served_name(asked(served_name="mine"), "folder") == "mine"


def test_a_name_is_one_that_json_can_write():
    """Names of files are bytes: those that are no UTF-8 come as halves of surrogates."""
    latin = os.fsdecode(b"mod\xe8le\n")

    assert served_name(asked(), latin) == "mod\ufffdle\ufffd"
    with pytest.raises(ConfigError, match="cannot be printed"):
        served_name(asked(served_name=latin), "folder")


def test_a_model_beyond_the_memory_is_refused_before_it_takes_any():
    table = Weight("embedding", (2**31 - 1, 64))
    huge = replace(decoder(), vocab=2**31 - 1, embedding=Embedding(table))
    compute = decide_compute(asked(), "float32", BARE)

    with pytest.raises(ConfigError) as refused:
        refuse_oversized(asked(), compute, huge, 16 * GIB, StoredWeights())

    told = str(refused.value)
    assert "137,438,953,408 parameters take 1,024.0 GiB and a step 2,048.0 GiB at least" in told
    assert "16.0 GiB of memory are free" in told
    assert "embedding [2147483647, 64]" in told


def test_of_a_rerankers_head_two_rows_take_memory():
    table, head = (Weight(name, (1000, 1 << 20)) for name in ("embedding", "head"))
    encoder = as_encoder(replace(decoder(), embedding=Embedding(table)), Pool(("last",), False))
    reranker = replace(encoder, head=(LogitScore(Linear(head), 1, 2),))
    classifier = replace(encoder, head=(HeadLayer(Linear(head)),))
    compute = decide_compute(asked(), "float32", BARE)

    refuse_oversized(asked(), compute, reranker, 2**20, StoredWeights())
    with pytest.raises(ConfigError, match=r"parameters take 3\.9 GiB"):
        refuse_oversized(asked(), compute, classifier, 2**20, StoredWeights())


def test_weights_take_what_they_are_stored_or_quantised_in_and_nothing_where_they_are_mapped():
    table = Weight("embedding", (1000, 1 << 20))  # 2**20 thousand numbers
    model = replace(decoder(), vocab=1, embedding=Embedding(table))
    compute = decide_compute(asked(), "float32", BARE)
    step = 4 * 512

    for options, stored_as, size in (
        # A tied table is held as it is stored, whose rows are looked up, and packed for the head.
        ({}, "float32", 4 + 4), ({}, "bfloat16", 2 + 2),
        ({"quantize": "int8"}, "float32", 4 + 1.125), ({"quantize": "int4"}, "bfloat16", 2 + 0.625),
        ({"quantize": "int3.5"}, "bfloat16", 2 + 0.5625),
        ({"quantize": "iq4_nl"}, "bfloat16", 2 + 0.5625),
    ):  # fmt: skip
        needed = int(1000 * 2**20 * size) + step
        refuse_oversized(asked(**options), compute, model, needed, StoredWeights(stored_as))
        with pytest.raises(ConfigError, match="quantize the weights"):
            refuse_oversized(
                asked(**options), compute, model, needed // 2, StoredWeights(stored_as)
            )
    refuse_oversized(asked(), compute, model, step, StoredWeights(mapped=True))


@pytest.mark.parametrize(("group", "bits"), [(None, 4.125), (64, 4.25), (32, 4.5)])
def test_weights_for_activations_in_fp8_take_four_bits_and_scales_of_16(group, bits):
    table, matrix = (Weight(name, (1000, 1 << 10)) for name in ("embedding", "matrix"))
    head = Head(Linear(matrix), tied=False)
    model = replace(decoder(), vocab=1, embedding=Embedding(table), head=head)
    options = asked(quantize="w4afp8", quantize_group=group, backend="cuda")

    compute = decide_compute(options, "bfloat16", WITH_KERNELS)

    taken = estimated_weight_bytes(options, compute, model, StoredWeights("bfloat16"))
    assert taken == 1000 * 1024 * bits / 8


def test_published_codes_take_their_own_bits_where_gemms_have_them():
    table = Weight("embedding", (1000, 1 << 20))
    matrix = Weight("matrix", (1000, 1 << 20))
    head = Head(Linear(matrix), tied=False)
    model = replace(decoder(), vocab=1, embedding=Embedding(table), head=head)
    compute = decide_compute(asked(), "bfloat16", BARE)
    kept = BLOCK_TYPES["Q4_0"].format
    for format, bits in ((kept, 4.5), (replace(kept, permuted=True), 16)):
        needed = int(1000 * 2**20 * bits / 8) + 4 * 512
        stored = StoredWeights("bfloat16", formats={"matrix": format})
        refuse_oversized(asked(), compute, model, needed, stored)
        with pytest.raises(ConfigError, match="quantize the weights"):
            refuse_oversized(asked(), compute, model, needed - 4096, stored)


def test_requests_are_as_long_as_their_tokens_are_kept_account_of():
    least = decided(asked(max_running=1 << 20), memory=1 << 40, max_len=1 << 20)

    assert least.max_len == 1024
    with pytest.raises(ConfigError, match="max_len is 1,025; 1048576 requests of at most 1,024"):
        decided(asked(max_running=1 << 20, max_len=1025), memory=1 << 40, max_len=1 << 20)
