"""Routers of all families against their definition; tests that need no GPU come first."""

import ml_dtypes
import numpy as np
import pytest
import spaninfer_op_reference as definition
from spaninfer_kernel_launch import DeviceError, DTypeError, ShapeError, get_gpu
from spaninfer_kernels_cuda.moe import RouteOptions, route

ROUTERS = {
    "mixtral": (8, RouteOptions(2, normalise=True)),
    "qwen2_moe": (60, RouteOptions(4)),
    "qwen3_moe": (128, RouteOptions(8, normalise=True)),
    "deepseek_v2": (160, RouteOptions(6, groups=8, group_topk=3, scale=16.0)),
    "deepseek_v3": (256, RouteOptions(8, "sigmoid", True, 2.5, 8, 4, "top2")),
    "kimi_k2": (384, RouteOptions(8, "sigmoid", True, 2.5)),
    "deepseek_v4": (256, RouteOptions(6, "sqrt_softplus", True, 1.5)),
    "ernie4_5": (64, RouteOptions(6, normalise=True)),
    "gpt_oss": (32, RouteOptions(4, normalise=True)),
    "llama4": (16, RouteOptions(1, "sigmoid")),
    "most": (512, RouteOptions(32, normalise=True)),
}
WITH_CORRECTION = {"deepseek_v3", "kimi_k2", "deepseek_v4", "ernie4_5"}
TOKENS = [0, 1, 16, 17, 300, 512, 1024, 5000]  # one block, clusters, and a sort of its own


def test_the_variant_carries_the_rule():
    variant = route.variant_for(ROUTERS["deepseek_v3"][1], 256, np.float32)

    assert str(variant) == "moe_route[GROUP_BEST=2 PER_LANE=8 SCORE=sigmoid SHARED=0 T=float]"


def test_rules_without_a_kernel_are_refused():
    with pytest.raises(ShapeError, match="no score 'relu'; there are softmax, sigmoid"):
        route.variant_for(RouteOptions(2, "relu"), 8, np.float32)
    with pytest.raises(ShapeError, match="group_score is 'mean'; allowed are max, top2"):
        route.variant_for(RouteOptions(2, groups=2, group_score="mean"), 8, np.float32)


def test_arrays_that_do_not_fit_are_refused():
    logits = np.zeros((3, 8), np.float32)

    with pytest.raises(DeviceError, match="logits lies in cpu memory"):
        route.route(logits, RouteOptions(2))
    with pytest.raises(DTypeError, match="correction holds float64"):
        route.route(logits, RouteOptions(2), correction=np.zeros(8))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("tokens", TOKENS)
def test_routers_are_their_definition(on_gpu, name, tokens):
    experts, options = ROUTERS[name]
    logits, correction = random(tokens, experts), None
    if name in WITH_CORRECTION:
        correction = np.random.default_rng(7).standard_normal(experts).astype(np.float32) / 4

    chosen = run(on_gpu, logits, options, correction)

    ids, shares = choose(logits, options, correction)
    assert (chosen.ids == ids).all()
    np.testing.assert_allclose(chosen.shares, shares, rtol=3e-5)
    check_maps(chosen, experts)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", TOKENS)
def test_shared_experts_follow_those_that_are_chosen(on_gpu, tokens):
    logits = random(tokens, 64)
    slots = np.where(np.arange(tokens) % 5 == 2, -1, 3).astype(np.int32)

    chosen = run(on_gpu, logits, RouteOptions(6, shared=2), slots=slots)

    is_padding = slots < 0
    assert (chosen.ids[is_padding] == -1).all()
    assert (chosen.shares[is_padding] == 0).all()
    assert (chosen.ids[~is_padding, :6] == choose(logits[~is_padding], RouteOptions(6))[0]).all()
    assert (chosen.ids[~is_padding, 6:] == [64, 65]).all()
    assert (chosen.shares[~is_padding, 6:] == 1).all()
    check_maps(chosen, 66)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [12, 200, 333])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_of_equal_scores_the_lowest_expert_wins(on_gpu, dtype, tokens):
    options = RouteOptions(8, groups=4, group_topk=2, group_score="max")
    logits = np.round(random(tokens, 64)).astype(dtype)
    logits[:3] = np.array([0.0, -np.inf, np.inf])[:, None].astype(dtype)
    logits[3, ::2] = -0.0

    chosen = run(on_gpu, logits, options)

    finite = np.arange(tokens) > 2
    assert (chosen.ids[~finite] == np.arange(8)).all()
    assert (chosen.ids[finite] == choose(logits[finite], options)[0]).all()
    check_maps(chosen, 64)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [5, 90, 300, 1024, 5000])
@pytest.mark.parametrize("kind", ["all to one", "zipf", "padded", "only padding"])
def test_uneven_choices_are_sorted(on_gpu, tokens, kind):
    logits, slots = random(tokens, 64), None
    if kind == "all to one":
        logits[:, 11:19] += 100
    if kind == "zipf":
        logits -= 2 * np.log(np.arange(1, 65, dtype=np.float32))
    if "padd" in kind:
        slots = np.where((np.arange(tokens) % 7 < 3) | (kind != "padded"), -1, 40).astype(np.int32)

    chosen = run(on_gpu, logits, RouteOptions(8, normalise=True), slots=slots)

    padding = np.zeros(tokens, bool) if slots is None else slots < 0
    assert (chosen.ids[padding] == -1).all()
    assert (chosen.shares[padding] == 0).all()
    assert (chosen.ids[~padding] == choose(logits[~padding], RouteOptions(8))[0]).all()
    check_maps(chosen, 64)


@pytest.mark.gpu
@pytest.mark.parametrize("cluster", [0, 1, 2, 8])
def test_clusters_of_any_size_and_launches_of_their_own_sort_alike(on_gpu, cluster):
    tokens, experts, options = 100, 64, RouteOptions(6, normalise=True, shared=2)
    pairs, given = tokens * options.choices, random(tokens, experts)
    choice = route.prepare(options, tokens=tokens, experts=experts, gpu=get_gpu(), cluster=cluster)
    numbers = [on_gpu.put(np.full(size, -7, np.int32)) for size in (pairs, pairs, 66, pairs)]
    shares = on_gpu.put(np.full(pairs, np.nan, np.float32))
    out = route.Routing(numbers[0], shares, *numbers[1:])
    workspace = on_gpu.put(np.full(choice.workspace_bytes + 1, 255, np.uint8))

    choice.launch(on_gpu.put(given), out=out, workspace=workspace)
    on_gpu.wait()

    chosen = run(on_gpu, given, options)
    for ours, publics in zip(out, chosen, strict=True):
        assert (on_gpu.get(ours) == publics.ravel()).all()
    check_maps(chosen, 66)


def run(on_gpu, logits, options, correction=None, slots=None):
    """The choice by the kernels, as numpy arrays."""
    given = {"correction": correction, "slots": slots}
    put = {name: on_gpu.put(each) for name, each in given.items() if each is not None}
    return route.Routing(*map(on_gpu.get, route.route(on_gpu.put(logits), options, **put)))


def choose(logits, options, correction=None):
    """The choice by the definition in float64."""
    return definition.route(
        logits.astype(np.float64),
        top_k=options.top_k,
        kind=options.score,
        normalise=options.normalise,
        scale=options.scale,
        groups=options.groups,
        group_topk=options.group_topk,
        group_score=options.group_score,
        correction=None if correction is None else correction.astype(np.float64),
    )


def check_maps(chosen, experts):
    """Order, ends and place are those of a stable sort of the ids, padding last."""
    keys = np.where(chosen.ids.ravel() < 0, experts, chosen.ids.ravel())
    order = np.argsort(keys, kind="stable")
    assert (chosen.order == order).all()
    assert (chosen.ends == np.cumsum(np.bincount(keys, minlength=experts + 1)[:experts])).all()
    assert (chosen.place[order] == np.arange(len(order))).all()


def random(tokens, experts):
    """Logits in eighths: float32 and float64 agree on which are larger, and some are equal."""
    numbers = np.random.default_rng(tokens).standard_normal((tokens, experts))
    return (np.round(16 * numbers) / 8).astype(np.float32)
