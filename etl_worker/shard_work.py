"""The plan of a partition's shards, and the shards that an earlier attempt completed.

`etl_worker.partition` plans with `shard_work` and cleans up with `discard_doubtful_shards`; `etl_worker.cores` calls
`discard_shard` after a killed process. The plan is stored in the partition's folder before the first shard, so a later
attempt continues it with any number of cores. Nothing here runs user code or writes a shard.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cerebro.data.files.durable import discard_leftovers, write_json
from cerebro.data.manifests import SCHEMA_VERSION, ShardManifest, Source
from cerebro.data.partitions import (
    PARTITION_FILE,
    complete_shards,
    read_json,
    shard_manifest_path,
)
from cerebro.errors import DataError, ShardCorruptError
from cerebro.worker.preprocessing.job import ShardRange

MAX_SHARD_ROWS = 4096
"""Maximum number of rows of a shard."""
SHARDS_PER_CORE = 4
"""Shards for each core: enough to lose little by an interruption, few enough that a batch touches few files."""

_PLAN_FILE = "plan.json"


@dataclass(frozen=True, kw_only=True)
class ShardWork:
    """The shards of a partition: not yet made (`todo`) and complete (`done`)."""

    todo: tuple[ShardRange, ...]
    done: tuple[ShardManifest, ...]


def cut(num_rows: int, cores: int) -> tuple[ShardRange, ...]:
    """Divide the rows into contiguous ranges whose sizes differ by at most one.

    Each range has 1 to `MAX_SHARD_ROWS` rows. There are at least `cores` ranges if there are as many rows.
    """
    if num_rows == 0:
        return ()
    rows = min(MAX_SHARD_ROWS, -(-num_rows // (SHARDS_PER_CORE * cores)))
    count = -(-num_rows // rows)
    count = min(num_rows, -(-count // cores) * cores)  # a multiple of the cores, so that they end together
    edges = [num_rows * i // count for i in range(count + 1)]
    return tuple(ShardRange(index=i, start=edges[i], stop=edges[i + 1]) for i in range(count))


def shard_work(folder: Path, num_rows: int, cores: int, source: Source) -> ShardWork:
    """Continue the plan stored in `folder` for the same source, or clear the folder and make a plan.

    Afterwards the folder holds complete, verified shards of this plan and nothing else. The caller must be the only
    user of the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    discard_leftovers(folder)
    ranges = _stored_plan(folder, num_rows, source)
    if ranges is None:
        (folder / PARTITION_FILE).unlink(
            missing_ok=True
        )  # first, because it lists shards that are removed below
        ranges = cut(num_rows, cores)
        write_json(folder / _PLAN_FILE, _to_json(ranges, source))
    wanted = {(item.index, item.start, item.stop) for item in ranges}
    done = [
        shard
        for shard in complete_shards(folder, source=source)
        if (shard.index, shard.start, shard.stop) in wanted
    ]
    if len(done) < len(ranges):
        (folder / PARTITION_FILE).unlink(missing_ok=True)
    _remove_other_files(folder, done)
    done_indices = {shard.index for shard in done}
    return ShardWork(todo=tuple(item for item in ranges if item.index not in done_indices), done=tuple(done))


def discard_doubtful_shards(folder: Path, source: Source) -> None:
    """Remove shards with failed rows or an unusual layout, so that the next attempt makes them again.

    If no layout has more than half of the shards, all are removed.
    """
    (folder / PARTITION_FILE).unlink(missing_ok=True)  # first, because it lists shards that are removed below
    shards = complete_shards(folder, source=source, verify_bytes=False)
    layouts = Counter(_layout_text(shard) for shard in shards if shard.layout is not None)
    trusted = {layout for layout, count in layouts.items() if 2 * count > layouts.total()}
    for shard in shards:
        if shard.failed or (shard.layout is not None and _layout_text(shard) not in trusted):
            shard_manifest_path(folder, shard.index).unlink(missing_ok=True)
            (folder / shard.file).unlink(missing_ok=True)


def discard_shard(folder: Path, index: int) -> None:
    """Remove all files of a shard, complete or not."""
    shard_manifest_path(folder, index).unlink(
        missing_ok=True
    )  # first, because it makes the rows count as done
    for path in folder.glob(f"shard-{index:05d}-*"):
        path.unlink(missing_ok=True)


def _layout_text(shard: ShardManifest) -> str:
    """Return the layout as text that does not depend on the order of dict keys."""
    assert shard.layout is not None
    fields = sorted((field.name, field.dtype, field.shape) for field in shard.layout.fields)
    return json.dumps([fields, dict(shard.layout.structure)], sort_keys=True)


def _stored_plan(folder: Path, num_rows: int, source: Source) -> tuple[ShardRange, ...] | None:
    """Return the stored plan if it covers the same rows."""
    try:
        plan = read_json(folder / _PLAN_FILE)
    except (FileNotFoundError, ShardCorruptError, DataError):
        return None
    ranges = tuple(ShardRange(**item) for item in plan["ranges"])
    covered = ranges[-1].stop if ranges else 0
    return ranges if plan["source"] == asdict(source) and covered == num_rows else None


def _to_json(ranges: Sequence[ShardRange], source: Source) -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION,
        "source": asdict(source),
        "ranges": [asdict(item) for item in ranges],
    }


def _remove_other_files(folder: Path, done: Sequence[ShardManifest]) -> None:
    keep = {shard.file for shard in done} | {shard_manifest_path(folder, shard.index).name for shard in done}
    for path in folder.glob("shard-*"):
        if path.name not in keep:
            path.unlink(missing_ok=True)
