"""What stands above every tab of an experiment: what it is, what it does, how far it is, what may be asked for."""

from __future__ import annotations

from dataclasses import dataclass

from cerebro.commands.rules import resumable
from cerebro.contract.priority import NAMES, shown
from cerebro.contract.records import WorkerStatus
from cerebro.state import QueuePosition, Run, RunState, reason_to_wait, waiting_for, wording
from cerebro.state.throughput import TimeLeft
from dispatcher.access.rights import offered
from dispatcher.reading.read_model import ReadModel
from dispatcher.tabs.models import Best, best
from dispatcher.tabs.runs import RunRow, run_row
from dispatcher.tabs.workers import WorkerRow, worker_rows


@dataclass(frozen=True, kw_only=True)
class Header:
    """The head of an experiment's pages.

    Attributes:
        state: a word of `cerebro.state.wording`.
        note: what the word does not say, such as why a run is paused.
        waits: why the run in progress does not go on; empty if it does.
        run, kind: the run in progress, else the newest fit, else the newest run.
        done, total: its committed tasks, and all; 0 in all while nobody knows.
        trained: how many models and epochs, of a fit whose models are not all known from the beginning; else empty.
        halted: another run, which somebody stopped and may resume.
        others: runs that are open as well.
        fits: planned fit runs.
        fit: the one whose models are shown; empty without any.
        searches: whether that one does.
        left: how much longer the run in progress will take, if that can be told.
        best: best model over all fits with the metric, split and data set of `fit`.
        standing: where `run` stands among all open runs; `None` of one that has ended.
        priority: of an open `run`, as last chosen.
        priorities: those with names, to choose from, and `priority`.
        is_live: whether anything may change by itself soon.
        is_complete: whether the whole log is read; `seq` events are.
        stalled: why nothing moves though it should; empty if it does.
        may: `cerebro.commands.rules` actions that make sense now, of the experiment and of `run`.
    """

    name: str
    author: str
    created: float
    state: str
    note: str
    waits: str
    run: str
    kind: str
    done: int
    total: int
    trained: str
    halted: RunRow | None
    others: tuple[RunRow, ...]
    fits: tuple[str, ...]
    fit: str
    searches: bool
    project: str
    left: TimeLeft | None
    best: Best | None
    queue_position: QueuePosition | None
    priority: str
    priorities: tuple[str, ...]
    is_archived: bool
    is_deleting: bool
    is_live: bool
    is_complete: bool
    seq: int
    stalled: str
    may: tuple[str, ...]


def header(
    read_model: ReadModel,
    *,
    now: float,
    fit: str = "",
    statuses: tuple[WorkerStatus, ...] = (),
    queue_positions: tuple[QueuePosition, ...] = (),
) -> Header:
    """The head at `now` (seconds since the epoch); `fit` chooses a fit run (default: the newest)."""
    state, record = read_model.state, read_model.record
    run, chosen = wording.shown_run(state), read_model.fit(fit)
    done, total = read_model.progress(run) if run else (0, 0)
    word, halted = wording.experiment(state), resumable(state)
    may = offered(state) | (offered(state, run) if run else frozenset())
    own = (each.as_logged(state) for each in queue_positions)
    queue_position = next((each for each in own if run and run.is_open and each.run == run.id), None)
    waits = reason_to_wait(waiting_for(state, run), queue_position) if run else ""
    return Header(
        name=record.name,
        author=record.author,
        project=record.project,
        created=record.created,
        state=word,
        note=_note(run, queue_position, waits) or wording.failed_since(state),
        waits=waits,
        run=run.id if run else "",
        kind=run.kind if run else "",
        done=done,
        total=total,
        trained=_trained(read_model, run) if run and run.is_planned_fit and not run.has_known_models else "",
        halted=run_row(read_model, halted) if halted and halted is not run else None,
        others=tuple(run_row(read_model, each) for each in state.open_runs() if each is not run),
        fits=read_model.fits(),
        fit=chosen.id if chosen else "",
        searches=chosen is not None and chosen.search is not None,
        left=read_model.throughput(now).left,
        best=best(read_model, chosen),
        queue_position=queue_position,
        priority=shown(run.priority) if run and run.is_open else "",
        priorities=_priorities(run),
        is_archived=state.is_archived,
        is_deleting=state.deletion is not None,
        is_live=word in wording.IN_PROGRESS or not read_model.is_complete or state.deletion is not None,
        is_complete=read_model.is_complete,
        seq=state.seq,
        stalled=_stalled(run, list(worker_rows(state, statuses, now))),
        may=tuple(sorted(may)),
    )


def _trained(read_model: ReadModel, run: Run) -> str:
    return wording.trained(run, read_model.table(run).trained_epochs())


def _priorities(run: Run | None) -> tuple[str, ...]:
    numbers = {*NAMES.values()} | ({run.priority} if run else set())
    return tuple(map(shown, sorted(numbers)))


def _note(run: Run | None, queue_position: QueuePosition | None, waits: str) -> str:
    if run is None:
        return ""
    if run.state is RunState.STOPPING:
        return "sub-epochs that run are being taken back"
    if run.state is RunState.QUEUED:
        place = f"{queue_position.position}: " if queue_position and queue_position.place else ""
        return place + waits if waits else "waits for the controller to plan it"
    return run.error or run.reason or wording.shortfall(run)


def _stalled(run: Run | None, workers: list[WorkerRow]) -> str:
    """Only what the page itself can see: whether anybody is there to do the work."""
    if run is None or run.state is not RunState.RUNNING:
        return ""
    if all(row.state == "lost" for row in workers):
        return (
            f"No worker answers, so {run.id} waits: `cerebro status` says more, `cerebro up` starts workers."
        )
    return ""
