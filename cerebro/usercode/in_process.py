"""User code in the user's own process, restored as on a worker, with the same files.

The client uses `UserCode` for a dry run and for the modules of a trained model. A worker has a separate process for
each task; here all changes to imports and random generators are undone afterwards.
"""

from __future__ import annotations

import importlib
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from cerebro.contract.records import ExperimentRecord
from cerebro.data.misc import fetch_misc
from cerebro.usercode.archive import extract
from cerebro.usercode.encoding import decode
from cerebro.usercode.fingerprint import is_local
from cerebro.usercode.fitted import restore_fitted


@dataclass(frozen=True, kw_only=True)
class UserCode:
    """The environment of an experiment's specs.

    Attributes:
        record: the experiment's record.
        archive: returns the bytes of a code archive by its hash.
        folder: returns the folder for the archive's and the miscellaneous files. Its creator removes it, unless it is a
            cache.
        fitted: returns the bytes of the data set's `ETLSpec.fit` result; `None` without one.
    """

    record: ExperimentRecord
    archive: Callable[[str], bytes]
    folder: Callable[[], Path]
    fitted: Callable[[], bytes] | None = None

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Make the archive's modules importable, with the same precedence as on a worker.

        Installed modules come first. The archive precedes the user's local files, and other archives that this process
        has imported. Afterwards, imports work as before.
        """
        if self.record.archive is None:
            yield
            return
        code_folder = (self.folder() / "code" / self.record.archive).resolve()
        extract(self.archive(self.record.archive), code_folder)
        names = frozenset(name for name in _names(code_folder) if not _is_installed(name))
        original_modules = _remove_modules(names)
        finder = _Finder(code_folder, names)
        sys.meta_path.insert(0, finder)
        sys.path.append(str(code_folder))
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            sys.path.remove(str(code_folder))
            _remove_modules(names)
            for name, module in list(sys.modules.items()):
                file = getattr(module, "__file__", None)
                if isinstance(file, str) and Path(file).is_relative_to(code_folder):
                    del sys.modules[name]
            sys.modules.update(original_modules)

    def spec(self, encoded: str) -> Any:
        """Restore a spec and set `misc_dir` and `fitted`; does not initialise it.

        Raises:
            SpecError: it cannot be restored.
            DataError: the result of `fit` is missing or damaged.
            LocatorError, ObjectStoreError: a miscellaneous file is missing or unreadable.
        """
        spec = decode(encoded)
        spec.misc_dir = fetch_misc(self.record.locators.misc, self.folder() / "misc")
        if self.fitted is not None:
            spec.fitted = restore_fitted(self.fitted())
        return spec

    def fitted_value(self) -> Any:
        """Restore the result of `ETLSpec.fit`; `None` without one.

        Raises:
            SpecError: it cannot be restored.
            DataError: it is missing or damaged.
        """
        if self.fitted is None:
            return None
        content = self.fitted()
        with self.importable(), generators_kept():
            return restore_fitted(content)


class _Finder:
    """Finds modules with some names in one folder."""

    def __init__(self, code_folder: Path, names: frozenset[str]) -> None:
        self._folder, self._names = str(code_folder), names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module in the folder; None for other names."""
        return PathFinder.find_spec(name, [self._folder], target) if name in self._names else None


def _names(code_folder: Path) -> Iterator[str]:
    for entry in code_folder.iterdir():
        name = entry.name if entry.is_dir() else inspect.getmodulename(entry.name)
        if name is not None and name.isidentifier():
            yield name


def _is_installed(name: str) -> bool:
    """Return True if a module of this name is part of Python, Cerebro or an installed package."""
    if name in sys.stdlib_module_names or name in sys.builtin_module_names:
        return True
    module_spec = PathFinder.find_spec(name)
    if module_spec is None or not module_spec.has_location or module_spec.origin is None:
        return False
    module = ModuleType(name)
    module.__file__ = module_spec.origin
    if module_spec.submodule_search_locations is not None:
        module.__path__ = list(module_spec.submodule_search_locations)
    return not is_local(module)


def _remove_modules(names: frozenset[str]) -> dict[str, ModuleType]:
    """Remove modules with these names, and their submodules, from `sys.modules`."""
    removed = [name for name in list(sys.modules) if name.partition(".")[0] in names]
    return {name: sys.modules.pop(name) for name in removed}


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the global random generators of Python, NumPy and torch afterwards."""
    torch: Any = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()
    cpu = torch.get_rng_state() if torch else None
    # Initialising CUDA would take memory on each GPU.
    gpus = torch.cuda.get_rng_state_all() if torch and torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch:
            torch.set_rng_state(cpu)
            if gpus:
                torch.cuda.set_rng_state_all(gpus)
