"""docs/comparison.md and its generator."""

from __future__ import annotations

import datetime
import math

import pytest

from benchmarks.compare import document, figures
from benchmarks.compare.contenders import Outcome
from benchmarks.compare.sitting import METHODS, Sitting

BATCH_S = {32: 0.01, 64: 0.015, 256: 0.04, 512: 0.07}


def sitting(**seconds: float) -> Sitting:
    """A round with the given time for each method."""
    return Sitting(
        outcomes={
            method.replace("_", "-"): [
                Outcome(seconds=taken, accuracy=[0.8, 0.9], held=1_000_000, moved=2_000_000)
            ]
            for method, taken in seconds.items()
        },
        rows=1000,
        date=datetime.date(2026, 11, 23),
        load=(0.5, 2.0),
    )


def test_the_page_has_a_section_for_each_generated_part() -> None:
    """Regenerating keeps the prose and fills each part."""
    text = document.TARGET.read_text()
    again = document.render(text, sitting(cerebro=10.0, ddp=26.0), BATCH_S, 1e-9)
    assert document.SECTION.sub("", again) == document.SECTION.sub("", text)
    assert [found[2] for found in document.SECTION.finditer(text)] == [
        "measured",
        "sitting",
        "faster",
        "simulated",
        "inputs",
    ]
    assert "26.0 (26.0) | 2.60" in again


def test_a_faster_method_is_named_with_its_reason() -> None:
    """The page says where Cerebro is slower and why."""
    again = document.render(document.TARGET.read_text(), sitting(cerebro=10.0, averaging=9.0), BATCH_S, 1e-9)
    assert "- Model averaging took 0.90 of Cerebro's time: weights are sent once" in again


def test_each_method_that_can_be_faster_has_a_reason() -> None:
    """Otherwise a row would be missing silently."""
    taken = {method.replace("-", "_"): 1.0 for method in METHODS} | {"cerebro": 10.0}
    again = document.render(document.TARGET.read_text(), sitting(**taken), BATCH_S, 1e-9)
    for method in METHODS:
        assert (f"- {METHODS[method].name} took 0.10" in again) == (method != "cerebro")


def test_a_bar_compares_the_ratio_and_needs_ray() -> None:
    """Each limit has a line; without Ray Tune, the line names the command that measures it."""
    found = {figure.bar: figure for figure in figures.of(sitting(cerebro=10.0, ddp=26.0, task_parallel=10.0))}
    assert (found[2.5].ratio, found[2.5].holds) == (2.6, True)
    assert (found[1.05].ratio, found[1.05].holds) == (1.0, False)
    assert math.isnan(found[1.4].ratio)
    assert not found[1.4].holds
    assert "make compare" in found[1.4].measured


@pytest.mark.parametrize("method", figures.BARS)
def test_each_bar_names_a_measured_method(method: str) -> None:
    """A limit without a measurement could never be missed."""
    assert method in METHODS


def test_regenerating_the_simulation_keeps_the_measurements() -> None:
    """The simulated table can be regenerated without measurements."""
    measured = document.render(document.TARGET.read_text(), sitting(cerebro=10.0, ddp=26.0), BATCH_S, 1e-9)
    again = document.render(measured, None, BATCH_S | {512: 0.1}, 1e-9)
    assert "26.0 (26.0) | 2.60" in again
    assert again != measured
