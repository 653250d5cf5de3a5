"""Values as keys: equal ones have one object."""

from spaninfer_kernel_launch import interned


def test_equal_values_have_one_object():
    first = interned((8, "float16"))

    assert interned((8, "float" + str(16))) is first
    assert first.value == (8, "float16")
    assert interned((8, "float32")) != first
