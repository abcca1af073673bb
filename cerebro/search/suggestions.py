"""Requests for suggestions (`SuggestionsRequest`), and `values_for`, which answers them with a sampler.

The controller's search source builds requests. It answers requests to the random sampler itself. Others go to its
suggestion process, or to a worker if the controller lacks the sampler's libraries (`installed_samplers`). A worker
runs a user's own sampler.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from importlib.util import find_spec
from typing import Any

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import SAMPLERS, OwnSampler, Sampler, Space
from cerebro.contract.search_tasks import KnownModel, SuggestionsRequest
from cerebro.errors import SearchError
from cerebro.search.history import Past
from cerebro.search.pareto import Point
from cerebro.search.samplers import suggest


def installed_samplers() -> frozenset[str]:
    """Return the kinds of samplers with installed libraries. Does not import these libraries."""
    return frozenset(kind for kind, sampler in SAMPLERS.items() if not missing(sampler.needs))


def missing(modules: Collection[str]) -> list[str]:
    """Return the modules that are not installed."""
    return [name for name in modules if find_spec(name) is None]


def suggestions_request(
    sampler: Sampler, space: Space, history: Sequence[Past], numbers: range, seed: int
) -> SuggestionsRequest:
    """Build the request that `values_for` answers. Arguments as for `suggest`."""
    known = (
        KnownModel(
            hyperparams=past.hyperparams,
            scores=dict(past.scores),
            points=dict(past.points),
            is_failed=past.is_failed,
            is_running=past.is_running,
            is_earlier=past.is_earlier,
        )
        for past in history
    )
    return SuggestionsRequest(
        sampler=sampler, space=space, history=tuple(known), numbers=tuple(numbers), seed=seed
    )


def values_for(
    request: SuggestionsRequest, opened: Callable[[str], Any] | None = None
) -> list[Hyperparameters]:
    """Return hyperparameters for each number of the request.

    Args:
        opened: returns the decoded object of an own sampler for its hash. Runs user code; only for child processes.

    Raises:
        SearchError: a library of the sampler is not installed, or an own sampler suggested something impossible.
        Exception: any exception of user code.
    """
    sampler, own_sampler = request.sampler, None
    history = [
        Past(
            hyperparams=known.hyperparams,
            scores=known.scores,
            points={epoch: Point(*each) for epoch, each in known.points.items()},
            is_failed=known.is_failed,
            is_running=known.is_running,
            is_earlier=known.is_earlier,
        )
        for known in request.history
    ]
    if isinstance(sampler, OwnSampler):
        if opened is None:
            raise SearchError(f"the sampler {sampler.name} is user code, which only workers run")
        own_sampler = opened(sampler.code)
    try:
        return suggest(sampler, request.space, history, request.numbers, request.seed, own=own_sampler)
    except ImportError as error:
        if own_sampler is not None:
            raise
        raise SearchError(
            f"the sampler {sampler.kind!r} needs {', '.join(sampler.needs)}, and a library is missing there ({error}): "
            "install the groups 'search' and 'worker' on the workers, as in pip install "
            "'cerebro-platform[search,worker]', and resume the run; or search without `sampler`"
        ) from error
