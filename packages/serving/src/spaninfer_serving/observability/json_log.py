"""Log records as JSON, a line each, with the id of the request that they are about."""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request that a task answers."""


def json_line(level: str, logger: str, message: str) -> str:
    """Return a line of the log as an object."""
    record = logging.LogRecord(logger, 0, "", 0, message, None, None)
    record.levelname = level.upper()
    return JsonFormatter().format(record)


class JsonFormatter(logging.Formatter):
    """Makes an object of a record; what a record has as `fields` are members of it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as one line."""
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": REQUEST_ID.get(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False, default=str)
