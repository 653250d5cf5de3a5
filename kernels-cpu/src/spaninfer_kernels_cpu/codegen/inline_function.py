"""Inline functions: those that stay LLVM's IR until a kernel takes them in.

Numba makes machine code of whatever it compiles, and optimises it again inside every function that
calls it; and it compiles a function anew for each number that is written in a call. What only
kernels call needs none of that: it is typed and lowered once, linked as it is, and optimised as a
part of the kernel.

Classes of Numba's with other last steps. They are not its public interface, so they are untyped
here, and a Numba that changes them fails when the first kernel is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from numba import _dynfunc  # type: ignore[attr-defined]
from numba.core import (
    codegen,
    compiler,
    compiler_machinery,
    registry,
    typed_passes,
    types,
    untyped_passes,
)
from numba.core.runtime.nrt import rtsys

_Library: Any = codegen.JITCodeLibrary
_Lowering: Any = typed_passes.NativeLowering
_Dispatcher: Any = registry.CPUDispatcher
_pipelines: Any = compiler.DefaultPassBuilder
_register: Any = compiler_machinery.register_pass
_runtime: Any = rtsys
_forget_number: Any = types.unliteral


_WIDE = '"prefer-vector-width"="512"'


class _Wide(_Library):  # type: ignore[misc]
    """The IR of functions whose loops LLVM may turn into vectors of 512 bits.

    On Intel's cores it prefers 256, since 512 lower the clock. Our own vectors have 512 and lower
    it anyway: with 256 a step's GEMMs with gelu take 4.97 instead of 4.05 ms, its layer norms 0.98
    instead of 0.82 (MiniLM-L6, 512 tokens, int8 per row, one core of an Emerald Rapids).
    """

    def add_ir_module(self, module: Any) -> None:
        """Add functions, and say of each how wide its vectors may be."""
        for function in module.functions:
            if function.blocks:
                set.add(function.attributes, _WIDE)  # llvmlite knows none that has a value
        super().add_ir_module(module)


class _Unlinked(_Wide):
    """The IR of one function, never run by itself; what it calls stays in libraries of their own.

    A kernel links each of them once. Linked into one another, a kernel's functions would be held a
    dozen times over: 45 MB for one that attends (Numba 0.68).
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        """Leave linking, optimising and making machine code to the kernel."""
        self._raise_if_finalized()
        self._finalize_dynamic_globals()
        for function in self._final_module.functions:
            if not function.is_declaration:
                function.linkage = "linkonce_odr"  # any number of kernels may link it
        self._finalized = True

    def _get_module_for_linking(self) -> Any:
        return self._final_module

    def with_callees(self) -> list[Any]:
        """Return this library and all that it needs, each behind one that calls it.

        A linker takes what another module has called already, and nothing else. So Numba's runtime,
        which any of them calls, is not among them: a kernel links it last, as Numba does.
        """
        needed = dict.fromkeys([self, *self._linking_libraries])
        return [library for library in needed if library is not _runtime.library]


Function = TypeVar("Function", bound=Callable[..., Any])

_ALWAYS_INLINED: set[Any] = set()


def always_inline(function: Function) -> Function:
    """Note that kernels take a function in at every call of it, whatever its length.

    What LLVM leaves a call returns a tile by way of memory, cleared before: 512 rows of 1,152 by
    384 in int8 per row at 0.89 instead of 0.83 of the registers (one core of a Zen 4).
    """
    _ALWAYS_INLINED.add(function)
    return function


@_register(mutates_CFG=True, analysis_only=False)
class _InlineLowering(_Lowering):  # type: ignore[misc]
    """Writes the IR, and lets callers find it."""

    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        """Lower a function into a library of its own."""
        context = state.targetctx
        library = _Unlinked(context.codegen(), state.func_id.func_qualname)
        state["library"] = library
        state.flags.no_compile = True
        super().run_pass(state)
        described = state.cr.fndesc
        if state.func_id.func in _ALWAYS_INLINED:
            code = library._final_module.get_function(described.mangled_name)
            code.add_function_attribute("alwaysinline")
        name, kept = described.qualname, (library,)
        # A function of Python without machine code, by which callers know this one.
        entry = _dynfunc.make_function(described.lookup_module(), name, "", 0, state.cr.env, kept)
        context.insert_user_function(entry, described, library.with_callees())
        state.cr = state.cr._replace(cfunc=entry)
        return True


_NEEDLESS = {
    # Each goes over all of a function; a tenth of the time of compiling it. Our functions have
    # nothing of what they look for: `with`, closures, comprehensions, functions that are inlined
    # as Numba's IR, loops over tuples of several types, arithmetic with whole arrays.
    untyped_passes.WithLifting,
    untyped_passes.InlineClosureLikes,
    untyped_passes.MakeFunctionToJitFunction,
    untyped_passes.InlineInlinables,
    untyped_passes.FindLiterallyCalls,
    untyped_passes.LiteralUnroll,
    untyped_passes.LiteralPropagationSubPipelinePass,
    typed_passes.InlineOverloads,
    typed_passes.NopythonRewrites,
}


@_register(mutates_CFG=True, analysis_only=False)
class _KernelLowering(_Lowering):  # type: ignore[misc]
    """Writes the IR of a kernel, and makes machine code of it and all that it calls."""

    _name = "kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        """Lower a function into a library whose object code can be asked for."""
        state["library"] = _Wide(state.targetctx.codegen(), state.func_id.func_qualname)
        state["library"].enable_object_caching()
        lowered: bool = super().run_pass(state)
        return lowered


class KernelCompiler(compiler.CompilerBase):
    """Numba's pipeline without what our functions have no use for."""

    lowering: ClassVar[Any] = _KernelLowering

    def define_pipelines(self) -> list[Any]:
        """Return the only pipeline: there is no falling back to Python objects."""
        pipeline = _pipelines.define_nopython_pipeline(self.state, "kernel")
        pipeline.passes = [
            (self.lowering if step is _Lowering else step, text)
            for step, text in pipeline.passes
            if step not in _NEEDLESS
        ]
        pipeline.finalize()
        return [pipeline]


class InlineCompiler(KernelCompiler):
    """The same, with another last step."""

    lowering = _InlineLowering


class InlineFunction(_Dispatcher):  # type: ignore[misc]
    """A function that compiled functions call, compiled with Numba's `options` for their types."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        super().__init__(function, None, {"nopython": True, **options}, InlineCompiler)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return what a call with arguments of these types means, whatever their values."""
        kws = {name: _forget_number(kind) for name, kind in kws.items()}
        return super().get_call_template(tuple(map(_forget_number, args)), kws)

    def __call__(self, *_args: Any, **_kws: Any) -> Any:
        """Refuse: there is no machine code."""
        raise TypeError(f"{self.py_func.__qualname__} is a part of kernels: Python cannot call it")
