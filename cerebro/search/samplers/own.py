"""The interface of a user's own sampler (`Sampler`), and the check of its suggestions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import Distribution
from cerebro.errors import SearchError
from cerebro.search.history import Past
from cerebro.search.samplers.dimensions import exact, outside


class Sampler(Protocol):
    """Suggests the hyperparameters of a search's next models; for ``sampler=`` of a procedure.

    Workers run it. Suggestions may depend only on the arguments: after a crash they are requested again.

    Example:
        >>> import random
        >>> from cerebro import ASHA
        >>> class Coarse:
        ...     def suggest(self, space, history, numbers, seed):
        ...         return [self.one(space, random.Random(f"{seed}/{number}")) for number in numbers]
        ...     def one(self, space, rng):
        ...         return {name: rng.choice([each.low, each.high]) for name, each in space.items()}
        >>> type(ASHA(sampler=Coarse()).sampler).__name__
        'Coarse'
    """

    def suggest(
        self, space: Mapping[str, Distribution], history: Sequence[Past], numbers: Sequence[int], seed: int
    ) -> Sequence[Hyperparameters]:
        """Return values of all hyperparameters in `space`, for each number.

        Values of hyperparameters whose conditions (`when`) are not met are optional and ignored.

        Args:
            space: distributions by name: `Uniform`, `LogUniform` and `RandInt` have `low` and `high`, `ChoiceOf` has
                `values`; `Uniform` and `RandInt` may have a `step`, `RandInt` may be `log`. `when` has conditions, as
                earlier hyperparameter -> values. Without hyperparameters that have one value.
            history: models so far, without models whose values are outside the space. A model lacks hyperparameters
                whose conditions it doesn't meet.
            numbers: numbers of the suggestions, ascending over the search.
            seed: seed of the search.
        """
        ...


class CheckedSampler:
    """A user's own sampler whose suggestions are checked.

    Args:
        sampler: the user's object.
        name: name of its class, for errors.
    """

    def __init__(self, sampler: Any, name: str) -> None:
        self._sampler, self._name = sampler, name

    def suggest(
        self, space: Mapping[str, Distribution], history: Sequence[Past], numbers: Sequence[int], seed: int
    ) -> list[Hyperparameters]:
        """Return the suggestions of the user's object.

        Raises:
            SearchError: the number of suggestions, a name or a value is wrong.
            Exception: any exception of user code.
        """
        found = self._sampler.suggest(dict(space), tuple(history), tuple(numbers), seed)
        call = f"{self._name}.suggest()"
        if not isinstance(found, Sequence) or not all(isinstance(each, Mapping) for each in found):
            raise SearchError(
                f"{call} returned {str(found)[:200]}: expected a list with a dict for each number"
            )
        if len(found) != len(numbers):
            raise SearchError(f"{call} returned {len(found)} suggestions for {len(numbers)} numbers")
        suggestions = []
        for suggested in found:
            each = exact(dict(suggested), space)
            suggestions.append(each)
            needed = {name for name, distribution in space.items() if not distribution.when}
            if not needed <= each.keys() <= space.keys():
                raise SearchError(
                    f"{call} returned values of {', '.join(map(str, each)) or 'nothing'}: expected values of "
                    f"{', '.join(space)}"
                )
            if wrong := outside(each, space):
                if wrong not in each:
                    raise SearchError(
                        f"{call} returned {each} without {wrong}: add its value, because its conditions "
                        f"{space[wrong].when} are met"
                    )
                raise SearchError(
                    f"{call} returned {wrong}={each[wrong]!r}, which is not a value of {space[wrong]!r}: an integer "
                    "for randint(), one of the values for choice(), else a float in the range"
                )
        return suggestions
