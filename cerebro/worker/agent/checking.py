"""Checks the worker's machine when it is asked to, and tells what was found.

In a thread of its own, one check after the other. The work is done by a fresh process (`cerebro.worker.training
.node_check`), which is killed if it does not end: a device that hangs is a finding, and must not hang the agent.
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

from cerebro.contract.health import CheckResult, Probe
from cerebro.errors import CerebroError
from cerebro.runtime.kvs import KvsClient
from cerebro.runtime.parent_death import with_parent_death_signal
from cerebro.runtime.usage.gpus import Gpus, Trouble
from cerebro.worker.agent.devices import WorkerDevices
from cerebro.worker.agent.settings import SECRETS, Settings

log = logging.getLogger(__name__)

SLOW_S = 20.0
"""A check should have ended by then; one that takes longer is told as slow."""
KILLED_S = 60.0
"""And is ended by then."""
_MOST_WAITING = 4
_TAIL = 300


class NodeChecker:
    """`run` is the thread's; `ask` may be called by any.

    Args:
        incarnation: of the worker.
        command: that makes the probes; tests give another.
        killed_s: after which it is ended.
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
        self._asked: queue.Queue[str | None] = queue.Queue(_MOST_WAITING)

    def ask(self, reason: str) -> None:
        """The machine is to be checked."""
        try:
            self._asked.put_nowait(reason)
        except queue.Full:
            log.warning("not checked once more: checks wait already")

    def end(self) -> None:
        """Make `run` return after the current check."""
        with suppress(queue.Full):
            self._asked.put_nowait(None)

    def run(self) -> None:
        """Check whenever it is asked, until `end`."""
        while (reason := self._asked.get()) is not None:
            log.info("checking this machine: %s", reason)
            try:
                result = self.check()
                log.log(
                    logging.WARNING if result.verdict else logging.INFO,
                    "checked this machine in %.1f s: %s",
                    result.seconds,
                    result.verdict or "nothing is wrong",
                )
                self._kvs.tell_check(self._settings.worker, result)
            except (CerebroError, OSError) as error:
                log.warning("what the check found could not be told: %s", error)

    def check(self) -> CheckResult:
        """Make all probes; takes up to a minute."""
        began = time.monotonic()
        found = [*self._of_driver()]
        probes, problem = self._in_process()
        found += [*probes, self._round_trip()]
        seconds = time.monotonic() - began
        if not problem and seconds > SLOW_S:
            found.append(Probe(name="time", told=f"slow: it took {seconds:.0f} s", seconds=seconds))
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
        """What the process found, and what became of it if it did not end well."""
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
                # One that waits in the kernel for a device cannot be killed: it is not waited for, either.
                with suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
            output.seek(0)
            return [*_read(output.read())], problem

    def _of_driver(self) -> Iterator[Probe]:
        """What the driver tells of the GPUs that were registered."""
        if not self._devices.gpus:
            return
        began = time.monotonic()
        troubles: tuple[Trouble, ...] = self._gpus().troubles(len(self._devices.gpus))
        problem = "; ".join(each.text for each in troubles if each.is_broken)
        told = "; ".join(each.text for each in troubles if not each.is_broken)
        yield Probe(name="driver", problem=problem, told=told, seconds=time.monotonic() - began)

    def _round_trip(self) -> Probe:
        began = time.monotonic()
        try:
            self._kvs.reclaim()
        except CerebroError as error:
            # The store may be away for everybody: that says nothing of this machine.
            return Probe(name="store", told=str(error)[:_TAIL])
        return Probe(name="store", seconds=time.monotonic() - began)


def _end_of(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip()[-_TAIL:]


def _read(output: str) -> Iterator[Probe]:
    for line in output.splitlines():
        with suppress(ValidationError):  # a library's own words
            yield Probe.model_validate_json(line)
