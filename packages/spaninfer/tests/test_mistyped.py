import pytest
import typer
from spaninfer.cli import app
from spaninfer.other_engines import SAID


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("serve", "--port", "abc"), "Invalid value for '--port': 'abc' is not a whole number."),
        (("generate", "demo", "x", "--temperature", "hot"), "'hot' is not a number."),
        (("serve", "--dtype", "float8"), "'--dtype': 'float8' is not one of 'float32', 'bfloat16'"),
        (("bench", "engine", "--runs", "0"), "0 is too small; allowed is 1 and more."),
        (("bench", "engine", "--runs", "many"), "'--runs': 'many' is not a whole number."),
    ],
)
def test_a_value_that_is_none_is_named_in_a_sentence(call, typed, said):
    result = call(*typed)

    shown = " ".join(result.stderr.replace("│", " ").split())
    assert result.exit_code == 2
    assert said in shown
    assert "Value error" not in shown


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("serve", "--model", "demo"), "No such option: --model. The model is the first argument."),
        (("serve", "--max-model-len", "512"), "--max-model-len. Here it is --max-len."),
        (("chat", "-m", "demo"), "No such option: -m. The model is the first argument."),
        (("serve", "demo", "--prot", "80"), "No such option: --prot (Possible options: "),
    ],
)
def test_an_option_of_another_engine_is_answered_with_ours(refusal, typed, said):
    assert said in refusal(*typed).replace("│", " ").replace("  ", " ")


def test_no_option_that_other_engines_are_translated_to_is_missing_here():
    options = {
        name
        for command in typer.main.get_command(app).commands.values()
        for param in command.params
        for name in param.opts + param.secondary_opts
    }
    named = {word.strip(".,:") for said in SAID.values() for word in said.split() if "--" in word}

    assert named <= options
    assert SAID.keys().isdisjoint(options)


@pytest.mark.parametrize(
    "typed", [("generate",), ("generate", "hello"), ("generate", "Once", "upon", "a", "time")]
)
def test_a_prompt_without_a_model_or_without_quotes_is_answered_with_an_example(refusal, typed):
    said = refusal(*typed).replace("│", " ")

    assert 'spaninfer generate demo "Once upon a time"' in " ".join(said.split())


def test_an_argument_that_is_missing_is_named(refusal):
    assert "Missing argument 'name'. ╰" in refusal("remove").replace("│", "").replace("  ", " ")


@pytest.mark.parametrize("command", ["serve", "generate", "bench engine"])
def test_help_in_80_columns_cuts_no_name_short(call, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)

    shown = call(*command.split(), "-h").stdout

    assert max(map(len, shown.splitlines())) <= 80
    assert not [line for line in shown.splitlines() if "…" in line and "cuda:1, …" not in line]
