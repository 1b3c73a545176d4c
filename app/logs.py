"""The form of log lines: text for people, JSON for machines. What an event is about stands in fields, not in prose."""

import json
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

#: What stands in a text line without quotes.
_PLAIN = re.compile(r"[\w.:/@+-]+", re.ASCII)

#: Control characters, which could forge lines or talk to terminals.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {0x0A: "\\n", 0x09: "\\t"}


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message name=value …`; one line, but for tracebacks."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without a traceback."""
        line = super().formatMessage(record).translate(_ESCAPES)
        return line + "".join([f" {name}={_shown(value)}" for name, value in _facts(record).items()])


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `message`, the facts, `exception` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {
            **_facts(record),
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(form: Literal["text", "json"]) -> None:
    """Send every log line of this process to stderr in that form."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _facts(record: logging.LogRecord) -> Mapping[str, Any]:
    """What `extra={"facts": …}` brought."""
    facts: Mapping[str, Any] = getattr(record, "facts", {})
    return facts


def _shown(value: Any) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
