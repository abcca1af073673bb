"""Fake clusters whose services only start, wait and end."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from cerebro.local import cluster
from cerebro.local.home import ClusterHome, ClusterInfo, ServiceInfo, find_running
from cerebro.local.supervision import processes
from tests.waiting import HANG_S

STEADY = "import signal; signal.pause()"
STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('deaf', flush=True)
while True:
    signal.pause()
"""
BROKEN = "import sys; print('no module named happiness'); sys.exit(3)"

Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Fake:
    """A fake service: its name, Python program and start options."""

    name: str
    program: str = STEADY
    stage: int = 0
    ready: bool = True
    required: bool = True
    renewed: bool = False


class FakeCluster:
    """A cluster home with fake services."""

    def __init__(self, folder: Path, *fakes: Fake) -> None:
        self.home = ClusterHome(folder / "home")
        self._list = folder / "services.json"
        self.will_run(*fakes)

    def will_run(self, *fakes: Fake) -> None:
        """Set the services of the next start."""
        self._list.write_text(json.dumps([asdict(fake) for fake in fakes]))

    @property
    def command(self) -> tuple[str, ...]:
        """Arguments with which Python runs the supervisor."""
        return (str(Path(__file__).with_name("fake_supervisor.py")), str(self._list))

    def start(
        self, *, workers: int | None = None, devices: int | None = None, timeout_s: float = HANG_S
    ) -> ClusterInfo:
        """Start or join the cluster."""
        return cluster.start(
            self.home.path,
            workers=workers,
            devices=devices,
            timeout_s=timeout_s,
            supervisor=self.command,
        )

    def stop(self) -> bool:
        """End the cluster."""
        return cluster.stop(self.home.path)

    def info(self) -> ClusterInfo:
        info = find_running(self.home)
        assert info is not None, "the cluster runs"
        return info

    def services(self) -> tuple[ServiceInfo, ...]:
        """Return the recorded state of all services, or an empty tuple without a record."""
        info = self.home.read()
        return info.services if info else ()

    def service(self, name: str) -> ServiceInfo:
        return next(service for service in self.info().services if service.name == name)

    def process(self, name: str) -> processes.ProcessId:
        process = self.service(name).process
        assert process is not None, f"{name} has a process"
        return process

    def kill(self, name: str) -> processes.ProcessId:
        """kill -9 a service's process and return its id."""
        process = self.process(name)
        assert processes.send(process, signal.SIGKILL)
        return process

    def wrote(self, name: str, words: str) -> None:
        """Wait until a service has logged `words`."""
        self.eventually(lambda: words in self.home.log(name).read_text() or None)

    def restarted(self, name: str, before: processes.ProcessId, *, within_s: float = HANG_S) -> ServiceInfo:
        """Wait until the service is ready in another process."""

        def read_service() -> ServiceInfo | None:
            service = self.service(name)
            return service if service.state == "ready" and service.process != before else None

        return self.eventually(read_service, within_s=within_s)

    def eventually(self, look: Callable[[], Found | None], *, within_s: float = HANG_S) -> Found:
        """Wait for the first result that is not None; fail if the supervisor ends."""
        deadline = time.monotonic() + within_s
        supervisor = self.info().supervisor
        while (found := look()) is None:
            assert time.monotonic() < deadline, f"did not happen within {within_s} s; {self.home.read()}"
            processes.wait_gone(supervisor, 0.02)
        return found


def python(program: str) -> list[str]:
    """Return the command line of a small Python program."""
    return [sys.executable, "-I", "-S", "-c", program]
