"""Parse events in answers of kvs_api, and report unreadable ones.

`KvsClient` calls it if an answer does not validate, to name the first unreadable event and its reason. Nothing is sent
here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cerebro import errors
from cerebro.contract.events import ClusterEvent, Event
from cerebro.contract.rest import api

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)
_CLUSTER_EVENT: TypeAdapter[ClusterEvent] = TypeAdapter(ClusterEvent)


def readable(experiment: str, content: bytes) -> tuple[Event, ...]:
    """Return the events of an answer.

    Raises:
        UnreadableError: one cannot be read.
        StoreUnavailableError: the answer has no events, so another program sent it.
    """
    found: list[Event] = []
    for entry in _entries(content):
        kind = (
            errors.UnreadableClusterLogError if entry.pop(api.OF_CLUSTER, False) else errors.UnreadableError
        )
        try:
            found.append(_EVENT.validate_json(json.dumps(entry)))
        except ValidationError as cause:
            raise kind.for_event(experiment, entry.get("seq", 0), _reason(cause, entry), found) from cause
    return tuple(found)


def readable_cluster_log(content: bytes) -> api.ClusterLogAnswer:
    """Return an answer with events of the cluster log.

    Raises:
        UnreadableClusterLogError: one cannot be read.
        StoreUnavailableError: the answer has no events, so another program sent it.
    """
    try:
        return api.ClusterLogAnswer.model_validate_json(content)
    except ValidationError as error:
        for entry in _entries(content):
            try:
                _CLUSTER_EVENT.validate_json(json.dumps(entry))
            except ValidationError as cause:
                seq, reason = entry.get("seq", 0), _reason(cause, entry)
                raise errors.UnreadableClusterLogError.for_event("", seq, reason) from cause
        raise error  # the events are valid, so the rest is not


def _entries(content: bytes) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = json.loads(content)["events"]
    except (ValueError, KeyError, TypeError) as cause:
        raise errors.StoreUnavailableError(
            f"something else than kvs_api answered with {content[:80]!r}: check whether a proxy does"
        ) from cause
    return found


def _reason(cause: ValidationError, entry: Mapping[str, Any]) -> str:
    if cause.errors()[0]["type"].startswith("union_tag"):
        return f"it is of type {str(entry.get('type'))[:60]!r}, which is not known here"
    return errors.validation_summary(cause.errors())
