from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from spaninfer_engine.backends.cpu.ops import CpuOps
from spaninfer_engine.backends.reference.ops import ReferenceOps
from spaninfer_engine.ops.bound import MEDIA, TEXT
from spaninfer_engine.ops.operation import Operation, Use
from spaninfer_engine.ops.table import Claim
from spaninfer_engine.program.bind import bind, find_match
from spaninfer_engine.program.program import Program
from spaninfer_engine.spec.weight_nodes import Weight


def _nothing(*_: object) -> Any:
    """A kernel is not needed to match."""


NORM = Claim("add_norm", ("h = add x y", "n = rms_norm h"), "h n", _nothing)
INNER = Claim("add_norm", ("h = add x y", "n = rms_norm h"), "n", _nothing)

ADD = Operation("add", ("a", "b"), ("sum",))
RMS = Operation("rms_norm", ("sum",), ("normed",))


def test_a_claim_matches_by_dataflow_and_names_what_passes_its_border():
    match = find_match(NORM, [ADD, RMS], Counter({"sum": 2}))

    assert match is not None
    assert match.inputs == ("a", "b")
    assert match.outputs == ("sum", "normed")


def test_a_value_that_a_claim_keeps_to_itself_must_have_no_reader_outside():
    assert find_match(INNER, [ADD, RMS], Counter({"sum": 1})) is not None
    assert find_match(INNER, [ADD, RMS], Counter({"sum": 2})) is None


def test_a_value_that_a_claim_overwrites_must_have_no_reader_later():
    in_place = Claim("add_norm", NORM.pattern, "h n", _nothing, overwrites="x")

    assert find_match(in_place, [ADD, RMS], Counter({"a": 1, "b": 2, "sum": 2})) is not None
    assert find_match(in_place, [ADD, RMS], Counter({"a": 2, "b": 1, "sum": 2})) is None


@pytest.mark.parametrize("also_later", [False, True])
def test_readers_in_front_of_a_claim_do_not_keep_it_from_overwriting(also_later):
    class InPlace(ReferenceOps):
        claims = (
            Claim(
                "added",
                ("y = add x z",),
                "y",
                lambda _taken, _pack: lambda _step, x, z: np.add(x, z, out=x),
                overwrites="x",
            ),
        )

    embed = Operation(
        "embed", (), ("a",), (Use("table", (Weight("t", (3, 4)),)),), (("scale", 1.0),)
    )
    doubled = Operation("scale", ("a",), ("b",), constants=(("factor", 2.0),))
    added = Operation("add", ("a", "b"), ("c",), constants=(("scale", 1.0),))
    joined = Operation("concat", ("c", "a" if also_later else "b"), ("d",))
    reader = Arrays(t=np.ones((3, 4), np.float32))
    step: Any = type("Tokens", (), {"token_ids": np.array([1]), "has_media": False})

    bound = bind(Program((embed, doubled, added, joined), "d", (), ()), InPlace(), reader)

    assert ("added" in [item.name for item in bound[TEXT].kernels]) is not also_later
    expected = [3, 3, 3, 3, 1, 1, 1, 1] if also_later else [3, 3, 3, 3, 2, 2, 2, 2]
    np.testing.assert_array_equal(bound.run(step), [expected])


@pytest.mark.parametrize(
    "operations",
    [
        [ADD],
        [RMS, ADD],
        [ADD, Operation("rms_norm", ("other",), ("normed",))],
        [ADD, Operation("layer_norm", ("sum",), ("normed",))],
    ],
    ids=["too short", "other order", "other value", "other operator"],
)
def test_other_sequences_are_left_alone(operations):
    assert find_match(NORM, operations, Counter()) is None


def test_the_same_letter_is_the_same_value():
    square = Claim("square", ("y = gate x x",), "y", _nothing)

    same = find_match(square, [Operation("gate", ("a", "a"), ("y",))], Counter())
    other = find_match(square, [Operation("gate", ("a", "b"), ("y",))], Counter())

    assert same is not None
    assert other is None


def test_a_claim_may_refuse_what_its_pattern_matches():
    never = Claim("never", ("y = add a b",), "y", _nothing, lambda _: False)

    assert find_match(never, [ADD], Counter()) is None


class Arrays:
    """A reader over a dictionary that counts how often each array is read."""

    def __init__(self, **arrays: np.ndarray) -> None:
        self.arrays = arrays
        self.reads: Counter[str] = Counter()

    def read(self, name: str) -> np.ndarray:
        self.reads[name] += 1
        return self.arrays[name]

    def quantized(self, name: str) -> None:  # noqa: ARG002
        return None


def _linear(x: str, y: str, weight: Weight) -> Operation:
    return Operation("linear", (x,), (y,), (Use("weight", (weight,)),))


def test_slots_are_used_again_so_depth_does_not_cost_memory():
    weight = Weight("w", (4, 4))
    chain = [_linear(f"x{index}", f"x{index + 1}", weight) for index in range(20)]
    embed = Operation(
        "embed", (), ("x0",), (Use("table", (Weight("t", (3, 4)),)),), (("scale", 1.0),)
    )
    reader = Arrays(w=np.eye(4, dtype=np.float32), t=np.ones((3, 4), np.float32))

    bound = bind(Program((embed, *chain), "x20", (), ()), CpuOps(), reader)

    assert bound[TEXT].num_slots == 1
    assert reader.reads["w"] == 1


def test_a_tied_table_is_read_once_and_shared_where_the_layouts_agree():
    table = Weight("t", (3, 4))
    embed = Operation("embed", (), ("x",), (Use("table", (table,)),), (("scale", 1.0),))
    head = _linear("x", "logits", table)
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    step: Any = type("Tokens", (), {"token_ids": np.array([2, 0]), "has_media": False})

    bound = bind(Program((embed, head), "logits", (), ()), ReferenceOps("float32"), Arrays(t=array))

    np.testing.assert_array_equal(bound.run(step), array[[2, 0]] @ array.T)


def test_a_program_in_two_parts_computes_all_tokens_first_and_then_those_with_logits():
    embed = Operation(
        "embed", (), ("a",), (Use("table", (Weight("t", (3, 4)),)),), (("scale", 1.0),)
    )
    doubled = Operation("scale", ("a",), ("b",), constants=(("factor", 2.0),))
    gathered = tuple(Operation("gather_rows", (name,), (f"{name}w",)) for name in "ab")
    added = Operation("add", ("aw", "bw"), ("c",), constants=(("scale", 1.0),))
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    program = Program((embed, doubled, *gathered, added), "c", (), ())
    bound = bind(program, ReferenceOps("float32"), Arrays(t=array))[TEXT]
    tokens = {"token_ids": np.array([2, 0, 1]), "has_media": False}
    first: Any = type("Tokens", (), tokens)  # does not know who gets logits
    steps: list[Any] = [
        type("Tokens", (), {**tokens, "logit_indices": np.array(rows)}) for rows in ([2], [1, 2])
    ]

    begun = bound.begin(first)

    for step in steps:
        expected = 3 * array[step.token_ids][step.logit_indices]
        np.testing.assert_array_equal(bound.finish(step, list(begun)), expected)
        np.testing.assert_array_equal(bound.run(step), expected)


def test_each_use_is_packed_once_in_the_layout_that_it_is_wanted_in():
    """A table in 16 bits stays so for the embedding, and is widened for the heads."""
    packed = []

    class Noting(ReferenceOps):
        def pack(self, arrays: Any, layout: str) -> Any:
            result = super().pack(arrays, layout)
            packed.append((layout, result.dtype.name, result.shape))
            return result

    table = Weight("t", (3, 4))
    embed = Operation("embed", (), ("x",), (Use("table", (table,)),), (("scale", 1.0),))
    heads = (_linear("x", "a", table), _linear("a", "b", table), _linear("x", "c", table))
    reader = Arrays(t=np.ones((3, 4), ml_dtypes.bfloat16))

    bind(Program((embed, *heads), "c", (), ()), Noting("float32"), reader)

    assert packed == [("stored", "bfloat16", (3, 4)), ("wide", "float32", (3, 4))]


def test_progress_counts_operations():
    told = []
    embed = Operation(
        "embed", (), ("x",), (Use("table", (Weight("t", (3, 4)),)),), (("scale", 1.0),)
    )
    reader = Arrays(t=np.ones((3, 4), np.float32))

    bind(
        Program((embed,), "x", (), ()),
        CpuOps(),
        reader,
        lambda done, total: told.append((done, total)),
    )

    assert told == [(1, 1)]


def test_programs_are_bound_when_they_are_first_needed() -> None:
    array = np.zeros((3, 2), np.float32)
    embed = Operation(
        "embed", (), ("x",), (Use("table", (Weight("t", (3, 2)),)),), (("scale", 1.0),)
    )
    bound = bind(Program((embed,), "x", (), ()), ReferenceOps("float32"), Arrays(t=array))

    before = str(bound)
    media = bound[MEDIA]

    assert bound.keys == {TEXT, MEDIA}
    assert bound[MEDIA] is media
    assert str(bound) == before + "\n" + str(media)
