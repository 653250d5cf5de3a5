"""The dialects: a row each, and the marks of templates by which they are found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from spaninfer_serving.dialects.answer import Answer, NewId, mistral_id, openai_id
from spaninfer_serving.dialects.harmony import Harmony
from spaninfer_serving.dialects.json_calls import JsonCalls, JsonOr
from spaninfer_serving.dialects.literals import Literals
from spaninfer_serving.dialects.marked import Marked, Section, Thinking
from spaninfer_serving.dialects.named_calls import NamedCalls, kimi
from spaninfer_serving.dialects.object_calls import ObjectCalls
from spaninfer_serving.dialects.python_calls import PythonCalls
from spaninfer_serving.dialects.reader import Wait
from spaninfer_serving.dialects.recipients import Recipients
from spaninfer_serving.dialects.tagged_calls import TaggedCalls


class Layout(Protocol):
    """The layout of an answer."""

    def without_calls(self) -> Layout:
        """Return the layout of an answer to a request without tools."""
        ...

    def read(self, answer: Answer, thinking: Thinking | None, is_thinking: bool) -> Wait[None]:
        """Read a whole answer; `is_thinking`: the prompt has opened the reasoning."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """A family's format of calls, and the part of a chat template that reveals it.

    A template that holds all strings of one of the tuples `signs` is of this dialect.
    """

    models: str
    signs: tuple[tuple[str, ...], ...]
    layout: Layout
    new_id: NewId = openai_id


TOOL_CALL = "<tool_call>"
BAR = "\uff5c"  # DeepSeek's, of full width
LOW_LINE = "\u2581"
DSML = f"{BAR}DSML{BAR}"


def _deepseek(*words: str) -> str:
    return f"<{BAR}{LOW_LINE.join(words)}{BAR}>"


DEEPSEEK = Section(_deepseek("tool", "calls", "begin"), _deepseek("tool", "calls", "end"))
DEEPSEEK_CALL, DEEPSEEK_END = _deepseek("tool", "call", "begin"), _deepseek("tool", "call", "end")
DEEPSEEK_SEP = _deepseek("tool", "sep")
PARAMETER = {"key": "<parameter=", "key_end": ">", "value": "", "value_end": "</parameter>"}


def _invoke(prefix: str, close_prefix: str, **attributes: str) -> TaggedCalls:
    return TaggedCalls(
        (f'<{prefix}invoke name="',),
        name_end='">',
        key=f'<{prefix}parameter name="',
        key_end='">',
        value="",
        value_end=f"</{close_prefix}parameter>",
        close=f"</{close_prefix}invoke>",
        **attributes,
    )


DSML_INVOKE = _invoke(DSML, DSML, is_string='" string="true">', is_json='" string="false">')


def _dsml(word: str) -> Marked:
    return Marked((DSML_INVOKE,), Section(f"<{DSML}{word}>", f"</{DSML}{word}>"))


MISTRAL = Marked((JsonOr(NamedCalls(("[TOOL_CALLS]",), sep="[ARGS]", id_mark="[CALL_ID]")),))

# In this order: the first whose signs a template has. More of them come first.
DIALECTS: Mapping[str, Dialect] = {
    "harmony": Dialect("gpt-oss", (("<|channel|>", "<|message|>"),), Harmony()),
    "deepseek_v4": Dialect("DeepSeek V4", ((DSML, "tool_calls>"),), _dsml("tool_calls")),
    "deepseek_v41": Dialect("DeepSeek V4.1", ((DSML, f"{DSML} calls>"),), _dsml(" calls")),
    "deepseek_v32": Dialect("DeepSeek V3.2", ((DSML,),), _dsml("function_calls")),
    "deepseek_v3": Dialect(
        "DeepSeek V3, R1",
        ((DEEPSEEK_CALL, "```json"),),
        Marked(
            (
                NamedCalls(
                    (DEEPSEEK_CALL,), sep=DEEPSEEK_SEP, close=DEEPSEEK_END, fence="\n```json\n"
                ),
            ),
            DEEPSEEK,
        ),
    ),
    "deepseek_v31": Dialect(
        "DeepSeek V3.1",
        ((DEEPSEEK_CALL,),),
        Marked((NamedCalls((DEEPSEEK_CALL,), sep=DEEPSEEK_SEP, close=DEEPSEEK_END),), DEEPSEEK),
    ),
    "kimi_k2": Dialect(
        "Kimi K2",
        (("<|tool_calls_section_begin|>",), ("<|tool_call_argument_begin|>",)),
        Marked(
            (
                NamedCalls(
                    ("<|tool_call_begin|>",),
                    sep="<|tool_call_argument_begin|>",
                    close="<|tool_call_end|>",
                    split=kimi,
                ),
            ),
            Section("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        ),
    ),
    "gemma4": Dialect(
        "Gemma 4",
        (("<|tool_call>", '<|"|>'),),
        Marked(
            (
                ObjectCalls(
                    ("<|tool_call>call:",),
                    Literals(('<|"|>',), has_escapes=False, has_bare_keys=True),
                    "<tool_call|>",
                ),
            )
        ),
    ),
    "command_r7b": Dialect(
        "Command R7B, Command A",
        (("<|START_ACTION|>",),),
        Marked(
            (JsonCalls(("<|START_ACTION|>",), ("<|END_ACTION|>",)),),
            frame=(
                "<|START_RESPONSE|>",
                "<|END_RESPONSE|>",
                "<|START_TEXT|>",
                "<|END_TEXT|>",
            ),
        ),
    ),
    "command_r": Dialect(
        "Command R, R+",
        (("Action:\\n```json",), ("Action:\n```json",), ("\\nAction:", "tool_name")),
        Marked((JsonCalls(("Action:\n```json\n", "Action: ```json\n"), ("```",)),)),
    ),
    "glm45": Dialect(
        "GLM 4.5 to 4.7, GLM 5",
        (("<arg_key>",),),
        Marked(
            (
                TaggedCalls(
                    (TOOL_CALL,),
                    name_end="",
                    key="<arg_key>",
                    key_end="</arg_key>",
                    value="<arg_value>",
                    value_end="</arg_value>",
                    close="</tool_call>",
                ),
            )
        ),
    ),
    "minimax_m2": Dialect(
        "MiniMax M2",
        (("<minimax:tool_call>",),),
        Marked((_invoke("", ""),), Section("<minimax:tool_call>", "</minimax:tool_call>")),
    ),
    "minicpm5": Dialect(
        "MiniCPM5",
        (('<function name="', '<param name="'),),
        Marked(
            (
                TaggedCalls(
                    ('<function name="',),
                    name_end='">',
                    key='<param name="',
                    key_end='">',
                    value="",
                    value_end="</param>",
                    close="</function>",
                ),
            )
        ),
    ),
    "seed_oss": Dialect(
        "Seed-OSS",
        (("<seed:tool_call>",),),
        Marked(
            (TaggedCalls(("<function=",), name_end=">", close="</function>", **PARAMETER),),
            Section("<seed:tool_call>", "</seed:tool_call>"),
        ),
    ),
    "qwen3_coder": Dialect(
        "Qwen3-Coder, Qwen3.5, MiMo, Nemotron 3, Step 3.5",
        (("<function=", "<parameter="),),
        Marked(
            (TaggedCalls(("<function=",), name_end=">", close="</function>", **PARAMETER),),
            Section(TOOL_CALL, "</tool_call>"),
        ),
    ),
    "functionary_v31": Dialect(
        "Functionary 3.1, Llama 3.1 with custom functions",
        (("<function=", "</function>"), ("<{start_tag}={function_name}>",)),
        Marked((NamedCalls(("<function=",), sep=">", close="</function>"),)),
    ),
    "functionary_v32": Dialect(
        "Functionary 3.2", ((">>>all",), (">>>${recipient}",)), Recipients()
    ),
    "internlm2": Dialect(
        "InternLM 2, 2.5",
        (("<|action_start|>", "<|plugin|>"),),
        Marked((JsonCalls(("<|action_start|><|plugin|>",), ("<|action_end|>",)),)),
    ),
    "mistral_v11": Dialect(
        "Magistral, Devstral, Mistral Small 3.2 and later",
        (("[TOOL_CALLS]", "[ARGS]"),),
        MISTRAL,
        mistral_id,
    ),
    "mistral": Dialect("Mistral up to Small 3.1", (("[TOOL_CALLS]",),), MISTRAL, mistral_id),
    "functools": Dialect(
        "Phi-4-mini, Firefunction",
        (("functools",), ("<|tool|>", "<|/tool|>")),
        Marked((JsonCalls(("functools",)),)),
    ),
    "granite": Dialect(
        "Granite 3.0",
        (("<|tool_call|>",),),
        Marked((JsonCalls(("<|tool_call|>",)),)),
    ),
    "hunyuan": Dialect(
        "Hunyuan, MiniMax M1",
        (("<tool_calls>",),),
        Marked((JsonCalls(("<tool_calls>",), ("</tool_calls>",)),)),
    ),
    "lfm2": Dialect(
        "LFM2",
        (("<|tool_call_start|>",),),
        Marked((PythonCalls(("<|tool_call_start|>",), "<|tool_call_end|>"),)),
    ),
    "olmo3": Dialect(
        "Olmo 3",
        (("<function_calls>",),),
        Marked((PythonCalls(("<function_calls>",), "</function_calls>"),)),
    ),
    "hermes": Dialect(
        "Hermes, Qwen 2.5, Qwen 3, Granite 3.1 to 4, EXAONE",
        ((TOOL_CALL,),),
        Marked((JsonCalls((TOOL_CALL,), ("</tool_call>",)),)),
    ),
    "llama4": Dialect(
        "Llama 4",
        (("<|python_start|>",), ("[func_name1(params_name1=params_value1",)),
        Marked(
            (
                PythonCalls(("<|python_start|>",), "<|python_end|>"),
                PythonCalls(("",), is_known_only=True),
            )
        ),
    ),
    "llama3": Dialect(
        "Llama 3.1 to 3.3",
        (("<|python_tag|>",), ('{"name": function name, "parameters"',)),
        Marked(
            (
                JsonCalls(("<|python_tag|>",)),
                JsonCalls(("",), is_known_only=True),
            )
        ),
    ),
    "pythonic": Dialect(
        "Llama 3.2, ToolACE with a template for Python calls",
        (("func_name1(",),),
        Marked((PythonCalls(("",), is_known_only=True),)),
    ),
}

THINKING: tuple[Thinking, ...] = (
    Thinking(("[THINK]",), ("[/THINK]",), calls_end_it=True),
    Thinking(("<seed:think>",), ("</seed:think>",)),
    Thinking(("<|START_THINKING|>",), ("<|END_THINKING|>",), calls_end_it=True),
    Thinking(("<|channel>thought",), ("<channel|>",)),
    Thinking(
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
    ),
    Thinking(("<think>",), ("</think>",)),
)
"""Reasoning, in the order in which closing marks are looked for in a template."""
