"""What users give to `run_etl` and `run_fit`: checked, and the request that it is.

What is wrong is told at once, by the user's own words for it, before anything is sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cerebro.contract.records import CodeRecord, Hyperparameters, Locators
from cerebro.contract.runs import EtlRequest, FitRequest
from cerebro.data.locators import known_columns
from cerebro.errors import DataError, MetricError, SearchSpaceError
from cerebro.scheduling.policies import POLICIES
from cerebro.spec import ETLSpec, SubEpochSpec
from cerebro.usercode.checks import check_features, check_spec


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The arguments of `Experiment.run_etl`."""

    fraction: float
    seed: int
    max_failed: float

    def check(self, spec: ETLSpec, locators: Locators, *, is_outside: bool) -> None:
        """Whether the cluster could do it.

        Args:
            is_outside: the cluster is elsewhere, so that paths cannot be looked up from here.

        Raises:
            SpecError: the spec lacks something, or names columns that the metadata has not.
            DataError: a number is out of range.
        """
        check_spec(spec, ETLSpec, "run_etl", {"row_preprocessor"})
        if not 0 < self.fraction <= 1:
            raise DataError(f"fraction is {self.fraction}, expected more than 0 and at most 1")
        if not 0 <= self.max_failed <= 1:
            raise DataError(f"max_failed is {self.max_failed}, expected a share from 0 to 1")
        for split, locator in locators.splits().items():
            if not is_outside or "s3://" in locator.metadata:
                columns = known_columns(locator.metadata)
                if columns is not None:
                    check_features(spec, split, columns, has_objects=locator.objects is not None)

    def request(self, code: CodeRecord) -> EtlRequest:
        """What is sent, once the store has the spec."""
        return EtlRequest(
            code=code.sha256,
            code_fingerprint=code.fingerprint,
            seed=self.seed,
            fraction=self.fraction,
            max_failed=self.max_failed,
        )


@dataclass(frozen=True, kw_only=True)
class Training:
    """The arguments of `Experiment.run_fit`, but for the search space."""

    epochs: int
    metric: str
    mode: Literal["min", "max"] | None
    seed: int
    scheduler: str
    planner: bool
    hang_timeout_s: float
    max_attempts: int

    def check(self, spec: SubEpochSpec, *, is_validated: bool) -> None:
        """Whether the cluster could do it.

        Raises:
            SpecError, MetricError, DataError, SearchSpaceError: what is wrong.
        """
        needed = {"create_models", "train", *(["test"] if is_validated else [])}
        check_spec(spec, SubEpochSpec, "run_fit", needed)
        if self.mode not in ("min", "max"):
            raise MetricError(
                f"mode is {self.mode!r}: set mode='max' if a larger value is better, or mode='min' if a smaller one is"
            )
        if not self.metric:
            raise MetricError("no metric: name the metric that ranks models, such as metric='accuracy'")
        for name in ("epochs", "hang_timeout_s", "max_attempts"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise DataError(f"{name} is {value}, expected a finite number above 0")
        if self.scheduler not in POLICIES:
            raise SearchSpaceError(
                f"no scheduler {self.scheduler!r}: choose one of {', '.join(sorted(POLICIES))}"
            )
        if not isinstance(self.planner, bool):
            raise DataError(f"planner is {self.planner!r}, expected True or False")

    def request(self, models: Sequence[Hyperparameters], code: CodeRecord) -> FitRequest:
        """What is sent, once the store has the spec."""
        assert self.mode is not None
        return FitRequest(
            code=code.sha256,
            models=tuple(models),
            epochs=self.epochs,
            metric=self.metric,
            mode=self.mode,
            seed=self.seed,
            scheduler=self.scheduler,
            planner=self.planner,
            hang_timeout_s=self.hang_timeout_s,
            max_attempts=self.max_attempts,
        )
