"""Preparing an ETL run: read the metadata, cut it, leave each worker's rows on the shared volume.

Effects are files under a data set's own folder, written aside and renamed: doing it again changes nothing. The
controller has it done by `controller.preparation_process`, and so never holds Arrow or a table itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from cerebro.contract.base import Split
from cerebro.contract.records import ExperimentRecord
from cerebro.contract.runs import EtlPlan, EtlRequest, PartitionPlan
from cerebro.data.locators import Metadata, read_metadata
from cerebro.data.misc import versions
from cerebro.errors import MetadataError
from cerebro.runtime.volumes import Volumes
from controller.partition import cut, sample


def prepare_etl(
    record: ExperimentRecord,
    known: Mapping[str, EtlPlan],
    request: EtlRequest,
    weights: Mapping[str, float],
    volumes: Volumes,
) -> EtlPlan:
    """The plan of an ETL run, its partitioned metadata written to the shared volume.

    The data set's id is a fingerprint of everything that determines its rows; when the experiment has that data set
    already, its partitions stay where they are and nothing is written.

    Args:
        known: the experiment's data sets.
        weights: worker -> weight; the workers that share the rows.

    Raises:
        LocatorError, MetadataError: the metadata cannot be used.
    """
    from cerebro.data.tables import write_table

    tables = {split: read_metadata(split, locator) for split, locator in record.locators.splits().items()}
    dataset = _fingerprint(record, request, tables)
    if dataset in known:
        return known[dataset]
    splits: dict[Split, tuple[PartitionPlan, ...]] = {}
    for split, metadata in tables.items():
        order = sample(metadata.table.num_rows, fraction=request.fraction, seed=request.seed, split=split)
        if split == "train" and len(order) < len(weights):
            raise MetadataError(
                f"'train' has {len(order)} rows (of {metadata.table.num_rows}, fraction {request.fraction:g}) for "
                f"{len(weights)} workers: each worker needs at least one; give more rows or start fewer workers"
            )
        pieces = cut(order, weights)
        for partition, rows in enumerate(pieces.values()):
            # Arrow takes no type from an empty list: a partition without rows is cut, not taken.
            table = metadata.table.take(rows) if rows else metadata.table.slice(0, 0)
            path = volumes.metadata(dataset, split, partition)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_table(path, table)
        splits[split] = tuple(
            PartitionPlan(partition=partition, worker=worker, rows=len(rows))
            for partition, (worker, rows) in enumerate(pieces.items())
        )
    return EtlPlan(dataset=dataset, splits=splits)


def _fingerprint(record: ExperimentRecord, request: EtlRequest, tables: Mapping[Split, Metadata]) -> str:
    facts = {
        "code": request.code_fingerprint,
        "archive": record.archive,
        "locators": record.locators.model_dump(),
        "misc": versions(record.locators.misc),
        "metadata": {split: metadata.digest for split, metadata in tables.items()},
        "seed": request.seed,
        "fraction": request.fraction,
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return f"{record.name}-{digest[:16]}"
