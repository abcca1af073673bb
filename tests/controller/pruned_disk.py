"""The checkpoint volume during a simulated fit; checks that each read finds its file.

The log is the only input: a commit writes a file and removes the files its task did not have to keep. Pruned
files disappear some events later, as `controller.storage.pruned_files` removes them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cerebro.contract.events import Event, RunFinished, TaskAssigned, TaskCommitted
from cerebro.contract.records import ExperimentRecord
from cerebro.contract.tasks.bodies import EvaluateTask, PredictTask, TrainTask
from cerebro.runtime.volumes import Volumes
from cerebro.state import ExperimentState, Model, ModelState, Run, TaskKey
from cerebro.state.runs.concurrent_runs import epochs_read
from controller.decisions.tasks import body
from controller.storage.pruned_files import Leftovers

_NOWHERE = Volumes(**{name: Path("/nowhere") for name in Volumes.__dataclass_fields__})


class PrunedDisk:
    """Checkpoint files by name, after each event.

    Args:
        delay: Number of events between a pruning and the removal of its files.
        dies: True if the controller crashes at an event. Its successor handles all pruned files.
        loses: True if files get damaged. The file to repeat a sub-epoch from may then be gone.
    """

    def __init__(
        self,
        record: ExperimentRecord,
        *,
        delay: Callable[[], int] = lambda: 0,
        dies: Callable[[], bool] = lambda: False,
        loses: bool = False,
    ) -> None:
        self._record, self._delay, self._dies, self._loses = record, delay, dies, loses
        self.state = ExperimentState(name=record.name)
        self.files: set[str] = set()
        self.most = 0
        """Largest number of files at one time."""
        self.read: set[str] = set()
        """Models that open tests still had to read when the fit ended."""
        self._open: dict[str, tuple[TrainTask | EvaluateTask | PredictTask, set[str]]] = {}
        """Maps a task to its body and the model's files at assignment."""
        self._due: list[tuple[int, str]] = []
        self._num_pruned = 0

    @property
    def run(self) -> Run:
        return self.state.runs["fit-1"]

    def apply(self, event: Event) -> None:
        self.state.apply(event)
        match event:
            case TaskAssigned():
                self._assign(event)
            case TaskCommitted():
                self._commit(event)
            case RunFinished(run="fit-1"):
                models = self.run.models.values()
                self.read = {each.id for each in models if epochs_read(self.state.runs, self.run, each)}
        if "fit-1" in self.state.runs:
            pruned = self.run.checkpoints.pruned
            self._due += [(event.seq + self._delay(), name) for name in pruned[self._num_pruned :]]
            self._num_pruned = len(pruned)
        self._reconcile(event.seq)
        self._check()

    def finish(self) -> None:
        """End the run and remove all pruned files."""
        self._reconcile(1 << 40)
        self._check()

    def of(self, model: Model) -> set[str]:
        own_files = {sub_epoch.checkpoint.name for sub_epoch in model.kept_sub_epochs}
        return {name for name in self.files if name in own_files or _folder(name) == model.id}

    # --- Changes of files ---

    def _assign(self, event: TaskAssigned) -> None:
        key = TaskKey.parse(event.task)
        task = body(self._record, self.state, self.state.runs[key.run], key)
        if isinstance(task, TrainTask | EvaluateTask | PredictTask):
            self._open[event.task] = task, self.of(self.run.models[task.model])

    def _commit(self, event: TaskCommitted) -> None:
        task, there = self._open.get(event.task, (None, set()))
        if isinstance(task, TrainTask) and event.result.checkpoint is not None:
            self.files -= there - set(task.keep)
            self.files.add(event.result.checkpoint.name)
            self.most = max(self.most, len(self.files))

    def _reconcile(self, seq: int) -> None:
        if self._dies() and "fit-1" in self.state.runs:
            self._due = [(seq, name) for name in dict.fromkeys(self.run.checkpoints.pruned)]
        for name in [name for at, name in self._due if at <= seq]:
            self._remove(self.run.models[name])
        self._due = [(at, name) for at, name in self._due if at > seq]

    def _remove(self, model: Model) -> None:
        left = Leftovers.of(_NOWHERE, self._record.name, self.run, model)
        for file in self.of(model):
            name = Path(file).name
            if name not in left.keep and (left.named is None or name in left.named):
                self.files.discard(file)

    # --- Required files ---

    def _check(self) -> None:
        for run in self.state.open_runs():
            for key in run.tasks.open:
                if key in self._open:
                    task, _ = self._open[key]
                    if not self._is_back_at_its_origin(self.run.models[task.model]):
                        assert task.checkpoint is None or task.checkpoint.name in self.files, key
        if "fit-1" not in self.state.runs:
            return
        for model in self.run.models.values():
            if (
                model.state is ModelState.ACTIVE
                and model.sub_epochs
                and not self._is_back_at_its_origin(model)
            ):
                assert model.sub_epochs[-1].checkpoint.name in self.files, f"the next sub-epoch of {model.id}"
            for name in self.run.kept_checkpoints(model) if not self._loses else ():
                assert name in self.files, f"{name} is said to be there"

    def _is_back_at_its_origin(self, model: Model) -> bool:
        """True for a clone with a damaged newest file, pruned other files, and a released parent checkpoint.

        Its next sub-epoch finds no file and fails the model with advice to clone it again.
        """
        return (
            self._loses
            and len(model.sub_epochs) == model.lineage.sub_epochs > 0
            and model.id not in self.run.checkpoints.young
        )


def _folder(name: str) -> str:
    return name.split("/", maxsplit=1)[0]
