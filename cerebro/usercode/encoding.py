"""User code as a string.

A spec object is pickled by value with everything it needs from the notebook or from local modules, so that a worker can
restore it without having those. Decoded where user code is to run: in a worker's child process, and in the process of a
user who asks for it (a dry run, the modules of a model, a replay).
"""

from __future__ import annotations

import base64
import hashlib
import inspect
import io
import linecache
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
from cloudpickle.cloudpickle import (
    _decompose_typevar,
    _dynamic_class_reduce,
    _make_typevar,
    dynamic_subimport,
)

from cerebro.contract.records import CodeRecord
from cerebro.errors import SpecError
from cerebro.usercode.fingerprint import fingerprint, globals_of, is_local

MAX_ENCODED_BYTES = 32 * 2**20


_INITIALIZE = "Make such objects in initialize_worker(), which runs on the worker"


def encode(spec: object, *, author: str = "", hint: str = _INITIALIZE) -> CodeRecord:
    """Encode a spec object.

    Args:
        hint: what to do about an object in it that cannot be serialised.

    Raises:
        SpecError: `spec` is a class, or something it refers to cannot be serialised (the message says what),
        or it is too
            large.
    """
    if isinstance(spec, type):
        raise SpecError(f"{spec.__name__} is a class: pass an object, {spec.__name__}()")
    try:
        content = _dumps(spec)
    except Exception as cause:  # pickling runs arbitrary __reduce__ methods, which may raise anything
        culprit = _culprit(spec) or f"{type(cause).__name__}: {cause}"
        raise SpecError(f"{type(spec).__name__} cannot be sent to the workers: {culprit}. {hint}") from cause
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
    """The object that `encode` took, with classes of its own: those that this process has keep their methods.

    Runs user code.

    Raises:
        SpecError: it cannot be restored, say because a module is missing on the worker.
    """
    try:
        return _Decoder(io.BytesIO(base64.b64decode(encoded))).load()
    except ModuleNotFoundError as cause:
        raise SpecError(
            f"the worker has no module {cause.name!r}, which the spec needs: add it to a requirements.txt among the "
            "uploaded code, or upload the module itself"
        ) from cause
    except SpecError:  # of an object that was named: it says what is wrong
        raise
    except Exception as cause:  # unpickling runs user code, which may raise anything
        raise SpecError(
            f"the spec cannot be restored on the worker: {type(cause).__name__}: {cause}"
        ) from cause


def packed(value: object, what: str, most_bytes: int) -> bytes:
    """What user code returned, to be `restored` elsewhere; as specs are, with everything that it needs.

    Args:
        what: it is, for people.

    Raises:
        SpecError: it cannot be serialised, or takes more than `most_bytes`.
    """
    try:
        content = _dumps(value)
    except Exception as cause:  # pickling runs arbitrary __reduce__ methods, which may raise anything
        raise SpecError(
            f"{what}, a {type(value).__name__}, cannot be stored: {type(cause).__name__}: {cause}. Return numbers, "
            "arrays, texts, and dicts and lists of them"
        ) from cause
    if len(content) > most_bytes:
        raise SpecError(
            f"{what} takes {len(content) / 2**20:,.0f} MiB, at most {most_bytes / 2**20:,.0f}: keep what is needed of "
            "it, such as the most frequent words"
        )
    return content


def restored(content: bytes, what: str) -> Any:
    """What was `packed`. Runs user code.

    Raises:
        SpecError: it cannot be restored.
    """
    try:
        return _Decoder(io.BytesIO(content)).load()
    except Exception as cause:  # unpickling runs user code, which may raise anything
        raise SpecError(f"{what} cannot be restored: {type(cause).__name__}: {cause}") from cause


class _Decoder(pickle.Unpickler):
    """Makes classes that travelled by value anew.

    cloudpickle would look for the class that it was made from in this process, and put what travelled into that one:
    the class in a notebook's cell would no longer see the notebook's variables.
    """

    def find_class(self, module: str, name: str) -> Any:
        """The class or function; modules that have moved since it was encoded are found where they are now."""
        found = super().find_class(_MOVED.get(module, module), name)
        return _untracked(found) if (module, name) in _CLASS_MAKERS else found


_MOVED = {"cerebro.experiment": "cerebro.client.experiment", "cerebro.search": "cerebro.client.search"}
"""Modules whose names version 0.1 offered to users: specs that it stored may still name them."""

_CLASS_MAKERS = {
    ("cloudpickle.cloudpickle", "_make_skeleton_class"),
    ("cloudpickle.cloudpickle", "_make_skeleton_enum"),
}


def _untracked(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(*arguments: Any) -> Any:
        *before, _identity, extra = arguments
        return make(*before, None, extra)

    return made


# --- serialising --------------------------------------------------------------------------------


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Pickles the user's own modules, classes and functions by value.

    cloudpickle's registry of such modules is global: two threads that register and unregister modules change each
    other's pickles. So this class does not use it.
    """

    def reducer_override(self, obj: Any) -> Any:
        """Reduce one object; see `pickle.Pickler.reducer_override`."""
        if isinstance(obj, types.ModuleType):
            if is_local(obj):
                kept = {name: value for name, value in vars(obj).items() if name not in _IMPORT_SYSTEM}
                return dynamic_subimport, (obj.__name__, kept)
        elif isinstance(obj, (types.FunctionType, type, TypeVar)) and is_local(
            sys.modules.get(obj.__module__ or "")
        ):
            if isinstance(obj, types.FunctionType):
                return self._dynamic_function_reduce(obj)
            return _dynamic_class_reduce(obj) if isinstance(obj, type) else _typevar_reduce(obj)
        return super().reducer_override(obj)


_IMPORT_SYSTEM = frozenset({"__builtins__", "__cached__", "__loader__", "__path__", "__spec__"})
"""Attributes of modules that mean nothing on the worker, or cannot be serialised."""


def _typevar_reduce(variable: TypeVar) -> Any:
    return _make_typevar, _decompose_typevar(variable)


def _dumps(value: object) -> bytes:
    content = io.BytesIO()
    _Pickler(content).dump(value)
    return content.getvalue()


def _culprit(spec: object) -> str:
    """Which attribute, or global name used by a method, cannot be serialised."""
    own = {name: value for name, value in vars(type(spec)).items() if not name.startswith("__")}
    functions = dict(inspect.getmembers(type(spec), inspect.isfunction))
    for name, value in (
        {k: v for k, v in own.items() if k not in functions} | getattr(spec, "__dict__", {})
    ).items():
        if problem := _problem(value):
            return f"attribute {name!r} ({type(value).__name__}) cannot be serialised: {problem}"
    for name, function in functions.items():
        for used, value in globals_of(function):
            if problem := _problem(value):
                return (
                    f"{name}() uses {used!r} ({type(value).__name__}), which cannot be serialised: {problem}"
                )
    return ""


def _problem(value: object) -> str:
    try:
        _dumps(value)
    except Exception as cause:  # noqa: BLE001 - see encode
        return f"{type(cause).__name__}: {cause}"
    return ""


def _source(cls: type) -> str:
    """The text of a class, if it is the text of the code in memory."""
    try:
        text, file = inspect.getsource(cls), inspect.getsourcefile(cls) or ""
    except (OSError, TypeError):
        return f"# the source of {cls.__name__} is not available"
    if Path(file).is_file() and _is_edited(
        cls, "".join(linecache.getlines(file))
    ):  # a notebook's cell is no file
        return (
            f"# The source of {cls.__name__} is not available: its file was edited after this kernel imported it.\n"
            "# The kernel sent the imported version. Restart it, or reload the module, to send the edited one."
        )
    return text


def _is_edited(cls: type, text: str) -> bool:
    """True if a method of the class is another one in the text of its file."""
    try:
        written = {code.co_qualname: code for code in _codes(compile(text, "", "exec", dont_inherit=True))}
    except (SyntaxError, ValueError):
        return True
    return any(
        fingerprint(code) != fingerprint(written[name])
        for name, code in _methods(cls).items()
        if name in written
    )


def _methods(cls: type) -> dict[str, types.CodeType]:
    """Code of the methods of a class by qualified name."""
    codes = [value.__code__ for value in vars(cls).values() if isinstance(value, types.FunctionType)]
    return {code.co_qualname: code for code in codes}


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
