"""User code in the process of its user: restored as a worker restores it, with the files that a worker would give it.

For a dry run and for the modules of a trained model. A worker has a process for each of these things; here the process
is the user's, so what is changed in it for a while is put back.
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
    """What specs of one experiment need around them.

    Attributes:
        record: of the experiment.
        archive: bytes of a code archive by its hash.
        folder: for its files and the miscellaneous ones; kept if it is a cache, else removed by whoever made it.
        fitted: bytes of what `ETLSpec.fit` returned for the data set; `None` where it has nothing of that kind.
    """

    record: ExperimentRecord
    archive: Callable[[str], bytes]
    folder: Path
    fitted: Callable[[], bytes] | None = None

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Let the archive's files be imported, and be found as on a worker: behind what is installed, but not behind
        the user's own files here, nor behind those of another archive that this process has imported. Afterwards
        `import` means what it meant before."""
        if self.record.archive is None:
            yield
            return
        place = (self.folder / "code" / self.record.archive).resolve()
        extract(self.archive(self.record.archive), place)
        names = frozenset(name for name in _names(place) if not _is_installed(name))
        before = _taken_out(names)
        finder = _Finder(place, names)
        sys.meta_path.insert(0, finder)
        sys.path.append(str(place))
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            sys.path.remove(str(place))
            _taken_out(names)
            for name, module in list(sys.modules.items()):
                file = getattr(module, "__file__", None)
                if isinstance(file, str) and Path(file).is_relative_to(place):
                    del sys.modules[name]
            sys.modules.update(before)

    def spec(self, encoded: str) -> Any:
        """A spec restored, and told where the miscellaneous files are and what was fitted; not initialised.

        Raises:
            SpecError: it cannot be restored.
            DataError: what was fitted cannot be had, or is damaged.
            LocatorError, ObjectStoreError: a miscellaneous file cannot be had.
        """
        spec = decode(encoded)
        spec.misc_dir = fetch_misc(self.record.locators.misc, self.folder / "misc")
        if self.fitted is not None:
            spec.fitted = restore_fitted(self.fitted())
        return spec


class _Finder:
    """Finds modules of some names in one folder."""

    def __init__(self, place: Path, names: frozenset[str]) -> None:
        self._place, self._names = str(place), names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module of that name in the folder; None for other names, which other finders look for."""
        return PathFinder.find_spec(name, [self._place], target) if name in self._names else None


def _names(place: Path) -> Iterator[str]:
    """Of the modules and packages that a folder has."""
    for entry in place.iterdir():
        name = entry.name if entry.is_dir() else inspect.getmodulename(entry.name)
        if name is not None and name.isidentifier():
            yield name


def _is_installed(name: str) -> bool:
    """Whether a module of that name comes with Python, with Cerebro or with an installed package."""
    if name in sys.stdlib_module_names or name in sys.builtin_module_names:
        return True
    found = PathFinder.find_spec(name)
    if found is None or not found.has_location or found.origin is None:
        return False
    module = ModuleType(name)
    module.__file__ = found.origin
    if found.submodule_search_locations is not None:
        module.__path__ = list(found.submodule_search_locations)
    return not is_local(module)


def _taken_out(names: frozenset[str]) -> dict[str, ModuleType]:
    """Modules of these names, and all below them, which this process has from now on not imported."""
    taken = [name for name in list(sys.modules) if name.partition(".")[0] in names]
    return {name: sys.modules.pop(name) for name in taken}


@contextmanager
def generators_kept() -> Iterator[None]:
    """Put the global random generators of Python, NumPy and torch back to where they were."""
    torch: Any = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()
    cpu = torch.get_rng_state() if torch else None
    # Not initialised here: that would take memory of each GPU.
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
