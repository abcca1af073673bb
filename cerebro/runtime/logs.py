"""Log records of services: lines for people, or one JSON object per line, for example for Loki.

Each service calls `set_up` once at its start; slots of a worker name their attempt with `about`. Fields come from the
process (`set_up`), the thread's context (`about`) and the record (``extra=``); later sources override. Output of user
code is not a record: it stays in the logs of its attempts.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import IO

from cerebro.errors import ClusterError

FIELDS = ("experiment", "run", "model", "sub_epoch", "worker", "attempt")
"""Fields of a record, by name; `sub_epoch` is a task's key, `attempt` its number. Omitted if not applicable."""

FORMATS = ("text", "json")

_HIDDEN = "[hidden]"
_SECRET = re.compile(
    r"(SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|_KEY|CONNECTION_STRING)S?(_|$)"
    r"(?!(.*_)?(FILE|PATH|DIR|URI|URL|ID|NAME)$)"
)
"""Names of variables with a secret: a word such as TOKEN, unless the name ends like a path or an address."""
_SHORTEST_SECRET = 8
"""Minimum characters of a variable's value that is masked."""
_about: ContextVar[Mapping[str, str | int]] = ContextVar("about")


def set_up(
    service: str,
    environment: Mapping[str, str],
    *,
    secrets: Sequence[str] = (),
    stream: IO[str] | None = None,
    **constant: str | int,
) -> None:
    """Send records of all loggers, from INFO, to `stream` (default: standard error). Replaces an earlier set-up.

    Args:
        service: name of the service, as in ``app.kubernetes.io/component``.
        environment: ``CEREBRO_LOG_FORMAT``: `text` (default) or `json`.
        secrets: texts to mask in all lines, in addition to values of variables with secret names, such as
            ``AWS_SECRET_ACCESS_KEY``.
        constant: `FIELDS` that are equal in all records of this process.

    Raises:
        ClusterError: the format is unknown.
    """
    chosen = environment.get("CEREBRO_LOG_FORMAT") or "text"
    if chosen not in FORMATS:
        raise ClusterError(f"CEREBRO_LOG_FORMAT is {chosen!r}, expected {' or '.join(FORMATS)}")
    handler = logging.StreamHandler(stream or sys.stderr)
    hidden = (*secrets, *_secrets(environment))
    handler.setFormatter((JsonLines if chosen == "json" else TextLines)(service, hidden, constant))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _secrets(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        # Short values are switches or numbers, and would match parts of ordinary words.
        if _SECRET.search(name.upper()) and len(value) >= _SHORTEST_SECRET:
            yield value


@contextmanager
def about(**fields: str | int | None) -> Iterator[None]:
    """Add `FIELDS` to this thread's records in the block; `None` omits a field. Blocks nest."""
    known = {name: value for name, value in fields.items() if value is not None}
    token = _about.set({**_about.get({}), **known})
    try:
        yield
    finally:
        _about.reset(token)


class _Lines(logging.Formatter):
    def __init__(self, service: str, secrets: Sequence[str], constant: Mapping[str, str | int]) -> None:
        super().__init__()
        self._service, self._constant = service, constant
        # The longest first: one may be a part of another.
        self._secrets = tuple(sorted({secret for secret in secrets if secret}, key=len, reverse=True))

    def _fields(self, record: logging.LogRecord) -> dict[str, str | int]:
        record_fields = {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        found = {**self._constant, **_about.get({}), **record_fields}
        return {name: found[name] for name in FIELDS if name in found}

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return text


class JsonLines(_Lines):
    """A record as one JSON object: time (ISO 8601, UTC), level, service, logger, message, fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object, without a line break."""
        content: dict[str, str | int] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields(record),
        }
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        # Mask secrets before quoting: a character that JSON escapes would hide one.
        hidden = {
            name: self._without_secrets(value) if isinstance(value, str) else value
            for name, value in content.items()
        }
        return json.dumps(hidden, ensure_ascii=False, default=str)


class TextLines(_Lines):
    """A record for people: time, level, logger, message, then the fields; a traceback follows on new lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's lines."""
        # Omit fields that are equal in all lines of a file.
        about = {name: value for name, value in self._fields(record).items() if name not in self._constant}
        fields = "".join(f" {name}={value}" for name, value in about.items())
        text = f"{self.formatTime(record)} {record.levelname} {record.name} {record.getMessage()}{fields}"
        if record.exc_info:
            text += f"\n{self.formatException(record.exc_info)}"
        return self._without_secrets(text)
