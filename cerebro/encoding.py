"""User code as a string, and what it does as a fingerprint.

A spec object is pickled by value with everything it needs from the notebook or from local modules, so that a worker can
restore it without having those. Decoded only inside a worker's child process.

The fingerprint is of what the code does, not of its bytes: names of temporary files and line numbers, which differ from
kernel to kernel, do not count, so the same notebook run again is recognised.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
import pickle
import site
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle

from cerebro.contract.records import CodeRecord
from cerebro.errors import SpecError

MAX_ENCODED_BYTES = 32 * 2**20


def encode(spec: object, *, author: str = "") -> CodeRecord:
    """Encode a spec object.

    Raises:
        SpecError: `spec` is a class, or something it refers to cannot be serialised (the message says what),
        or it is too
            large.
    """
    if isinstance(spec, type):
        raise SpecError(f"{spec.__name__} is a class: pass an object, {spec.__name__}()")
    try:
        with _by_value(_local_modules(spec)):
            content = cloudpickle.dumps(spec)
    except Exception as cause:  # pickling runs arbitrary __reduce__ methods, which may raise anything
        culprit = _culprit(spec) or f"{type(cause).__name__}: {cause}"
        raise SpecError(
            f"{type(spec).__name__} cannot be sent to the workers: {culprit}. Make such objects in "
            "initialize_worker(), "
            "which runs on the worker"
        ) from cause
    encoded = base64.b64encode(content).decode()
    if len(encoded) > MAX_ENCODED_BYTES:
        raise SpecError(
            f"{type(spec).__name__} takes {len(encoded) / 2**20:.0f} MiB when serialised, at most "
            f"{MAX_ENCODED_BYTES // 2**20}: list large files under `misc` in the locators instead of "
            "holding their content"
        )
    return CodeRecord(
        sha256=hashlib.sha256(encoded.encode()).hexdigest(),
        fingerprint=fingerprint(spec),
        class_name=type(spec).__name__,
        source=_source(type(spec)),
        encoded=encoded,
        author=author,
    )


def decode(encoded: str) -> Any:
    """The object that `encode` took. Runs user code: only for a worker's child process.

    Raises:
        SpecError: it cannot be restored, say because a module is missing on the worker.
    """
    try:
        return pickle.loads(base64.b64decode(encoded))
    except ModuleNotFoundError as cause:
        raise SpecError(
            f"the worker has no module {cause.name!r}, which the spec needs: add it to a requirements.txt among the "
            "uploaded code, or upload the module itself"
        ) from cause
    except Exception as cause:  # unpickling runs user code, which may raise anything
        raise SpecError(
            f"the spec cannot be restored on the worker: {type(cause).__name__}: {cause}"
        ) from cause


def fingerprint(spec: object) -> str:
    """SHA-256 of what the spec does; see the module."""
    digest = hashlib.sha256()
    for part in _parts(spec, set()):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


# --- serialising --------------------------------------------------------------------------------


class _by_value:  # noqa: N801 - reads as a phrase where it is used
    """Modules whose content travels with the spec while the context lasts."""

    def __init__(self, modules: list[types.ModuleType]) -> None:
        self._modules = [m for m in modules if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]

    def __enter__(self) -> None:
        for module in self._modules:
            cloudpickle.register_pickle_by_value(module)

    def __exit__(self, *_: object) -> None:
        for module in self._modules:
            cloudpickle.unregister_pickle_by_value(module)


def _local_modules(spec: object) -> list[types.ModuleType]:
    """Modules of the user's own that the spec's classes come from: neither installed nor Cerebro's."""
    modules = [sys.modules.get(cls.__module__) for cls in type(spec).__mro__]
    return [module for module in modules if module is not None and _is_local(module)]


def _is_local(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if file is None or module.__name__ == "__main__" or module.__name__.split(".")[0] == "cerebro":
        return False
    installed = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")} | set(
        site.getsitepackages()
    )
    return not any(Path(file).is_relative_to(folder) for folder in installed)


def _culprit(spec: object) -> str:
    """Which attribute, or global name used by a method, cannot be serialised."""
    for name, value in vars(spec).items():
        if problem := _problem(value):
            return f"attribute {name!r} ({type(value).__name__}) cannot be serialised: {problem}"
    for name, function in inspect.getmembers(type(spec), inspect.isfunction):
        for used, value in _globals_of(function):
            if problem := _problem(value):
                return (
                    f"{name}() uses {used!r} ({type(value).__name__}), which cannot be serialised: {problem}"
                )
    return ""


def _problem(value: object) -> str:
    try:
        cloudpickle.dumps(value)
    except Exception as cause:  # noqa: BLE001 - see encode
        return f"{type(cause).__name__}: {cause}"
    return ""


def _source(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        return f"# the source of {cls.__name__} is not available"


# --- fingerprint --------------------------------------------------------------------------------


def _parts(value: object, seen: set[int]) -> Iterator[str]:
    """Strings that determine what `value` does, in a fixed order."""
    if isinstance(value, (str, bytes, int, float, complex, bool, type(None), type(...))):
        yield repr(value)
    elif id(value) in seen:
        yield "again"
    else:
        seen.add(id(value))
        yield type(value).__qualname__
        yield from _compound_parts(value, seen)


def _compound_parts(value: object, seen: set[int]) -> Iterator[str]:
    if isinstance(value, dict):
        for key in sorted(value, key=repr):
            yield repr(key)
            yield from _parts(value[key], seen)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _parts(item, seen)
    elif isinstance(value, (set, frozenset)):
        yield from sorted(repr(item) for item in value)
    elif isinstance(value, types.ModuleType):
        yield f"{value.__name__} {getattr(value, '__version__', '')}"
    elif isinstance(value, types.CodeType):
        yield from _code_parts(value, seen)
    elif isinstance(value, types.FunctionType):
        yield from _function_parts(value, seen)
    elif isinstance(value, (staticmethod, classmethod)):
        yield from _parts(value.__func__, seen)
    elif isinstance(value, property):
        yield from _parts((value.fget, value.fset), seen)
    elif isinstance(value, type):
        yield from _class_parts(value, seen)
    elif (hasattr(value, "__dict__") and type(value).__module__ == "__main__") or _is_users(value):
        yield from _parts(type(value), seen)
        yield from _parts(vars(value), seen)
    else:
        # Arrays, tensors, library objects: their pickle is as good a description as any.
        yield hashlib.sha256(cloudpickle.dumps(value)).hexdigest()


def _is_users(value: object) -> bool:
    module = sys.modules.get(type(value).__module__)
    return hasattr(value, "__dict__") and module is not None and _is_local(module)


def _code_parts(code: types.CodeType, seen: set[int]) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_flags))
    # The docstring and constants; nested functions are among them. File name and line numbers are left out.
    for constant in code.co_consts:
        yield from _parts(constant, seen)


def _function_parts(function: types.FunctionType, seen: set[int]) -> Iterator[str]:
    yield from _parts(function.__code__, seen)
    yield from _parts((function.__defaults__, function.__kwdefaults__), seen)
    for cell in function.__closure__ or ():
        try:
            yield from _parts(cell.cell_contents, seen)
        except ValueError:
            yield "empty cell"
    for name, value in _globals_of(function):
        yield name
        yield from _parts(value, seen)


def _globals_of(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Global names a function uses, also in functions within it, in order of name."""
    names: set[str] = set()
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return [(name, function.__globals__[name]) for name in sorted(names) if name in function.__globals__]


def _class_parts(cls: type, seen: set[int]) -> Iterator[str]:
    module = sys.modules.get(cls.__module__)
    if cls.__module__ != "__main__" and (module is None or not _is_local(module)):
        yield f"{cls.__module__}.{cls.__qualname__}"
        return
    for base in cls.__bases__:
        yield from _parts(base, seen)
    for name in sorted(vars(cls)):
        # Python's own bookkeeping differs between versions and carries line numbers.
        if name not in (
            "__dict__",
            "__weakref__",
            "__module__",
            "__doc__",
            "__firstlineno__",
            "__static_attributes__",
        ):
            yield name
            yield from _parts(vars(cls)[name], seen)
