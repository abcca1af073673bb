"""Every name that one object uses exists in the release or in the values."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.chart.matrix import VALUES
from tests.deploy.chart.rendering import Object, component, render

THEIRS = {
    ("PersistentVolumeClaim", "existing"): {
        "our-checkpoints",
        "our-metrics",
        "our-code",
        "our-shared",
        "our-home",
    },
    ("PriorityClass", "existing"): {"batch"},
}
SECRET_KEYS = {
    "cerebro-auth": {"token", "redis-password"},
    "our-auth": {"token", "redis-password"},
    "our-redis": {"url"},
}
OF_SERVICES = {f"{name}-token" for name in ("controller", "dispatcher", "export", "worker")}
"""Keys of the same Secret if the cluster has users."""
WHOLE_SECRETS = {"our-bucket", "our-reading-bucket", "our-mlflow"}


def _find(one: Any, key: str) -> Iterator[Any]:
    if isinstance(one, dict):
        for name, below in one.items():
            if name == key:
                yield below
            yield from _find(below, key)
    elif isinstance(one, list):
        for below in one:
            yield from _find(below, key)


def _matches(selector: Object, labels: Object) -> bool:
    return selector.items() <= labels.items()


@pytest.mark.parametrize("values", VALUES)
def test_every_secret_key_is_there(values: str) -> None:
    """The chart's Secret has the keys, or values.yaml requires them in the user's Secret."""
    rendered = render(values)
    own_keys = OF_SERVICES if values in ("users", "export") else set()
    for made in rendered.of("Secret"):
        assert set(made["data"]) == SECRET_KEYS[made["metadata"]["name"]] | own_keys
        assert len(set(made["data"].values())) == len(made["data"])
    for name, pod in rendered.pods():
        for reference in _find(pod, "secretKeyRef"):
            assert reference["key"] in SECRET_KEYS[reference["name"]] | own_keys, name
            is_ours = reference["name"] == "cerebro-auth"
            assert rendered.has("Secret", reference["name"]) == is_ours, name
        for reference in _find(pod, "secretRef"):
            assert reference["name"] in WHOLE_SECRETS, name
        assert not list(_find(pod, "configMapKeyRef")) + list(_find(pod, "configMapRef")), name


@pytest.mark.parametrize("values", VALUES)
def test_every_claim_account_and_priority_class_is_there(values: str) -> None:
    """The names are in the release, or are the user's own."""
    rendered = render(values)
    for name, pod in rendered.pods():
        claims = {claim["claimName"] for claim in _find(pod["spec"]["volumes"], "persistentVolumeClaim")}
        for claim in claims - THEIRS.get(("PersistentVolumeClaim", values), set()):
            assert rendered.has("PersistentVolumeClaim", claim), (name, claim)
        assert rendered.has("ServiceAccount", pod["spec"]["serviceAccountName"]), name
        priority_class = pod["spec"].get("priorityClassName")
        if priority_class and priority_class not in THEIRS.get(("PriorityClass", values), set()):
            assert rendered.has("PriorityClass", priority_class), name


@pytest.mark.parametrize("values", VALUES)
def test_every_mount_has_a_volume_and_every_volume_a_mount(values: str) -> None:
    """Claim templates count as volumes, and no path is mounted twice."""
    rendered = render(values)
    for name, pod in rendered.pods():
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        for one in rendered.of("StatefulSet"):
            if component(one) == name:
                volumes |= {claim["metadata"]["name"] for claim in one["spec"]["volumeClaimTemplates"]}
        mounted = set()
        for container in pod["spec"]["containers"]:
            mounts = container["volumeMounts"]
            mounted |= {mount["name"] for mount in mounts}
            paths = [mount["mountPath"] for mount in mounts]
            assert len(paths) == len(set(paths)), name
        assert mounted == volumes, name


@pytest.mark.parametrize("values", VALUES)
def test_every_selector_selects_the_pods_of_its_component_and_no_others(values: str) -> None:
    """Selectors of services, sets, budgets and policies match exactly one component's pods."""
    rendered = render(values)
    labels = {name: pod["metadata"]["labels"] for name, pod in rendered.pods()}

    def selected(selector: Object) -> set[str]:
        return {name for name, found in labels.items() if _matches(selector, found)}

    for one in rendered.objects:
        spec, name = one.get("spec", {}), component(one)
        if one["kind"] in ("Deployment", "StatefulSet", "PodDisruptionBudget"):
            assert selected(spec["selector"]["matchLabels"]) == {name}
        elif one["kind"] == "Service":
            assert selected(spec["selector"]) == {name}
        elif one["kind"] == "NetworkPolicy":
            assert selected(spec["podSelector"]["matchLabels"]) == ({name} if name else set(labels))


@pytest.mark.parametrize("values", VALUES)
def test_every_service_leads_to_a_port_and_every_ingress_to_a_service(values: str) -> None:
    """Named ports exist in the pods; an Ingress names a service, its port and its TLS Secret."""
    rendered = render(values)
    for service in rendered.of("Service"):
        pod = rendered.pod(component(service))
        named = {port["name"] for container in pod["spec"]["containers"] for port in container["ports"]}
        assert {port["targetPort"] for port in service["spec"].get("ports", ())} <= named
    for ingress in rendered.of("Ingress"):
        for backend in _find(ingress, "backend"):
            target = rendered.get("Service", backend["service"]["name"].removeprefix("cerebro-"))
            assert backend["service"]["port"]["name"] in {port["name"] for port in target["spec"]["ports"]}
    for one in rendered.of("StatefulSet"):
        assert rendered.has("Service", one["spec"]["serviceName"])


@pytest.mark.parametrize("values", VALUES)
def test_every_address_of_a_pod_is_a_service_of_the_release(values: str) -> None:
    """CEREBRO_SERVER and CEREBRO_REDIS_URL name a service and its port."""
    rendered = render(values)
    services = {
        (one["metadata"]["name"], port["port"])
        for one in rendered.of("Service")
        for port in one["spec"].get("ports", ())
    }
    for name, container in rendered.containers():
        for entry in container.get("env", ()):
            if entry["name"] in ("CEREBRO_SERVER", "CEREBRO_REDIS_URL") and "value" in entry:
                host, _, port = entry["value"].rpartition("//")[2].rpartition("@")[2].partition(":")
                assert (host, int(port.partition("/")[0])) in services, name


@pytest.mark.parametrize("values", VALUES)
def test_the_role_is_bound_to_the_account_of_the_controller(values: str) -> None:
    """Role, binding and account exist and refer to each other."""
    rendered = render(values)
    (binding,), (role,) = rendered.of("RoleBinding"), rendered.of("Role")
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", role["metadata"]["name"])
    (subject,) = binding["subjects"]
    assert subject["name"] == rendered.pod("controller")["spec"]["serviceAccountName"]
    assert subject["namespace"] == role["metadata"]["namespace"]


def test_volumes_are_mounted_at_the_paths_of_the_services() -> None:
    """Mounts below /volumes match cerebro.runtime.volumes; logs are a folder of the metrics claim."""
    from cerebro.runtime.volumes import Volumes

    volumes = Volumes.from_environment({})
    known = {str(getattr(volumes, name)) for name in Volumes.__dataclass_fields__}
    rendered = render("defaults")
    for name, container in rendered.containers():
        below = {
            mount["mountPath"]
            for mount in container["volumeMounts"]
            if mount["mountPath"].startswith("/volumes")
        }
        assert below <= known, name
    worker = dict(rendered.containers())["worker/worker"]
    folders = {mount["mountPath"]: (mount["name"], mount.get("subPath")) for mount in worker["volumeMounts"]}
    assert folders["/volumes/logs"] == ("metrics", "logs")
    board = dict(rendered.containers())["tensorboard/tensorboard"]
    assert {mount["mountPath"]: mount.get("subPath") for mount in board["volumeMounts"]}[
        "/volumes/metrics"
    ] == "metrics"


WRITABLE = {
    "kvs-api/kvs-api": {"shared"},
    "controller/controller": {"shared", "checkpoints", "metrics", "logs"},
    "dispatcher/dispatcher": set(),
    "tensorboard/tensorboard": set(),
    "notebook/notebook": {"shared"},
    "worker/worker": {"shards", "shared", "checkpoints", "code", "logs"},
    "worker/etl": {"shards", "shared", "code", "logs"},
    "test/selftest": {"shared"},
}


def test_each_container_can_write_only_its_own_volumes() -> None:
    """Each container can write to its own volumes; all others are read-only or not mounted."""
    for name, container in render("defaults").containers():
        writable = {
            mount["mountPath"].removeprefix("/volumes/")
            for mount in container["volumeMounts"]
            if mount["mountPath"].startswith("/volumes/") and not mount.get("readOnly")
        }
        assert writable == WRITABLE.get(name, set()), name
