"""``cerebro export``: results in MLflow, Weights & Biases or a package's tracker. The cluster is not changed.

Parses arguments and starts `cerebro.exports`, which has the mapping and the loop. Runs once, or until Ctrl-C with
``--follow``, as the chart's export pod does.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from cerebro.cli.administration.scale import cluster_client
from cerebro.cli.parsing import pair
from cerebro.errors import ClusterError

if TYPE_CHECKING:
    from cerebro.client.files import Files
    from cerebro.exports.export_loop import Export, ExportLoop
    from cerebro.exports.mlflow_registry import RegistryExport
    from cerebro.exports.projection import Projection
    from cerebro.runtime.kvs.client import KvsClient


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``export`` to the subcommands.

    Args:
        common: parser of the options shared by all commands on a cluster.
    """
    export = commands.add_parser("export", help="copy results to another tracker, such as MLflow or W&B")
    trackers = export.add_subparsers(required=True, metavar="TRACKER")

    def tracker(name: str, about: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = trackers.add_parser(name, parents=[common], help=about)
        _add_selection(parser)
        return parser

    mlflow = tracker("mlflow", "to runs of an MLflow tracking server")
    mlflow.add_argument("--url", metavar="URL", help="the server's address (default: $MLFLOW_TRACKING_URI)")
    mlflow.add_argument(
        "--checkpoints", action="store_true", help="also checkpoints of models that have ended"
    )
    mlflow.add_argument(
        "--registry", action="store_true", help="also, or only, registered models, to its model registry"
    )
    mlflow.set_defaults(run=_mlflow)
    wandb = tracker("wandb", "to runs of Weights & Biases; needs its package")
    wandb.add_argument(
        "--project", default="", metavar="P", help="W&B project (default: the experiment's name)"
    )
    wandb.add_argument("--entity", default="", metavar="E", help="W&B user or team (default: you)")
    wandb.set_defaults(run=_wandb)
    # Not one command for each package: finding them takes a tenth of a second, at every command.
    package = trackers.add_parser(
        "package", parents=[common], help="to a tracker that an installed package adds"
    )
    package.add_argument("tracker", metavar="NAME")
    _add_selection(package)
    package.add_argument(
        "--option",
        metavar="KEY=VALUE",
        type=pair,
        action="append",
        default=[],
        help="option of the package's exporter",
    )
    package.set_defaults(run=_package)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", metavar="EXPERIMENT", nargs="*")
    parser.add_argument("--all", action="store_true", help="all experiments")
    parser.add_argument("--follow", action="store_true", help="continue as sub-epochs commit, until Ctrl-C")


def _mlflow(options: argparse.Namespace) -> int:
    from cerebro.exports.mlflow_export import MlflowExport
    from cerebro.exports.mlflow_registry import RegistryExport
    from cerebro.exports.mlflow_server import MlflowServer

    url = options.url or os.environ.get("MLFLOW_TRACKING_URI", "")
    server = MlflowServer(url, os.environ)
    files = _files(options) if options.checkpoints else None
    checkpoint = files.merged if files else None
    if not options.registry:
        return _export(
            options, lambda projection: MlflowExport(server, projection, checkpoint), server.address
        )
    registry = RegistryExport(server, checkpoint)
    if options.experiment or options.all:
        export = partial(MlflowExport, server, checkpoint=checkpoint)
        return _export(options, export, server.address, registry)
    if options.follow:
        raise ClusterError("--registry with --follow needs experiments: name them, or give --all")
    return _push(cluster_client(options.home), registry, server.address)


def _push(kvs: KvsClient, registry: RegistryExport, where: str) -> int:
    registry.push(kvs.registry())
    sys.stdout.write(f"{registry.sent} new versions of registered models are at {where}.\n")
    return 0


def _wandb(options: argparse.Namespace) -> int:
    from cerebro.exports.wandb_export import WandbExport

    def export(projection: Projection) -> Export:
        return WandbExport(projection, project=options.project, entity=options.entity)

    return _export(options, export, "W&B")


def _package(options: argparse.Namespace) -> int:
    from cerebro.runtime import plugins

    plugin = plugins.find("exporters", options.tracker)
    if plugin is None:
        known = ", ".join(plugins.names("exporters")) or "none"
        raise ClusterError(f"no installed package exports to {options.tracker!r} (installed: {known})")
    values = dict(options.option)
    make = plugin.load_callable("a function that returns a cerebro.exports.Export")
    return _export(options, lambda projection: make(projection, values), options.tracker)


def _files(options: argparse.Namespace) -> Files:
    from cerebro.client.connection import connect

    return connect(home=options.home, start=False).files


def _export(
    options: argparse.Namespace,
    export: Callable[[Projection], Export],
    where: str,
    registry: RegistryExport | None = None,
) -> int:
    from cerebro.exports.export_loop import ExperimentExport, ExportLoop
    from cerebro.runtime import logs

    if bool(options.experiment) == options.all:
        raise ClusterError("name the experiments to export, or give --all instead of names")
    kvs = cluster_client(options.home)
    if options.follow:
        logs.set_up("export", os.environ)
        for name in options.experiment:
            kvs.experiment(name)  # Raises if it does not exist.
        push_models = (lambda: registry.push(kvs.registry())) if registry else (lambda: None)
        loop = ExportLoop(kvs, export, options.experiment, push_models)
        if bind := os.environ.get("CEREBRO_HEALTH_BIND", ""):
            _answer_probes(bind, loop)
        loop.run()
        return 0
    names = options.experiment or [summary.experiment.name for summary in kvs.experiments()]
    for name in names:
        exported = ExperimentExport(kvs, kvs.experiment(name), export)
        exported.catch_up()
        sys.stdout.write(
            f"{name}: {exported.sent} new values of events up to {exported.seq} are at {where}.\n"
        )
    return _push(kvs, registry, where) if registry else 0


_HUNG_S = 900.0
"""Longer than any healthy pass: a request is retried for two minutes, and a large grid needs many requests."""


def _answer_probes(bind: str, loop: ExportLoop) -> None:
    from cerebro.runtime.web import health

    def check() -> str:
        still_s = time.monotonic() - loop.last_progress
        return f"no progress for {still_s:.0f} s" if still_s > _HUNG_S else ""

    health.serve(bind, ready=check, live=check)
