"""How a partition's rows are cut into shards, and what of it an earlier attempt has done.

The cut is written down before the first shard, so that whoever resumes, with however many cores, continues
it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cerebro.data.durable import discard_leftovers, write_json
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
SHARDS_PER_CORE = 4
"""So many that little is lost when one is interrupted and that cores end together; so few that a batch of the
loader touches few of them."""

_PLAN_FILE = "plan.json"


@dataclass(frozen=True, kw_only=True)
class ShardWork:
    """What is to be done, and what is there."""

    todo: tuple[ShardRange, ...]
    done: tuple[ShardManifest, ...]


def cut(num_rows: int, cores: int) -> tuple[ShardRange, ...]:
    """Contiguous ranges that cover all rows once, of sizes that differ by at most one.

    Each has at least one row and at most `MAX_SHARD_ROWS`; there are at least ``cores`` of them when there
    are as many rows.
    """
    if num_rows == 0:
        return ()
    rows = min(MAX_SHARD_ROWS, -(-num_rows // (SHARDS_PER_CORE * cores)))
    count = -(-num_rows // rows)
    count = min(num_rows, -(-count // cores) * cores)  # a multiple of the cores: they end together
    edges = [num_rows * i // count for i in range(count + 1)]
    return tuple(ShardRange(index=i, start=edges[i], stop=edges[i + 1]) for i in range(count))


def shard_work(folder: Path, num_rows: int, cores: int, source: Source) -> ShardWork:
    """Continue what ``folder`` holds of the same source, or clear it and begin.

    Afterwards the folder holds complete, verified shards of this plan and nothing else. Owned by the caller
    alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    discard_leftovers(folder)
    ranges = _planned(folder, num_rows, source)
    if ranges is None:
        (folder / PARTITION_FILE).unlink(missing_ok=True)  # first: what it lists is about to go
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
    _remove_others(folder, done)
    have = {shard.index for shard in done}
    return ShardWork(todo=tuple(item for item in ranges if item.index not in have), done=tuple(done))


def forget_doubtful(folder: Path, source: Source) -> None:
    """Take back the shards that have failed rows or are unlike most others, so that they are made again.

    Where no layout is that of more than half of the shards, none of them is trusted.
    """
    (folder / PARTITION_FILE).unlink(missing_ok=True)  # first: what it lists is about to go
    shards = complete_shards(folder, source=source, verify_bytes=False)
    layouts = Counter(_comparable(shard) for shard in shards if shard.layout is not None)
    trusted = {layout for layout, count in layouts.items() if 2 * count > layouts.total()}
    for shard in shards:
        if shard.failed or (shard.layout is not None and _comparable(shard) not in trusted):
            shard_manifest_path(folder, shard.index).unlink(missing_ok=True)
            (folder / shard.file).unlink(missing_ok=True)


def discard_shard(folder: Path, index: int) -> None:
    """Remove what a process has left of a shard, complete or not, so that it is made again."""
    shard_manifest_path(folder, index).unlink(missing_ok=True)  # first: without it the rows are nobody's
    for path in folder.glob(f"shard-{index:05d}-*"):
        path.unlink(missing_ok=True)


def _comparable(shard: ShardManifest) -> str:
    """The shard's layout as text that does not depend on the order of dict keys."""
    assert shard.layout is not None
    fields = sorted((field.name, field.dtype, field.shape) for field in shard.layout.fields)
    return json.dumps([fields, dict(shard.layout.structure)], sort_keys=True)


def _planned(folder: Path, num_rows: int, source: Source) -> tuple[ShardRange, ...] | None:
    """The cut written down in ``folder``, if it is one of these rows."""
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


def _remove_others(folder: Path, done: Sequence[ShardManifest]) -> None:
    keep = {shard.file for shard in done} | {shard_manifest_path(folder, shard.index).name for shard in done}
    for path in folder.glob("shard-*"):
        if path.name not in keep:
            path.unlink(missing_ok=True)
