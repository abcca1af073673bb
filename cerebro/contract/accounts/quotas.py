"""Types of quotas of projects, and of their usage. The store enforces them (`kvs_api.accounts.quotas`)."""

from __future__ import annotations

from pydantic import Field

from cerebro.contract.base import Contract

DEFAULT = "default"
"""Default quota, of projects and owners without a quota."""
DAYS = 30
"""Days over which worker-hours are counted."""


class Quota(Contract):
    """Limits of a project. A missing limit means unlimited."""

    open_runs: int | None = Field(None, ge=0)
    """Maximum number of runs that wait or are attended."""
    models: int | None = Field(None, ge=0)
    """Models of one run: requested models, the maximum of a search, and added models."""
    worker_hours: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Device-hours in `DAYS` days, counted when attempts end. Without remaining hours no run begins."""
    bytes: int | None = Field(None, ge=0, exclude_if=lambda limit: limit is None)
    """Bytes of checkpoints and predictions, as the controller measures them. No run begins above this limit."""


class Usage(Contract):
    """Usage of a project or owner."""

    name: str
    """A project, an owner of experiments in none, or `DEFAULT`."""
    is_project: bool = True
    quota: Quota | None = None
    """Its quota; `None`: the default quota, if set."""
    open_runs: int = 0
    worker_hours: float = 0.0
    bytes: int = Field(0, exclude_if=lambda number: number == 0)
