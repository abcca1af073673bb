"""Samplers: which values the next models of a search have.

A draw is a function of the history, the number of the draw and the seed: nothing is kept from one question to the next,
so whoever asks again after a crash draws again. Floating point may differ between processors and versions of a library;
therefore what was drawn is recorded, and not drawn again once it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import CMA, GP, TPE, RandomSampler, Sampler, Space
from cerebro.search.drawing import configuration
from cerebro.search.history import Past, num_measured, observations
from cerebro.search.samplers.dimensions import drawn, within

MORE = 2
"""Models that have to be comparable, beyond one for each hyper-parameter, before TPE or GP is fitted to them."""


def draw(
    choice: Sampler, space: Space, history: Sequence[Past], numbers: Sequence[int], seed: int
) -> list[Hyperparameters]:
    """A training configuration for each of `numbers`.

    Args:
        history: as `Search.history` gives it when the draws are ordered.
        numbers: of the draws; ascending.
        seed: of the run's draws. Each number has a generator of its own.
    """
    rest: list[Hyperparameters] = [configuration(space, f"{seed}/{number}") for number in numbers]
    dimensions = drawn(space)
    if isinstance(choice, RandomSampler) or not dimensions:
        return rest
    known = within(history, dimensions)
    match choice:
        case CMA():
            from cerebro.search.samplers.cma import cma_draws

            found = cma_draws(choice, dimensions, known, numbers, seed)
        case TPE() | GP():
            from cerebro.search.samplers.optuna_study import optuna_draws

            seen = observations(known, len(dimensions) + MORE)
            if seen is None or num_measured(known) < choice.startup:
                return rest
            found = optuna_draws(choice, dimensions, seen, numbers, seed)
    return [{**one, **values} for one, values in zip(rest, found, strict=True)]
