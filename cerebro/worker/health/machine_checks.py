"""Check the worker's machine on request and report the findings.

The agent's `loop` calls `request` for an inbox item; the controller asks for checks and judges the results. Checks run
one after another in their own thread. A new process (`cerebro.worker.training.node_check`) does the work and is killed
after 60 s, so a device that hangs is a finding and cannot hang the agent.
"""

from __future__ import annotations

import logging
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import IO

from pydantic import ValidationError

from cerebro.contract.stored.health import CheckResult, Probe
from cerebro.errors import CerebroError
from cerebro.runtime.isolation.parent_death import with_parent_death_signal
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.usage.gpus import GpuProblem, Gpus
from cerebro.worker.agent.devices import WorkerDevices
from cerebro.worker.agent.settings import SECRETS, Settings

log = logging.getLogger(__name__)

SLOW_S = 20.0
"""Duration in seconds from which a check is reported as slow."""
KILLED_S = 60.0
"""Maximum duration of a check in seconds; then it is killed."""
_MAX_WAITING = 4
"""Maximum number of queued requests; further ones are dropped."""
_TAIL = 300
"""Maximum characters of an error's output in a finding."""


class NodeChecker:
    """Runs node checks. One thread calls `run`; any thread may call `request`.

    Args:
        incarnation: the worker's incarnation.
        command: command that runs the probes; for tests.
        killed_s: maximum duration of the command in seconds.
    """

    def __init__(
        self,
        kvs: KvsClient,
        settings: Settings,
        devices: WorkerDevices,
        incarnation: str,
        *,
        command: Sequence[str] | None = None,
        killed_s: float = KILLED_S,
        gpus: Callable[[], Gpus] = lambda: Gpus(os.environ.get("CUDA_VISIBLE_DEVICES")),
    ) -> None:
        self._kvs, self._settings, self._devices = kvs, settings, devices
        self._incarnation, self._killed_s, self._gpus = incarnation, killed_s, gpus
        self._command = command or self._probes()
        self._requests: queue.Queue[str | None] = queue.Queue(_MAX_WAITING)

    def request(self, reason: str) -> None:
        """Request a check."""
        try:
            self._requests.put_nowait(reason)
        except queue.Full:
            log.warning("this check is dropped, because others wait already")

    def end(self) -> None:
        """Make `run` return after the current check."""
        with suppress(queue.Full):
            self._requests.put_nowait(None)

    def run(self) -> None:
        """Run requested checks until `end`."""
        while (reason := self._requests.get()) is not None:
            log.info("checking this machine: %s", reason)
            try:
                result = self.check()
                log.log(
                    logging.WARNING if result.verdict else logging.INFO,
                    "checked this machine in %.1f s: %s",
                    result.seconds,
                    result.verdict or "nothing is wrong",
                )
                self._kvs.report_check(self._settings.worker, result)
            except (CerebroError, OSError) as error:
                log.warning("the result of the check could not be reported: %s", error)

    def check(self) -> CheckResult:
        """Run all probes. Takes up to a minute."""
        began = time.monotonic()
        found = [*self._of_driver()]
        probes, problem = self._in_process()
        found += [*probes, self._round_trip()]
        seconds = time.monotonic() - began
        if not problem and seconds > SLOW_S:
            found.append(Probe(name="time", note=f"slow: it took {seconds:.0f} s", seconds=seconds))
        return CheckResult(
            incarnation=self._incarnation,
            probes=tuple(found),
            problem=problem,
            device=", ".join(dict.fromkeys(device.name for device in self._devices.devices)),
            seconds=seconds,
        )

    def _probes(self) -> list[str]:
        volumes = self._settings.volumes
        command = [sys.executable, "-P", "-m", "cerebro.worker.training.node_check"]
        command += ["--shards", str(volumes.shards), "--checkpoints", str(volumes.checkpoints)]
        return [*command, "--expects-gpu"] if self._devices.gpus else command

    def _in_process(self) -> tuple[list[Probe], str]:
        """Run the probe process. Return its findings and, if it failed, a description."""
        environment = {name: value for name, value in os.environ.items() if name not in SECRETS}
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                with_parent_death_signal(list(self._command)),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
            problem = ""
            try:
                status = process.wait(self._killed_s)
                problem = f"the check ended with status {status}: {_end_of(errors)}" if status else ""
            except subprocess.TimeoutExpired:
                process.kill()
                problem = f"the check did not end within {self._killed_s:g} s"
                # A process in an uninterruptible wait for a device cannot be killed, so do not wait for it.
                with suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
            output.seek(0)
            return [*_read(output.read())], problem

    def _of_driver(self) -> Iterator[Probe]:
        if not self._devices.gpus:
            return
        began = time.monotonic()
        problems: tuple[GpuProblem, ...] = self._gpus().problems(len(self._devices.gpus))
        problem = "; ".join(each.text for each in problems if each.is_broken)
        notes = "; ".join(each.text for each in problems if not each.is_broken)
        yield Probe(name="driver", problem=problem, note=notes, seconds=time.monotonic() - began)

    def _round_trip(self) -> Probe:
        began = time.monotonic()
        try:
            self._kvs.reclaim()
        except CerebroError as error:
            # The store may be away for all workers, so this does not blame the machine.
            return Probe(name="store", note=str(error)[:_TAIL])
        return Probe(name="store", seconds=time.monotonic() - began)


def _end_of(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip()[-_TAIL:]


def _read(output: str) -> Iterator[Probe]:
    for line in output.splitlines():
        with suppress(ValidationError):  # output of a library
            yield Probe.model_validate_json(line)
