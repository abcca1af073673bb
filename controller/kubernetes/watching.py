"""A local copy of one collection of an API server: listed once, then kept up by watches.

The copy is replaced as a whole at every change, so a reader needs no lock and never waits. Whatever is odd (a watch
that breaks off, an event that makes no sense, a version that is too old) ends in a new list, which is always right, and
the copy is forgotten until then; only a watch that ends in good order is continued from where it was.

The client's own `SharedInformer` does not know how old its view is, and waits for ever for a connection that died
without a word; its `Watch`, which is used here, can be given limits.

Kubernetes documentation: "Kubernetes API Concepts", sections "Efficient detection of changes", "Watch bookmarks",
"Retrieving large results sets in chunks", "410 Gone responses". The pattern is client-go's Reflector.
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
"""A watch lasts so long, then the next one goes on where it ended. A connection that died without a word looks like one
without news: only this end, when it fails to come, tells them apart. Bookmarks come about once a minute, which is too
rare. It costs the API server a request every 5 s."""

TIMEOUT_S = 3.0
"""How long a server may be late with anything. What is older than `WATCH_S` and this together is out of date."""

_PAGE = 100
"""Objects a page of a list has: pods are about 10 KB each, and a thousand at once would double this process."""

_PAUSE_S, _MAX_PAUSE_S = 0.1, 5.0
"""Between tries: doubled each time, and varied so that several controllers do not come at once."""

_MAX_ASKED_S = 30.0
"""The longest pause that is granted to a server."""

_GONE: Final = 410

_REFUSED = (CerebroError, ApiException, ConfigException, HTTPError, OSError)
_FAULTS = (*_REFUSED, AttributeError, LookupError, TypeError, ValueError)
"""A refusal, a server that does not answer, an answer that cannot be read: after each of them a new list is right."""

Item = TypeVar("Item")


class Mirror(Generic[Item]):
    """Keeps a copy of a collection while `run` runs, in one thread; `items` may be called from any.

    Args:
        what: the collection, for people.
        resource: the collection, for the client.
        selected: namespace and selectors, as the client has them.
        read: makes an item of an object, or `None` of one that does not belong here.
        clock: monotonic seconds.
        changed: called after each change, and whenever the server was heard.
        without: what it means that the collection is not known, for people.
        empty: what it means that the collection is empty, where that is an error.
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
        # What was made of each object, by its name; and when the server last confirmed that. Replaced together.
        self._copy: tuple[Mapping[str, Item], float] | None = None
        self._complaint = ""

    def items(self) -> Mapping[str, Item] | None:
        """The collection by name; `None` while it may be out of date."""
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
        """Replace the copy; returns the version to watch from."""
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
                self._heard(items)
                return version

    def _watch(self, version: str, stop: threading.Event) -> str:
        """Apply the events of one watch, until the server ends it; returns the version to go on from."""
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
            # `None` is a line that is no JSON.
            kind, content = event["type"], event["object"]
            version = content["metadata"]["resourceVersion"]
            items = dict(self._copy[0]) if self._copy else {}
            if kind == "DELETED":
                items.pop(content["metadata"]["name"], None)
            elif kind in ("ADDED", "MODIFIED"):
                self._put(items, content)
            elif kind != "BOOKMARK":
                raise ValueError(f"an event of unknown type {kind!r}")
            self._heard(items)
            if stop.is_set():
                return version
        self._heard(self._copy[0] if self._copy else {})
        return version

    def _put(self, items: dict[str, Item], content: Object) -> None:
        name, item = content["metadata"]["name"], self._read(content)
        items.pop(name, None)
        if item is not None:
            items[name] = item

    def _heard(self, items: Mapping[str, Item]) -> None:
        """The server says that this is the collection now."""
        if self._empty and not items:
            raise ClusterError(self._empty)
        self._copy = items, self._clock()
        if self._complaint:
            log.info("%s: seen again", self._what)
            self._complaint = ""
        self._changed()

    def _forget(self, error: Exception) -> None:
        """Know nothing until the next list. Why is said once, until it passes or changes: of a refusal every word
        counts, of silence that there is some."""
        self._copy = None
        cause = translated(error)
        complaint = str(cause) if isinstance(cause, ClusterError) else "silence"
        if getattr(error, "status", None) == _GONE:
            log.info("%s: listed again: the API server %s", self._what, cause)
        elif complaint != self._complaint:
            self._complaint = complaint
            log.warning("%s: %s, the API server %s", self._what, self._without, cause)
        self._changed()
