"""Python values that Numba functions know when they are compiled.

Every `Constant` is a Numba type of its own: functions that take one are compiled per value, its
numbers are constants in their code, and intrinsics read them off its type (`kind.value`). A kernel
that has one in its closure is kept apart by it in Numba's cache on disk.
"""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.core.imputils import lower_constant, lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import models, register_model, typeof_impl


class Constant:
    """Base of such values; a subclass has a `repr` that no other value shares."""

    __slots__ = ()


class ConstantType(types.Type):
    """The type whose only value is `value`."""

    def __init__(self, value: Any) -> None:
        self.value = value
        super().__init__(name=repr(value))


register_model(ConstantType)(models.OpaqueModel)


@typeof_impl.register(Constant)
def _type_of_constant(value: Constant, _context: Any) -> ConstantType:
    return ConstantType(value)


@lower_constant(ConstantType)  # type: ignore[no-untyped-call, untyped-decorator]
def _no_bits(context: Any, _builder: Any, _kind: Any, _value: Any) -> Any:
    return context.get_dummy_value()


@infer_getattr
class _ConstantAttributes(AttributeTemplate):
    """Attributes that kernels read are constants, or whole numbers and truths, read as int64."""

    key = ConstantType

    def generic_resolve(  # type: ignore[override]
        self, kind: ConstantType, name: str
    ) -> types.Type:
        value = getattr(kind.value, name)
        return ConstantType(value) if isinstance(value, Constant) else types.int64


@lower_getattr_generic(ConstantType)  # type: ignore[no-untyped-call, untyped-decorator]
def _attribute(context: Any, _builder: Any, kind: ConstantType, _value: Any, name: str) -> Any:
    value = getattr(kind.value, name)
    if isinstance(value, Constant):
        return context.get_dummy_value()
    return context.get_constant(types.int64, int(value))
