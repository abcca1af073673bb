"""What is there once on a worker, and used by all of its slots. Each part is safe for several threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cerebro.runtime.kvs import KvsClient
from cerebro.worker.agent.children import ChildPool
from cerebro.worker.agent.devices import WorkerDevices
from cerebro.worker.agent.discarding import Discarder
from cerebro.worker.agent.drain import Drain
from cerebro.worker.agent.gangs.endpoint import GangEndpoint
from cerebro.worker.agent.mailbox import DeviceQueues
from cerebro.worker.agent.metrics import Metrics
from cerebro.worker.agent.reports import Reports
from cerebro.worker.agent.seating import Seating
from cerebro.worker.agent.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The worker's parts, for a slot.

    Attributes:
        handlers: task kind -> module of its handler.
        metrics: is told what ends here, and what is used.
        endpoint: of this worker, for those that train with it; `None`: none does.
        report_soon: has the regular report sent at once.
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
    queues: DeviceQueues
    seating: Seating
    reports: Reports
