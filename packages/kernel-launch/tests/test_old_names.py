"""Deprecated names: they work, and warn with the new name."""

import pytest
import spaninfer_kernel_launch
from spaninfer_kernel_launch import inspect_array, renamed


def test_an_old_name_is_the_new_object_and_warns():
    find = renamed("shop", Ware=("Goods", 7))

    with pytest.warns(DeprecationWarning, match=r"shop\.Ware is now shop\.Goods"):
        assert find("Ware") == 7


def test_a_name_that_never_was_is_still_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'shop' has no attribute 'Wares'"):
        renamed("shop", Ware=("Goods", 7))("Wares")


def test_look_at_is_the_old_name_of_inspect_array():
    with pytest.warns(DeprecationWarning, match="look_at is now .*inspect_array"):
        assert spaninfer_kernel_launch.look_at is inspect_array
