"""Parameters of OpenAI's and Anthropic's clients in the installed versions, one by one.

Each is known here: acted on, harmless, or refused by name unless it asks for nothing. A new version
of a client with a new parameter fails this test until somebody has judged it.
"""

import json
from typing import Any

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import (
    ChatCompletionAllowedToolsParam,
    ChatCompletionAssistantMessageParam,
    ChatCompletionDeveloperMessageParam,
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageCustomToolCallParam,
    ChatCompletionMessageFunctionToolCallParam,
    ChatCompletionStreamOptionsParam,
    ChatCompletionSystemMessageParam,
    ChatCompletionToolMessageParam,
    ChatCompletionUserMessageParam,
    chat_completion_custom_tool_param,
)
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import (
    CustomToolParam,
    FunctionToolParam,
    ResponseCustomToolCallOutputParam,
    ResponseCustomToolCallParam,
    ResponseFormatTextJSONSchemaConfigParam,
    ResponseFunctionToolCallParam,
    ResponseInputFileParam,
    ResponseInputImageParam,
    ResponseInputTextParam,
    ResponseReasoningItemParam,
    ResponseTextConfigParam,
    ToolChoiceAllowedParam,
    input_token_count_params,
    response_create_params,
    response_input_item_param,
)
from openai.types.shared_params import FunctionDefinition as FunctionParam
from openai.types.shared_params import Reasoning
from pydantic import BaseModel
from spaninfer_serving.wire import (
    chat,
    completions,
    input_parts,
    message_blocks,
    messages,
    response_items,
    responses,
    sampling,
    texts,
    tools,
)
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.parse import parse
from typing_extensions import get_type_hints

anthropic = pytest.importorskip("anthropic.types", reason="Anthropic's client is not installed")
beta = pytest.importorskip("anthropic.types.beta.message_create_params")

BODIES = [
    (chat_create_params.CompletionCreateParamsBase, chat.ChatRequest),
    (chat_create_params.CompletionCreateParamsStreaming, chat.ChatRequest),
    (completion_create_params.CompletionCreateParamsBase, completions.CompletionRequest),
    (completion_create_params.CompletionCreateParamsStreaming, completions.CompletionRequest),
    (response_create_params.ResponseCreateParamsBase, responses.ResponsesRequest),
    (response_create_params.ResponseCreateParamsStreaming, responses.ResponsesRequest),
    (input_token_count_params.InputTokenCountParams, responses.ResponsesRequest),
    (embedding_create_params.EmbeddingCreateParams, texts.EmbeddingRequest),
    (anthropic.message_create_params.MessageCreateParamsBase, messages.MessagesRequest),
    (anthropic.message_create_params.MessageCreateParamsStreaming, messages.MessagesRequest),
    (anthropic.message_count_tokens_params.MessageCountTokensParams, messages.CountRequest),
    (beta.MessageCreateParamsBase, messages.MessagesRequest),
]
OBJECTS = [
    (ChatCompletionStreamOptionsParam, sampling.StreamOptions),
    (ChatCompletionUserMessageParam, chat.Message),
    (ChatCompletionSystemMessageParam, chat.Message),
    (ChatCompletionDeveloperMessageParam, chat.Message),
    (ChatCompletionAssistantMessageParam, chat.Message),
    (ChatCompletionToolMessageParam, chat.Message),
    (ChatCompletionFunctionToolParam, tools.FunctionTool),
    (FunctionParam, tools.FunctionDefinition),
    (chat_completion_custom_tool_param.Custom, tools.CustomDefinition),
    (chat_completion_custom_tool_param.CustomFormatGrammarGrammar, tools.InputGrammar),
    (ChatCompletionMessageFunctionToolCallParam, tools.ToolCall),
    (ChatCompletionMessageCustomToolCallParam, tools.CustomToolCall),
    (ChatCompletionAllowedToolsParam, tools.AllowedNames),
    (FunctionToolParam, responses.ResponseFunction),
    (CustomToolParam, responses.ResponseCustomTool),
    (ToolChoiceAllowedParam, responses.ResponseAllowedTools),
    (Reasoning, responses.ReasoningOptions),
    (ResponseTextConfigParam, responses.TextOptions),
    (ResponseFormatTextJSONSchemaConfigParam, responses.TextFormat),
    (response_create_params.StreamOptions, responses.ResponseStreamOptions),
    (ResponseInputTextParam, input_parts.InputText),
    (ResponseInputImageParam, input_parts.InputImage),
    (ResponseInputFileParam, input_parts.InputFile),
    (ResponseFunctionToolCallParam, response_items.InputCall),
    (ResponseCustomToolCallParam, response_items.InputCustomCall),
    (response_input_item_param.FunctionCallOutput, response_items.InputCallOutput),
    (ResponseCustomToolCallOutputParam, response_items.InputCallOutput),
    (ResponseReasoningItemParam, response_items.InputReasoning),
    (anthropic.user_message_param.UserMessageParam, messages.TurnMessage),
    (anthropic.assistant_message_param.AssistantMessageParam, messages.TurnMessage),
    (anthropic.system_message_param.SystemMessageParam, messages.TurnMessage),
    (anthropic.ToolParam, messages.ClientTool),
    (anthropic.ToolChoiceAutoParam, messages.ToolChoice),
    (anthropic.ToolChoiceToolParam, messages.ToolChoice),
    (anthropic.ThinkingConfigAdaptiveParam, messages.ThinkingOptions),
    (anthropic.ThinkingConfigDisabledParam, messages.ThinkingOptions),
    (anthropic.OutputConfigParam, messages.OutputOptions),
    (anthropic.MetadataParam, messages.UserMetadata),
    (anthropic.CacheControlEphemeralParam, message_blocks.CacheControl),
    (anthropic.TextBlockParam, message_blocks.TextBlock),
    (anthropic.ImageBlockParam, message_blocks.ImageBlock),
    (anthropic.DocumentBlockParam, message_blocks.DocumentBlock),
    (anthropic.ThinkingBlockParam, message_blocks.ThinkingBlock),
    (anthropic.ToolUseBlockParam, message_blocks.ToolUseBlock),
    (anthropic.ToolResultBlockParam, message_blocks.ToolResultBlock),
]
HEADERS = {"betas"}  # of the clients' parameters, those that are sent as headers

# The smallest bodies.
LEAST = {
    chat.ChatRequest: {"messages": [{"role": "user", "content": "x"}]},
    completions.CompletionRequest: {"prompt": "x"},
    responses.ResponsesRequest: {"input": "x"},
    messages.MessagesRequest: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    messages.CountRequest: {"messages": [{"role": "user", "content": "x"}]},
}


def parameters_of(kind: type) -> set[str]:
    return set(get_type_hints(kind)) - HEADERS


def known_to(model: type[BaseModel]) -> set[str]:
    aliases = {field.alias for field in model.model_fields.values() if field.alias}
    return model.model_fields.keys() | aliases | set(getattr(model, "not_supported", {}))


def name_of(value: object) -> str | None:
    return f"{value.__module__}.{value.__name__}" if isinstance(value, type) else None


@pytest.mark.parametrize(("kind", "model"), BODIES + OBJECTS, ids=name_of)
def test_every_parameter_of_a_client_is_known(kind, model):
    assert parameters_of(kind), "the client's type has some"
    assert parameters_of(kind) - known_to(model) == set()


@pytest.mark.parametrize("model", LEAST, ids=name_of)
def test_what_is_not_acted_on_passes_where_it_asks_for_nothing_and_is_refused_by_name(model):
    unsupported = {
        name: harmless
        for name, harmless in model.not_supported.items()
        if name not in model.model_fields
    }
    assert unsupported or model is completions.CompletionRequest
    for name, harmless in unsupported.items():
        for value in harmless:
            assert parse(model, _json(LEAST[model] | {name: value}))
        with pytest.raises(Problem) as caught:
            parse(model, _json(LEAST[model] | {name: {"asks": "for something"}}))
        assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize("model", [*LEAST, texts.EmbeddingRequest], ids=name_of)
def test_a_parameter_of_the_future_is_refused_by_name(model):
    body = LEAST.get(model, {"input": "x"}) | {"parameter_of_2030": True}

    with pytest.raises(Problem) as caught:
        parse(model, _json(body))

    assert (caught.value.param, caught.value.code) == ("parameter_of_2030", "unknown_parameter")


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()
