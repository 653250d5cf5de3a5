"""Templates of published models against transformers, with hostile messages too.

Who wrote what is known from a second rendering by transformers, of the template with its control
tokens renamed to what no user can write: where the new names stand, the template wrote a token.
"""

import copy
import json
import random
import re

import pytest
from shared_data import shared_data
from spaninfer_engine.errors import TemplateError
from spaninfer_engine.text import ChatTemplate, Tokenizer
from spaninfer_engine.text.byte_bpe import CL100K, build
from spaninfer_engine.text.bytemap import to_alphabet
from spaninfer_engine.text.fast import FastCodec
from spaninfer_engine.text.special import SpecialToken

pytestmark = pytest.mark.model

NAMES = """CohereForAI-c4ai-command-r-plus-tool_use CohereForAI-c4ai-command-r7b-12-2024-tool_use
NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use NousResearch-Hermes-3-Llama-3.1-8B-tool_use
Qwen-Qwen2.5-7B-Instruct deepseek-ai-DeepSeek-R1-Distill-Llama-8B
deepseek-ai-DeepSeek-R1-Distill-Qwen-32B fireworks-ai-llama-3-firefunction-v2
google-gemma-2-2b-it llama-cpp-deepseek-r1 meetkai-functionary-medium-v3.1
meetkai-functionary-medium-v3.2 meta-llama-Llama-3.1-8B-Instruct meta-llama-Llama-3.2-3B-Instruct
meta-llama-Llama-3.3-70B-Instruct microsoft-Phi-3.5-mini-instruct
mistralai-Mistral-Nemo-Instruct-2407 qwen2.5 qwen3""".split()

CONTROL = re.compile(
    r"<\|[^|<>\s'\"{}]+\|>|<\uff5c[^\uff5c<>'\"]+\uff5c>|\[/?[A-Z_]{3,}\]|<(?:start|end)_of_turn>"
)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
LITERALS = ["<none>", "</think>", "<think>", "<tool_call>", "</tool_response>", "none", "word ", ""]
CONVERSATIONS = 30


def read(name: str) -> str:
    if not name.startswith("qwen"):
        return shared_data("chat_templates", f"{name}.jinja").read_text("utf-8")
    config = shared_data("tokenizers", "qwen2", f"tokenizer_config.{name}.json")
    template: str = json.loads(config.read_text("utf-8"))["chat_template"]
    return template


class Writer:
    """Draws conversations whose texts hold control tokens, parts of them, and what looks alike."""

    def __init__(self, seed: int, controls: list[str], *, spells: bool) -> None:
        self._random = random.Random(seed)
        self._controls = controls
        self._chars = sorted({*"".join(controls), *"<>|[]{}'\" \nab\u00e9"})
        self._spells = spells

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def text(self) -> str:
        return "".join(self._part() for _ in range(self._random.choice([0, 1, 1, 2, 5])))

    def _part(self) -> str:
        choose, token = self._random.choice, self._random.choice(self._controls)
        cut = self._random.randint(1, len(token) - 1)
        parts = [choose(self._chars), choose(LITERALS), f" {token[:cut]} ", f" {token[cut:]} "]
        return choose([*parts, token, token[:cut], token[cut:]] if self._spells else parts)

    def messages(self) -> list[dict[str, object]]:
        turns = [turn for _ in range(self._random.randint(1, 2)) for turn in self._turn()]
        first = [{"role": "system", "content": self.text()}] if self.chance(0.3) else []
        return [*first, *turns, {"role": "user", "content": self.text()}]

    def _turn(self) -> list[dict[str, object]]:
        reasoning = {"reasoning_content": self.text()} if self.chance(0.3) else {}
        answer = {"role": "assistant", "content": self.text(), **reasoning}
        calls = self._calls() if self.chance(0.3) else []
        return [{"role": "user", "content": self.text()}, *calls, answer]

    def _calls(self) -> list[dict[str, object]]:
        number = "".join(self._random.choices("abc123", k=9))
        given = {self.text(): self.text(), "n": [1, None, self.text()]}
        arguments = json.dumps(given) if self.chance(0.5) else given
        call = {"name": self.text(), "arguments": arguments}
        return [
            {
                "role": "assistant",
                "content": self.text(),
                "tool_calls": [{"id": number, "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": number, "name": self.text(), "content": self.text()},
        ]

    def tools(self) -> list[dict[str, object]]:
        first = {"type": "string", "description": self.text(), "enum": [self.text(), self.text()]}
        second = {"type": "integer", "default": self.text()}
        described = {
            "name": self.text(),
            "description": self.text(),
            "parameters": {"type": "object", "properties": {"a": first, self.text(): second}},
        }
        older = {"parameter_definitions": {"a": {"type": "str", "description": self.text()}}}
        return [{"type": "function", "function": described, **described, **older}]

    def variables(self) -> dict[str, object]:
        drawn: dict[str, object] = {"functions": self.text(), "datetime": self.text()}
        if self.chance(0.3):
            drawn["documents"] = [{"title": self.text(), "text": self.text()}]
        if self.chance(0.3):
            drawn["enable_thinking"] = self.chance(0.5)
        return drawn


class Truth:
    """A template as transformers renders and tokenises it."""

    def __init__(self, source: str, controls: list[str]) -> None:
        self._names = {text: chr(0xE000 + i) for i, text in enumerate(controls)}
        self._texts = {name: text for text, name in self._names.items()}
        self._pattern = re.compile("|".join(map(re.escape, sorted(controls, key=len)[::-1])))
        self.source = source
        self._renamed = self._pattern.sub(lambda found: self._names[found[0]], source)

    def render(self, messages: object, **given: object) -> str:
        return self._rendered(self.source, messages, given)

    def ids(self, messages: object, tokenizer: Tokenizer, **given: object) -> list[int]:
        """Each control token of the template's by its id, all else as bytes."""
        renamed = self._rendered(self._renamed, messages, given)
        ids: list[int] = []
        for char in renamed:
            token = self._texts.get(char)
            ids += char.encode() if token is None else [tokenizer.find_id(token) or -1]
        return ids

    @staticmethod
    def _rendered(source: str, messages: object, given: dict[str, object]) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        [[text], _] = render_jinja_template(
            [copy.deepcopy(messages)], chat_template=source, **SPECIAL, **given
        )
        return str(text)


def tokenizer_of(controls: list[str]) -> tuple[Tokenizer, object]:
    """A tokenizer of bytes and control tokens, and transformers' of the same."""
    from tokenizers import Tokenizer as Library
    from transformers import PreTrainedTokenizerFast

    tokens = [SpecialToken(256 + i, text) for i, text in enumerate(controls)]
    vocab = {to_alphabet(bytes([byte])): byte for byte in range(256)}
    library = build(vocab, [], CL100K, tokens, source="test")
    theirs = PreTrainedTokenizerFast(tokenizer_object=Library.from_str(library.to_str()))
    codec = FastCodec(library)
    return Tokenizer(codec, codec.special_tokens), theirs


@pytest.mark.parametrize("spells", [True, False], ids=["attacks", "parts"])
@pytest.mark.parametrize("name", NAMES)
def test_published_templates_give_the_text_of_transformers_and_the_control_tokens_of_their_own(
    name, spells
):
    pytest.importorskip("transformers")
    source = read(name)
    controls = sorted({*CONTROL.findall(source)})
    truth, (tokenizer, theirs) = Truth(source, controls), tokenizer_of(controls)
    ours = ChatTemplate(source, origin=name, special_tokens=SPECIAL)
    draw = Writer(NAMES.index(name), controls, spells=spells)
    rendered = 0
    for _ in range(CONVERSATIONS):
        messages, variables = draw.messages(), draw.variables()
        tools = draw.tools() if draw.chance(0.6) else None
        given = {"tools": tools, "add_generation_prompt": draw.chance(0.7), **variables}
        try:
            text = truth.render(messages, **given)
        except Exception:
            with pytest.raises(TemplateError):
                ours.render(messages, tools=tools, variables=variables)
            continue
        rendered += 1

        prompt = ours.render(
            messages,
            tools=tools,
            add_generation_prompt=bool(given["add_generation_prompt"]),
            variables=variables,
        )

        assert prompt.text == text
        ids = tokenizer.encode(text, add_special=False, parse_special=prompt.trusted)
        assert ids == truth.ids(messages, tokenizer, **given)
        if not spells:
            assert ids == theirs.encode(text, add_special_tokens=False)
    assert rendered >= 3
