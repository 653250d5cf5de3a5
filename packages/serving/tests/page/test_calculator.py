"""The playground's calculator beside Python's arithmetic; run by Node.js, where there is one."""

import random

import pytest
from page_modules import needs_node, page_function

pytestmark = needs_node


@pytest.fixture(scope="module")
def calculated(tmp_path_factory):
    """What computes expressions, in one process."""
    return page_function(tmp_path_factory.mktemp("page"), "calculator", "calculate")


def expression(draw, depth):
    """Return an expression that Python reads in the same way."""
    if depth == 0 or draw.random() < 0.2:
        return draw.choice(["7", "2.5", "0.125", "13", "1e2", "-3"])
    left, right = expression(draw, depth - 1), expression(draw, depth - 1)
    return draw.choice(
        [
            f"{left} + {right}", f"{left}-{right}", f"{left} * {right}", f"({left}) / 4",
            f"({left}{draw.choice('+-*')}{right})", f"-({left})", f"({left})**2",
            f"-2 ** {draw.choice('0123')}", f"{left} * -2**-1",
        ]
    )  # fmt: skip


def test_expressions_have_the_values_that_python_gives_them(calculated):
    draw = random.Random(5)
    texts = [text for _ in range(300) if (text := expression(draw, 5)).count("**") < 4]

    told = calculated(*texts)

    assert len(texts) > 150
    for text, value in zip(texts, told, strict=True):
        wanted = eval(text)  # ours, of digits and operators
        assert float(value) == pytest.approx(wanted, rel=1e-12), text


def test_signs_powers_and_other_spellings(calculated):
    cases = {
        "0.1 + 0.2": "0.3", "2^3^2": "512", "-2^2": "-4", "2^-1": "0.5", "7 % 4": "3",
        "6 \u00d7 7 \u00f7 2 \u2212 1": "20", " ( 1 ) ": "1",
        "--3": "3", ".5*4": "2", "2**10": "1024",
    }  # fmt: skip

    assert calculated(*cases) == list(cases.values())


def test_what_is_no_expression_is_refused_with_a_reason_and_never_run(calculated):
    cases = {
        "": "ends too early", "2 +": "ends too early", "* 2": "missing before *",
        "(1": "not closed", "1 2": "operator is missing before 2", "1)": "missing before )",
        "1/0": "division by zero", "5 % (2-2)": "division by zero", "9^9^9": "no finite number",
        "process.exit(3)": 'cannot read "p"', "(-8)^.5": "no finite number", "1..2": "missing",
        "(" * 5000 + "1" + ")" * 5000: "too deeply", "-" * 5000 + "1": "too deeply",
    }  # fmt: skip

    for text, reason in zip(cases, calculated(*cases), strict=True):
        assert reason.startswith("error: "), text
        assert cases[text] in reason, text
