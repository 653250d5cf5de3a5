"""Kernels for LLM inference on CPUs, compiled by Numba when they are first needed.

Everything public is listed here: the operators that Python calls, the calls that scripts are made
of, and what scripts run on. Nothing outside the package imports its folders.
"""

from spaninfer_kernels_cpu.attention.attend_call import (
    AttentionPlan,
    LayerCache,
    Selected,
    append_call,
    attend_calls,
    attention_kernels,
    item_queries,
)
from spaninfer_kernels_cpu.attention.attend_kernel import PART_NUMBERS
from spaninfer_kernels_cpu.attention.attention import AttentionBatch, attend
from spaninfer_kernels_cpu.attention.attention_plan import (
    PlanKind,
    PlanMemory,
    PlanRows,
    make_planner_ready,
    plan_attention,
    plan_selected,
)
from spaninfer_kernels_cpu.attention.few_queries import reads_in_place
from spaninfer_kernels_cpu.attention.kv_array import KVArray
from spaninfer_kernels_cpu.attention.scores import Scores, ahead_of
from spaninfer_kernels_cpu.attention.select_call import (
    IndexQuery,
    SelectionPlan,
    plan_selection,
    select_calls,
)
from spaninfer_kernels_cpu.attention.sparse_attention import select_keys
from spaninfer_kernels_cpu.codegen.arguments import Arguments, Float32, Indirect
from spaninfer_kernels_cpu.codegen.compiled import kernel_cache_report
from spaninfer_kernels_cpu.codegen.isa_level import active_level
from spaninfer_kernels_cpu.codegen.kernel_cache import CacheReport
from spaninfer_kernels_cpu.codegen.memory import aligned
from spaninfer_kernels_cpu.delta_rule.convolve_call import convolve_call
from spaninfer_kernels_cpu.delta_rule.delta_rule import DeltaInputs, convolve, delta_rule
from spaninfer_kernels_cpu.delta_rule.delta_rule_call import DeltaRows, delta_rule_call
from spaninfer_kernels_cpu.delta_rule.gates_call import delta_gates_call
from spaninfer_kernels_cpu.delta_rule.state_plan import StatePlan, plan_states
from spaninfer_kernels_cpu.elementwise.formula_call import (
    ADD,
    SCALE,
    SIGMOID_GATE,
    SOFTCAP,
    Formula,
    activation_formula,
    formula_call,
    gate_formula,
)
from spaninfer_kernels_cpu.elementwise.gather_call import (
    Columns,
    copy_call,
    embed_call,
    gather_rows_call,
)
from spaninfer_kernels_cpu.elementwise.norm_call import (
    LayerNorm,
    RmsNorm,
    layer_norm_call,
    rms_norm_call,
)
from spaninfer_kernels_cpu.elementwise.rope_call import RopeAngles, rope_call
from spaninfer_kernels_cpu.elementwise.scale_call import (
    Llama4Growth,
    llama4_scale_call,
    logn_call,
    scale_rows_call,
    sigmoid_gate_call,
)
from spaninfer_kernels_cpu.errors import (
    DTypeError,
    FormatError,
    IsaLevelError,
    KernelError,
    ShapeError,
    SizeError,
)
from spaninfer_kernels_cpu.gemm.gemm import linear
from spaninfer_kernels_cpu.gemm.gemm_call import Epilogue, Gemm
from spaninfer_kernels_cpu.gemm.micro_kernel_choice import MicroKernels, micro_kernels
from spaninfer_kernels_cpu.gemm.roofline import peak_gops, read_gbps
from spaninfer_kernels_cpu.gemm.trial import Trial
from spaninfer_kernels_cpu.gemm.tuned import Tuned, thread_times, tune
from spaninfer_kernels_cpu.gemm.tuning import FEW_ROWS, MANY_ROWS, Choice, Seconds, relative
from spaninfer_kernels_cpu.moe.experts import experts
from spaninfer_kernels_cpu.moe.experts_call import ExpertCounts, ExpertWeights, num_segments
from spaninfer_kernels_cpu.moe.route_call import Routes, route_call
from spaninfer_kernels_cpu.profile import OUTSIDE, OperatorTimes, operator_times
from spaninfer_kernels_cpu.quantisation.coded_rows_call import embed_codes_call
from spaninfer_kernels_cpu.quantisation.codes import (
    PLANES,
    Codes,
    InnerScales,
    ScaleNumber,
    Shift,
)
from spaninfer_kernels_cpu.quantisation.layout import LAYOUT, PANEL, Format, Kind, Layout
from spaninfer_kernels_cpu.quantisation.pack_codes import CodeRows, GroupedCodes, pack_codes
from spaninfer_kernels_cpu.quantisation.packed import Packed, pack, pack_stack, unpack
from spaninfer_kernels_cpu.runtime.call import (
    ITEMS,
    LOGITS,
    MAX_COUNTS,
    TOKENS,
    Call,
    Matrix,
    Script,
)
from spaninfer_kernels_cpu.runtime.compilers import Compilers, OnProgress
from spaninfer_kernels_cpu.runtime.thread_pool import (
    ThreadPool,
    make_thread_pool_ready,
    shared_thread_pool,
)
from spaninfer_kernels_cpu.sampling.logprobs import Logprobs, TokenLogprobs, logprobs_kernel
from spaninfer_kernels_cpu.sampling.sampler import Sampler, SamplingRow, sampling_kernel
from spaninfer_kernels_cpu.warmup import compile_all

__all__ = [
    "ADD",
    "FEW_ROWS",
    "ITEMS",
    "LAYOUT",
    "LOGITS",
    "MANY_ROWS",
    "MAX_COUNTS",
    "OUTSIDE",
    "PANEL",
    "PART_NUMBERS",
    "PLANES",
    "SCALE",
    "SIGMOID_GATE",
    "SOFTCAP",
    "TOKENS",
    "Arguments",
    "AttentionBatch",
    "AttentionPlan",
    "CacheReport",
    "Call",
    "Choice",
    "CodeRows",
    "Codes",
    "Columns",
    "Compilers",
    "DTypeError",
    "DeltaInputs",
    "DeltaRows",
    "Epilogue",
    "ExpertCounts",
    "ExpertWeights",
    "Float32",
    "Format",
    "FormatError",
    "Formula",
    "Gemm",
    "GroupedCodes",
    "IndexQuery",
    "Indirect",
    "InnerScales",
    "IsaLevelError",
    "KVArray",
    "KernelError",
    "Kind",
    "LayerCache",
    "LayerNorm",
    "Layout",
    "Llama4Growth",
    "Logprobs",
    "Matrix",
    "MicroKernels",
    "OnProgress",
    "OperatorTimes",
    "Packed",
    "PlanKind",
    "PlanMemory",
    "PlanRows",
    "RmsNorm",
    "RopeAngles",
    "Routes",
    "Sampler",
    "SamplingRow",
    "ScaleNumber",
    "Scores",
    "Script",
    "Seconds",
    "Selected",
    "SelectionPlan",
    "ShapeError",
    "Shift",
    "SizeError",
    "StatePlan",
    "ThreadPool",
    "TokenLogprobs",
    "Trial",
    "Tuned",
    "activation_formula",
    "active_level",
    "ahead_of",
    "aligned",
    "append_call",
    "attend",
    "attend_calls",
    "attention_kernels",
    "compile_all",
    "convolve",
    "convolve_call",
    "copy_call",
    "delta_gates_call",
    "delta_rule",
    "delta_rule_call",
    "embed_call",
    "embed_codes_call",
    "experts",
    "formula_call",
    "gate_formula",
    "gather_rows_call",
    "item_queries",
    "kernel_cache_report",
    "layer_norm_call",
    "linear",
    "llama4_scale_call",
    "logn_call",
    "logprobs_kernel",
    "make_planner_ready",
    "make_thread_pool_ready",
    "micro_kernels",
    "num_segments",
    "operator_times",
    "pack",
    "pack_codes",
    "pack_stack",
    "peak_gops",
    "plan_attention",
    "plan_selected",
    "plan_selection",
    "plan_states",
    "read_gbps",
    "reads_in_place",
    "relative",
    "rms_norm_call",
    "rope_call",
    "route_call",
    "sampling_kernel",
    "scale_rows_call",
    "select_calls",
    "select_keys",
    "shared_thread_pool",
    "sigmoid_gate_call",
    "thread_times",
    "tune",
    "unpack",
]
