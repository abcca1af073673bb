"""Paths on the volumes. All paths are built here.

All services, the client and the handlers use `Volumes`. It knows the layout, not the content: it creates and reads no
files. Names from users are validated at the boundary (`contract.base.Name`), so a path built here cannot leave its
volume.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

_REGISTRY = ".registry"


@dataclass(frozen=True, kw_only=True)
class Volumes:
    """Roots of the volumes a process has mounted.

    Attributes:
        shards: the worker's own volume: training partitions and downloads.
        shared: validation, test and prediction data; partitioned metadata; predictions. Mounted everywhere.
        checkpoints: model states. Mounted by every worker.
        metrics: TensorBoard event files.
        code: extracted code archives, and Python environments of user code.
        logs: output of services and tasks.
    """

    shards: Path
    shared: Path
    checkpoints: Path
    metrics: Path
    code: Path
    logs: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Volumes:
        """Return the roots from ``CEREBRO_VOLUMES``, a folder with one sub-folder for each volume.

        ``CEREBRO_VOLUME_SHARDS`` and so on override single roots.
        """
        root = Path(environment.get("CEREBRO_VOLUMES", "/volumes"))

        def folder(name: str) -> Path:
            return Path(environment.get(f"CEREBRO_VOLUME_{name.upper()}", str(root / name)))

        return cls(**{field.name: folder(field.name) for field in fields(cls)})

    def as_environment(self) -> dict[str, str]:
        """Return environment variables for `from_environment`."""
        roots = {field.name: getattr(self, field.name) for field in fields(self)}
        return {f"CEREBRO_VOLUME_{name.upper()}": str(root) for name, root in roots.items()}

    @property
    def roots(self) -> tuple[Path, ...]:
        """All roots."""
        return tuple(getattr(self, each.name) for each in fields(self))

    # --- data ------------------------------------------------------------------------------------

    def partition(self, dataset: str, split: str, partition: int) -> Path:
        """Folder of one partition's shards: on the worker's own volume for training data, shared otherwise."""
        root = self.shards if split == "train" else self.shared
        return root / partition_folder(dataset, split, partition)

    def metadata(self, dataset: str, split: str, partition: int) -> Path:
        """Arrow IPC file with the metadata rows of one partition."""
        return self.shared / metadata_file(dataset, split, partition)

    def fitted(self, dataset: str, run: str, attempt: int) -> Path:
        """Return value of `ETLSpec.fit` from an attempt. The log says which attempt counts."""
        return self.shared / "datasets" / dataset / "fitted" / f"{run}-a{attempt}.pickle"

    @property
    def scratch(self) -> Path:
        """Temporary folders of processes that sort metadata; useless after the process has ended."""
        return self.shared / ".scratch"

    @property
    def events(self) -> Path:
        """kvs_api's folders of log segments and snapshots, by experiment. Names of cluster folders start with a dot."""
        return self.shared / "events"

    def failed_rows(self, dataset: str, split: str, partition: int) -> Path:
        """Report of a partition's rows that preprocessing skipped; absent if it skipped no rows."""
        return self.shared / failed_rows_file(dataset, split, partition)

    def statistics(self, dataset: str, split: str, partition: int) -> Path:
        """Statistics of a partition's columns and rows; absent for partitions made by earlier versions."""
        return self.shared / statistics_file(dataset, split, partition)

    def downloads(self, dataset: str, split: str) -> Path:
        """Objects fetched from a remote store while a split is preprocessed."""
        return self.shards / "downloads" / dataset / split

    @property
    def frozen_outputs(self) -> Path:
        """Stored outputs of frozen layers, one folder per data set."""
        return self.shards / "frozen"

    @property
    def misc(self) -> Path:
        """Miscellaneous files of the locators, one folder per set."""
        return self.shards / "misc"

    def environment(self, fingerprint: str) -> Path:
        """Python environment of one requirements.txt, shared by the workers of a machine."""
        return self.code / "environments" / fingerprint

    def rendezvous_root(self, worker: str) -> Path:
        """Folder with a rendezvous folder per rank group of a worker. Content from earlier processes is stale."""
        return self.shards / "ranks" / worker

    def archive(self, sha256: str) -> Path:
        """Extracted code archive."""
        return self.code / sha256

    def trash(self, volume: Path) -> Path:
        """Folder for files to remove: renamed into it in one step, because removing takes long."""
        return volume / ".trash"

    # --- results ---------------------------------------------------------------------------------

    def model_checkpoints(self, experiment: str, run: str, model: str) -> Path:
        """Folder of one model's checkpoints."""
        return self.checkpoints / experiment / run / model

    def checkpoint(self, name: str) -> Path:
        """Path of a `CheckpointRef.name`."""
        return self.checkpoints / name

    def registered(self, name: str, version: int, file: str) -> str:
        """Name, below the checkpoints, of a file of a version of a registered model. No experiment has such a name."""
        return f"{_REGISTRY}/{name}/v{version}/{file}"

    @property
    def registry(self) -> Path:
        """Folder of all registered models."""
        return self.checkpoints / _REGISTRY

    @property
    def tensorboard(self) -> Path:
        """Log folder of TensorBoard, inside the metrics volume, so that TensorBoard does not list the trash."""
        return self.metrics / "tensorboard"

    def run_metrics(self, experiment: str, run: str) -> Path:
        """Folder with a run's own TensorBoard event file and its models' folders."""
        return self.tensorboard / experiment / run

    def model_metrics(self, experiment: str, run: str, model: str) -> Path:
        """Folder with the TensorBoard event file of one model."""
        return self.run_metrics(experiment, run) / model

    def task_log(self, experiment: str, task: str, attempt: int) -> Path:
        """Output of one attempt's child process."""
        return self.logs / "tasks" / experiment / f"{task.replace('/', '.')}.a{attempt}.log"


def partition_folder(dataset: str, split: str, partition: int) -> str:
    """Path of `Volumes.partition` on its volume."""
    return f"datasets/{dataset}/{split}/partition-{partition:04d}"


def metadata_file(dataset: str, split: str, partition: int) -> str:
    """Path of `Volumes.metadata` on the shared volume."""
    return f"datasets/{dataset}/metadata/{split}-{partition:04d}.arrow"


def failed_rows_file(dataset: str, split: str, partition: int) -> str:
    """Path of `Volumes.failed_rows` on the shared volume."""
    return f"datasets/{dataset}/failed/{split}-{partition:04d}.json"


def statistics_file(dataset: str, split: str, partition: int) -> str:
    """Path of `Volumes.statistics` on the shared volume."""
    return f"datasets/{dataset}/statistics/{split}-{partition:04d}.json"


def per_row_file(*, experiment: str, run: str, model: str, partition: int, attempt: int) -> str:
    """Path of a test's metrics per row on the shared volume, beside predictions. Each attempt has its own file.

    Args:
        partition: first partition of the task.
    """
    return f"predictions/{experiment}/{run}/{model}-{partition:04d}-{attempt}.arrow"


def checkpoint_file(
    *, sub_epoch: int, epoch: int, partition: int, attempt: int, other_partitions: Sequence[int] = ()
) -> str:
    """Name of a sub-epoch's checkpoint, written by an attempt in its model's folder. `sub_epoch_of` parses it.

    Args:
        other_partitions: partitions of a gang after the first; attempts are counted per set of partitions.
    """
    partitions = "+".join(f"{number:04d}" for number in (partition, *other_partitions))
    return f"u{sub_epoch:05d}-e{epoch:03d}-p{partitions}-a{attempt}.pt"


def savepoint_file(*, checkpoint: str, batch: int) -> str:
    """Name of a savepoint, which lies in the checkpoint's folder."""
    return f"{checkpoint.removesuffix('.pt')}.s{batch:06d}.pt"


def savepoint_of(name: str) -> tuple[int, int] | None:
    """Parse attempt and batch from a savepoint's name, also while it is written; `None` for other files."""
    found = _SAVEPOINT.match(name)
    return (int(found[1]), int(found[2])) if found else None


def sub_epoch_of(name: str) -> int | None:
    """Parse the sub-epoch from a checkpoint's or savepoint's name, also while it is written; `None` for other files.

    Compare the numbers, never the names: sub-epoch 100,000 has one more digit.
    """
    found = _SUB_EPOCH.match(name)
    return int(found[1]) if found else None


_SUB_EPOCH = re.compile(r"\.?u([0-9]+)-")
"""A file that is still being written starts with a dot."""
_SAVEPOINT = re.compile(r"\.?u[0-9]+-e[0-9]+-p[0-9+]+-a([0-9]+)\.s([0-9]+)\.pt")
