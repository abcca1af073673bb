"""The contract suite of samplers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cerebro.client.search.requests import search_request
from cerebro.client.search.space import space_data
from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import OwnSampler, Random, RandomSampler, Space
from cerebro.errors import SearchError
from cerebro.search.history import Past
from cerebro.search.samplers import suggest
from cerebro.search.samplers.own import Sampler
from cerebro.testing.conditions import note_conditions, spaces_of
from cerebro.testing.simulated_run import score
from cerebro.usercode.encoding import decode

_ROUNDS = 8
_WIDTH = 4
_EPOCHS = 3


def check_sampler(make: Callable[[], Sampler], space: Mapping[str, Any]) -> None:
    """Request suggestions of a sampler, and check them.

    It checks:

    - *objects*: each object has the method of `cerebro.search.Sampler` and can be sent to a worker;
    - *values*: each suggestion has a value of the space for each hyperparameter, for histories with running, failed
      and measured models, also in a variant of the space in which only some models have one of the hyperparameters
      (`when`);
    - *repetition*: a copy on another worker returns the same suggestions for the same request.

    Args:
        make: returns a new sampler, such as its class.
        space: search space as of `Experiment.run_fit`.

    Raises:
        SearchError: the sampler does not conform; the message has the suggestion.

    Example:
        >>> import random
        >>> from cerebro import choice
        >>> class Coarse:
        ...     def suggest(self, space, history, numbers, seed):
        ...         rng = random.Random(f"{seed}/{numbers[0]}")
        ...         return [{name: rng.choice(each.values) for name, each in space.items()} for _ in numbers]
        >>> check_sampler(Coarse, {"lr": choice([0.1, 0.01]), "batch_size": 32})
    """
    codes: dict[str, str] = {}

    def put_code(code: Any) -> Any:
        codes[code.sha256] = code.encoded
        return code

    request = search_request(
        space, search=Random(sampler=make()), samples=_ROUNDS * _WIDTH, epochs=_EPOCHS, put_code=put_code
    )
    assert request is not None
    choice = request.sampler
    if not isinstance(choice, OwnSampler):
        raise SearchError(
            f"{choice!r} is one of cerebro's samplers, expected an object of a class of your own"
        )
    for data in spaces_of(space_data(space)):
        with note_conditions(data):
            _check_space(choice, codes, data)


def _check_space(choice: OwnSampler, codes: Mapping[str, str], data: Space) -> None:
    history: list[Past] = []
    for start in range(0, _ROUNDS * _WIDTH, _WIDTH):
        numbers = range(start, start + _WIDTH)
        for known in (history, _measured(data, start)):
            found, again = (
                suggest(choice, data, known, numbers, 7, own=decode(codes[choice.code])) for _ in range(2)
            )
            if found != again:
                place = next(n for n in range(_WIDTH) if found[n] != again[n])
                raise SearchError(
                    f"two copies of {choice.name} returned other suggestions for the same request, such as "
                    f"{found[place]} and {again[place]}. Suggestions may depend only on the arguments; random numbers "
                    "come from the seed and the number"
                )
        history = [*map(_trained, history), *(Past(hyperparams=each) for each in found)]


def _measured(space: Any, count: int) -> list[Past]:
    """Return models of any origin, such as a user's, trained for several epochs."""
    drawn = suggest(RandomSampler(), space, (), range(1000, 1000 + count), 7)
    return [_trained(Past(hyperparams=each), epochs=1 + n % _EPOCHS) for n, each in enumerate(drawn)]


def _trained(past: Past, epochs: int = 1) -> Past:
    """Train a running model for some epochs; one in eight fails in the first."""
    if not past.is_running:
        return past
    first = max(past.scores, default=0) + 1
    new = _scores(past.hyperparams, range(first, first + epochs))
    if round(1000 * new[first]) % 8 == 0:
        return replace(past, is_failed=True, is_running=False)
    scores = {**past.scores, **new}
    return replace(past, scores=scores, is_running=max(scores) < _EPOCHS)


def _scores(hyperparams: Hyperparameters, epochs: Sequence[int]) -> dict[int, float]:
    return {epoch: score(hyperparams, epoch) for epoch in epochs}
