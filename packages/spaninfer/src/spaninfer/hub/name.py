"""Names of models on a hub: ORG/NAME[@REVISION][:TAG]."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spaninfer_engine import ConfigError

_PART = r"[A-Za-z0-9][\w.-]*"
_NAME = re.compile(rf"(?P<repo>{_PART}/{_PART})(@(?P<revision>[\w./-]+))?(:(?P<tag>[\w.-]+))?")

FORM = "ORG/NAME, with @REVISION for a branch, tag or commit, and :Q8_0 for one GGUF file"


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository, a branch, tag or commit of it, and the quantisation that picks a GGUF file.

    >>> HubName.parse("ggml-org/tiny@v1:Q4_0")
    HubName(repo='ggml-org/tiny', revision='v1', tag='Q4_0')
    """

    repo: str
    revision: str = "main"
    tag: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubName | None:
        """Return the name that a text spells, None where it has another form."""
        match = _NAME.fullmatch(text)
        if match is None:
            return None
        return cls(match["repo"], match["revision"] or "main", match["tag"])

    @classmethod
    def of(cls, text: str) -> HubName:
        """Return the name that a text spells. Raises ConfigError where it has another form."""
        name = cls.parse(text)
        if name is None:
            raise ConfigError(
                f"{text!r} is not the name of a model on a hub; expected the form {FORM}"
            )
        return name

    @property
    def is_plain(self) -> bool:
        """True if the name is ORG/NAME alone."""
        return self.revision == "main" and self.tag is None

    def __str__(self) -> str:
        """Return the name as it is typed."""
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return f"{self.repo}{revision}{f':{self.tag}' if self.tag else ''}"
