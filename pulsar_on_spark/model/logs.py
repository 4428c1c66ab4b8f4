"""How a broker and the processes that it starts log: text for people, or a JSON object a line for machines.

A call names what it is about in its text, and in fields besides: `log.warning("...", extra={"topic": name})`.
"""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from typing import Final, Literal

LogFormat = Literal["text", "json"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

FIELDS: Final = ("topic", "subscription", "ledger", "path", "file", "incarnation", "connection")
"""What a line may be about: names in full, ids of ledgers and storage paths, files by id, connections by address."""
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_FORMAT_VARIABLE: Final = "PULSARPY_LOG_FORMAT"
_LEVEL_VARIABLE: Final = "PULSARPY_LOG_LEVEL"


class JsonLines(logging.Formatter):
    """`time` (UTC, milliseconds), `level`, `logger`, `message`, those of `FIELDS` that the call gave, `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, without its end."""
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
        return json.dumps(line, ensure_ascii=False)


def configure(level: LogLevel, format_: LogFormat) -> None:
    """Let this process, its libraries and the processes that it starts log so, to standard error."""
    os.environ[_LEVEL_VARIABLE], os.environ[_FORMAT_VARIABLE] = level, format_
    configure_child()


def configure_child() -> None:
    """Log as the process that started this one; as text from INFO on if that said nothing."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if os.environ.get(_FORMAT_VARIABLE) == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=os.environ.get(_LEVEL_VARIABLE, "INFO"), handlers=[handler], force=True)
    logging.captureWarnings(True)
