"""Validation of the arguments of `run_etl`, `run_fit` and `dry_run`, and the requests built from them.

Mistakes are reported before anything is sent to the cluster. Notebooks, experiment files and the web page share this
code. Search arguments are in `search/requests.py`, techniques in `techniques.py`, goals in `goals.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cerebro.client.search import SearchSpace, configurations, first_configuration, requests
from cerebro.client.session import author
from cerebro.contract.failure_rules import OF_RUNS, FailureRule, checked
from cerebro.contract.records import CodeRecord, Hyperparameters, Locators
from cerebro.contract.runs import FitRequest
from cerebro.contract.search import Above, Below, SearchRequest, StopRule
from cerebro.data.objects import is_bucket
from cerebro.data.tables.locators import known_columns
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
    failure_rules: object = (),
) -> None:
    """Check that the cluster can preprocess the data with these arguments.

    Args:
        is_outside: True if the cluster runs elsewhere, so that paths cannot be checked here.
        failure_rules: failure rules of the run.

    Raises:
        SpecError: the spec lacks a method or names unknown columns.
        DataError: a number is out of range, or a rule is invalid.
    """
    check_etl_spec(spec, "run_etl")
    checked_failure_rules(failure_rules)
    check_shares(fraction=fraction, max_failed=max_failed)
    if fits(spec) and locators.train is None:
        raise SpecError(NO_TRAINING_ROWS)
    for split, locator in locators.splits().items():
        if not is_outside or is_bucket(locator.metadata):
            columns = known_columns(locator.metadata)
            if columns is not None:
                check_features(spec, split, columns, has_objects=locator.objects is not None)


def checked_failure_rules(rules: object) -> tuple[FailureRule, ...]:
    """Return the validated failure rules of a run; raise `DataError` for an invalid one."""
    return checked(rules, "failure_rules", OF_RUNS)


def check_shares(*, fraction: float, max_failed: float) -> None:
    """Raise `DataError` unless both are fractions that `run_etl` accepts."""
    if not 0 < fraction <= 1:
        raise DataError(f"fraction is {fraction}, expected more than 0 and at most 1")
    if not 0 <= max_failed <= 1:
        raise DataError(f"max_failed is {max_failed}, expected a share from 0 to 1")


def resolve_fit(
    spec: SubEpochSpec | None,
    space: SearchSpace,
    options: Mapping[str, Any],
    *,
    is_validated: bool,
    put_code: Callable[[CodeRecord], CodeRecord] = lambda code: code,
) -> tuple[SearchRequest | None, list[Hyperparameters]]:
    """Validate a fit and return its search request and its listed models.

    Args:
        spec: `None` where user code must not run; the workers then report mistakes in it.
        options: all arguments of `run_fit`, by name.
        put_code: stores a user's search procedure after all checks passed. Default: don't store it.

    Raises:
        SpecError, MetricError, DataError, SearchError, SearchSpaceError: an argument is invalid.
    """
    _check_fit(spec, {**options, "metric": options["metric"] or ""}, is_validated=is_validated)
    names = ("search", "stop", "samples", "hours", "keep", "epochs")
    procedures: list[CodeRecord] = []

    def collect(code: CodeRecord) -> CodeRecord:
        procedures.append(code)
        return code

    request = requests.search_request(
        space, **{name: options[name] for name in names}, put_code=collect, author=author()
    )
    check_rules(spec, request.stop if request else (), is_validated=is_validated)
    models: list[Hyperparameters] = []
    if options["search"] is None:
        models = configurations(space, samples=options["samples"], seed=options["seed"])
    for code in procedures:
        put_code(code)
    return request, models


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
    search_request: SearchRequest | None,
    models: Iterable[Hyperparameters],
    options: Mapping[str, Any],
    technique_fields: Mapping[str, Any],
) -> FitRequest:
    """Build the request of a fit.

    Args:
        code: SHA-256 of the encoded spec.
        search_request: search request of `resolve_fit`.
        models: models of `resolve_fit`.
        options: all arguments of `run_fit`, by name.
        technique_fields: result of `techniques.resolve_techniques`.
    """
    settings = {name: options[name] for name in _SETTINGS}
    settings["failure_rules"] = checked_failure_rules(options.get("failure_rules", ()))
    if goal := options.get("goal"):
        settings["goal"] = goal
    return FitRequest(code=code, models=tuple(models), search=search_request, **settings, **technique_fields)


def _check_fit(spec: SubEpochSpec | None, settings: Mapping[str, Any], *, is_validated: bool) -> None:
    if spec is not None:
        check_spec(spec, SubEpochSpec, "run_fit", _required_methods(is_validated=is_validated))
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
    checked_failure_rules(settings.get("failure_rules", ()))
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
    """Raise `MetricError` if a stop rule names a metric that the spec does not return.

    Metrics that cannot be read from the source code are checked after the first epoch.
    """
    for rule in rules:
        if isinstance(rule, Above | Below):
            place = f"in {rule.kind.capitalize()}({rule.metric!r}, {rule.limit:g})"
            _check_metric(spec, rule.metric, "test" if is_validated else "train", place=place)


def _check_metric(spec: SubEpochSpec | None, metric: str, method: str, *, place: str = "as `metric`") -> None:
    names = None if spec is None else returned_names(getattr(spec, method), metric)
    if names is not None and metric not in names:
        returned = ", ".join(sorted(names))
        raise MetricError(
            f"metric {metric!r} is not returned by {type(spec).__name__}.{method}(), which returns: {returned}. "
            f"Choose one of them {place}, or return {metric!r}"
        )


def check_dry_run(
    etl: ETLSpec,
    spec: SubEpochSpec | None,
    hyperparams: SearchSpace | None,
    *,
    rows: int,
    is_validated: bool,
) -> Hyperparameters:
    """Validate the arguments of a dry run.

    Returns:
        The configuration to try; empty without `spec`.

    Raises:
        SpecError, DataError, SearchSpaceError: an argument is invalid.
    """
    check_etl_spec(etl, "dry_run")
    if rows < 1:
        raise DataError(f"rows is {rows}, expected at least 1")
    if spec is None:
        return {}
    check_spec(spec, SubEpochSpec, "dry_run", _required_methods(is_validated=is_validated))
    if hyperparams is None:
        raise SearchSpaceError("no hyperparams: give a configuration, such as {'lr': 0.01, 'batch_size': 32}")
    return first_configuration(hyperparams)


def _required_methods(*, is_validated: bool) -> set[str]:
    return {"create_models", "train"} | ({"test"} if is_validated else set())
