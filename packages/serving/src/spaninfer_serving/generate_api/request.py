"""A text completion made of a request of SGLang's, and what its parameters are called there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from spaninfer_engine import RequestError

from spaninfer_serving.answers.responses import Prompt
from spaninfer_serving.error_mapping import problem_of
from spaninfer_serving.jobs.service import GenerationJob
from spaninfer_serving.wire.completions import CompletionRequest
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.generate import GenerateRequest, GenerateSampling

# SGLang's name -> name in CompletionRequest, where they differ
_SAMPLING = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "no_stop_trim": "include_stop_str_in_output",
    "sampling_seed": "seed",
}
_FORMS = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "structural_tag": "structural_tag",
}
_SAMPLING_NAMES = {
    _SAMPLING.get(name, name): f"sampling_params.{name}"
    for name in GenerateSampling.model_fields
    if name not in _FORMS
}
NAMES: Mapping[str, str] = {  # the longest first
    **{f"structured_outputs.{ours}": f"sampling_params.{name}" for name, ours in _FORMS.items()},
    "structured_outputs": "sampling_params",
    "prompt_logprobs": "logprob_start_len",
    "logprobs": "top_logprobs_num",
    **_SAMPLING_NAMES,
}


def completion_of(body: GenerateRequest) -> CompletionRequest:
    """Return the text completion that asks for the same; the answer's form is not its business."""
    given: dict[str, Any] = {"prompt": body.input_ids if body.text is None else body.text}
    given |= {
        _SAMPLING.get(name, name): value
        for name in (*body.sampling_params.model_fields_set, "max_new_tokens")
        if name not in _FORMS and (value := getattr(body.sampling_params, name)) is not None
    }
    forms = {
        ours: value
        for name, ours in _FORMS.items()
        if (value := getattr(body.sampling_params, name)) is not None
    }
    if forms:
        given["structured_outputs"] = forms
    if body.return_logprob:
        given["logprobs"] = body.top_logprobs_num
        if body.logprob_start_len >= 0:
            given["prompt_logprobs"] = body.top_logprobs_num
    return CompletionRequest(stream=body.stream, **given)


def check_start(body: GenerateRequest, prompts: Sequence[Prompt]) -> None:
    """Refuse to begin behind the end of a prompt."""
    shortest = min(len(prompt.ids) for prompt in prompts)
    if body.logprob_start_len >= shortest:
        raise Problem(
            400,
            f"logprob_start_len is {body.logprob_start_len}; allowed is -1 (of the answer alone) "
            f"to {shortest - 1}, the last token of the prompt",
            param="logprob_start_len",
        )


def renamed(job: GenerationJob) -> GenerationJob:
    """Return a job under SGLang's name of the answer's form."""
    return replace(job, form_param=NAMES.get(job.form_param, job.form_param))


@contextmanager
def naming(body: GenerateRequest) -> Iterator[None]:
    """Refuse inside of the block by SGLang's names."""
    prompt = "input_ids" if body.text is None else "text"
    try:
        yield
    except (Problem, RequestError) as refused:
        raise problem_of(refused, "prompt").under({**NAMES, "prompt": prompt}) from refused
