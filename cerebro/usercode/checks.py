"""Checks of a spec before anything runs: methods, parameters, named columns.

Only this module has these rules. The client (`requests`, `dry_run`, `search`) checks a spec before sending it, and ETL
code in a worker's child before using it. No user code is called.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import CodeType
from typing import Any, Protocol, cast

from cerebro.errors import SearchError, SpecError
from cerebro.search.procedure import Procedure
from cerebro.search.samplers.own import Sampler
from cerebro.spec import ETLSpec, SubEpochSpec
from cerebro.steps.spec import StepSpec


class _Naming(Protocol):
    """Names columns, as an `ETLSpec` does."""

    @property
    def is_feature_download(self) -> Sequence[str]:
        """Columns that name objects."""


_RETURNING = frozenset(
    {
        *("fit", "row_preprocessor", "batch_preprocessor", "create_models", "train", "test"),
        *(
            "training_step",
            "configure_optimizers",
            "validation_step",
            "prediction_step",
            "begin",
            "on_report",
            "suggest",
        ),
    }
)
"""Methods whose result is used at once; a generator function would not run."""


_NAME_HINTS = {"fit": ". Cerebro calls it with all training rows; rename it if it is your own helper"}
"""Additional hints for methods that older specs may have used as names of helpers."""


def check_spec(spec: object, template: type, method: str, needed: Collection[str]) -> None:
    """Check a spec object without calling it.

    Args:
        spec: the object.
        template: `ETLSpec` or `SubEpochSpec`.
        method: name of the method that the user called, for messages.
        needed: methods that the user must define; the template's other methods are checked only if the user defines
            them.

    Raises:
        SpecError: it is not an object of a subclass of `template`, or a method is missing or has the wrong signature.
            The message shows the expected and the found signature.
    """
    if isinstance(spec, type) and issubclass(spec, template):
        raise SpecError(f"{method} takes an object: pass {spec.__name__}() instead of {spec.__name__}")
    if not isinstance(spec, template):
        raise SpecError(
            f"{method} takes an object of a subclass of cerebro.{template.__name__}, not a {type(spec).__name__}"
        )
    for name, promised in inspect.getmembers(template, inspect.isfunction):
        if name.startswith("_"):
            continue
        if has_method(spec, template, name):
            try:
                _check_method(type(spec).__name__, name, getattr(spec, name), promised)
            except SpecError as error:
                raise SpecError(f"{error}{_NAME_HINTS.get(name, '')}") from error.__cause__
        elif name in needed:
            raise SpecError(_missing(spec, template, name, promised))
    if isinstance(spec, ETLSpec):
        named_columns(spec.is_feature_download)
        rows: Any = spec.batch_rows
        if type(rows) is not int or rows < 1:
            raise SpecError(f"ETLSpec.batch_rows is {rows!r}, expected a whole number from 1")


_STEPS = {"train": "training_step", "test": "validation_step", "predict": "prediction_step"}
"""Method of `SubEpochSpec` -> method of `StepSpec` that it calls."""


def check_training_spec(spec: object, method: str, *, has_validation_split: bool) -> None:
    """Check a `SubEpochSpec` or a `StepSpec`; see `check_spec`.

    Args:
        method: name of the method that the user called, for messages.
        has_validation_split: True if the models will be validated.

    Raises:
        SpecError: as `check_spec`.
    """
    needed = {"create_models", "train"} | ({"test"} if has_validation_split else set())
    if not isinstance(spec, StepSpec):
        check_spec(spec, SubEpochSpec, method, needed)
        return
    steps = {_STEPS.get(name, name) for name in needed if not has_method(spec, StepSpec, name)}
    if "training_step" in steps:
        steps.add("configure_optimizers")
    check_spec(spec, StepSpec, method, steps)


def defining_method(spec: SubEpochSpec, name: str) -> str:
    """Return the name of the user's method that defines `train`, `test` or `predict`, or "" without one."""
    template = StepSpec if isinstance(spec, StepSpec) else SubEpochSpec
    if has_method(spec, template, name):
        return name
    step = _STEPS[name]
    return step if template is StepSpec and has_method(spec, template, step) else ""


def check_etl_spec(spec: object, method: str) -> None:
    """Check an `ETLSpec` that preprocesses single rows or batches; see `check_spec`.

    Raises:
        SpecError: as `check_spec`.
    """
    is_by_batches = isinstance(spec, ETLSpec) and prepares_batches(spec)
    check_spec(spec, ETLSpec, method, {"batch_preprocessor" if is_by_batches else "row_preprocessor"})


def prepares_batches(spec: object) -> bool:
    """Return True if an `ETLSpec` preprocesses rows in batches."""
    return has_method(spec, ETLSpec, "batch_preprocessor")


def fits(spec: object) -> bool:
    """Return True if an `ETLSpec` defines `fit`, which computes statistics of the training rows."""
    return has_method(spec, ETLSpec, "fit")


NO_TRAINING_ROWS = (
    "ETLSpec.fit needs the rows of split 'train', but the locators lack it. Add it, or remove fit"
)


def check_procedure(procedure: object) -> None:
    """Check a user's search procedure without calling it.

    Raises:
        SearchError: it is a class, lacks a method of `Procedure`, or a method has the wrong signature.
    """
    name = type(procedure).__name__
    if isinstance(procedure, type):
        has_both = all(hasattr(procedure, method) for method in ("begin", "on_report"))
        hint = f"pass {procedure.__name__}() instead of {procedure.__name__}" if has_both else _PROCEDURES
        raise SearchError(f"search={procedure.__name__} is a class, expected an object: {hint}")
    methods = dict(inspect.getmembers(Procedure, inspect.isfunction))
    if not any(hasattr(procedure, method) for method in ("begin", "on_report")):
        raise SearchError(f"search={procedure!r}: {_PROCEDURES}")
    for method in ("begin", "on_report"):
        promised = methods[method]
        if not hasattr(procedure, method) or not has_method(procedure, Procedure, method):
            raise SearchError(_missing(procedure, Procedure, method, promised))
        try:
            _check_method(name, method, getattr(procedure, method), promised)
        except SpecError as error:
            raise SearchError(str(error)) from error


def check_sampler(sampler: object) -> None:
    """Check the signature of a user's sampler without calling it.

    Raises:
        SearchError: `suggest` has the wrong signature.
    """
    method: Any = getattr(sampler, "suggest")  # noqa: B009 - the caller has checked that it exists
    try:
        _check_method(type(sampler).__name__, "suggest", method, Sampler.suggest)
    except SpecError as error:
        raise SearchError(str(error)) from error


_PROCEDURES = (
    "expected one of cerebro's procedures, as in search=ASHA(), or an object with the methods begin(facts) and "
    "on_report(report) of cerebro.search.Procedure"
)


def has_method(spec: object, template: type, name: str) -> bool:
    """Return True if the user's class overrides the template's method."""
    return getattr(getattr(spec, name), "__func__", None) is not getattr(template, name)


def check_features(spec: _Naming, split: str, columns: Sequence[str], *, has_objects: bool) -> None:
    """Check that a split has the objects that a spec names.

    Args:
        spec: the spec.
        split: name of the split.
        columns: columns of the split's metadata.
        has_objects: True if its locator has an object root.

    Raises:
        SpecError: a column or the object root is missing.
    """
    named = named_columns(spec.is_feature_download)
    for name in named:
        if name not in columns:
            raise SpecError(
                f"ETLSpec.is_feature_download names the column {name!r}, "
                f"but the metadata of {split!r} has only {', '.join(columns)}"
            )
    if named and not has_objects:
        raise SpecError(
            f"ETLSpec.is_feature_download names {', '.join(named)}, "
            f"but the locator of {split!r} has no object root"
        )


def named_columns(value: object) -> Sequence[str]:
    """Return `ETLSpec.is_feature_download` after checking that it is a list of names.

    Raises:
        SpecError: it is not.
    """
    names = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (None,)
    if not all(isinstance(name, str) for name in names):
        raise SpecError(f"ETLSpec.is_feature_download is {value!r}, expected a list of column names")
    return cast("tuple[str, ...]", names)


def returned_names(method: Callable[..., Any], wanted: str) -> frozenset[str] | None:
    """Return the keys of the dictionaries that a method returns, or `None` if unknown.

    Calls nothing. The result is not `None` only if it is certain: no decorator, no computed key, and a source that
    matches the code in memory. If the file was edited since its import, `wanted` shows whether source and code agree.
    """
    function = getattr(method, "__func__", method)
    code = getattr(function, "__code__", None)
    if code is None or hasattr(function, "__wrapped__"):
        return None
    try:
        (parsed,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    if not isinstance(parsed, ast.FunctionDef) or parsed.decorator_list or parsed.name != code.co_name:
        return None
    names: set[str] = set()
    for each in _returns(parsed):
        keys = each.keys if isinstance(each, ast.Dict) else [None]
        literals = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
        if len(literals) < len(keys):
            return None
        names.update(literals)
    # The file may have been edited since its import.
    texts = _texts(code)
    is_same = names <= texts and (wanted in names) == (wanted in texts)
    return frozenset(names) if names and is_same else None


def _returns(function: ast.FunctionDef) -> Iterator[ast.expr | None]:
    """Yield the return values of a function, without nested functions."""
    pending: list[ast.AST] = [*function.body]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Return):
            yield node.value
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            pending.extend(ast.iter_child_nodes(node))


def _texts(code: CodeType) -> set[str]:
    flat = [
        each
        for constant in code.co_consts
        for each in (constant if isinstance(constant, tuple) else (constant,))
    ]
    return {each for each in flat if isinstance(each, str)}


# --- methods -----------------------------------------------------------------------------------------


def _check_method(owner: str, name: str, method: Any, promised: Callable[..., Any]) -> None:
    is_bound = inspect.ismethod(method)
    expected = _signature(promised, is_bound=is_bound)
    if not callable(method):
        raise SpecError(f"{owner}.{name} is a {type(method).__name__}, expected the method {name}{expected}")
    expectation = f"expected {name}{expected}"
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        raise SpecError(
            f"{owner}.{name} is asynchronous, and nothing awaits it: {expectation} without `async`"
        )
    if name in _RETURNING and inspect.isgeneratorfunction(method):
        raise SpecError(
            f"{owner}.{name} has a `yield`, so a call does not run it: {expectation} that returns"
        )
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # functions not written in Python may have no signature
        return
    try:
        # Workers call it with positional arguments.
        signature.bind(*_parameters(promised))
    except TypeError as cause:
        shown = _signature(method.__func__ if is_bound else method, is_bound=True)
        raise SpecError(
            f"{owner}.{name} cannot be called as workers call it ({cause}): {expectation}, found {name}{shown}"
        ) from cause


def _missing(spec: object, template: type, name: str, promised: Callable[..., Any]) -> str:
    names = [each for cls in type(spec).__mro__ for each in vars(cls) if not hasattr(template, each)]
    similar = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    hint = f". It has {similar[0]!r}: is that the one?" if similar else ""
    return f"{type(spec).__name__} has no method {name!r}: define {name}{_signature(promised, is_bound=True)}{hint}"


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters without `self`."""
    return list(inspect.signature(function).parameters)[1:]


def _signature(function: Callable[..., Any], *, is_bound: bool) -> str:
    """Return the parameters with defaults, without annotations and, if unbound, without `self`."""
    signature = inspect.signature(function)
    plain = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    shown = plain if is_bound else plain[1:]
    return str(signature.replace(parameters=shown, return_annotation=signature.empty))
