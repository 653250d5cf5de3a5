"""The vocabulary's sections of MLPs and of mixtures of experts, and the names of activations."""

from __future__ import annotations

from typing import get_args

from spaninfer_engine.spec.language.typed import FLAG, NUMBER, SIZE, TEXTS, choice, size
from spaninfer_engine.spec.mlp_nodes import ActivationName
from spaninfer_engine.spec.vocabulary.words import REQUIRED, Section, Word

MAX_EXPERTS = 10_000

_ACTIVATIONS: tuple[str, ...] = get_args(ActivationName)

_ALIASES = {
    "swish": "silu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu",
    "gated-gelu": "gelu_tanh",
    "gated-silu": "silu",
}

ACTIVATION = choice(*_ACTIVATIONS, aliases=_ALIASES)

GATE = choice(*_ACTIVATIONS, "clamped_swiglu", aliases=_ALIASES)

MLP = Section(
    "The MLP of the layers that route no tokens.",
    {
        "kind": Word(choice("gated", "plain"), "gated", "down(act(gate) * up), or down(act(up))"),
        "act": Word(
            GATE, "$hidden_act", "activation, also of experts; clamped_swiglu gates alone (gpt-oss)"
        ),
        "fused": Word(FLAG, False, "gate and up are one tensor [gate | up]"),
        "up_first": Word(FLAG, False, "fused, they are [up | gate]"),
        "bias": Word(FLAG, False, "projections have a bias"),
        "down_bias": Word(FLAG, False, "the down projection has one, whether or not the others do"),
    },
)

MOE = Section(
    "Routed experts.",
    {
        "layers": Word(FLAG, False, "layers with experts", per_layer=True),
        "n": Word(size(most=MAX_EXPERTS), REQUIRED, "how many experts"),
        "top_k": Word(SIZE, "$num_experts_per_tok", "how many see a token"),
        "ffn": Word(SIZE, "$moe_intermediate_size", "inner channels of an expert"),
        "score": Word(choice("softmax", "sigmoid"), "softmax", "logits to scores"),
        "correction": Word(FLAG, False, "a stored bias joins the scores for the choice only"),
        "correction_row": Word(FLAG, False, "that bias is stored as [1, E] (Ernie 4.5)"),
        "norm_topk": Word(FLAG, False, "the chosen weights are made to sum to one"),
        "scale": Word(NUMBER, 1.0, "factor on the weights"),
        "groups": Word(SIZE, 1, "groups of experts"),
        "group_topk": Word(SIZE, 1, "how many groups may be chosen from"),
        "group_score": Word(
            choice("max", "top2"), "max", "a group's score: best, or sum of best two"
        ),
        "shared": Word(
            choice("none", "plain", "gated"),
            "none",
            "an MLP for every token; gated: times the sigmoid of its own gate",
        ),
        "shared_ffn": Word(SIZE, REQUIRED, "its inner channels"),
        "shared_fused": Word(FLAG, False, "its gate and up projections are one"),
        "input_scaled": Word(FLAG, False, "the one expert's share scales its input (Llama 4)"),
        "bias": Word(FLAG, False, "the router has a bias"),
        "expert_bias": Word(FLAG, False, "stacked experts have biases"),
        "in_turn": Word(FLAG, False, "in stacked experts gate and up take turns (gpt-oss)"),
        "experts": Word(
            TEXTS,
            ["each", "stacked_oi"],
            "storage: `each` expert alone; or all, [gate | up]: `stacked_oi` [E, 2I, H], "
            "`stacked_io` [E, H, 2I]",
        ),
    },
)
