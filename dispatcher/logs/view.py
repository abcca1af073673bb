"""Selection of logs: one file per started attempt, by run, task, model or worker. Pure.

Works on the event log only; `dispatcher.logs.log_reader` opens the files. `Cursor` is the position of a browser that
follows several logs. Used by the tabs Logs and Models and by the read API.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from operator import itemgetter
from typing import Annotated, overload

from pydantic import Field, TypeAdapter

from cerebro.contract.base import Contract
from cerebro.contract.rest.api import MAX_SEQ
from cerebro.state import ExperimentState, ModelState, Run, TaskKey, TaskState, waiting_for
from cerebro.state.models.completed_sub_epoch import CompletedSubEpoch
from cerebro.state.reports import state_words
from cerebro.state.tasks.task import Attempt
from dispatcher.logs.terminal import LEVELS

MAX_QUERY_LENGTH = 200
PAGE = 50
"""Tasks per page of the list."""
MAX_NEW_LOGS = 60
"""Maximum number of logs in one answer to a follower. The next answer continues."""
_MAX_CURSOR_LENGTH = 32_000
"""Maximum length of a cursor. `MAX_NEW_LOGS` logs need a third of it."""


class LogQuery(Contract):
    """Selection of logs. Empty fields select everything.

    Attributes:
        fit: id of a run of any kind, such as ``fit-1`` or ``etl-1``.
        task: key of a task, such as ``fit-1/train/m03/e2/p0``.
        attempt: attempt of that task; 0 selects the newest.
        q: text to find; with `regex` a regular expression.
        level: one of `terminal.LEVELS`.
    """

    fit: str = Field("", max_length=60)
    task: str = Field("", max_length=200)
    attempt: int = Field(0, ge=0, le=1_000_000)
    model: str = Field("", max_length=100)
    worker: str = Field("", max_length=60)
    q: str = Field("", max_length=MAX_QUERY_LENGTH)
    regex: bool = False
    level: str = Field("", pattern=f"^({'|'.join(('', *LEVELS))})$")

    @property
    def is_search(self) -> bool:
        """True if the query searches for lines."""
        return bool(self.q or self.level)


class LogPageQuery(LogQuery):
    """Query of the page.

    Attributes:
        at: byte offset in the log of a single attempt to show in context; -1 shows its end.
        page: page of the list of tasks.
    """

    at: int = Field(-1, ge=-1, le=MAX_SEQ)
    page: int = Field(1, ge=1, le=1_000_000)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Log of a started attempt. Times are seconds since the epoch; `ended` is 0 while it runs."""

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
        """Unique name of the log in its experiment."""
        return f"{self.task}.a{self.attempt}"

    @property
    def is_open(self) -> bool:
        """True if the log may grow."""
        return not self.ended


_Entry = tuple[float, str, TaskKey | None, str, CompletedSubEpoch | Attempt]
"""(start, run id, task key, model, attempt). For a compacted sub-epoch the key is None. Treat as immutable."""


class Sources(Sequence[Source]):
    """Attempts in order of their start.

    Builds a `Source` on access, because a run may have tens of thousands of attempts and a page shows a few.
    Independent of later changes of the run.
    """

    def __init__(self, entries: Sequence[_Entry]) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Source: ...

    @overload
    def __getitem__(self, index: slice) -> Sources: ...

    def __getitem__(self, index: int | slice) -> Source | Sources:
        if isinstance(index, slice):
            return Sources(self._entries[index])
        return _source(self._entries[index])

    def growing(self) -> Sources:
        """Return the attempts whose logs may grow."""
        return Sources([each for each in self._entries if not each[4].ended])


def sources(state: ExperimentState, query: LogQuery) -> Sources:
    """Return the attempts that `query` selects."""
    return Sources(_entries(state, query))


def growing(state: ExperimentState, query: LogQuery) -> Sources:
    """Return the selected attempts whose logs may grow. Fast, because it visits open tasks only."""
    found: list[_Entry] = [
        (attempt.started, run.id, task.key, "", replace(attempt))
        for run in selected_runs(state, query)
        for name, task in run.tasks.open.items()
        for attempt in task.attempts[-1:]
        if attempt.started
        and query.task in ("", name)
        and query.model in ("", task.key.model)
        and query.worker in ("", attempt.worker)
    ]
    return Sources(sorted(found, key=itemgetter(0)))


def selected_runs(state: ExperimentState, query: LogQuery) -> list[Run]:
    """Return the run that `query` names, if it exists; all runs if it names none."""
    name = query.task.partition("/")[0] or query.fit
    return [run for run in state.runs.values() if name in ("", run.id)]


def waiting_reason(state: ExperimentState, task: str) -> str:
    """Return why a task has not started, as text for the page.

    Returns an empty text for started and unknown tasks.
    """
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
        return f"It starts on {known.worker} after the current task of this worker."
    if not run.is_open:
        return f"{run.id} is {run.state}: resume the run to start it."
    if reason := waiting_for(state, run):
        return f"{run.id} is {reason}."
    return _model_reason(run, key) or f"It waits for an idle worker; {run.id} is {state_words.run(run)}."


def _model_reason(run: Run, key: TaskKey) -> str:
    model = run.models.get(key.model or "")
    if model is None or key.kind != "train":
        return ""
    if model.state is not ModelState.ACTIVE:
        return f"{model.id} is {state_words.model(model, run)}."
    if key.epoch != model.epoch:
        return f"{model.id} is in epoch {model.epoch}; this sub-epoch is part of epoch {key.epoch}."
    if model.busy:
        return f"{model.id} runs another sub-epoch first: it {state_words.task(TaskKey.parse(model.busy))}."
    return ""


def _entries(state: ExperimentState, query: LogQuery, since: float = 0.0) -> list[_Entry]:
    """Return the selected attempts that started at `since` or later, in order of their start."""
    runs = selected_runs(state, query)
    if query.task:
        found = [each for run in runs for each in _task_entries(run, query.task)]
        found = [each for each in found if _number(each) == query.attempt] if query.attempt else found[-1:]
    else:
        entries = (each for run in runs for each in _run_entries(run, query.model, since))
        found = sorted(entries, key=itemgetter(0))
    return [each for each in found if each[0] >= since and query.worker in ("", each[4].worker)]


def _task_entries(run: Run, task: str) -> list[_Entry]:
    """Return the started attempts of one task, oldest first."""
    try:
        key = TaskKey.parse(task)
    except ValueError:
        return []
    if key.run != run.id:
        return []
    return [(each.started, run.id, key, "", replace(each)) for each in run.task(key).attempts if each.started]


def _run_entries(run: Run, model: str, since: float = 0.0) -> Iterator[_Entry]:
    """Yield the attempts that started at `since` or later, in any order."""
    for task in run.tasks.by_key.values():
        if model in ("", task.key.model):
            # The model has the completed sub-epoch, so skip its last attempt.
            is_completed = task.state is TaskState.COMMITTED and task.key.kind == "train"
            for attempt in task.attempts[:-1] if is_completed else task.attempts:
                if attempt.started and attempt.started >= since:
                    yield attempt.started, run.id, task.key, "", replace(attempt)
    for name in (model,) if model else run.models:
        for sub_epoch in reversed(run.models[name].kept_sub_epochs if name in run.models else ()):
            if sub_epoch.started < since:
                break  # sub-epochs of a model follow each other
            yield sub_epoch.started, run.id, None, name, sub_epoch


def _number(found: _Entry) -> int:
    return found[4].attempt if isinstance(found[4], CompletedSubEpoch) else found[4].number


def _source(found: _Entry) -> Source:
    _, run, key, model, attempt = found
    if isinstance(attempt, CompletedSubEpoch):
        key = attempt.key(run, model)
    assert key is not None
    return Source(
        task=str(key),
        attempt=_number(found),
        what=state_words.task(key),
        model=key.model or "",
        worker=attempt.worker,
        started=attempt.started,
        ended=attempt.ended,
        outcome="committed" if isinstance(attempt, CompletedSubEpoch) else attempt.outcome or "running",
    )


# --- following ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """Position of a follower. Logs before `time` are read, others up to their offset.

    `offsets` lists the logs that may have more, longest unread first. It includes logs that started exactly at
    `time`, because others may start at the same time.
    """

    time: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    offsets: Mapping[str, Annotated[int, Field(ge=0, le=MAX_SEQ)]]

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        """Parse the result of `str`; return `None` for anything else."""
        if len(text) > _MAX_CURSOR_LENGTH:
            return None
        try:
            time, offsets = json.loads(text)
            return _CURSOR.validate_python({"time": time, "offsets": offsets})
        except (ValueError, TypeError, RecursionError):
            return None

    def __str__(self) -> str:
        return json.dumps([self.time, dict(self.offsets)], separators=(",", ":"))

    @classmethod
    def from_page(cls, chosen: Sources, ends: Mapping[str, int]) -> Cursor:
        """Return the cursor after a page with `chosen`. `ends`: bytes that were shown of each log."""
        time = chosen[-1].started if chosen else 0.0
        newest = takewhile(lambda source: source.started == time, reversed(chosen))
        growing = {source.key: ends[source.key] for source in chosen.growing() if source.key in ends}
        return cls(time=time, offsets=growing | {source.key: ends.get(source.key, 0) for source in newest})

    def advanced(self, pending: Sequence[tuple[Source, int]], ends: Mapping[str, tuple[int, bool]]) -> Cursor:
        """Return the cursor after reading some of `pending` (see `unread`). `ends`: offset, and True at the end of
        the log.
        """
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
    """Return the logs to read after `cursor`, with their offsets. New logs come first, in order of their start.

    A caller may read only the first ones and continue with the next cursor.
    """
    runs = {run.id: run for run in selected_runs(state, query)}
    found = [_source(each) for each in _entries(state, query, cursor.time)]
    known = {source.key for source in found}
    named = [key for key in cursor.offsets if key not in known and key.partition("/")[0] in runs]
    found += [each for key in named for each in _sources_of_key(runs[key.partition("/")[0]], key)]
    return [(source, cursor.offsets.get(source.key, 0)) for source in found]


def _sources_of_key(run: Run, key: str) -> list[Source]:
    task, _, number = key.rpartition(".a")
    return [_source(each) for each in _task_entries(run, task) if str(_number(each)) == number]
