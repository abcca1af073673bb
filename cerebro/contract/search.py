"""Searches: the space, the sampler, the procedure and the stop rules that a fit is asked to use. All of it is data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, FiniteFloat, JsonValue

from cerebro.contract.base import Contract, Sha256
from cerebro.contract.values import require_finite

MAX_CONFIGURATIONS = 100_000
"""Limit of a list or grid, of the values of one hyperparameter, and of the models that a search trains at once."""

# --- the space ----------------------------------------------------------------------------------


class Uniform(Contract):
    """A number between `low` and `high`."""

    kind: Literal["uniform"] = "uniform"
    low: FiniteFloat
    high: FiniteFloat


class LogUniform(Contract):
    """A positive number whose logarithm is uniform."""

    kind: Literal["loguniform"] = "loguniform"
    low: float = Field(gt=0, allow_inf_nan=False)
    high: FiniteFloat


class RandInt(Contract):
    """An integer from `low` to `high`, both included."""

    kind: Literal["randint"] = "randint"
    low: int
    high: int


class ChoiceOf(Contract):
    """One of `values`; of one value: it is fixed."""

    kind: Literal["choice"] = "choice"
    values: tuple[Annotated[JsonValue, AfterValidator(require_finite)], ...] = Field(min_length=1)


Distribution = Annotated[Uniform | LogUniform | RandInt | ChoiceOf, Field(discriminator="kind")]

Space = dict[str, Distribution]
"""By hyper-parameter, in the order in which the user wrote them."""

# --- samplers: where the next values come from --------------------------------------------------


class RandomSampler(Contract):
    """Each draw is independent of all others."""

    kind: Literal["random"] = "random"


class TpeSampler(Contract):
    """A tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011).

    Attributes:
        startup: so many models are measured before it is asked; until then draws are random.
        candidates: drawn for each hyper-parameter, of which the best is taken.
    """

    kind: Literal["tpe"] = "tpe"
    startup: int = Field(default=20, ge=1)
    candidates: int = Field(default=24, ge=1)


class GpSampler(Contract):
    """A Gaussian process; `startup` as in `TpeSampler`."""

    kind: Literal["gp"] = "gp"
    startup: int = Field(default=10, ge=1)


class CmaSampler(Contract):
    """CMA-ES (Hansen, 2016), for two numbers or more and no choices.

    Attributes:
        sigma: the initial standard deviation, as a share of each range.
        population: draws of a generation; `None`: 4 + floor(3 ln d) for d numbers.
    """

    kind: Literal["cma"] = "cma"
    sigma: float = Field(default=0.3, gt=0, le=1)
    population: int | None = Field(default=None, ge=3)


SamplerChoice = Annotated[RandomSampler | TpeSampler | GpSampler | CmaSampler, Field(discriminator="kind")]

# --- procedures: who is trained how far ---------------------------------------------------------


class _Procedure(Contract):
    """What all have. `version`: of what it decides; a log is only gone on with by the version that began it."""

    version: int = Field(default=1, ge=1)


class FixedProcedure(_Procedure):
    """The models are listed in the request and trained to the end; only stop rules act."""

    kind: Literal["fixed"] = "fixed"


class RandomProcedure(_Procedure):
    """Each draw is trained to the end, new ones as old ones end.

    Attributes:
        active: so many models are trained at a time; `None`: two for each worker.
    """

    kind: Literal["random"] = "random"
    active: int | None = Field(default=None, ge=1, le=MAX_CONFIGURATIONS)


class HyperbandProcedure(_Procedure):
    """Successive halving in brackets (Li et al., JMLR 18, 2018), all at once, earlier ones of a higher priority.

    Attributes:
        first: epochs of the lowest rung.
        eta: from one rung to the next: epochs times `eta`, models divided by `eta`.
        brackets: how many, those with most models first; `None`: all.
    """

    kind: Literal["hyperband"] = "hyperband"
    first: int = Field(default=1, ge=1)
    eta: int = Field(default=3, ge=2)
    brackets: int | None = Field(default=None, ge=1)


class AshaProcedure(_Procedure):
    """Successive halving that waits for nobody (Li et al., MLSys 2020).

    Attributes:
        first, eta: as in `HyperbandProcedure`.
        rule: ``"stopping"``: a model goes on from a rung if it is among the best 1/eta that have reached it, else it is
            stopped; ``"promotion"``: it pauses, and goes on when it is among them.
        brackets: each with a rung less than the one before; a model's is drawn, weighted by Hyperband's sizes.
        active: as in `RandomProcedure`.
    """

    kind: Literal["asha"] = "asha"
    first: int = Field(default=1, ge=1)
    eta: int = Field(default=3, ge=2)
    rule: Literal["stopping", "promotion"] = "stopping"
    brackets: int = Field(default=1, ge=1)
    active: int | None = Field(default=None, ge=1, le=MAX_CONFIGURATIONS)


class PbtProcedure(_Procedure):
    """Population-based training (Jaderberg et al., 2017), a generation at a time.

    Attributes:
        population: models that are trained at a time.
        every: epochs of a generation.
        quantile: share of the population that is stopped after a generation, and replaced by clones of the best.
        perturb: hyper-parameter -> factors, of which a clone draws one. A number is multiplied by it and stays in its
            range; a choice takes the value before it for a factor below 1, else the one after it. Others are inherited.
    """

    kind: Literal["pbt"] = "pbt"
    population: int = Field(default=16, ge=2, le=MAX_CONFIGURATIONS)
    every: int = Field(default=1, ge=1)
    quantile: float = Field(default=0.25, gt=0, le=0.5)
    perturb: dict[str, tuple[FiniteFloat, ...]] = Field(default_factory=dict)


class OwnProcedure(_Procedure):
    """A class of the user's own (`cerebro.search.Procedure`), which workers run.

    Attributes:
        code: hash of the encoded object.
        name: of its class, for people.
    """

    kind: Literal["own"] = "own"
    code: Sha256
    name: str = Field(min_length=1)


ProcedureChoice = Annotated[
    FixedProcedure | RandomProcedure | HyperbandProcedure | AshaProcedure | PbtProcedure | OwnProcedure,
    Field(discriminator="kind"),
]

# --- stop rules: which models are given up, whatever the procedure ------------------------------


class PlateauRule(Contract):
    """Stop a model whose metric has not improved by more than `least` in `epochs` epochs."""

    kind: Literal["plateau"] = "plateau"
    epochs: int = Field(default=3, ge=1)
    least: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class MedianRule(Contract):
    """Stop a model whose best value so far is worse than the median of the others' means up to the same epoch.

    As in Golovin et al., *Google Vizier*, KDD 2017, section 3.2.2.

    Attributes:
        grace: no model is stopped before it has been trained for so many epochs.
        least: nor before so many others have reached its epoch.
    """

    kind: Literal["median"] = "median"
    grace: int = Field(default=1, ge=1)
    least: int = Field(default=3, ge=1)


class AboveRule(Contract):
    """Stop a model when `metric` is above `limit` after an epoch."""

    kind: Literal["above"] = "above"
    metric: str = Field(min_length=1)
    limit: FiniteFloat


class BelowRule(Contract):
    """Stop a model when `metric` is below `limit` after an epoch."""

    kind: Literal["below"] = "below"
    metric: str = Field(min_length=1)
    limit: FiniteFloat


StopRule = Annotated[PlateauRule | MedianRule | AboveRule | BelowRule, Field(discriminator="kind")]

# --- all of it ----------------------------------------------------------------------------------


class SearchRequest(Contract):
    """How a fit finds its models, and which it gives up.

    Attributes:
        space: of the draws; empty for a fixed procedure.
        samples: so many draws at most; `None`: as many as the procedure needs, or `hours` allow.
        stop: each acts on every model.
        hours: after so long, by the times of events, models are stopped where they are and the search ends.
        keep: so many of the best models keep their checkpoints once they are trained no further; `None`: all do.
    """

    procedure: ProcedureChoice
    sampler: SamplerChoice = RandomSampler()
    space: Space = Field(default_factory=dict)
    samples: int | None = Field(default=None, ge=1)
    stop: tuple[StopRule, ...] = ()
    hours: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    keep: int | None = Field(default=None, ge=1, exclude_if=lambda keep: keep is None)
