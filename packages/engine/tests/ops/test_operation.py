import numpy as np
import pytest
from spaninfer_engine.dummy_array import DummyArray
from spaninfer_engine.ops.operation import HeadRows, LastAxis, Operation, ScaledRows, UnitRows, Use
from spaninfer_engine.spec.weight_nodes import Weight


def test_rows_of_every_head_are_a_view():
    array = np.arange(24.0).reshape(12, 2)  # 3 heads of 4 rows

    rows = HeadRows(heads=3, start=1, stop=3)(array)
    turned = HeadRows(heads=3, start=1, stop=3, transposed=True)(array)

    np.testing.assert_array_equal(rows[2], array[9:11])
    np.testing.assert_array_equal(turned[2], array[9:11].T)
    assert np.shares_memory(rows, array)


def test_unit_rows_have_length_one_and_keep_their_format():
    array = np.array([[3, 4], [0, 0]], np.float16)

    unit = UnitRows()(array)

    np.testing.assert_allclose(unit, [[0.6, 0.8], [0, 0]], rtol=1e-3)
    assert unit.dtype == np.float16


@pytest.mark.parametrize("shape", [(2, 3), (2,)], ids=["a matrix", "a bias"])
def test_a_second_tensor_scales_the_rows_of_the_first(shape):
    use = Use("w", (Weight("w", shape), Weight("factors", (2,))), view=ScaledRows())
    stored = np.ones(shape, np.float16), np.array([2, 0.5], np.float16)

    array = use.assemble(stored)

    assert [row.max() for row in array] == [row.min() for row in array] == [2, 0.5]
    assert array.dtype == np.float32  # products are not rounded to what is stored


def test_tensors_are_stacked_along_a_new_axis():
    use = Use("gate", (Weight("a", (2, 3)), Weight("b", (2, 3))), stacked=True)

    array = use.assemble((np.zeros((2, 3)), np.ones((2, 3))))

    assert array.shape == use.shape == (2, 2, 3)
    assert array[1].min() == 1


@pytest.mark.parametrize(
    ("use", "shape"),
    [
        (Use("w", (Weight("w", (12, 5)),)), (12, 5)),
        (Use("w", (Weight("a", (2, 3)), Weight("b", (2, 3))), stacked=True), (2, 2, 3)),
        (Use("w", (Weight("w", (12, 5)),), view=HeadRows(3, 1, 3, transposed=True)), (3, 5, 2)),
        (Use("w", (Weight("w", (12, 5)),), view=UnitRows()), (12, 5)),
        (Use("w", (Weight("w", (12, 5)), Weight("s", (12,))), view=ScaledRows()), (12, 5)),
        (Use("w", (Weight("w", (1, 12, 5)),), view=LastAxis()), (12, 5)),
    ],
)
def test_noise_becomes_noise_of_the_shape_that_the_operator_sees(use, shape):
    stored = tuple(DummyArray(weight.shape, 0.0, 0.1, seed=1) for weight in use.tensors)

    assert use.assemble(stored) == DummyArray(shape, 0.0, 0.1, seed=1)


def test_an_operation_prints_as_a_call():
    use = Use("weight", (Weight("w", (2, 3)),))

    operation = Operation("rms_norm", ("x",), ("y",), (use,), (("eps", 1e-5),))

    assert str(operation) == "y = rms_norm(x, weight=w[2 3], eps=1e-05)"
    assert str(Operation("append", ("k", "v"), ())) == "append(k, v)"


def test_a_constant_that_is_not_there_is_an_error():
    with pytest.raises(KeyError):
        Operation("add", ("x", "y"), ("z",)).constant("scale")
