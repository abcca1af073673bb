"""A local copy of one collection of an API server: listed once, then updated by watches. Never writes.

`controller.kubernetes.orchestrator` runs one `Mirror` per collection, each in its own thread.
Every change replaces the whole copy, so a reader needs no lock and never waits. Anything unusual (a broken
watch, an invalid event, an outdated version) discards the copy and lists again; only a watch that ends
normally is continued. The client's `SharedInformer` does not know the age of its view and waits forever for a
dead connection; its `Watch`, used here, accepts time limits. Kubernetes documentation: "Kubernetes API
Concepts", sections "Efficient detection of changes", "Watch bookmarks", "Retrieving large results sets in
chunks", "410 Gone responses". The pattern is client-go's Reflector.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from kubernetes.client import ApiException
from kubernetes.config import ConfigException
from kubernetes.dynamic import Resource
from kubernetes.utils.retry import retry_after_seconds
from kubernetes.watch import Watch
from urllib3.exceptions import HTTPError

from cerebro.errors import CerebroError, ClusterError
from controller.kubernetes.access import translated

log = logging.getLogger(__name__)

Object = Mapping[str, Any]
"""A decoded JSON object."""

WATCH_S = 5
"""Seconds of a watch; the next one continues it.

A dead connection looks like one without news; only the missing end shows it. Bookmarks, about once a minute,
are too rare. Cost: one request every 5 s.
"""

TIMEOUT_S = 3.0
"""Maximum delay of a server in seconds. A copy older than `WATCH_S` plus this is outdated."""

_PAGE = 100
"""Objects per page of a list: a pod has about 10 KB, and a thousand at once would double this process."""

_PAUSE_S, _MAX_PAUSE_S = 0.1, 5.0
"""Seconds between tries: doubled each time, with jitter against simultaneous controllers."""

_MAX_ASKED_S = 30.0
"""Maximum pause that a server may request."""

_GONE: Final = 410

_REFUSED = (CerebroError, ApiException, ConfigException, HTTPError, OSError)
_FAULTS = (*_REFUSED, AttributeError, LookupError, TypeError, ValueError)
"""A refusal, no answer, or an unreadable answer: each requires a new list."""

Item = TypeVar("Item")


class Mirror(Generic[Item]):
    """Keeps a copy of a collection while `run` runs in one thread. `items` is thread-safe.

    Args:
        what: the collection, for people.
        resource: the collection, for the client.
        selected: namespace and selectors for the client.
        read: makes an item from an object, or `None` for a foreign one.
        clock: monotonic seconds.
        changed: called after each change and each answer.
        without: effect of an unknown collection, for people.
        empty: message for an empty collection, if that is an error.
    """

    def __init__(
        self,
        *,
        what: str,
        resource: Resource,
        selected: Mapping[str, str],
        read: Callable[[Object], Item | None],
        clock: Callable[[], float],
        changed: Callable[[], None],
        without: str = "only silence tells of lost workers",
        empty: str = "",
    ) -> None:
        self._what, self._resource, self._selected, self._read = what, resource, selected, read
        self._clock, self._changed, self._without, self._empty = clock, changed, without, empty
        # The items by name, and the time of the server's last confirmation. Replaced together.
        self._copy: tuple[Mapping[str, Item], float] | None = None
        self._last_complaint = ""

    def items(self) -> Mapping[str, Item] | None:
        """Return the collection by name; `None` while it may be outdated."""
        copy = self._copy
        return copy[0] if copy and self._clock() - copy[1] <= WATCH_S + TIMEOUT_S else None

    def run(self, stop: threading.Event) -> None:
        """Keep the copy until `stop` is set; returns within `WATCH_S` + `TIMEOUT_S`."""
        version, pause_s = "", _PAUSE_S
        while not stop.is_set():
            asked_s = 0.0
            try:
                version = self._watch(version or self._list(), stop)
                pause_s = _PAUSE_S
            except _FAULTS as error:
                self._forget(error)
                asked_s = min(retry_after_seconds(error) or 0.0, _MAX_ASKED_S)
                version, pause_s = "", min(2 * pause_s, _MAX_PAUSE_S)
            stop.wait(max(pause_s * random.uniform(0.5, 1.0), asked_s))

    def _list(self) -> str:
        """Replace the copy; return the version for the next watch."""
        items: dict[str, Item] = {}
        further = None
        while True:
            answer = self._resource.get(
                **self._selected,
                limit=_PAGE,
                _continue=further,
                serializer=lambda _, content: content,
                _request_timeout=(TIMEOUT_S, TIMEOUT_S),
            )
            version: str = answer["metadata"]["resourceVersion"]
            for content in answer["items"]:
                self._put(items, content)
            further = answer["metadata"].get("continue")
            if not further:
                self._confirm(items)
                return version

    def _watch(self, version: str, stop: threading.Event) -> str:
        """Apply the events of one watch until the server ends it; return the version to continue from."""
        events = Watch().stream(
            self._resource.get,
            **self._selected,
            resource_version=version,
            allow_watch_bookmarks=True,
            timeout_seconds=WATCH_S,
            serialize=False,
            _request_timeout=(TIMEOUT_S, WATCH_S + TIMEOUT_S),
        )
        for event in events:
            # `None` is a line of invalid JSON.
            kind, content = event["type"], event["object"]
            version = content["metadata"]["resourceVersion"]
            items = dict(self._copy[0]) if self._copy else {}
            if kind == "DELETED":
                items.pop(content["metadata"]["name"], None)
            elif kind in ("ADDED", "MODIFIED"):
                self._put(items, content)
            elif kind != "BOOKMARK":
                raise ValueError(f"an event of unknown type {kind!r}")
            self._confirm(items)
            if stop.is_set():
                return version
        self._confirm(self._copy[0] if self._copy else {})
        return version

    def _put(self, items: dict[str, Item], content: Object) -> None:
        name, item = content["metadata"]["name"], self._read(content)
        items.pop(name, None)
        if item is not None:
            items[name] = item

    def _confirm(self, items: Mapping[str, Item]) -> None:
        """Store the collection as confirmed now."""
        if self._empty and not items:
            raise ClusterError(self._empty)
        self._copy = items, self._clock()
        if self._last_complaint:
            log.info("%s: seen again", self._what)
            self._last_complaint = ""
        self._changed()

    def _forget(self, error: Exception) -> None:
        """Discard the copy. Log the reason once, until it passes or changes."""
        self._copy = None
        cause = translated(error)
        complaint = str(cause) if isinstance(cause, ClusterError) else "silence"
        if getattr(error, "status", None) == _GONE:
            log.info("%s: listed again: the API server %s", self._what, cause)
        elif complaint != self._last_complaint:
            self._last_complaint = complaint
            log.warning("%s: %s, the API server %s", self._what, self._without, cause)
        self._changed()
