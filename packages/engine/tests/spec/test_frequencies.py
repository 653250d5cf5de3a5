from __future__ import annotations

import pytest
from spaninfer_engine.spec.frequencies import Frequencies


@pytest.mark.parametrize(
    ("kind", "length", "state"),
    [
        ("default", 10**6, ()),
        ("yarn", 10**6, ()),
        ("dynamic", 64, ()),
        ("dynamic", 65, (65,)),
        ("longrope", 32, ()),
        ("longrope", 33, (1,)),
        ("ntk_prompt", 32, ()),
        ("ntk_prompt", 33, (1,)),
        ("ntk_prompt", 64, (1,)),
        ("ntk_prompt", 65, (2,)),
    ],
)
def test_a_length_changes_frequencies_only_behind_what_was_trained(
    kind: str, length: int, state: tuple[int, ...]
) -> None:
    frequencies = Frequencies(kind, dim=8, theta=1e4, max_len=64, original_len=32)  # type: ignore[arg-type]

    assert frequencies.state(length) == state
