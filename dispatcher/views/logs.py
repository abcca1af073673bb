"""Which logs there are: one file for each attempt that started, chosen by run, task, model or worker. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cerebro.state import ExperimentState, ModelState, Run, TaskKey, TaskState, waiting_for, wording
from cerebro.state.timeline import tries
from dispatcher.views.terminal import LEVELS

LONGEST_QUERY = 200
PAGE = 50


@dataclass(frozen=True, kw_only=True)
class LogQuery:
    """What of an experiment's logs is wanted; empty fields choose everything.

    Attributes:
        fit: id of a run, such as ``fit-1`` or ``etl-1``; the newest run that started anything if empty.
        task: a unit's key, such as ``fit-1/train/m03/e2/p0``. attempt: of that task; 0: the newest.
        q: text to find, or with `is_regex` a regular expression.
        level: of `terminal.LEVELS`.
        at: byte offset in the log of the one attempt, to be shown in its context; -1: the log's end.
        page: of the list of units, from 1.
    """

    fit: str = ""
    task: str = ""
    attempt: int = 0
    model: str = ""
    worker: str = ""
    q: str = ""
    is_regex: bool = False
    level: str = ""
    at: int = -1
    page: int = 1

    @classmethod
    def parse(cls, arguments: Mapping[str, str]) -> LogQuery:
        """Take an address' parameters; what makes no sense counts as absent."""

        def whole(name: str, absent: int) -> int:
            text = arguments.get(name, "")
            return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else absent

        level = arguments.get("level", "")
        return cls(
            fit=arguments.get("fit", ""),
            task=arguments.get("task", ""),
            attempt=whole("attempt", 0),
            model=arguments.get("model", ""),
            worker=arguments.get("worker", ""),
            q=arguments.get("q", "")[:LONGEST_QUERY],
            is_regex=arguments.get("regex", "") == "1",
            level=level if level in LEVELS else "",
            at=whole("at", -1),
            page=max(1, whole("page", 1)),
        )

    @property
    def is_search(self) -> bool:
        """Whether lines are to be found, rather than shown."""
        return bool(self.q or self.level)


@dataclass(frozen=True, kw_only=True)
class Source:
    """The log of one attempt that started. Times are seconds since the epoch; `ended` is 0 while it runs."""

    task: str
    attempt: int
    what: str
    model: str
    worker: str
    started: float
    ended: float
    outcome: str

    @property
    def key(self) -> str:
        """Its name among the logs of its experiment."""
        return f"{self.task}.a{self.attempt}"

    @property
    def is_open(self) -> bool:
        """Whether it may still grow."""
        return not self.ended


def sources(state: ExperimentState, query: LogQuery) -> tuple[Source, ...]:
    """The attempts that `query` chooses, in the order in which they started."""
    if query.task:
        found = _of_task(state, query)
    else:
        run = chosen_run(state, query.fit)
        found = _of_run(run, query.model) if run else ()
    kept = (source for source in found if _matches(source, query))
    return tuple(sorted(kept, key=lambda source: (source.started, source.key)))


def chosen_run(state: ExperimentState, name: str) -> Run | None:
    """The run of that name; without a name the newest one that has started, else the newest."""
    if name:
        return state.runs.get(name)
    runs = list(reversed(state.runs.values()))
    return next((run for run in runs if run.started), runs[0] if runs else None)


def waits_for(state: ExperimentState, task: str) -> str:
    """What a unit that has not started waits for, in words; empty if it has started, or there is no such unit."""
    try:
        key = TaskKey.parse(task)
    except ValueError:
        return ""
    run = state.runs.get(key.run)
    if run is None:
        return ""
    known = run.task(key)
    if any(attempt.started for attempt in known.attempts):
        return ""
    if known.state is TaskState.ASSIGNED:
        return f"It is next on {known.worker}, which ends another task first."
    if not run.is_open:
        return f"{run.id} is {run.state}: it will not start unless the run is resumed."
    if reason := waiting_for(state, run):
        return f"{run.id} is {reason}."
    return _model_waits(run, key) or f"It waits for a worker to be idle; {run.id} is {wording.run(run)}."


def _model_waits(run: Run, key: TaskKey) -> str:
    model = run.models.get(key.model or "")
    if model is None or key.kind != "train":
        return ""
    if model.state is not ModelState.ACTIVE:
        return f"{model.id} is {wording.model(model, run)}."
    if key.epoch != model.epoch:
        return f"{model.id} is in epoch {model.epoch}; this unit belongs to epoch {key.epoch}."
    if model.busy:
        return f"{model.id} is at another unit first: it {wording.task(TaskKey.parse(model.busy))}."
    return ""


def _of_task(state: ExperimentState, query: LogQuery) -> Iterable[Source]:
    run, _, rest = query.task.partition("/")
    known = state.runs.get(run)
    if known is None:
        return ()
    parts = rest.split("/")
    model = parts[1] if parts[0] == "train" and len(parts) > 1 else ""
    found = sorted((s for s in _of_run(known, model) if s.task == query.task), key=lambda s: s.attempt)
    return [s for s in found if s.attempt == query.attempt] if query.attempt else found[-1:]


def _of_run(run: Run, model: str) -> Iterable[Source]:
    for key, attempt, _ in tries(run, model):
        if attempt.started:
            yield Source(
                task=str(key),
                attempt=attempt.number,
                what=wording.task(key),
                model=key.model or "",
                worker=attempt.worker,
                started=attempt.started,
                ended=attempt.ended,
                outcome=attempt.outcome or "running",
            )


def _matches(source: Source, query: LogQuery) -> bool:
    return query.model in ("", source.model) and query.worker in ("", source.worker)


# --- following ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """How far somebody has read: all that started before `time`, and of the logs named in `offsets` so many bytes.

    Logs that may still grow are named, and those that started at `time`, since others may start at the same.
    """

    time: float = 0.0
    offsets: Mapping[str, int]

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        """The cursor that `str` wrote; None for anything else."""
        try:
            time, offsets = json.loads(text)
            return cls(
                time=float(time), offsets={str(key): max(0, int(value)) for key, value in offsets.items()}
            )
        except (ValueError, TypeError, AttributeError):
            return None

    def __str__(self) -> str:
        return json.dumps([self.time, dict(self.offsets)], separators=(",", ":"))

    @classmethod
    def behind(cls, chosen: Sequence[Source], ends: Mapping[str, int]) -> Cursor:
        """The cursor of somebody who has seen `chosen`; `ends`: how far, of those that were shown."""
        newest = chosen[-1].started if chosen else 0.0
        kept = {
            source.key: ends.get(source.key, 0)
            for source in chosen
            if source.started == newest or (source.is_open and source.key in ends)
        }
        return cls(time=newest, offsets=kept)

    def unread(self, chosen: Sequence[Source]) -> list[tuple[Source, int]]:
        """What is to be read next: logs, and where."""
        return [
            (source, self.offsets.get(source.key, 0))
            for source in chosen
            if source.started >= self.time or source.key in self.offsets
        ]
