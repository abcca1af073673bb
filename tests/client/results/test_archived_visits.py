"""The table of visits of a run whose older units are archived is that of a fold that keeps all."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import pytest

from cerebro.client.files import MountedFiles
from cerebro.client.results import FitResult
from cerebro.contract.events import Event
from cerebro.contract.segments import SegmentsAnswer
from cerebro.errors import LostEventsError
from cerebro.runtime.volumes import Volumes
from cerebro.state import ExperimentState, log_pages
from tests.state.archived_runs import archived


class Whole:
    """A log that is all in the database."""

    def __init__(self, log: Sequence[Event]) -> None:
        self._log = log

    def events(self, experiment: str, after: int = 0) -> Sequence[Event]:
        """A page."""
        return self._log[after : after + 50]

    def segments(self, experiment: str) -> SegmentsAnswer:
        """None."""
        return SegmentsAnswer()


def results(seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[FitResult, pd.DataFrame]:
    """Of the run, and the table that the fold of all has."""
    monkeypatch.setattr(log_pages, "PAGE", 50)
    made, files = archived(seed), MountedFiles(Volumes.from_environment({}))
    kept = ExperimentState(name="one", archive_after=None)  # type: ignore[call-arg, unused-ignore]
    for event in made.log:
        kept.apply(event)
    expected = FitResult(kept, kept.runs["fit-1"], files).visits()
    return FitResult(made.state, made.run, files, events=Whole(made.log)), expected


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_all_of_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of units among it; the fold alone has less, and says so."""
    result, expected = results(seed, monkeypatch)
    pd.testing.assert_frame_equal(sorted_(result.visits()), sorted_(expected))
    without = FitResult(archived(seed).state, archived(seed).run, MountedFiles(Volumes.from_environment({})))
    with pytest.raises(LostEventsError, match="attach"):
        without.visits()


def sorted_(frame: pd.DataFrame) -> pd.DataFrame:
    """Of units that ended at the same time the order is of no meaning, nor is that of metrics."""
    return (
        frame.dropna(axis=1, how="all").sort_values(["ended", "model"], ignore_index=True).sort_index(axis=1)
    )


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_windows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By epochs or by time: the same rows; a unit has its number or none."""
    result, expected = results(seed, monkeypatch)
    of_epochs = sorted_(result.visits(epochs=range(2, 4)))
    pd.testing.assert_frame_equal(of_epochs, sorted_(expected[expected["epoch"].isin([2, 3])]))
    since, until = (float(expected["ended"].quantile(share)) for share in (0.2, 0.4))
    found = sorted_(result.visits(since=since, until=until))
    inside = sorted_(expected[expected["ended"].between(since, until)])
    known = found["unit"].notna()
    assert (found["unit"][known] == inside["unit"][known]).all()
    pd.testing.assert_frame_equal(found.drop(columns="unit"), inside.drop(columns="unit"))
