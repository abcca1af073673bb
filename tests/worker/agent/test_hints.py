"""The hint for a hung task depends on its kind, because ETL has no timeout setting."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from cerebro.contract.records import Locator, Locators
from cerebro.contract.tasks.bodies import EtlTask, FittingTask
from cerebro.worker.agent.attempt_runner import AttemptRunner, Patience, Suspicion

KNOWN: dict[str, Any] = {
    "experiment": "one",
    "dataset": "d",
    "code": "0" * 64,
    "locators": Locators(train=Locator(metadata="train.csv")),
}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            FittingTask(key="etl-1/fitting", partitions=(0,), **KNOWN),
            "no batch or object for 9 s.*ETLSpec.fit has to",
        ),
        (
            EtlTask(key="etl-1/etl/train/p0", split="train", partition=0, max_failed=0.0, **KNOWN),
            "no row for 9 s",
        ),
    ],
)
def test_the_hint_depends_on_the_kind_of_task(body: Any, message: str) -> None:
    """`hang_timeout_s` is an argument of `run_fit` only."""
    item: Any = SimpleNamespace(body=body)
    child: Any = SimpleNamespace(stacks=lambda: "", describe_hang=lambda: ("it", None), kill=lambda: None)
    nothing: Any = None
    runner = AttemptRunner(
        child,
        item,
        worker="w0",
        patience=Patience(9.0),
        lease=nothing,
        drain=nothing,
        notification=nothing,
        on_notification=lambda: None,
    )
    failure = runner._hang_failure(Suspicion("idle", 9.0, 0.0, frozenset()))
    assert "hang_timeout_s" not in failure.message
    assert re.search(message, failure.message)
