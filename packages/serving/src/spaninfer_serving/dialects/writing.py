"""The way to write calls in each dialect, from which grammars are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spaninfer_serving.dialects.table import (
    BAR,
    DEEPSEEK,
    DEEPSEEK_CALL,
    DEEPSEEK_END,
    DEEPSEEK_SEP,
)


@dataclass(frozen=True, slots=True)
class Writing:
    """One call after the other, with `separator` between them, between `begin` and `end`.

    A `call` holds $NAME, and $JSON for all arguments or $ARGUMENTS. Then each is an `argument` with
    $KEY and $VALUE in JSON, or a `text_argument` with $TEXT where it is a string, and they are
    separated by `comma`. In dialects whose answers are messages, `messages` are the heads of those
    with text, and `next_message` ends one where another follows.
    """

    call: str
    separator: str = ""
    begin: str = ""
    end: str = ""
    argument: str = ""
    text_argument: str = ""
    comma: str = ""
    is_single: bool = False  # an answer ends behind a call
    messages: tuple[str, ...] = ()
    next_message: str = ""


def _json(name: str, arguments: str) -> str:
    return f'{{"{name}": "$NAME", "{arguments}": $JSON}}'


def _list(begin: str, end: str, name: str = "name", arguments: str = "arguments") -> Writing:
    return Writing(_json(name, arguments), ", ", f"{begin}[", f"]{end}")


def _python(begin: str, end: str) -> Writing:
    return Writing("$NAME($ARGUMENTS)", ", ", begin, end, argument="$KEY=$VALUE", comma=", ")


def _functions(begin: str, end: str) -> Writing:
    return Writing(
        f"{begin}\n<function=$NAME>\n$ARGUMENTS</function>\n{end}",
        "\n",
        argument="<parameter=$KEY>\n$VALUE\n</parameter>\n",
        text_argument="<parameter=$KEY>\n$TEXT\n</parameter>\n",
    )


def _invokes(begin: str, end: str, prefix: str = "", text: str = "", value: str = "") -> Writing:
    param = f'<{prefix}parameter name="$KEY"'
    return Writing(
        f'<{prefix}invoke name="$NAME">\n$ARGUMENTS</{prefix}invoke>\n',
        begin=begin,
        end=end,
        argument=f"{param}{value}>$VALUE</{prefix}parameter>\n",
        text_argument=f"{param}{text}>$TEXT</{prefix}parameter>\n",
    )


def _dsml(word: str) -> Writing:
    prefix = f"{BAR}DSML{BAR}"
    return _invokes(
        f"<{prefix}{word}>\n", f"</{prefix}{word}>", prefix, ' string="true"', ' string="false"'
    )


WRITINGS: Mapping[str, Writing] = {
    "hermes": Writing(f"<tool_call>\n{_json('name', 'arguments')}\n</tool_call>", "\n"),
    "qwen3_coder": _functions("<tool_call>", "</tool_call>"),
    "seed_oss": _functions("<seed:tool_call>", "</seed:tool_call>"),
    "llama3": Writing(_json("name", "parameters"), "; "),
    "llama4": _python("[", "]"),
    "pythonic": _python("[", "]"),
    "olmo3": _python("<function_calls>", "</function_calls>"),
    "lfm2": _python("<|tool_call_start|>[", "]<|tool_call_end|>"),
    "mistral": _list("[TOOL_CALLS]", ""),
    "mistral_v11": Writing("[TOOL_CALLS]$NAME[ARGS]$JSON"),
    "deepseek_v3": Writing(
        f"{DEEPSEEK_CALL}function{DEEPSEEK_SEP}$NAME\n```json\n$JSON\n```{DEEPSEEK_END}",
        "\n", DEEPSEEK.open, DEEPSEEK.close,
    ),
    "deepseek_v31": Writing(
        f"{DEEPSEEK_CALL}$NAME{DEEPSEEK_SEP}$JSON{DEEPSEEK_END}",
        "", DEEPSEEK.open, DEEPSEEK.close,
    ),
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "deepseek_v41": _dsml(" calls"),
    "glm45": Writing(
        "<tool_call>$NAME\n$ARGUMENTS</tool_call>",
        "\n",
        argument="<arg_key>$KEY</arg_key>\n<arg_value>$VALUE</arg_value>\n",
        text_argument="<arg_key>$KEY</arg_key>\n<arg_value>$TEXT</arg_value>\n",
    ),
    "kimi_k2": Writing(
        "<|tool_call_begin|>functions.$NAME:0<|tool_call_argument_begin|>$JSON<|tool_call_end|>",
        begin="<|tool_calls_section_begin|>",
        end="<|tool_calls_section_end|>",
        is_single=True,  # the number behind the name is the call's
    ),
    "minimax_m2": _invokes("<minimax:tool_call>\n", "</minimax:tool_call>"),
    "minicpm5": Writing(
        '<function name="$NAME">$ARGUMENTS</function>',
        argument='<param name="$KEY">$VALUE</param>',
        text_argument='<param name="$KEY">$TEXT</param>',
    ),
    "harmony": Writing(
        "<|channel|>commentary to=functions.$NAME <|constrain|>json<|message|>$JSON",
        is_single=True,
        messages=tuple(
            f"<|channel|>{channel}<|message|>" for channel in ("analysis", "commentary", "final")
        ),
        next_message="<|end|><|start|>assistant",
    ),
    "command_r": _list("Action:\n```json\n", "```", "tool_name", "parameters"),
    "command_r7b": _list("<|START_ACTION|>", "<|END_ACTION|>", "tool_name", "parameters"),
    "granite": _list("<|tool_call|>", ""),
    "functools": _list("functools", ""),
    "internlm2": Writing(
        f"<|action_start|><|plugin|>\n{_json('name', 'parameters')}<|action_end|>", is_single=True
    ),
    "hunyuan": _list("<tool_calls>", "</tool_calls>"),
    "functionary_v31": Writing("<function=$NAME>$JSON</function>"),
    "functionary_v32": Writing(
        "$NAME\n$JSON", ">>>", messages=("all\n",), next_message=">>>"
    ),
}  # fmt: skip
"""By the name of the dialect; Gemma 4's values are no JSON, and there is no grammar of them."""
