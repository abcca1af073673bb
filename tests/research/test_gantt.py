"""Gantt charts are safe, small and right, wherever they are shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.policies import POLICIES
from cerebro.scheduling.problem import Problem, open_shop
from cerebro.scheduling.schedule import Schedule, SubEpoch
from research.gantt import PALETTE, draw
from research.scenarios import paper, thesis, thesis_full_nodes
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
    """A drawing of one sub-epoch, from 1 s to 2.5 s."""
    values: dict[str, float] = {"model": 0, "partition": 0, "worker": 0, "start": 1.0, "end": 2.5}
    sub_epoch = SubEpoch(**{**values, **changes})  # type: ignore[arg-type]
    return draw(problem, Schedule.of([sub_epoch]), title=title)


@settings(deadline=None, max_examples=20)
@given(problem=open_shops())
def test_every_sub_epoch_has_a_bar_with_a_tooltip(problem: Problem) -> None:
    """One path per sub-epoch, whose title tells model, partition, epoch and times."""
    sub_epochs = [text for text in _titles(_drawn(problem)) if ", partition " in text]
    assert len(sub_epochs) == problem.num_sub_epochs


def test_a_tooltip_tells_the_whole_sub_epoch() -> None:
    """Model, partition, epoch, start and end, and GPUs if there are several."""
    drawing = _one(_problem(gpus=2), epoch=2, gpus=2)
    assert "<title>m, partition 0, epoch 2, 1 to 2.5 s, 2 GPUs</title>" in drawing


def test_epochs_that_follow_each_other_differ() -> None:
    """Sub-epochs of even epochs are paler than those of odd ones."""
    odd, even = (_one(_problem(), epoch=epoch) for epoch in (1, 2))
    assert 'fill-opacity="0.6"' in even
    assert 'fill-opacity="0.6"' not in odd


def test_a_sub_epoch_on_gpus_that_are_apart_is_drawn_on_each() -> None:
    """Lanes 0 and 2 make two rectangles of one path."""
    problem = _problem(models=("a", "b", "c", "d"), gpus=3)
    times = [(0.0, 1.0, 1), (0.1, 3.0, 1), (0.2, 1.0, 1), (1.0, 2.0, 2)]
    sub_epochs = [
        SubEpoch(model=model, partition=0, worker=0, start=start, end=end, gpus=gpus)
        for model, (start, end, gpus) in enumerate(times)
    ]
    drawing = draw(problem, Schedule.of(sub_epochs))
    (path,) = re.findall(rf'<path d="([^"]+)" fill="{PALETTE[3]}"', drawing)
    assert path.count("M") == 2


def test_makespan_and_lower_bound_are_marked() -> None:
    """Both lines are there, and the heading tells the ratio."""
    root = _drawn(thesis_full_nodes("4.2"), lower_bound=5000.0)
    assert {"makespan 5252 s", "lower bound 5000 s"} <= set(_titles(root))
    assert any("ratio 1.050" in (element.text or "") for element in root.iter(f"{_SVG}text"))


def test_idle_workers_and_empty_charts_are_drawn() -> None:
    """A worker without sub-epochs keeps its row; no sub-epochs at all are no error."""
    drawing = draw(open_shop([[1.0, 1.0]]), Schedule.of([]))
    assert {"worker-0", "worker-1"} <= {e.text for e in ElementTree.fromstring(drawing).iter(f"{_SVG}text")}


def test_four_thousand_sub_epochs_stay_small() -> None:
    """256 models on 16 workers take less than 200 KB: a path per model, which names it."""
    problem = paper(256, 16)
    drawing = draw(problem, dispatch(problem, POLICIES["lrptw"]))
    assert len(drawing) < 200_000
    assert "<title>m255</title>" in drawing


@pytest.mark.parametrize("name", ['<script>alert("1")</script>', "a&b", 'x" onload="y', "\x00\x1b", "é" * 80])
def test_names_are_text_and_nothing_else(name: str) -> None:
    """Whatever a model or a worker is called, the drawing stays well-formed and gains no element or attribute."""
    drawing, plain = _one(_problem(models=(name,), worker=name), title=name), _one(_problem(), title="t")
    tags = {element.tag for element in ElementTree.fromstring(drawing).iter()}
    assert tags == {element.tag for element in ElementTree.fromstring(plain).iter()}
    attributes = {key for element in ElementTree.fromstring(drawing).iter() for key in element.attrib}
    assert not {key for key in attributes if key.startswith("on") or key == "style"}


def test_a_page_with_a_strict_policy_may_show_it() -> None:
    """No script, style, link or foreign object: the web page's content security policy allows none of them inline."""
    drawing = draw(thesis("4.2"), Schedule.of([SubEpoch(model=0, partition=0, worker=0, start=0.0, end=9.0)]))
    assert not re.search(r"<(script|style|a|image|foreignObject)\b|\sstyle=|\son\w+=|href=|url\(", drawing)


def test_a_notebook_shows_it() -> None:
    """A drawing is its own SVG representation."""
    drawing = draw(_problem(), Schedule.of([]))
    assert drawing._repr_svg_() == drawing


def test_a_legend_names_models_while_there_are_colours_for_them() -> None:
    """As many models as colours are named; more than that are told apart by their tooltips."""
    for count, is_named in ((len(PALETTE), True), (len(PALETTE) + 1, False)):
        problem = _problem(models=[f"model-{number}" for number in range(count)])
        root = ElementTree.fromstring(draw(problem, Schedule.of([])))
        texts = {element.text for element in root.iter(f"{_SVG}text")}
        assert ("model-0" in texts) is is_named


@pytest.mark.parametrize(
    ("seconds", "last", "sub_epoch"),
    [
        (0.05, "0.05", "s"),
        (7.0, "7", "s"),
        (15_926.0, "14000", "s"),
        (100_000.0, "25", "h"),
        (1e6, "10", "d"),
    ],
)
def test_the_axis_has_round_numbers(seconds: float, last: str, sub_epoch: str) -> None:
    """Five to eleven ticks at round numbers, in seconds, hours or days."""
    drawing = _one(_problem(), start=0.0, end=seconds)
    labels = re.findall(r'text-anchor="middle">([0-9.]+(?: [shd])?)</text>', drawing)
    assert labels[0] == f"0 {sub_epoch}"
    assert labels[-1] == last
    assert 5 <= len(labels) <= 11
