"""What all routes share, made once: settings, the store, what was read of it, and what is measured beside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dispatcher.catalogue import Catalogue
from dispatcher.cluster import Cluster
from dispatcher.conditional import Answers
from dispatcher.disks import Disks
from dispatcher.files import Files
from dispatcher.log_reading import LogReader
from dispatcher.metrics import Metrics
from dispatcher.reading import Reader
from dispatcher.settings import Settings
from dispatcher.store import Store


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
    files: Files
    logs: LogReader
    metrics: Metrics
    clock: Callable[[], float]
    """Seconds since the epoch."""
    monotonic: Callable[[], float]
    """Seconds that never go back."""
