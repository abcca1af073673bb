"""Runs of which the older units are archived."""

from __future__ import annotations

from functools import cache
from random import Random

from cerebro.state import epoch_report
from tests.state.histories import History


class Undisturbed(History):
    """A run whose units fail and lose their checkpoints, and that no user ends."""

    def _wish(self) -> bool:
        return False

    def _steer(self) -> bool:
        return False


@cache
def archived(seed: int) -> History:
    """A run that archives at each epoch's end."""
    made = Undisturbed(Random(seed), validated=False, epochs=20, has_gangs=True, workers=3, models=5)
    made.state.archive_after = made.run.archive_after = 0  # type: ignore[attr-defined, unused-ignore]
    while made.run.is_open and len(made.log) < 900:
        made.step()
        going = [model for model in made.run.models.values() if not model.is_cut_short]
        reached = min((model.completed_epochs for model in going), default=0)
        if reached > len(made.run.epochs) and made.run.is_open:
            made.tell(epoch_report(made.state, made.run, len(made.run.epochs) + 1))
    assert any(model.archived_epochs > 5 for model in made.run.models.values())
    return made
