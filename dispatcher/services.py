"""Objects that all routes share. `app.create_app` creates them once per process. No logic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cerebro.state.log_pages import LogPages
from dispatcher.api.files import Files
from dispatcher.checkpoints.lost import LostFiles
from dispatcher.cluster.disks import Disks
from dispatcher.cluster.snapshot import Cluster
from dispatcher.data.summaries import Summaries
from dispatcher.experiments.catalogue import Catalogue
from dispatcher.logs.log_reader import LogReader
from dispatcher.metrics import Metrics
from dispatcher.pages.answers import Answers
from dispatcher.ranking.rankings import Rankings
from dispatcher.read_models.reader import Reader
from dispatcher.read_models.store import Store
from dispatcher.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Services:
    """Shared objects. `register` functions get them directly or as `Tabs.services`. Safe for several threads."""

    settings: Settings
    store: Store
    reader: Reader
    catalogue: Catalogue
    answers: Answers
    cluster: Cluster
    disks: Disks
    lost: LostFiles
    files: Files
    logs: LogReader
    rankings: Rankings
    summaries: Summaries
    past: LogPages
    """Older parts of event logs."""
    metrics: Metrics
    clock: Callable[[], float]
    """Seconds since the epoch."""
    monotonic: Callable[[], float]
    """Seconds that never go back."""
