"""Shapes by letter."""

import doctest

import numpy as np
import pytest
from spaninfer_kernel_launch import ShapeError, contract, match


def shaped(*shape):
    return np.empty(shape)


def test_the_examples_of_its_docstring_hold():
    assert doctest.testmod(contract).failed == 0


def test_letters_are_bound_and_numbers_demanded():
    sizes = match(query=(shaped(7, 16, 128), "T H 128"), table=(shaped(7), "T"))

    assert sizes == {"T": 7, "H": 16}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(x=(shaped(2, 3), "T")), r"x: expected axes \(T\), got shape \(2, 3\)"),
        (dict(x=(shaped(2, 3), "T T")), "x: T is 3, but x has T = 2"),
        (dict(x=(shaped(2), "T"), y=(shaped(3), "T")), "y: T is 3, but x has T = 2"),
        (dict(x=(shaped(2, 8), "T 16")), "x: axis 1 is 8, but the kernel needs 16"),
        (dict(x=(shaped(0), "T"), y=(shaped(1), "T")), "y: T is 1, but x has T = 0"),
    ],
)
def test_what_does_not_fit_is_named_with_both_sides(arguments, message):
    with pytest.raises(ShapeError, match=message):
        match(**arguments)
