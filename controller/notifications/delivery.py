"""Delivery of one message with the library `apprise`, which knows the protocols of the receivers.

The only module that imports it: it takes 20 to 45 MB. Its reasons for a failure are in its log, which is captured here
and stripped of the address's secrets.
"""

from __future__ import annotations

import logging
import re
import threading
from functools import partial

from cerebro.contract.stored.notifications import Message, masked
from cerebro.errors import CerebroError

_LONGEST_REASON = 300
_LEVEL = logging.WARNING


class DeliveryError(CerebroError):
    """A message was not sent. The text has the reason, without secrets."""


class _Reasons(logging.Handler):
    """Keeps the newest warning of the library per thread."""

    def __init__(self) -> None:
        super().__init__(_LEVEL)
        self._lines = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self._lines.line = record.getMessage()

    def take(self) -> str:
        """Return this thread's newest line, and forget it."""
        line: str = getattr(self._lines, "line", "")
        self._lines.line = ""
        return line


class Delivery:
    """Sends messages. Thread-safe.

    Raises:
        DeliveryError: the library is missing.
    """

    def __init__(self) -> None:
        try:
            import apprise
        except ModuleNotFoundError as cause:
            raise DeliveryError(
                "the controller's environment lacks the package apprise: install cerebro-platform[notify] there, then "
                "restart the cluster"
            ) from cause
        # A redirect could lead to a server that trusts the controller.
        asset = apprise.AppriseAsset(http_redirects=False)
        self._instantiate = partial(apprise.Apprise.instantiate, asset=asset)
        self._reasons = _Reasons()
        log = logging.getLogger("apprise")
        log.propagate = False  # its lines may contain the address
        log.setLevel(_LEVEL)
        log.addHandler(self._reasons)

    def send(self, url: str, message: Message) -> None:
        """Send a message to an address in apprise's notation.

        Raises:
            DeliveryError: the address is invalid, or the receiver did not accept the message.
        """
        self._reasons.take()
        plugin = self._instantiate(url, suppress_exceptions=True)
        if plugin is None:
            raise DeliveryError(
                f"apprise does not understand the address {masked(url)}: see its list of services, then add it again"
            )
        if not plugin.notify(body=message.body, title=message.title):
            reason = redacted(self._reasons.take(), url)[:_LONGEST_REASON]
            raise DeliveryError(reason or f"{masked(url)} did not accept the message")


def redacted(text: str, url: str) -> str:
    """Replace each part of an address in a text, except its scheme and the host of a web server."""
    visible = set(re.split(r"[:/.]+", masked(url)))
    parts = {part for part in re.split(r"[:/@?&=#]+", url) if len(part) > 2}
    for part in sorted(parts, key=len, reverse=True):
        if not set(re.split(r"[.]", part)) <= visible:
            text = text.replace(part, "***")
    return text
