"""The chart sets exactly the environment variables that the services read."""

import importlib
import inspect
import re
from collections.abc import Mapping, Set
from types import ModuleType
from typing import Any

import pytest
import yaml

import cerebro.worker.agent.settings
import controller.settings
import dispatcher.settings
import kvs_api.settings
from tests.deploy.chart.matrix import VALUES
from tests.deploy.chart.rendering import Object, render, render_each, render_with

SETTINGS: Mapping[str, ModuleType] = {
    "kvs-api/kvs-api": kvs_api.settings,
    "controller/controller": controller.settings,
    "dispatcher/dispatcher": dispatcher.settings,
    "worker/worker": cerebro.worker.agent.settings,
    "worker/etl": cerebro.worker.agent.settings,
}
READERS = {
    **{
        name: (module.__name__, "cerebro.runtime.volumes", "cerebro.runtime.logs")
        for name, module in SETTINGS.items()
    },
    "kvs-api/kvs-api": ("kvs_api.settings", "cerebro.runtime.logs"),
    "notebook/notebook": ("cerebro.client.connection", "cerebro.runtime.volumes"),
    "test/selftest": ("cerebro.client.connection", "cerebro.runtime.volumes"),
    "tensorboard/tensorboard": (),
    "redis/redis": (),
    "export/export": ("cerebro.cli.experiments.export", "cerebro.client.connection", "cerebro.runtime.logs"),
}
"""Container -> modules that read its environment."""

OF_TRAINING = {"CEREBRO_ADDRESS", "CEREBRO_GANG_PORT"}
"""Variables for training only, which ETL containers lack."""
LEFT_OUT = ("CEREBRO_VOLUME", "CEREBRO_HEALTH_METRICS", "CEREBRO_HOME")
"""Prefixes of variables that the chart does not set: volumes are at the default path, only Prometheus uses the probe
ports, and a home exists only on a local cluster.
"""

READERS_OF_OBJECTS = {"controller", "worker", "notebook", "dispatcher"}

FOREIGN = {
    "AWS_ENDPOINT_URL": READERS_OF_OBJECTS,
    "AWS_REGION": READERS_OF_OBJECTS,
    "AWS_DEFAULT_REGION": READERS_OF_OBJECTS,
    "MALLOC_ARENA_MAX": {"kvs-api", "controller", "dispatcher", "export"},
    "OMP_NUM_THREADS": {"kvs-api", "controller", "dispatcher", "worker", "export"},
    "MLFLOW_TRACKING_URI": {"export"},
    "REDIS_PASSWORD": {"redis", "kvs-api"},
    "JUPYTER_TOKEN": {"notebook"},
    "HOME": {"notebook"},
    "NVIDIA_VISIBLE_DEVICES": {"worker"},
    "HF_HOME": {"worker"},  # extraEnv in a set of values
}
"""Variables of other programs, and the components that get them."""


def _read(modules: tuple[str, ...]) -> set[str]:
    """Find variable names in the source of modules; only settings modules read the environment."""
    sources = "".join(inspect.getsource(importlib.import_module(module)) for module in modules)
    return set(re.findall(r"CEREBRO_[A-Z][A-Z_]*", sources))


def _documented(name: str, values: str) -> Set[str]:
    container = dict(render(values).containers())[name]
    return {entry["name"] for entry in container.get("env", ())}


@pytest.mark.parametrize("values", VALUES)
def test_each_service_reads_every_variable_of_its_container(values: str) -> None:
    """The service would ignore a misspelt or outdated variable silently."""
    for name, _ in render(values).services():
        ours = {variable for variable in _documented(name, values) if variable.startswith("CEREBRO_")}
        assert ours <= _read(READERS[name]), name
        for variable in _documented(name, values) - ours:
            assert name.split("/")[0] in FOREIGN[variable], (name, variable)


@pytest.mark.parametrize("name", READERS)
def test_every_variable_that_a_service_reads_can_be_set(name: str) -> None:
    """Each setting is in a set of values, or excluded with a reason."""
    variables = {
        variable
        for values in VALUES
        if name in dict(render(values).containers())
        for variable in _documented(name, values)
    }
    variables |= OF_TRAINING if name == "worker/etl" else set()
    assert {
        variable for variable in _read(READERS[name]) - variables if not variable.startswith(LEFT_OUT)
    } == set()


def _environment(container: Object) -> dict[str, str]:
    """Build the environment as the kubelet does, with placeholders for values of the cluster."""
    stand_in = {
        "metadata.name": "cerebro-worker-0",
        "metadata.namespace": "lab",
        "metadata.uid": "a2f0c0de-0000-4000-8000-000000000001",
        "spec.nodeName": "node-a",
        "status.podIP": "10.1.2.3",
    }
    variables: dict[str, str] = {}
    for entry in container["env"]:
        source: dict[str, Any] = entry.get("valueFrom", {})
        if "secretKeyRef" in source:
            key = source["secretKeyRef"]["key"]
            # With users, kvs_api gets the tokens of all services, too.
            is_services = key.endswith("-token") and entry["name"] != "CEREBRO_TOKEN"
            value = f"{key}-".ljust(43, "s") if is_services else "s" * 43
            value = "redis://:s@elsewhere:6379/0" if key == "url" else value
        elif "fieldRef" in source:
            value = stand_in[source["fieldRef"]["fieldPath"]]
        else:
            value = re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], entry["value"])
        variables[entry["name"]] = value
    return variables


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("name", SETTINGS)
def test_every_service_accepts_its_environment(name: str, values: str) -> None:
    """Each service's settings parse its container's environment."""
    environment = _environment(dict(render(values).containers())[name])
    # Access to the API server needs files of a pod; tests/controller/kubernetes covers it.
    environment.pop("CEREBRO_WORKER_SET", None)
    assert SETTINGS[name].Settings.from_environment(environment).token == "s" * 43


@pytest.mark.parametrize("name", SETTINGS)
def test_services_listen_on_the_ports_of_their_probes(name: str) -> None:
    """The bound ports equal the container's ports, on all addresses."""
    container = dict(render("defaults").containers())[name]
    environment = _environment(container)
    binds = [environment[key] for key in ("CEREBRO_BIND", "CEREBRO_HEALTH_BIND") if key in environment]
    assert binds == [f"[::]:{one['containerPort']}" for one in container["ports"]]


THREADS = {
    "": ("1", "1"),
    "cores: 1": ("1", "1"),
    "cores: 4": ("4", "4"),
    "cores: 0": ("1", "1"),  # as in values files for an earlier chart
    "resources: {worker: {requests: {cpu: 8}}}": ("8", "1"),
    "resources: {worker: {requests: {cpu: 2500m}}, etl: {requests: {cpu: '1.5'}}}": ("3", "2"),
    "resources: {worker: {limits: {cpu: 16}}}": ("16", "1"),
    "resources: {worker: {limits: {cpu: 300m}}}": ("1", "1"),
    "resources: {worker: {requests: {cpu: null}}}": ("1", "1"),
    "{cores: 2, resources: {worker: {limits: {cpu: 16}}}}": ("2", "2"),
}
"""Values of `worker` -> threads of the containers `worker` and `etl`."""


@pytest.mark.parametrize(("values", "threads"), THREADS.items())
def test_workers_use_as_many_threads_as_requested_cores(values: str, threads: tuple[str, str]) -> None:
    """The node's core count would oversubscribe it if several workers share it."""
    rendered = render_each({each: {"worker": yaml.safe_load(each) or {}} for each in THREADS})[values]
    containers = dict(rendered.containers())
    for container, number in zip(("worker", "etl"), threads, strict=True):
        environment = _environment(containers[f"worker/{container}"])
        assert (environment["CEREBRO_CORES"], environment["OMP_NUM_THREADS"]) == (number, number)


def test_workers_and_controller_agree_on_the_lease() -> None:
    """Both read one value."""
    leases = {
        _environment(container)["CEREBRO_LEASE_S"]
        for name, container in render("many").containers()
        if name in ("controller/controller", "worker/worker", "worker/etl")
    }
    assert leases == {"15"}


def test_the_page_knows_its_host_names() -> None:
    """The service's name, the Ingress' and the user's; cookies are secure only if the Ingress has TLS."""
    settings = {}
    for values in ("defaults", "ingress"):
        container = dict(render(values).containers())["dispatcher/dispatcher"]
        settings[values] = dispatcher.settings.Settings.from_environment(_environment(container))
    assert {"cerebro-dispatcher", "cerebro-dispatcher.lab.svc"} <= settings["defaults"].public_hosts
    assert {"cerebro.example.org", "cerebro.internal"} <= settings["ingress"].public_hosts
    assert (settings["defaults"].is_https, settings["ingress"].is_https) == (False, True)


@pytest.mark.parametrize("values", VALUES)
def test_the_page_reads_object_stores_only_if_enabled(values: str) -> None:
    """Region, endpoint and keys are set only together with the option for the object store."""
    container = dict(render(values).containers())["dispatcher/dispatcher"]
    has_credentials = dispatcher.settings.Settings.from_environment(_environment(container)).has_object_store
    assert has_credentials is (values == "object-store")
    assert ("envFrom" in container) is has_credentials
    assert (
        any(name.startswith("AWS_") for name in _documented("dispatcher/dispatcher", values))
        is has_credentials
    )


def test_without_dns_services_are_found_by_the_kubelets_variables() -> None:
    """The addresses use the service variables of Kubernetes, which the pods then get."""
    rendered = render_with({"serviceDiscovery": "environment"})
    services = {
        one["metadata"]["name"] for one in rendered.of("Service") if one["spec"].get("clusterIP") != "None"
    }
    variables = {f"{name.upper().replace('-', '_')}_SERVICE_HOST" for name in services}
    found = set()
    for name, pod in rendered.pods():
        for container in pod["spec"]["containers"]:
            for variable in container.get("env", ()):
                hosts = set(re.findall(r"\$\((\w+_SERVICE_HOST)\)", str(variable.get("value"))))
                assert hosts <= variables
                assert not hosts or pod["spec"]["enableServiceLinks"], name
                found |= hosts
    assert found == {"CEREBRO_KVS_API_SERVICE_HOST", "CEREBRO_REDIS_SERVICE_HOST"}


def test_each_service_has_its_own_token_in_users_mode() -> None:
    """Only kvs-api has all tokens, so no other container can act as another service or an admin."""
    found = {
        name: {
            entry["valueFrom"]["secretKeyRef"]["key"]
            for entry in container.get("env", ())
            if entry.get("valueFrom", {}).get("secretKeyRef", {}).get("name") == "cerebro-auth"
        }
        for name, container in render("users").containers()
    }
    token_keys = {"controller-token", "worker-token", "dispatcher-token", "export-token"}
    assert found["kvs-api/kvs-api"] == token_keys | {"token", "redis-password"}
    assert found["controller/controller"] == {"controller-token"}
    assert found["dispatcher/dispatcher"] == {"dispatcher-token"}
    assert found["worker/worker"] == found["worker/etl"] == {"worker-token"}
