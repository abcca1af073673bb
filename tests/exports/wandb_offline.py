"""Export the story of `logged` twice with the real wandb package, offline, and print the written rows.

Run it with a Python that has the package: ``python -m tests.exports.wandb_offline FOLDER``, with
``WANDB_MODE=offline``.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cerebro.exports.export_loop import ExperimentExport
from cerebro.exports.wandb_export import WandbExport
from tests.exports.logged import LogStore, record, story

_BLOCK, _WHOLE, _LAST = 32768, 1, 4


def main(folder: Path) -> None:
    log = story().log
    store = LogStore(log[:20])
    followed = ExperimentExport(store, record(), WandbExport)
    followed.catch_up()  # like --follow: part of the log now ...
    store.log = log
    followed.catch_up()  # ... the rest later
    first = written(folder)
    ExperimentExport(store, record(), WandbExport).catch_up()
    print(json.dumps({"first": first, "both": written(folder)}))  # noqa: T201


def written(folder: Path) -> list[dict[str, Any]]:
    """Return the contents of each run folder in order of creation."""
    import wandb

    wandb.teardown()  # its service writes files after the last run's finish call
    return [_of(path) for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=_count_created)]


def _count_created(path: Path) -> int:
    return path.stat().st_ctime_ns


def _records(content: bytes) -> Iterator[bytes]:
    """Read LevelDB's log format after its seven-byte header.

    Blocks of 32 KiB hold pieces, each with a checksum (4 bytes), length (2) and kind (1): whole, first,
    middle, last.
    """
    at, record = 7, b""
    while at + 7 <= len(content):
        if _BLOCK - at % _BLOCK < 7:
            at += _BLOCK - at % _BLOCK
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (_WHOLE, _LAST):
            yield record
            record = b""


def _of(path: Path) -> dict[str, Any]:
    from wandb.proto import wandb_internal_pb2

    found: dict[str, Any] = {"steps": [], "rows": [], "exit": None}
    for content in _records(path.read_bytes()):
        kept = wandb_internal_pb2.Record()
        kept.ParseFromString(content)
        if kept.HasField("run"):
            found |= {"id": kept.run.run_id, "name": kept.run.display_name, "group": kept.run.run_group}
            for item in kept.run.config.update:
                found.setdefault("config", {})[item.key] = json.loads(item.value_json)
        if kept.HasField("history"):
            values = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in kept.history.item
            }
            step = values.get("_step", kept.history.step.num)
            found["steps"].append(step)
            found["rows"] += [[step, name, value] for name, value in values.items() if "/" in name]
        if kept.HasField("exit"):
            found["exit"] = kept.exit.exit_code
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
