"""The pods of the worker StatefulSet as `controller.scaling.orchestrator` has them.

Four threads keep four copies up: of the StatefulSet (its size), of its pods, of the set's events, which alone tell why
a pod was not even made, and of events of pods, which tell whether nodes are made. `fleet` reads them and never waits.
None is written down anywhere: a controller that starts lists again.

What is out of date is `None`, not a guess. A view that lags is worse than none: it would show a pod's predecessor, and
a worker that has just joined would be taken for one whose pod is gone. Silence then tells, as it does on one machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from kubernetes.client import ApiClient, ApiException, Configuration
from kubernetes.config import ConfigException
from kubernetes.dynamic import DynamicClient, Resource
from kubernetes.utils.retry import retry_on_conflict
from urllib3.exceptions import HTTPError

from controller.kubernetes.access import resize_refused, translated
from controller.kubernetes.making import Making, read_making, unmade
from controller.kubernetes.nodes import NodeNews, expected, read_news
from controller.kubernetes.reading import read_pod
from controller.kubernetes.watching import TIMEOUT_S, Mirror, Object
from controller.scaling.orchestrator import Fleet, Memory, Pod

_OF_SETS = "statefulset.kubernetes.io/pod-name"
"""A label that every pod of a StatefulSet has. The API server selects by it; of which set a pod is, its owner says."""


_TOLD = "cerebro/replicas"


class WorkerSet(NamedTuple):
    """The StatefulSet of the workers: see `Fleet`."""

    size: int
    uid: str
    told: int | None

    @classmethod
    def read(cls, content: Object) -> WorkerSet:
        """Read a set from the API server, which writes a size even if the manifest has none."""
        metadata = content["metadata"]
        told = str((metadata.get("annotations") or {}).get(_TOLD, ""))
        return cls(
            size=int(content["spec"].get("replicas", 1)),
            uid=str(metadata.get("uid", "")),
            told=int(told) if told.isdecimal() else None,
        )


class KubernetesOrchestrator:
    """Implements `controller.scaling.orchestrator.Orchestrator`. Safe for use by several threads.

    Args:
        configuration: how the API server is reached.
        namespace: of the StatefulSet.
        name: of the StatefulSet.
        clock: monotonic seconds.
        changed: called in a thread of this object after each change, and whenever the API server was heard.
    """

    def __init__(
        self,
        configuration: Configuration,
        namespace: str,
        name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._name, self._namespace = name, namespace
        # Without discovery: the kinds of objects are known, and the Role grants no more than they need.
        client = DynamicClient(ApiClient(configuration), discoverer=lambda *_: None)
        core = partial(Resource, client=client, prefix="api", api_version="v1", namespaced=True)
        sets = Resource(
            client=client,
            prefix="apis",
            group="apps",
            api_version="v1",
            kind="StatefulSet",
            name="statefulsets",
            namespaced=True,
            subresources={"scale": {"kind": "Scale", "name": "statefulsets/scale", "namespaced": True}},
        )
        self._scale = sets.scale
        pods = core(
            kind="Pod",
            name="pods",
            subresources={"resize": {"kind": "Pod", "name": "pods/resize", "namespaced": True}},
        )
        self._resize = pods.resize
        self._sets: Mirror[WorkerSet] = Mirror(
            what=f"StatefulSet {name}",
            resource=sets,
            # By name alone, because the Role allows no other.
            selected={"namespace": namespace, "field_selector": f"metadata.name={name}"},
            read=WorkerSet.read,
            clock=clock,
            changed=changed,
            empty=f"has no StatefulSet {name} in namespace {namespace}: CEREBRO_WORKER_SET must name the workers'",
        )
        self._pods: Mirror[Pod] = Mirror(
            what=f"pods of StatefulSet {name}",
            resource=pods,
            selected={"namespace": namespace, "label_selector": _OF_SETS},
            read=self._read_pod,
            clock=clock,
            changed=changed,
        )
        events = core(kind="Event", name="events")
        of_set = f"involvedObject.kind=StatefulSet,involvedObject.name={name}"
        self._events: Mirror[Making] = Mirror(
            what=f"events of StatefulSet {name}",
            resource=events,
            selected={"namespace": namespace, "field_selector": of_set},
            read=read_making,
            clock=clock,
            changed=changed,
            without="nothing tells why pods are not made",
        )
        self._nodes: Mirror[NodeNews] = Mirror(
            what=f"events of pods in namespace {namespace}",
            resource=events,
            # Of all pods: several reasons, or names, cannot be asked for at once.
            selected={"namespace": namespace, "field_selector": "involvedObject.kind=Pod"},
            read=read_news,
            clock=clock,
            changed=changed,
            without="nothing tells whether nodes are made",
        )
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=mirror.run, args=(self._stop,), name=f"kubernetes-{kind}", daemon=True)
            for kind, mirror in (
                ("set", self._sets),
                ("pods", self._pods),
                ("events", self._events),
                ("nodes", self._nodes),
            )
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
        """The workers' pods; `None` while they are not known, and where there is no such StatefulSet."""
        sets, pods = self._sets.items(), self._pods.items()
        if sets is None or pods is None:
            return None
        size, uid, told = sets[self._name]
        # Without events nothing is known of pods that are not there: no reason to doubt those that are.
        missing = {f"{self._name}-{ordinal}" for ordinal in range(size)} - pods.keys()
        return Fleet(
            pods=pods,
            size=size,
            set_uid=uid,
            told=told,
            unmade=unmade(missing, (self._events.items() or {}).values()),
            expected=expected(pods, (self._nodes.items() or {}).values()),
        )

    def scale(self, workers: int) -> None:
        """Ask for so many workers. Doing it again changes nothing."""

        def ask() -> None:
            self._scale.patch(
                name=self._name,
                namespace=self._namespace,
                body={"spec": {"replicas": workers}},
                content_type="application/merge-patch+json",
                _request_timeout=(TIMEOUT_S, TIMEOUT_S),
            )

        try:
            retry_on_conflict(ask)
        except (ApiException, ConfigException, HTTPError, OSError, ValueError) as error:
            cause = translated(error)
            said = f"cannot scale StatefulSet {self._name} to {workers}: the API server {cause}"
            raise type(cause)(said) from error

    def resize(self, pod: str, container: str, memory: Memory) -> None:
        """Give a container of a pod more memory, while it runs. Kubernetes documentation: "Resize CPU and Memory
        Resources assigned to Containers"; servers offer it from 1.33 on."""
        limits = {"limits": {"memory": str(memory.limit)}}
        requests = {"requests": {"memory": str(memory.request)}} if memory.request else {}
        body = {"spec": {"containers": [{"name": container, "resources": limits | requests}]}}

        def ask() -> None:
            self._resize.patch(
                name=pod,
                namespace=self._namespace,
                body=body,
                content_type="application/strategic-merge-patch+json",
                _request_timeout=(TIMEOUT_S, TIMEOUT_S),
            )

        try:
            retry_on_conflict(ask)
        except (ApiException, ConfigException, HTTPError, OSError, ValueError) as error:
            cause = resize_refused(error)
            size = f"{memory.limit / 2**30:.4g}Gi"
            raise type(cause)(
                f"cannot raise the memory of container {container} of pod {pod} to {size}: the API server {cause}"
            ) from error

    def _read_pod(self, content: Object) -> Pod | None:
        """`None` for a pod of somebody else. One without an owner is about to be adopted by its name, as after the
        StatefulSet was deleted with ``--cascade=orphan`` and made anew."""
        metadata = content["metadata"]
        owners = [owner for owner in metadata.get("ownerReferences") or () if owner.get("controller")]
        if any((owner["kind"], owner["name"]) != ("StatefulSet", self._name) for owner in owners):
            return None
        named, _, ordinal = metadata["name"].rpartition("-")
        is_named = named == self._name and ordinal.isdecimal()
        return read_pod(content) if owners or is_named else None
