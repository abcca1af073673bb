"""Earlier fits that a search starts from: their models' hyperparameters and values, read from their logs.

The controller reads them when the run starts and writes them into its plan, so the log of the run is enough to repeat
the search. A client reads them before it requests the run, so an error appears at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from cerebro.contract.events import Event
from cerebro.contract.records import CodeRecord, Hyperparameters
from cerebro.contract.runs import EarlierModel, EarlierRun, FitPlan, FitRequest, Mode
from cerebro.contract.search import Earlier, Space
from cerebro.errors import NotFoundError, SearchError
from cerebro.search.samplers.dimensions import exact, outside
from cerebro.search.sampling import applicable
from cerebro.state import ExperimentState, Run
from cerebro.state.models.model import Model, ModelState
from cerebro.state.runs.compared_values import compared_values
from cerebro.state.snapshots import SnapshotStore, restored

MAX_EARLIER = 10_000
"""Maximum number of models to learn from; the plan of the run stores them."""


class EarlierStore(SnapshotStore, Protocol):
    """The part of `cerebro.runtime.kvs.client.KvsClient` in use."""

    def events(self, experiment: str, after: int = 0) -> Sequence[Event]:
        """Return events with seq > `after`, oldest first; an empty sequence after the last."""
        ...

    def code(self, sha256: str) -> CodeRecord:
        """Return the encoded user code of this hash."""
        ...


def earlier_runs(store: EarlierStore, request: FitRequest, dataset: str) -> tuple[EarlierRun, ...]:
    """Return the earlier fits of a request, from their logs.

    Args:
        dataset: data set of the new fit.

    Raises:
        SearchError: an earlier fit does not exist, is open, compares by another metric, used other code or data, or
            has no model to learn from.
    """
    if request.search is None:
        return ()
    states: dict[str, ExperimentState] = {}
    found = []
    for earlier in request.search.start_from:
        experiment, name = earlier.names
        if experiment not in states:
            states[experiment] = _state(store, experiment, earlier)
        run = states[experiment].runs.get(name)
        _check(run, request, earlier, states[experiment])
        assert run is not None
        assert isinstance(run.plan, FitPlan)
        if not earlier.any_data and _digest(run.plan.dataset) != _digest(dataset):
            raise SearchError(
                f"{earlier.run} trained on other data ({run.plan.dataset}) than this fit ({dataset}): its values may "
                f'not hold here. Leave it out of start_from, or pass Earlier("{earlier.run}", any_data=True)'
            )
        if not earlier.any_code and not _has_same_code(store, run.fit_request.code, request.code):
            raise SearchError(
                f"{earlier.run} trained another spec, or with other package versions: its values may not hold here. "
                f'Leave it out of start_from, or pass Earlier("{earlier.run}", any_code=True)'
            )
        found.append(_earlier_run(run, request, earlier))
    if (count := sum(len(each.models) for each in found)) > MAX_EARLIER:
        raise SearchError(
            f"start_from names fits with {count:,} models, more than {MAX_EARLIER:,}: name fewer fits"
        )
    return tuple(found)


# --- checks --------------------------------------------------------------------------------------


def _state(store: EarlierStore, experiment: str, earlier: Earlier) -> ExperimentState:
    try:
        state = restored(store, experiment)
        while events := store.events(experiment, state.seq):
            for event in events:
                state.apply(event)
    except NotFoundError as error:
        raise SearchError(
            f"start_from names {earlier.run}, but there is no experiment {experiment!r}: it was deleted, or the name "
            "is wrong"
        ) from error
    return state


def _check(run: Run | None, request: FitRequest, earlier: Earlier, state: ExperimentState) -> None:
    if run is None or not isinstance(run.request, FitRequest):
        fits = ", ".join(each.id for each in state.runs.values() if each.kind == "fit") or "no fit"
        raise SearchError(f"start_from names {earlier.run}, but {state.name!r} has {fits}: name an ended fit")
    if run.is_open:
        raise SearchError(
            f"start_from names {earlier.run}, which has not ended: wait for its end, or stop it"
        )
    earlier_objectives, objectives = _objectives(run.fit_request), _objectives(request)
    if earlier_objectives != objectives:
        raise SearchError(
            f"{earlier.run} compares models by {_text(earlier_objectives)}, and this fit by {_text(objectives)}: leave "
            "it out of start_from, or use the same objectives"
        )
    if isinstance(run.plan, FitPlan) and run.plan.folds:
        raise SearchError(
            f"{earlier.run} is a cross-validation, whose models train on a part of the data: leave it out of start_from"
        )
    if not isinstance(run.plan, FitPlan):
        raise SearchError(f"start_from names {earlier.run}, which never started: leave it out of start_from")


def _objectives(request: FitRequest) -> Mapping[str, Mode]:
    return request.objectives or {request.metric: request.mode}


def _text(objectives: Mapping[str, Mode]) -> str:
    return ", ".join(f"{name} ({mode})" for name, mode in objectives.items())


def _digest(dataset: str) -> str:
    """Return the fingerprint of everything that determines the rows, without the experiment's name."""
    return dataset.rpartition("-")[2]


def _has_same_code(store: EarlierStore, earlier_code: str, code: str) -> bool:
    if earlier_code == code:
        return True
    try:
        return store.code(earlier_code).fingerprint == store.code(code).fingerprint
    except NotFoundError:
        return False


# --- models --------------------------------------------------------------------------------------


def _earlier_run(run: Run, request: FitRequest, earlier: Earlier) -> EarlierRun:
    assert request.search is not None
    models, unused = [], Counter[str]()
    for model in run.models.values():
        hyperparams = exact(applicable(request.search.space, model.hyperparams), request.search.space)
        values = _values(run, model, request)
        is_failed = model.state is ModelState.FAILED
        if reason := _reason(model, hyperparams, request.search.space):
            unused[reason] += 1
        elif not values and not is_failed:
            unused["without a value"] += 1
        else:
            models.append(EarlierModel(hyperparams=hyperparams, values=values, is_failed=is_failed))
    if not any(each.values for each in models):
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in unused.items())
        raise SearchError(
            f"start_from names {earlier.run}, but no value of its {len(run.models):,} models can be used"
            f"{f' ({reasons})' if reasons else ''}: leave it out of start_from, or widen the search space"
        )
    return EarlierRun(run=earlier.run, models=tuple(models), unused=dict(unused))


def _values(run: Run, model: Model, request: FitRequest) -> dict[int, dict[str, float]]:
    """Return epoch -> values that the new fit compares, for epochs that its models can reach."""
    names, found = request.compared_names, {}
    for epoch in range(1, min(model.completed_epochs, request.epochs) + 1):
        values = compared_values(run, model, epoch, names)
        if len(values) == len(names) and all(map(math.isfinite, values.values())):
            found[epoch] = values
    return found


def _reason(model: Model, hyperparams: Hyperparameters, space: Space) -> str:
    """Return why a model is not comparable with models of the space, or an empty text."""
    if model.is_repeat:
        return "with another seed, as repeats"
    if model.lineage.sub_epochs:
        return "started from weights of another model"
    if model.configs.has_changed:
        return "changed while they trained"
    if missing := sorted(hyperparams.keys() - space.keys()):
        return f"with {missing[0]}, which the search space lacks"
    if name := outside(hyperparams, space):
        return f"with {name} outside the search space"
    return ""
