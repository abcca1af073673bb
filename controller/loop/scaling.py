"""The number of workers, adapted to the open runs: scale to zero, scale up, and requests by forecasts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cerebro.contract.events import ForecastMade, RunPaused
from cerebro.contract.rest import api
from cerebro.state import ExperimentState, Run, RunState
from cerebro.state.exclusions import Exclusion
from cerebro.state.runs.goals import goal_of
from controller.decisions.core import Core
from controller.loop.admission import Admission
from controller.loop.isolation import Isolation
from controller.loop.log_reading import LogReading
from controller.loop.open_runs import Experiments
from controller.loop.step_writer import StepWriter
from controller.scaling.autoscaler.autoscaler import Autoscaler
from controller.scaling.autoscaler.use import use_of
from controller.scaling.worker_set_size import WorkerSetSize

_NO_WORKERS = "the cluster has scaled to zero; start workers with `cerebro scale`, and resume it"


@dataclass
class Scaling:
    """Requests workers for the open runs. Owned by the loop; not thread-safe.

    Args:
        autoscaler: makes forecasts of the only run; `None` without forecasts.
    """

    size: WorkerSetSize
    autoscaler: Autoscaler | None
    experiments: Experiments
    isolation: Isolation
    reading: LogReading
    admission: Admission
    writer: StepWriter

    def is_running(self) -> bool:
        """True if a run may be in progress, including runs with unread logs."""
        is_known = self.admission.num_queued is not None and not any(self.experiments.behind())
        return bool(self._running()) or not is_known

    def adapt(self, *, is_known: bool) -> None:
        """Request the number of workers that the open runs need; pause runs before scaling to zero.

        Args:
            is_known: True if the logs of all active experiments are read.
        """
        if self.size.is_pausing:
            for core, run in self._running():
                pause = api.Note(event=RunPaused(run=run.id, reason=_NO_WORKERS))
                self.isolation.attempt(core.state.name, partial(self.writer.write, core, [pause]), False)
            return
        states = [core.state for core in self.experiments.ready().values()]
        open_runs = [run for _, run in self.experiments.open_runs()]
        use = use_of(states, open_runs, self.admission.num_queued or 0, is_known=is_known)
        bounds = [
            found for run in use.runs if run.kind == "fit" and (found := goal_of(run).workers) is not None
        ]
        least, most = max((b[0] for b in bounds), default=1), max((b[1] for b in bounds), default=1000)
        self.size.adapt(use, bounds=(least, max(least, most)))

    def forecast(self, core: Core) -> ForecastMade | None:
        """Return a new forecast of the only run, if any; request the number of workers that it advises."""
        if self.autoscaler is None:
            return None
        forecast = self.autoscaler.update(core, self.reading.now(), self.size.history)
        if forecast is not None and forecast.requested_workers is not None:
            reason = f"by the forecast of {core.state.name}/{forecast.run}"
            if not self.size.request(forecast.requested_workers, reason):
                return forecast.model_copy(update={"requested_workers": None})
        return forecast

    def released(self, state: ExperimentState) -> tuple[Exclusion, ...]:
        """Return exclusions of workers that a forecast will release."""
        return self.autoscaler.released(state) if self.autoscaler is not None else ()

    def forget(self) -> None:
        """Forget forecasts in progress: they hold for one run with all workers."""
        if self.autoscaler is not None:
            self.autoscaler.forget()

    def _running(self) -> list[tuple[Core, Run]]:
        """Return the active runs that have started and are not paused."""
        return [(core, run) for core, run in self.experiments.open_runs() if run.state is RunState.RUNNING]
