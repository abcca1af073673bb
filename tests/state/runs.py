"""Fit runs with chosen event times, scripted or dispatched at random."""

from __future__ import annotations

import heapq
from random import Random

from cerebro.contract.events import Event, TaskAssigned, TaskCommitted, TaskStarted
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult, Timings
from cerebro.state import Run, TaskKey, epoch_report
from tests.state.stories import Story, sub_epoch


class TimedStory(Story):
    """A story with explicit event times; the fit's first sub-epoch starts at `zero` or later."""

    zero = 1000.0

    def at(self, seconds: float, *events: Event) -> None:
        """Apply events at `zero` + `seconds`."""
        for event in events:
            self.time = self.zero + seconds - 1.0
            self.append(event)

    def begins(self, key: TaskKey, worker: int, seconds: float) -> None:
        """Assign and start an attempt."""
        attempt, where = self.attempt(key), f"worker-{worker}"
        self.at(seconds, TaskAssigned(task=str(key), attempt=attempt, worker=where))
        self.at(seconds, TaskStarted(task=str(key), attempt=attempt, worker=where))

    def ends(self, key: TaskKey, worker: int, seconds: float, start_s: float = 0.0) -> None:
        """Commit the newest attempt, whose process took `start_s` to start."""
        attempt = self.attempt(key) - 1
        name = str(key).replace("/", "-")
        checkpoint = CheckpointRef(name=name, checksum="-", size=1) if key.kind == "train" else None
        timings = Timings(start_s=start_s)
        result = TaskResult(rows=10, metrics={"loss": 1.0}, checkpoint=checkpoint, timings=timings)
        committed = TaskCommitted(task=str(key), attempt=attempt, worker=f"worker-{worker}", result=result)
        self.at(seconds, committed)

    def runs(self, key: TaskKey, worker: int, start: float, end: float, start_s: float = 0.0) -> None:
        """Run an attempt from `start` to `end`."""
        self.begins(key, worker, start)
        self.ends(key, worker, end, start_s)

    def report(self, epoch: int) -> None:
        """Append the controller's epoch report."""
        self.append(epoch_report(self.state, self.run, epoch))


def dispatched(
    random: Random, *, models: int, partitions: int, epochs: int, delay: float = 0.0, start_s: float = 0.0
) -> TimedStory:
    """Dispatch a whole run greedily; worker `p` holds partition `p`.

    Pauses last up to `delay` seconds. Each worker's first sub-epoch waits up to `start_s` for its process.
    """
    story = TimedStory(workers=partitions)
    run = story.fit(models=models, partitions=partitions, epochs=epochs)
    agenda: list[tuple[float, int, TaskKey | None]] = [
        (random.random() * delay, w, None) for w in range(partitions)
    ]
    heapq.heapify(agenda)
    waits = {worker: random.random() * start_s for worker in range(partitions)} if start_s else {}
    while agenda:
        now, worker, key = heapq.heappop(agenda)
        if key is not None:
            story.ends(key, worker, now, waits.pop(worker, 0.0))
            _note(story, run)
            heapq.heappush(agenda, (now + random.random() * delay, worker, None))
        elif may_start := [m for m in run.models.values() if not m.busy and worker in m.remaining]:
            model = random.choice(may_start)
            chosen = sub_epoch(model.epoch, worker, model.id)
            story.begins(chosen, worker, now)
            seconds = waits.get(worker, 0.0) + random.uniform(0.1, 3.0)
            heapq.heappush(agenda, (now + seconds, worker, chosen))
        elif not all(model.is_trained for model in run.models.values()):
            heapq.heappush(agenda, (now + 0.05, worker, None))
    return story


def _note(story: TimedStory, run: Run) -> None:
    while len(run.scheduling.epochs) < min(model.completed_epochs for model in run.models.values()):
        story.report(len(run.scheduling.epochs) + 1)
