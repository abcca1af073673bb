"""Quotas of projects and users without a project, and their use: open runs, models, bytes, worker-hours.

This module stores quotas, reports their use and adds arguments to other calls of the script. The script (`quotas.lua`)
compares and refuses, in the same step that appends an event. Only clusters with users count use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from cerebro import errors
from cerebro.contract.accounts.quotas import DAYS, DEFAULT, Quota, Usage
from cerebro.contract.events import ClientEvent, ModelsAdded, RunRequested
from cerebro.contract.runs import FitRequest
from kvs_api.accounts.tokens import TokenStore
from kvs_api.store import keys
from kvs_api.store.database import text, translated

_WORDS = {
    "open_runs": ("open runs", "wait for one to end, or stop one"),
    "models": ("models in one run", "ask for fewer"),
    "bytes": ("bytes of checkpoints and predictions", "delete unused experiments"),
    "worker_hours": (f"worker-hours in {DAYS} days", "wait until older hours leave the time range"),
}


class QuotaStore(TokenStore):
    """Quotas and their use.

    Attributes:
        has_users: True if use is counted. Set by the code that wires the service.
    """

    has_users = False

    def set_quota(self, name: str, quota: Quota) -> None:
        """Set a project's quota; an unset quota removes it. Open runs continue."""
        field = DEFAULT if name == DEFAULT else f"project:{name}"
        with translated():
            if quota == Quota():
                self._redis.hdel(keys.QUOTAS, field)
            else:
                self._redis.hset(keys.QUOTAS, field, quota.model_dump_json(exclude_none=True))

    def usages(self) -> tuple[Usage, ...]:
        """Return the quota and use of each project and owner, sorted by name."""
        with translated():
            stored: Any = self._redis.hgetall(keys.QUOTAS)
        used = self._run({"call": "usages", "queue": keys.QUEUE, "quotas": _PLACES})["used"] or {}
        quotas = {text(name): _read(content) for name, content in stored.items()}
        found = []
        for account in sorted({*quotas, *used}):
            kind, _, name = account.partition(":")
            each = used.get(account, {})
            found.append(
                Usage(
                    name=name or kind,
                    is_project=kind == "project",
                    quota=quotas.get(account),
                    open_runs=each.get("open_runs", 0),
                    worker_hours=round(each.get("worker_hours", 0.0), 3),
                    bytes=int(each.get("bytes", 0)),
                )
            )
        return tuple(found)

    def note_bytes(self, measured: Mapping[str, int]) -> tuple[str, ...]:
        """Replace the measured bytes of experiments on volumes. Deleted experiments are ignored.

        Returns:
            All experiments with recorded bytes.
        """
        # As digits: Lua would round large numbers.
        measurements = [{"name": name, "bytes": str(number)} for name, number in measured.items()]
        call = {
            "call": "note_bytes",
            "bytes": keys.BYTES,
            "experiments": _PLACES["experiments"],
            "measured": measurements,
        }
        return tuple(self._run(call)["known"] or ())

    def _quota_arguments(self, event: ClientEvent) -> dict[str, Any]:
        """Return the script's arguments for checking an event against quotas."""
        if not self.has_users:
            return {}
        models, is_unlimited = 0, False
        if isinstance(event, RunRequested) and isinstance(event.request, FitRequest):
            search = event.request.search
            models = len(event.request.models) or (search.samples or 0 if search else 0)
            is_unlimited = search is not None and not models
            if repeats := event.request.repeats:
                models += repeats.top * repeats.seeds
            models *= event.request.folds or 1
        elif isinstance(event, ModelsAdded):
            models = len(event.models)
        return {"quotas": _PLACES, "models": models, "unlimited": is_unlimited}

    def _hour_arguments(self) -> dict[str, Any]:
        """Return the script's arguments for counting hours of attempts."""
        return {"hours": {"prefix": keys.HOURS, "accounts": keys.ACCOUNTS}} if self.has_users else {}


_PLACES = {
    "key": keys.QUOTAS,
    "hours": keys.HOURS,
    "accounts": keys.ACCOUNTS,
    "bytes": keys.BYTES,
    "experiments": keys.experiment(""),
}


def exceeded(problem: dict[str, Any]) -> errors.ConflictError:
    """Return the error for an event above a quota, with advice."""
    kind, _, name = problem["account"].partition(":")
    whose = f"project {name!r}" if kind == "project" else "its owner" if ":" in name else name
    used, limit = (problem[name] for name in ("used", "limit"))
    if problem["what"] == "samples":
        return errors.ConflictError(
            f"{whose} has a quota of {limit:,.0f} models in one run, and this search may sample any number: limit "
            "it (samples=...), or ask an admin to raise the quota (`cerebro quota`)"
        )
    words, advice = _WORDS[problem["what"]]
    pattern = ",.0f" if problem["what"] == "bytes" else ".4g"
    return errors.ConflictError(
        f"{whose} would be over its quota of {words}: {used:{pattern}} used, {limit:{pattern}} allowed. "
        f"{advice[:1].upper()}{advice[1:]}, or ask an admin to raise it (`cerebro quota`)"
    )


def _read(content: bytes) -> Quota | None:
    try:
        return Quota.model_validate_json(content)
    except ValidationError:
        return None  # damaged: the script enforces the fields it can read
