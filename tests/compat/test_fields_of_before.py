"""Fields that earlier versions wrote and nobody needs any more: what has them still opens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from cerebro.contract.base import Contract
from cerebro.contract.tasks import InspectTask
from cerebro.contract.trials import DeviceKind, KnownWay, TrialOutcome
from cerebro.contract.ways import SINGLE

KIND: dict[str, Any] = {"kind": "cpu", "name": "1 core", "memory_bytes": None}
INSPECT: dict[str, Any] = {
    "kind": "inspect", "key": "fit-1/inspect", "experiment": "one", "run": "fit-1", "code": "a" * 64,
    "dataset": "one-1", "seed": 1, "models": {"m00": {"lr": 0.1}}, "places": (),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "fields", "old"),
    [
        (DeviceKind, KIND, {"link": "NV18"}),
        (KnownWay, {"id": "single", "way": SINGLE.model_dump()}, {"evaluates": True}),
        (TrialOutcome, {"batch_s": 0.5}, {"device_reserved_bytes": 7}),
        (InspectTask, INSPECT, {"ignore": ["tag"]}),
    ],
)
def test_what_an_earlier_version_wrote_is_read(
    kind: type[Contract], fields: dict[str, Any], old: dict[str, Any]
) -> None:
    """As if the field had not been there; any other unknown field is an error as ever."""
    assert kind.model_validate_json(json.dumps({**fields, **old})) == kind.model_validate(fields)
    with pytest.raises(ValidationError, match="Extra inputs"):
        kind.model_validate({**fields, **old, "linked": 1})
