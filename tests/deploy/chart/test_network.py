"""Which pod can reach which port, computed from the rendered NetworkPolicies."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from tests.deploy.chart.rendering import NAMESPACE, Object, Rendered, render, render_each


@dataclass(frozen=True)
class End:
    """An end of a connection: a pod with its namespace's labels, or just an address."""

    labels: Mapping[str, str] = field(default_factory=dict)
    namespace: Mapping[str, str] | None = None
    address: str = "10.244.0.9"

    @property
    def is_of_release_namespace(self) -> bool:
        return self.namespace is not None and self.namespace["kubernetes.io/metadata.name"] == NAMESPACE


HERE = {"kubernetes.io/metadata.name": NAMESPACE}
OUTSIDERS = {
    "internet": End(address="93.184.216.34"),
    "node": End(address="10.0.0.7"),
    "neighbour": End(labels={"app": "other"}, namespace=HERE),
    "viewer": End(labels={"app": "viewer"}, namespace=HERE),
    "prometheus": End(
        labels={"app.kubernetes.io/name": "prometheus"},
        namespace={"kubernetes.io/metadata.name": "monitoring"},
    ),
    "ingress": End(
        labels={"app": "nginx"}, namespace={"kubernetes.io/metadata.name": "ingress", "name": "ingress"}
    ),
}
PORTS = {
    "redis": 6379,
    "kvs-api": 7070,
    "controller": 7071,
    "worker": 7072,
    "dispatcher": 7080,
    "notebook": 8888,
    "tensorboard": 6006,
}


def _ends(rendered: Rendered) -> dict[str, End]:
    pods = {name: End(labels=pod["metadata"]["labels"], namespace=HERE) for name, pod in rendered.pods()}
    return {**OUTSIDERS, **pods}


def _selects(selector: Object, labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}, "the model below knows matchLabels only"
    expected: Mapping[str, str] = selector.get("matchLabels", {})
    return expected.items() <= labels.items()


def _is_peer(peer: Object, end: End) -> bool:
    if "ipBlock" in peer:
        inside, *outside = (
            ipaddress.ip_address(end.address) in ipaddress.ip_network(block)
            for block in (peer["ipBlock"]["cidr"], *peer["ipBlock"].get("except", ()))
        )
        return end.namespace is None and inside and not any(outside)
    if end.namespace is None:
        return False
    is_place = (
        _selects(peer["namespaceSelector"], end.namespace)
        if "namespaceSelector" in peer
        else end.is_of_release_namespace
    )
    return is_place and _selects(peer.get("podSelector", {}), end.labels)


def _allows(rendered: Rendered, direction: str, owner: End, other: End, port: int) -> bool:
    """Return True if the policies for `owner` allow the connection (Ingress or Egress)."""
    if not owner.is_of_release_namespace:
        return True
    policies = [
        one["spec"]
        for one in rendered.of("NetworkPolicy")
        if direction in one["spec"]["policyTypes"] and _selects(one["spec"]["podSelector"], owner.labels)
    ]
    if not policies:
        return True
    side = {"Ingress": "from", "Egress": "to"}[direction]
    return any(
        (side not in rule or any(_is_peer(peer, other) for peer in rule[side]))
        and ("ports" not in rule or any(one["port"] == port for one in rule["ports"]))
        for policy in policies
        for rule in policy.get(direction.lower(), ())
    )


def reaches(rendered: Rendered, source: str, target: str, port: int) -> bool:
    """Return True if `source` can connect to `port` of `target`."""
    ends = _ends(rendered)
    return _allows(rendered, "Egress", ends[source], ends[target], port) and _allows(
        rendered, "Ingress", ends[target], ends[source], port
    )


def _callers(rendered: Rendered, target: str) -> set[str]:
    return {
        source
        for source in _ends(rendered)
        if source != target and reaches(rendered, source, target, PORTS[target])
    }


METRICS = {"kvs-api": {7075}, "controller": {7071}, "dispatcher": {7074}, "worker": {7072, 7073}}

EVERYBODY_OUTSIDE = set(OUTSIDERS)


def test_by_default_only_page_and_notebook_are_open() -> None:
    """A table of allowed callers per component."""
    rendered = render("defaults")
    assert {target: _callers(rendered, target) for target in PORTS} == {
        "redis": {"kvs-api"},
        "kvs-api": {"controller", "dispatcher", "worker", "notebook", "test"},
        "controller": set(),
        "worker": set(),
        # Components with unrestricted egress can reach public ports.
        "dispatcher": EVERYBODY_OUTSIDE | {"notebook", "worker", "controller"},
        "notebook": EVERYBODY_OUTSIDE | {"worker", "controller"},
        "tensorboard": {"notebook"},
    }


def test_only_ports_of_services_are_open() -> None:
    """No other port of any pod accepts connections."""
    rendered = render("defaults")
    open_ports = {
        (target, port)
        for target in PORTS
        for port in {*PORTS.values(), 22, 7073, 7074, 7075}
        if any(reaches(rendered, source, target, port) for source in _ends(rendered) if source != target)
    }
    assert open_ports == {(target, PORTS[target]) for target in PORTS} - {
        ("controller", 7071),
        ("worker", 7072),
    }


@pytest.mark.parametrize(
    ("source", "is_free"),
    [
        ("redis", False),
        ("tensorboard", False),
        ("kvs-api", False),
        ("dispatcher", False),
        ("test", False),
        ("controller", True),
        ("worker", True),
        ("notebook", True),
    ],
)
def test_only_pods_that_fetch_data_have_egress(source: str, is_free: bool) -> None:
    """Controller, workers and notebook, for object stores and package indexes.

    Redis and TensorBoard have no egress at all.
    """
    rendered = render("defaults")
    assert reaches(rendered, source, "internet", 443) is is_free
    ends = _ends(rendered)
    can_look_up = _allows(rendered, "Egress", ends[source], ends["node"], 53)
    assert can_look_up is (source not in ("redis", "tensorboard"))


def test_peers_limit_ingress_and_egress() -> None:
    """With peers: pages only from the Ingress, TensorBoard only from a viewer, egress only to one network."""
    rendered = render("ingress")
    assert _callers(rendered, "dispatcher") == {"ingress"}
    assert _callers(rendered, "notebook") == {"ingress"}
    assert _callers(rendered, "tensorboard") == {"notebook", "viewer"}
    for source in ("controller", "worker", "notebook"):
        assert not reaches(rendered, source, "internet", 443)
        assert reaches(rendered, source, "node", 443)
        assert reaches(rendered, source, "kvs-api", 7070)


STORES = {
    "aws": End(address="52.218.0.1"),
    "private": End(address="10.2.0.7"),
    "metadata": End(address="169.254.169.254"),
    "minio": End(labels={"app": "minio"}, namespace={"kubernetes.io/metadata.name": "minio"}),
}
KEYS = {"existingSecret": "keys"}
MINIO = {"endpoint": "http://minio.minio:9000", **KEYS}


@pytest.mark.parametrize(
    ("store", "egress", "reached"),
    [
        (KEYS, {}, {("aws", 443)}),
        (KEYS | {"endpoint": "https://s3.example.org"}, {}, {(name, 443) for name in STORES}),
        (MINIO, {}, {(name, 9000) for name in STORES}),
        (KEYS | {"endpoint": "http://minio.minio"}, {}, {(name, 80) for name in STORES}),
        (MINIO, {"peers": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}, {("private", 9000)}),
        (
            MINIO,
            {
                "peers": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
                "objectStore": {
                    "peers": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "minio"}}}],
                    "port": 9443,
                },
            },
            {("minio", 9443)},
        ),
    ],
)  # fmt: skip
def test_the_page_reaches_only_the_object_store(
    store: Object, egress: Object, reached: set[tuple[str, int]]
) -> None:
    """Only if configured, at the store's port, and limited by peers."""
    values = {"objectStore": store, "networkPolicy": {"egress": egress}}
    ports = {80, 443, 6379, 6443, 9000, 9443}

    def found(rendered: Rendered) -> set[tuple[str, int]]:
        page = _ends(rendered)["dispatcher"]
        return {
            (name, port)
            for name, end in STORES.items()
            for port in ports
            if _allows(rendered, "Egress", page, end, port)
        }

    looks = values | {"dispatcher": {"objectStore": {"enabled": True}}}
    rendered = render_each({"does not look": values, "looks": looks})
    assert found(rendered["does not look"]) == set()
    assert found(rendered["looks"]) == reached


def test_every_pod_has_its_own_policy() -> None:
    """For both directions, in addition to the policy that denies all traffic."""
    rendered = render("defaults")
    decided = {
        one["metadata"]["labels"].get("app.kubernetes.io/component"): set(one["spec"]["policyTypes"])
        for one in rendered.of("NetworkPolicy")
    }
    assert decided.pop(None) == {"Ingress"}
    assert decided == {name: {"Ingress", "Egress"} for name, _ in rendered.pods()}


def test_prometheus_reads_metrics_and_nothing_else() -> None:
    """Only on request, from Prometheus' pods, on the ports for probes and metrics."""
    ports = {*PORTS.values(), *(port for some in METRICS.values() for port in some)}

    def opened(values: str, source: str) -> dict[str, set[int]]:
        found = {
            target: {port for port in ports if reaches(render(values), source, target, port)}
            for target in PORTS
        }
        return {target: some for target, some in found.items() if some}

    pages = {"dispatcher": {7080}, "notebook": {8888}}
    assert opened("defaults", "prometheus") == opened("monitoring", "neighbour") == pages
    assert opened("monitoring", "prometheus") == {
        target: METRICS.get(target, set()) | pages.get(target, set()) for target in METRICS | pages
    }


@pytest.mark.parametrize(("values", "is_open"), [("defaults", False), ("many", True)])
def test_workers_that_train_together_reach_each_other(values: str, is_open: bool) -> None:
    """On any port, since torch picks free ones; other pods never reach workers."""
    rendered = render(values)
    for port in (7191, 40_000):
        callers = {source for source in _ends(rendered) if reaches(rendered, source, "worker", port)}
        assert callers == ({"worker"} if is_open else set())
