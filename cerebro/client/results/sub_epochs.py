"""The table of visits: those that the fold keeps, and of a long run the others from its log."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

import pandas as pd

from cerebro.client.results.tables import beside
from cerebro.contract.parallel_plans import SINGLE
from cerebro.errors import LostEventsError
from cerebro.state import Model, Run, TaskKey, Visit
from cerebro.state.log_pages import PAGE, Log, LogPages
from cerebro.state.past import Pieces
from cerebro.state.timeline import Try

_ROWS = 20_000
"""That are made into a frame at a time: as objects they take ten times the memory."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which visits: those that ended between two times, seconds of the store's clock, in these epochs."""

    since: float = -math.inf
    until: float = math.inf
    epochs: Collection[int] | None = None

    def has(self, visit: Visit) -> bool:
        """Whether it is one of them."""
        return self.since <= visit.ended <= self.until and (self.epochs is None or visit.epoch in self.epochs)


def sub_epoch_table(run: Run, selection: Selection, pages: LogPages | None, log: Log) -> pd.DataFrame:
    """One row per committed sub-epoch, in order.

    Raises:
        LostEventsError: a part of the log that is needed cannot be read, or there is none at hand.
    """
    found: list[pd.DataFrame] = []
    rows: list[dict[str, Any]] = []
    for name, sub_epoch, visit in chain(_kept(run), _archived(run, selection, pages, log)):
        if selection.has(visit):
            rows.append(_row(name, sub_epoch, visit))
        if len(rows) == _ROWS:
            found.append(pd.DataFrame(rows))
            rows = []
    if rows or not found:
        found.append(pd.DataFrame(rows))
    frame = found[0] if len(found) == 1 else pd.concat(found, ignore_index=True)
    for name in ("peak_bytes", "peak_gpu_bytes") if len(found) > 1 else ():
        frame[name] = pd.to_numeric(frame[name])  # of some frames none has a number
    if "sub_epoch" in frame and frame["sub_epoch"].isna().any():
        frame["sub_epoch"] = frame["sub_epoch"].astype("Int64")
    return frame.sort_values("ended", kind="stable", ignore_index=True) if len(frame) else frame


_Numbered = tuple[str, int | None, Visit]


def _kept(run: Run) -> Iterator[_Numbered]:
    for model in run.models.values():
        kept = model.kept_visits
        for sub_epoch, visit in enumerate(kept, start=len(model.visits) - len(kept)):
            yield model.id, sub_epoch, visit


def _archived(run: Run, selection: Selection, pages: LogPages | None, log: Log) -> Iterator[_Numbered]:
    since, until = _stretch(run, selection)
    if not run.archived_until or since > until:
        return
    if pages is None:
        reason = f"sub-epochs of {run.id} before {until:.0f} are in the log alone, which is not at hand here"
        raise LostEventsError.of(
            log.experiment, 1, f"{reason}: take the result from Experiment.attach(...).result()"
        )
    reading = _Reading(run=run, since=since)
    last = -1
    for begin, end in ((since, until), (until, None)):
        # What a later sub-epoch takes back, shows there: of the window's last epochs that may be behind it.
        reach = reading.doubtful_until() if end is None else end
        for page in pages.through(log, begin, reach) if reach >= begin else ():
            if page.problem:
                raise LostEventsError.of(log.experiment, page.number * PAGE + 1, page.problem)
            if page.number > last:
                last = page.number
                reading.pieces.take(page.moves)
                yield from reading.settled()
    yield from reading.rest()


def _stretch(run: Run, selection: Selection) -> tuple[float, float]:
    """Of the log, that has sub-epochs which are selection and archived; none: it ends before it begins."""
    since, until = max(selection.since, run.origin), min(selection.until, run.archived_until)
    if selection.epochs is None:
        return since, until
    begins, ends = [math.inf], [-math.inf]
    for model in run.models.values():
        epochs = [
            epoch for epoch in selection.epochs if model.inherited_epochs < epoch <= model.archived_epochs
        ]
        if epochs:
            begins.append(_end_of(model, min(epochs) - 1))
            ends.append(_end_of(model, max(epochs)))
    return max(since, min(begins)), min(until, max(ends))


def _end_of(model: Model, epoch: int) -> float:
    """When the last sub-epoch of an epoch ended, or the sub-epochs it inherited before."""
    sub_epoch = max(model.visits_until(epoch), model.inherited) - 1
    return model.visits[sub_epoch].ended if sub_epoch >= 0 else -math.inf


@dataclass(kw_only=True)
class _Reading:
    """Sub-epochs are taken when nothing that comes later concerns them: a lost checkpoint reaches back by a sub-epoch
    or two, and never behind the epoch before the last one. So as many are held as two epochs of all models have; and to
    the end those of epochs of which a sub-epoch was ever taken back: before a run was a long one, that may have reached
    further."""

    run: Run
    since: float
    pieces: Pieces = field(init=False)
    _look_at: int = 0
    """With so many attempts held, those that are settled are looked for."""
    _redone: set[tuple[str, int]] = field(init=False)
    """(model, epoch) of which a sub-epoch was taken back."""

    def __post_init__(self) -> None:
        self._redone = {
            (model.id, epoch) for model in self.run.models.values() for epoch, _ in model.taken_back
        }
        self.pieces = Pieces(run=self.run.id, chosen=lambda key: key.kind == "train")

    def settled(self) -> Iterator[_Numbered]:
        if self.pieces.held < self._look_at:
            return
        newest = self.pieces.epochs()
        yield from self._numbered(self.pieces.let_go(lambda key: self._is_settled(key, newest)))
        # Each look passes over all that are held: not for each page, then.
        self._look_at = self.pieces.held * 5 // 4 + PAGE

    def _is_settled(self, key: TaskKey, newest: Mapping[str, int]) -> bool:
        model, epoch = _model_epoch(key)
        return epoch + 2 <= newest.get(model, 0) and (model, epoch) not in self._redone

    def doubtful_until(self) -> float:
        """When the last of those epochs ended of which a sub-epoch that stands now is known to have been taken back
        once."""
        ends = [-math.inf]
        for tried in self.pieces.window(-math.inf, math.inf).tries:
            model, epoch = self.run.models[tried.key.model or ""], tried.key.epoch or 0
            if tried.visit and (epoch, tried.key.partitions) in model.taken_back:
                ends.append(_end_of(model, epoch))
        return min(max(ends), self.run.archived_until)

    def rest(self) -> Iterator[_Numbered]:
        yield from self._numbered(self.pieces.let_go(lambda key: True))

    def _numbered(self, found: list[Try]) -> Iterator[_Numbered]:
        ordered = sorted(found, key=lambda tried: (_model_epoch(tried.key), tried.attempt.ended))
        for (name, epoch), group in groupby(ordered, key=lambda tried: _model_epoch(tried.key)):
            model = self.run.models[name]
            if epoch <= model.archived_epochs:
                visits = [tried.visit for tried in group if tried.visit is not None]
                first = self._first(model, epoch, visits)
                for place, visit in enumerate(visits):
                    yield name, None if first is None else first + place, visit

    def _first(self, model: Model, epoch: int, visits: list[Visit]) -> int | None:
        """Number of the first of these sub-epochs; `None`: the window begins and ends within their epoch."""
        first, last = max(model.visits_until(epoch - 1), model.inherited), model.visits_until(epoch)
        if len(visits) == last - first or _end_of(model, epoch - 1) >= self.since:
            return first
        return last - len(visits) if visits[-1].ended == model.visits[last - 1].ended else None


def _model_epoch(key: TaskKey) -> tuple[str, int]:
    return key.model or "", key.epoch or 0


def _row(model: str, sub_epoch: int | None, visit: Visit) -> dict[str, Any]:
    return beside(
        {
            "model": model,
            "sub_epoch": sub_epoch,
            "epoch": visit.epoch,
            "partition": visit.partition,
            "worker": visit.worker,
            "attempt": visit.attempt,
            "rows": visit.rows,
            "started": visit.started,
            "ended": visit.ended,
            "process_start": visit.start_s,
            "devices": visit.devices,
            "parallel_plan": (visit.parallel_plan or SINGLE).label,
            "partitions": visit.partitions,
            "workers": (visit.worker, *(member.worker for member in visit.others)),
            "peak_bytes": visit.peak_bytes or None,
            "peak_gpu_bytes": visit.peak_gpu_bytes or None,
        },
        visit.metrics,
        "metric",
    )
