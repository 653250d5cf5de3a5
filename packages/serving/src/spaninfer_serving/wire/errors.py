"""OpenAI's error body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Messages repeat what the client sent; a megabyte of it does not help.
MAX_MESSAGE = 1000
MAX_PARAM = 200


class Problem(Exception):
    """A refusal as it travels: a status, and a body that OpenAI's clients understand."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message = status, _shortened(message, MAX_MESSAGE)
        self.type, self.code = type, code
        self.param = None if param is None else _shortened(param, MAX_PARAM)
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """Return the JSON body."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def under(self, names: Mapping[str, str]) -> Problem:
        """Return the same refusal where parameters have other names; `names`: the longest first.

        A new one in any case: raised from this one, it is not its own cause.
        """
        message, param = self.message, self.param
        for known, name in names.items():
            if param and re.match(re.escape(known) + r"(?![\w])", param):
                message = message.replace(known, name, 1)
                param = name + param.removeprefix(known)
                break
        return Problem(
            self.status,
            message,
            type=self.type,
            param=param,
            code=self.code,
            headers=self.headers,
        )


def _shortened(text: str, limit: int) -> str:
    """Return the text, or its two ends: the reason is often said last."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]} … {text[-half:]}"
