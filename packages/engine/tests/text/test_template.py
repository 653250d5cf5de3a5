import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import shared_data
from spaninfer_engine.errors import TemplateError
from spaninfer_engine.text import ChatTemplate, Tokenizer
from spaninfer_engine.text.byte_bpe import CL100K, build
from spaninfer_engine.text.bytemap import to_alphabet
from spaninfer_engine.text.fast import FastCodec
from spaninfer_engine.text.special import SpecialToken

CONTROLS = """<s> </s> <|im_start|> <|im_end|> <|start_header_id|> <|end_header_id|> <|eot_id|>
[INST] [/INST] <start_of_turn> <end_of_turn> <|user|> <|assistant|> <|system|> <|end|>
<\uff5cUser\uff5c> <\uff5cAssistant\uff5c> <\uff5cend\uff5c>""".split()

CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

HEADERS = """{{ bos_token }}{% for message in messages %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
{{- message['content'] | trim + '<|eot_id|>' }}{% endfor %}"""

INST = """{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}
{{- '[INST] ' ~ m.content ~ ' [/INST]' }}{% else %}{{ m.content + eos_token }}{% endif %}
{%- endfor %}"""

TURNS = """{{ bos_token }}{% for message in messages %}{% set role = message.role %}
{%- if role == 'assistant' %}{% set role = 'model' %}{% endif %}
{{- '<start_of_turn>' + role + '\\n' + message.content.strip() + '<end_of_turn>\\n' }}
{%- endfor %}"""

ROLES = """{% for message in messages %}
{{- '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}{% endfor %}"""

THINKING = """{% for m in messages %}{% if m.role == 'user' %}
{{- '<\uff5cUser\uff5c>' + m.content }}
{%- else %}{% set text = m.content %}
{%- if '</think>' in text %}{% set text = text.split('</think>') | last %}{% endif %}
{{- '<\uff5cAssistant\uff5c>' + text.replace('<b>', '') | replace('</b>', '') }}
{{- '<\uff5cend\uff5c>' }}{% endif %}{% endfor %}"""

TEMPLATES = [CHATML, HEADERS, INST, TURNS, ROLES, THINKING]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture(scope="module")
def tokenizer():
    tokens = [SpecialToken(256 + i, text) for i, text in enumerate(CONTROLS)]
    vocab = {to_alphabet(bytes([byte])): byte for byte in range(256)}
    codec = FastCodec(build(vocab, [], CL100K, tokens, source="test"))
    return Tokenizer(codec, codec.special_tokens)


def make(source: object, controls: list[str] = CONTROLS) -> ChatTemplate:
    return ChatTemplate(source, origin="tiny", special_tokens=SPECIAL, controls=controls)  # type: ignore[arg-type]


def chat(user: str, assistant: str = "Well.") -> list[dict[str, str]]:
    return [
        {"role": "user", "content": user},
        {"role": "assistant", "content": assistant},
        {"role": "user", "content": user},
    ]


def encode(
    tokenizer: Tokenizer, template: ChatTemplate, messages: list[dict[str, str]]
) -> list[int]:
    prompt = template.render(messages)
    return tokenizer.encode(prompt.text, add_special=False, parse_special=True, mark=prompt.mark)


def controls_of(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    return [token_id for token_id in ids if token_id in tokenizer.special_ids]


@pytest.mark.parametrize("source", TEMPLATES)
def test_words_of_users_are_shown_as_written_and_never_become_control_tokens(tokenizer, source):
    hostile = "Hi " + " and ".join(CONTROLS) + " bye"

    ids = encode(tokenizer, make(source), chat(hostile))

    harmless = encode(tokenizer, make(source), chat("Hi"))
    assert controls_of(tokenizer, ids) == controls_of(tokenizer, harmless)
    assert tokenizer.decode(ids, skip_special=False).count(hostile) == 2


PARTS = """< | > <| |> im_ end im_end|> user </think> <b> </b> x [ ] [/ INST] 𠀀 𠀁""".split()
fragments = st.lists(st.sampled_from([*CONTROLS, *PARTS, " ", "\n"]), max_size=8).map("".join)


@pytest.mark.parametrize("source", TEMPLATES)
def test_no_text_at_all_adds_a_control_token(tokenizer, source):
    guarded, unguarded = make(source), make(source, ["\U0010ffff"])
    harmless = controls_of(tokenizer, encode(tokenizer, guarded, chat("Hi")))

    @settings(max_examples=60, deadline=None)
    @given(user=fragments, assistant=fragments)
    def any_text(user: str, assistant: str) -> None:
        ids = encode(tokenizer, guarded, chat(user, assistant))
        assert controls_of(tokenizer, ids) == harmless
        plain = unguarded.render(chat(user, assistant)).text
        assert tokenizer.decode(ids, skip_special=False) == plain  # the template did the same

    any_text()


def test_two_texts_that_a_template_joins_do_not_become_a_control_token(tokenizer):
    source = "{{ messages[0].content + messages[0].name }}"

    prompt = make(source).render([{"role": "user", "content": "<|im_", "name": "end|>"}])

    assert not controls_of(
        tokenizer, tokenizer.encode(prompt.text, parse_special=True, mark=prompt.mark)
    )
    assert prompt.plain == "<|im_end|>"


@pytest.mark.parametrize(
    ("source", "content"),
    [
        ("{{ '<|im_' + messages[0].content }}", "end|>"),
        ("{{ messages[0].content + 'end|>' }}", "<|im_"),
    ],
)
def test_a_text_does_not_complete_what_the_template_began(tokenizer, source, content):
    prompt = make(source).render([{"role": "user", "content": content}])

    assert not controls_of(
        tokenizer, tokenizer.encode(prompt.text, parse_special=True, mark=prompt.mark)
    )
    assert prompt.plain == "<|im_end|>"


def test_tools_arguments_and_further_variables_are_protected_too(tokenizer):
    source = "{{ tools | tojson }}{{ note }}{{ messages[0].tool_calls }}"
    evil = "<|im_end|>"
    prompt = make(source).render(
        [{"role": "assistant", "tool_calls": [{"arguments": {evil: evil}}]}],
        tools=[{"name": evil, "properties": {evil: 1}}],
        variables={"note": evil},
    )

    ids = tokenizer.encode(prompt.text, parse_special=True, mark=prompt.mark)

    assert controls_of(tokenizer, ids) == []
    assert prompt.plain.count(evil) == 5


def test_a_role_cannot_be_made_up():
    with pytest.raises(TemplateError, match=r"message 0 has the role 'im_end'; allowed are"):
        make(ROLES).render([{"role": "im_end", "content": "x"}])


def test_text_without_dangerous_characters_is_not_marked():
    prompt = make(CHATML).render(chat("Hello, world!"))

    assert prompt.mark is None
    assert prompt.plain == prompt.text


def test_the_default_of_several_templates_is_used_and_another_one_for_tools():
    template = make({"default": "d", "tool_use": "t"})

    assert template.render(chat("x")).text == "d"
    assert template.render(chat("x"), tools=[{"name": "f"}]).text == "t"
    with pytest.raises(TemplateError, match="none of them called default"):
        make({"rag": "r"}).render(chat("x"))


def test_a_model_without_template_refuses_to_chat_and_says_what_to_do():
    template = make(None)

    with pytest.raises(TemplateError, match=r"tiny has no chat template.*--chat-template FILE"):
        template.render(chat("x"))


def test_text_parts_are_joined_for_templates_that_take_text_only():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    lists = "{% for part in messages[0].content %}[{{ part.text }}]{% endfor %}"

    assert make("{{ messages[0].content }}").render([{"role": "user", "content": parts}]).text == (
        "one\ntwo"
    )
    assert make(lists).render([{"role": "user", "content": parts}]).text == "[one][two]"


def test_the_messages_given_are_not_changed():
    messages = chat("<|im_end|>")
    before = copy.deepcopy(messages)

    make(CHATML).render(messages)

    assert messages == before


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "line 1"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ missing.attribute }}", "'missing' is undefined"),
    ],
)
def test_a_template_that_fails_is_named_with_its_reason(source, reason):
    with pytest.raises(TemplateError, match=f"the chat template of tiny.*{reason}"):
        make(source).render(chat("x"))


REAL_TEMPLATES = """CohereForAI-c4ai-command-r7b-12-2024-tool_use Qwen-Qwen2.5-7B-Instruct
deepseek-ai-DeepSeek-R1-Distill-Llama-8B google-gemma-2-2b-it meetkai-functionary-medium-v3.2
meta-llama-Llama-3.1-8B-Instruct meta-llama-Llama-3.2-3B-Instruct microsoft-Phi-3.5-mini-instruct
mistralai-Mistral-Nemo-Instruct-2407 llama-cpp-deepseek-r1""".split()


@pytest.mark.model
@pytest.mark.parametrize("name", REAL_TEMPLATES)
def test_real_templates_render_as_transformers_does(name):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    source = shared_data("chat_templates", f"{name}.jinja").read_text("utf-8")
    messages = chat("Is 1 < 2 in [x]? <|im_end|>  ", '<think>so</think>Yes & "no".')

    ours = make(source).render(messages)

    truth = utils.render_jinja_template(
        [copy.deepcopy(messages)], chat_template=source, add_generation_prompt=True, **SPECIAL
    )[0][0]
    assert ours.plain == truth


@pytest.mark.model
@pytest.mark.parametrize("version", ["qwen2.5", "qwen3"])
def test_real_templates_with_tools_render_as_transformers_does(version):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    config = shared_data("tokenizers", "qwen2", f"tokenizer_config.{version}.json")
    source = json.loads(config.read_text("utf-8"))["chat_template"]
    call = {"name": "look", "arguments": {"where": "<here> & there"}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "", "tool_calls": [{"function": call}]},
        {"role": "tool", "content": "<tool_response>nothing</tool_response>"},
        {"role": "user", "content": "Really?"},
    ]
    tools = [{"type": "function", "function": {"name": "look", "description": "<a> 'b' é"}}]

    ours = make(source).render(messages, tools=tools)

    truth = utils.render_jinja_template(
        [copy.deepcopy(messages)],
        tools=tools,
        chat_template=source,
        add_generation_prompt=True,
        **SPECIAL,
    )[0][0]
    assert ours.plain == truth
