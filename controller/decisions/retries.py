"""Unsuccessful attempts of a fit's open sub-epochs, which decide where the next attempt may run.

`FitDispatch` updates them with each task event. `controller.exclusions.model_exclusions` excludes workers by them, and
`controller.decisions.sub_epoch_choice` chooses interrupted ones first.
"""

from __future__ import annotations

from cerebro.state import Task, TaskKey
from cerebro.state.tasks.task import ENDED
from controller.decisions.fit_names import FitNames

Workers = dict[int, dict[int, frozenset[int]]]
"""Model -> partition -> workers, all by index."""


class Retries:
    """Unsuccessful attempts of open sub-epochs. Gangs are excluded: their workers are computed each time.

    Attributes:
        out_of_memory: workers with a sub-epoch that ran out of memory.
        failed_at: workers with a sub-epoch that failed because of the machine.
        without_memory: model -> workers known to have too little memory; set before each decision.
        interrupted: (model, epoch, partition) of sub-epochs that were interrupted or have a savepoint -> end of the
            model's wait for a holder of the partition; 0 without waiting.
    """

    def __init__(self, names: FitNames) -> None:
        self._names = names
        self.out_of_memory: Workers = {}
        self.failed_at: Workers = {}
        self.without_memory: dict[int, set[int]] = {}
        self.interrupted: dict[tuple[int, int, int], float] = {}

    def update(self, task: Task) -> None:
        """Update the attempts of one training task."""
        if task.key.other_partitions:
            return
        sub_epoch = model, _, partition = self._names.sub_epoch(task.key)
        self.interrupted.pop(sub_epoch, None)
        if task.is_interrupted:
            self.interrupted[sub_epoch] = task.waits_until
        for found, workers in ((self.out_of_memory, task.exhausted), (self.failed_at, task.failed_at)):
            if workers and task.state not in ENDED:
                indices = frozenset(self._names.worker(name) for name in workers)
                found.setdefault(model, {})[partition] = indices
            elif workers and model in found:
                found[model].pop(partition, None)
                if not found[model]:
                    del found[model]

    def is_interrupted(self, key: TaskKey) -> bool:
        """True if the sub-epoch is in `interrupted`."""
        return self._names.sub_epoch(key) in self.interrupted
