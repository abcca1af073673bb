"""Which way a unit of a model gets on a worker. Pure: what is known of each way in, a way out.

Ways are chosen between units, where a model's state goes through its checkpoint anyway; a unit that runs keeps its own
(docs/decisions/0036-ways-between-units.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cerebro.contract.events import WaysStruckOff
from cerebro.contract.runs import FitPlan
from cerebro.contract.ways import SINGLE, Way
from cerebro.scheduling.dispatch_state import NEVER
from cerebro.state import ExperimentState, Model, ModelState, Run
from cerebro.state.ways import left
from controller.trials.known import situation, totals
from controller.trials.way_choice import allotted
from controller.unit_times import UnitTimes, technique_of


def options(run: Run, model: Model) -> tuple[Way, ...]:
    """The ways that are left of a model, those first that are to be tried first; then those of its run's trials."""
    listed = tuple(left(run, model))
    return (*listed, *_measured(run, model, {way.label for way in listed}))


def _measured(run: Run, model: Model, listed: set[str]) -> Iterator[Way]:
    """Further ways that trials have shown to be right for the model, where the platform chooses."""
    group = run.inspection.group_of(model.id) if run.inspection is not None else None
    if group is None or run.fit_request.techniques is not None:
        return
    for known in group.ways:
        outcome = run.trials.get((group.id, known.id))
        is_right = outcome is not None and outcome.is_usable and outcome.is_verified and known.is_automatic
        if is_right and known.way.label not in model.struck and known.way.label not in listed:
            listed.add(known.way.label)
            yield known.way


class Ways:
    """By which way the next unit of each model of a fit runs on each worker, how long it takes, and by which other ways
    it could run there. Models and workers by their numbers in the dispatch state.

    *Choosing* models are those that have another way than `SINGLE` somewhere, or none.
    """

    def __init__(
        self, state: ExperimentState, run: Run, times: UnitTimes, workers: Sequence[str], mean_rows: float
    ) -> None:
        self._models, self._workers = list(run.models), list(workers)
        self._times, self._mean_rows = times, mean_rows
        self._devices = [state.workers[name].devices for name in workers]
        self._alike: dict[int, int] = {}
        """Number of devices -> a worker with that number."""
        for worker, number in enumerate(self._devices):
            self._alike.setdefault(number, worker)
        self._chosen: dict[int, tuple[Way | None, ...]] = {}
        """Model -> its way on each worker, of those that are choosing."""
        self._options: dict[int, tuple[Way, ...]] = {}
        """Model -> the ways that it has left."""
        self._known: list[tuple[str, ...]] = [()] * len(self._models)
        """Of each model, see `known`: asked for at every decision, and changed for a model at a time."""
        self._gang_ways: dict[int, Way] = {}
        """Model -> by which a unit of it runs on several workers at once; of those that have such a way left."""
        self._wide = _wide(state, run, times, workers)

    def add_model(self, name: str) -> None:
        """Another model; `allot` says which ways it has."""
        self._models.append(name)
        self._known.append(())

    def of(self, model: int, worker: int) -> Way | None:
        """By which the next unit of a model is to run on a worker; `None`: it cannot."""
        row = self._chosen.get(model)
        return SINGLE if row is None else row[worker]

    def gang_way(self, model: int) -> Way | None:
        """By which units of a model run on several workers at once; `None`: on one."""
        return self._gang_ways.get(model)

    @property
    def is_plain(self) -> bool:
        """Whether each unit takes one device."""
        return not self._chosen

    @property
    def choosing(self) -> Iterable[str]:
        """Their names."""
        return (self._models[model] for model in self._chosen)

    def rows(self) -> Iterator[tuple[int, list[float]]]:
        """Each of them, and its `row`."""
        return ((model, self.row(model)) for model in self._chosen)

    def size(self, model: int) -> int:
        """Devices that the next unit of a model takes at least."""
        row = self._chosen.get(model, (SINGLE,))
        return min((way.size for way in row if way is not None), default=1)

    def allot(self, run: Run, model: Model, index: int) -> bool:
        """See which way the model has on each worker from now on: that of a plan, if it has one, else by what trials
        have shown. Returns whether that is another one than before."""
        found = tuple(way for way in options(run, model) if way.workers == 1)
        gang_way = next((way for way in left(run, model) if way.workers > 1), None)
        self._gang_ways |= {index: gang_way} if gang_way is not None else {}
        if gang_way is None:
            self._gang_ways.pop(index, None)
        planned = run.planned.ways.get(model.id, {}) if run.planned is not None else {}
        self._options[index] = found
        self.learn(index)
        if not planned and model.id not in self._wide and self._is_single_everywhere(found):
            return self._chosen.pop(index, None) is not None
        wide = self._wide.get(model.id) or (None,) * len(self._workers)

        def chosen(worker: int) -> Way | None:
            # Both were chosen before now: a way may have been struck off since.
            for way in (planned.get(self._workers[worker]), wide[worker]):
                if way is not None and way in found and self._takes(worker, way):
                    return way
            # While nothing is measured, the order in which ways are to be tried is all there is to go by.
            return next((way for way in found if self._takes(worker, way)), None)

        row = tuple(map(chosen, range(len(self._workers))))
        is_single = all(way is not None and way.is_single for way in row)
        before = self._chosen.get(index)
        if row == before or (before is None and is_single):
            return False
        self._chosen[index] = row
        if is_single:
            del self._chosen[index]
        return True

    def _is_single_everywhere(self, ways: Sequence[Way]) -> bool:
        """Whether each worker takes one device, by the order of the ways alone: of thousands most are alike."""
        firsts = (
            next((way for way in ways if self._takes(worker, way)), None) for worker in self._alike.values()
        )
        return all(way is not None and way.is_single for way in firsts)

    def _takes(self, worker: int, way: Way) -> bool:
        """Whether a worker can train a unit by a way."""
        return way.size <= self._devices[worker]

    # --- how long they take ----------------------------------------------------------------------

    def cost(self, model: int, worker: int, way: Way) -> tuple[float, float]:
        """Estimated seconds of the rows of a unit of mean size by that way, and of its fixed part."""
        name, rows, estimates = self._models[model], self._mean_rows, self._times.estimates
        known = self._known_as(name, way)
        seconds = estimates.seconds(name, self._workers[worker], rows=rows, technique=known)
        return seconds, estimates.fixed_s(name, known)

    def fixed(self, model: int) -> list[float]:
        """Estimated seconds of the fixed part of a unit on each worker, by the way that the model has there."""
        name, estimates = self._models[model], self._times.estimates
        if estimates.is_blind:
            return [0.0] * len(self._workers)
        chosen = self._chosen.get(model)
        if chosen is None:
            return [estimates.fixed_s(name)] * len(self._workers)
        return [0.0 if way is None else estimates.fixed_s(name, self._known_as(name, way)) for way in chosen]

    def row(self, model: int) -> list[float]:
        """Estimated seconds of the rows of a unit of mean size on each worker, by the way that the model has there."""
        name, rows, estimates = self._models[model], self._mean_rows, self._times.estimates
        chosen = self._chosen.get(model)
        if chosen is None:
            return estimates.table([name], self._workers, rows=rows)[0]
        if estimates.is_blind:
            return [NEVER if way is None else 1.0 for way in chosen]
        known = [None if way is None else self._known_as(name, way) for way in chosen]
        tables = {
            each: estimates.table([name], self._workers, rows=rows, technique=each)[0]
            for each in set(known)
            if each is not None
        }
        return [NEVER if each is None else tables[each][worker] for worker, each in enumerate(known)]

    def _known_as(self, name: str, way: Way) -> str:
        """What tells how long units take by a way that has not run yet: one device, or else what is typical of all
        models."""
        technique = technique_of(way)
        return technique if self._times.estimates.knows(name, technique) else ""

    # --- what a plan may choose ------------------------------------------------------------------

    def learn(self, model: int) -> None:
        """A unit of the model was committed, or it has other ways left: of other ones the time may be known."""
        knows, name = self._times.estimates.knows, self._models[model]
        techniques = map(technique_of, self._options[model])
        self._known[model] = tuple(technique for technique in techniques if knows(name, technique))

    def known(self) -> tuple[tuple[str, ...], ...]:
        """Of each model, those of the ways it has left of which the time is known: a unit ran by it, or a trial."""
        return tuple(self._known)

    def has_other(self, model: int) -> bool:
        """Whether the model has several ways left, or another one than `SINGLE`."""
        return self._options[model] != (SINGLE,)

    def candidates(self, model: int, worker: int) -> Iterator[Way]:
        """The ways by which a plan may run the model there: its present one, and those of which the time is known."""
        present = self.of(model, worker)
        for way in self._options[model]:
            is_known = self._times.estimates.knows(self._models[model], technique_of(way))
            if way == present or (is_known and self._takes(worker, way)):
                yield way


def _wide(
    state: ExperimentState, run: Run, times: UnitTimes, workers: Sequence[str]
) -> dict[str, tuple[Way | None, ...]]:
    """Model -> the way on several devices that it has on each worker, by what was measured; `None`: none there."""
    inspection = run.inspection
    if inspection is None or not any(outcome.is_usable for outcome in run.trials.values()):
        return {}
    alive = [worker for name in workers if (worker := state.workers[name]).is_alive]
    places = {place.device: number for number, place in enumerate(inspection.places)}
    found: dict[str, tuple[Way | None, ...]] = {}
    for model, by_place in allotted(situation(run, times, alive), totals(run)).items():
        devices = (state.workers[name].device for name in workers)
        found[model] = tuple(
            None if device is None else by_place.get(places.get(device, -1)) for device in devices
        )
    return found


def out_of_reach(state: ExperimentState, run: Run, models: Iterable[str]) -> Iterator[WaysStruckOff]:
    """Models that can be trained by none of the ways that they have left where one of their partitions is: whoever
    holds it, though perhaps away, has too few devices.

    Args:
        models: to look at; what is struck off of others is nothing.
    """
    assert isinstance(run.plan, FitPlan)
    for name in models:
        model = run.models[name]
        if not model.struck or model.busy or model.state is not ModelState.ACTIVE:
            continue
        ways = tuple(way for way in left(run, model) if way.workers == 1)
        least = min((way.size for way in ways), default=0)
        for partition in model.partitions if model.epoch < model.epochs else model.remaining:
            holders = [w for w in state.holders(run.plan.dataset, partition) if w.trains]
            if ways and holders and max(worker.devices for worker in holders) < least:
                told = ", ".join(f"{worker.name}: {worker.devices}" for worker in holders)
                reason = f"partition {partition} is held by workers with too few devices ({told})"
                yield WaysStruckOff(run=run.id, model=name, ways=ways, reason=reason)
                break


def as_sent(way: Way) -> Way | None:
    """A way as assignments tell of it: one device, as user code is written, is told by naming none."""
    return None if way.is_single else way
