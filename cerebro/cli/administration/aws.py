"""``cerebro cluster``: clusters on AWS. This module parses arguments; `cerebro.cloud` does the work.

AWS packages are imported when a command runs, so that the command line works without boto3.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

from cerebro.errors import ProvisionError

_ACTIONS = {
    "create": "create the cluster of a file, or its missing parts",
    "delete": "delete the cluster with all its data, and check that no billed resource remains",
    "pause": "end its nodes and keep its data",
    "resume": "start its nodes again",
    "status": "show its resources, their state, and which are billed",
}


def register(commands: Any) -> None:
    """Add ``cluster`` to the subcommands."""
    cluster = commands.add_parser("cluster", help="create, pause, resume, show or delete a cluster on AWS")
    actions = cluster.add_subparsers(required=True, metavar="ACTION")
    for name, about in _ACTIONS.items():
        action = actions.add_parser(name, help=about)
        example, folder = "such as infra/eksctl/cluster.yaml", "where generated files and logs go"
        action.add_argument("-f", "--file", type=Path, required=True, metavar="FILE", help=example)
        action.add_argument("--home", metavar="DIR", help=f"{folder} (default: $CEREBRO_HOME or ~/.cerebro)")
        if name != "status":
            action.add_argument("--dry-run", action="store_true", help="print commands, change nothing")
        if name == "delete":
            action.add_argument("--yes", action="store_true", help="do not ask for the name")
        action.set_defaults(run=run, action=name, dry_run=False, yes=False)


def run(options: argparse.Namespace) -> int:
    """Run an action; return the exit status."""
    if missing := [name for name in ("boto3", "yaml") if importlib.util.find_spec(name) is None]:
        how = "pip install 'cerebro-platform[provision]', or `make setup` in a checkout"
        raise ProvisionError(f"not installed: {', '.join(missing)}. {how}")
    from cerebro.cloud import actions
    from cerebro.cloud.site import open_site
    from cerebro.local.home import ClusterHome

    site = open_site(options.file, ClusterHome(options.home).path, is_dry=options.dry_run, show=_show)
    if options.action == "status":
        _show("\n".join(actions.status_lines(site)))
        return 0
    with site.locked():
        try:
            if options.action == "delete":
                actions.delete(site, lambda plan: options.yes or _confirms(plan, site.file.name))
            else:
                {"create": actions.create, "pause": actions.pause, "resume": actions.resume}[options.action](
                    site
                )
        except KeyboardInterrupt:
            _show(
                "Interrupted. AWS continues the started operations, at your cost: give the same command again to "
                "continue."
            )
            raise
    return 0


def _confirms(plan: str, name: str) -> bool:
    _show(plan)
    if not sys.stdin.isatty():
        raise ProvisionError(
            "nothing was deleted, because no terminal can confirm it. In scripts, give --yes"
        )
    return input(f"Type the name {name} to continue: ").strip() == name


def _show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
