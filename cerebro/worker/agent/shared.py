"""Objects that all slots of a worker share. Each is thread-safe.

The `Agent` creates one `Shared`; `Slot` and `Execution` read it. Objects of one slot (lease, mailbox) are not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cerebro.runtime.kvs.client import KvsClient
from cerebro.worker.agent.devices import WorkerDevices
from cerebro.worker.agent.drain import Drain
from cerebro.worker.agent.environment import python_for
from cerebro.worker.agent.gangs.endpoint import GangEndpoint
from cerebro.worker.agent.mailbox import DeviceQueues
from cerebro.worker.agent.processes.children import ChildPool
from cerebro.worker.agent.processes.process import ChildSpec
from cerebro.worker.agent.reports import Reports
from cerebro.worker.agent.settings import Settings
from cerebro.worker.upkeep.checkpoint_removal import Discarder
from cerebro.worker.upkeep.metrics import Metrics
from cerebro.worker.upkeep.task_logs import TaskLogs


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The worker's shared objects, for a slot.

    Attributes:
        handlers: handler module by task kind.
        metrics: receives outcomes and usage.
        endpoint: this worker's endpoint for gangs; `None` without gangs.
        gpu_share: returns the largest GPU utilisation of some devices; 1 if unknown.
        report_soon: sends the next report at once.
    """

    kvs: KvsClient
    settings: Settings
    handlers: Mapping[str, str]
    devices: WorkerDevices
    children: ChildPool
    discarder: Discarder
    drain: Drain
    metrics: Metrics
    endpoint: GangEndpoint | None
    report_soon: Callable[[], None]
    gpu_share: Callable[[tuple[int, ...]], float]
    queues: DeviceQueues
    reports: Reports
    task_logs: TaskLogs

    def expect_models(self) -> None:
        """Start a child for each single device in advance, because training is expected here."""
        handler = self.handlers.get("train")
        if handler is not None:
            self.children.make_ready(
                ChildSpec(
                    handler=handler,
                    python=python_for("", self.settings.volumes),
                    archive="",
                    share=self.devices.share((number,)),
                )
                for number in range(len(self.devices.devices))
            )
