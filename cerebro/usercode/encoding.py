"""Serialisation of user code.

The client encodes a spec, a user's technique or search procedure once, for the store. A spec object is pickled by value
with everything it uses from the notebook or local modules, so that a worker can restore it without them. Only processes
that run user code decode it: a worker's child process, or the user's own process for a dry run, a model's modules or a
replay. The encoded text has at most 32 MiB.
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
    _code_reduce,
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
        spec: the object.
        author: name of the user.
        hint: advice for an object that cannot be serialised.

    Raises:
        SpecError: `spec` is a class, is too large, or refers to an object that cannot be serialised, which the message
            names.
    """
    if isinstance(spec, type):
        raise SpecError(f"{spec.__name__} is a class: pass an object, {spec.__name__}()")
    try:
        content = _dumps(spec)
    except Exception as cause:  # pickling runs any __reduce__ method, which may raise anything
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
    """Restore an encoded object with new classes; classes of this process keep their methods.

    Runs user code.

    Raises:
        SpecError: it cannot be restored, for example because a module is missing on the worker.
    """
    try:
        return _Decoder(io.BytesIO(base64.b64decode(encoded))).load()
    except ModuleNotFoundError as cause:
        raise SpecError(
            f"the worker has no module {cause.name!r}, which the spec needs: add it to a requirements.txt among the "
            "uploaded code, or upload the module itself"
        ) from cause
    except SpecError:  # `named.restored` raised it with a message for the user
        raise
    except Exception as cause:  # unpickling runs user code, which may raise anything
        raise SpecError(
            f"the spec cannot be restored on the worker: {type(cause).__name__}: {cause}"
        ) from cause


def packed(value: object, description: str, max_bytes: int) -> bytes:
    """Serialise a value of user code with everything it needs, for `restored`.

    Args:
        value: the value.
        description: name of the value, for messages.
        max_bytes: maximum size.

    Raises:
        SpecError: it cannot be serialised, or is too large.
    """
    try:
        content = _dumps(value)
    except Exception as cause:  # pickling runs any __reduce__ method, which may raise anything
        raise SpecError(
            f"{description}, a {type(value).__name__}, cannot be stored: {type(cause).__name__}: {cause}. "
            "Return numbers, arrays, texts, and dicts and lists of them"
        ) from cause
    if len(content) > max_bytes:
        raise SpecError(
            f"{description} takes {len(content) / 2**20:,.0f} MiB, at most {max_bytes / 2**20:,.0f}: "
            "keep only the necessary part, such as the most frequent words"
        )
    return content


def restored(content: bytes, description: str) -> Any:
    """Restore a `packed` value. Runs user code.

    Raises:
        SpecError: it cannot be restored.
    """
    try:
        return _Decoder(io.BytesIO(content)).load()
    except Exception as cause:  # unpickling runs user code, which may raise anything
        raise SpecError(f"{description} cannot be restored: {type(cause).__name__}: {cause}") from cause


class _Decoder(pickle.Unpickler):
    """Unpickler that creates new classes for those sent by value.

    cloudpickle would look for the original class in this process and change it: a class of a notebook cell would no
    longer see the notebook's variables.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return the class or function."""
        loaded = super().find_class(module, name)
        return _untracked(loaded) if (module, name) in _CLASS_MAKERS else loaded


_CLASS_MAKERS = {
    ("cloudpickle.cloudpickle", "_make_skeleton_class"),
    ("cloudpickle.cloudpickle", "_make_skeleton_enum"),
}


def _untracked(make: Callable[..., Any]) -> Callable[..., Any]:
    def make_untracked(*arguments: Any) -> Any:
        *leading, _identity, extra = arguments
        return make(*leading, None, extra)

    return make_untracked


# --- serialising --------------------------------------------------------------------------------


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Pickles the user's own modules, classes and functions by value.

    cloudpickle has a global registry for this, which is not safe with threads.
    """

    def reducer_override(self, obj: Any) -> Any:
        """Reduce one object; see `pickle.Pickler.reducer_override`."""
        if isinstance(obj, types.ModuleType):
            if is_local(obj):
                attributes = {name: value for name, value in vars(obj).items() if name not in _IMPORT_SYSTEM}
                return dynamic_subimport, (obj.__name__, attributes)
        elif isinstance(obj, types.CodeType):
            return _code_with_file_reduce(obj)
        elif isinstance(obj, (types.FunctionType, type, TypeVar)) and is_local(
            sys.modules.get(obj.__module__ or "")
        ):
            if isinstance(obj, types.FunctionType):
                return self._dynamic_function_reduce(obj)
            return _dynamic_class_reduce(obj) if isinstance(obj, type) else _typevar_reduce(obj)
        return super().reducer_override(obj)


_IMPORT_SYSTEM = frozenset({"__builtins__", "__cached__", "__loader__", "__path__", "__spec__"})
"""Module attributes that are meaningless on the worker or cannot be serialised."""


def _code_with_file_reduce(code: types.CodeType) -> Any:
    """Reduce a code object with its file name, which cloudpickle 3.1.3 replaces, for tracebacks."""
    make, values = _code_reduce(code)
    return make, tuple(code.co_filename if value == "<dynamic-code>" else value for value in values)


def _typevar_reduce(variable: TypeVar) -> Any:
    return _make_typevar, _decompose_typevar(variable)


def _dumps(value: object) -> bytes:
    content = io.BytesIO()
    _Pickler(content).dump(value)
    return content.getvalue()


def _culprit(spec: object) -> str:
    """Describe the attribute, or global of a method, that cannot be serialised."""
    class_attributes = {name: value for name, value in vars(type(spec)).items() if not name.startswith("__")}
    functions = dict(inspect.getmembers(type(spec), inspect.isfunction))
    for name, value in (
        {k: v for k, v in class_attributes.items() if k not in functions} | getattr(spec, "__dict__", {})
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
    """Return the source of a class if it matches the code in memory, else a comment."""
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
    """Return True if the file's text has another version of a method of the class."""
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
    codes = [value.__code__ for value in vars(cls).values() if isinstance(value, types.FunctionType)]
    return {code.co_qualname: code for code in codes}


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
