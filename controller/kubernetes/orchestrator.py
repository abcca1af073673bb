"""The pods of the worker StatefulSet as `controller.orchestrator` has them.

Three threads keep three copies up: of the StatefulSet (its size and its selector), of its pods, and of the set's
events, which alone tell why a pod was not even made. `fleet` reads them and never waits. None is written down anywhere:
a controller that starts lists again.

What is out of date is `None`, not a guess. A view that lags is worse than none: it would show a pod's predecessor, and
a worker that has just joined would be taken for one whose pod is gone. Silence then tells, as it does on one machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cerebro.errors import ClusterError, RetryableError
from controller.kubernetes.access import Access
from controller.kubernetes.api import ApiServer, ChangedError, Object
from controller.kubernetes.making import Making, read_making, unmade
from controller.kubernetes.reading import read_pod
from controller.kubernetes.watching import PATIENCE_S, Mirror
from controller.orchestrator import Fleet, Pod

_TRIES = 3
"""At a change that collides with somebody else's."""


@dataclass(frozen=True, kw_only=True)
class _Set:
    """A StatefulSet. `selector`: its pods' labels, as a query has them."""

    size: int
    selector: str


class KubernetesOrchestrator:
    """Implements `controller.orchestrator.Orchestrator`. Safe for use by several threads.

    Args:
        name: of the StatefulSet.
        clock: monotonic seconds.
        changed: called in a thread of this object after each change, and whenever the API server was heard.
    """

    def __init__(
        self,
        access: Access,
        name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._name, self._namespace = name, access.namespace
        self._server = ApiServer(access, timeout_s=PATIENCE_S)
        self._stop = threading.Event()
        self._sets: Mirror[_Set] = Mirror(
            self._server,
            what=f"StatefulSet {name}",
            path=f"/apis/apps/v1/namespaces/{access.namespace}/statefulsets",
            # By name alone, because the Role allows no other.
            query=lambda: {"fieldSelector": f"metadata.name={name}"},
            read=_read_set,
            clock=clock,
            changed=changed,
        )
        self._pods: Mirror[Pod] = Mirror(
            self._server,
            what=f"pods of StatefulSet {name}",
            path=f"/api/v1/namespaces/{access.namespace}/pods",
            query=self._selector,
            read=self._read_pod,
            clock=clock,
            changed=changed,
        )
        self._events: Mirror[Making] = Mirror(
            self._server,
            what=f"events of StatefulSet {name}",
            path=f"/api/v1/namespaces/{access.namespace}/events",
            query=lambda: {"fieldSelector": f"involvedObject.kind=StatefulSet,involvedObject.name={name}"},
            read=read_making,
            clock=clock,
            changed=changed,
            without="nothing tells why pods are not made",
        )
        self._threads = [
            threading.Thread(target=mirror.run, args=(self._stop,), name=f"kubernetes-{kind}", daemon=True)
            for kind, mirror in (("set", self._sets), ("pods", self._pods), ("events", self._events))
        ]

    def start(self) -> None:
        """Begin to watch. Until the first answers `fleet` returns `None`."""
        for thread in self._threads:
            thread.start()

    def ask_to_stop(self) -> None:
        """Watch no more; the threads end when what they wait for has come or failed."""
        self._stop.set()

    def stop(self) -> None:
        """End watching, within seconds. Calling twice is safe."""
        self.ask_to_stop()
        for thread in self._threads:
            thread.join()

    def fleet(self) -> Fleet | None:
        """See `Orchestrator.fleet`. `None` also where there is no such StatefulSet."""
        sets, pods = self._sets.items(), self._pods.items()
        if sets is None or pods is None or self._name not in sets:
            return None
        size = sets[self._name].size
        # Without events nothing is known of pods that are not there: no reason to doubt those that are.
        missing = {f"{self._name}-{ordinal}" for ordinal in range(size)} - pods.keys()
        return Fleet(pods=pods, size=size, unmade=unmade(missing, (self._events.items() or {}).values()))

    def scale(self, workers: int) -> None:
        """See `Orchestrator.scale`. Doing it again changes nothing."""
        path = f"/apis/apps/v1/namespaces/{self._namespace}/statefulsets/{self._name}/scale"
        what = f"cannot scale StatefulSet {self._name} to {workers}: the API server"
        for tries_left in reversed(range(_TRIES)):
            try:
                self._server.patch(path, {"spec": {"replicas": workers}})
                return
            except ChangedError as error:
                if not tries_left:
                    raise RetryableError(f"{what} {error}") from error
            except RetryableError as error:
                raise RetryableError(f"{what} {error}") from error
            except ClusterError as error:
                raise ClusterError(f"{what} {error}") from error

    def _selector(self) -> Mapping[str, str] | None:
        sets = self._sets.items()
        if sets is None:
            return None
        if self._name not in sets:
            raise ClusterError(
                f"has no StatefulSet {self._name} in namespace {self._namespace}: "
                "CEREBRO_WORKER_SET must name that of the workers"
            )
        return {"labelSelector": sets[self._name].selector}

    def _read_pod(self, content: Object) -> Pod | None:
        """`None` for a pod of somebody else that has the same labels. One without an owner is about to be adopted, as
        after the StatefulSet was deleted with ``--cascade=orphan`` and made anew."""
        owners = _dig(content, "metadata").get("ownerReferences")
        for owner in owners if isinstance(owners, list) else ():
            if owner.get("controller") and (owner.get("kind"), owner.get("name")) != (
                "StatefulSet",
                self._name,
            ):
                return None
        return read_pod(content)


def _read_set(content: Object) -> _Set:
    spec = _dig(content, "spec")
    selector = _dig(spec, "selector")
    wanted = [f"{key}={value}" for key, value in _dig(selector, "matchLabels").items()]
    expressions = selector.get("matchExpressions")
    wanted += [_expression(e) for e in expressions or ()]
    replicas = spec.get("replicas")
    # The API server fills in 1 where nothing is said.
    return _Set(size=replicas if isinstance(replicas, int) else 1, selector=",".join(wanted))


def _expression(expression: Mapping[str, Any]) -> str:
    """Documentation: "Labels and Selectors"."""
    key, operator = expression["key"], expression["operator"]
    if operator in ("Exists", "DoesNotExist"):
        return key if operator == "Exists" else f"!{key}"
    return f"{key} {'in' if operator == 'In' else 'notin'} ({','.join(expression['values'])})"


def _dig(content: Object, field: str) -> Mapping[str, Any]:
    value = content.get(field)
    return value if isinstance(value, Mapping) else {}
