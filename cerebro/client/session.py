"""A client's view of one experiment: record, state, commands, and following a run.

`Experiment` and the command line use it. It knows the store and the state, but no specs, search spaces or data frames:
those are in `experiment.py`. The state is the fold of the experiment's log and grows from call to call.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from cerebro.client.connection import Connection, author
from cerebro.client.limits import Limits, goal
from cerebro.client.progress import Progress
from cerebro.client.progress.bars import NOT_SHOWN, QueueDisplay
from cerebro.commands.command import Command
from cerebro.commands.command_events import event_of_experiment, events_of, outcomes
from cerebro.commands.earlier_runs import earlier_runs
from cerebro.commands.planning import plan_evaluation, plan_fit
from cerebro.commands.rules import OF_EXPERIMENT, check_free
from cerebro.commands.selection import chosen_fit, chosen_run
from cerebro.commands.tags import tags_event
from cerebro.contract.events import Event, LocatorsChanged, RunRequested
from cerebro.contract.priority import parse
from cerebro.contract.records import CodeRecord, ExperimentRecord
from cerebro.contract.rest.api import QueueAnswer
from cerebro.contract.runs import EtlPlan, EvaluateRequest, FitRequest, Goal, Request
from cerebro.contract.tasks.failures import FailureKind
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
    explained,
    lost_because,
    queue_position_of,
    reason_to_wait,
    repair_state,
    schedule_lines,
    waiting_for,
)
from cerebro.state.models.best import best_model
from cerebro.state.reports import state_words
from cerebro.state.reports.throughput import ThroughputMeter, TimeLeft
from cerebro.state.runs import rungs
from cerebro.state.runs.goals import forecast_lines
from cerebro.state.snapshots import restored
from cerebro.state.tasks import verification_texts

_WAIT_S = 1.0
"""Longest wait for events. The progress of ETL rows is polled in between."""

_SILENT_S = 10.0
"""A worker that is silent for longer does not count as registered."""

_QUEUE_S = 2.0
"""Minimum age of the queue before it is read again; the shares of runs change with every sub-epoch."""

_PROJECT = r"([a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?)?"


class Session:
    """A client's view of one experiment. Safe for several threads; several sessions may share an experiment.

    Args:
        connection: connection to the cluster.
        record: record of the experiment.
        clock: Unix time in seconds.
        is_whole: True to keep compacted sub-epochs of long runs too. Reads the whole log and needs memory for all.
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
        self._state = ExperimentState(name=record.name, keeps_compacted=is_whole)
        self._meter = ThroughputMeter()
        self._queue: tuple[float, QueueAnswer] = (-math.inf, QueueAnswer(runs=()))

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self.record.name

    def state(self) -> ExperimentState:
        """Return the state after the newest event. The same object grows from call to call.

        Raises:
            UnreadableError: an event cannot be read.
        """
        with self._lock:
            self._repair()  # the last call may have been interrupted
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
                    continue  # another thread applied it
                try:
                    self._meter.observe(self._state, event)
                    self._state.apply(event)
                    if isinstance(event, LocatorsChanged):
                        self.record = self.record.model_copy(update={"locators": event.locators})
                except IllegalEventError as cause:
                    self._repair()
                    raise UnreadableError.for_event(self.name, event.seq, str(cause)) from cause

    def _repair(self) -> None:
        """Reload the state if an event was applied only in part."""
        self._state = repair_state(
            self._state,
            lambda after: self._kvs.events(self.name, after),
            None if self._is_whole else lambda name: restored(self._kvs, name),
        )

    def status(self) -> str:
        """Return runs, the best model and workers as a few lines of text."""
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
            waits = reason_to_wait(waiting_for(state, run), queue_position, self._missing_worker_reason(run))
            why = (run.failures.error or explained(waits, self._pod_problems(run))).split("\n", 1)[0]
            lines.append(f"  {run.id}: {state_words.run(run)}, {share} done{why and f' ({why})'}")
            lines += [f"    {line}" for line in [self._queue_display(run, queue_position).line] if line]
            lines += [f"    {line}" for line in rungs.lines(run)]
            lines += [f"    {line}" for line in schedule_lines(state, run, self._clock())]
            lines += [f"    {line}" for line in forecast_lines(run, self._clock())]
            lines += [f"    {line}" for line in verification_texts.lines(run.verifications)]
        if best := best_model(state):
            lines.append(f"  {best.line}")
        return "\n".join([*lines, *self._worker_lines(state)])

    def _worker_lines(self, state: ExperimentState) -> Iterator[str]:
        """Yield a line per worker. The store knows of silent workers before the log does."""
        known = {status.record.worker: status for status in self._kvs.workers()}
        pod_problems = self._kvs.worker_set_status().pods
        for worker in (worker for worker in state.workers.values() if not worker.is_removed):
            status = known.get(worker.name)
            doing = ", ".join(key for key in worker.open_tasks if worker.is_next(key)) or "idle"
            if not worker.is_alive or (status is not None and status.is_lost):
                doing = f"lost ({lost_because(status, worker.lost, pod_problems)})"
            yield f"  {worker.name}: {doing}"
        yield from (f"  {pod} does not start: {why}" for pod, why in sorted(pod_problems.items()))

    def chosen(self, run: str | None) -> Run:
        """Return the run with this id. Default: the open run, or the newest.

        Raises:
            NotFoundError: the run does not exist.
        """
        return chosen_run(self.state(), run)

    def chosen_fit(self, run: str | None) -> Run:
        """Return the fit run with this id. Default: the newest. Raise `NotFoundError` if none exists."""
        return chosen_fit(self.state(), run)

    def chosen_etl(self, run: str | None) -> tuple[Run, EtlPlan]:
        """Return the ETL run with this id and its plan. Default: the newest with a plan.

        Raises:
            NotFoundError: no such run.
        """
        state = self.state()
        runs = [chosen_run(state, run)] if run is not None else list(reversed(state.runs.values()))
        for candidate in runs:
            if isinstance(candidate.plan, EtlPlan):
                return candidate, candidate.plan
        subject = f"{run} of experiment {self.name!r}" if run else f"experiment {self.name!r}"
        raise NotFoundError(f"{subject} has no preprocessed rows: call run_etl, or name another run")

    def new_run(self, request: Request, *, priority: str | int = "normal", project: str = "") -> RunRequested:
        """Build the event that starts a run, after checking that it can be planned.

        Raises:
            ConflictError: another open run of the experiment blocks it; the message says what to do.
            DataError, NotFoundError, SearchSpaceError, SpecError: it cannot be planned.
            BadRequestError: `priority` or `project` is invalid.
        """
        number = parse(priority)
        check_project(project)
        state = self.state()
        run = f"{request.kind}-{1 + sum(known.kind == request.kind for known in state.runs.values())}"
        check_free(state, Run(id=run, request=request))
        if isinstance(request, FitRequest):
            plan = plan_fit(state, request, self.devices())
            earlier_runs(self._kvs, request, plan.dataset)
        elif isinstance(request, EvaluateRequest):
            plan_evaluation(state, request, has_misc=bool(self.record.locators.misc))
        fields = {"run": run, "request": request, "author": author(), "priority": number, "project": project}
        return RunRequested.model_validate(fields)

    def goal(self, limits: Limits) -> Goal:
        """Build the goal of a fit.

        Raises:
            DataError: the deadline has passed, or a limit exceeds the size of the cluster.
        """
        max_workers = self._kvs.queued().attended.most_workers if limits.workers is not None else 0
        return goal(limits, now=self._clock(), max_workers=max_workers)

    def devices(self) -> dict[str, int]:
        """Return the number of devices of each live training worker."""
        return {
            status.record.worker: max(1, len(status.record.devices))
            for status in self._kvs.workers()
            if "train" in status.record.kinds and not status.is_lost
        }

    def solo_workers(self) -> list[str]:
        """Return live training workers that cannot train in a gang."""
        return sorted(
            status.record.worker
            for status in self._kvs.workers()
            if "train" in status.record.kinds and not status.is_lost and not status.record.address
        )

    def send(self, command: Command, *, code: CodeRecord | None = None) -> tuple[int, ...]:
        """Send a command; return the log numbers of its events.

        Args:
            command: the command.
            code: code that the command refers to, stored after the checks.

        Raises:
            NotFoundError, ConflictError, SearchSpaceError: the command is not possible; the message lists alternatives.
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

    def change_tags(self, changes: Mapping[str, str | None], *, model: str, run: str | None) -> None:
        """Set or delete tags; see `tags_event`."""
        self._kvs.append(self.name, tags_event(self.state(), changes, model=model, run=run, by=author()))

    def send_and_check(self, command: Command) -> tuple[CommandRecord, ...]:
        """Send a command and return its outcome.

        Raises:
            ConflictError: also if the command arrived too late.
        """
        seqs = self.send(command)
        return outcomes(command, self.state(), seqs, by=author())

    def restore(self) -> None:
        """Take the experiment out of quarantine, so its log is read again."""
        self._kvs.restore(self.name)

    def complete(
        self, request: Request, *, progress: bool, priority: str | int = "normal", project: str = ""
    ) -> Run:
        """Start a run and follow it to its end.

        Raises:
            BadRequestError, ConflictError, DataError, NotFoundError, SearchSpaceError, SpecError: as of `new_run`.
            RunFailedError: the run failed, or was stopped without a result.
        """
        new_run = self.new_run(request, priority=priority, project=project)
        run = self.follow(new_run.run, progress=progress, new_run=new_run)
        if run.state is RunState.FAILED:
            raise RunFailedError(
                f"{run.id} of experiment {self.name!r} failed: {run.failures.error}{self._failure_hint(run)}"
            )
        if run.state is RunState.STOPPED and run.kind != "fit":
            raise RunFailedError(f"{run.id} of experiment {self.name!r} was stopped before it was complete")
        return run

    def follow(self, name: str, *, progress: bool, new_run: RunRequested | None = None) -> Run:
        """Show the progress of a run until it ends. An interrupt does not affect the run.

        Args:
            name: run id.
            progress: True to draw progress bars.
            new_run: event that starts the run; sent first.
        """
        cursor, doubt = 0, " if the request arrived" if new_run else ""
        try:
            if new_run:
                self._kvs.append(self.name, new_run)
                doubt = ""
            with Progress(name, is_shown=progress) as bars:
                while True:
                    with self._lock:
                        run = self.state().runs[name]
                        if run.kind == "etl":
                            points = self._kvs.live(self.name, cursor)
                            cursor = points[-1].seq if points else cursor
                            bars.update_rows(points)
                        queue_position = self.queue_position(run)
                        waits = reason_to_wait(
                            waiting_for(self._state, run), queue_position, self._missing_worker_reason(run)
                        )
                        reason = explained(waits, self._pod_problems(run))
                        bars.show(self._state, reason, self._queue_display(run, queue_position))
                        if not run.is_open:
                            return run
                    self._apply(self._kvs.events(self.name, self._state.seq, wait_s=_WAIT_S))
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(  # Python and IPython print it after the traceback
                f"{name} continues in the cluster{doubt}: follow it with "
                f"Experiment.attach({self.name!r}).watch(), end it with .stop()"
            )
            raise

    def _failure_hint(self, run: Run) -> str:
        failures = [task.failure for task in run.tasks.by_key.values() if task.failure is not None]
        if run.kind != "etl" or not any(failure.kind is FailureKind.DATA for failure in failures):
            return ""
        return (
            f"\n{state_words.incomplete(run)}\nList the failed rows with "
            f"Experiment.attach({self.name!r}).failed_rows() or `cerebro failed-rows {self.name}`"
        )

    def _pod_problems(self, run: Run) -> Mapping[str, str]:
        """Return reasons why pods don't start, for a run without open tasks."""
        return self._kvs.worker_set_status().pods if run.is_open and not run.tasks.open else {}

    def queue_position(self, run: Run) -> QueuePosition | None:
        """Return the queue position of an open run; `None` if it has ended.

        The queue is at most `_QUEUE_S` old; the devices of the run are from its log.
        """
        if not run.is_open:
            return None
        updated, queue = self._queue
        if time.monotonic() >= updated + _QUEUE_S:
            queue = self._kvs.queued()
            self._queue = time.monotonic(), queue
        position = queue_position_of(queue, self.name, run.id)
        return position.as_logged(self._state) if position is not None else None

    def _queue_display(self, run: Run, queue_position: QueuePosition | None) -> QueueDisplay:
        return (
            QueueDisplay(queue_position, self.time_left(run)) if len(self._queue[1].runs) > 1 else NOT_SHOWN
        )

    def time_left(self, run: Run) -> TimeLeft | None:
        """Estimate the time left of an open run; `None` while unknown."""
        return self._meter.throughput(run, self._clock()).time_left if run.is_open else None

    def _missing_worker_reason(self, run: Run) -> str:
        """Explain why a queued run cannot be planned: no worker has registered."""
        if run.state is not RunState.QUEUED:
            return ""
        is_known = any(status.silent_s < _SILENT_S for status in self._kvs.workers())
        return "" if is_known else "waiting for a worker to register"


def check_project(project: object) -> None:
    """Raise `BadRequestError` if `project` is not a valid name."""
    if not isinstance(project, str) or re.fullmatch(_PROJECT, project) is None:
        raise BadRequestError(f"project is {project!r}: use at most 50 lower-case letters, digits and dashes")
