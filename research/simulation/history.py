"""History of simulated runs, as input for later simulations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cerebro.contract.events import Event
from cerebro.contract.stored.history import SubEpochHistory, SubEpochKey
from cerebro.state import ExperimentState
from controller.projections.history import shown


def history_of(
    log: Iterable[Event], known: Mapping[str, SubEpochHistory] | None = None
) -> dict[str, SubEpochHistory]:
    """Return the known history plus the results in a log."""
    state, rows = ExperimentState(name="simulated"), dict(known or {})
    for event in log:
        state.apply(event)
        found = shown(state, event)
        if found is not None:
            key = str(
                SubEpochKey.of(
                    code=found.code,
                    dataset=found.dataset,
                    hyperparams=found.hyperparams,
                    device=found.device,
                    parallel_plan=found.parallel_plan,
                )
            )
            rows[key] = rows[key].with_more(found.row) if key in rows else found.row
    return rows
