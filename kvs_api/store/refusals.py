"""Errors for clients' events that the script refuses, with advice.

Called by `Store.append`. The script decides; this module only words the refusal.
"""

from __future__ import annotations

from typing import Any

from cerebro import errors
from cerebro.contract.events import ClientEvent
from cerebro.contract.records import Unreadable
from kvs_api.accounts.quotas import exceeded


def refusal(experiment: str, event: ClientEvent, answer: dict[str, Any]) -> errors.CerebroError:
    """Return the error for a refused event, with advice."""
    run = getattr(event, "run", "")
    if "over" in answer:
        return exceeded(answer["over"])
    if "missing" in answer:
        return errors.NotFoundError(f"no experiment {experiment!r} in the store")
    if "unknown" in answer:
        return errors.NotFoundError(f"no run {run!r} in experiment {experiment!r}")
    if "unreadable" in answer:
        problem = Unreadable.model_validate_json(answer["unreadable"])
        return errors.UnreadableError.for_event(experiment, problem.seq, problem.reason)
    if "conflict" in answer:
        return errors.ConflictError(f"run {run!r} of experiment {experiment!r} was requested already")
    if "moved" in answer:
        return errors.ConflictError(
            f"the locators of experiment {experiment!r} were not changed, because its log has new events or it has an "
            "open run. Check its state and try again"
        )
    if "open" in answer:
        runs = ", ".join(answer["open"])
        return errors.ConflictError(
            f"experiment {experiment!r} cannot be deleted while a run of it has not ended ({runs}): stop it first"
        )
    return errors.ConflictError(f"experiment {experiment!r} is being deleted: wait until its name is free")
