"""How much of a cluster a project may use, and how much it does."""

from __future__ import annotations

from pydantic import Field

from cerebro.contract.base import Contract

DEFAULT = "default"
"""The quota of whoever has none of their own: projects, and owners of experiments that are in none."""
DAYS = 30
"""Over which hours are counted."""


class Quota(Contract):
    """What a project may have; what is left out is not limited."""

    open_runs: int | None = Field(None, ge=0)
    """That wait or are worked on at a time."""
    models: int | None = Field(None, ge=0)
    """Of one run: those that it is requested with, as many as a search draws at most, and those that are added."""
    worker_hours: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Of devices of workers in `DAYS` days, counted as attempts end. Once they are used no run begins."""
    bytes: int | None = Field(None, ge=0, exclude_if=lambda limit: limit is None)
    """Bytes of checkpoints and predictions, as the controller measures them. No run begins above this limit."""


class Usage(Contract):
    """What one who has a quota uses."""

    name: str
    """A project, an owner of experiments in none, or `DEFAULT`."""
    is_project: bool = True
    quota: Quota | None = None
    """`None`: the default one holds, if there is one."""
    open_runs: int = 0
    worker_hours: float = 0.0
    bytes: int = Field(0, exclude_if=lambda number: number == 0)
