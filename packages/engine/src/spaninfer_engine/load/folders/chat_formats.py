"""Chat formats that generation_config.json names, of models from before there were templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_CHATML = """\
{%- if messages and messages[0].role != 'system' -%}
{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif -%}
{%- set seen = namespace(images=0, clips=0) -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}
{%- set seen.images = seen.images + 1 -%}
{{ 'Picture ' ~ seen.images ~ ': <img><imgpad></img>\\n' }}
{%- elif part.type == 'audio' -%}
{%- set seen.clips = seen.clips + 1 -%}
{{ 'Audio ' ~ seen.clips ~ ':<audio>[[[AUDIO:modality]]]</audio>\\n' }}
{%- else -%}
{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A chat template, and the tokens that end an answer; neither in a format without a name."""

    template: str | None = None
    end_texts: tuple[str, ...] = ()


_FORMATS = {"chatml": ChatFormat(_CHATML, ("<|im_end|>", "<|im_start|>"))}
"""Formats of the first Qwen models; pictures and clips are numbered through the conversation.

Source: qwen_generation_utils.py and tokenization_qwen.py of Qwen-7B-Chat, Qwen-VL-Chat and
Qwen-Audio-Chat, which build this text themselves.
"""


def format_named(generation_config: Mapping[str, Any]) -> ChatFormat:
    """Return the format that a generation_config.json names; an empty one for others."""
    name = generation_config.get("chat_format")
    known = _FORMATS.get(name) if isinstance(name, str) else None
    return known or ChatFormat()
