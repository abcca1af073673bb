"""What a sampler is asked."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro.contract.base import Contract
from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import SamplerChoice, Space
from cerebro.search.history import Past
from cerebro.search.samplers import draw


class _Known(Contract):
    """A model, as `Past` has it."""

    hyperparams: Hyperparameters
    scores: dict[int, float]
    is_failed: bool
    is_running: bool


class Question(Contract):
    """The arguments of `cerebro.search.samplers.draw`."""

    sampler: SamplerChoice
    space: Space
    history: tuple[_Known, ...]
    numbers: tuple[int, ...]
    seed: int

    @classmethod
    def of(
        cls, sampler: SamplerChoice, space: Space, history: Sequence[Past], numbers: range, seed: int
    ) -> Question:
        """As `draw` has them."""
        known = (
            _Known(
                hyperparams=past.hyperparams,
                scores=dict(past.scores),
                is_failed=past.is_failed,
                is_running=past.is_running,
            )
            for past in history
        )
        return cls(sampler=sampler, space=space, history=tuple(known), numbers=tuple(numbers), seed=seed)

    def answer(self) -> list[Hyperparameters]:
        """Values for each of `numbers`."""
        history = [Past(**known.model_dump()) for known in self.history]
        return draw(self.sampler, self.space, history, self.numbers, self.seed)
