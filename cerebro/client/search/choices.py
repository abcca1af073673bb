"""Procedures, samplers and stop rules as a user writes them: what `run_fit` takes as `search=` and `stop=`.

Each checks what it can by itself when it is made; what depends on the run is checked by `search_request`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from cerebro.contract.search import (
    MAX_CONFIGURATIONS,
    AboveRule,
    BelowRule,
    CmaSampler,
    GpSampler,
    MedianRule,
    PlateauRule,
    RandomSampler,
    SamplerChoice,
    TpeSampler,
)
from cerebro.errors import SearchError
from cerebro.search.procedure import Procedure

# --- samplers -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TPE:
    """A tree-structured Parzen estimator (Bergstra et al., 2011), for spaces of any kind.

    Args:
        startup: draws are random until so many models have been measured.
    """

    startup: int = 20

    def __post_init__(self) -> None:
        _whole("TPE", "startup", self.startup)

    def data(self) -> SamplerChoice:
        """As it travels."""
        return TpeSampler(startup=self.startup)


@dataclass(frozen=True, kw_only=True)
class GP:
    """A Gaussian process, for few models that train long: a draw takes seconds. `startup` as in `TPE`."""

    startup: int = 10

    def __post_init__(self) -> None:
        _whole("GP", "startup", self.startup)

    def data(self) -> SamplerChoice:
        """As it travels."""
        return GpSampler(startup=self.startup)


@dataclass(frozen=True, kw_only=True)
class CMA:
    """CMA-ES (Hansen, 2016), for two numbers or more and no choices.

    Args:
        sigma: the initial standard deviation, as a share of each range.
        population: draws of a generation; left out: 4 + floor(3 ln d) for d numbers.
    """

    sigma: float = 0.3
    population: int | None = None

    def __post_init__(self) -> None:
        _number("CMA", "sigma", self.sigma, above=0, most=1)
        if self.population is not None:
            _whole("CMA", "population", self.population, least=3)

    def data(self) -> SamplerChoice:
        """As it travels."""
        return CmaSampler(sigma=self.sigma, population=self.population)


@dataclass(frozen=True, kw_only=True)
class Random:
    """As ``search=``: each draw is trained to the end, new ones as old ones end. As ``sampler=``: independent draws.

    Args:
        sampler: of the procedure; left out: independent draws.
        active: so many models are trained at a time; left out: two for each worker.
    """

    sampler: TPE | GP | CMA | Random | None = None
    active: int | None = None

    def __post_init__(self) -> None:
        if self.sampler is not None:
            _sampler("Random", self.sampler)
        if self.active is not None:
            _whole("Random", "active", self.active, most=MAX_CONFIGURATIONS)

    def data(self) -> SamplerChoice:
        """As it travels, as a sampler."""
        return RandomSampler() if self.sampler is None else self.sampler.data()


Sampler = Random | TPE | GP | CMA

# --- procedures ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Hyperband:
    """Successive halving in brackets (Li et al., JMLR 2018), which overlap. With ``sampler=TPE()`` it is BOHB.

    Args:
        first: epochs of the lowest rung.
        eta: from one rung to the next: epochs times `eta`, models divided by `eta`.
        brackets: how many, those with most models first.
    """

    first: int = 1
    eta: int = 3
    brackets: int | Literal["all"] = "all"
    sampler: Sampler = field(default_factory=Random)

    def __post_init__(self) -> None:
        _rungs("Hyperband", self.first, self.eta)
        if self.brackets != "all":
            _whole("Hyperband", "brackets", self.brackets)
        _sampler("Hyperband", self.sampler)


@dataclass(frozen=True, kw_only=True)
class ASHA:
    """Successive halving that waits for nobody (Li et al., MLSys 2020).

    Args:
        first, eta: as in `Hyperband`.
        kind: ``"stopping"``: a model goes on from a rung if it is among the best 1/eta that have come there so far,
            else it is stopped and another one begins. ``"promotion"``: it pauses, and goes on when it is among them.
        brackets: each begins a rung higher than the one before.
        active: so many models are trained at a time; left out: two for each worker.
    """

    first: int = 1
    eta: int = 3
    kind: Literal["stopping", "promotion"] = "stopping"
    brackets: int = 1
    active: int | None = None
    sampler: Sampler = field(default_factory=Random)

    def __post_init__(self) -> None:
        _rungs("ASHA", self.first, self.eta)
        if self.kind not in ("stopping", "promotion"):
            raise SearchError(f"ASHA(kind={self.kind!r}): use 'stopping' or 'promotion'")
        _whole("ASHA", "brackets", self.brackets)
        if self.active is not None:
            _whole("ASHA", "active", self.active, most=MAX_CONFIGURATIONS)
        _sampler("ASHA", self.sampler)


@dataclass(frozen=True, kw_only=True)
class PBT:
    """Population-based training (Jaderberg et al., 2017): the worst are replaced by changed clones of the best.

    Args:
        population: models that are trained at a time.
        every: epochs of a generation.
        quantile: share of the population that is replaced after each generation.
        perturb: hyper-parameter -> factors, of which a clone draws one: a number is multiplied by it and stays in its
            range, a choice takes the value before it (a factor below 1) or after it. Left out: all that are drawn by
            `uniform` or `loguniform`, by 0.8 or 1.25. A clone begins with trained weights: leave out what changes
            their shapes.
    """

    population: int = 16
    every: int = 1
    quantile: float = 0.25
    perturb: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _whole("PBT", "population", self.population, least=2, most=MAX_CONFIGURATIONS)
        _whole("PBT", "every", self.every)
        _number("PBT", "quantile", self.quantile, above=0, most=0.5)
        if not isinstance(self.perturb, Mapping):
            raise SearchError(
                f'PBT(perturb={self.perturb!r}): give factors by name, as in {{"lr": [0.8, 1.25]}}'
            )
        for name, factors in self.perturb.items():
            is_list = isinstance(factors, list | tuple) and bool(factors)
            if not is_list or not all(_is_number(factor) and factor > 0 for factor in factors):
                raise SearchError(
                    f"PBT(perturb=...): {name!r} has {factors!r}, expected positive factors, as in [0.8, 1.25]"
                )


BuiltIn = Random | Hyperband | ASHA | PBT
ProcedureOfUser = BuiltIn | Procedure

# --- stop rules ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plateau:
    """Stop a model whose metric has not improved by more than `least` in `epochs` epochs."""

    epochs: int = 3
    least: float = 0.0

    def __post_init__(self) -> None:
        _whole("Plateau", "epochs", self.epochs)
        if not _is_number(self.least) or self.least < 0:
            raise SearchError(f"Plateau(least={self.least!r}): expected a number of at least 0")

    def data(self) -> PlateauRule:
        """As it travels."""
        return PlateauRule(epochs=self.epochs, least=self.least)


@dataclass(frozen=True)
class Median:
    """Stop a model whose best value is worse than the median of the others' means up to the same epoch.

    Args:
        grace: epochs for which no model is stopped.
        least: so many others must have reached the same epoch.
    """

    grace: int = 1
    least: int = 3

    def __post_init__(self) -> None:
        _whole("Median", "grace", self.grace)
        _whole("Median", "least", self.least)

    def data(self) -> MedianRule:
        """As it travels."""
        return MedianRule(grace=self.grace, least=self.least)


@dataclass(frozen=True)
class Above:
    """Stop a model when `metric` is above `limit` after an epoch."""

    metric: str
    limit: float

    def __post_init__(self) -> None:
        _limit("Above", self.metric, self.limit)

    def data(self) -> AboveRule:
        """As it travels."""
        return AboveRule(metric=self.metric, limit=self.limit)


@dataclass(frozen=True)
class Below:
    """Stop a model when `metric` is below `limit` after an epoch."""

    metric: str
    limit: float

    def __post_init__(self) -> None:
        _limit("Below", self.metric, self.limit)

    def data(self) -> BelowRule:
        """As it travels."""
        return BelowRule(metric=self.metric, limit=self.limit)


Rule = Plateau | Median | Above | Below

# --- checks -------------------------------------------------------------------------------------


def _whole(owner: str, name: str, value: object, *, least: int = 1, most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SearchError(f"{owner}({name}={value!r}): expected a whole number of at least {least}")
    if most is not None and value > most:
        raise SearchError(f"{owner}({name}={value!r}): expected a whole number of at most {most:,}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(owner: str, name: str, value: float, *, above: float, most: float) -> None:
    if not _is_number(value) or not above < value <= most:
        raise SearchError(
            f"{owner}({name}={value!r}): expected a number above {above:g} and at most {most:g}"
        )


def _rungs(owner: str, first: int, eta: int) -> None:
    _whole(owner, "first", first)
    _whole(owner, "eta", eta, least=2)


def sampler_of(procedure: Procedure) -> Sampler:
    """What a procedure of the user's own names as its `sampler`, if it does.

    Raises:
        SearchError: it is none.
    """
    found = getattr(procedure, "sampler", None) or Random()
    _sampler(type(procedure).__name__, found)
    return cast(Sampler, found)


def _sampler(owner: str, value: object) -> None:
    if not isinstance(value, Sampler):
        raise SearchError(
            f"{owner}(sampler={value!r}): expected one of cerebro's samplers, as in sampler=TPE()"
        )
    if isinstance(value, Random) and value != Random():
        raise SearchError(
            f"{owner}(sampler={value!r}): as a sampler Random() has no arguments; give {owner} the sampler itself"
        )


def _limit(owner: str, metric: object, limit: float) -> None:
    if not isinstance(metric, str) or not metric:
        raise SearchError(f'{owner}({metric!r}, ...): give the name of a metric, as in {owner}("loss", 20)')
    if not _is_number(limit):
        raise SearchError(f"{owner}({metric!r}, {limit!r}): expected a finite number as the limit")


RuleOfUser = Plateau | Median | Above | Below
