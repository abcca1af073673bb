"""Disk use of the volumes: by experiment, and data that can be deleted. Pure.

`disks` makes the measurements, `snapshot.Cluster` builds the view, `commands.deletion` reads the bytes of one
experiment. Users or the controller delete the data; this module only says how.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cerebro.contract.records import ExperimentSummary

NAMES = ("checkpoints", "metrics", "logs", "shared", "code", "shards")
"""Names of volumes, in display order."""
HOLDS = {
    "checkpoints": "model states",
    "metrics": "TensorBoard's event files",
    "logs": "output of services and tasks",
    "shared": "validation and test data, metadata, predictions, user files",
    "code": "extracted code archives",
    "shards": "training partitions, downloads and user environments of each worker",
}


@dataclass(frozen=True, kw_only=True)
class Space:
    """File system of a volume. Volumes with equal `device` share it. `problem`: why it cannot be measured."""

    total_bytes: int = 0
    free_bytes: int = 0
    device: int = 0
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One measurement of all volumes.

    Attributes:
        time: end of the measurement, seconds since the epoch.
        seconds: duration of the measurement.
        spaces: file systems by volume.
        folders: (volume, kind, name) -> bytes, where kind is experiment, dataset, downloads, trash or other.
        is_complete: False if there were too many files to count; sizes are then lower bounds.
    """

    time: float
    seconds: float
    spaces: Mapping[str, Space]
    folders: Mapping[tuple[str, str, str], int]
    is_complete: bool


@dataclass(frozen=True, kw_only=True)
class VolumeRow:
    """One volume. `used_bytes`: size of Cerebro's files. `shares`: name of another volume on the same file system."""

    name: str
    holds: str
    problem: str
    used_bytes: int
    free_bytes: int
    total_bytes: int
    shares: str
    experiments: tuple[tuple[str, int], ...]
    """(experiment, bytes), largest first."""

    @property
    def is_nearly_full(self) -> bool:
        """True if more than 80 % of the file system is in use."""
        return self.total_bytes > 0 and self.free_bytes < self.total_bytes / 5


@dataclass(frozen=True, kw_only=True)
class Reclaimable:
    """Data that can be deleted: name, reason, size, and how to delete it."""

    what: str
    reason: str
    num_bytes: int
    how: str
    experiment: str = ""
    """Name of the experiment, if it is one."""


@dataclass(frozen=True, kw_only=True)
class VolumesView:
    """Disk use. `measured`: time of the measurement; None before the first."""

    measured: float | None
    is_measuring: bool
    is_complete: bool
    rows: tuple[VolumeRow, ...]
    reclaimable: tuple[Reclaimable, ...]

    @property
    def reclaimable_bytes(self) -> int:
        """Total size of reclaimable data."""
        return sum(each.num_bytes for each in self.reclaimable)


def volumes(
    measured: Measured | None,
    *,
    is_measuring: bool,
    summaries: tuple[ExperimentSummary, ...],
    unneeded: frozenset[str],
) -> VolumesView:
    """Build the view of a measurement.

    Args:
        measured: newest measurement, or None.
        is_measuring: True if another one is running.
        summaries: all experiments.
        unneeded: data sets that no experiment uses.
    """
    if measured is None:
        return VolumesView(
            measured=None, is_measuring=is_measuring, is_complete=False, rows=(), reclaimable=()
        )
    found = sorted(_reclaimable(measured, summaries, unneeded), key=lambda each: (-each.num_bytes, each.what))
    return VolumesView(
        measured=measured.time,
        is_measuring=is_measuring,
        is_complete=measured.is_complete,
        rows=tuple(_rows(measured)),
        reclaimable=tuple(found),
    )


def experiment_bytes(measured: Measured | None, name: str) -> dict[str, int]:
    """Return volume -> bytes of an experiment; an empty dict before the first measurement."""
    if measured is None:
        return {}
    return {
        volume: size
        for (volume, what, whose), size in measured.folders.items()
        if (what, whose) == ("experiment", name)
    }


def _rows(measured: Measured) -> Iterable[VolumeRow]:
    volume_of_device: dict[int, str] = {}
    for name in NAMES:
        space = measured.spaces.get(name)
        if space is None:
            continue
        sizes = {key: size for key, size in measured.folders.items() if key[0] == name}
        experiments = [(whose, size) for (_, what, whose), size in sizes.items() if what == "experiment"]
        shares = "" if space.problem else volume_of_device.setdefault(space.device, name)
        yield VolumeRow(
            name=name,
            holds=HOLDS[name],
            problem=space.problem,
            used_bytes=sum(sizes.values()),
            free_bytes=space.free_bytes,
            total_bytes=space.total_bytes,
            shares="" if shares == name else shares,
            experiments=tuple(sorted(experiments, key=lambda pair: (-pair[1], pair[0]))),
        )


def _reclaimable(
    measured: Measured, summaries: tuple[ExperimentSummary, ...], unneeded: frozenset[str]
) -> Iterable[Reclaimable]:
    known = {summary.experiment.name: summary for summary in summaries}
    sizes: dict[tuple[str, str], int] = {}
    for (_, what, name), size in measured.folders.items():
        sizes[what, name] = sizes.get((what, name), 0) + size
    for (what, name), size in sizes.items():
        case = _experiment_case(known.get(name)) if what == "experiment" else what
        if size and case in _RECLAIM_TEXTS and (case != "dataset" or name in unneeded):
            called, reason, how = (words.format(name=name) for words in _RECLAIM_TEXTS[case])
            owner = name if case == "archived" else ""
            yield Reclaimable(what=called, reason=reason, num_bytes=size, how=how, experiment=owner)


def _experiment_case(summary: ExperimentSummary | None) -> str:
    if summary is None:
        return "unknown"
    return "deleting" if summary.is_deleting else "archived" if summary.is_archived else "kept"


_RECLAIM_TEXTS = {
    "unknown": (
        "files of {name}",
        "no experiment has this name",
        "delete the folders {name} on checkpoints, metrics/tensorboard, logs/tasks and shared/predictions",
    ),
    "deleting": ("experiment {name}", "is being deleted", "wait: the controller deletes it"),
    "archived": ("experiment {name}", "is archived", "delete it"),
    "dataset": (
        "data set {name}",
        "no experiment uses it",
        "wait: workers and controller delete it",
    ),
    "trash": ("deleted files", "are being removed", "wait: the controller removes them"),
    "downloads": (
        "downloads of {name}",
        "cached objects of preprocessing; downloaded again when needed",
        "delete the folder downloads on that volume while no ETL run is open",
    ),
}
"""Kind -> name, reason, and how to delete it."""
