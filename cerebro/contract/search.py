"""Searches of a fit: space, sampler, procedure and stop rules, as users write them and events store them. Types only.

Users create most classes directly (`cerebro.ASHA`, `cerebro.TPE`, ...); `cerebro.client.search` builds the request.
`cerebro.search` implements procedures, rules and samplers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    Field,
    FiniteFloat,
    JsonValue,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
)
from pydantic_core import PydanticCustomError

from cerebro.contract.base import Contract, Sha256
from cerebro.contract.values import require_finite
from cerebro.errors import SearchError

MAX_CONFIGURATIONS = 100_000
"""Limit of a list or grid, of the values of one hyperparameter, and of the models that a search trains at once."""

# --- the space ----------------------------------------------------------------------------------


class _Distribution(Contract):
    """A distribution of one hyperparameter.

    Attributes:
        when: conditions, as earlier hyperparameter -> values. The hyperparameter exists only in training configs that
            have one of these values for each of them.
    """

    when: dict[str, tuple[JsonValue, ...]] = Field(default_factory=dict, exclude_if=lambda when: not when)

    def applies(self, values: Mapping[str, JsonValue]) -> bool:
        """Return True if the values of the earlier hyperparameters meet the conditions."""
        return all(name in values and is_among(values[name], allowed) for name, allowed in self.when.items())


class Uniform(_Distribution):
    """A number between `low` and `high`; with `step`, one of low, low + step, ..., high."""

    kind: Literal["uniform"] = "uniform"
    low: FiniteFloat
    high: FiniteFloat
    step: float | None = Field(None, gt=0, allow_inf_nan=False, exclude_if=lambda step: step is None)


class LogUniform(_Distribution):
    """A positive number whose logarithm is uniform."""

    kind: Literal["loguniform"] = "loguniform"
    low: float = Field(gt=0, allow_inf_nan=False)
    high: FiniteFloat


class RandInt(_Distribution):
    """An integer from `low` to `high`, both included.

    Attributes:
        step: distance of the values: low, low + step, ..., high.
        log: True if the logarithm is uniform, as for widths. Then `step` is 1.
    """

    kind: Literal["randint"] = "randint"
    low: int
    high: int
    step: int = Field(1, ge=1, exclude_if=lambda step: step == 1)
    log: bool = Field(False, exclude_if=lambda log: not log)


class ChoiceOf(_Distribution):
    """One of `values`; a single value is fixed."""

    kind: Literal["choice"] = "choice"
    values: tuple[Annotated[JsonValue, AfterValidator(require_finite)], ...] = Field(min_length=1)


Distribution = Annotated[Uniform | LogUniform | RandInt | ChoiceOf, Field(discriminator="kind")]

Space = dict[str, Distribution]
"""Distributions by hyperparameter, in the user's order. Conditions refer to earlier ones."""


def is_among(value: JsonValue, values: Collection[JsonValue]) -> bool:
    """Return True if `values` has an equal value; true and 1 differ."""
    return any(each == value and isinstance(each, bool) == isinstance(value, bool) for each in values)


# --- parts that users write ---------------------------------------------------------------------


_Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Written(Contract):
    """Base of classes that users create: a wrong argument raises `SearchError`."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name, reason = str(first["loc"][0]), first["msg"][:1].lower() + first["msg"][1:]
            if first["type"] == "extra_forbidden":
                known = ", ".join(sorted(type(self).model_fields.keys() - {"kind"}))
                reason = f"no such option; {type(self).__name__} has {known or 'none'}"
            raise SearchError(f"{type(self).__name__}({name}={values.get(name)!r}): {reason}") from error


# --- samplers ----------------------------------------------------------------------------------


class _Sampler(_Written):
    """A sampler.

    Attributes:
        needs: modules that it imports.
        words: how it suggests, for people.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    words: ClassVar[str]


class RandomSampler(_Sampler):
    """Independent random values."""

    kind: Literal["random"] = "random"
    words = "at random"


class TPE(_Sampler):
    """A tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011), for spaces of any kind.

    Attributes:
        startup: number of measured models before the estimator is used; earlier suggestions are independent.
        candidates: random values for each hyperparameter; the estimator takes the best.
    """

    kind: Literal["tpe"] = "tpe"
    needs = ("optuna",)
    words = "by TPE"
    startup: int = Field(default=20, ge=1)
    candidates: int = Field(default=24, ge=1)


class GP(_Sampler):
    """A Gaussian process, for few models that train long: a suggestion takes seconds.

    Attributes:
        startup: as in `TPE`.
    """

    kind: Literal["gp"] = "gp"
    needs = ("optuna", "scipy", "torch")
    words = "by a Gaussian process"
    startup: int = Field(default=10, ge=1)


class CMA(_Sampler):
    """CMA-ES (Hansen, 2016), for two or more numbers and no choices.

    Attributes:
        sigma: initial standard deviation, as a fraction of each range.
        population: suggestions per generation; `None`: 4 + floor(3 ln d) for d numbers.
    """

    kind: Literal["cma"] = "cma"
    needs = ("cmaes",)
    words = "by CMA-ES"
    sigma: float = Field(default=0.3, gt=0, le=1)
    population: int | None = Field(default=None, ge=3)


class OwnSampler(_Sampler):
    """A class of the user or of a package (`cerebro.search.Sampler`), which workers run.

    Attributes:
        code: hash of the encoded object.
        name: name of the class, for people.
    """

    kind: Literal["own"] = "own"
    code: Sha256
    name: str = Field(min_length=1)


BuiltInSampler = RandomSampler | TPE | GP | CMA

SAMPLERS: dict[str, type[BuiltInSampler]] = {
    "random": RandomSampler,
    "tpe": TPE,
    "gp": GP,
    "cma": CMA,
}
"""The built-in samplers, by kind."""


def _keep_own(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """Keep an object with the method `suggest`: the client replaces it by an `OwnSampler`."""
    if not hasattr(value, "suggest"):
        return handler(value)
    if isinstance(value, type):
        raise ValueError(f"expected an object, {value.__name__}()")
    return value


Sampler = Annotated[BuiltInSampler | OwnSampler, Field(discriminator="kind")]

if TYPE_CHECKING:
    _GivenSampler = Any
else:
    _GivenSampler = Annotated[Sampler, WrapValidator(_keep_own)]
"""A sampler as users pass it: one of Cerebro's, or an object with the method of `cerebro.search.Sampler`."""

# --- procedures: which models train how far -----------------------------------------------------


class _Procedure(_Written):
    """A procedure.

    Attributes:
        version: version of its decisions; only the version that began a log can continue it.
    """

    version: int = Field(default=1, ge=1)


class FixedProcedure(_Procedure):
    """Train all models of the request for all epochs. Only stop rules end a model early."""

    kind: Literal["fixed"] = "fixed"


class Random(_Procedure):
    """Train each suggestion for all epochs, and start a new model when one ends.

    Attributes:
        sampler: source of the values.
        active: number of models in training at a time; `None`: two for each worker.
    """

    kind: Literal["random"] = "random"
    sampler: _GivenSampler = RandomSampler()
    active: int | None = Field(default=None, ge=1, le=MAX_CONFIGURATIONS)


class Hyperband(_Procedure):
    """Successive halving in overlapping brackets (Li et al., JMLR 18, 2018); with ``sampler=TPE()`` it is BOHB.

    Attributes:
        first: epochs of the lowest rung.
        eta: factor between rungs: epochs times `eta`, models divided by `eta`.
        brackets: number of brackets, those with most models first; `None`: all.
        sampler: source of the values.
    """

    kind: Literal["hyperband"] = "hyperband"
    first: int = Field(default=1, ge=1)
    eta: int = Field(default=3, ge=2)
    brackets: int | None = Field(default=None, ge=1)
    sampler: _GivenSampler = RandomSampler()


class ASHA(_Procedure):
    """Asynchronous successive halving (Li et al., MLSys 2020).

    Attributes:
        first, eta: as in `Hyperband`.
        rule: ``"stopping"``: a model continues past a rung if it is among the best 1/eta that have reached the rung,
            else it stops; ``"promotion"``: it pauses, and continues once it is among them.
        brackets: each has one rung less than the one before; a model's is random, weighted by Hyperband's sizes.
        active: number of models in training at a time; `None`: two for each worker.
        sampler: source of the values.
    """

    kind: Literal["asha"] = "asha"
    first: int = Field(default=1, ge=1)
    eta: int = Field(default=3, ge=2)
    rule: Literal["stopping", "promotion"] = "stopping"
    brackets: int = Field(default=1, ge=1)
    active: int | None = Field(default=None, ge=1, le=MAX_CONFIGURATIONS)
    sampler: _GivenSampler = RandomSampler()


class PBT(_Procedure):
    """Population-based training (Jaderberg et al., 2017): changed clones of the best replace the worst.

    Attributes:
        population: number of models in training at a time.
        every: epochs of a generation.
        quantile: fraction of the population that is replaced after each generation.
        perturb: hyperparameter -> factors; a clone gets a random one. It multiplies a number by the factor and keeps
            it in its range; a choice moves to the previous (a factor below 1) or next value. By default
            `run_fit` uses 0.8 and 1.25 for `uniform` and `loguniform` hyperparameters. A clone starts with
            trained weights, so omit hyperparameters that change their shapes.
    """

    kind: Literal["pbt"] = "pbt"
    population: int = Field(default=16, ge=2, le=MAX_CONFIGURATIONS)
    every: int = Field(default=1, ge=1)
    quantile: float = Field(default=0.25, gt=0, le=0.5)
    perturb: Mapping[str, Annotated[Sequence[_Factor], Field(min_length=1), AfterValidator(tuple)]] = Field(
        default_factory=dict
    )


class OwnProcedure(_Procedure):
    """A class of the user (`cerebro.search.Procedure`), which workers run.

    Attributes:
        code: hash of the encoded object.
        name: name of the class, for people.
        sampler: source of the values.
    """

    kind: Literal["own"] = "own"
    code: Sha256
    name: str = Field(min_length=1)
    sampler: _GivenSampler = RandomSampler()


ProcedureChoice = Annotated[
    FixedProcedure | Random | Hyperband | ASHA | PBT | OwnProcedure, Field(discriminator="kind")
]

# --- stop rules: which models stop early, under any procedure -----------------------------------


class Plateau(_Written):
    """Stop a model whose metric has not improved by more than `least` in `epochs` epochs."""

    kind: Literal["plateau"] = "plateau"
    epochs: int = Field(default=3, ge=1)
    least: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    def __init__(self, epochs: int = 3, least: float = 0.0, **kind: Any) -> None:
        super().__init__(epochs=epochs, least=least, **kind)


class Median(_Written):
    """Stop a model whose best value is worse than the median of the others' means up to the same epoch.

    As in Golovin et al., *Google Vizier*, KDD 2017, section 3.2.2.

    Attributes:
        grace: epochs before a model may be stopped.
        least: number of other models that must have reached the same epoch.
    """

    kind: Literal["median"] = "median"
    grace: int = Field(default=1, ge=1)
    least: int = Field(default=3, ge=1)

    def __init__(self, grace: int = 1, least: int = 3, **kind: Any) -> None:
        super().__init__(grace=grace, least=least, **kind)


class Above(_Written):
    """Stop a model when `metric` is above `limit` after an epoch."""

    kind: Literal["above"] = "above"
    metric: str = Field(min_length=1)
    limit: FiniteFloat

    def __init__(self, metric: str = "", limit: float = math.nan, **kind: Any) -> None:
        super().__init__(metric=metric, limit=limit, **kind)


class Below(_Written):
    """Stop a model when `metric` is below `limit` after an epoch."""

    kind: Literal["below"] = "below"
    metric: str = Field(min_length=1)
    limit: FiniteFloat

    def __init__(self, metric: str = "", limit: float = math.nan, **kind: Any) -> None:
        super().__init__(metric=metric, limit=limit, **kind)


StopRule = Annotated[Plateau | Median | Above | Below, Field(discriminator="kind")]

# --- repeats -------------------------------------------------------------------------------------


class Repeat(_Written):
    """Train the best models of a fit again with new seeds.

    Attributes:
        top: number of models, the best by the fit's metric.
        seeds: number of new seeds for each of them.

    Example:
        >>> from cerebro import Repeat
        >>> Repeat(top=2, seeds=5).seeds
        5
        >>> Repeat(seeds=1)
        Traceback (most recent call last):
            ...
        cerebro.errors.SearchError: Repeat(seeds=1): input should be greater than or equal to 2
    """

    top: int = Field(default=3, ge=1, le=1000)
    seeds: int = Field(default=5, ge=2, le=100)


# --- earlier runs --------------------------------------------------------------------------------


class Earlier(_Written):
    """An ended fit whose models a sampler learns from, for ``Search(start_from=...)``.

    Attributes:
        run: experiment and run, as ``"digits/fit-1"``.
        any_code: True to accept a fit of another spec.
        any_data: True to accept a fit on another data set.

    Example:
        >>> from cerebro import ASHA, TPE, Earlier, Search
        >>> Search(ASHA(sampler=TPE()), start_from=Earlier("digits/fit-1", any_data=True)).start_from
        (Earlier(run='digits/fit-1', any_code=False, any_data=True),)
        >>> Earlier("digits")
        Traceback (most recent call last):
            ...
        cerebro.errors.SearchError: Earlier(run='digits'): expected EXPERIMENT/RUN, such as digits/fit-1
    """

    run: str
    any_code: bool = Field(False, exclude_if=lambda value: not value)
    any_data: bool = Field(False, exclude_if=lambda value: not value)

    def __init__(self, run: str = "", **flags: Any) -> None:
        super().__init__(run=run, **flags)

    @field_validator("run")
    @classmethod
    def _has_two_names(cls, run: str) -> str:
        if not _RUN_NAME.fullmatch(run):
            raise PydanticCustomError("run_name", "expected EXPERIMENT/RUN, such as digits/fit-1")
        return run

    @property
    def names(self) -> tuple[str, str]:
        """Experiment and run."""
        experiment, _, run = self.run.partition("/")
        return experiment, run


_RUN_NAME = re.compile(r"[a-z0-9-]{1,50}/[a-z0-9-]{1,50}")

# --- requests ------------------------------------------------------------------------------------


class SearchRequest(Contract):
    """Rules by which a fit adds and stops models.

    Attributes:
        space: space of the suggestions; a fixed procedure has no space.
        samples: maximum number of suggestions; `None`: limited by the procedure or `hours`.
        stop: stop rules; each one applies to every model.
        hours: hours, by the times of events, after which all models stop and the search ends.
        keep: number of best models that keep their checkpoints after training; `None`: all.
        start_from: earlier fits that the sampler learns from.
    """

    procedure: ProcedureChoice
    space: Space = Field(default_factory=dict)
    samples: int | None = Field(default=None, ge=1)
    stop: tuple[StopRule, ...] = ()
    hours: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    keep: int | None = Field(default=None, ge=1, exclude_if=lambda keep: keep is None)
    start_from: tuple[Earlier, ...] = Field((), exclude_if=lambda earlier: not earlier)

    @property
    def sampler(self) -> Sampler:
        """The procedure's sampler; independent random values for a procedure without one."""
        procedure = self.procedure
        return RandomSampler() if isinstance(procedure, FixedProcedure | PBT) else procedure.sampler
