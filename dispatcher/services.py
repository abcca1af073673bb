"""What all routes share, made once: settings, the store, what was read of it, and what is measured beside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cerebro.state.log_pages import LogPages
from dispatcher.api.files import Files
from dispatcher.checkpoints.lost import LostFiles
from dispatcher.cluster.disks import Disks
from dispatcher.cluster.reading import Cluster
from dispatcher.experiments.catalogue import Catalogue
from dispatcher.logs.reading import LogReader
from dispatcher.metrics import Metrics
from dispatcher.pages.answers import Answers
from dispatcher.reading.reader import Reader
from dispatcher.reading.store import Store
from dispatcher.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Services:
    """Handed to every `register`. Safe for several threads."""

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
    past: LogPages
    """Older parts of logs of events."""
    metrics: Metrics
    clock: Callable[[], float]
    """Seconds since the epoch."""
    monotonic: Callable[[], float]
    """Seconds that never go back."""
