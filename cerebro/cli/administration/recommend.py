"""``cerebro recommend``: print memory and CPU requests for worker containers, from their measured use.

Reads each worker's usage of the last day and the history of sub-epochs; `cerebro.client.recommendation` computes the
values. Prints them in the form of the chart's values and changes nothing.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from cerebro.cli.administration.scale import cluster_client
from cerebro.errors import NotFoundError

if TYPE_CHECKING:
    from cerebro.client.recommendation import ContainerUsage, Recommendation, Role
    from cerebro.runtime.kvs.client import KvsClient


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``recommend`` to the subcommands.

    Args:
        common: parser of the options shared by all commands on a cluster.
    """
    parser = commands.add_parser(
        "recommend",
        parents=[common],
        help="recommend memory and CPU requests for workers, from their use",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from cerebro.client.recommendation import recommend

    kvs = cluster_client(options.home)
    usages = _container_usages(kvs)
    if not usages:
        raise NotFoundError("no worker has reported its use: see `cerebro status`")
    for role, found in recommend(usages, _peaks(kvs)).items():
        for line in lines(role, found):
            print(line)
    return 0


def _container_usages(kvs: KvsClient) -> list[ContainerUsage]:
    from cerebro.client.recommendation import ContainerUsage

    found = []
    for status in kvs.workers():
        try:
            samples = kvs.usage(status.record.worker)
        except NotFoundError:
            continue  # It has not reported yet.
        found.append(ContainerUsage(record=status.record, samples=samples))
    return found


def _peaks(kvs: KvsClient) -> list[int]:
    """Return the memory peaks of earlier sub-epochs; similar sub-epochs share their largest peak."""
    found: list[int] = []
    for row in kvs.history().sub_epochs.values():
        found += [row.peak_bytes] * round(row.sub_epochs) if row.peak_bytes else []
    return found


def lines(role: Role, found: Recommendation | None) -> list[str]:
    """Format a recommendation, with values for the chart."""
    from cerebro.client.recommendation import MIN_SAMPLES

    containers = "containers that train" if role == "worker" else "containers that preprocess"
    if found is None:
        return [f"{containers}: too few measurements, less than {MIN_SAMPLES} sub-epochs or samples at work"]
    now = "no limit" if found.current_limit is None else f"a limit of {_size(found.current_limit)}"
    output = [
        f"{containers}: at most {_size(found.peak_bytes)} of memory were used, with {now} "
        f"({found.attempts} sub-epochs, {found.samples} samples at work)"
    ]
    if found.is_near:
        return [*output, "  the present values fit"]
    cores = "" if found.cores is None else f"cpu: {found.cores:g}, "
    return [
        *output,
        f"  worker: {{resources: {{{role}: {{requests: {{{cores}memory: {_quantity(found.request_bytes)}}}, "
        f"limits: {{memory: {_quantity(found.limit_bytes)}}}}}}}}}",
    ]


def _size(number: int) -> str:
    return f"{number / 2**30:.2f} GiB"


def _quantity(number: int) -> str:
    """Format bytes as a Kubernetes quantity."""
    return f"{number >> 20}Mi"
