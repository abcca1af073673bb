"""Gantt charts are correct, small and safe to embed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.policies import POLICIES
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Placement, Schedule
from research.gantt import draw
from research.problems import open_shop
from tests.scheduling.instances import open_shops

_SVG = "{http://www.w3.org/2000/svg}"


def _drawn(problem: Problem, *, lower_bound: float | None = None) -> ElementTree.Element:
    schedule = dispatch(problem, POLICIES["lrptw"])
    return ElementTree.fromstring(draw(problem, schedule, lower_bound=lower_bound, title="Chart"))


def _titles(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{_SVG}title")]


def _problem(*, models: Sequence[str] = ("m",), worker: str = "w", gpus: int = 1) -> Problem:
    """One worker with one partition."""
    return replace(
        open_shop([[1.0]] * len(models)), models=tuple(models), workers=(worker,), gpus=(gpus,), gpu_ready=()
    )


def _one(problem: Problem, *, title: str = "", **changes: float) -> str:
    """Draw one sub-epoch, from 1 s to 2.5 s."""
    values: dict[str, float] = {"model": 0, "partition": 0, "worker": 0, "start": 1.0, "end": 2.5}
    sub_epoch = Placement(**{**values, **changes})  # type: ignore[arg-type]
    return draw(problem, Schedule.of([sub_epoch]), title=title)


@settings(deadline=None, max_examples=20)
@given(problem=open_shops())
def test_every_sub_epoch_has_a_bar_with_a_tooltip(problem: Problem) -> None:
    """Each sub-epoch is one path; its title has model, partition, epoch and times."""
    sub_epochs = [text for text in _titles(_drawn(problem)) if ", partition " in text]
    assert len(sub_epochs) == problem.num_sub_epochs


@pytest.mark.parametrize("name", ['<script>alert("1")</script>', "a&b", 'x" onload="y', "\x00\x1b", "é" * 80])
def test_special_characters_in_names_stay_text(name: str) -> None:
    """Special characters in names add no element or attribute."""
    drawing, plain = _one(_problem(models=(name,), worker=name), title=name), _one(_problem(), title="t")
    tags = {element.tag for element in ElementTree.fromstring(drawing).iter()}
    assert tags == {element.tag for element in ElementTree.fromstring(plain).iter()}
    attributes = {key for element in ElementTree.fromstring(drawing).iter() for key in element.attrib}
    assert not {key for key in attributes if key.startswith("on") or key == "style"}
