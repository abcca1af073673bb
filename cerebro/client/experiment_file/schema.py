"""Schema and parser of experiment files, for `Study` and `submission.py`.

Its options are the keyword arguments of `Experiment` methods, without option groups. User classes stay names here;
`study.py` imports them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationInfo,
    create_model,
    field_validator,
)

from cerebro import techniques
from cerebro.client.experiment import Experiment
from cerebro.client.experiment_file.calls import resolve_calls
from cerebro.client.failure_rules import FailureRule
from cerebro.client.limits import Budget, wait_limit_s
from cerebro.client.requests.run_requests import OPTION_GROUPS, flat_name
from cerebro.client.search.distributions import Distribution, choice, loguniform, randint, uniform
from cerebro.contract.base import Name
from cerebro.contract.search import (
    ASHA,
    PBT,
    SAMPLERS,
    Above,
    Below,
    Earlier,
    Hyperband,
    Median,
    Plateau,
    Random,
    Repeat,
)
from cerebro.data.tables.locators import parse_locators
from cerebro.errors import DataError, ExperimentFileError, LocatorError
from cerebro.runtime import checked_yaml, plugins
from cerebro.runtime.checked_yaml import Part
from cerebro.usercode.named import Named

_EXAMPLE = '"Experiment files" in the documentation has an example'

# --- conversion of values ------------------------------------------------------------------------


def _by_name(*functions: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {function.__name__: function for function in functions}


_DISTRIBUTIONS = _by_name(uniform, loguniform, randint, choice) | {".when": Distribution.when}
_PROCEDURES = _by_name(ASHA, Hyperband, PBT, Random, *SAMPLERS.values())
_RULES = _by_name(Plateau, Median, Above, Below)
_BUDGETS = _by_name(Budget)
_REPEATS = _by_name(Repeat)
_EARLIER = _by_name(Earlier)
_FAILURE_RULES = _by_name(FailureRule)
_TECHNIQUES = {
    name: technique
    for name in techniques.__all__
    if isinstance(technique := getattr(techniques, name), type)
    and issubclass(technique, techniques.Technique)
    and technique is not techniques.Technique
}


def _space(value: Any) -> Any:
    return resolve_calls(value, _DISTRIBUTIONS, is_strict=False)


def _search(value: Any) -> Any:
    procedure = resolve_calls(value, _PROCEDURES | _of_packages(value), is_strict=True)
    if not isinstance(procedure, str):
        return procedure
    if ":" not in procedure:
        raise ValueError(
            f"{procedure!r}: expected a call such as ASHA(), or module:Class of your own procedure"
        )
    return Named.parse(procedure)


def _of_packages(value: Any) -> dict[str, Callable[..., Any]]:
    """Return the procedure and the samplers of installed packages that a text calls, by name."""
    names = re.findall(r"([A-Za-z_]\w*)\s*\(", value) if isinstance(value, str) else []
    found: dict[str, Callable[..., Any]] = {}
    for place, name in enumerate(names):
        plugin = None
        if name not in _PROCEDURES:
            plugin = plugins.find("samplers" if place else "procedures", name)
        if plugin is not None:
            interface = "cerebro.search.Sampler" if place else "cerebro.search.Procedure"
            found[name] = plugin.load_callable(f"a class with the methods of {interface}")
    return found


def _stop(value: Any) -> Any:
    return resolve_calls(value, _RULES, is_strict=True)


def _budget(value: Any) -> Any:
    return resolve_calls(value, _BUDGETS, is_strict=True)


def _repeats(value: Any) -> Any:
    return resolve_calls(value, _REPEATS, is_strict=True)


def _start_from(value: Any) -> Any:
    return resolve_calls(value, _EARLIER, is_strict=True)


_MOMENT: TypeAdapter[datetime | timedelta] = TypeAdapter(datetime | timedelta)


def _finish_by(value: Any) -> Any:
    if value is None or isinstance(value, datetime | timedelta):
        return value
    try:
        return _MOMENT.validate_python(value)
    except ValueError as problem:
        raise ValueError(
            f"{value!r}: expected a time such as 2027-01-31T18:00:00+01:00, or a duration such as PT6H"
        ) from problem


def _wait_limit(value: Any) -> Any:
    try:
        wait_limit_s(value)
    except DataError as problem:
        raise ValueError(str(problem)) from problem
    return value


def _workers(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _failure_rules(value: Any) -> Any:
    return resolve_calls(value, _FAILURE_RULES, is_strict=True)


def _techniques(value: Any) -> Any:
    return resolve_calls(value, _TECHNIQUES, is_strict=True)


def _checked_locators(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError("must map splits to metadata and objects")
    try:
        parse_locators(value)
    except LocatorError as problem:
        raise ValueError(str(problem)) from problem
    return value


_CONVERTERS: Mapping[str, Any] = {
    "search": Annotated[Any, BeforeValidator(_search)],
    "stop": Annotated[Any, BeforeValidator(_stop)],
    "techniques": Annotated[Any, BeforeValidator(_techniques)],
    "repeats": Annotated[Any, BeforeValidator(_repeats)],
    "start_from": Annotated[Any, BeforeValidator(_start_from)],
    "budget": Annotated[Any, BeforeValidator(_budget)],
    "finish_by": Annotated[Any, BeforeValidator(_finish_by)],
    "wait_limit": Annotated[Any, BeforeValidator(_wait_limit)],
    "workers": Annotated[Any, BeforeValidator(_workers)],
    "failure_rules": Annotated[Any, BeforeValidator(_failure_rules)],
}
"""Options of `Experiment.run_fit` with special notation; the others are plain values."""


class Options(Part):
    """Keyword arguments of an `Experiment` method."""

    @property
    def explicit(self) -> dict[str, Any]:
        """Options that the file contains, without spec and search space."""
        return {name: value for name, value in self.with_defaults.items() if name in self.model_fields_set}

    @property
    def with_defaults(self) -> dict[str, Any]:
        """All options, without spec and search space."""
        names = type(self).model_fields.keys() - {"spec", "space"}
        return {name: getattr(self, name) for name in names}


class WithSpec(Options):
    """Options of a method with user code."""

    spec: Annotated[str, AfterValidator(lambda text: Named.parse(text).text)]
    """``module:Class``, optionally with arguments."""


class WithSpace(WithSpec):
    """Options of a fit."""

    space: Annotated[Any, BeforeValidator(_space)]


_M = TypeVar("_M", bound=Options)


def _options_of(method: Callable[..., Any], base: type[_M], *excluded: str) -> type[_M]:
    """Create a model with the keyword arguments of a method, except `progress` and `excluded`."""
    options: Any = {
        name: (_CONVERTERS.get(name, annotation), default)
        for name, annotation, default in _flat_arguments(method)
        if name not in ("progress", *excluded)
    }
    # Annotations are strings, so pydantic resolves them in the module of the method.
    return create_model(method.__name__, __base__=base, __module__=method.__module__, **options)


class WithModels(Options):
    """Options of a method with trained models."""

    models: list[str] = Field(default_factory=list)
    """Model ids. Default: the best model."""


def _flat_arguments(method: Callable[..., Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, type and default of each keyword argument; an option group yields its fields instead."""
    for each in inspect.signature(method).parameters.values():
        if each.kind is not each.KEYWORD_ONLY:
            continue
        if group := OPTION_GROUPS.get(each.name):
            types = get_type_hints(group)
            yield from (
                (flat_name(option.name), types[option.name], option.default) for option in fields(group)
            )
        else:
            yield each.name, each.annotation, each.default


if TYPE_CHECKING:  # the real classes get their fields at run time
    _Etl = WithSpec
    _Fit = WithSpace
    _Test = WithModels
    _Predict = WithModels
else:
    _Etl = _options_of(Experiment.run_etl, WithSpec)
    _Fit = _options_of(Experiment.run_fit, WithSpace)
    _Test = _options_of(Experiment.run_test, WithModels, "fit")
    _Predict = _options_of(Experiment.run_predict, WithModels, "fit")


def _switched(value: Any) -> Any:
    """``true`` means all defaults, ``false`` means skip."""
    return {} if value is True else None if value is False else value


# --- the file ------------------------------------------------------------------------------------


class ExperimentFile(Part):
    """An experiment and its steps, in order. Relative paths start at the file's folder."""

    name: Name
    """Name of the experiment."""
    locators: Annotated[dict[str, Any], BeforeValidator(_checked_locators)]
    """Dataset locators, as of `Experiment`."""
    code: str | None = None
    """Folder or archive of importable files. In a folder, specs are looked up too."""
    etl: _Etl
    fit: _Fit | None = None
    test: Annotated[_Test | None, BeforeValidator(_switched)] = None
    """``true`` for all defaults."""
    predict: Annotated[_Predict | None, BeforeValidator(_switched)] = None
    output: str | None = None
    """Folder of tables and report. Default: ``results/NAME``."""

    @field_validator("test", "predict")
    @classmethod
    def _has_models_and_rows(cls, part: WithModels | None, info: ValidationInfo) -> WithModels | None:
        if part is None or not {"fit", "locators"} <= info.data.keys():
            return part
        if info.data["fit"] is None:
            raise ValueError("needs a trained model: add `fit`")
        split = getattr(part, "split")  # noqa: B009 - the field is created at run time
        if split not in info.data["locators"]:
            raise ValueError(f"the split {split!r} has no locators: add them, or choose another `split`")
        return part


def read(path: Path) -> ExperimentFile:
    """Read an experiment file.

    Raises:
        ExperimentFileError: the file cannot be read or has mistakes; one line for each, with line number and field.
    """
    return checked_yaml.read(path, ExperimentFile, ExperimentFileError, example=_EXAMPLE)


def parsed(text: str, source: str) -> ExperimentFile:
    """Parse the text of an experiment file; `source` is its name in messages.

    Raises:
        ExperimentFileError: as of `read`.
    """
    return checked_yaml.parse(text, source, ExperimentFile, ExperimentFileError)
