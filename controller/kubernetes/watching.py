"""A local copy of one collection of an API server: listed once, then kept up by watches.

The copy is replaced as a whole at every change, so a reader needs no lock and never waits. Whatever is odd (a watch
that breaks off, an event that makes no sense, a version that is too old) ends in a new list, which is always right, and
the copy is forgotten until then; only a watch that ends in good order is continued from where it was.

Kubernetes documentation: "Kubernetes API Concepts", sections "Efficient detection of changes", "Watch bookmarks",
"Retrieving large results sets in chunks", "410 Gone responses". The pattern is client-go's Reflector.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from cerebro.errors import CerebroError, ClusterError
from controller.kubernetes.api import ApiServer, GoneError, Object, UnavailableError

log = logging.getLogger(__name__)

WATCH_S = 5
"""A watch lasts so long, then the next one goes on where it ended. A connection that died without a word looks like one
without news: only this end, when it fails to come, tells them apart. Bookmarks come about once a minute, which is too
rare. It costs the API server a request every 5 s."""

PATIENCE_S = 3.0
"""How long a server may be late with anything. What is older than `WATCH_S` and this together is out of date."""

_PAGE = 100
"""Objects a page of a list has: pods are about 10 KB each, and a thousand at once would double this process."""

_PAUSE_S, _MAX_PAUSE_S = 0.1, 5.0
"""Between tries: doubled each time, and varied so that several controllers do not come at once."""

_MAX_ASKED_S = 30.0
"""The longest pause that is granted to a server."""

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class _Copy(Generic[Item]):
    """What was made of each object, by its name; and when the server last confirmed that, by the clock."""

    items: Mapping[str, Item]
    heard: float


class Mirror(Generic[Item]):
    """Keeps a copy of a collection while `run` runs, in one thread; `items` may be called from any.

    Args:
        what: the collection, for people.
        path: of the collection.
        query: selectors; asked before each list and watch. `None`: not known yet.
        read: makes an item of an object, or `None` of one that does not belong here.
        clock: monotonic seconds.
        changed: called after each change, and whenever the server was heard.
        without: what it means that the collection is not known, for people.
    """

    def __init__(
        self,
        server: ApiServer,
        *,
        what: str,
        path: str,
        query: Callable[[], Mapping[str, str] | None],
        read: Callable[[Object], Item | None],
        clock: Callable[[], float] = time.monotonic,
        changed: Callable[[], None] = lambda: None,
        without: str = "only silence tells of lost workers",
    ) -> None:
        self._without = without
        self._server, self._what, self._path, self._query = server, what, path, query
        self._read, self._clock, self._changed = read, clock, changed
        self._selectors: Mapping[str, str] | None = None
        self._copy: _Copy[Item] | None = None
        self._complaint = ""

    def items(self) -> Mapping[str, Item] | None:
        """The collection by name; `None` while it may be out of date."""
        copy = self._copy
        if copy is None or self._clock() - copy.heard > WATCH_S + PATIENCE_S:
            return None
        return copy.items

    def run(self, stop: threading.Event) -> None:
        """Keep the copy until `stop` is set; returns within `WATCH_S` + `PATIENCE_S`."""
        version, pause_s = "", _PAUSE_S
        while not stop.is_set():
            started, asked_s = self._clock(), 0.0
            try:
                if not version or self._query() != self._selectors:
                    version = self._list()
                if version:
                    version = self._watch(version, stop)
                    pause_s = _PAUSE_S
                    if self._clock() - started > _PAUSE_S:
                        continue
            except GoneError as error:
                log.info("%s: listed again: %s", self._what, error)
                self._forget()
                version = ""
            except (CerebroError, OSError) as error:
                self._forget()
                self._complain(error)
                version, asked_s = "", error.after_s if isinstance(error, UnavailableError) else 0.0
            stop.wait(max(pause_s * random.uniform(0.5, 1.0), min(asked_s, _MAX_ASKED_S)))
            pause_s = pause_s if version else min(pause_s * 2, _MAX_PAUSE_S)

    def _list(self) -> str:
        """Replace the copy; returns the version to watch from, empty while the selectors are not known."""
        self._selectors = self._query()
        if self._selectors is None:
            return ""
        items: dict[str, Item] = {}
        page: dict[str, str] = {"limit": str(_PAGE)}
        while True:
            answer = self._server.get(self._path, {**self._selectors, **page})
            metadata = answer.get("metadata")
            objects = answer.get("items")
            version = metadata.get("resourceVersion") if isinstance(metadata, Mapping) else None
            if (
                not isinstance(objects, list)
                or not isinstance(version, str)
                or not isinstance(metadata, Mapping)
            ):
                raise UnavailableError("sent a list that is none")
            for content in objects:
                name, item = self._item(content)
                if item is not None:
                    items[name] = item
            if not metadata.get("continue"):
                break
            page["continue"] = str(metadata["continue"])
        self._heard(items)
        return version

    def _watch(self, version: str, stop: threading.Event) -> str:
        """Apply the events of one watch; returns the version to go on from."""
        query = {**(self._selectors or {}), "resourceVersion": version}
        with self._server.watch(self._path, query, lasts_s=WATCH_S) as events:
            self._heard()
            for event in events:
                version = self._apply(event) or version
                if stop.is_set():
                    break
        self._heard()
        return version

    def _apply(self, event: Object) -> str | None:
        kind, content = event["type"], event["object"]
        if kind == "BOOKMARK":
            self._heard()
        elif kind in ("ADDED", "MODIFIED", "DELETED"):
            name, item = self._item(content)
            items = dict(self._copy.items) if self._copy else {}
            items.pop(name, None)
            if kind != "DELETED" and item is not None:
                items[name] = item
            self._heard(items)
        else:
            raise UnavailableError(f"sent an event of unknown type {kind!r}")
        metadata = content.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, Mapping) else None
        return version if isinstance(version, str) else None

    def _item(self, content: Any) -> tuple[str, Item | None]:
        metadata = content.get("metadata") if isinstance(content, Mapping) else None
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        if not isinstance(name, str) or not name:
            raise UnavailableError(f"sent an object without a name: {str(content)[:200]}")
        try:
            return name, self._read(content)
        except (LookupError, TypeError, ValueError, AttributeError) as cause:
            raise UnavailableError(f"sent {name!r}, which cannot be read ({cause!r})") from cause

    def _heard(self, items: Mapping[str, Item] | None = None) -> None:
        copy = self._copy
        kept = copy.items if copy else {}
        self._copy = _Copy(items=kept if items is None else items, heard=self._clock())
        if self._complaint:
            log.info("%s: seen again", self._what)
            self._complaint = ""
        self._changed()

    def _forget(self) -> None:
        """Know nothing until the next list."""
        self._copy = None
        self._changed()

    def _complain(self, error: Exception) -> None:
        """Say it once, until it passes or changes. Of a refusal every word counts, of silence that there is some."""
        complaint = str(error) if isinstance(error, ClusterError) else "silence"
        if complaint == self._complaint:
            return
        self._complaint = complaint
        log.warning("%s: %s, the API server %s", self._what, self._without, error)
