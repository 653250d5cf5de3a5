import json
import math
import re
import shutil
import socket
from importlib.metadata import version

import pytest
import spaninfer_demo
import typer
from spaninfer.cli import app
from spaninfer_engine.load import open_checkpoint

COMMANDS = (
    *("serve", "generate", "chat", "info", "fit", "convert", "tune", "doctor"),
    *("pull", "list", "remove"),
    "hash-key",
    *("spec list", "spec show", "spec check"),
    *("bench engine", "bench kernels", "bench cpu", "bench soak", "bench options"),
    *("bench structured", "bench serve", "bench kv-tiers", "bench compare", "bench plot"),
    *("bench accuracy", "bench turns", "bench vision"),
)
GREEDY = ("--temperature", "0", "--max-tokens", "12")


def commands(group):
    for command in group.commands.values():
        yield from commands(command) if hasattr(command, "commands") else [command]


def test_the_version_is_that_of_the_package(call):
    assert call("--version").stdout == f"spaninfer {version('spaninfer')}\n"


def test_every_command_and_every_option_says_what_it_does():
    group = typer.main.get_command(app)

    found = list(commands(group))

    assert len(found) == len(COMMANDS)
    for command in found:
        assert command.help
        assert [param.name for param in command.params if not param.help] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_printed_and_nothing_is_loaded(call, command):
    result = call(*command.split(), "--help")

    assert result.exit_code == 0
    assert command.split()[-1] in result.stdout


def test_a_text_is_continued_behind_its_prompt(call):
    result = call("generate", "demo", "Once upon a time", *GREEDY)

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Once upon a time")
    assert len(result.stdout) > len("Once upon a time") + 12


def test_a_prompt_can_come_from_standard_input(call):
    by_argument = call("generate", "demo", "Once upon a time", *GREEDY)

    by_input = call("generate", "demo", "-", *GREEDY, typed="Once upon a time")

    assert by_input.stdout == by_argument.stdout


@pytest.mark.parametrize(
    "command", [("generate", "demo", "Once"), ("chat", "demo")], ids=lambda c: c[0]
)
def test_weights_are_quantised_where_it_is_asked_for(call, refusal, command):
    result = call(*command, "--quantize", "int4", *GREEDY, typed="Hello")

    assert result.exit_code == 0, result.output
    groups = call("info", "--quantize", "int4", "--quantize-group", "32", "--program").stdout
    rows = call("info", "--quantize", "int4", "--quantize-group", "row").stdout
    assert "one scale per group of 32 channels" in call("info", "--quantize", "int4").stdout
    assert "one scale per group of 32 channels" in groups
    assert "one scale per row" in rows
    assert "40" in refusal(*command, "--quantize", "int4", "--quantize-group", "40")
    assert "got torch" in refusal(*command, "--quantize", "fp8", "--backend", "torch")


def test_an_answer_that_cannot_be_as_long_as_that_is_a_warning(call):
    longer = call("generate", "demo", "Once", "--max-len", "16", "--max-tokens", "17")
    fitting = call("generate", "demo", "Once", "--max-len", "16", "--max-tokens", "16")

    assert "--max-tokens is 17, but the context has 16 tokens" in longer.stderr
    assert "warning" not in fitting.stderr


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        (["generat", "demo", "x"], "generate"),
        (["bench", "engin"], "engine"),
        (["info", "--max-length", "5"], "--max-len"),
        (["serve", "--kv-dsk", "x"], "--kv-disk"),
    ],
)
def test_a_name_that_is_almost_right_is_refused_with_the_nearest(refusal, typed, near):
    assert near in refusal(*typed).split("No such", 1)[1]


BENCHMARKS = ("engine", "options", "serve", "soak", "turns", "structured", "accuracy", "vision")


@pytest.mark.parametrize(
    "command", ["serve", "generate", "chat", "info", *(f"bench {name}" for name in BENCHMARKS)]
)
def test_every_command_that_builds_an_engine_has_a_model_first_and_the_same_sizes(command):
    group = typer.main.get_command(app)
    for name in command.split():
        group = group.commands[name]

    assert group.params[0].name == "model"
    spelt = {name for param in group.params for name in param.opts}
    assert spelt >= {"--threads", "--memory", "--max-len", "--quantize"}


@pytest.mark.parametrize("command", ["convert demo {}", "tune demo", "bench serve", "bench soak"])
def test_no_command_keeps_to_more_cpus_than_there_are(refusal, tmp_path, command):
    words = command.format(tmp_path / "out").split()

    assert "--threads is 9999, but this process may use" in refusal(*words, "--threads", "9999")


@pytest.mark.parametrize(
    "command", ["engine demo --only tpot_bs1", "options demo", "serve demo", "turns demo"]
)
def test_benchmarks_take_sizes_that_engines_refuse(refusal, command):
    refused = refusal("bench", *command.split(), "--max-len", "999999")

    assert "max_len is 999999; the model was made for 4096 positions" in refused


def test_the_same_seed_gives_the_same_text_and_another_one_another(call):
    first, again, other = (
        call(
            "generate", "demo", "The", "--temperature", "1", "--max-tokens", "24", "--seed", seed
        ).stdout
        for seed in ("5", "5", "6")
    )

    assert first == again
    assert first != other


def test_one_long_value_of_a_spec_does_not_push_the_words_about_the_others_aside(call):
    lines = call("spec", "show", "qwen3").stdout.splitlines()

    [short] = [line for line in lines if line.startswith("embed_norm = ")]
    assert max(map(len, lines)) > 150
    assert short.index("# vocabulary: ") < 70


def test_a_chat_answers_each_line_until_the_input_ends(call):
    result = call("chat", *GREEDY, typed="Hello!\n\nTell me a fable about a fox.\n")

    assert result.exit_code == 0, result.output
    answers = [text.strip() for text in result.stdout.split("> ")]
    assert [bool(answer) for answer in answers] == [False, True, False, True, False]


def test_a_chat_goes_on_after_a_question_that_is_too_long(call):
    result = call("chat", *GREEDY, typed=f"{'word ' * 9000}\nHello!\n")

    assert result.exit_code == 0
    assert "tokens" in result.stderr
    assert result.stdout.split("> ")[2].strip()


@pytest.fixture
def silent(tmp_path):
    """The bundled model without its chat template."""
    folder = tmp_path / "silent"
    shutil.copytree(spaninfer_demo.path(), folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def test_a_model_without_a_chat_template_is_refused_before_the_first_question(call, silent):
    result = call("chat", str(silent), typed="Hello!\nAre you there?\n")

    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("has no chat template") == 1
    assert "spaninfer generate" in result.stderr
    assert "--chat-template FILE" in result.stderr


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_model_without_tokenizer_files_asks_for_token_ids(call, silent, command):
    for path in silent.iterdir():
        if "token" in path.name:
            path.unlink()

    prompt = ["Hello"] if command == "generate" else []

    result = call(command, str(silent), *prompt, typed="Hello!\n")

    assert result.exit_code == 2
    assert result.stdout == ""
    assert "this model has no tokenizer files; send token ids" in " ".join(result.stderr.split())


def test_a_chat_template_can_be_given_as_a_file(call, silent, tmp_path):
    template = tmp_path / "plain.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}", encoding="utf-8")

    result = call("chat", str(silent), "--chat-template", str(template), *GREEDY, typed="Once\n")

    assert result.exit_code == 0, result.output
    assert result.stdout.split("> ")[1].strip()


@pytest.mark.parametrize(
    ("text", "says"), [(None, "No such file"), (b"\xff", "decode"), (b"{% for %}", "refused")]
)
def test_a_chat_template_that_cannot_be_used_is_refused_at_once(refusal, tmp_path, text, says):
    template = tmp_path / "broken.jinja"
    if text is not None:
        template.write_bytes(text)

    said = refusal("serve", "--port", "0", "--chat-template", str(template))

    assert said.count("error:") == 1
    assert says in said


def test_info_is_short_and_tells_sizes_what_weights_take_and_what_fits(call):
    result = call("info", "--memory", "64MiB", "--max-len", "512")

    assert result.exit_code == 0, result.output
    rows = {line.split("│")[1].strip(): line for line in result.stdout.splitlines() if "│" in line}
    assert len(result.stdout.splitlines()) < 25
    assert "numpy and Numba" in rows["backend"]
    assert "12,038,144" in rows["parameters"]
    assert "without the tower's" in rows["weights take"]
    assert "512 tokens" in rows["context"]
    assert "64 MiB" in rows["KV cache"]
    assert "16 requests of full length" in rows["spans"]  # 8 KiB a token
    with open_checkpoint(spaninfer_demo.path()) as checkpoint:
        reader = checkpoint.reader
        names = [name for name in reader.names if ".language_model." in name]
        stored = sum(2 * math.prod(reader.shape(name)) for name in names)
    taken = float(rows["weights take"].split("│")[2].split()[0]) * 2**20
    assert taken == pytest.approx(stored, rel=0.2)  # norms are widened; the tower is not counted


def test_info_lists_the_bound_program_where_it_is_asked_for(call):
    result = call("info", "--program")

    *_, last = result.stdout.rstrip().splitlines()
    assert last.lstrip(" 0123456789").startswith("logits.0 = linear(")


def test_a_converted_model_is_served_from_its_folder(call, refusal, tmp_path):
    out = tmp_path / "demo-int8"

    converted = call("convert", "demo", str(out), "--quantize", "int8")

    assert converted.exit_code == 0, converted.output
    assert converted.stdout == f"{out}\n"
    assert "packed: one scale per group of 32 channels" in call("info", str(out)).stdout
    assert "backend torch was requested" in refusal("info", str(out), "--backend", "torch")
    assert "new or empty" in refusal("convert", "demo", str(out))


def test_a_model_that_is_nowhere_is_refused_with_the_ways_out(refusal):
    said = refusal("generate", "no/such/model", "x")

    assert "'no/such/model'" in said
    assert "demo" in said
    assert "ORG/NAME of the hub" in said


def test_a_value_out_of_range_is_refused_by_name(refusal):
    assert "temperature is 7.0; allowed is 0 (greedy) to 2" in refusal(
        "generate", "demo", "x", "--temperature", "7"
    )


def test_an_unread_key_is_a_warning_of_one_sentence(call, tmp_path):
    folder = shutil.copytree(spaninfer_demo.path(), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["colour"] = "green"
    (folder / "config.json").write_text(json.dumps(config))

    result = call("info", str(folder))

    assert result.exit_code == 0
    warnings = [line for line in result.stderr.splitlines() if "colour" in line]
    assert warnings == ["warning: qwen3_vl.toml: config.json says colour, which nothing reads"]


def test_a_port_that_is_taken_is_refused_before_a_model_is_looked_for(refusal):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        said = refusal("serve", "no/such/model", "--port", str(port))

    assert f"cannot listen on 127.0.0.1:{port}" in said
    assert "--port 0 takes any free one" in said


def test_a_size_that_is_none_is_refused(refusal):
    assert "'lots'" in refusal("serve", "--memory", "lots")


def test_a_backend_and_a_dtype_that_do_not_go_together_are_refused(refusal):
    assert "--backend torch" in refusal("info", "--backend", "cpu", "--dtype", "float16")


def test_an_answer_follows_a_schema_or_a_regular_expression(call, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "array", "items": {"type": "integer"}, "maxItems": 3}')

    by_schema = call("generate", "demo", "Once", "--json-schema", str(schema), "--seed", "1")
    by_regex = call("generate", "demo", "Once", "--regex", "[A-Z]{5}", "--seed", "1")

    assert isinstance(json.loads(by_schema.stdout.removeprefix("Once")), list)
    assert re.fullmatch(r"Once[A-Z]{5}\n", by_regex.stdout)


def test_a_form_that_cannot_be_used_is_a_sentence(refusal, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"properties": {"a": {"not": {}}}}')

    assert "'not' at $.properties.a.not" in refusal(
        "generate", "demo", "x", "--json-schema", str(schema)
    )
    assert "nowhere.json cannot be read" in refusal(
        "generate", "demo", "x", "--json-schema", "nowhere.json"
    )
    assert "exactly one of" in refusal(
        "generate", "demo", "x", "--json-schema", str(schema), "--regex", "a"
    )
