"""Machine code on a GPU: loaded once per GPU and cubin, found again by content."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache as once
from typing import Generic

from spaninfer_kernel_launch.compiler import Compiled
from spaninfer_kernel_launch.driver import call_driver, driver
from spaninfer_kernel_launch.errors import SignatureError
from spaninfer_kernel_launch.gpu import Gpu
from spaninfer_kernel_launch.signature import ArgumentsT, Signature

_DEFAULT_SHARED_BYTES = 48 * 1024  # static and dynamic together; more needs an attribute
_STATIC = "SHARED_SIZE_BYTES"
_DYNAMIC = "MAX_DYNAMIC_SHARED_SIZE_BYTES"
_WITHOUT_ASKING_BLOCKS = 8  # so must larger clusters, which not every GPU has


@dataclass(frozen=True, slots=True)
class Kernel(Generic[ArgumentsT]):
    """An entry point of loaded machine code: the driver's handle, valid on `gpu`."""

    signature: Signature[ArgumentsT]
    gpu: Gpu
    handle: int

    def allow_shared(self, shared_bytes: int) -> None:
        """Let blocks of this kernel have `shared_bytes` of dynamic shared memory, or more, beside
        what its code declares.

        What was allowed before stays so: other launches of the kernel may need it.
        """
        static = self._get(_STATIC)
        if static + shared_bytes <= _DEFAULT_SHARED_BYTES:
            return
        # Before it is set, the attribute may name more than the GPU has beside the static bytes.
        allowed = min(self._get(_DYNAMIC), self.gpu.shared_bytes - static)
        self._set(_DYNAMIC, max(allowed, shared_bytes))

    def allow_cluster(self, blocks: int) -> None:
        """Let clusters of this kernel have `blocks` blocks."""
        if blocks > _WITHOUT_ASKING_BLOCKS:
            self._set("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)

    def _get(self, name: str) -> int:
        return int(call_driver(driver().cuKernelGetAttribute, _attribute(name), *self._on_device()))

    def _set(self, name: str, number: int) -> None:
        call_driver(driver().cuKernelSetAttribute, _attribute(name), number, *self._on_device())

    def _on_device(self) -> tuple[object, object]:
        bound = driver()
        return bound.CUkernel(self.handle), bound.CUdevice(self.gpu.index)


def _attribute(name: str) -> object:
    return getattr(driver().CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")


def load(compiled: Compiled, gpu: Gpu, signature: Signature[ArgumentsT]) -> Kernel[ArgumentsT]:
    """Return a kernel of `compiled` on `gpu`.

    Raises SignatureError for one that the source does not declare in `Source.kernels`: its
    parameters have not been checked.
    """
    if compiled.is_empty:
        return Kernel(signature, gpu, _handle(compiled.cubin, compiled.entry, gpu))
    if signature not in compiled.kernels:
        declared = ", ".join(each.entry for each in compiled.kernels) or "none"
        raise SignatureError(
            f"kernel {signature.entry} with {signature.arguments.__name__} is not declared by its "
            f"Source, whose kernels= are: {declared}"
        )
    return Kernel(signature, gpu, _handle(compiled.cubin, signature.entry, gpu))


@once
def _handle(cubin: bytes, entry: str, gpu: Gpu) -> int:
    bound = driver()
    with gpu.current():
        return int(call_driver(bound.cuLibraryGetKernel, _library(cubin, gpu), entry.encode()))


@once
def _library(cubin: bytes, gpu: Gpu) -> object:
    """Return the driver's library; it is never unloaded, since launches may still be captured."""
    bound = driver()
    with gpu.current():
        return call_driver(bound.cuLibraryLoadData, cubin, [], [], 0, [], [], 0)
