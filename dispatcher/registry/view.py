"""Registered models: a table of versions per model, newest first, read from the store and cached for 2 s.

Only `registry.page` uses it. Shows the newest 50 versions of a model, and all versions with an alias.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from cerebro.contract.base import Contract
from cerebro.contract.stored.registry import RegisteredModel
from cerebro.errors import StoreUnavailableError
from dispatcher.read_models.reader import WORKERS_S, Reader

MAX_VERSIONS = 50
"""Maximum number of versions to show per model. Versions with an alias are always shown."""


class VersionRow(Contract):
    """A version with its source."""

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
    """Reasons of versions that cannot be read."""


def registered(model: RegisteredModel) -> RegisteredRow:
    """Return a model's newest versions and all versions with an alias."""
    newest = {version.version for version in model.versions[-MAX_VERSIONS:]} | {*model.aliases.values()}
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
    """Registered models, at most `WORKERS_S` seconds old. Safe for several threads."""

    def __init__(self, reader: Reader, monotonic: Callable[[], float]) -> None:
        self._reader, self._monotonic = reader, monotonic
        self._refreshing = threading.Lock()
        self._at, self._models = float("-inf"), tuple[RegisteredRow, ...]()

    def invalidate(self) -> None:
        """Read the registry again at the next access."""
        with self._refreshing:
            if self._at > float("-inf"):
                self._at = self._monotonic() - WORKERS_S

    def models(self) -> tuple[RegisteredRow, ...]:
        """Return all models by name.

        Raises:
            StoreUnavailableError: the store is away and was never read.
        """
        with self._refreshing:
            if self._monotonic() >= self._at + WORKERS_S:
                try:
                    found = self._reader.call(self._reader.store.registry)
                except StoreUnavailableError:
                    if self._at == float("-inf"):
                        raise
                    return self._models  # the page reports the outage
                self._models, self._at = tuple(map(registered, found)), self._monotonic()
            return self._models
