"""The pods of the worker StatefulSet: implements `controller.scaling.orchestrator.Orchestrator`.

`controller.__main__` makes it. `controller.scaling.worker_set_size` calls `fleet` and `scale`, and
`controller.exclusions.memory_limits` calls `resize`; `scale` and `resize` are the only writes to the cluster.
Four threads keep four copies current: the StatefulSet (its size), its pods, the set's events (why a pod was
not created) and the pods' events (starting nodes). `fleet` reads them and never waits. Nothing is stored: a
new controller lists again.

An outdated copy is `None`. A stale view would show a pod's predecessor, and a worker that has just joined
would seem to have lost its pod. Silence then shows losses, as on one machine. A copy is outdated 8 s after the API
server's last answer.
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
from controller.kubernetes.nodes import NodeNews, expected, read_news
from controller.kubernetes.pod_creation import PodCreation, creation_failures, read_creation
from controller.kubernetes.reading import read_pod
from controller.kubernetes.watching import TIMEOUT_S, Mirror, Object
from controller.scaling.orchestrator import Fleet, Memory, Pod

_OF_SETS = "statefulset.kubernetes.io/pod-name"
"""A label of every pod of a StatefulSet, for selection by the API server; the owner names the set."""

_SIZE_ANNOTATION = "cerebro/replicas"


class WorkerSet(NamedTuple):
    """The StatefulSet of the workers: see `Fleet`."""

    size: int
    uid: str
    annotated_size: int | None

    @classmethod
    def read(cls, content: Object) -> WorkerSet:
        """Read a set from the API server, which writes a size even if the manifest has none."""
        metadata = content["metadata"]
        annotated_size = str((metadata.get("annotations") or {}).get(_SIZE_ANNOTATION, ""))
        return cls(
            size=int(content["spec"].get("replicas", 1)),
            uid=str(metadata.get("uid", "")),
            annotated_size=int(annotated_size) if annotated_size.isdecimal() else None,
        )


class KubernetesOrchestrator:
    """Implements `controller.scaling.orchestrator.Orchestrator`. Thread-safe.

    Args:
        configuration: access to the API server.
        namespace: namespace of the StatefulSet.
        name: name of the StatefulSet.
        clock: monotonic seconds.
        changed: called in one of this object's threads after each change and each answer of the API server.
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
        # No discovery: the kinds are known, and the Role permits only them.
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
            # By name alone, because the Role permits no other.
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
        self._events: Mirror[PodCreation] = Mirror(
            what=f"events of StatefulSet {name}",
            resource=events,
            selected={"namespace": namespace, "field_selector": of_set},
            read=read_creation,
            clock=clock,
            changed=changed,
            without="nothing tells why pods are not made",
        )
        self._nodes: Mirror[NodeNews] = Mirror(
            what=f"events of pods in namespace {namespace}",
            resource=events,
            # All pods: one request cannot select several reasons or names.
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
        """Start to watch. Until the first answers `fleet` returns `None`."""
        for thread in self._threads:
            thread.start()

    def ask_to_stop(self) -> None:
        """Stop watching; the threads end after their present request."""
        self._stop.set()

    def stop(self) -> None:
        """Stop watching, within seconds. Idempotent."""
        self.ask_to_stop()
        for thread in self._threads:
            thread.join()

    def fleet(self) -> Fleet | None:
        """Return the workers' pods; `None` while unknown or without the StatefulSet."""
        sets, pods = self._sets.items(), self._pods.items()
        if sets is None or pods is None:
            return None
        size, uid, annotated_size = sets[self._name]
        # Without events the reasons for missing pods are unknown; existing pods are unaffected.
        missing = {f"{self._name}-{ordinal}" for ordinal in range(size)} - pods.keys()
        return Fleet(
            pods=pods,
            size=size,
            set_uid=uid,
            annotated_size=annotated_size,
            not_created=creation_failures(missing, (self._events.items() or {}).values()),
            expected=expected(pods, (self._nodes.items() or {}).values()),
        )

    def scale(self, workers: int) -> None:
        """Request a number of workers. Idempotent."""

        def send_patch() -> None:
            self._scale.patch(
                name=self._name,
                namespace=self._namespace,
                body={"spec": {"replicas": workers}},
                content_type="application/merge-patch+json",
                _request_timeout=(TIMEOUT_S, TIMEOUT_S),
            )

        try:
            retry_on_conflict(send_patch)
        except (ApiException, ConfigException, HTTPError, OSError, ValueError) as error:
            cause = translated(error)
            said = f"cannot scale StatefulSet {self._name} to {workers}: the API server {cause}"
            raise type(cause)(said) from error

    def resize(self, pod: str, container: str, memory: Memory) -> None:
        """Raise the memory of a running pod's container.

        Kubernetes documentation: "Resize CPU and Memory Resources assigned to Containers"; available from
        1.33.
        """
        limits = {"limits": {"memory": str(memory.limit)}}
        requests = {"requests": {"memory": str(memory.request)}} if memory.request else {}
        body = {"spec": {"containers": [{"name": container, "resources": limits | requests}]}}

        def send_patch() -> None:
            self._resize.patch(
                name=pod,
                namespace=self._namespace,
                body=body,
                content_type="application/strategic-merge-patch+json",
                _request_timeout=(TIMEOUT_S, TIMEOUT_S),
            )

        try:
            retry_on_conflict(send_patch)
        except (ApiException, ConfigException, HTTPError, OSError, ValueError) as error:
            cause = resize_refused(error)
            size = f"{memory.limit / 2**30:.4g}Gi"
            raise type(cause)(
                f"cannot raise the memory of container {container} of pod {pod} to {size}: the API server {cause}"
            ) from error

    def _read_pod(self, content: Object) -> Pod | None:
        """Read a pod; `None` for a foreign one.

        A pod without an owner will be adopted by its name, as after the StatefulSet was deleted with
        ``--cascade=orphan`` and created again.
        """
        metadata = content["metadata"]
        owners = [owner for owner in metadata.get("ownerReferences") or () if owner.get("controller")]
        if any((owner["kind"], owner["name"]) != ("StatefulSet", self._name) for owner in owners):
            return None
        named, _, ordinal = metadata["name"].rpartition("-")
        is_named = named == self._name and ordinal.isdecimal()
        return read_pod(content) if owners or is_named else None
