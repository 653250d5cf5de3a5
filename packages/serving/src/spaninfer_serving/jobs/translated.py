"""A chat request made of another API's, and what its parameters are called there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from spaninfer_engine import RequestError

from spaninfer_serving.error_mapping import problem_of
from spaninfer_serving.jobs.service import GenerationJob
from spaninfer_serving.wire.chat import ChatRequest, Message
from spaninfer_serving.wire.errors import Problem


@dataclass(frozen=True, slots=True)
class OriginalMessage:
    """A message of a chat request, its place in the other API's request, and those of its parts."""

    message: Message
    place: str
    parts: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TranslatedChat:
    """A chat request; `names` are its parameters' in the other API, the longest first.

    Without names and originals it is the request itself.
    """

    chat: ChatRequest
    names: Mapping[str, str] = field(default_factory=dict)
    originals: Sequence[OriginalMessage] = ()

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Refuse inside of the block by the names of the other API."""
        try:
            yield
        except (Problem, RequestError) as refused:
            raise problem_of(refused, "messages").under(self._names()) from refused

    def renamed(self, job: GenerationJob) -> GenerationJob:
        """Return a job of the chat under the names of the other API."""
        return replace(job, form_param=self.names.get(job.form_param, job.form_param))

    def _names(self) -> dict[str, str]:
        """Return the names of parts, messages and parameters, in this order."""
        parts = {
            f"messages[{number}].content[{at}]": place
            for number, original in enumerate(self.originals)
            for at, place in enumerate(original.parts)
        }
        messages = {
            f"messages[{number}]": original.place for number, original in enumerate(self.originals)
        }
        return {**parts, **messages, **self.names}
