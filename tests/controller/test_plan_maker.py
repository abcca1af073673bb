"""The controller retries a plan that failed for a volume, after growing pauses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cerebro.contract.runs import EtlRequest
from cerebro.errors import VolumeError
from controller import plan_maker
from controller.arbiter import RunRef
from controller.plan_maker import PlanMaker
from tests.state.stories import SHA


def test_the_pauses_grow_to_two_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run has short pauses again."""
    now, tries = 0.0, list[float]()

    class Made:
        locators, is_done = None, True

        def start(self) -> None:
            tries.append(now)

        def result(self) -> None:
            raise VolumeError("/volumes/x is read-only")

    monkeypatch.setattr(plan_maker, "etl_weights", lambda state: {"w-0": 1.0})
    monkeypatch.setattr(plan_maker, "time", SimpleNamespace(monotonic=lambda: now))
    plans = PlanMaker(None)  # type: ignore[arg-type]
    monkeypatch.setattr(plans, "_preparation", lambda *given: Made())
    core: Any = SimpleNamespace(state=SimpleNamespace(name="one"), record=SimpleNamespace(locators=None))

    def turns(run: str, until_s: float) -> list[float]:
        nonlocal now
        now = 0.0
        tries.clear()
        request = EtlRequest(code=SHA, code_fingerprint=SHA)
        asked: Any = SimpleNamespace(id=run, kind="etl", request=request)
        while now < until_s:
            assert plans.steps(core, asked) == []
            plans.keep([RunRef("one", run)])
            now += 1.0
        return list(tries)

    assert turns("etl-1", 500.0) == [0.0, 15.0, 45.0, 105.0, 225.0, 345.0, 465.0]
    assert turns("etl-2", 50.0) == [0.0, 15.0, 45.0]
