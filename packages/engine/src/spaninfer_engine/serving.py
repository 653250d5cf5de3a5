"""The door for servers: what a server needs of an engine beside `spaninfer_engine` itself.

A server may answer in processes of its own: they hold a `Frontend`, send requests to the process of
the engine and make outputs of the tokens that come back.
"""

from typing import TYPE_CHECKING

from spaninfer_engine.lazy import lazily

if TYPE_CHECKING:
    from spaninfer_engine.aio import Alarm
    from spaninfer_engine.backends.backend import Profiler
    from spaninfer_engine.core.gc_freeze import GcFreeze
    from spaninfer_engine.errors import shown
    from spaninfer_engine.frontend.frontend import Frontend
    from spaninfer_engine.output.handle import each_token, merge
    from spaninfer_engine.output.processor import output_of
    from spaninfer_engine.output.relay import RelayedRequest
    from spaninfer_engine.output.text_stream import TextStream, Token
    from spaninfer_engine.preprocess.processor import MediaProcessor as MediaProcessor  # a type
    from spaninfer_engine.request.logprobs import LogprobAt, TokenLogprobs, gathered
    from spaninfer_engine.request.media import (
        Levels,
        MediaItem,
        MediaKind,
        Mixture,
        PromptMedia,
        TowerInput,
    )
    from spaninfer_engine.request.prompts import MediaPrompt, media_of, token_ids
    from spaninfer_engine.request.request import Request, TokenIds
    from spaninfer_engine.request.texts import Rows, Task, Text
    from spaninfer_engine.schedule.sequence import Ended, SequenceState
    from spaninfer_engine.startup.front import open_front
    from spaninfer_engine.text import ChatTemplate, Tokenizer
    from spaninfer_engine.text import Prompt as RenderedPrompt

__all__ = [
    "Alarm",
    "ChatTemplate",
    "Ended",
    "Frontend",
    "GcFreeze",
    "Levels",
    "LogprobAt",
    "MediaItem",
    "MediaKind",
    "MediaPrompt",
    "Mixture",
    "Profiler",
    "PromptMedia",
    "RelayedRequest",
    "RenderedPrompt",
    "Request",
    "Rows",
    "SequenceState",
    "Task",
    "Text",
    "TextStream",
    "Token",
    "TokenIds",
    "TokenLogprobs",
    "Tokenizer",
    "TowerInput",
    "each_token",
    "gathered",
    "media_of",
    "merge",
    "open_front",
    "output_of",
    "shown",
    "token_ids",
]

__getattr__, __dir__ = lazily(
    globals(),
    {
        "Alarm": "aio.Alarm",
        "ChatTemplate": "text.ChatTemplate",
        "Ended": "schedule.sequence.Ended",
        "Frontend": "frontend.frontend.Frontend",
        "GcFreeze": "core.gc_freeze.GcFreeze",
        "Levels": "request.media.Levels",
        "LogprobAt": "request.logprobs.LogprobAt",
        "MediaItem": "request.media.MediaItem",
        "MediaKind": "request.media.MediaKind",
        "MediaPrompt": "request.prompts.MediaPrompt",
        "Mixture": "request.media.Mixture",
        "Profiler": "backends.backend.Profiler",
        "PromptMedia": "request.media.PromptMedia",
        "RelayedRequest": "output.relay.RelayedRequest",
        "RenderedPrompt": "text.Prompt",
        "Request": "request.request.Request",
        "Rows": "request.texts.Rows",
        "SequenceState": "schedule.sequence.SequenceState",
        "Task": "request.texts.Task",
        "Text": "request.texts.Text",
        "TextStream": "output.text_stream.TextStream",
        "Token": "output.text_stream.Token",
        "TokenIds": "request.request.TokenIds",
        "TokenLogprobs": "request.logprobs.TokenLogprobs",
        "Tokenizer": "text.Tokenizer",
        "TowerInput": "request.media.TowerInput",
        "each_token": "output.handle.each_token",
        "gathered": "request.logprobs.gathered",
        "media_of": "request.prompts.media_of",
        "merge": "output.handle.merge",
        "open_front": "startup.front.open_front",
        "output_of": "output.processor.output_of",
        "shown": "errors.shown",
        "token_ids": "request.prompts.token_ids",
    },
)
