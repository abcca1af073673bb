"""Release: memory of the default Helm release that has not run anything yet, over the processes of all its pods.

The chart is rendered with its defaults. The command of each container runs on this machine, as often as the release has
pods, with the container's environment, probed as the kubelet does. Folders replace the volumes, free ports the pods'
addresses, and an emulator the API server. Resident sizes are summed over all processes, so pages that processes share
count for each process, as on separate nodes; a second figure counts them once.
"""

from __future__ import annotations

import http
import http.client
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import yaml

from benchmarks.figure import Figure
from cerebro.errors import ClusterError
from cerebro.local import database
from cerebro.local.supervision.ports import HOST
from cerebro.runtime.isolation.parent_death import with_parent_death_signal
from tests.certificates import of_this_machine
from tests.controller.kubernetes.emulator import NAMESPACE, Emulator
from tests.controller.kubernetes.pods import pod
from tests.controller.kubernetes.serving import serving
from tests.deploy.chart.rendering import CHART, Object, Rendered, render_with

BAR = 600.0
"""MiB."""
_READY_S = 60.0
_PROBES, _PROBE_EVERY_S = 6, 2.0
"""Rounds of probes before the measurement: time for a heartbeat of each worker and a read by the controller."""
_MIB = 1 << 20
_TOKEN = "x" * 43
_IN_POD = """\
import sys
from functools import partial
from pathlib import Path
import controller.kubernetes as kubernetes
kubernetes.in_cluster = partial(kubernetes.in_cluster, mounted=Path(sys.argv[1]))
from controller.__main__ import main
main()
"""
"""The controller, with another folder for its service account."""


@dataclass(frozen=True)
class _Container:
    """One container of one pod. `ports` maps its ports to free ports of this machine."""

    component: str
    pod: str
    spec: Object
    ports: Mapping[int, int]


_FIRST = ("redis", "kvs-api")
_VOLUMES = ("shared", "checkpoints", "metrics", "code", "logs")
_KUBELET = {"User-Agent": "kube-probe/1.36"}

_Running = Sequence[tuple[_Container, subprocess.Popen[bytes]]]


def measure() -> tuple[dict[str, float], float]:
    """Resident MiB by component, and proportional MiB in all."""
    resident, proportional = defaultdict[str, float](float), 0.0
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as folder, _release(Path(folder)) as release:
        for _ in range(_PROBES):
            for container, process in release:
                _wait_until_ready(container, process)
            time.sleep(_PROBE_EVERY_S)
        for container, process in release:
            first = psutil.Process(process.pid)
            for each in (first, *first.children(recursive=True)):
                memory = each.memory_full_info()
                resident[container.component] += memory.rss / _MIB
                proportional += memory.pss / _MIB
    return resident, proportional


def benchmark() -> Figure:
    """`measure` as a line of the table."""
    resident, proportional = measure()
    total = sum(resident.values())
    each = ", ".join(f"{name} {mib:.0f}" for name, mib in resident.items())
    return Figure(
        what="the default Helm release, no run yet: resident memory of the processes of all pods",
        measured=f"{total:.0f} MiB resident, {proportional:.0f} MiB with shared pages counted once",
        ratio=total,
        bar=BAR,
        sense="at most",
        measure="MiB",
        notes=(f"MiB by component: {each}",),
    )


@contextmanager
def _release(folder: Path) -> Iterator[_Running]:
    """Run all containers until the context ends."""
    containers = _containers(render_with({}))
    running = []
    with ExitStack() as stack:
        variables = _image(folder) | stack.enter_context(_api_server(folder))
        for container in containers:
            process = stack.enter_context(_run(container, _addresses(containers), folder, variables))
            running.append((container, process))
            if container.component in _FIRST:
                _wait_until_ready(container, process)
        yield running


def _containers(rendered: Rendered) -> list[_Container]:
    """Containers of all pods; `_FIRST` come first."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    found = []
    for one in (*rendered.of("StatefulSet"), *rendered.of("Deployment")):
        component = one["metadata"]["labels"]["app.kubernetes.io/component"]
        # The controller sets the number of workers.
        for number in range(one["spec"].get("replicas", values["worker"]["replicas"])):
            for spec in one["spec"]["template"]["spec"]["containers"]:
                ports = {port["containerPort"]: _free_port() for port in spec["ports"]}
                found.append(_Container(component, f"{one['metadata']['name']}-{number}", spec, ports))
    return sorted(found, key=lambda c: _FIRST.index(c.component) if c.component in _FIRST else len(_FIRST))


def _addresses(containers: Sequence[_Container]) -> dict[str, str]:
    """Return service address -> address on this machine; each service has one pod."""
    return {
        f"cerebro-{container.component}:{port}": f"{HOST}:{free}"
        for container in reversed(containers)
        for port, free in container.ports.items()
    }


def _image(folder: Path) -> dict[str, str]:
    """Environment of the images, with the folders of this machine."""
    server = database.find_server()
    assert server is not None, "a database server is installed"
    programs = folder / "bin"
    programs.mkdir()
    (programs / "valkey-server").symlink_to(server)
    return {
        "PATH": os.pathsep.join((str(programs), str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYTHONPATH": str(CHART.parents[2]),
        "PYTHONUNBUFFERED": "1",
        "CEREBRO_VOLUMES": str(folder / "volumes"),
    }


@contextmanager
def _api_server(folder: Path) -> Iterator[dict[str, str]]:
    """Run an API server with the workers' pods, and the controller's service account. Yields a pod's variables."""
    context, certificate = of_this_machine(folder)
    account = folder / "serviceaccount"
    account.mkdir()
    for name, content in (("token", "t"), ("namespace", NAMESPACE), ("ca.crt", certificate.read_text())):
        (account / name).write_text(content)
    emulator = Emulator()
    emulator.token = "t"
    emulator.scale(2)
    for ordinal in range(2):
        emulator.put("pods", pod(ordinal))
    with serving(emulator, context) as server:
        port = urlsplit(server.host).port
        yield {"KUBERNETES_SERVICE_HOST": HOST, "KUBERNETES_SERVICE_PORT": str(port)}


@contextmanager
def _run(
    container: _Container, addresses: Mapping[str, str], folder: Path, variables: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """The container's process, in its environment."""
    environment = dict(variables)

    def here(text: str) -> str:
        for address, place in addresses.items():
            text = text.replace(address, place)
        for port, free in container.ports.items():
            text = text.replace(f"[::]:{port}", f"{HOST}:{free}").replace(f"--port {port}", f"--port {free}")
        text = re.sub(r"(?<![\w.])/(volumes|data)\b", rf"{folder}/\1", text)
        return re.sub(r"\$\((\w+)\)", lambda name: environment[name[1]], text)

    for variable in container.spec.get("env") or ():
        environment[variable["name"]] = (
            here(variable["value"]) if "value" in variable else _value(variable, container)
        )
    shards = folder / container.pod / "shards"
    for path in (shards, folder / "data", *(folder / "volumes" / name for name in _VOLUMES)):
        path.mkdir(parents=True, exist_ok=True)
    environment |= {"CEREBRO_VOLUME_SHARDS": str(shards), "HOME": str(folder / container.pod)}
    command = [here(part) for part in (*container.spec["command"], *(container.spec.get("args") or ()))]
    if container.component == "controller":
        command = [sys.executable, "-P", "-c", _IN_POD, str(folder / "serviceaccount")]
    with (folder / f"{container.pod}-{container.spec['name']}.log").open("wb") as log:
        process = subprocess.Popen(
            with_parent_death_signal(command),
            env=environment,
            cwd=folder / container.pod,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _value(variable: Mapping[str, Any], container: _Container) -> str:
    """Return a variable that the kubelet reads from a Secret or from the pod."""
    fields = {"metadata.namespace": NAMESPACE, "metadata.uid": "uid", "spec.nodeName": "node"}
    reference = variable["valueFrom"].get("fieldRef")
    return fields.get(reference["fieldPath"], container.pod) if reference else _TOKEN


def _wait_until_ready(container: _Container, process: subprocess.Popen[bytes]) -> None:
    """Query the readiness probe until it succeeds.

    Raises:
        ClusterError: the process has ended, or its probe does not succeed in time.
    """
    deadline = time.monotonic() + _READY_S
    while not _is_ready(container):
        if process.poll() is not None or time.monotonic() > deadline:
            raise ClusterError(f"{container.pod} is not ready (exit status {process.returncode})")
        time.sleep(0.05)


def _is_ready(container: _Container) -> bool:
    probe = container.spec["readinessProbe"]
    names = {port["name"]: container.ports[port["containerPort"]] for port in container.spec["ports"]}
    check = probe.get("httpGet") or probe["tcpSocket"]
    with closing(
        http.client.HTTPConnection(HOST, names[check["port"]], timeout=probe["timeoutSeconds"])
    ) as connection:
        try:
            connection.connect()
            if "path" not in check:
                return True
            connection.request("GET", check["path"], headers=_KUBELET)
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])


def main() -> None:
    """Print the figures."""
    print(benchmark())


if __name__ == "__main__":
    main()
