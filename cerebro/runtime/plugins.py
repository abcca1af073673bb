"""Extensions in installed packages, such as techniques and samplers, found by entry points.

A package declares them in its metadata, such as ``[project.entry-points."cerebro.techniques"]`` in its
``pyproject.toml``. Nothing is imported before its name is used. A built-in name has priority; `cerebro doctor`
reports a package that claims one.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from cerebro.errors import PluginError

Group = Literal["techniques", "procedures", "samplers", "stores", "exporters", "metrics"]
GROUPS: tuple[Group, ...] = get_args(Group)


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """An object of a package.

    Attributes:
        place: module and name in it, such as ``halving:Halving``.
        package: name and version of the package.
    """

    group: Group
    name: str
    place: str
    package: str

    def load(self) -> object:
        """Import the object.

        Raises:
            PluginError: the import failed; the message has the error.
        """
        module, _, name = self.place.partition(":")
        entry = importlib.metadata.EntryPoint(self.name, self.place, f"cerebro.{self.group}")
        try:
            return entry.load()
        except Exception as cause:
            raise PluginError(
                f"{self.name!r} of the package {self.package} cannot be loaded: importing {name or module} from "
                f"{module} failed with {type(cause).__name__}: {cause}. Repair or uninstall the package"
            ) from cause

    def load_callable(self, expected: str) -> Callable[..., Any]:
        """Import a class or function.

        Args:
            expected: description for the error.

        Raises:
            PluginError: the import failed, or the object cannot be called.
        """
        found = self.load()
        if not callable(found):
            raise PluginError(f"{self.place} of the package {self.package} is {found!r}, expected {expected}")
        return found


def find(group: Group, name: str) -> Plugin | None:
    """Return the plugin with this name; `None` if no package has it.

    Raises:
        PluginError: several packages claim the name.
    """
    claims = [plugin for plugin in installed(group) if plugin.name == name]
    if len(claims) > 1:
        packages = " and ".join(sorted(plugin.package for plugin in claims))
        raise PluginError(f"{packages} both have cerebro.{group} named {name!r}: uninstall one of them")
    return claims[0] if claims else None


def names(group: Group) -> list[str]:
    """Return the names in a group, sorted."""
    return sorted({plugin.name for plugin in installed(group)})


def installed(group: Group) -> tuple[Plugin, ...]:
    """Return the plugins of all installed packages, without importing them."""
    found = importlib.metadata.entry_points(group=f"cerebro.{group}")
    return tuple(
        Plugin(group=group, name=each.name, place=each.value, package=_package(each)) for each in found
    )


def problems(group: Group, built_in: Collection[str]) -> Iterator[str]:
    """Yield the problems of a group: failed imports, and names that are claimed twice."""
    for name in names(group):
        try:
            plugin = find(group, name)
            if plugin is not None:
                plugin.load()
                if name in built_in:
                    yield f"{plugin.package} has cerebro.{group} named {name!r}, which is built in and has priority"
        except PluginError as error:
            yield str(error)


def _package(entry: importlib.metadata.EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "unknown"
