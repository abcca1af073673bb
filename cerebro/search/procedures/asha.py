"""The procedure of `cerebro.ASHA`: asynchronous successive halving. Pure.

Li et al., *A System for Massively Parallel Hyperparameter Tuning*, MLSys 2020. The `promotion` rule is the
paper's algorithm 2. The `stopping` rule decides once, when a model reaches a rung. It needs no checkpoints of
paused models and found a good model as soon in the simulation of docs/search.md.

With several objectives or constraints it is MO-ASHA (Schmucker et al., 2021): rungs rank models by non-dominated rank.
"""

from __future__ import annotations

from cerebro.contract.search import ASHA
from cerebro.search.procedure import Action, Extend, Failed, Measured, Reached, Report, Stop, Stopped
from cerebro.search.procedures.rungs import ParetoRung, Rung, bracket_sizes, rung_epochs
from cerebro.search.procedures.steady import Steady
from cerebro.search.searched import SearchedModel

_AnyRung = Rung | ParetoRung

WORST = float("-inf")
"""Score of a model that failed or was stopped before it reached the rung."""


class AshaSearch(Steady):
    """Asynchronous successive halving. Each model climbs the rungs of one bracket."""

    def __init__(self, choice: ASHA) -> None:
        super().__init__(choice.active)
        self._choice = choice
        self._brackets: list[list[_AnyRung]] = []
        self._weights: tuple[int, ...] = ()
        self._rungs_of: dict[str, list[_AnyRung]] = {}
        self._by_number: list[SearchedModel] = []

    def prepare(self) -> None:
        """Lay out the brackets."""
        levels = rung_epochs(self._choice.first, self._choice.eta, self.facts.epochs)
        starts = range(min(self._choice.brackets, len(levels)))
        make: type[Rung] | type[ParetoRung] = ParetoRung if self.facts.criteria else Rung
        self._brackets = [[make(epochs) for epochs in levels[start:]] for start in starts]
        self._weights = bracket_sizes(len(levels), self._choice.eta)[: len(starts)]

    def resource(self, number: int) -> tuple[int, int]:
        """Return the epochs of the first rung of the suggestion's bracket."""
        return self._bracket(number)[0].epochs, 0

    def on_added(self, model: SearchedModel, number: int | None) -> None:
        """Assign the model to a bracket. A user's model with new weights joins the first one."""
        self._by_number.append(model)
        if number is not None:
            self._rungs_of[model.id] = self._bracket(number)
        elif not model.is_apart:
            self._rungs_of[model.id] = self._brackets[0]

    def _bracket(self, number: int) -> list[_AnyRung]:
        if len(self._brackets) == 1:
            return self._brackets[0]
        return self.facts.rng(number).choices(self._brackets, self._weights)[0]

    def actions_for(self, report: Report) -> list[Action]:
        """Record a model's value at a rung. The `stopping` rule then extends or stops the model."""
        rungs = self._rungs_of.get(getattr(report, "model", ""))
        if rungs is None:
            return []
        match report:
            case Measured():
                for rung in rungs:
                    if rung.epochs == report.epoch:
                        self._put(rung, self.models[report.model].number, report)
            case Failed() | Stopped():
                self._rank_last(self.models[report.model], rungs)
            case Reached() if self._choice.rule == "stopping":
                return self._stop_or_extend(self.models[report.model], rungs)
        return []

    def _put(self, rung: _AnyRung, number: int, report: Measured) -> None:
        if isinstance(rung, ParetoRung):
            rung.put(number, self.facts.criteria.point(report.metrics))
        else:
            rung.put(number, self.facts.score(report.value))

    def _rank_last(self, model: SearchedModel, rungs: list[_AnyRung]) -> None:
        """Rank a model last at the rung it will not reach."""
        for rung in rungs:
            if model.trained < rung.epochs <= model.resource:
                if isinstance(rung, ParetoRung):
                    rung.put(model.number, self.facts.criteria.worst)
                else:
                    rung.put(model.number, WORST)
                return

    def _stop_or_extend(self, model: SearchedModel, rungs: list[_AnyRung]) -> list[Action]:
        reached = [place for place, rung in enumerate(rungs) if rung.epochs in model.values]
        if model.has_ended or model.is_active or not reached or reached[-1] == len(rungs) - 1:
            return []
        rung = rungs[reached[-1]]
        places = max(1, len(rung) // self._choice.eta)
        if rung.rank(model.number) < places:
            return [self._extend(model, rungs[reached[-1] + 1])]
        values = self.facts.text(model.values[rung.epochs], model.metrics[rung.epochs])
        value = f"{values} after epoch {rung.epochs}"
        return [Stop(model=model.id, why=f"{value} is not among the best {places} of {len(rung)}")]

    def promote(self, count: int) -> list[Action]:
        """Under the `promotion` rule, extend models in the best 1/eta of a rung.

        The highest rungs come first.
        """
        if self._choice.rule == "stopping":
            return []
        height = max(len(bracket) for bracket in self._brackets)
        actions: list[Action] = []
        for below_top in range(1, height):
            for rungs in self._brackets:
                if below_top < len(rungs):
                    rung, following = rungs[-1 - below_top], rungs[-below_top]
                    promotable = self._promotable(rung, following)[: count - len(actions)]
                    actions += [self._extend(model, following) for model in promotable]
        return actions

    def _promotable(self, rung: _AnyRung, following: _AnyRung) -> list[SearchedModel]:
        best = (self._by_number[number] for number in rung.best(len(rung) // self._choice.eta))
        return [
            model
            for model in best
            if not (model.has_ended or model.is_active or model.resource >= following.epochs)
            and rung.epochs in model.values
        ]

    def _extend(self, model: SearchedModel, rung: _AnyRung) -> Extend:
        self.models.extend(model.id, rung.epochs)
        return Extend(model=model.id, epochs=rung.epochs)
