"""Which logs there are: one file for each attempt that started, chosen by run, task, model or worker. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from operator import itemgetter
from typing import Annotated, overload

from pydantic import Field, TypeAdapter

from cerebro.contract.api import MAX_SEQ
from cerebro.contract.base import Contract
from cerebro.state import ExperimentState, ModelState, Run, TaskKey, TaskState, waiting_for, wording
from cerebro.state.tasks import Attempt
from cerebro.state.visits import Visit
from dispatcher.logs.terminal import LEVELS

LONGEST_QUERY = 200
PAGE = 50
"""Sub-epochs on one page of their list."""
MOST_NEW = 60
"""Logs that one answer to a follower reads of; the next ones come with the next answer."""
_LONGEST_CURSOR = 32_000
"""Characters; one of `MOST_NEW` logs has a third of it."""


class LogQuery(Contract):
    """What of an experiment's logs is wanted; empty fields choose everything.

    Attributes:
        fit: id of a run, such as ``fit-1`` or ``etl-1``; all runs if empty.
        task: a sub-epoch's key, such as ``fit-1/train/m03/e2/p0``. attempt: of that task; 0: the newest.
        q: text to find, or with `regex` a regular expression.
        level: of `terminal.LEVELS`.
    """

    fit: str = Field("", max_length=60)
    task: str = Field("", max_length=200)
    attempt: int = Field(0, ge=0, le=1_000_000)
    model: str = Field("", max_length=100)
    worker: str = Field("", max_length=60)
    q: str = Field("", max_length=LONGEST_QUERY)
    regex: bool = False
    level: str = Field("", pattern=f"^({'|'.join(('', *LEVELS))})$")

    @property
    def is_search(self) -> bool:
        """Whether lines are to be found, rather than shown."""
        return bool(self.q or self.level)


class LogPageQuery(LogQuery):
    """What the page shows: `at`: byte offset in the log of the one attempt, to be shown in its context, -1: the log's
    end. `page`: of the list of sub-epochs."""

    at: int = Field(-1, ge=-1, le=MAX_SEQ)
    page: int = Field(1, ge=1, le=1_000_000)


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


_Try = tuple[float, str, TaskKey | None, str, Visit | Attempt]
"""When it started, its run, its task, or where a visit is all that is left of that its model, and itself; not to be
changed."""


class Chosen(Sequence[Source]):
    """Attempts in the order in which they started. Each becomes a `Source` when it is looked at, since a run may have
    tens of thousands of which a page shows some; may be kept while the run goes on."""

    def __init__(self, tries: Sequence[_Try]) -> None:
        self._tries = tries

    def __len__(self) -> int:
        return len(self._tries)

    @overload
    def __getitem__(self, index: int) -> Source: ...

    @overload
    def __getitem__(self, index: slice) -> Chosen: ...

    def __getitem__(self, index: int | slice) -> Source | Chosen:
        if isinstance(index, slice):
            return Chosen(self._tries[index])
        return _source(self._tries[index])

    def growing(self) -> Chosen:
        """Those that may still grow."""
        return Chosen([each for each in self._tries if not each[4].ended])


def sources(state: ExperimentState, query: LogQuery) -> Chosen:
    """The attempts that `query` chooses."""
    return Chosen(_tries(state, query))


def growing(state: ExperimentState, query: LogQuery) -> Chosen:
    """Of the attempts that `query` chooses, those that may still grow; in a moment, however many there are."""
    found: list[_Try] = [
        (attempt.started, run.id, task.key, "", replace(attempt))
        for run in runs_of(state, query)
        for name, task in run.open.items()
        for attempt in task.attempts[-1:]
        if attempt.started
        and query.task in ("", name)
        and query.model in ("", task.key.model)
        and query.worker in ("", attempt.worker)
    ]
    return Chosen(sorted(found, key=itemgetter(0)))


def runs_of(state: ExperimentState, query: LogQuery) -> list[Run]:
    """The run that `query` names, if there is one; all if it names none."""
    name = query.task.partition("/")[0] or query.fit
    return [run for run in state.runs.values() if name in ("", run.id)]


def waits_for(state: ExperimentState, task: str) -> str:
    """What a sub-epoch that has not started waits for, in words; empty if it has started, or there is no such
    sub-epoch."""
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
        return f"{model.id} is in epoch {model.epoch}; this sub-epoch belongs to epoch {key.epoch}."
    if model.busy:
        return f"{model.id} is at another sub-epoch first: it {wording.task(TaskKey.parse(model.busy))}."
    return ""


def _tries(state: ExperimentState, query: LogQuery, since: float = 0.0) -> list[_Try]:
    """The attempts that `query` chooses and that started at `since` or later, in that order."""
    runs = runs_of(state, query)
    if query.task:
        found = [each for run in runs for each in _of_task(run, query.task)]
        found = [each for each in found if _number(each) == query.attempt] if query.attempt else found[-1:]
    else:
        tries = (each for run in runs for each in _of_run(run, query.model, since))
        found = sorted(tries, key=itemgetter(0))
    return [each for each in found if each[0] >= since and query.worker in ("", each[4].worker)]


def _of_task(run: Run, task: str) -> list[_Try]:
    """The attempts at one task that started, oldest first."""
    try:
        key = TaskKey.parse(task)
    except ValueError:
        return []
    if key.run != run.id:
        return []
    return [(each.started, run.id, key, "", replace(each)) for each in run.task(key).attempts if each.started]


def _of_run(run: Run, model: str, since: float = 0.0) -> Iterator[_Try]:
    """The attempts that started at `since` or later, in no order."""
    for task in run.tasks.values():
        if model in ("", task.key.model):
            # A sub-epoch that is done is a visit as well.
            is_visit = task.state is TaskState.COMMITTED and task.key.kind == "train"
            for attempt in task.attempts[:-1] if is_visit else task.attempts:
                if attempt.started and attempt.started >= since:
                    yield attempt.started, run.id, task.key, "", replace(attempt)
    for name in (model,) if model else run.models:
        for visit in reversed(run.models[name].kept_visits if name in run.models else ()):
            if visit.started < since:
                break  # a model's sub-epochs follow each other
            yield visit.started, run.id, None, name, visit


def _number(found: _Try) -> int:
    return found[4].attempt if isinstance(found[4], Visit) else found[4].number


def _source(found: _Try) -> Source:
    _, run, key, model, tried = found
    if isinstance(tried, Visit):
        key = tried.key(run, model)
    assert key is not None
    return Source(
        task=str(key),
        attempt=_number(found),
        what=wording.task(key),
        model=key.model or "",
        worker=tried.worker,
        started=tried.started,
        ended=tried.ended,
        outcome="committed" if isinstance(tried, Visit) else tried.outcome or "running",
    )


# --- following ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """How far somebody has read: all that started before `time` (seconds since the epoch), and of the logs named in
    `offsets` so many bytes.

    Logs that may have more are named, those first that have waited longest, and those that started at `time`, since
    others may start at the same.
    """

    time: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    offsets: Mapping[str, Annotated[int, Field(ge=0, le=MAX_SEQ)]]

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        """The cursor that `str` wrote; None for anything else."""
        if len(text) > _LONGEST_CURSOR:
            return None
        try:
            time, offsets = json.loads(text)
            return _CURSOR.validate_python({"time": time, "offsets": offsets})
        except (ValueError, TypeError, RecursionError):
            return None

    def __str__(self) -> str:
        return json.dumps([self.time, dict(self.offsets)], separators=(",", ":"))

    @classmethod
    def behind(cls, chosen: Chosen, ends: Mapping[str, int]) -> Cursor:
        """The cursor of somebody who has seen `chosen`; `ends`: how far, of those that were shown."""
        time = chosen[-1].started if chosen else 0.0
        newest = takewhile(lambda source: source.started == time, reversed(chosen))
        kept = {source.key: ends[source.key] for source in chosen.growing() if source.key in ends}
        return cls(time=time, offsets=kept | {source.key: ends.get(source.key, 0) for source in newest})

    def moved(self, pending: Sequence[tuple[Source, int]], ends: Mapping[str, tuple[int, bool]]) -> Cursor:
        """The cursor after some of `pending` (see `unread`) were read: so far, and whether that was their end."""
        read = [source for source, _ in pending if source.key in ends]
        time = max((source.started for source in read), default=self.time)
        time = max(time, self.time)
        waiting = {
            source.key: offset
            for source, offset in pending
            if source.key in self.offsets.keys() - ends.keys()
        }
        more = {
            source.key: ends[source.key][0]
            for source in read
            if source.is_open or source.started == time or not ends[source.key][1]
        }
        return Cursor(time=time, offsets=waiting | more)


_CURSOR = TypeAdapter(Cursor)


def unread(state: ExperimentState, query: LogQuery, cursor: Cursor) -> list[tuple[Source, int]]:
    """What somebody at `cursor` is to read of the logs that `query` chooses, and from which byte: first what started
    since, in that order, so that a part of it can be read and the rest next time."""
    runs = {run.id: run for run in runs_of(state, query)}
    found = [_source(each) for each in _tries(state, query, cursor.time)]
    known = {source.key for source in found}
    named = [key for key in cursor.offsets if key not in known and key.partition("/")[0] in runs]
    found += [each for key in named for each in _named(runs[key.partition("/")[0]], key)]
    return [(source, cursor.offsets.get(source.key, 0)) for source in found]


def _named(run: Run, key: str) -> list[Source]:
    task, _, number = key.rpartition(".a")
    return [_source(each) for each in _of_task(run, task) if str(_number(each)) == number]
