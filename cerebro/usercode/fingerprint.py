"""Hash of an object's behaviour: equal for the same notebook in another kernel, different for other behaviour.

`encoding` stores it with each spec, so that equal `ETLSpec`s share a data set; `trial_runner.handler` uses it as part
of a trial's cache key. `is_local` and `globals_of` also decide for `encoding` which modules are sent by value.

The hash covers everything the object refers to: attributes, methods, their globals, the user's own classes, constants,
and the bytes of arrays and tensors. Pickles are not suitable: they contain file names, line numbers, random class ids
and addresses. Installed packages count by name and version. The walk reads memory and not source files, because
`encoding` sends the loaded modules, which may be older than their files.
"""

from __future__ import annotations

import copyreg
import csv
import dis
import hashlib
import os
import re
import site
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

_ATOMS = frozenset({str, int, float, complex, bool, type(None), type(...), type(NotImplemented)})

_BOOKKEEPING = frozenset(
    [
        "__dict__",
        "__weakref__",
        "__module__",
        "__doc__",
        "__firstlineno__",
        "__static_attributes__",
        "__abstractmethods__",
        "_abc_impl",
    ]
)
"""Class attributes that Python creates; they differ between versions, and some contain line numbers."""

_MODULE_BOOKKEEPING = frozenset(
    [
        "__builtins__",
        "__cached__",
        "__doc__",
        "__file__",
        "__loader__",
        "__path__",
        "__spec__",
        "__warningregistry__",
    ]
)
"""Module attributes of the import system; they contain paths."""

_ATTRIBUTE_INSTRUCTIONS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_GLOBAL_INSTRUCTIONS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})


class UnknownStateError(TypeError):
    """An object whose state cannot be read."""


def fingerprint(
    value: object, tensor_hash: Callable[[Any], str] | None = None, *, is_complete: bool = False
) -> str:
    """Return the SHA-256 of an object's code and of everything that the code uses.

    Args:
        tensor_hash: returns a hash of a tensor's bytes. Default: SHA-256, which is slow for large models.
        is_complete: True to miss no difference: the order of each dict counts, and objects whose state cannot be
            read are refused. Otherwise dicts with strings as keys count in sorted order, and such objects by type.

    Raises:
        UnknownStateError: such an object, if `is_complete`.
    """
    digest = hashlib.sha256()
    for part in _Walk(tensor_hash, is_complete=is_complete).parts(value):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def is_local(module: types.ModuleType | None) -> bool:
    """True if a module is the user's own: neither installed, in whichever environment, nor part of Cerebro."""
    if module is None or module.__name__ == "__main__":
        return False
    file = getattr(module, "__file__", None)
    if file is None and hasattr(module, "__path__"):  # a package without __init__.py
        file = next((f"{folder}{os.sep}__init__.py" for folder in module.__path__), None)
    if file is None or any(part in file for part in _INSTALLED_IN):
        return False
    # Compare text first: parsing paths dominates the time with thousands of modules.
    if file.startswith(_installed()) or str(Path(file)).startswith(_installed()):
        return False
    top, _, below = module.__name__.partition(".")
    if top in _dependencies() or (top in _SERVICES and Path(file).is_relative_to(_SOURCE_ROOT / top)):
        return False
    # The folder on `sys.path` may also contain packages (pip install --target).
    root = Path(file).parent if not hasattr(module, "__path__") else Path(file).parent.parent
    for _ in below.split(".") if below else ():
        root = root.parent
    return top not in _recorded(root)


@cache
def _installed() -> tuple[str, ...]:
    """Return the path prefixes of package folders; cached, because computing them takes a millisecond."""
    known = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    return tuple(f"{Path(folder)}{os.sep}" for folder in known | set(site.getsitepackages()))


_INSTALLED_IN = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
"""Folders of installed packages. Environments can be layered, so `site` does not list every folder."""

_SOURCE_ROOT = Path(__file__).parents[2]
_SERVICES = frozenset(
    {"cerebro", "controller", "dispatcher", "etl_worker", "kvs_api", "model_hopper", "trial_runner"}
)
"""Cerebro's own packages, which every worker has."""


@cache
def _dependencies() -> frozenset[str]:
    """Return the names of Cerebro's dependencies, which every worker has.

    cloudpickle cannot pickle itself by value.
    """
    requirements: list[str] = []
    with suppress(metadata.PackageNotFoundError):
        requirements = metadata.requires("cerebro-platform") or []
    names = (re.split(r"[^A-Za-z0-9_.-]", each, maxsplit=1)[0] for each in ["cloudpickle", *requirements])
    return frozenset(name.lower().replace("-", "_") for name in names)


@cache
def _recorded(folder: Path) -> frozenset[str]:
    """Return the import names of packages that pip has installed into a folder."""
    names: set[str] = set()
    for record in folder.glob("*.dist-info/RECORD"):
        with record.open(newline="", errors="replace") as file:
            names.update(row[0].split("/")[0].removesuffix(".py") for row in csv.reader(file) if row)
    return frozenset(names)


def globals_of(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Return the globals that a function and its nested functions use, sorted by name.

    Attribute names do not count, because notebooks often have variables with the same names.
    """
    names: set[str] = set()
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        names.update(i.argval for i in dis.get_instructions(code) if i.opname in _GLOBAL_INSTRUCTIONS)
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return [(name, function.__globals__[name]) for name in sorted(names) if name in function.__globals__]


def is_sent_by_value(value: types.FunctionType | type | types.ModuleType) -> bool:
    """Return True if a function, class or module is sent with its content.

    Others are sent as a name to import.
    """
    if isinstance(value, types.ModuleType):
        return is_local(value) or value.__name__ not in sys.modules
    if isinstance(value, type) and not value.__flags__ & _IS_MADE_AT_RUN_TIME:
        return False
    module = sys.modules.get(value.__module__ or "")
    if module is None or module.__name__ == "__main__" or is_local(module):
        return True
    imported: Any = module
    for name in value.__qualname__.split("."):
        imported = getattr(imported, name, None)
    return imported is not value


_IS_MADE_AT_RUN_TIME = 1 << 9
"""Flag of types created at run time, as opposed to static types of extension modules."""


def _used(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Return the globals that a function uses.

    Of the user's own modules, only used attributes count, as in `helpers.scale`, unless the code uses the module in
    another way.
    """
    used: dict[str, Any] = {}
    known = dict(globals_of(function))
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        instructions = list(dis.get_instructions(code))
        for position, instruction in enumerate(instructions):
            name = instruction.argval
            if instruction.opname not in _GLOBAL_INSTRUCTIONS or name not in known:
                continue
            value = known[name]
            for following in instructions[position + 1 :]:
                is_attribute = following.opname in _ATTRIBUTE_INSTRUCTIONS and is_local_module(value)
                if not is_attribute or following.argval not in vars(value):
                    break
                name, value = f"{name}.{following.argval}", vars(value)[following.argval]
            used[name] = value
    return sorted(used.items(), key=lambda item: item[0])


def is_local_module(value: object) -> bool:
    """Return True for a module of the user."""
    return isinstance(value, types.ModuleType) and is_local(value)


class _Walk:
    """One walk. A repeated object yields the number of its first occurrence, so sharing counts."""

    def __init__(self, tensor_hash: Callable[[Any], str] | None = None, *, is_complete: bool = False) -> None:
        self._tensor_hash, self._is_complete = tensor_hash, is_complete
        # Keep a reference: a freed object's address may be reused.
        self._visited: dict[int, tuple[int, object]] = {}

    def parts(self, value: object) -> Iterator[str]:
        """Yield strings that determine the behaviour of `value`, in a fixed order."""
        if type(value) in _ATOMS:
            yield repr(value)
        elif isinstance(value, (bytes, bytearray, memoryview)):
            yield f"bytes {hashlib.sha256(value).hexdigest()}"
        elif type(value) is tuple or isinstance(value, types.CodeType):
            # The compiler may merge equal constants, so they count by value.
            yield from self._compound(value)
        elif id(value) in self._visited:
            yield f"again {self._visited[id(value)][0]}"
        else:
            self._visited[id(value)] = (len(self._visited), value)
            yield from self._compound(value)

    def _compound(self, value: Any) -> Iterator[str]:
        yield type(value).__qualname__
        known = next((walker for kind, walker in _WALKERS.items() if isinstance(value, kind)), None)
        if type(value) in (dict, types.MappingProxyType):
            yield from self._items(value)
        elif type(value) in (list, tuple):
            for item in value:
                yield from self.parts(item)
        elif type(value) in (set, frozenset):
            yield from sorted("\1".join(self.parts(item)) for item in value)
        elif known is not None:
            yield from known(self, value)
        elif hasattr(value, "untyped_storage") and hasattr(value, "detach"):
            yield from self._tensor(value)
        else:
            yield from self._reduced(value)

    def _items(self, value: Any) -> Iterator[str]:
        by_name = not self._is_complete and all(isinstance(key, str) for key in value)
        for key in sorted(value) if by_name else list(value):
            yield from self.parts(key)
            yield from self.parts(value[key])

    def _module(self, module: types.ModuleType) -> Iterator[str]:
        yield f"{module.__name__} {getattr(module, '__version__', '')}"
        if is_sent_by_value(module):
            for name in sorted(vars(module)):
                if name not in _MODULE_BOOKKEEPING:
                    yield name
                    yield from self.parts(vars(module)[name])

    def _code(self, code: types.CodeType) -> Iterator[str]:
        yield code.co_code.hex() + code.co_exceptiontable.hex()
        yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags))
        yield repr((code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount))
        # Constants include the docstring and nested functions; file name and line numbers do not count.
        for constant in code.co_consts:
            yield from self.parts(constant)

    def _function(self, function: types.FunctionType) -> Iterator[str]:
        if not is_sent_by_value(function):
            yield _installed_name(function)
            return
        yield from self.parts(function.__code__)
        yield from self.parts((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                yield from self.parts(cell.cell_contents)
            except ValueError:
                yield "empty cell"
        if not _is_users(
            function
        ):  # made by an installed function, whose globals count by its package's version
            yield _installed_name(function)
            return
        for name, value in _used(function):
            yield name
            yield from self.parts(value)

    def _method(self, method: types.MethodType) -> Iterator[str]:
        yield from self.parts(method.__func__)
        yield from self.parts(method.__self__)

    def _wrapper(self, wrapper: Any) -> Iterator[str]:
        yield from self.parts(wrapper.__func__)

    def _property(self, value: property) -> Iterator[str]:
        yield from self.parts((value.fget, value.fset, value.fdel))

    def _class(self, cls: type) -> Iterator[str]:
        if not is_sent_by_value(cls):
            yield _installed_name(cls)
            return
        for base in cls.__bases__:
            yield from self.parts(base)
        for name in sorted(vars(cls)):
            if name not in _BOOKKEEPING:
                yield name
                yield from self.parts(vars(cls)[name])

    def _tensor(self, tensor: Any) -> Iterator[str]:
        yield f"{tensor.dtype} {tuple(tensor.shape)} {tensor.requires_grad}"
        if self._tensor_hash is not None:
            yield self._tensor_hash(tensor)
            return
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        yield hashlib.sha256(flat.view(sys.modules["torch"].uint8).numpy().tobytes()).hexdigest()

    def _reduced(self, value: Any) -> Iterator[str]:
        """Yield the parts that pickle would use: a callable, its arguments and the state."""
        if hasattr(value, "__wrapped__"):
            yield from self.parts(value.__wrapped__)
        reducer = copyreg.dispatch_table.get(type(value))
        try:
            reduced = reducer(value) if reducer else value.__reduce_ex__(4)
        except Exception as error:  # any object's own method may raise; it then counts by its type
            if self._is_complete:
                raise UnknownStateError(
                    f"the state of a {type(value).__qualname__} cannot be read"
                ) from error
            yield "opaque"
            return
        if isinstance(reduced, str):
            yield f"{getattr(value, '__module__', '')}.{reduced}"
            return
        make, arguments, state, items, pairs = (*reduced, None, None, None, None)[:5]
        yield from self.parts(make)
        yield from self.parts(tuple(arguments or ()))
        yield from self.parts(state)
        for item in items or ():
            yield from self.parts(item)
        for pair in pairs or ():
            yield from self.parts(tuple(pair))


_WALKERS: dict[Any, Callable[[_Walk, Any], Iterator[str]]] = {
    types.ModuleType: _Walk._module,
    types.CodeType: _Walk._code,
    types.FunctionType: _Walk._function,
    types.MethodType: _Walk._method,
    (staticmethod, classmethod): _Walk._wrapper,
    property: _Walk._property,
    type: _Walk._class,
}
"""Types that pickle would store by reference or not at all."""


def _is_users(value: types.FunctionType | type) -> bool:
    module = sys.modules.get(value.__module__ or "")
    return module is None or module.__name__ == "__main__" or is_local(module)


def _installed_name(value: types.FunctionType | type) -> str:
    package = sys.modules.get((value.__module__ or "").split(".")[0])
    return f"{value.__module__}.{value.__qualname__} {getattr(package, '__version__', '')}"
