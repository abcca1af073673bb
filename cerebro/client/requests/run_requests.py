"""Check the arguments of `run_etl`, `run_fit` and `dry_run`, and build the request of a fit.

Nothing here sends a request: a mistake is reported before the cluster does any work. Notebooks, experiment files and
the web page share this code. `search/requests.py` checks search arguments, `techniques.py` checks techniques, and
`cerebro/client/limits.py` computes goals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from cerebro.client.connection import author
from cerebro.client.limits import Limits, wait_limit_s
from cerebro.client.requests.objectives import Comparison, check_search, comparison
from cerebro.client.requests.techniques import Parallelism
from cerebro.client.search import (
    SearchSpace,
    conditional_space,
    configurations,
    first_configuration,
    requests,
)
from cerebro.client.search.requests import Search, UserProcedure
from cerebro.contract.failure_rules import OF_RUNS, FailureRule, checked
from cerebro.contract.records import CodeRecord, Hyperparameters, Locators
from cerebro.contract.runs import FitRequest, Goal
from cerebro.contract.search import Above, Below, Repeat, SearchRequest, StopRule
from cerebro.data.objects import is_bucket
from cerebro.data.tables.locators import known_columns
from cerebro.errors import DataError, MetricError, SearchError, SearchSpaceError, SpecError
from cerebro.scheduling.policies import DEFAULT_POLICY, POLICIES
from cerebro.spec import ETLSpec, SubEpochSpec
from cerebro.usercode.checks import (
    NO_TRAINING_ROWS,
    check_etl_spec,
    check_features,
    check_training_spec,
    defining_method,
    fits,
    returned_names,
)


@dataclass(frozen=True, kw_only=True)
class Scheduling:
    """Training order of models, for `Experiment.run_fit(scheduling=...)`.

    Attributes:
        scheduler: dispatch policy. ``"lrptw"`` (default): the worker with the most remaining work takes the model with
            the most remaining work. ``"promising"``: good models train first. To compare with other systems:
            ``"random"``, ``"fifo"``, ``"cyclic"``, ``"monte-carlo"``, ``"hermes"``, ``"slaq"`` and ``"rr"``; see
            docs/scheduling.md.
        planner: True (default) to let a planner search for a better order during training. The controller uses a plan
            only if a simulation shows that it is better. No effect unless `scheduler` is ``"lrptw"``.

    Raises:
        DataError: `scheduler` is unknown, or `planner` is not a bool.

    Example:
        >>> from cerebro import Scheduling
        >>> Scheduling(scheduler="promising")
        Scheduling(scheduler='promising', planner=True)
        >>> Scheduling(scheduler="best")
        Traceback (most recent call last):
            ...
        cerebro.errors.DataError: there is no scheduler 'best': choose one of ...
    """

    scheduler: str = DEFAULT_POLICY
    planner: bool = True

    def __post_init__(self) -> None:
        if self.scheduler not in POLICIES:
            raise DataError(
                f"there is no scheduler {self.scheduler!r}: choose one of {', '.join(sorted(POLICIES))}"
            )
        if not isinstance(self.planner, bool):
            raise DataError(f"planner is {self.planner!r}, expected True or False")


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options of `Experiment.run_fit` that become part of the request."""

    epochs: int = 1
    metric: str | None = None
    mode: Literal["min", "max"] | None = None
    objectives: Mapping[str, Literal["min", "max"]] | None = None
    constraints: Sequence[str] = ()
    seed: int = 0
    samples: int | None = None
    search: UserProcedure | Search | None = None
    repeats: Repeat | None = None
    folds: int | None = None
    verify: float = 0.0
    failure_rules: Sequence[object] = ()
    scheduling: Scheduling = field(default_factory=Scheduling)
    limits: Limits = field(default_factory=Limits)
    parallelism: Parallelism = field(default_factory=Parallelism)

    def __post_init__(self) -> None:
        for name, group in (("scheduling", Scheduling), ("limits", Limits), ("parallelism", Parallelism)):
            check_group(name, getattr(self, name), group)

    @property
    def comparison(self) -> Comparison:
        """How the fit compares models; raises `MetricError` for an invalid argument."""
        return comparison(self.metric, self.mode, self.objectives, self.constraints)

    @classmethod
    def from_flat(cls, options: Mapping[str, Any]) -> FitOptions:
        """Return the options of an experiment file. Ignore other keys, such as ``priority``."""
        names = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in arguments_from_flat(options).items() if name in names})


OPTION_GROUPS: Mapping[str, type] = {
    "search": Search,
    "scheduling": Scheduling,
    "limits": Limits,
    "parallelism": Parallelism,
}
"""Option groups of `Experiment.run_fit`, by keyword."""


def check_group(name: str, value: object, group: type) -> None:
    """Raise `DataError` unless the value of keyword `name` is an object of `group`."""
    if not isinstance(value, group):
        raise DataError(f"{name} is {value!r}, expected an object of cerebro.{group.__name__}")


def flat_name(group_field: str) -> str:
    """Return the key of an experiment file for a field of an option group."""
    return "search" if group_field == "procedure" else group_field


def arguments_from_flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the flat options of an experiment file into arguments of `run_fit`.

    Raises:
        DataError, SearchError, SpecError: a value is invalid.
    """
    rest = dict(options)
    arguments = {}
    for name, group in OPTION_GROUPS.items():
        flat_names = {each.name: flat_name(each.name) for each in fields(group)}
        values = {name_in_group: rest.pop(flat) for name_in_group, flat in flat_names.items() if flat in rest}
        if values:
            arguments[name] = group(**values)
    return {**rest, **arguments}


def check_etl(
    spec: ETLSpec,
    locators: Locators,
    *,
    fraction: float,
    max_failed: float,
    is_remote: bool,
    failure_rules: object = (),
    stratify: object = "",
    group: object = "",
) -> None:
    """Check the arguments of `run_etl` on this machine.

    Args:
        is_remote: True if the cluster runs on other machines. Then local paths are not checked.
        failure_rules: failure rules of the run.
        stratify, group: columns of the split ``train``.

    Raises:
        SpecError: the spec lacks a method or names unknown columns.
        DataError: a column is unknown, a number is out of range, or a rule is invalid.
    """
    check_etl_spec(spec, "run_etl")
    checked_failure_rules(failure_rules)
    check_shares(fraction=fraction, max_failed=max_failed)
    if fits(spec) and locators.train is None:
        raise SpecError(NO_TRAINING_ROWS)
    check_columns(locators, is_remote=is_remote, stratify=stratify, group=group)
    for split, locator in locators.splits().items():
        if not is_remote or is_bucket(locator.metadata):
            columns = known_columns(locator.metadata)
            if columns is not None:
                check_features(spec, split, columns, has_objects=locator.objects is not None)


def check_columns(locators: Locators, *, is_remote: bool, **options: object) -> None:
    """Check columns of the training rows."""
    train, known = locators.train, None
    if train is not None and (not is_remote or is_bucket(train.metadata)):
        known = known_columns(train.metadata)
    for option, column in options.items():
        if not isinstance(column, str):
            raise DataError(
                f"{option} is {column!r}, expected the name of a column, such as {option}='label'"
            )
        if column and train is None:
            raise DataError(f"{option}={column!r} needs training rows: give a locator for the split 'train'")
        if column and known is not None and column not in known:
            raise DataError(
                f"{option}={column!r}, but {train.metadata if train else ''} has no such column: choose one of "
                f"{', '.join(known)}"
            )


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
    options: FitOptions,
    *,
    has_validation_split: bool,
    put_code: Callable[[CodeRecord], CodeRecord] = lambda code: code,
) -> tuple[SearchRequest | None, list[Hyperparameters]]:
    """Validate a fit; return its search request, and the configurations to train.

    With a search procedure the list is empty, because the procedure suggests the configurations.

    Args:
        spec: `None` where user code must not run. The workers report its mistakes later.
        options: options of `run_fit`.
        put_code: stores a user's search procedure, after all checks. Default: don't store it.

    Raises:
        SpecError, MetricError, DataError, SearchError, SearchSpaceError: an argument is invalid.
    """
    has_validation_split = has_validation_split or options.folds is not None
    _check_fit(spec, options, has_validation_split=has_validation_split)
    procedures: list[CodeRecord] = []

    def collect(code: CodeRecord) -> CodeRecord:
        procedures.append(code)
        return code

    search = Search.of(options.search)
    request = requests.search_request(
        space,
        search=search,
        samples=options.samples,
        hours=options.limits.hours,
        epochs=options.epochs,
        put_code=collect,
        author=author(),
    )
    check_stop_rules(spec, request.stop if request else (), has_validation_split=has_validation_split)
    check_search(options.comparison, request)
    models: list[Hyperparameters] = []
    if search.procedure is None:
        models = configurations(space, samples=options.samples, seed=options.seed)
    _check_repeats(options, space, models)
    _check_folds(options, request)
    for code in procedures:
        put_code(code)
    return request, models


def fit_request(
    code: str,
    search_request: SearchRequest | None,
    models: Iterable[Hyperparameters],
    options: FitOptions,
    *,
    space: SearchSpace,
    technique_fields: Mapping[str, Any],
    goal: Goal,
) -> FitRequest:
    """Build the request of a fit.

    Args:
        code: SHA-256 of the encoded spec.
        search_request: search request of `resolve_fit`.
        models: models of `resolve_fit`.
        options: options of `run_fit`.
        space: search space of `resolve_fit`.
        technique_fields: result of `techniques.resolve_techniques`.
        goal: result of `limits.goal`.
    """
    compared = options.comparison
    return FitRequest(
        code=code,
        models=tuple(models),
        space=conditional_space(space) if search_request is None or not search_request.space else {},
        search=search_request,
        epochs=options.epochs,
        metric=compared.metric,
        mode=compared.mode,
        objectives=dict(compared.objectives),
        constraints=compared.constraints,
        seed=options.seed,
        has_shared_order=True,
        repeats=options.repeats,
        folds=options.folds,
        verify=options.verify,
        failure_rules=checked_failure_rules(options.failure_rules),
        scheduler=options.scheduling.scheduler,
        planner=options.scheduling.planner,
        hang_timeout_s=options.limits.hang_timeout_s,
        max_attempts=options.limits.max_attempts,
        goal=goal,
        wait_limit_s=wait_limit_s(options.limits.wait_limit),
        **technique_fields,
    )


def _check_fit(spec: SubEpochSpec | None, options: FitOptions, *, has_validation_split: bool) -> None:
    if spec is not None:
        check_training_spec(spec, "run_fit", has_validation_split=has_validation_split)
    compared = options.comparison
    for metric, place in compared.metrics:
        _check_metric(spec, metric, "test" if has_validation_split else "train", place=place)
    for measure in compared.measures:
        _check_is_no_metric(spec, measure, "test" if has_validation_split else "train")
    if "test_row_s" in compared.measures and not has_validation_split:
        raise MetricError(
            "the measure 'test_row_s' needs validation rows, but the experiment has no split 'valid': add the split, "
            "or choose other objectives and constraints"
        )
    if not 0 < options.epochs < math.inf:
        raise DataError(f"epochs is {options.epochs}, expected a finite number above 0")
    checked_failure_rules(options.failure_rules)
    verify: Any = options.verify
    if not isinstance(verify, int | float) or not 0 <= verify <= 1:
        raise DataError(
            f"verify is {verify!r}, expected the fraction of sub-epochs to compute again, from 0 to 1, such as 0.01"
        )


def _check_repeats(options: FitOptions, space: SearchSpace, models: Sequence[Hyperparameters]) -> None:
    repeats: Any = options.repeats
    if repeats is None:
        return
    if not isinstance(repeats, Repeat):
        raise SearchError(f"repeats is {repeats!r}, expected an object such as Repeat(top=3, seeds=5)")
    limit = len(models) or options.samples
    if limit is not None and repeats.top > limit:
        raise SearchError(
            f"Repeat(top={repeats.top}) repeats more models than the {limit} of the run: set top={limit} or less"
        )
    if "seed" in (space if isinstance(space, Mapping) else {name for each in models for name in each}):
        raise SearchError(
            "the search space has the hyperparameter 'seed', and Repeat() needs new seeds: remove it, and use "
            "run_fit(seed=...) for the first seed"
        )


def _check_folds(options: FitOptions, search_request: SearchRequest | None) -> None:
    folds: Any = options.folds
    if folds is None:
        return
    if isinstance(folds, bool) or not isinstance(folds, int) or folds < 2:
        raise DataError(
            f"folds is {folds!r}, expected the number of folds of a cross-validation, from 2, such as 5: leave it out "
            "to train one model of each configuration on all partitions"
        )
    conflicts = {
        "a search procedure or stop rules": search_request is not None,
        "repeats": options.repeats is not None,
        "objectives or constraints": bool(
            len(options.comparison.objectives) > 1 or options.comparison.constraints
        ),
        f"gang={options.parallelism.gang}": options.parallelism.gang > 1,
    }
    if found := [name for name, is_set in conflicts.items() if is_set]:
        raise SearchError(
            f"folds={folds} cannot be combined with {' and '.join(found)}: cross-validation compares the "
            "configurations of a grid, or `samples` random ones, by one metric. Leave one of them out"
        )


def check_stop_rules(
    spec: SubEpochSpec | None, rules: Iterable[StopRule], *, has_validation_split: bool
) -> None:
    """Raise `MetricError` if a stop rule names a metric that the spec does not return.

    Metrics that the source code does not show are checked after the first epoch.
    """
    for rule in rules:
        if isinstance(rule, Above | Below):
            place = f"in {rule.kind.capitalize()}({rule.metric!r}, {rule.limit:g})"
            _check_metric(spec, rule.metric, "test" if has_validation_split else "train", place=place)


def _check_is_no_metric(spec: SubEpochSpec | None, measure: str, method: str) -> None:
    defining = "" if spec is None else defining_method(spec, method)
    if defining and measure in (returned_names(getattr(spec, defining), measure) or ()):
        raise MetricError(
            f"{type(spec).__name__}.{defining}() returns {measure!r}, which is also a measure of the platform: rename "
            "the metric"
        )


def _check_metric(spec: SubEpochSpec | None, metric: str, method: str, *, place: str = "as `metric`") -> None:
    defining = "" if spec is None else defining_method(spec, method)
    names = returned_names(getattr(spec, defining), metric) if defining else None
    if names is not None and metric not in names:
        returned = ", ".join(sorted(names))
        raise MetricError(
            f"metric {metric!r} is not returned by {type(spec).__name__}.{defining}(), which returns: {returned}. "
            f"Choose one of them {place}, or return {metric!r}"
        )


def check_dry_run(
    etl: ETLSpec,
    spec: SubEpochSpec | None,
    hyperparams: SearchSpace | None,
    *,
    rows: int,
    has_validation_split: bool,
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
    check_training_spec(spec, "dry_run", has_validation_split=has_validation_split)
    if hyperparams is None:
        raise SearchSpaceError("no hyperparams: give a configuration, such as {'lr': 0.01, 'batch_size': 32}")
    return first_configuration(hyperparams)
