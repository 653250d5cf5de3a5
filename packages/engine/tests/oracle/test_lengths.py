"""Rotary frequencies that depend on length: cached generation fixes them as transformers does.

dynamic      the prompt's keys by its length, each later one by the length when it came
longrope     one set of factors up to the trained length, another beyond; Phi-3 computes all keys
             anew when a request crosses it, others keep the keys they have
Qwen-1       by the length of the prompt, for good
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from answers import check, greedily
from cases import Case
from oracle import prompt

CROSSED = {  # the length where frequencies change
    "llama dynamic": 16,
    "minicpm3": 32,
    "phi3 longrope": 32,
    "wide phi3 longrope": 256,
    "Qwen-1 long": 16,
}

Load = Callable[[str], Case]


@pytest.mark.parametrize("distance", [-20, -5, -1, 0, 1, 9])
@pytest.mark.parametrize("name", CROSSED)
def test_requests_that_begin_before_and_behind_a_change_give_tokens_of_the_oracle(
    name: str, distance: int, load: Load
) -> None:
    case = load(name)
    token_ids = prompt(max(2, CROSSED[name] + distance))

    with case.engine() as engine:
        answer = engine.generate(token_ids, greedily(8))

    check(answer, case)


@pytest.mark.parametrize("name", CROSSED)
def test_prefixes_are_shared_only_where_keys_are_the_same(name: str, load: Load) -> None:
    """Longer and shorter requests over the same tokens, each of which finds all earlier spans."""
    case = load(name)
    token_ids = prompt(CROSSED[name] + 24)
    lengths = [CROSSED[name] + more for more in (-4, 4, 24, 8, -8)]

    with case.engine(requests=8) as engine:
        answers = [engine.generate(token_ids[:length], greedily(8)) for length in lengths]
        answers += [engine.generate([*answer.prompt_ids, *answer.token_ids], greedily(4))
                    for answer in answers]  # fmt: skip

    for answer in answers:
        check(answer, case)


@pytest.mark.parametrize("name", CROSSED)
def test_requests_that_cross_side_by_side_give_tokens_of_the_oracle(name: str, load: Load) -> None:
    case = load(name)
    prompts = [prompt(CROSSED[name] + more, seed=7 + more) for more in (-7, -3, -1, 2)]

    with case.engine() as engine:
        answers = engine.generate(prompts, greedily(8))

    for answer in answers:
        check(answer, case)
