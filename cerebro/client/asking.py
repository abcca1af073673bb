"""What users give to `run_etl`, `run_fit` and `dry_run`, checked.

What is wrong is told at once, by the user's own words for it, before anything is sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cerebro.client.search import SearchSpace, configurations, first_configuration
from cerebro.client.search.requests import search_request
from cerebro.client.session import author
from cerebro.contract import failure_rules
from cerebro.contract.failure_rules import OF_RUNS
from cerebro.contract.records import CodeRecord, Hyperparameters, Locators
from cerebro.contract.runs import FitRequest
from cerebro.contract.search import Above, Below, SearchRequest, StopRule
from cerebro.data.locators import known_columns
from cerebro.data.objects import is_bucket
from cerebro.errors import DataError, MetricError, SearchSpaceError, SpecError
from cerebro.scheduling.policies import POLICIES
from cerebro.spec import ETLSpec, SubEpochSpec
from cerebro.usercode.checks import (
    NO_TRAINING_ROWS,
    check_etl_spec,
    check_features,
    check_spec,
    fits,
    returned_names,
)


def check_etl(
    spec: ETLSpec,
    locators: Locators,
    *,
    fraction: float,
    max_failed: float,
    is_outside: bool,
    rules: object = (),
) -> None:
    """Whether the cluster could preprocess the data.

    Args:
        is_outside: the cluster is elsewhere, so that paths cannot be looked up from here.
        rules: failure rules.

    Raises:
        SpecError: the spec lacks something, or names columns that the metadata has not.
        DataError: a number is out of range, or a rule cannot be.
    """
    check_etl_spec(spec, "run_etl")
    rules_of_run(rules)
    check_shares(fraction=fraction, max_failed=max_failed)
    if fits(spec) and locators.train is None:
        raise SpecError(NO_TRAINING_ROWS)
    for split, locator in locators.splits().items():
        if not is_outside or is_bucket(locator.metadata):
            columns = known_columns(locator.metadata)
            if columns is not None:
                check_features(spec, split, columns, has_objects=locator.objects is not None)


def rules_of_run(given: object) -> tuple[failure_rules.FailureRule, ...]:
    """Failure rules of a run, as its user gives them; DataError says which one cannot be, and where."""
    return failure_rules.checked(given, "failure_rules", OF_RUNS)


def check_shares(*, fraction: float, max_failed: float) -> None:
    """Raise DataError unless these are shares of rows, as `run_etl` takes them."""
    if not 0 < fraction <= 1:
        raise DataError(f"fraction is {fraction}, expected more than 0 and at most 1")
    if not 0 <= max_failed <= 1:
        raise DataError(f"max_failed is {max_failed}, expected a share from 0 to 1")


def asked_fit(
    spec: SubEpochSpec | None,
    space: SearchSpace,
    options: Mapping[str, Any],
    *,
    is_validated: bool,
    put_code: Callable[[CodeRecord], CodeRecord] = lambda code: code,
) -> tuple[SearchRequest | None, list[Hyperparameters]]:
    """What a fit asks of a search, and the models that are listed, if the cluster could train them.

    Args:
        spec: `None` where user code cannot be looked at: a worker says what is wrong with it.
        options: all arguments of `run_fit`, by name.
        put_code: stores a user's own procedure once all is found to be right; left out: it is only checked.

    Raises:
        SpecError, MetricError, DataError, SearchError, SearchSpaceError: what is wrong.
    """
    _check_fit(spec, {**options, "metric": options["metric"] or ""}, is_validated=is_validated)
    named = ("search", "stop", "samples", "hours", "keep", "epochs")
    given = {name: options[name] for name in named}
    found: list[CodeRecord] = []

    def noted(code: CodeRecord) -> CodeRecord:
        found.append(code)
        return code

    searched = search_request(space, **given, put_code=noted, author=author())
    check_rules(spec, searched.stop if searched else (), is_validated=is_validated)
    models: list[Hyperparameters] = []
    if options["search"] is None:
        models = configurations(space, samples=options["samples"], seed=options["seed"])
    for code in found:
        put_code(code)
    return searched, models


_SETTINGS = (
    "epochs",
    "metric",
    "mode",
    "seed",
    "scheduler",
    "planner",
    "hang_timeout_s",
    "max_attempts",
    "verify",
)


def fit_request(
    code: str,
    searched: SearchRequest | None,
    models: Iterable[Hyperparameters],
    options: Mapping[str, Any],
    named: Mapping[str, Any],
) -> FitRequest:
    """What a fit asks for.

    Args:
        code: SHA-256 of the encoded spec.
        searched, models: of `asked_fit`.
        options: all arguments of `run_fit`, by name.
        named: of `techniques.chosen`.
    """
    settings = {name: options[name] for name in _SETTINGS}
    settings["failure_rules"] = rules_of_run(options.get("failure_rules", ()))
    if goal := options.get("goal"):
        settings["goal"] = goal
    return FitRequest(code=code, models=tuple(models), search=searched, **settings, **named)


def _check_fit(spec: SubEpochSpec | None, settings: Mapping[str, Any], *, is_validated: bool) -> None:
    """Whether the cluster could train by these `settings`, which are named as the arguments of `run_fit`.

    Raises:
        SpecError, MetricError, DataError, SearchSpaceError: what is wrong.
    """
    if spec is not None:
        check_spec(spec, SubEpochSpec, "run_fit", _needed(is_validated=is_validated))
    mode, scheduler, planner = settings["mode"], settings["scheduler"], settings["planner"]
    if mode not in ("min", "max"):
        raise MetricError(
            f"mode is {mode!r}: set mode='max' if a larger value is better, or mode='min' if a smaller one is"
        )
    if not settings["metric"]:
        raise MetricError("no metric: name the metric that ranks models, such as metric='accuracy'")
    _check_metric(spec, settings["metric"], "test" if is_validated else "train")
    for name in ("epochs", "hang_timeout_s", "max_attempts"):
        if not 0 < (value := settings[name]) < math.inf:
            raise DataError(f"{name} is {value}, expected a finite number above 0")
    rules_of_run(settings.get("failure_rules", ()))
    verify = settings.get("verify", 0.0)
    if not isinstance(verify, int | float) or not 0 <= verify <= 1:
        raise DataError(
            f"verify is {verify!r}, expected the fraction of sub-epochs to compute again, from 0 to 1, such as 0.01"
        )
    if scheduler not in POLICIES:
        raise SearchSpaceError(f"no scheduler {scheduler!r}: choose one of {', '.join(sorted(POLICIES))}")
    if not isinstance(planner, bool):
        raise DataError(f"planner is {planner!r}, expected True or False")


def check_rules(spec: SubEpochSpec | None, rules: Iterable[StopRule], *, is_validated: bool) -> None:
    """Whether stop rules are about metrics that there will be, as far as that is known.

    Raises:
        MetricError: one is not.
    """
    for rule in rules:
        if isinstance(rule, Above | Below):
            how = f"in {rule.kind.capitalize()}({rule.metric!r}, {rule.limit:g})"
            _check_metric(spec, rule.metric, "test" if is_validated else "train", how=how)


def _check_metric(spec: SubEpochSpec | None, metric: str, method: str, *, how: str = "as `metric`") -> None:
    """What a method computes names for is known only once it has returned: after the first epoch, by the controller."""
    names = None if spec is None else returned_names(getattr(spec, method), metric)
    if names is not None and metric not in names:
        told = ", ".join(sorted(names))
        raise MetricError(
            f"metric {metric!r} is not returned by {type(spec).__name__}.{method}(), which returns: {told}. Choose one "
            f"of them {how}, or return {metric!r}"
        )


def check_dry_run(
    etl: ETLSpec,
    spec: SubEpochSpec | None,
    hyperparams: SearchSpace | None,
    *,
    rows: int,
    is_validated: bool,
) -> Hyperparameters:
    """Whether a dry run of these could be made.

    Returns:
        The configuration that it tries; empty without `spec`.

    Raises:
        SpecError, DataError, SearchSpaceError: what is wrong.
    """
    check_etl_spec(etl, "dry_run")
    if rows < 1:
        raise DataError(f"rows is {rows}, expected at least 1")
    if spec is None:
        return {}
    check_spec(spec, SubEpochSpec, "dry_run", _needed(is_validated=is_validated))
    if hyperparams is None:
        raise SearchSpaceError("no hyperparams: give a configuration, such as {'lr': 0.01, 'batch_size': 32}")
    return first_configuration(hyperparams)


def _needed(*, is_validated: bool) -> set[str]:
    """The methods that a spec needs to train."""
    return {"create_models", "train"} | ({"test"} if is_validated else set())
