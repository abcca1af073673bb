"""A worker checks its machine in a separate process with a time limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from cerebro.contract.records import Reclaim
from cerebro.contract.stored.health import CheckRequest
from cerebro.errors import StoreUnavailableError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.usage.gpus import Gpus
from cerebro.runtime.volumes import Volumes
from cerebro.worker.agent.devices import WorkerDevices
from cerebro.worker.agent.settings import Settings
from cerebro.worker.health.machine_checks import NodeChecker
from tests.waiting import HANG_S, until
from tests.worker.agent.agents import Agents


class Store:
    """A store that responds or fails."""

    def __init__(self, problem: Exception | None = None) -> None:
        self._problem = problem

    def reclaim(self) -> Reclaim:
        if self._problem:
            raise self._problem
        return Reclaim()


def checker(tmp_path: Path, code: str, *, store: Store | None = None) -> NodeChecker:
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    settings = Settings(server="", token="t", worker="worker-0", volumes=volumes, cores=1)
    return NodeChecker(
        cast(KvsClient, store or Store()),
        settings,
        WorkerDevices(1),
        "a",
        command=[sys.executable, "-c", code],
        killed_s=60.0,
    )


@pytest.mark.processes
def test_a_process_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that does not respond is a finding. The time limit passes once the process has printed its first."""
    wait, printed, limits = subprocess.Popen.wait, tmp_path / "printed", list[float | None]()

    def wait_until_printed(process: subprocess.Popen[str], timeout: float | None = None) -> int:
        limits.append(timeout)
        if len(limits) == 1:
            until(printed.exists, "the process has printed")
            raise subprocess.TimeoutExpired(process.args, 60.0)
        return wait(process, HANG_S)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_until_printed)
    code = f"""
import pathlib, time
print('{{"name": "memory", "seconds": 1.0}}', flush=True)
pathlib.Path({str(printed)!r}).touch()
time.sleep(3600)
"""
    found = checker(tmp_path, code).check()
    assert found.verdict == "the check did not end within 60 s"
    assert found.probes[0].name == "memory"
    assert limits == [60.0, 1.0]


@pytest.mark.processes
def test_an_unavailable_store_is_no_fault_of_the_machine(tmp_path: Path) -> None:
    """The outage affects all workers."""
    found = checker(tmp_path, "", store=Store(StoreUnavailableError("away"))).check()
    assert found.verdict == ""
    assert found.probes[-1].note == "away"


class Nvml:
    """A driver with one faulty GPU."""

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0

    class NVMLError(Exception):
        """Raised for queries that the driver does not answer."""

    def __init__(
        self, *, rows: tuple[int, int, int, int] = (0, 0, 0, 0), ecc: int = 0, slow: int = 0
    ) -> None:
        self._rows, self._ecc, self._slow = rows, ecc, slow
        self.is_lost = False

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": 0,
            "nvmlDeviceGetName": "H200",
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetRemappedRows": self._rows,
            "nvmlDeviceGetTotalEccErrors": self._ecc,
            "nvmlDeviceGetCurrentClocksThrottleReasons": self._slow,
        }

        def call(*_: Any) -> Any:
            if self.is_lost or name not in answers:
                raise self.NVMLError("GPU is lost")
            return answers[name]

        return call

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        if self.is_lost:
            raise self.NVMLError("GPU is lost")
        return type("Info", (), {"total": 1 << 30, "used": 0})()


@pytest.mark.parametrize(
    ("nvml", "broken", "reports"),
    [
        (Nvml(), [], []),
        (Nvml(rows=(0, 1, 1, 0)), ["H200 remaps a broken row of its memory at its next reset"], []),
        (Nvml(rows=(0, 1, 0, 1)), ["H200 could not remap a broken row of its memory"], []),
        (Nvml(ecc=3), [], ["H200 has had 3 uncorrectable errors of its memory since its driver was loaded"]),
        (Nvml(slow=0x40), [], ["H200 is slowed down by heat"]),
    ],
)
def test_driver_events_are_classified(nvml: Nvml, broken: list[str], reports: list[str]) -> None:
    """Covers broken devices and mere notices."""
    found = Gpus(library=nvml).problems(1)
    assert [each.text for each in found if each.is_broken] == broken
    assert [each.text for each in found if not each.is_broken] == reports


def test_a_gpu_lost_by_the_driver_is_found() -> None:
    """The GPU may be lost before or after the worker's start."""
    nvml = Nvml()
    gpus = Gpus(library=nvml)
    nvml.is_lost = True
    assert "does not answer: GPU is lost" in gpus.problems(1)[0].text
    (found,) = Gpus(library=Nvml()).problems(2)
    assert (found.text, found.is_broken) == ("2 GPUs were registered, the driver tells of 1", True)


@pytest.mark.processes
@pytest.mark.slow
def test_a_real_worker_checks_its_machine_on_request(agents: Agents, kvs: KvsClient) -> None:
    """The request arrives through the inbox; a second request during a check starts no other."""
    agents.start()
    for _ in range(2):
        kvs.request_check("worker-0", CheckRequest(reason="somebody asked", by="somebody"))

    def has_result() -> bool:
        check = kvs.workers_health().of("worker-0").check
        return check is not None and check.ended is not None

    until(has_result, "the check is told")
    check = kvs.workers_health().of("worker-0").check
    assert check is not None
    assert check.result is not None
    assert check.result.verdict == ""
    assert {probe.name for probe in check.result.probes} >= {"processor", "checkpoint volume", "store"}
    assert len([each for each in kvs.workers_health().incidents if each.what == "check passed"]) == 1
