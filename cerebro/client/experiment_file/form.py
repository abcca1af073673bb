"""What an experiment file holds, checked as far as the file alone tells; the options are those of `Experiment`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

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
from cerebro.client.experiment_file.words import meant
from cerebro.client.failure_rules import FailureRule
from cerebro.client.goals import Budget
from cerebro.client.search import choice, loguniform, randint, uniform
from cerebro.contract.base import Name
from cerebro.contract.search import (
    ASHA,
    CMA,
    GP,
    PBT,
    TPE,
    Above,
    Below,
    Hyperband,
    Median,
    Plateau,
    Random,
)
from cerebro.data.locators import parse_locators
from cerebro.errors import ExperimentFileError, LocatorError
from cerebro.runtime import checked_yaml
from cerebro.runtime.checked_yaml import Part
from cerebro.usercode.named import Named

_EXAMPLE = "docs/experiment-file.md has one to begin with"

# --- values that stand for more than themselves --------------------------------------------------


def _words(*known: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {each.__name__: each for each in known}


_DISTRIBUTIONS = _words(uniform, loguniform, randint, choice)
_PROCEDURES = _words(ASHA, Hyperband, PBT, Random, TPE, GP, CMA)
_RULES = _words(Plateau, Median, Above, Below)
_BUDGETS = _words(Budget)
_FAILURE_RULES = _words(FailureRule)
_TECHNIQUES = {
    name: found
    for name in techniques.__all__
    if isinstance(found := getattr(techniques, name), type)
    and issubclass(found, techniques.Technique)
    and found is not techniques.Technique
}


def _space(given: Any) -> Any:
    return meant(given, _DISTRIBUTIONS, is_strict=False)


def _search(given: Any) -> Any:
    found = meant(given, _PROCEDURES, is_strict=True)
    if not isinstance(found, str):
        return found
    if ":" not in found:
        raise ValueError(f"{found!r}: expected a call such as ASHA(), or module:Class of your own procedure")
    return Named.parse(found)


def _stop(given: Any) -> Any:
    return meant(given, _RULES, is_strict=True)


def _budget(given: Any) -> Any:
    return meant(given, _BUDGETS, is_strict=True)


_MOMENT: TypeAdapter[datetime | timedelta] = TypeAdapter(datetime | timedelta)


def _finish_by(given: Any) -> Any:
    if given is None or isinstance(given, datetime | timedelta):
        return given
    try:
        return _MOMENT.validate_python(given)
    except ValueError as problem:
        raise ValueError(
            f"{given!r}: expected a time with its zone, such as 2027-01-31T18:00:00+01:00, or a duration such as PT6H"
        ) from problem


def _workers(given: Any) -> Any:
    return tuple(given) if isinstance(given, list) else given


def _failure_rules(given: Any) -> Any:
    return meant(given, _FAILURE_RULES, is_strict=True)


def _techniques(given: Any) -> Any:
    return meant(given, _TECHNIQUES, is_strict=True)


def _located(given: Any) -> Any:
    if not isinstance(given, Mapping):
        raise ValueError("must be a mapping from splits to their metadata and objects")
    try:
        parse_locators(given)
    except LocatorError as problem:
        raise ValueError(str(problem)) from problem
    return given


_MEANINGS: Mapping[str, Any] = {
    "search": Annotated[Any, BeforeValidator(_search)],
    "stop": Annotated[Any, BeforeValidator(_stop)],
    "techniques": Annotated[Any, BeforeValidator(_techniques)],
    "budget": Annotated[Any, BeforeValidator(_budget)],
    "finish_by": Annotated[Any, BeforeValidator(_finish_by)],
    "workers": Annotated[Any, BeforeValidator(_workers)],
    "failure_rules": Annotated[Any, BeforeValidator(_failure_rules)],
}
"""Options of `Experiment.run_fit` that are written in words; the others are plain values."""


class Options(Part):
    """Options of a method of `Experiment`, by the names that they have there."""

    @property
    def given(self) -> dict[str, Any]:
        """Those that the file gives, without spec and search space."""
        return {name: each for name, each in self.whole.items() if name in self.model_fields_set}

    @property
    def whole(self) -> dict[str, Any]:
        """All of them, with the defaults of those that the file does not give."""
        names = type(self).model_fields.keys() - {"spec", "space"}
        return {name: getattr(self, name) for name in names}


class WithSpec(Options):
    """Of a method that takes user code."""

    spec: Annotated[str, AfterValidator(lambda text: Named.parse(text).text)]
    """``module:Class``, or with arguments."""


class WithSpace(WithSpec):
    """Of a fit."""

    space: Annotated[Any, BeforeValidator(_space)]


_M = TypeVar("_M", bound=Options)


def _options_of(method: Callable[..., Any], base: type[_M], *without: str) -> type[_M]:
    """The keyword arguments of a method, of the types that they have there, as optional fields; but for `progress` and
    those named."""
    options: Any = {
        each.name: (_MEANINGS.get(each.name, each.annotation), each.default)
        for each in inspect.signature(method).parameters.values()
        if each.kind is each.KEYWORD_ONLY and each.name not in ("progress", *without)
    }
    # The types are texts, which are looked up where the method is.
    return create_model(method.__name__, __base__=base, __module__=Experiment.__module__, **options)


class WithModels(Options):
    """Of a method that takes trained models."""

    models: list[str] = Field(default_factory=list)
    """Ids; none: the best."""


if TYPE_CHECKING:  # the fields of the options are known when this is run
    _Etl = WithSpec
    _Fit = WithSpace
    _Test = WithModels
    _Predict = WithModels
else:
    _Etl = _options_of(Experiment.run_etl, WithSpec)
    _Fit = _options_of(Experiment.run_fit, WithSpace)
    _Test = _options_of(Experiment.run_test, WithModels, "fit")
    _Predict = _options_of(Experiment.run_predict, WithModels, "fit")


def _switched(given: Any) -> Any:
    """``true`` is all options left out, ``false`` is none of it."""
    return {} if given is True else None if given is False else given


# --- the file ------------------------------------------------------------------------------------


class ExperimentFile(Part):
    """An experiment and what is to be done with it, in this order; paths are relative to the file's folder."""

    name: Name
    """Of the experiment."""
    locators: Annotated[dict[str, Any], BeforeValidator(_located)]
    """As `Experiment` takes them."""
    code: str | None = None
    """A folder or archive that is sent with the experiment; in a folder modules are looked for, too."""
    etl: _Etl
    fit: _Fit | None = None
    test: Annotated[_Test | None, BeforeValidator(_switched)] = None
    """``true`` for all defaults."""
    predict: Annotated[_Predict | None, BeforeValidator(_switched)] = None
    output: str | None = None
    """The folder for tables and the report; left out: ``results/NAME``."""

    @field_validator("test", "predict")
    @classmethod
    def _has_models_and_rows(cls, part: WithModels | None, told: ValidationInfo) -> WithModels | None:
        if part is None or not {"fit", "locators"} <= told.data.keys():
            return part
        if told.data["fit"] is None:
            raise ValueError("needs models: add `fit`")
        split = getattr(part, "split")  # noqa: B009 - a field that was made from the method's arguments
        if split not in told.data["locators"]:
            raise ValueError(
                f"there are no locators of the split {split!r}: add them, or name another `split`"
            )
        return part


def read(path: Path) -> ExperimentFile:
    """The experiment file at a path.

    Raises:
        ExperimentFileError: it cannot be read or has mistakes; the message has a line for each, with file, line and
            field.
    """
    return checked_yaml.read(path, ExperimentFile, ExperimentFileError, example=_EXAMPLE)


def parsed(text: str, source: str) -> ExperimentFile:
    """The experiment file of a text; `source` is named in messages.

    Raises:
        ExperimentFileError: as `read`.
    """
    return checked_yaml.parse(text, source, ExperimentFile, ExperimentFileError)
