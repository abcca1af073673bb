"""Emulate the control image on a development machine: imports of all other packages fail.

`hide_packages` writes a ``sitecustomize`` module. Processes with its folder on ``PYTHONPATH`` load it, and so do their
children.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_SITECUSTOMIZE = '''\
import sys
from importlib.machinery import PathFinder

ABSENT = frozenset({absent!r})


class ImageFinder:
    """Finds what the image has."""

    find_distributions = PathFinder.find_distributions

    @staticmethod
    def find_spec(name, path=None, target=None):
        parts = name.split(".")
        if any(".".join(parts[:count]) in ABSENT for count in range(1, len(parts) + 1)):
            return None
        return PathFinder.find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = ImageFinder
'''


def closure(roots: Iterable[Requirement]) -> set[str]:
    """Return the names of all distributions that installing `roots` requires, from installed metadata."""
    pending, trained, names = list(roots), set[tuple[str, frozenset[str]]](), set[str]()
    while pending:
        requirement = pending.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in trained:
            continue
        trained.add(key)
        names.add(key[0])
        try:
            pending += _direct_requirements(*key)
        except PackageNotFoundError:
            pytest.fail(f"{key[0]} is required and not installed: run `make test`, which installs it")
    return names


def _direct_requirements(distribution: str, extras: frozenset[str]) -> list[Requirement]:
    """Return the requirements that an installed distribution declares for this machine with these extras."""
    environments = [{"extra": extra} for extra in sorted(extras | {""})]
    found = [Requirement(line) for line in requires(distribution) or []]
    return [
        requirement
        for requirement in found
        if requirement.marker is None or any(requirement.marker.evaluate(e) for e in environments)
    ]


def hide_packages(
    folder: Path, *, installed: Iterable[str], trimmed: Iterable[str], own: Iterable[str]
) -> set[str]:
    """Write ``sitecustomize.py`` to `folder`, and return the names of all hidden modules.

    Args:
        installed: distributions of the image, including indirect ones.
        trimmed: patterns of files that the build removes from ``site-packages``.
        own: the project's packages.
    """
    has = {canonicalize_name(each) for each in installed}
    absent = {
        module
        for module, distributions in packages_distributions().items()
        if not {canonicalize_name(each) for each in distributions} & has
    }
    absent |= set(_modules(trimmed))
    absent -= {*own, *sys.stdlib_module_names, "tests"}
    (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE.format(absent=sorted(absent)))
    return absent


def _modules(patterns: Iterable[str]) -> Iterable[str]:
    """Return the names of modules that match patterns of files below ``site-packages``."""
    for place in {Path(each) for each in sys.path if Path(each).name == "site-packages"}:
        for pattern in patterns:
            for path in place.glob(pattern):
                if path.suffix in ("", ".py"):
                    yield ".".join(path.relative_to(place).with_suffix("").parts)
