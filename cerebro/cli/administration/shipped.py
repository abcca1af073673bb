"""``cerebro demo`` and ``files``: run the digits example, and print where files that come with Cerebro are.

`cerebro.runtime.shipped_files` finds the files. The demo is `examples/digits.py` itself, as a process. In the notebook
image, which cannot start a cluster, it uses the image's cluster.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cerebro.errors import ClusterError
from cerebro.runtime.shipped_files import SOURCES, is_image, shipped_folder


def register(commands: Any, common: argparse.ArgumentParser, count: Callable[[str], int]) -> None:
    """Add ``demo`` and ``files`` to the subcommands."""
    demo = commands.add_parser(
        "demo", parents=[common], help="train 8 models on handwritten digits with a local cluster"
    )
    demo.add_argument("--workers", type=count, metavar="N", help="number of workers (default: 2)")
    demo.add_argument("--epochs", type=count, metavar="N", help="epochs of each model (default: 10)")
    demo.add_argument(
        "--results",
        type=Path,
        default=Path("results/digits"),
        metavar="FOLDER",
        help="folder for tables and the report (default: %(default)s)",
    )
    demo.set_defaults(run=_demo)

    files = commands.add_parser("files", help="print the folder of the examples, the notebooks or the chart")
    files.add_argument("name", choices=SOURCES, metavar="NAME", help=f"one of {', '.join(SOURCES)}")
    files.set_defaults(run=_files)


def _demo(options: argparse.Namespace) -> int:
    from cerebro.local import requirements

    script = shipped_folder("examples") / "digits.py"
    uses_given_cluster = is_image()
    if uses_given_cluster:
        _require_cluster(options)
    else:
        requirements.require(also=("PIL", "sklearn"))
    results = options.results.absolute()
    try:
        results.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise ClusterError(
            f"cannot create {results}: {cause.strerror}. Name a folder that you can write with --results FOLDER"
        ) from cause
    command = [sys.executable, str(script), "--output", str(results)]
    for name in ("workers", "epochs"):
        if (number := getattr(options, name)) is not None:
            command += [f"--{name}", str(number)]
    # The demo is for the local cluster, even if notebooks use a cluster elsewhere.
    ignored = () if uses_given_cluster else _ELSEWHERE
    environment = {name: text for name, text in os.environ.items() if name not in ignored}
    if options.home is not None:
        environment["CEREBRO_HOME"] = str(Path(options.home).absolute())
    sys.stdout.flush()
    os.execve(command[0], command, environment)  # Ctrl-C then reaches the example itself.


_ELSEWHERE = ("CEREBRO_SERVER", "CEREBRO_TOKEN")


def _require_cluster(options: argparse.Namespace) -> None:
    if options.workers is not None:
        raise ClusterError(
            "--workers is for a local cluster; in an image the demo uses the cluster that there is"
        )
    if not os.environ.get("CEREBRO_SERVER"):
        raise ClusterError(
            "an image cannot start a local cluster: set CEREBRO_SERVER and CEREBRO_TOKEN to use a cluster, or "
            "`pip install 'cerebro-platform[local]'` on your machine and run `cerebro demo` there"
        )


def _files(options: argparse.Namespace) -> int:
    print(shipped_folder(options.name))
    return 0
