"""Header of an experiment's tabs: state, progress, best model, and possible commands.

`Tabs.answer` computes it for every tab, the read API for its route of an experiment. A function of the read model,
except that commands depend on the current user (`access.rights`).
"""

from __future__ import annotations

from dataclasses import dataclass

from cerebro.commands.rules import resumable
from cerebro.contract.priority import NAMES, shown
from cerebro.contract.records import WorkerStatus
from cerebro.state import QueuePosition, Run, RunState, reason_to_wait, waiting_for
from cerebro.state.reports import state_words
from dispatcher.access.rights import allowed_commands
from dispatcher.read_models.read_model import ReadModel
from dispatcher.tabs.models import Best, best
from dispatcher.tabs.runs import RunRow, ShownRun, run_row, shown_run
from dispatcher.tabs.workers import WorkerRow, worker_rows


@dataclass(frozen=True, kw_only=True)
class Queueing:
    """Queue position and priority of the shown run while it is open.

    Attributes:
        position: queue position; None after its end.
        waits: why the run does not proceed, or an empty text.
        priority: priority of an open run.
        priorities: named priorities and `priority`.
    """

    position: QueuePosition | None
    waits: str
    priority: str
    priorities: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Fits:
    """Planned fit runs.

    Attributes:
        ids: oldest first.
        chosen: id of the fit run whose models are shown, or an empty text.
        has_search: True if the chosen fit run has a search.
    """

    ids: tuple[str, ...]
    chosen: str
    has_search: bool


@dataclass(frozen=True, kw_only=True)
class Header:
    """Header of an experiment's pages.

    Attributes:
        state: a word of `cerebro.state.reports.state_words`.
        note: details of the state, such as why a run is paused.
        run: the run in progress, else the newest fit, else the newest run.
        queue: queue position and priority of `run`.
        trained: number of trained models and epochs, for fits with an unknown number of models; else an empty text.
        halted: another run that a user stopped and may resume.
        other_runs: other open runs.
        best: best model over all fits with the metric, split and data set of `fits.chosen`.
        is_live: True if the page may change soon.
        is_complete: True if the whole log is read; `seq` is the number of read events.
        stalled: why work cannot proceed although it should, or an empty text.
        may: possible commands (`cerebro.commands.rules`) of the experiment and of `run`.
    """

    name: str
    author: str
    project: str
    created: float
    state: str
    note: str
    run: ShownRun
    queue: Queueing
    trained: str
    halted: RunRow | None
    other_runs: tuple[RunRow, ...]
    fits: Fits
    best: Best | None
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
    """Build the header at `now` (seconds since the epoch). `fit`: id of a fit run, by default the newest."""
    state, record = read_model.state, read_model.record
    run, chosen = state_words.shown_run(state), read_model.fit(fit)
    word, halted = state_words.experiment(state), resumable(state)
    may = allowed_commands(state) | (allowed_commands(state, run) if run else frozenset())
    positions = (each.as_logged(state) for each in queue_positions)
    queue_position = next((each for each in positions if run and run.is_open and each.run == run.id), None)
    waits = reason_to_wait(waiting_for(state, run), queue_position) if run else ""
    return Header(
        name=record.name,
        author=record.author,
        project=record.project,
        created=record.created,
        state=word,
        note=_note(run, queue_position, waits) or state_words.failed_since(state),
        run=shown_run(read_model, now),
        queue=Queueing(
            position=queue_position,
            waits=waits,
            priority=shown(run.priority) if run and run.is_open else "",
            priorities=_priorities(run),
        ),
        trained=_trained(read_model, run) if run and run.is_planned_fit and not run.has_known_models else "",
        halted=run_row(read_model, halted) if halted and halted is not run else None,
        other_runs=tuple(run_row(read_model, each) for each in state.open_runs() if each is not run),
        fits=Fits(
            ids=read_model.fits(),
            chosen=chosen.id if chosen else "",
            has_search=chosen is not None and chosen.search is not None,
        ),
        best=best(read_model, chosen),
        is_archived=state.is_archived,
        is_deleting=state.deletion is not None,
        is_live=word in state_words.IN_PROGRESS or not read_model.is_complete or state.deletion is not None,
        is_complete=read_model.is_complete,
        seq=state.seq,
        stalled=_stalled(run, list(worker_rows(state, statuses, now))),
        may=tuple(sorted(may)),
    )


def _trained(read_model: ReadModel, run: Run) -> str:
    return state_words.trained(run, read_model.table(run).trained_epochs())


def _priorities(run: Run | None) -> tuple[str, ...]:
    numbers = {*NAMES.values()} | ({run.priority} if run else set())
    return tuple(map(shown, sorted(numbers)))


def _note(run: Run | None, queue_position: QueuePosition | None, waits: str) -> str:
    if run is None:
        return ""
    if run.state is RunState.STOPPING:
        return "its running sub-epochs are being revoked"
    if run.state is RunState.QUEUED:
        place = f"{queue_position.position}: " if queue_position and queue_position.place else ""
        return place + waits if waits else "waits until the controller plans it"
    return run.failures.error or run.pause.reason or state_words.shortfall(run)


def _stalled(run: Run | None, workers: list[WorkerRow]) -> str:
    """Return a problem that the page can see itself: no worker answers."""
    if run is None or run.state is not RunState.RUNNING:
        return ""
    if all(row.state == "lost" for row in workers):
        return (
            f"No worker answers, so {run.id} waits: check `cerebro status`, start workers with `cerebro up`."
        )
    return ""
