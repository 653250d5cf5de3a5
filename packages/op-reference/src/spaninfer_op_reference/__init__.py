"""The numpy definition of every operator that spaninfer computes."""

from spaninfer_op_reference.activation import (
    ACTIVATIONS,
    CLAMP,
    erf,
    gated,
    gelu,
    gelu_tanh,
    log_softmax,
    quick_gelu,
    relu,
    sigmoid,
    silu,
    softcap,
    softmax,
)
from spaninfer_op_reference.alibi import alibi_bias, alibi_slopes, falcon_alibi_bias
from spaninfer_op_reference.attention import (
    attend,
    attend_part,
    attend_ragged,
    attend_selected,
    merge,
)
from spaninfer_op_reference.compare import close, relative_error, tolerance
from spaninfer_op_reference.embedding import (
    add_rows,
    add_types,
    blend_rows,
    embed,
    join_rows,
    replace_rows,
    sinusoidal,
)
from spaninfer_op_reference.frequency import FrequencyRule, frequencies, yarn_mscale
from spaninfer_op_reference.grid import (
    GRIDS,
    grid_format,
    pair_codes,
    quantize_to_grid,
    unpair_codes,
)
from spaninfer_op_reference.indexer import index_scores, select_keys
from spaninfer_op_reference.linear import head_linear, linear, normalize_rows, scale_rows
from spaninfer_op_reference.logits import (
    add_bias,
    allow,
    ban,
    ngram_ends,
    penalize_frequency,
    penalize_repetition,
    word_ends,
)
from spaninfer_op_reference.logprobs import Logprobs, top_logprobs
from spaninfer_op_reference.moe import experts, route
from spaninfer_op_reference.norm import layer_norm, rms_norm
from spaninfer_op_reference.philox import philox, uniform
from spaninfer_op_reference.pool import pool
from spaninfer_op_reference.quantize import (
    CodeRange,
    Quantized,
    dequantize_q8_0,
    pack_nibbles,
    quantize_cache,
    quantize_fp8,
    quantize_q8_0,
    quantize_rows,
    quantize_weight,
    unpack_nibbles,
)
from spaninfer_op_reference.quantized_weight import (
    QuantizedWeight,
    dequantize_weight,
    group_minimums,
    group_scales,
    stack_weights,
)
from spaninfer_op_reference.relative import relative_position_bias, relative_position_buckets
from spaninfer_op_reference.rope import cos_sin, llama4_scale, logn, rotate
from spaninfer_op_reference.rounding import E4M3_MOST, to_bfloat16, to_e4m3
from spaninfer_op_reference.sample import GREEDY, NoToken, RowSampling, gumbel, process, sample
from spaninfer_op_reference.scaled_linear import (
    SCALE_BLOCK,
    block_scaled_linear,
    scaled_linear,
)
from spaninfer_op_reference.spans import append, gather_spans
from spaninfer_op_reference.topk import topk
from spaninfer_op_reference.weight_format import E2M1, ScaleType, WeightFormat

__all__ = [
    "ACTIVATIONS",
    "CLAMP",
    "E2M1",
    "E4M3_MOST",
    "GREEDY",
    "GRIDS",
    "SCALE_BLOCK",
    "CodeRange",
    "FrequencyRule",
    "Logprobs",
    "NoToken",
    "Quantized",
    "QuantizedWeight",
    "RowSampling",
    "ScaleType",
    "WeightFormat",
    "add_bias",
    "add_rows",
    "add_types",
    "alibi_bias",
    "alibi_slopes",
    "allow",
    "append",
    "attend",
    "attend_part",
    "attend_ragged",
    "attend_selected",
    "ban",
    "blend_rows",
    "block_scaled_linear",
    "close",
    "cos_sin",
    "dequantize_q8_0",
    "dequantize_weight",
    "embed",
    "erf",
    "experts",
    "falcon_alibi_bias",
    "frequencies",
    "gated",
    "gather_spans",
    "gelu",
    "gelu_tanh",
    "grid_format",
    "group_minimums",
    "group_scales",
    "gumbel",
    "head_linear",
    "index_scores",
    "join_rows",
    "layer_norm",
    "linear",
    "llama4_scale",
    "log_softmax",
    "logn",
    "merge",
    "ngram_ends",
    "normalize_rows",
    "pack_nibbles",
    "pair_codes",
    "penalize_frequency",
    "penalize_repetition",
    "philox",
    "pool",
    "process",
    "quantize_cache",
    "quantize_fp8",
    "quantize_q8_0",
    "quantize_rows",
    "quantize_to_grid",
    "quantize_weight",
    "quick_gelu",
    "relative_error",
    "relative_position_bias",
    "relative_position_buckets",
    "relu",
    "replace_rows",
    "rms_norm",
    "rotate",
    "route",
    "sample",
    "scale_rows",
    "scaled_linear",
    "select_keys",
    "sigmoid",
    "silu",
    "sinusoidal",
    "softcap",
    "softmax",
    "stack_weights",
    "to_bfloat16",
    "to_e4m3",
    "tolerance",
    "top_logprobs",
    "topk",
    "uniform",
    "unpack_nibbles",
    "unpair_codes",
    "word_ends",
    "yarn_mscale",
]
