"""Public calls: arrays of any framework in, kernels started that were prepared for such arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from math import gcd, prod
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from spaninfer_kernel_launch.framework import torch
from spaninfer_kernel_launch.gpu import Gpu
from spaninfer_kernel_launch.guard import Guard, guard_of
from spaninfer_kernel_launch.launch import Call, Launches, Renamed
from spaninfer_kernel_launch.memory import Allocate, Result, allocator
from spaninfer_kernel_launch.requests import recorded
from spaninfer_kernel_launch.scratch import PART_BYTES, Scratch
from spaninfer_kernel_launch.stream import current_gpu_of_torch, current_of_torch, stream_handle
from spaninfer_kernel_launch.view import (
    ALIGNMENT,
    ArraySpec,
    inspect_arrays,
    inspect_or_addresses,
    is_of_torch,
    pointer_of,
)

Derived: TypeAlias = tuple[str, int | Callable[[int], int | bytes]]
"""A value computed from an address: the name of that, and the bytes behind it or a function."""

NOT_GIVEN: Final = "(not given)"
"""The name of a value that no call gives."""

RenamedCall: TypeAlias = tuple[Call[Any], Renamed]
"""A call, and the names of its values that are not those of its arguments."""


class NamedCalls(NamedTuple):
    """Calls whose values have names, and how some are derived from others that come before."""

    calls: tuple[RenamedCall, ...] = ()
    derived: Mapping[str, Derived] = MappingProxyType({})

    @classmethod
    def of(cls, *calls: Call[Any] | None, **derived: Derived) -> NamedCalls:
        """Return calls whose values have the names of arguments; None is no call."""
        return cls(tuple((call, {}) for call in calls if call is not None), derived)

    @property
    def used(self) -> NamedCalls:
        """The calls with those derived values that they, or others of these, read.

        Places come first, as bytes behind an address that is not derived; where there are none,
        that address is read in place of them.
        """
        places: dict[str, tuple[str, int]] = {}
        for name, (of, how) in self.derived.items():
            if isinstance(how, int):
                base, begin = places.get(of, (of, 0))
                places[name] = base, begin + how
        same = {name: base for name, (base, begin) in places.items() if not begin}
        made = {name: each for name, each in self.derived.items() if name not in places}
        derived = places | {name: (same.get(of, of), how) for name, (of, how) in made.items()}
        calls = tuple(
            (call, {name: same.get(own, own) for name, own in _names_of(call, renamed)})
            for call, renamed in self.calls
        )
        read = {own for _, names in calls for own in names.values()}
        for name, (of, _) in reversed(derived.items()):
            read |= {of} if name in read else set()
        return NamedCalls(calls, {name: each for name, each in derived.items() if name in read})

    def within(self, whole: str, names: Mapping[str, str]) -> NamedCalls:
        """Return the calls with the names that values have within a larger step.

        Derived values get the name of the `whole` they belong to before their own.
        """

        def name_of(own: str) -> str:
            return f"{whole}.{own}" if own in self.derived else names.get(own, own)

        return NamedCalls(
            tuple(
                (call, {name: name_of(own) for name, own in _names_of(call, renamed)})
                for call, renamed in self.calls
            ),
            {name_of(name): (name_of(of), how) for name, (of, how) in self.derived.items()},
        )


def _names_of(call: Call[Any], renamed: Renamed) -> Iterator[tuple[str, str]]:
    """Yield the names of a call's arguments, each with that of its value."""
    return ((name, renamed.get(name, name)) for name in call.names)


class Step(NamedTuple):
    """What a public call does with arrays of given specs, on `gpu`.

    `results` are allocated for each call, and `calls` are started. Their arguments are found by
    name: the addresses of arrays, results and `scratch`, which are parts of one piece of memory
    (scratch.py), the numbers that each call gives, what is derived from an address, and
    `constants`; of arrays that are not given 0, and so of NOT_GIVEN. With `draws`, `ticket` is the
    address of a ticket.
    """

    gpu: Gpu
    calls: NamedCalls
    results: tuple[Result, ...] = ()
    scratch: tuple[Result, ...] = ()
    constants: Mapping[str, Any] = MappingProxyType({})
    draws: bool = False


PreparedT = TypeVar("PreparedT")

_Recent: TypeAlias = tuple[Callable[[tuple[Any, ...]], tuple[Any, ...]], Guard, PreparedT]
"""What picks those of the arrays that are given, what tells if they are like others, and what is
prepared for those."""


class Preparations(Generic[PreparedT]):
    """What is prepared for options and arrays, found again by the options and the arrays' specs.

    `arrays` are the names of arrays that may be given; the first one always is. `prepare` takes the
    options and the specs of the given arrays by name, and checks them. The latest `maxsize` results
    are kept. With `addresses`, an array may be given as its address; then its spec is ADDRESS.

    Torch tensors like those of recent calls with equal options are recognised by one check of them
    all (guard.py), in place of a look at each.
    """

    def __init__(
        self,
        arrays: str,
        prepare: Callable[[Any, dict[str, ArraySpec]], PreparedT],
        *,
        maxsize: int = 1024,
        addresses: bool = False,
    ) -> None:
        self.names = tuple(arrays.split())
        self._prepare, self._maxsize = prepare, maxsize
        self._inspect = inspect_or_addresses if addresses else inspect_arrays
        self._known = lru_cache(maxsize)(self._prepare_for)
        self._recent: dict[Any, list[_Recent[PreparedT]]] = {}
        self._address_of: Callable[[Any], int] = pointer_of  # torch's own, once there are tensors

    def find(self, options: Any, arrays: tuple[Any, ...]) -> tuple[list[Any], PreparedT]:
        """Return the addresses of the given arrays in a new list, and what is prepared for such.

        Options are hashable; arrays are in the order of their names, None where not given.
        """
        if recorded() is None:
            for given, is_like, prepared in self._recent.get((options, *map(type, arrays)), ()):
                tensors = given(arrays)
                if is_like(*tensors):
                    addresses = [*map(self._address_of, tensors)]
                    if gcd(ALIGNMENT, *addresses) == ALIGNMENT:
                        return addresses, prepared
        return self._find_by_specs(options, arrays)

    def _find_by_specs(self, options: Any, arrays: tuple[Any, ...]) -> tuple[list[int], PreparedT]:
        addresses, specs = self._inspect(*arrays)
        given = [address for address, spec in zip(addresses, specs, strict=True) if spec]
        if recorded() is not None:
            return given, self._prepare_for(options, specs)[0]
        prepared, guards = self._known(options, specs)
        if len(guards) < _MOST_GUARDS and gcd(ALIGNMENT, *given) == ALIGNMENT:
            self._remember(options, arrays, prepared, guards)
        return given, prepared

    def _prepare_for(
        self, options: Any, specs: tuple[ArraySpec, ...]
    ) -> tuple[PreparedT, list[Guard | None]]:
        """Return what is prepared, and room for guards of arrays that it is found for."""
        given = {name: spec for name, spec in zip(self.names, specs, strict=True) if spec}
        return self._prepare(options, given), []

    def _remember(
        self,
        options: Any,
        arrays: tuple[Any, ...],
        prepared: PreparedT,
        guards: list[Guard | None],
    ) -> None:
        """Let arrays like these be recognised, if they can be."""
        places = [at for at, array in enumerate(arrays) if array is not None]
        guard = guard_of([arrays[at] for at in places])
        guards.append(guard)
        if guard is None:
            return
        self._address_of = torch().Tensor.data_ptr
        if len(self._recent) >= self._maxsize:
            self._recent = {}
        recent = self._recent.setdefault((options, *map(type, arrays)), [])
        recent.insert(0, (_getter(places), guard, prepared))
        del recent[_MOST_RECENT:]


_MOST_GUARDS: Final = 4  # of one preparation: autograd modes, and tensors forgotten in between
_MOST_RECENT: Final = 8  # tried in turn where options are equal


def _getter(places: list[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return what picks the items at these places from a tuple, as a tuple."""
    if len(places) == 1:
        return itemgetter(slice(places[0], places[0] + 1))
    return itemgetter(*places)


@dataclass(slots=True)
class _Bound:
    """A step whose values have places: arrays, results, a ticket and parts of scratch, numbers, and
    what is derived: first places in arrays, then what functions make.
    """

    index: int  # of the GPU
    current: Callable[[], int] | None  # torch's current stream; None for other frameworks' arrays
    current_gpu: Callable[[], int]  # torch's
    allocate: Allocate | None
    address_of: Callable[[Any], int]  # of an array that was allocated
    scratch: Scratch | None
    places: tuple[tuple[int, int], ...]  # a place, and bytes behind the address there
    derive: tuple[tuple[Callable[[int], int | bytes], int], ...]  # from the value at a place
    launches: Launches | None


class Operator:
    """A public call: prepared once for options and specs of arrays, then only started.

    `arrays`, `prepare` and the last two are as for `Preparations`; arrays for results are among
    those that may be given, and new ones are of the first array's framework. `numbers` are the
    names of what else every call gives.
    """

    def __init__(
        self,
        arrays: str,
        prepare: Callable[[Any, dict[str, ArraySpec]], Step],
        *,
        numbers: str = "",
        maxsize: int = 1024,
        addresses: bool = False,
    ) -> None:
        self._numbers, self._prepare_step = numbers.split(), prepare
        self._bound = Preparations(arrays, self._bind, maxsize=maxsize, addresses=addresses)

    def start(
        self,
        options: Any,
        arrays: tuple[Any, ...],
        numbers: tuple[float, ...] = (),
        stream: object = None,
    ) -> tuple[Any, ...]:
        """Start the kernels on `stream`; return new arrays for the results that are not given.

        Options and arrays are as for `Preparations.find`, numbers in the order of their names.
        """
        values, bound = self._bound.find(options, arrays)
        if stream is None and bound.current is not None:
            handle, is_current = bound.current(), bound.current_gpu() == bound.index
        else:
            handle, is_current = stream_handle(stream, arrays[0]), False
        new: tuple[Any, ...] = ()
        if bound.allocate is not None:
            new = bound.allocate(handle, is_current)
            values += map(bound.address_of, new)
        if bound.scratch is not None:
            lent, _held = bound.scratch.take(handle, is_current)
            values += lent
        if bound.launches is not None:
            values += numbers
            if bound.places:  # a list of none takes 0.2 µs
                values += [values[at] + begin for at, begin in bound.places]
            for make, at in bound.derive:
                values.append(make(values[at]))
            bound.launches.start(handle, values)
        return new

    def _bind(self, options: Any, given: dict[str, ArraySpec]) -> _Bound:
        """Return the step for arrays with these specs, its values found by their places."""
        step, like = self._prepare_step(options, given), next(iter(given.values()))
        parts, scratch_bytes = _parts_of(step.scratch)
        calls, derived = NamedCalls(step.calls.calls, {**parts, **step.calls.derived}).used
        places = {name: (of, how) for name, (of, how) in derived.items() if isinstance(how, int)}
        begins = {_SCRATCH: 0} | {name: at for name, (of, at) in places.items() if of == _SCRATCH}
        others = {name: place for name, place in places.items() if name not in begins}
        made = {name: (of, how) for name, (of, how) in derived.items() if not isinstance(how, int)}
        constants = {**dict.fromkeys((*self._bound.names, NOT_GIVEN), 0), **step.constants}
        names, scratch = [*given, *(name for name, *_ in step.results)], None
        if step.scratch or step.draws:
            scratch = Scratch(like, step.gpu, scratch_bytes, begins.values(), draws=step.draws)
            names += ["ticket" if step.draws else _UNUSED, *begins]
        names += [*self._numbers, *others, *made]
        of_torch = is_of_torch(like)
        return _Bound(
            index=step.gpu.index,
            current=partial(current_of_torch(), like[3]) if of_torch else None,
            current_gpu=current_gpu_of_torch() if of_torch else int,
            allocate=allocator(like, step.gpu, *step.results) if step.results else None,
            address_of=torch().Tensor.data_ptr if of_torch else pointer_of,
            scratch=scratch,
            places=tuple((names.index(of), begin) for of, begin in others.values()),
            derive=tuple(
                (lru_cache(_MOST_DERIVED)(make), names.index(of)) for of, make in made.values()
            ),
            launches=_launches(calls, names, constants) if calls else None,
        )


_MOST_DERIVED: Final = 128  # values of each kind, as of layers: by address alone they take 0.1 µs

_SCRATCH: Final = "(scratch)"
"""The name of the memory that parts of scratch lie in."""

_UNUSED: Final = "(ticket)"
"""The name of a ticket that nothing draws from."""


def _parts_of(scratch: tuple[Result, ...]) -> tuple[dict[str, Derived], int]:
    """Return where parts of scratch begin in it, and the bytes of all."""
    parts: dict[str, Derived] = {}
    end = 0
    for name, shape, dtype, _ in scratch:
        parts[name] = _SCRATCH, end
        num_bytes = prod(shape) * np.dtype(dtype).itemsize  # type: ignore[call-overload]
        end += -(-num_bytes // PART_BYTES) * PART_BYTES
    return parts, end


def _launches(
    calls: tuple[RenamedCall, ...], names: list[str], constants: Mapping[str, Any]
) -> Launches:
    """Return the launches of these calls; the same ones for arrays of other sizes, if they can."""
    alike = tuple((call, (*renamed.items(),)) for call, renamed in calls)
    if recorded() is not None:
        return Launches(calls, names, constants)
    return _known_launches(alike, (*names,), (*constants.items(),))


@lru_cache(1024)
def _known_launches(
    calls: tuple[tuple[Call[Any], tuple[tuple[str, str], ...]], ...],
    names: tuple[str, ...],
    constants: tuple[tuple[str, Any], ...],
) -> Launches:
    renamed = [(call, dict(pairs)) for call, pairs in calls]
    return Launches(renamed, names, dict(constants))
