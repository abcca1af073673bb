"""Rules for every pod: privileges, probes and resources."""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest

from tests.deploy.chart.matrix import VALUES
from tests.deploy.chart.rendering import Object, Rendered, render, render_with

SUFFIXES: Mapping[str, Fraction | int] = {
    "": 1,
    "m": Fraction(1, 1000),
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def quantity(text: str | int | float) -> Fraction:
    """Parse a Kubernetes quantity."""
    digits = str(text).rstrip("mKMGTi")
    return Fraction(digits) * SUFFIXES[str(text)[len(digits) :]]


_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"


@pytest.mark.parametrize("values", VALUES)
def test_every_pod_passes_the_restricted_profile(values: str) -> None:
    """All rules of the Pod Security Standard "Restricted", for every pod of the matrix including helm test."""
    for name, pod in render(values).pods():
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["runAsGroup"] == 1000, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & spec.keys(), name
        kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
        assert kinds <= {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"}, name
    for name, container in render(values).containers():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert not any("hostPort" in port for port in container.get("ports", ())), name


@pytest.mark.parametrize("values", VALUES)
def test_every_container_can_write_to_tmp_and_no_container_fills_a_node(values: str) -> None:
    """The root file system is read-only; /tmp and shared memory are limited emptyDirs."""
    for name, pod in render(values).pods():
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        for volume in volumes.values():
            assert "emptyDir" not in volume or quantity(volume["emptyDir"]["sizeLimit"]) > 0, name
        scratch = [
            mount["name"]
            for container in pod["spec"]["containers"]
            for mount in container["volumeMounts"]
            if mount["mountPath"] == "/tmp"
        ]
        assert len(scratch) == len(set(scratch)) == len(pod["spec"]["containers"]), name
        assert all("emptyDir" in volumes[volume] for volume in scratch), name


@pytest.mark.parametrize("values", VALUES)
def test_every_container_has_three_probes_on_its_own_port(values: str) -> None:
    """Startup (every second), readiness and liveness, except for the test pod, which ends by itself."""
    for name, container in render(values).services():
        if name.startswith("test/"):
            continue
        ports = {port["name"] for port in container["ports"]}
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container[kind]
            (parallel_plan,) = probe.keys() & {"httpGet", "tcpSocket", "exec"}
            assert parallel_plan == "exec" or probe[parallel_plan]["port"] in ports, (name, kind)
            assert probe["timeoutSeconds"] >= 5, (name, kind)  # a loaded node must not kill pods
        assert container["startupProbe"]["periodSeconds"] == 1, name
        assert container["startupProbe"]["failureThreshold"] >= 60, name
        assert (
            container["livenessProbe"]["failureThreshold"] * container["livenessProbe"]["periodSeconds"] >= 60
        ), name


def test_readiness_needs_the_store_and_liveness_does_not() -> None:
    """/health needs the store, /live does not, so an outage of the store restarts no pod."""
    probed = {
        name: (container["readinessProbe"]["httpGet"]["path"], container["livenessProbe"]["httpGet"]["path"])
        for name, container in render("defaults").services()
        if name.split("/")[0] in ("kvs-api", "controller", "dispatcher", "worker")
    }
    assert set(probed.values()) == {("/health", "/live")}
    assert len(probed) == 5


@pytest.mark.parametrize("name", ["kvs-api", "dispatcher"])
def test_servers_are_probed_on_a_separate_port(name: str) -> None:
    """A busy server may have no free thread or connection, which must not restart it."""
    (container,) = render("defaults").pod(name)["spec"]["containers"]
    probed = {
        container[kind]["httpGet"]["port"] for kind in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert probed == {"health"}
    assert plain(container)["CEREBRO_HEALTH_BIND"].endswith(f":{ports['health']}")
    assert not plain(container)["CEREBRO_BIND"].endswith(f":{ports['health']}")


def test_the_defaults_fit_a_node_with_two_cores() -> None:
    """All requests including helm test leave half of two cores and of 5 GiB for other pods of the node."""
    cpu, memory = _requests(render("defaults"))
    assert cpu <= 1
    assert memory <= quantity("2.5Gi")


def _requests(rendered: Rendered) -> tuple[Fraction, Fraction]:
    cpu = memory = Fraction(0)
    for one in rendered.objects:
        if one["kind"] not in ("Pod", "Deployment", "StatefulSet"):
            continue
        pod = one if one["kind"] == "Pod" else one["spec"]["template"]
        replicas = one["spec"].get("replicas", 1)
        for container in pod["spec"]["containers"]:
            requests = container["resources"]["requests"]
            cpu += replicas * quantity(requests["cpu"])
            memory += replicas * quantity(requests["memory"])
    return cpu, memory


# --- who runs how ----------------------------------------------------------------------------------------------------


def test_redis_writes_to_disk_before_it_answers() -> None:
    """Append-only file with fsync at every write, no eviction, a password, and its own claim."""
    one = render("defaults").get("StatefulSet", "redis")
    (container,) = one["spec"]["template"]["spec"]["containers"]
    assert container["command"][-1] == "valkey-server"
    assert {
        "--appendonly yes",
        "--appendfsync always",
        "--maxmemory 0",
        "--maxmemory-policy noeviction",
        "--requirepass $(REDIS_PASSWORD)",
        "--protected-mode yes",
        "--dir /data",
    } <= set(container["args"])
    assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
    (claim,) = one["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "data"


def test_an_external_redis_replaces_ours() -> None:
    """No StatefulSet, service, account or password of the chart; kvs-api's URL comes from the user's Secret."""
    rendered = render("external-redis")
    assert "redis" not in dict(rendered.pods())
    (container,) = rendered.pod("kvs-api")["spec"]["containers"]
    (url,) = [entry for entry in container["env"] if "REDIS" in entry["name"]]
    assert url == {
        "name": "CEREBRO_REDIS_URL",
        "valueFrom": {"secretKeyRef": {"name": "our-redis", "key": "url"}},
    }


@pytest.mark.parametrize("name", ["kvs-api", "controller", "dispatcher"])
def test_upgrades_never_reduce_the_number_of_ready_pods(name: str) -> None:
    """The new pod is ready before an old one ends."""
    strategy = render("defaults").get("Deployment", name)["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


@pytest.mark.parametrize("values", ["defaults", "many"])
def test_a_drain_keeps_a_replica_of_kvs_api_and_is_not_blocked(values: str) -> None:
    """The disruption budget selects kvs-api's pods and allows at least one eviction."""
    rendered = render(values)
    budget = rendered.get("PodDisruptionBudget", "kvs-api")["spec"]
    deployment = rendered.get("Deployment", "kvs-api")["spec"]
    assert budget["selector"] == deployment["selector"]
    assert 1 <= budget["minAvailable"] < deployment["replicas"]
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@pytest.mark.parametrize("name", ["kvs-api", "dispatcher"])
def test_services_pause_before_they_end_and_have_time_to_drain(name: str) -> None:
    """preStop covers the time until endpoints are updated; open requests then finish within the grace period."""
    from cerebro.runtime.web.serving import GRACE_S

    spec = render("defaults").pod(name)["spec"]
    (command,) = [container["lifecycle"]["preStop"]["exec"]["command"] for container in spec["containers"]]
    assert spec["terminationGracePeriodSeconds"] > float(command[1]) + GRACE_S


def test_workers_start_together_and_keep_their_volumes() -> None:
    """Parallel pod management, and a claim per pod that survives the set; scaling down deletes claims on request."""
    spec = render("defaults").get("StatefulSet", "worker")["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert [claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]] == ["shards"]
    many = render("many").get("StatefulSet", "worker")["spec"]
    assert many["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Delete"
    assert many["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "gp3"


@pytest.mark.parametrize("values", VALUES)
def test_the_termination_grace_period_exceeds_the_grace_of_the_worker(values: str) -> None:
    """terminationGracePeriodSeconds exceeds CEREBRO_GRACE_S by the time to save and hand over."""
    spec = render(values).pod("worker")["spec"]
    for container in spec["containers"]:
        assert spec["terminationGracePeriodSeconds"] >= float(plain(container)["CEREBRO_GRACE_S"]) + 20


def plain(container: Object) -> Mapping[str, str]:
    """Return the variables of a container that have literal values."""
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}


def _worker(values: str) -> dict[str, Any]:
    return {one["name"]: one for one in render(values).pod("worker")["spec"]["containers"]}


def test_one_container_gets_all_gpus() -> None:
    """The container `worker` gets all GPUs, `etl` none; other resources of the user stay."""
    containers = _worker("gpus")
    assert containers["worker"]["resources"]["limits"] == {
        "cpu": "16",
        "memory": "96Gi",
        "nvidia.com/gpu": 4,
    }
    assert "nvidia.com/gpu" not in str(containers["etl"]["resources"])
    assert plain(containers["etl"])["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "NVIDIA_VISIBLE_DEVICES" not in plain(containers["worker"])
    assert render("gpus").pod("worker")["spec"]["runtimeClassName"] == "nvidia"


def test_each_container_of_a_worker_registers_under_its_own_name() -> None:
    """The training container has the pod's name, the ETL container the name with "-etl"; each with its handlers."""
    containers = _worker("defaults")
    assert plain(containers["worker"])["CEREBRO_WORKER"] == "$(CEREBRO_POD)"
    assert plain(containers["etl"])["CEREBRO_WORKER"] == "$(CEREBRO_POD)-etl"
    for container, handlers in (
        ("worker", ["model_hopper", "trial_runner"]),
        ("etl", ["etl_worker", "cerebro.worker.searches"]),
    ):
        command = containers[container]["command"]
        assert command[command.index("--handlers") + 1 :] == handlers
        names = [entry["name"] for entry in containers[container]["env"]]
        assert names.index("CEREBRO_POD") < names.index("CEREBRO_WORKER"), "expansion needs this order"


@pytest.mark.parametrize("name", ["notebook", "tensorboard"])
def test_servers_for_browsers_start_at_their_first_connection(name: str) -> None:
    """A small proxy listens on the pod's port; TensorBoard, which has no password, listens only on loopback."""
    (container,) = render("defaults").pod(name)["spec"]["containers"]
    (port,) = container["ports"]
    listens = f"--bind=[::]:{port['containerPort']}"
    assert container["command"] == ["python", "-P", "-m", "cerebro.runtime.web.on_demand", listens, "--"]
    assert "--port={port}" in container["args"]
    assert ("--host=127.0.0.1" in container["args"]) == (name == "tensorboard")


def test_volumes_of_root_are_handed_over_first() -> None:
    """On request, an init container with only this right changes the owner of the pod's volumes."""
    rendered = render_with({"storage": {"handOver": "always"}})
    for name, pod in rendered.pods():
        spec = pod["spec"]
        claims = {v["name"] for v in spec["volumes"] if "persistentVolumeClaim" in v} | {"shards", "data"}
        written = {
            mount["mountPath"]
            for container in spec["containers"]
            for mount in container.get("volumeMounts", ())
            if mount["name"] in claims and not mount.get("readOnly")
        }
        before = spec.get("initContainers", [])
        handed = [folder for one in before for folder in one["args"]]
        assert set(handed) == (written if name not in ("test", "selftest") else set()), name
        for one in before:
            assert one["name"] == "hand-over", "root's folders are no business of the user"
            assert {mount["mountPath"] for mount in one["volumeMounts"]} == set(handed)
            security = one["securityContext"]
            assert security["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
            assert security["readOnlyRootFilesystem"]
            assert not security["allowPrivilegeEscalation"]
    assert not any(name.endswith("/hand-over") for name, _ in render("defaults").containers())


@pytest.mark.parametrize(
    ("values", "expected"), [({}, "false"), ({"worker": {"podAnnotations": {_EVICT: "true"}}}, "true")]
)
def test_autoscalers_do_not_evict_workers(values: dict[str, Any], expected: str) -> None:
    """Eviction would interrupt sub-epochs to save a node; the user can allow it."""
    pods = dict(render_with(values).pods())
    found = {name: pod["metadata"].get("annotations", {}).get(_EVICT) for name, pod in pods.items()}
    assert {name for name, value in found.items() if value is not None} == {"worker"}
    assert found["worker"] == expected
    assert pods["worker"]["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"


def test_the_cluster_may_assign_users_and_groups() -> None:
    """OpenShift's SCC `restricted-v2` assigns its own ids; the other fields do not change."""
    left_out = {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}
    for name, pod in render_with(left_out).pods():
        assert pod["spec"]["securityContext"] == {
            "runAsNonRoot": True,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        }, name
    for name, pod in render_with({"podSecurityContext": {"runAsGroup": None, "fsGroup": 7}}).pods():
        context = pod["spec"]["securityContext"]
        assert (context["runAsUser"], context["fsGroup"], "runAsGroup" in context) == (1000, 7, False), name


@pytest.mark.parametrize("values", VALUES)
def test_every_listener_accepts_both_address_families(values: str) -> None:
    """An IPv6-only cluster has no IPv4 addresses, so no server listens only on 0.0.0.0."""
    for name, container in render(values).containers():
        text = str([container.get(each) for each in ("command", "args", "env")])
        assert not re.search(r"(?<!\d)0\.0\.0\.0", text), name
        binds = [each["value"] for each in container.get("env", ()) if each["name"].endswith("_BIND")]
        assert all(each.startswith("[::]:") for each in binds), name
