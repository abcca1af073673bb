"""What lies on the volumes, how much of it each experiment has, and what of it could go. Pure: measurements in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cerebro.contract.records import ExperimentSummary

NAMES = ("checkpoints", "metrics", "logs", "shared", "code", "shards")
"""Volumes, in the order in which they are shown."""
HOLDS = {
    "checkpoints": "model states",
    "metrics": "TensorBoard's event files",
    "logs": "output of services and tasks",
    "shared": "validation and test data, metadata, predictions, files of users",
    "code": "extracted code archives",
    "shards": "training partitions, downloads, user environments: each worker's own",
}


@dataclass(frozen=True, kw_only=True)
class Space:
    """A volume's file system. `device` tells which volumes share one; `problem` is set where it cannot be looked at."""

    total_bytes: int = 0
    free_bytes: int = 0
    device: int = 0
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One look at all volumes.

    Attributes:
        time: when it ended, seconds since the epoch. seconds: that it took.
        spaces: by volume.
        folders: (volume, what, name) -> bytes; `what` is ``experiment``, ``dataset``, ``downloads``, ``trash`` (it is
            being removed) or ``other``.
        is_complete: false where there was more than may be counted in one look: figures are then lower bounds.
    """

    time: float
    seconds: float
    spaces: Mapping[str, Space]
    folders: Mapping[tuple[str, str, str], int]
    is_complete: bool


@dataclass(frozen=True, kw_only=True)
class VolumeRow:
    """One volume. `used_bytes`: of Cerebro's files on it. `shares`: another volume above on the same file system."""

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
        """Whether over 80 % of the file system is in use."""
        return self.total_bytes > 0 and self.free_bytes < self.total_bytes / 5


@dataclass(frozen=True, kw_only=True)
class Reclaimable:
    """Something that could go: what, how large it is, and how it would go."""

    what: str
    reason: str
    num_bytes: int
    how: str
    experiment: str = ""
    """It is this one's."""


@dataclass(frozen=True, kw_only=True)
class VolumesView:
    """Disk use. `measured` is None until the first look has ended."""

    measured: float | None
    is_measuring: bool
    is_complete: bool
    rows: tuple[VolumeRow, ...]
    reclaimable: tuple[Reclaimable, ...]

    @property
    def reclaimable_bytes(self) -> int:
        """All that could go."""
        return sum(each.num_bytes for each in self.reclaimable)


def volumes(
    measured: Measured | None,
    *,
    is_measuring: bool,
    summaries: tuple[ExperimentSummary, ...],
    unneeded: frozenset[str],
) -> VolumesView:
    """The view of a look.

    Args:
        measured: the newest look.
        is_measuring: another one is under way.
        summaries: all experiments that there are.
        unneeded: data sets that no experiment names any more.
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
    """Volume -> bytes that an experiment has there; empty before the first look."""
    if measured is None:
        return {}
    return {
        volume: size
        for (volume, what, whose), size in measured.folders.items()
        if (what, whose) == ("experiment", name)
    }


def _rows(measured: Measured) -> Iterable[VolumeRow]:
    seen: dict[int, str] = {}
    for name in NAMES:
        space = measured.spaces.get(name)
        if space is None:
            continue
        own = {key: size for key, size in measured.folders.items() if key[0] == name}
        experiments = [(whose, size) for (_, what, whose), size in own.items() if what == "experiment"]
        shares = "" if space.problem else seen.setdefault(space.device, name)
        yield VolumeRow(
            name=name,
            holds=HOLDS[name],
            problem=space.problem,
            used_bytes=sum(own.values()),
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
        case = _of_experiment(known.get(name)) if what == "experiment" else what
        if size and case in _CASES and (case != "dataset" or name in unneeded):
            called, reason, how = (words.format(name=name) for words in _CASES[case])
            owner = name if case == "archived" else ""
            yield Reclaimable(what=called, reason=reason, num_bytes=size, how=how, experiment=owner)


def _of_experiment(summary: ExperimentSummary | None) -> str:
    if summary is None:
        return "unknown"
    return "deleting" if summary.is_deleting else "archived" if summary.is_archived else "kept"


_CASES = {
    "unknown": (
        "files of {name}",
        "the store knows no experiment of this name",
        "remove the folders {name} on checkpoints, metrics/tensorboard, logs/tasks and shared/predictions",
    ),
    "deleting": ("experiment {name}", "is being deleted", "the controller does it"),
    "archived": ("experiment {name}", "is archived", "delete it"),
    "dataset": (
        "data set {name}",
        "no experiment names it any more",
        "workers and controller remove it by themselves",
    ),
    "trash": ("what was deleted", "is being removed", "the controller does it"),
    "downloads": (
        "downloads of {name}",
        "copies of objects that preprocessing fetched; they are fetched again when needed",
        "remove the folder downloads on that volume while nothing is preprocessed",
    ),
}
"""What is said of things that could go: what they are, why, and how they would go."""
