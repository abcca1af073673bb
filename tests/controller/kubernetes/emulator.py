"""An API server's objects and history, as far as the adapter uses them, with faults on demand.

`tests.controller.kubernetes.serving` serves it over HTTP. It emulates the features that the adapter relies
on: resource versions, watches from a version, compaction (410), pages, bookmarks, tokens, and the adapter's
own Role. The package `kmock` lacks these: its watches always start with all objects, and its lists have no
version.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.kubernetes.access import RULES

Json = dict[str, Any]

Entry = tuple[int, str, str, Json]
"""Version, collection, event type and object."""

NAMESPACE, SET = "cerebro", "cerebro-worker"


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to the server; `verb` and `resource` as in RBAC."""

    verb: str
    resource: str
    query: Mapping[str, str]
    token: str = ""
    body: Json = field(default_factory=dict)
    name: str = ""
    """Name of the object that a subresource request changes."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault for the next request with this verb: an error status, a cut connection (0), or an invalid watch line."""

    verb: str
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    line: bytes = b""


class Emulator:
    """Objects by (resource, name), and the log of their changes."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Json]] = {"pods": {}, "statefulsets": {}, "events": {}}
        self.requests: list[Request] = []
        self.faults: deque[Fault] = deque()
        self.token = ""
        self.rules: tuple[Mapping[str, Any], ...] = RULES
        self.resizes = True
        """True if the server can resize pods, as from Kubernetes 1.33 on."""
        self.page = 2
        self.version, self.oldest = 10, 10
        self.log: list[Entry] = []
        self.news = threading.Condition()
        self.is_open, self.epoch = True, 0
        self.hold: Callable[[Request], None] = lambda _: None
        """Called before each answer; a slow server blocks here."""

    # --- Changes of the cluster ---

    def put(self, resource: str, content: Json) -> None:
        with self.news:
            name = content["metadata"]["name"]
            self._happen(resource, "MODIFIED" if name in self.objects[resource] else "ADDED", content)
            self.objects[resource][name] = self.log[-1][3]

    def delete(self, resource: str, name: str) -> None:
        with self.news:
            content = self.objects[resource].pop(name, None)
            if content is not None:
                self._happen(resource, "DELETED", content)

    def scale(self, size: int) -> None:
        """Set the number of workers, as a user of kubectl does."""
        self.put("statefulsets", worker_set(size))

    def compact(self) -> None:
        """Forget the history, so that a watch cannot start there."""
        with self.news:
            self.version += 1
            self.oldest = self.version

    def bookmark(self) -> None:
        """Send the current version to all watches."""
        with self.news:
            self.version += 1
            for resource in self.objects:
                content = {"metadata": {"resourceVersion": str(self.version)}}
                self.log.append((self.version, resource, "BOOKMARK", content))
            self.news.notify_all()

    def end_watches(self) -> None:
        """End all watches normally, as after their timeout."""
        with self.news:
            self.epoch += 1
            self.news.notify_all()

    def fail(self, *faults: Fault) -> None:
        """Queue faults for the next requests, and end running watches."""
        with self.news:
            self.faults.extend(faults)
            self.epoch += 1
            self.news.notify_all()

    def _happen(self, resource: str, kind: str, content: Json) -> None:
        self.version += 1
        content = copy.deepcopy(content)
        content["metadata"]["resourceVersion"] = str(self.version)
        self.log.append((self.version, resource, kind, content))
        self.news.notify_all()

    def close(self) -> None:
        """End all watches permanently, because the server stops."""
        with self.news:
            self.is_open = False
            self.news.notify_all()

    # --- Requests ---

    def allows(self, request: Request) -> bool:
        """Return True if a rule permits the request, as RBAC decides."""
        named = _selected(request).get("metadata.name", "")
        if request.resource == "statefulsets/scale":
            named = SET
        return any(
            request.resource in rule["resources"]
            and request.verb in rule["verbs"]
            and named
            in [SET if n == "$CEREBRO_WORKER_SET" else n for n in rule.get("resourceNames", [named])]
            for rule in self.rules
        )

    def fault(self, verb: str) -> Fault | None:
        """Take the next fault if it has this verb."""
        with self.news:
            return self.faults.popleft() if self.is_next(verb) else None

    def is_next(self, verb: str) -> bool:
        return bool(self.faults) and self.faults[0].verb == verb

    def news_since(self, epoch: int, limit_s: float) -> Iterator[list[Entry]]:
        """Yield new log entries until the watches of this epoch end, or `limit_s` passes without entries."""
        place = 0

        def is_over() -> bool:
            return self.epoch != epoch or not self.is_open

        def is_news() -> bool:
            return len(self.log) > place

        while True:
            with self.news:
                self.news.wait_for(lambda: is_over() or is_news(), limit_s)
                if is_over() or not is_news():
                    return
                entries, place = self.log[place:], len(self.log)
            yield entries

    def matching(self, request: Request) -> list[Json]:
        """Return a collection's objects that match the selectors."""
        found = self.objects[request.resource].values()
        return [content for content in found if self.matches(request, content)]

    def matches(self, request: Request, content: Json) -> bool:
        """Match a name or the presence of a label."""
        if "fieldSelector" in request.query:
            return all(_field(content, path) == value for path, value in _selected(request).items())
        return request.query["labelSelector"] in content["metadata"].get("labels", {})


def _selected(request: Request) -> dict[str, str]:
    """Return the field selector as path -> value."""
    parts = request.query.get("fieldSelector", "").split(",")
    return dict(part.split("=", 1) for part in parts if part)


def _field(content: Json, path: str) -> Any:
    for name in path.split("."):
        content = content.get(name, {})
    return content


def creation(pod: str, problem: str = "", *, time: str = "2026-11-21T06:00:00Z", name: str = "") -> Json:
    """An event of the set about an attempt to create a pod."""
    outcome = f"failed error: {problem}" if problem else "successful"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name or f"{SET}.{time}", "namespace": NAMESPACE, "creationTimestamp": time},
        "involvedObject": {"kind": "StatefulSet", "name": SET, "namespace": NAMESPACE},
        "reason": "FailedCreate" if problem else "SuccessfulCreate",
        "message": f"create Pod {pod} in StatefulSet {SET} {outcome}",
        "lastTimestamp": time,
        "type": "Warning" if problem else "Normal",
    }


def of_pod(uid: str, reason: str, message: str, *, time: str = "2026-11-21T06:00:00Z") -> Json:
    """An event of a pod from a scheduler or a node autoscaler."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"pod.{uid}.{reason}.{time}",
            "namespace": NAMESPACE,
            "creationTimestamp": time,
        },
        "involvedObject": {"kind": "Pod", "name": f"{SET}-x", "namespace": NAMESPACE, "uid": uid},
        "reason": reason,
        "message": message,
        "lastTimestamp": time,
        "type": "Normal",
    }


def worker_set(size: int) -> Json:
    """The StatefulSet of the workers."""
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": SET, "namespace": NAMESPACE, "uid": "5e7", "labels": {}},
        "spec": {"replicas": size, "selector": {"matchLabels": {"app": "cerebro", "component": "worker"}}},
    }
