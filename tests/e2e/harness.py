"""A real local cluster under test: its experiments, processes and event logs."""

from __future__ import annotations

import csv
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cerebro import Experiment
from cerebro.client.results import FitResult
from cerebro.contract.events import Event, RunStopRequested
from cerebro.local import cluster
from cerebro.local.home import ClusterHome, ClusterInfo, find_running
from cerebro.local.supervision import processes
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.volumes import Volumes
from cerebro.state import ExperimentState, Run
from cerebro.state.experiment import fold
from tests.e2e import replay
from tests.e2e.gate import Gate
from tests.e2e.specs import TinyETL, TinyTraining
from tests.waiting import HANG_S

DEADLINE_S = 4 * HANG_S
"""Longest wait for any step of a cluster, such as a whole run; only a hang exceeds it."""

ROWS = {"train": 40, "valid": 12}
"""Default rows per split. Each split costs every worker a process."""


def write_table(path: Path, rows: int, *, start: int = 0) -> str:
    """Write a metadata table with `rows` rows and ids from `start`."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "x", "label"])
        writer.writerows(
            [number, f"{0.1 + number * 0.37:.3f}", number % 3] for number in range(start, start + rows)
        )
    return str(path)


class Log:
    """The event log of one experiment, read with blocking requests."""

    def __init__(self, kvs: KvsClient, experiment: str) -> None:
        self._kvs, self._experiment = kvs, experiment
        self.events: list[Event] = []
        self._seen = 0

    def read(self) -> list[Event]:
        """Read all events so far."""
        while self._fetch(0.0):
            pass
        return self.events

    def skip(self) -> None:
        """Skip the events so far, so that `until` sees only later ones."""
        self._seen = len(self.read())

    def state(self) -> ExperimentState:
        """Fold all events so far."""
        return fold(self._experiment, self.read())

    def until(self, is_it: Callable[[Event], bool], what: str, deadline_s: float = DEADLINE_S) -> Event:
        """Return the next event that `is_it` accepts, after the last returned event."""
        deadline = time.monotonic() + deadline_s
        while True:
            while self._seen < len(self.events):
                event = self.events[self._seen]
                self._seen += 1
                if is_it(event):
                    return event
                if event.type == "RunFinished" and event.outcome != "finished":
                    pytest.fail(f"the run ended before {what}: {self.tail()}")
            left = deadline - time.monotonic()
            if left <= 0:
                pytest.fail(f"{what} did not happen within {deadline_s:g} s: {self.tail()}")
            self._fetch(min(left, 2.0))

    def until_type(self, name: str, deadline_s: float = DEADLINE_S, **fields: object) -> Event:
        """Return the next event of a type with these field values."""
        return self.until(
            lambda event: (
                event.type == name and all(getattr(event, key) == value for key, value in fields.items())
            ),
            f"{name} {fields or ''}",
            deadline_s,
        )

    def tail(self) -> str:
        """Format the newest events for failure messages."""
        return "the log ends with\n" + "\n".join(repr(event)[:300] for event in self.events[-12:])

    def _fetch(self, wait_s: float) -> bool:
        found = self._kvs.events(self._experiment, len(self.events), wait_s=wait_s)
        self.events.extend(found)
        return bool(found)


class Lab:
    """A cluster and the work of one test; `end` stops open runs."""

    def __init__(self, home: Path, folder: Path, names: Iterable[str]) -> None:
        self.home, self.folder = ClusterHome(home), folder
        self._names = names
        self.gate = Gate()
        self._pool = ThreadPoolExecutor(4)
        self._opened: list[str] = []
        self._stopped: set[processes.ProcessId] = set()

    @property
    def kvs(self) -> KvsClient:
        """Make a new client for this cluster's store."""
        info = self.info()
        return KvsClient(info.kvs, info.token())

    @property
    def volumes(self) -> Volumes:
        """Return the cluster's volumes as a client sees them."""
        return Volumes.from_environment(
            {"CEREBRO_VOLUMES": str(self.home.volumes), "CEREBRO_VOLUME_LOGS": str(self.home.logs)}
        )

    # --- experiments -----------------------------------------------------------------------------

    def tables(self, **rows: int) -> dict[str, str]:
        """Write new metadata tables with these row counts and return their locators."""
        folder = self.folder / f"data-{len(self._opened)}"
        folder.mkdir(exist_ok=True)
        return {split: write_table(folder / f"{split}.csv", n) for split, n in (rows or ROWS).items()}

    def experiment(self, locators: Mapping[str, Any] | None = None, **arguments: Any) -> Experiment:
        """Create an experiment on tiny data, without preprocessing."""
        name = next(iter(self._names))
        experiment = Experiment(name, locators=locators or self.tables(), **arguments)
        self._opened.append(name)
        return experiment

    def prepared(self, **arguments: Any) -> Experiment:
        """Create an experiment with preprocessed data."""
        experiment = self.experiment(**arguments)
        experiment.run_etl(TinyETL(), progress=False)
        return experiment

    def attach(self, name: str) -> Experiment:
        """Attach to an existing experiment."""
        self._opened.append(name)
        return Experiment.attach(name)

    def log(self, experiment: Experiment) -> Log:
        """Open its event log from the start."""
        return Log(self.kvs, experiment.name)

    def fit(
        self, experiment: Experiment, spec: TinyTraining, tags: str = "abc", **arguments: Any
    ) -> Future[FitResult]:
        """Call `run_fit` in a new thread, with one model per letter of `tags`."""
        space = [{"tag": tag, "lr": 0.01 * (1 + i), "batch_size": 5} for i, tag in enumerate(tags)]
        given: dict[str, Any] = {
            "epochs": 2,
            "metric": "loss",
            "mode": "min",
            "seed": 3,
            "progress": False,
        } | arguments
        mine = Experiment.attach(experiment.name)
        return self._pool.submit(lambda: mine.run_fit(spec, space, **given))

    def result(self, running: Future[Any], experiment: Experiment, deadline_s: float = DEADLINE_S) -> Any:
        """Return the result of a run in another thread; on a timeout fail with the end of the log."""
        try:
            return running.result(deadline_s)
        except TimeoutError:
            pytest.fail(
                f"no result within {deadline_s:g} s:\n{self.timeline(experiment)}\n{experiment.status()}"
            )

    def spawn(self, call: Callable[[], Any]) -> Future[Any]:
        """Run a blocking call in a new thread."""
        return self._pool.submit(call)

    # --- processes -------------------------------------------------------------------------------

    def info(self) -> ClusterInfo:
        """Read the cluster's record."""
        info = self.home.read()
        assert info is not None
        return info

    def process(self, service: str) -> processes.ProcessId:
        """Return the process of a service; wait while it restarts."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            found = next(s.process for s in self.info().services if s.name == service)
            if found is not None and processes.is_alive(found):
                return found
            processes.wait_gone(self.info().supervisor, 0.02)
        pytest.fail(f"{service} was not started again within {DEADLINE_S:g} s")

    def send(self, target: str | int, signum: signal.Signals) -> processes.ProcessId:
        """Send a signal to a service or a pid."""
        process = self.process(target) if isinstance(target, str) else processes.identify(target)
        assert process is not None, f"{target} does not run"
        (self._stopped.add if signum is signal.SIGSTOP else self._stopped.discard)(process)
        assert processes.send(process, signum)
        return process

    def kill(self, target: str | int) -> processes.ProcessId:
        """Kill with SIGKILL and wait for the end."""
        process = self.send(target, signal.SIGKILL)
        assert processes.wait_gone(process, DEADLINE_S)
        return process

    def recovered(self) -> ClusterInfo:
        """Wait until all services are ready."""
        return cluster.start(self.home.path, timeout_s=DEADLINE_S)

    # --- what must hold ---------------------------------------------------------------------------

    def check(self, experiment: Experiment, run: str | None = None, redone: int = 0) -> Run:
        """See `replay.check`; checks the newest fit run by default."""
        events = self.log(experiment).read()
        state = fold(experiment.name, events)
        chosen = state.runs[run] if run else [r for r in state.runs.values() if r.kind == "fit"][-1]
        replay.check(chosen, events, self.kvs, self.volumes, redone)
        return chosen

    def timeline(self, experiment: Experiment) -> str:
        """Format all events with seconds since the first, to debug a test."""
        events = self.log(experiment).read()
        skipped = {"seq", "time", "type", "request", "plan", "result"}
        return "\n".join(
            f"{event.time - events[0].time:8.3f} {event.type} {event.model_dump(exclude=skipped)}"
            for event in events
        )

    def end(self) -> None:
        """Leave the cluster idle for the next test."""
        for process in self._stopped:
            processes.send(process, signal.SIGCONT)
        self.gate.open()
        if find_running(self.home) is not None:
            known = {each.experiment.name for each in self.kvs.experiments()}
            for name in (name for name in self._opened if name in known):
                log = Log(self.kvs, name)
                log.skip()  # runs of other tests, which may have been stopped
                active = log.state().active_run()
                if active is not None:
                    self.kvs.append(name, RunStopRequested(run=active.id, by="test"))
                    log.until_type("RunFinished", run=active.id)
        self.gate.end()
        self._pool.shutdown()
