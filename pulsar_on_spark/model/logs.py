"""Log formats of a broker and its child processes: lines of text, or one JSON object per line.

A call to a logger names its subject in the text and also in fields: `log.warning("...", extra={"topic": name})`.
"""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, cast

from pulsar_on_spark.model.text import printable

LogFormat = Literal["text", "json"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

FIELDS: Final = ("topic", "subscription", "ledger", "path", "file", "incarnation", "connection")
"""Names of the fields for the subject of a line; values are full names, ids, and addresses of connections."""
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_FORMAT_VARIABLE: Final = "PULSARPY_LOG_FORMAT"
_LEVEL_VARIABLE: Final = "PULSARPY_LOG_LEVEL"


class Settings(NamedTuple):
    """The settings of a process's log."""

    level: LogLevel
    format: LogFormat


class TextLines(logging.Formatter):
    """Formatter of text lines, each followed by its traceback; characters that control a terminal are escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        """Format the record as one line, with line breaks and other control characters escaped."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  (logging's name)
        """Format a traceback, with control characters escaped in each of its lines."""
        return "\n".join(map(printable, super().formatException(ei).split("\n")))


class JsonLines(logging.Formatter):
    """Formatter of JSON: `time` (UTC, milliseconds), `level`, `logger`, `message`, the call's `FIELDS`, `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a JSON object in one line, without the newline."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for field in FIELDS:
            value = getattr(record, field, None)
            if value is not None:
                line[field] = value if isinstance(value, int) else str(value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        text = json.dumps(line, ensure_ascii=False)
        return text if text.isprintable() else "".join(char if char.isprintable() else _json(char) for char in text)


def _json(letter: str) -> str:
    return json.dumps(letter)[1:-1]


def in_force() -> Settings:
    """Return the settings of this process and of its child processes; text at level INFO if nothing was set.

    A process of a fork server needs them as arguments, because the server's environment may be older.
    """
    is_json = os.environ.get(_FORMAT_VARIABLE) == "json"
    return Settings(cast(LogLevel, os.environ.get(_LEVEL_VARIABLE, "INFO")), "json" if is_json else "text")


def configure(level: LogLevel, format_: LogFormat) -> None:
    """Set up the log on standard error for this process, its libraries and its child processes."""
    os.environ[_LEVEL_VARIABLE], os.environ[_FORMAT_VARIABLE] = level, format_
    configure_child()


def configure_child() -> None:
    """Set up the log as in the parent process; as text at level INFO if the parent has set nothing."""
    settings = in_force()
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if settings.format == "json" else TextLines(_TEXT))
    logging.basicConfig(level=settings.level, handlers=[handler], force=True)
    logging.captureWarnings(True)
