"""Text completions with a suffix: what is refused, and where the answer ends."""

from __future__ import annotations

from spaninfer_engine import SamplingParams

from spaninfer_serving.fill_in_middle.prompt import FimPrompts
from spaninfer_serving.fill_in_middle.table import FIM_MARKS
from spaninfer_serving.requests.parameters import prompts_of, sampling_with
from spaninfer_serving.wire.completions import CompletionRequest
from spaninfer_serving.wire.errors import Problem


def filling(
    fim: FimPrompts | None, body: CompletionRequest, sampling: SamplingParams
) -> SamplingParams:
    """Return how a middle is sampled: it ends at the vocabulary's marks as well.

    Raises Problem where the model has none, and for what goes with no suffix.
    """
    if fim is None:
        raise _refused(
            f"suffix needs fill-in-the-middle tokens such as {', '.join(FIM_MARKS)}, and this "
            "model's vocabulary has none; omit it",
            "suffix",
        )
    if body.echo:
        raise _refused("echo cannot be combined with suffix; omit one of them", "echo")
    if not all(isinstance(prompt, str) for prompt in prompts_of(body)):
        raise _refused("with suffix, prompt must be text; got token ids", "prompt")
    if sampling.ignore_eos:
        return sampling
    return sampling_with(sampling, {"stop_ids": (*sampling.stop_ids, *fim.end_ids)})


def _refused(message: str, param: str) -> Problem:
    return Problem(400, message, param=param, code="unsupported_parameter")
