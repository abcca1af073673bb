"""Samplers: suggest the hyperparameters of a search's next models.

`cerebro.search.suggestions` calls `suggest`: for TPE, GP and CMA-ES in a process of the controller or on a worker,
because they import large libraries; for a user's own `Sampler` on a worker. The procedure decides how long a model
trains. A new sampler is a case in `suggest`; CONTRIBUTING.md lists the other places.

A suggestion is a function of the history, its number and the seed, so a request can be repeated after a
crash. Floating point may differ between processors and library versions; the controller therefore records
each suggestion and never recomputes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cerebro.contract import search as contract
from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import CMA, GP, TPE, Distribution, OwnSampler, RandomSampler, Space
from cerebro.search.history import Past, num_measured, observations
from cerebro.search.samplers.dimensions import varying, within
from cerebro.search.samplers.own import CheckedSampler, Sampler
from cerebro.search.sampling import applicable, full_configuration

MORE = 2
"""Comparable models that TPE and GP need, beyond one for each hyperparameter."""


def suggest(
    choice: contract.Sampler,
    space: Space,
    history: Sequence[Past],
    numbers: Sequence[int],
    seed: int,
    *,
    own: Sampler | None = None,
) -> list[Hyperparameters]:
    """Return a training config for each of `numbers`.

    Args:
        history: the value of `Search.history` when the suggestions were requested.
        numbers: suggestion numbers, ascending.
        seed: seed for the run's suggestions. Each number has its own generator.
        own: the object of an `OwnSampler`.

    Raises:
        SearchError: an own sampler suggested something impossible.
    """
    num_earlier = sum(past.is_earlier for past in history)
    # An earlier fit with the same seed has drawn the first random values.
    start = f"{seed}/after {num_earlier}" if num_earlier else f"{seed}"
    rest = [full_configuration(space, f"{start}/{number}") for number in numbers]
    values = _suggested(choice, varying(space), history, numbers, seed, own=own)
    return [applicable(space, {**one, **found}) for one, found in zip(rest, values, strict=True)]


def _suggested(
    choice: contract.Sampler,
    dimensions: Mapping[str, Distribution],
    history: Sequence[Past],
    numbers: Sequence[int],
    seed: int,
    *,
    own: Sampler | None,
) -> list[Hyperparameters]:
    """Return the sampler's values for each number, or none if random values apply."""
    at_random: list[Hyperparameters] = [{} for _ in numbers]
    if isinstance(choice, RandomSampler) or not dimensions:
        return at_random
    known = within(history, dimensions)
    match choice:
        case CMA():
            from cerebro.search.samplers.cma import cma_suggestions

            return cma_suggestions(choice, dimensions, known, numbers, seed)
        case TPE() | GP():
            from cerebro.search.samplers.optuna_study import optuna_suggestions

            observed = observations(known, len(dimensions) + MORE)
            if observed is None or num_measured(known) < choice.startup:
                return at_random
            return optuna_suggestions(choice, dimensions, observed, numbers, seed)
        case OwnSampler():
            assert own is not None
            return CheckedSampler(own, choice.name).suggest(dimensions, known, numbers, seed)
