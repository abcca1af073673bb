"""Print the requirements of dependency groups, one per line: ``packages.py GROUP... [--only NAME]``.

The images install the requirements separately from Cerebro's code, so that a code change does not change the package
layers. pip has no option to install only the requirements. Uses the standard library only, because it runs before any
package is installed.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

_PROJECT = Path("pyproject.toml")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_OWN_GROUPS = re.compile(r"\[([^\]]*)\]")


def requirements(project: Mapping[str, object], groups: Iterable[str]) -> Iterator[str]:
    """Yield the base requirements and the requirements of `groups`, nested groups included.

    Args:
        project: table ``project`` of pyproject.toml.
        groups: names of optional dependencies.

    Raises:
        SystemExit: if a group does not exist.
    """
    base, optional = project["dependencies"], project["optional-dependencies"]
    assert isinstance(base, list)
    assert isinstance(optional, dict)
    yield from base
    for group in groups:
        if group not in optional:
            sys.exit(f"{_PROJECT} has no group {group!r}, only {', '.join(sorted(optional))}")
        for line in optional[group]:
            own = _OWN_GROUPS.search(line) if name(line) == project["name"] else None
            if own is None:
                yield line
            else:
                yield from requirements(project, own[1].split(","))


def name(requirement: str) -> str:
    """Return the name of the required distribution."""
    found = _NAME.match(requirement)
    return found[0] if found else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the requirements of the groups, or only the one in ``--only``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("groups", nargs="+", metavar="GROUP")
    parser.add_argument("--only", metavar="NAME", help="print this requirement alone")
    options = parser.parse_args(arguments)
    project = tomllib.loads(_PROJECT.read_text())["project"]
    found = dict.fromkeys(requirements(project, options.groups))
    chosen = [line for line in found if options.only in (None, name(line))]
    if not chosen:
        sys.exit(f"{options.only} is in none of the groups {', '.join(options.groups)}")
    sys.stdout.write("".join(f"{line}\n" for line in chosen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
