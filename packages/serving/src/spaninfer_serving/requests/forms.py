"""The form of an answer: from two ways to say it on the wire to the engine's StructuredOutput."""

from __future__ import annotations

from spaninfer_engine import InvalidGrammar, InvalidSampling, StructuredOutput

from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.sampling import SamplingFields
from spaninfer_serving.wire.structured import StructuredOutputs

_NAMES = {"json_": "json_schema"}  # of structured_outputs -> of StructuredOutput
_WIRE_NAMES = {"json_schema": "json"}


def form_of(body: SamplingFields) -> StructuredOutput | None:
    """Return the form that the answer must have, None for any; raises Problem."""
    asked, own = body.response_format, body.structured_outputs
    if asked is None or asked.type == "text":
        return None if own is None else _form(body, _one_given(own))
    if own is not None:
        raise Problem(
            400,
            "response_format and structured_outputs both set the form of the answer; "
            "send one of them",
            param="structured_outputs",
        )
    if asked.json_schema is None:
        return StructuredOutput(json_object=True)
    return _form(body, {"json_schema": asked.json_schema.schema_})


def form_param(body: SamplingFields) -> str:
    """Return the parameter that says the form, as users write it."""
    asked, own = body.response_format, body.structured_outputs
    if asked is not None and asked.type != "text":
        return "response_format" + (".json_schema.schema" if asked.json_schema else "")
    if own is None or len(given := _given(own)) != 1:
        return "structured_outputs"
    (name,) = given
    return "structured_outputs." + _WIRE_NAMES.get(name, name)


def problem_of_form(param: str, refused: InvalidGrammar) -> Problem:
    """Return the refusal of a form that cannot be compiled."""
    return Problem(400, f"{param}: {refused.problem}", param=param, code="invalid_grammar")


def _form(body: SamplingFields, given: dict[str, object]) -> StructuredOutput:
    try:
        return StructuredOutput(**given)  # type: ignore[arg-type]
    except InvalidSampling as wrong:
        param = form_param(body)
        message = str(wrong).replace(wrong.parameter, param, 1)
        raise Problem(400, message, param=param, code="invalid_grammar") from wrong


def _one_given(own: StructuredOutputs) -> dict[str, object]:
    """Return the one form that structured_outputs says; raises Problem for none and for several."""
    given = _given(own)
    if len(given) != 1:
        names = [field.alias or name for name, field in StructuredOutputs.model_fields.items()]
        said = [_WIRE_NAMES.get(name, name) for name in given]
        raise Problem(
            400,
            f"structured_outputs has {' and '.join(said) or 'no form'}; allowed is exactly one of "
            f"{', '.join(names)}",
            param="structured_outputs",
            code="invalid_grammar",
        )
    return given


def _given(own: StructuredOutputs) -> dict[str, object]:
    """Return what structured_outputs says, by the engine's names; false says nothing."""
    return {
        _NAMES.get(name, name): value
        for name in StructuredOutputs.model_fields
        if (value := getattr(own, name)) not in (None, False)
    }
