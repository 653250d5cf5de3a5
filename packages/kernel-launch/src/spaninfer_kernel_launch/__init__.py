"""CUDA C++ kernels from package data: their contracts, variants, compilation and launches."""

from spaninfer_kernel_launch.cache import FileCache, user_cache
from spaninfer_kernel_launch.compiler import Compiled, compile_all, compile_variant
from spaninfer_kernel_launch.contract import match
from spaninfer_kernel_launch.cover import Case, every_case, pairwise_cover, value_cover
from spaninfer_kernel_launch.element import Element, element_of
from spaninfer_kernel_launch.errors import (
    CompileError,
    CompilerMissing,
    DeviceError,
    DriverError,
    DTypeError,
    GpuMissing,
    GpuTooOld,
    KernelError,
    NotCompiled,
    OutOfMemory,
    ShapeError,
    SignatureError,
    StreamMissing,
)
from spaninfer_kernel_launch.framework import numpy_dtype
from spaninfer_kernel_launch.gpu import Gpu, architecture_of, get_gpu, gpu_of
from spaninfer_kernel_launch.head import HeadDivision, divide_head
from spaninfer_kernel_launch.interning import Interned, interned
from spaninfer_kernel_launch.launch import (
    Call,
    Launch,
    Launches,
    blocks_at_once,
    clusters_at_once,
)
from spaninfer_kernel_launch.memory import (
    Allocate,
    Array,
    Result,
    allocator,
    check_results,
    new_results,
)
from spaninfer_kernel_launch.module import Kernel, load
from spaninfer_kernel_launch.old_names import renamed
from spaninfer_kernel_launch.operator import (
    NOT_GIVEN,
    Derived,
    NamedCalls,
    Operator,
    Preparations,
    RenamedCall,
    Step,
)
from spaninfer_kernel_launch.report import CompileReport
from spaninfer_kernel_launch.requests import (
    KernelRequest,
    cached_only,
    prepared_once,
    recording_kernels,
)
from spaninfer_kernel_launch.signature import (
    Float32,
    Int32,
    Int64,
    NoArguments,
    Pointer,
    Signature,
    TensorMap,
    UInt32,
)
from spaninfer_kernel_launch.source import Source
from spaninfer_kernel_launch.stream import current_stream, stream_handle
from spaninfer_kernel_launch.tensor_map import encode_tensor_map
from spaninfer_kernel_launch.timing import Timing, captured, new_stream, record, time_launches
from spaninfer_kernel_launch.toolchain import compiler_version
from spaninfer_kernel_launch.variant import ARCHITECTURES, BEFORE_HOPPER, WITH_BFLOAT16, Variant
from spaninfer_kernel_launch.view import (
    ADDRESS,
    ArraySpec,
    Device,
    View,
    check_aligned,
    check_dense,
    check_rows,
    inspect_array,
    inspect_arrays,
    inspect_or_addresses,
    pointer_of,
    view_at,
    view_of,
)

__all__ = [
    "ADDRESS",
    "ARCHITECTURES",
    "BEFORE_HOPPER",
    "NOT_GIVEN",
    "WITH_BFLOAT16",
    "Allocate",
    "Array",
    "ArraySpec",
    "Call",
    "Case",
    "CompileError",
    "CompileReport",
    "Compiled",
    "CompilerMissing",
    "DTypeError",
    "Derived",
    "Device",
    "DeviceError",
    "DriverError",
    "Element",
    "FileCache",
    "Float32",
    "Gpu",
    "GpuMissing",
    "GpuTooOld",
    "HeadDivision",
    "Int32",
    "Int64",
    "Interned",
    "Kernel",
    "KernelError",
    "KernelRequest",
    "Launch",
    "Launches",
    "NamedCalls",
    "NoArguments",
    "NotCompiled",
    "Operator",
    "OutOfMemory",
    "Pointer",
    "Preparations",
    "RenamedCall",
    "Result",
    "ShapeError",
    "Signature",
    "SignatureError",
    "Source",
    "Step",
    "StreamMissing",
    "TensorMap",
    "Timing",
    "UInt32",
    "Variant",
    "View",
    "allocator",
    "architecture_of",
    "blocks_at_once",
    "cached_only",
    "captured",
    "check_aligned",
    "check_dense",
    "check_results",
    "check_rows",
    "clusters_at_once",
    "compile_all",
    "compile_variant",
    "compiler_version",
    "current_stream",
    "divide_head",
    "element_of",
    "encode_tensor_map",
    "every_case",
    "get_gpu",
    "gpu_of",
    "inspect_array",
    "inspect_arrays",
    "inspect_or_addresses",
    "interned",
    "load",
    "match",
    "new_results",
    "new_stream",
    "numpy_dtype",
    "pairwise_cover",
    "pointer_of",
    "prepared_once",
    "record",
    "recording_kernels",
    "renamed",
    "stream_handle",
    "time_launches",
    "user_cache",
    "value_cover",
    "view_at",
    "view_of",
]

__getattr__ = renamed(__name__, look_at=("inspect_array", inspect_array))
