"""Registered models as the page shows them: a table of versions for each, the newest first."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cerebro.contract.base import Contract
from cerebro.contract.registry import RegisteredModel
from cerebro.errors import StoreUnavailableError
from dispatcher.reading.reader import WORKERS_S, Reader

MOST_VERSIONS = 50
"""Of each model that are shown, beside those with an alias."""


class VersionRow(Contract):
    """A version: what it is, and where it is from."""

    version: int
    aliases: tuple[str, ...]
    state: str
    error: str
    experiment: str
    run: str
    model: str
    epoch: int
    metric: str
    value: float | None
    hyperparams: str
    size: int
    author: str
    created: float


class RegisteredRow(Contract):
    """A registered model."""

    name: str
    total: int
    versions: tuple[VersionRow, ...]
    unreadable: tuple[str, ...] = ()
    """Of versions that cannot be read: which, and why."""


def registered(model: RegisteredModel) -> RegisteredRow:
    """Its newest versions, and whatever has an alias."""
    newest = {version.version for version in model.versions[-MOST_VERSIONS:]} | {*model.aliases.values()}
    rows = [
        VersionRow(
            version=version.version,
            aliases=model.aliases_of(version.version),
            state={"ready": "finished", "copying": "running", "failed": "failed"}[version.state],
            error=version.error,
            experiment=version.source.experiment,
            run=version.source.run,
            model=version.source.model,
            epoch=version.source.epoch,
            metric=version.source.metric,
            value=version.source.value,
            hyperparams=", ".join(f"{name} {value}" for name, value in version.source.hyperparams.items()),
            size=version.source.checkpoint.size,
            author=version.source.author,
            created=version.created,
        )
        for version in reversed(model.versions)
        if version.version in newest
    ]
    return RegisteredRow(
        name=model.name,
        total=len(model.versions),
        versions=tuple(rows),
        unreadable=tuple(each.reason for each in model.unreadable),
    )


class Registry:
    """What is registered, as it was at most `WORKERS_S` seconds ago, however many look. Safe for several threads."""

    def __init__(self, reader: Reader, monotonic: Callable[[], float]) -> None:
        self._reader, self._monotonic = reader, monotonic
        self._looking = threading.Lock()
        self._at, self._kept = float("-inf"), tuple[RegisteredRow, ...]()

    def look(self) -> tuple[RegisteredRow, ...]:
        """All models, by name.

        Raises:
            StoreUnavailableError: the store is away and was never read.
        """
        with self._looking:
            if self._monotonic() >= self._at + WORKERS_S:
                try:
                    found = self._reader.ask(self._reader.store.registry)
                except StoreUnavailableError:
                    if self._at == float("-inf"):
                        raise
                    return self._kept  # the page says that the store is away
                self._kept, self._at = tuple(map(registered, found)), self._monotonic()
            return self._kept
