import pytest


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("serve", "--port", "abc"), "Invalid value for '--port': 'abc' is not a whole number."),
        (("generate", "demo", "x", "--temperature", "hot"), "'hot' is not a number."),
        (("serve", "--dtype", "float8"), "'--dtype': 'float8' is not one of 'float32', 'bfloat16'"),
        (("generate", "demo", "x", "--threads", "0"), "0 is too small; allowed is 1 and more."),
        (("bench", "engine", "--runs", "many"), "'--runs': 'many' is not a whole number."),
    ],
)
def test_a_value_that_is_none_is_named_in_a_sentence(call, typed, said):
    result = call(*typed)

    shown = " ".join(result.stderr.replace("│", " ").split())
    assert result.exit_code == 2
    assert said in shown
    assert "Value error" not in shown
