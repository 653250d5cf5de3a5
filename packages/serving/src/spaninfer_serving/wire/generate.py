"""SGLang's native generation as it travels."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, Field, RootModel, model_validator

from spaninfer_serving.wire.fields import Integers, RequestFields, Strings
from spaninfer_serving.wire.sampling import PlacedFields

Logprob = tuple[float | None, int, str | None]
"""A log-probability, null for the first token of a prompt; a token id; its text where wanted."""


class GenerateSampling(RequestFields):
    """`sampling_params`: how to sample, by SGLang's names.

    Left out, a parameter is the model's default, and `max_new_tokens` SGLang's.
    """

    not_supported: ClassVar = {
        "custom_params": (None,),
        "spaces_between_special_tokens": (None, True),
        "stop_regex": (None, []),
    }

    max_new_tokens: int = 128
    min_new_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    sampling_seed: int | None = None
    stop: str | Strings | None = None
    stop_token_ids: Integers | None = None
    no_stop_trim: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None


class GenerateRequest(PlacedFields):
    """The body of POST /generate: texts or token ids to continue."""

    not_supported: ClassVar = {
        "audio_data": (None,),
        "custom_logit_processor": (None,),
        "image_data": (None,),
        "input_embeds": (None,),
        "log_metrics": (None, True, False),
        "lora_path": (None,),
        "return_hidden_states": (None, False),
        "session_params": (None,),
        "token_ids_logprob": (None,),
        "video_data": (None,),
    }

    text: str | Strings | None = None
    input_ids: Integers | Annotated[list[Integers], Field(fail_fast=True)] | None = None
    sampling_params: GenerateSampling = Field(default_factory=GenerateSampling)
    stream: bool = False
    return_logprob: bool = False
    logprob_start_len: Annotated[int, Field(ge=-1)] = -1  # -1: of the answer alone
    top_logprobs_num: Annotated[int, Field(ge=0)] = 0
    return_text_in_logprobs: bool = False
    rid: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,128}$")] | None = None

    @model_validator(mode="after")
    def _check_one_prompt(self) -> GenerateRequest:
        if (self.text is None) == (self.input_ids is None):
            raise ValueError("needs text or input_ids, and not both")
        return self

    @property
    def is_list(self) -> bool:
        """True if the answer is a list: of several prompts, or of several answers to one."""
        if isinstance(self.text, list) or (self.sampling_params.n or 1) > 1:
            return True
        return bool(self.input_ids) and isinstance((self.input_ids or [0])[0], list)


class Ended(BaseModel):
    """Why an answer ended: at what it stopped, or after how many tokens."""

    type: Literal["stop", "length", "abort"]
    matched: str | int | None = None
    length: int | None = None
    message: str | None = None


class MetaInfo(BaseModel):
    """The facts about an answer; the last four lists only where they are requested."""

    id: str
    finish_reason: Ended | None
    prompt_tokens: int
    completion_tokens: int
    weight_version: str
    cached_tokens: int | None = None  # these two at the end
    e2e_latency: float | None = None
    input_token_logprobs: list[Logprob] | None = None
    input_top_logprobs: list[list[Logprob] | None] | None = None
    output_token_logprobs: list[Logprob] | None = None
    output_top_logprobs: list[list[Logprob]] | None = None


class GenerateResult(BaseModel):
    """One answer, or what there is of it so far."""

    text: str
    output_ids: list[int]
    meta_info: MetaInfo
    index: int | None = None  # in a stream of several


class GenerateResponse(RootModel[GenerateResult | list[GenerateResult]]):
    """The answer; a list where there are several."""
