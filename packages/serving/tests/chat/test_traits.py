"""Traits of published chat templates, and of small ones for the remaining cases."""

import json
import os
from pathlib import Path

import pytest
from recorded_answers import OFFERED, TOOLS, read, said
from spaninfer_engine.text import ChatTemplate, Tokenizer
from spaninfer_engine.text.ids_only import Wordless
from spaninfer_engine.text.special import SpecialToken
from spaninfer_serving.chat.constrained_calls import grammar_of_calls
from spaninfer_serving.chat.prompt import answer_format, chat_prompt, effort_variables
from spaninfer_serving.chat.traits import CallStyle, traits_of
from spaninfer_serving.dialects.detect import find_dialect, find_thinking
from spaninfer_serving.dialects.table import DIALECTS
from spaninfer_serving.wire.chat import ChatRequest
from spaninfer_serving.wire.errors import Problem

FOLDER = Path(os.environ["SPANINFER_TEST_DATA"]) / "chat_templates"
NOTHING = Tokenizer(Wordless(8), [])
OBJECTS, TEXTS = CallStyle(), CallStyle(are_objects=False)

# template: dialect, marks of reasoning, has it a place for tools, how it takes calls
PUBLISHED = {
    "CohereForAI-c4ai-command-r-plus-tool_use": (
        "command_r", None, True, CallStyle(no_content="absent")),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": (
        "command_r7b", "<|START_THINKING|>", True, OBJECTS),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": ("hermes", None, True, OBJECTS),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("hermes", None, True, OBJECTS),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", None, True, OBJECTS),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("deepseek_v3", "<think>", False, TEXTS),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("deepseek_v3", "<think>", False, TEXTS),
    "google-gemma-2-2b-it": (None, None, False, OBJECTS),
    "llama-cpp-deepseek-r1": ("deepseek_v3", "<think>", False, TEXTS),
    "meetkai-functionary-medium-v3.1": ("functionary_v31", None, True, TEXTS),
    "meetkai-functionary-medium-v3.2": ("functionary_v32", None, True, TEXTS),
    "meta-llama-Llama-3.1-8B-Instruct": ("llama3", None, True, OBJECTS),
    "meta-llama-Llama-3.2-3B-Instruct": ("llama3", None, True, OBJECTS),
    "meta-llama-Llama-3.3-70B-Instruct": ("llama3", None, True, OBJECTS),
    "microsoft-Phi-3.5-mini-instruct": (None, None, False, CallStyle(no_content="empty")),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral", None, True, OBJECTS),
}  # fmt: skip


def published(name):
    path = FOLDER / f"{name}.jinja"
    if not path.exists():
        pytest.skip(f"needs real data: chat_templates/{name}.jinja")
    return made(path.read_text(encoding="utf-8"))


def made(source):
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    return ChatTemplate(source, origin="a test", special_tokens=special)


def chat(*messages, **body):
    first = {"role": "user", "content": "What is the weather?"}
    return ChatRequest.model_validate({"messages": [first, *messages], **body})


def call(name, arguments, call_id="abcdefghi"):
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


SIMPLE = {
    "city": {"type": "string", "description": "c"},
    "days": {"type": "integer", "description": "d"},
}
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "d",
        "parameters": {"type": "object", "properties": SIMPLE, "required": ["city"]},
    },
}


@pytest.mark.model
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_template_is_understood(name):
    dialect, thinking, takes_tools, style = PUBLISHED[name]

    traits = traits_of(published(name), NOTHING)

    assert traits.dialect_name == dialect
    assert (traits.thinking.opens[0] if traits.thinking else None) == thinking
    assert traits.takes_tools == takes_tools
    assert traits.call_style == style


@pytest.mark.model
@pytest.mark.parametrize("name", [name for name, found in PUBLISHED.items() if found[0]])
def test_a_call_that_a_template_writes_is_read_back(name):
    template = published(name)
    traits = traits_of(template, NOTHING)
    arguments = {"city": 'Pa"ris\n', "days": 3}
    assistant = {"role": "assistant", "content": None, "tool_calls": [call("look", arguments)]}
    tools = [LOOK] if traits.takes_tools else []

    before, after = (
        template.render(chat_prompt(body, traits).messages, tools=chat_prompt(body, traits).tools)
        for body in (chat(tools=tools), chat(assistant, tools=tools))
    )
    form = answer_format(chat(tools=tools), traits, before)
    pairs = zip(before.text, after.text, strict=False)
    shared = next((at for at, (a, b) in enumerate(pairs) if a != b), len(before.text))
    written = after.text[shared:]
    if not tools:  # the template shows calls all the same
        form = form.of(DIALECTS[traits.dialect_name], None, TOOLS)
        written = after.text.split("Assistant\uff5c>")[1]

    for pieces in ([written], list(written)):
        assert said(read(form, pieces))[2] == [("look", arguments)]


@pytest.mark.parametrize(
    ("source", "dialect", "thinking"),
    [
        ("'<tool_call>\\n' <think> </think>", "hermes", "<think>"),
        ("<tool_call>\n<function=x>\n<parameter=y>", "qwen3_coder", None),
        ("<tool_call>x<arg_key>", "glm45", None),
        ("<|tool_calls_section_begin|>", "kimi_k2", None),
        ("<|channel|>analysis<|message|> <|start|>", "harmony", None),
        ("[TOOL_CALLS] [THINK] [/THINK]", "mistral", "[THINK]"),
        ("<seed:tool_call> <function= <parameter= </seed:think>", "seed_oss", "<seed:think>"),
        ("<minimax:tool_call> <invoke name= </think>", "minimax_m2", "<think>"),
        ('<|tool_call>call: <|"|> <channel|>', "gemma4", "<|channel>thought"),
        ("functools[", "functools", None),
        ("<|action_start|> <|plugin|>", "internlm2", None),
        ("<|tool_call|>", "granite", None),
        ("<|python_start|>", "llama4", None),
        ("<tool_calls>", "hunyuan", None),
        ("<function_calls>", "olmo3", None),
        ("<|tool_call_start|>", "lfm2", None),
        ("nothing of the kind", None, None),
    ],
)
def test_a_dialect_is_found_by_its_signs(source, dialect, thinking):
    found = find_thinking(source)

    assert find_dialect(source) == dialect
    assert (found.opens[0] if found else None) == thinking


def test_a_dialect_that_is_named_beats_what_the_template_looks_like():
    assert traits_of(made("<tool_call>"), NOTHING, "mistral").dialect_name == "mistral"


@pytest.mark.parametrize(
    ("source", "named", "says"),
    [
        ("{{ messages }}", None, "tool calls: none; reasoning: none"),
        ("{{ tools | tojson }}", None, "tool calls: unknown; reasoning: none"),
        ("{{ tools | tojson }}", "mistral", "tool calls: mistral (named); reasoning: none"),
        ("{{ tools | tojson }}<tool_call></think>", None,
         "tool calls: hermes (from the chat template); reasoning: <think> … </think>"),
        ("{{ tools | tojson }}<|channel|><|message|>", None,
         "tool calls: harmony (from the chat template); reasoning: by channel"),
    ],
)  # fmt: skip
def test_what_was_found_is_said_in_a_line(source, named, says):
    assert traits_of(made(source), NOTHING, named).summary == says


def test_control_tokens_of_the_dialect_stay_in_the_text_and_others_do_not():
    texts = ["<tool_call>", "</tool_call>", "<|im_end|>", "<think>", "</think>"]
    tokenizer = Tokenizer(Wordless(8), [SpecialToken(8 + i, t) for i, t in enumerate(texts)])

    traits = traits_of(made("<tool_call> </think>"), tokenizer)

    assert traits.controls == {"<tool_call>": 8, "</tool_call>": 9, "<think>": 11, "</think>": 12}


OPENS = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '<think>\\n' }}{# </think> #}"
THINKS = "{% if enable_thinking is defined %}{% endif %}</think>"


@pytest.mark.parametrize(
    ("source", "last", "is_thinking"),
    [
        (OPENS, "hello", True),
        (OPENS.replace("{{ '<think>\\n' }}", ""), "hello", False),
        (OPENS.replace("{{ '<think>\\n' }}", ""), "hello <think>\n", False),
        (OPENS.replace("\\n' }}", "\\n\\n</think>\\n\\n' }}"), "hello", False),
    ],
    ids=["opened", "not opened", "written by a user", "opened and closed"],
)
def test_reasoning_is_open_where_the_template_opened_it_last(source, last, is_thinking):
    template = made(source)
    body = ChatRequest.model_validate({"messages": [{"role": "user", "content": last}]})
    traits = traits_of(template, NOTHING)

    form = answer_format(body, traits, template.render(chat_prompt(body, traits).messages))

    assert form.is_thinking == is_thinking


@pytest.mark.parametrize(
    ("source", "effort", "variables"),
    [
        (THINKS, None, {}),
        (THINKS, "none", {"enable_thinking": False}),
        (THINKS, "high", {"enable_thinking": True}),
        ("{{ reasoning_effort }}", "low", {"reasoning_effort": "low"}),
        ("{% if thinking is not defined %}{% endif %}", "none", {"thinking": False}),
        ("{{ message.thinking }}", "none", {}),
        (THINKS + "{{ reasoning_effort }}", "low",
         {"enable_thinking": True, "reasoning_effort": "low"}),
    ],
)  # fmt: skip
def test_an_effort_is_given_to_the_variables_that_a_template_has(source, effort, variables):
    assert effort_variables(effort, traits_of(made(source), NOTHING)) == variables


@pytest.mark.parametrize(("source", "effort"), [("", "low"), ("</think>", "none")])
def test_an_effort_that_a_template_cannot_be_told_is_refused(source, effort):
    with pytest.raises(Problem, match="reasoning_effort is") as caught:
        effort_variables(effort, traits_of(made(source), NOTHING))

    assert caught.value.param == "reasoning_effort"


def test_a_variable_of_the_request_beats_the_effort():
    body = chat(reasoning_effort="high", chat_template_kwargs={"enable_thinking": False})

    assert chat_prompt(body, traits_of(made(THINKS), NOTHING)).variables == {
        "enable_thinking": False
    }


SHOWS = "{{ tools | tojson }}{{ messages | tojson }}<tool_call>"


def test_messages_of_tools_reach_the_template_as_transformers_users_write_them():
    body = chat(
        {
            "role": "assistant",
            "tool_calls": [call("get_weather", {"city": "Paris"}, "1")],
            "reasoning_content": "Hm.",
        },
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "sunny"}]},
        tools=OFFERED,
    )

    given = chat_prompt(body, traits_of(made(SHOWS), NOTHING))

    function = {"name": "get_weather", "arguments": {"city": "Paris"}}
    assert given.messages[1:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
            "reasoning_content": "Hm.",
        },
        {"role": "tool", "content": "sunny", "tool_call_id": "1", "name": "get_weather"},
    ]
    assert given.tools == OFFERED


def test_a_tool_has_what_templates_look_for_even_where_the_request_left_it_out():
    body = chat(tools=[{"type": "function", "function": {"name": "f", "strict": True}}])

    [tool] = chat_prompt(body, traits_of(made(SHOWS), NOTHING)).tools

    assert tool["function"] == {
        "name": "f",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }


@pytest.mark.parametrize("arguments", ["{", "[]", "7", '"{}"'])
def test_arguments_that_are_no_object_are_refused_with_their_place(arguments):
    wrong = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    body = chat({"role": "assistant", "tool_calls": [wrong]})

    with pytest.raises(Problem) as caught:
        chat_prompt(body, traits_of(made(SHOWS), NOTHING))

    assert caught.value.param == "messages[1].tool_calls[0].function.arguments"


NAMED = {"type": "function", "function": {"name": "now"}}


def allowed(mode, *names):
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("source", "choice", "param"),
    [
        ("<tool_call>", "auto", "tools"),
        ("{{ tools | tojson }}", "auto", "tools"),
        (SHOWS, {"type": "function", "function": {"name": "g"}}, "tool_choice"),
        (SHOWS, allowed("auto", "now", "g"), "tool_choice.allowed_tools.tools[1]"),
    ],
    ids=["no place", "no dialect", "not among them", "one not among them"],
)
def test_tools_that_the_model_would_never_hear_of_are_refused(source, choice, param):
    with pytest.raises(Problem) as caught:
        chat_prompt(chat(tools=OFFERED, tool_choice=choice), traits_of(made(source), NOTHING))

    assert caught.value.param == param


@pytest.mark.parametrize("source", ["<tool_call>", "{{ tools | tojson }}", SHOWS])
def test_tools_that_may_not_be_called_are_not_shown(source):
    body = chat(tools=OFFERED, tool_choice="none")

    assert chat_prompt(body, traits_of(made(source), NOTHING)).tools is None


@pytest.mark.parametrize(
    ("body", "functions", "is_one"),
    [
        ({"tool_choice": "required"}, {"get_weather", "now"}, False),
        ({"tool_choice": "required", "parallel_tool_calls": False}, {"get_weather", "now"}, True),
        ({"tool_choice": NAMED}, {"now"}, True),
        ({"tool_choice": allowed("required", "now")}, {"now"}, False),
        ({"tool_choice": allowed("required", "get_weather", "now")}, set(TOOLS), False),
    ],
)
def test_calls_that_have_to_be_made_are_a_grammar(body, functions, is_one):
    template = made(SHOWS)
    tokenizer = Tokenizer(Wordless(8), [SpecialToken(8, "<tool_call>")])
    traits = traits_of(template, tokenizer)
    asked = chat(tools=OFFERED, **body)
    form = answer_format(asked, traits, template.render(chat_prompt(asked, traits).messages))

    grammar = grammar_of_calls(asked, traits, form)

    assert {name for name in TOOLS if f'"{name}"' in grammar} == functions
    assert (")*" not in grammar.splitlines()[0]) == is_one
    assert "<[8]>" in grammar


TURNS = "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
PARTS = "{% for p in m.content or [] %}"
ENDS = "{% endfor %}{% endif %}{% endfor %}"
SEES = "{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}"
ASKS_ROLE = (
    "{% if p.type == 'image' and m.role == 'user' %}<image>{% else %}{{ p.text }}{% endif %}"
)


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        (TURNS + PARTS + SEES + ENDS, {"image"}),
        (TURNS + PARTS + ASKS_ROLE + ENDS, set()),
        (TURNS + PARTS + "<{{ p.type }}>{{ p.text or '' }}" + ENDS, {"image", "video", "audio"}),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", set()),
        ("{% for m in messages %}{{ m.content | tojson }}{% endfor %}", set()),
        ("{% for m in messages %}{{ {'x': m.content | string} | tojson }}{% endfor %}", set()),
        ("{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no') }}{% endif %}"
         "{% endfor %}", set()),
        ("{{ messages[0].content }}", set()),
    ],
    ids=["all roles", "users alone", "all kinds", "as Python", "as JSON", "both", "no tools",
         "no results"],
)  # fmt: skip
def test_media_in_results_of_tools_are_taken_where_the_template_shows_them(source, kinds):
    assert traits_of(made(source), NOTHING).result_media == kinds


def test_media_that_a_result_would_lose_are_refused_by_their_place():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    text = {"type": "text", "text": "It is"}
    assistant = {"role": "assistant", "content": None, "tool_calls": [call("look", {})]}
    body = chat(assistant, {"role": "tool", "tool_call_id": "abcdefghi", "content": [text, image]})
    seeing, blind = (made(TURNS + PARTS + shown + ENDS) for shown in (SEES, ASKS_ROLE))

    with pytest.raises(Problem, match="a message of the user") as caught:
        chat_prompt(body, traits_of(blind, NOTHING))
    prompt = chat_prompt(body, traits_of(seeing, NOTHING))

    assert caught.value.param == "messages[2].content[1]"
    assert seeing.render(prompt.messages).text.endswith("[tool]It is<image>")


def test_tools_that_are_not_allowed_are_shown_but_no_part_of_the_grammar():
    template = made(SHOWS)
    traits = traits_of(template, NOTHING)
    asked = chat(tools=OFFERED, tool_choice=allowed("auto", "now"))
    prompt = chat_prompt(asked, traits)

    grammar = grammar_of_calls(
        asked, traits, answer_format(asked, traits, template.render(prompt.messages))
    )

    assert prompt == chat_prompt(chat(tools=OFFERED), traits)
    assert {name for name in TOOLS if f'"{name}"' in grammar} == {"now"}


def test_a_dialect_without_a_grammar_is_not_constrained():
    traits = traits_of(made(SHOWS), NOTHING, "gemma4")
    asked = chat(tools=OFFERED, tool_choice="required")
    form = answer_format(asked, traits, made(SHOWS).render(chat_prompt(asked, traits).messages))

    with pytest.raises(Problem, match="gemma4 cannot be constrained"):
        grammar_of_calls(asked, traits, form)
