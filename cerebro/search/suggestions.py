"""Requests for suggestions (`SuggestionsRequest`), and `values_for`, which answers them with a sampler.

The controller's search source builds requests. It answers those of the random sampler itself. Others go to its
suggestion process, or to a worker if the controller lacks the sampler's libraries (`installed_samplers`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib.util import find_spec

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import Sampler, Space
from cerebro.contract.search_tasks import KnownModel, SuggestionsRequest
from cerebro.errors import SearchError
from cerebro.search.history import Past
from cerebro.search.samplers import suggest

_NEEDS: dict[str, tuple[str, ...]] = {
    "random": (),
    "tpe": ("optuna",),
    "gp": ("optuna", "scipy", "torch"),
    "cma": ("cmaes",),
}
"""Kind of sampler -> modules it imports."""


def installed_samplers() -> frozenset[str]:
    """Return the kinds of samplers with installed libraries. Does not import these libraries."""
    return frozenset(kind for kind, needed in _NEEDS.items() if not missing(needed))


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
            is_failed=past.is_failed,
            is_running=past.is_running,
        )
        for past in history
    )
    return SuggestionsRequest(
        sampler=sampler, space=space, history=tuple(known), numbers=tuple(numbers), seed=seed
    )


def values_for(request: SuggestionsRequest) -> list[Hyperparameters]:
    """Return hyperparameters for each number of the request.

    Raises:
        SearchError: a library of the sampler is not installed.
    """
    history = [Past(**known.model_dump()) for known in request.history]
    try:
        return suggest(request.sampler, request.space, history, request.numbers, request.seed)
    except ImportError as error:
        kind = request.sampler.kind
        raise SearchError(
            f"the sampler {kind!r} needs {', '.join(_NEEDS[kind])}, and a library is missing there ({error}): "
            "install the groups 'search' and 'worker' on the workers, as in pip install "
            "'cerebro-platform[search,worker]', and resume the run; or search without `sampler`"
        ) from error
