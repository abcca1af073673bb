"""A client's conversation with one experiment: its record, the fold of its log, requests, and following a run.

Knows nothing of specs, search spaces or data frames: `cerebro.client.experiment` speaks to the user, this to the store.
"""

from __future__ import annotations

import getpass
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from cerebro.client.connection import Connection
from cerebro.client.goals import Budget, goal
from cerebro.client.progress import Progress
from cerebro.client.progress.bars import NOT_SHOWN, ShownQueuePosition
from cerebro.commands.chosen import chosen_fit, chosen_run
from cerebro.commands.command import (
    Command,
    event_of_experiment,
    events_of,
    outcomes,
)
from cerebro.commands.planning import plan_evaluation, plan_fit
from cerebro.commands.rules import OF_EXPERIMENT, check_free
from cerebro.contract.api import QueueAnswer
from cerebro.contract.events import Event, LocatorsChanged, RunRequested
from cerebro.contract.priority import parse
from cerebro.contract.records import CodeRecord, ExperimentRecord
from cerebro.contract.runs import EtlPlan, EvaluateRequest, FitRequest, Goal, Request
from cerebro.contract.tasks import FailureKind
from cerebro.errors import (
    BadRequestError,
    IllegalEventError,
    NotFoundError,
    RunFailedError,
    UnreadableError,
)
from cerebro.state import (
    CommandRecord,
    ExperimentState,
    QueuePosition,
    Run,
    RunState,
    audit_wording,
    explained,
    lost_because,
    queue_position_of,
    reason_to_wait,
    rungs,
    schedule_lines,
    waiting_for,
    whole,
    wording,
)
from cerebro.state.goals import forecast_lines
from cerebro.state.snapshots import restored
from cerebro.state.throughput import ThroughputMeter, TimeLeft

_WAIT_S = 1.0
"""Longest pause between two looks at a run: rows of ETL are no events, so a bar moves at least this often."""

_SILENT_S = 10.0

_QUEUE_S = 2.0
"""The queue is looked at so often while a run is followed: what runs have of the cluster changes with every
sub-epoch."""

_PROJECT = r"([a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?)?"


class Session:
    """A client's view of one experiment; any number of sessions may share it. Calls of several threads take turns.

    Args:
        clock: seconds since the epoch.
        is_whole: whether the sub-epochs of long runs that are archived are kept, too: it reads the whole log, and takes
            memory for all.
    """

    def __init__(
        self,
        connection: Connection,
        record: ExperimentRecord,
        *,
        clock: Callable[[], float] = time.time,
        is_whole: bool = False,
    ) -> None:
        self.connection, self.record = connection, record
        self._clock = clock
        self._kvs = connection.kvs
        self._is_whole = is_whole
        self._lock = threading.RLock()
        """Guards the fold: another thread may ask for the status while `follow` waits."""
        self._state = ExperimentState(name=record.name, keeps_archived=is_whole)
        self._meter = ThroughputMeter()
        self._queue: tuple[float, QueueAnswer] = (-math.inf, QueueAnswer(runs=()))

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.record.name

    def state(self) -> ExperimentState:
        """Everything that has happened, up to now; the same object grows from call to call, while all can be read.

        Raises:
            UnreadableError: the log cannot be read to its end.
        """
        with self._lock:
            self._mend()  # where the last call was interrupted
            if not self._state.seq and not self._is_whole:
                self._state = restored(self._kvs, self.name)
                self._meter.recall(self._state)
            try:
                while events := self._kvs.events(self.name, self._state.seq):
                    self._apply(events)
            except UnreadableError as error:
                self._apply(error.readable)
                raise
            return self._state

    def _apply(self, events: Iterable[Event]) -> None:
        with self._lock:
            for event in events:
                if event.seq <= self._state.seq:
                    continue  # another thread was faster
                try:
                    self._meter.see(self._state, event)
                    self._state.apply(event)
                    if isinstance(event, LocatorsChanged):
                        self.record = self.record.model_copy(update={"locators": event.locators})
                except IllegalEventError as cause:
                    self._mend()
                    raise UnreadableError.of(self.name, event.seq, str(cause)) from cause

    def _mend(self) -> None:
        """Let no event be known in part."""
        self._state = whole(
            self._state,
            lambda after: self._kvs.events(self.name, after),
            None if self._is_whole else lambda name: restored(self._kvs, name),
        )

    def status(self) -> str:
        """What happens now, in a few lines."""
        with self._lock:
            return self._status()

    def _status(self) -> str:
        lines = [f"experiment {self.name}"]
        try:
            state = self.state()
        except UnreadableError as error:
            lines.append(f"  unreadable: {error}")
            state = self._state
        for run in state.runs.values():
            done, total = run.progress()
            share = f"{done}/{total}" if run.has_known_end else f"{done}"
            queue_position = self.queue_position(run)
            waits = reason_to_wait(waiting_for(state, run), queue_position, self._unregistered(run))
            why = (run.error or explained(waits, self._troubles(run))).split("\n", 1)[0]
            lines.append(f"  {run.id}: {wording.run(run)}, {share} done{why and f' ({why})'}")
            lines += [f"    {line}" for line in [self._shown(run, queue_position).line] if line]
            lines += [f"    {line}" for line in rungs.lines(run)]
            lines += [f"    {line}" for line in schedule_lines(state, run, self._clock())]
            lines += [f"    {line}" for line in forecast_lines(run, self._clock())]
            lines += [f"    {line}" for line in audit_wording.lines(run.audits)]
        return "\n".join([*lines, *self._worker_lines(state)])

    def _worker_lines(self, state: ExperimentState) -> Iterator[str]:
        """What each worker does for the experiment; what the store knows of its silence is newer than the log."""
        known = {status.record.worker: status for status in self._kvs.workers()}
        troubles = self._kvs.troubles().pods
        for worker in (worker for worker in state.workers.values() if not worker.is_removed):
            status = known.get(worker.name)
            doing = ", ".join(key for key in worker.open_tasks if worker.is_next(key)) or "idle"
            if not worker.is_alive or (status is not None and status.is_lost):
                doing = f"lost ({lost_because(status, worker.lost, troubles)})"
            yield f"  {worker.name}: {doing}"
        yield from (f"  {pod} does not start: {why}" for pod, why in sorted(troubles.items()))

    def chosen(self, run: str | None) -> Run:
        """The run of that name; else the open one, else the newest.

        Raises:
            NotFoundError: there is none.
        """
        return chosen_run(self.state(), run)

    def chosen_fit(self, run: str | None) -> Run:
        """The run of that name, else the newest fit run; `NotFoundError` if there is none."""
        return chosen_fit(self.state(), run)

    def chosen_etl(self, run: str | None) -> tuple[Run, EtlPlan]:
        """The ETL run of that name, else the newest that had a plan, with its plan.

        Raises:
            NotFoundError: there is none.
        """
        state = self.state()
        found = chosen_run(state, run) if run is not None else None
        known = [found] if found is not None else list(reversed(state.runs.values()))
        for each in known:
            if isinstance(each.plan, EtlPlan):
                return each, each.plan
        what = f"{run} of experiment {self.name!r}" if run else f"experiment {self.name!r}"
        raise NotFoundError(f"{what} has no preprocessed rows: call run_etl, or name another run")

    def requested(
        self, request: Request, *, priority: str | int = "normal", project: str = ""
    ) -> RunRequested:
        """What asks for a run, yet to be sent.

        Raises:
            ConflictError: a run of the experiment is open that the new one cannot go on beside; it says what to do.
            DataError, NotFoundError, SearchSpaceError, SpecError: it cannot be planned, as far as is known.
            BadRequestError: there is no such priority, or the project is no name.
        """
        number = parse(priority)
        check_project(project)
        state = self.state()
        run = f"{request.kind}-{1 + sum(known.kind == request.kind for known in state.runs.values())}"
        check_free(state, Run(id=run, request=request))
        if isinstance(request, FitRequest):
            plan_fit(state, request, self.devices())
        elif isinstance(request, EvaluateRequest):
            plan_evaluation(state, request)
        asked = {"run": run, "request": request, "author": author(), "priority": number, "project": project}
        return RunRequested.model_validate(asked)

    def goal(
        self,
        finish_by: datetime | timedelta | None,
        budget: Budget | None,
        workers: Sequence[int] | None,
    ) -> Goal:
        """What a fit is to keep to.

        Raises:
            DataError: one of them makes no sense, or is beyond what the cluster may have.
        """
        most = self._kvs.queued().attended.most_workers if workers is not None else 0
        return goal(finish_by, budget, workers, now=self._clock(), most=most)

    def devices(self) -> dict[str, int]:
        """Worker that trains -> how many devices a sub-epoch may take there, of those that are there."""
        return {
            status.record.worker: max(1, len(status.record.devices))
            for status in self._kvs.workers()
            if "train" in status.record.kinds and not status.is_lost
        }

    def apart(self) -> list[str]:
        """Those of them that train with no other workers."""
        return sorted(
            status.record.worker
            for status in self._kvs.workers()
            if "train" in status.record.kinds and not status.is_lost and not status.record.address
        )

    def steer(self, command: Command, *, code: CodeRecord | None = None) -> tuple[int, ...]:
        """Ask for something; returns when it is in the log, with the numbers that its events have there.

        Args:
            code: that it names; stored once it is found to be possible.

        Raises:
            NotFoundError, ConflictError, SearchSpaceError: it cannot be; they say what can.
        """
        try:
            state = self.state()
        except UnreadableError:
            if command.kind not in OF_EXPERIMENT:
                raise
            event = event_of_experiment(command, self.name, by=author())
            return (self._kvs.append(self.name, event, is_unread=True),)
        events = events_of(command, state, by=author())
        if code is not None:
            self._kvs.put_code(code)
        return tuple(self._kvs.append(self.name, event) for event in events)

    def steer_and_see(self, command: Command) -> tuple[CommandRecord, ...]:
        """`steer`, and what became of it.

        Raises:
            ConflictError: also if it came too late.
        """
        seqs = self.steer(command)
        return outcomes(command, self.state(), seqs, by=author())

    def restore(self) -> None:
        """Take the experiment out of quarantine: its log is read again."""
        self._kvs.restore(self.name)

    def complete(
        self, request: Request, *, progress: bool, priority: str | int = "normal", project: str = ""
    ) -> Run:
        """Ask for a run and follow it to its end.

        Raises:
            BadRequestError, ConflictError, DataError, NotFoundError, SearchSpaceError, SpecError: see `requested`.
            RunFailedError: it failed, or was stopped before it had a result.
        """
        asked = self.requested(request, priority=priority, project=project)
        run = self.follow(asked.run, progress=progress, asked=asked)
        if run.state is RunState.FAILED:
            raise RunFailedError(f"{run.id} of experiment {self.name!r} failed: {run.error}{self._hint(run)}")
        if run.state is RunState.STOPPED and run.kind != "fit":
            raise RunFailedError(f"{run.id} of experiment {self.name!r} was stopped before it was complete")
        return run

    def follow(self, name: str, *, progress: bool, asked: RunRequested | None = None) -> Run:
        """Show a run's progress until it ends. Interrupting this leaves the run as it is.

        Args:
            asked: what asks for the run; it is sent first.
        """
        cursor, doubt = 0, " if it was asked for by then" if asked else ""
        try:
            if asked:
                self._kvs.append(self.name, asked)
                doubt = ""
            with Progress(name, is_shown=progress) as bars:
                while True:
                    with self._lock:
                        run = self.state().runs[name]
                        if run.kind == "etl":
                            points = self._kvs.live(self.name, cursor)
                            cursor = points[-1].seq if points else cursor
                            bars.live(points)
                        queue_position = self.queue_position(run)
                        waits = reason_to_wait(
                            waiting_for(self._state, run), queue_position, self._unregistered(run)
                        )
                        reason = explained(waits, self._troubles(run))
                        bars.show(self._state, reason, self._shown(run, queue_position))
                        if not run.is_open:
                            return run
                    self._apply(self._kvs.events(self.name, self._state.seq, wait_s=_WAIT_S))
        except KeyboardInterrupt:
            print(  # noqa: T201 - to the person who pressed the keys
                f"\n{name} goes on in the cluster{doubt}: Experiment.attach({self.name!r}).watch() follows it, "
                ".stop() ends it"
            )
            raise

    def _hint(self, run: Run) -> str:
        """Where more is to be found of an ETL run that failed for its rows."""
        failures = [task.failure for task in run.tasks.values() if task.failure is not None]
        if run.kind != "etl" or not any(failure.kind is FailureKind.DATA for failure in failures):
            return ""
        return (
            f"\n{wording.incomplete(run)}\nThe rows that failed, as a table: "
            f"Experiment.attach({self.name!r}).failed_rows(), or `cerebro failed-rows {self.name}`"
        )

    def _troubles(self, run: Run) -> Mapping[str, str]:
        """Why workers do not start, for a run that may be waiting for them."""
        return self._kvs.troubles().pods if run.is_open and not run.open_tasks() else {}

    def queue_position(self, run: Run) -> QueuePosition | None:
        """Where an open run stands among those of all experiments, as it was up to two seconds ago, and what it has by
        the log; `None` of one that has ended."""
        if not run.is_open:
            return None
        at, queue = self._queue
        if time.monotonic() >= at + _QUEUE_S:
            queue = self._kvs.queued()
            self._queue = time.monotonic(), queue
        found = queue_position_of(queue, self.name, run.id)
        return found.as_logged(self._state) if found is not None else None

    def _shown(self, run: Run, queue_position: QueuePosition | None) -> ShownQueuePosition:
        """What is shown of a run while others are open."""
        return (
            ShownQueuePosition(queue_position, self.left(run)) if len(self._queue[1].runs) > 1 else NOT_SHOWN
        )

    def left(self, run: Run) -> TimeLeft | None:
        """How long an open run will probably take yet; `None` while that is not known."""
        return self._meter.throughput(run, self._clock()).left if run.is_open else None

    def _unregistered(self, run: Run) -> str:
        """What a queued run waits for that the controller cannot plan, since nobody is there."""
        if run.state is not RunState.QUEUED:
            return ""
        is_known = any(status.silent_s < _SILENT_S for status in self._kvs.workers())
        return "" if is_known else "waiting for a worker to register"


def check_project(project: object) -> None:
    """Raises: BadRequestError: it is no name of a project."""
    if not isinstance(project, str) or re.fullmatch(_PROJECT, project) is None:
        raise BadRequestError(
            f"project is {project!r}, expected a name of lower-case letters, digits and dashes, at most 50"
        )


def author() -> str:
    """The user's name for the log, or the user id if it has no name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
