"""Names of a fit's models, workers and partitions, and their indices in its dispatch state.

Policies know only indices, the log and the store only names. Callers that turn a policy's choice into a task, or a
task into a placement, translate here.
"""

from __future__ import annotations

from collections.abc import Iterable

from cerebro.state import TaskKey


class FitNames:
    """Names by index, and indices by name. Models may be added; another worker needs another object.

    Attributes:
        models, workers, partitions: the names. Workers train now or trained in this run.
    """

    def __init__(self, models: Iterable[str], workers: Iterable[str], partitions: Iterable[int]) -> None:
        self.models, self.workers, self.partitions = list(models), sorted(workers), sorted(partitions)
        self._models = {name: index for index, name in enumerate(self.models)}
        self._workers = {name: index for index, name in enumerate(self.workers)}
        self._partitions = {number: index for index, number in enumerate(self.partitions)}

    def add_model(self, name: str) -> None:
        """Add a model; its index is the highest."""
        self._models[name] = len(self.models)
        self.models.append(name)

    def model(self, name: str) -> int:
        """Return the index of a model."""
        return self._models[name]

    def worker(self, name: str) -> int:
        """Return the index of a worker."""
        return self._workers[name]

    def partition(self, number: int) -> int:
        """Return the index of a partition."""
        return self._partitions[number]

    def mask(self, partitions: Iterable[int]) -> int:
        """Return the bit mask of partitions; partitions of other splits don't count."""
        return sum(1 << self._partitions[number] for number in partitions if number in self._partitions)

    def sub_epoch(self, key: TaskKey) -> tuple[int, int, int]:
        """Return the model, epoch and partition of a training task."""
        return self._models[key.model or ""], key.epoch or 0, self._partitions[key.partition or 0]
