"""The schedule shows every attempt and exact idle time, for any number of sub-epochs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro import figures
from cerebro.figures import Absence, Figure, Landmarks, PlannedSpan, Span, description, table
from cerebro.figures.schedule import buckets
from cerebro.figures.schedule.drawing import MAX_BARS
from cerebro.figures.schedule.spans import TakenBar
from tests.figures.samples import spans

MODELS = tuple(f"m{i:02}" for i in range(16))


def drawn(found: list[Span], workers: int, highlight: str = "", **more: Any) -> Figure:
    names = {f"worker-{i}": 1 for i in range(workers)}
    landmarks = Landmarks(**{"now_s": 0.0, **more})
    return figures.schedule(found, workers=names, models=MODELS, landmarks=landmarks, highlight=highlight)


def bars(figure: Figure, name: str) -> dict[str, Any]:
    """Return the bars of that name, without the legend's."""
    (found,) = [t for t in figure["data"] if t["name"] == name and t["x"] != [None]]
    return dict(found)


def test_a_bar_shows_its_attempt_and_links_to_its_task() -> None:
    """Model, epoch, partition, attempt, task, and the error of a failed attempt."""
    failed = bars(drawn(spans(), 4), "failed")
    model, epoch, partition, attempt, task = failed["customdata"][0]
    assert task == f"fit-1/train/{model}/e{epoch}/p{partition}"
    assert attempt == 1
    assert "crash" in failed["hovertext"][0]


def test_the_models_of_a_fused_group_share_the_height_of_one_bar() -> None:
    """Their slices don't overlap, and the device is busy for the time of the group, not for the sum of its models."""
    found = [
        Span(
            task=f"fit-1/train/m0{number}/e1/p0", model=f"m0{number}", epoch=1, partition=0, worker="worker-0",
            attempt=1, start_s=0.0, end_s=8.0, outcome="committed", load_s=1.0, group="a group",
            sharing=4, parallel_plan="fused(models=4)",
        )
        for number in range(4)
    ]  # fmt: skip
    figure = drawn(found, 1, now_s=10.0)
    for name in ("committed", "loading, saving"):
        trace = bars(figure, name)
        assert trace["width"] == [0.2] * 4
        assert trace["offset"] == pytest.approx([-0.4, -0.2, 0.0, 0.2])
    assert "in a group of 4 models" in bars(figure, "committed")["hovertext"][0]
    (row,) = table(figure).rows
    assert 8.0 in row
    assert buckets.busy_share(found, 1, 16.0)[0][1] == pytest.approx(1.0)
    assert {bucket.busy for bucket in buckets.merged(found, ("worker-0",), 8.0, max_bars=4)} == {1.0}


def test_each_device_has_a_row() -> None:
    """Named if its worker has several; each bar is in its device's row, and the total counts all rows."""
    found = [
        replace(span, devices=(number % 2,)) for number, span in enumerate(spans(2, 1, 2, last_runs=False))
    ]
    plan = [PlannedSpan(model="m00", epoch=9, partition=0, worker="worker-0", start_s=90, end_s=91, device=1)]
    landmarks = Landmarks(now_s=0.0)
    figure = figures.schedule(
        found, workers={"worker-0": 2, "worker-1": 1}, models=MODELS, landmarks=landmarks, planned=plan
    )
    assert figure["layout"]["yaxis"]["ticktext"] == ["worker-0 · 0", "worker-0 · 1", "worker-1"]
    committed = [span for span in found if span.outcome == "committed"]
    rows = [span.devices[0] if span.worker == "worker-0" else 2 for span in committed]
    assert bars(figure, "committed")["y"] == rows
    assert bars(figure, "planned")["y"] == [1]
    assert "on 2 workers" in figure["layout"]["title"]["text"]
    assert [line[0] for line in table(figure).rows] == ["worker-0 · 0", "worker-0 · 1", "worker-1"]


def test_a_sub_epoch_on_several_devices_is_drawn_on_each_of_them() -> None:
    """It counts as one attempt, with its time in each row."""
    first = spans(1, 1, 1, last_runs=False)[0]
    wide = replace(first, worker="worker-0", devices=(0, 2), parallel_plan="ddp-2", start_s=0.0, end_s=4.0)
    found = figures.schedule([wide], workers={"worker-0": 3}, models=MODELS, landmarks=Landmarks(now_s=4.0))
    drawn_bars = bars(found, "committed")
    assert drawn_bars["y"] == [0, 2]
    assert "by ddp-2 on devices 0, 2" in drawn_bars["hovertext"][0]
    assert description(found).startswith("1 attempt at sub-epochs on 1 worker")
    assert [tuple(line[:2]) for line in table(found).rows] == [
        ("worker-0 · 0", 1),
        ("worker-0 · 1", 0),
        ("worker-0 · 2", 1),
    ]


def test_partitions_built_during_a_fit_have_their_own_row() -> None:
    """Below the devices; an ETL worker's row has its name, and without partitions the row is absent."""
    (sub_epoch,) = spans(1, 1, 1, last_runs=False)
    what = "preprocesses train, partition 0"
    builds = [
        replace(sub_epoch, model="", worker=name, devices=(), kind="etl", what=what)
        for name in ("worker-0", "worker-0-etl")
    ]
    landmarks = Landmarks(now_s=0.0)
    figure = figures.schedule(
        [sub_epoch], workers={"worker-0": 1}, models=MODELS, landmarks=landmarks, other_tasks=builds
    )
    assert figure["layout"]["yaxis"]["ticktext"] == ["worker-0", "worker-0 · ETL", "worker-0-etl"]
    assert bars(figure, "making a partition")["y"] == [1, 2]
    assert "making a partition" not in [trace["name"] for trace in drawn([sub_epoch], 1)["data"]]
    assert "2 partitions made again" in description(figure)


def test_trials_are_on_their_devices_rows_and_inspections_on_their_own() -> None:
    """Without a model's colour. If they precede the first sub-epoch, the axis starts with them."""
    (sub_epoch,) = spans(1, 1, 1, last_runs=False)
    none = replace(sub_epoch, model="", worker="worker-0", outcome="committed", load_s=0.0, save_s=0.0)
    inspected = replace(
        none, kind="inspect", what="inspects the models", devices=(), start_s=-3.0, end_s=-1.0
    )
    tried = replace(
        none, kind="trial", what="tries ddp-2 with the models of g00", devices=(0, 1), note="12 ms a batch"
    )
    figure = figures.schedule(
        [sub_epoch],
        workers={"worker-0": 2},
        models=MODELS,
        landmarks=Landmarks(now_s=0.0),
        other_tasks=[inspected, tried],
    )
    axes = figure["layout"]
    assert axes["yaxis"]["ticktext"] == ["worker-0 · 0", "worker-0 · 1", "worker-0 · inspection"]
    assert axes["xaxis"]["range"][0] == -3.0
    assert bars(figure, "inspecting models")["y"] == [2]
    trial = bars(figure, "measuring a parallel plan")
    assert trial["y"] == [0, 1]
    assert "12 ms a batch" in trial["hovertext"][0]
    assert "1 inspection, 1 trial" in description(figure)
    alone = figures.schedule(
        [], workers={"worker-0": 1}, models=MODELS, landmarks=Landmarks(now_s=0.0), other_tasks=[inspected]
    )
    assert bars(alone, "inspecting models")["base"] == [-3.0]


def test_a_lost_and_returned_worker_is_marked() -> None:
    """At the time of the loss; its rows are shaded until the return, so they do not look idle."""
    found = spans(2, 2, 2, last_runs=False)
    end = max(span.end_s for span in found)
    absences = (
        Absence(worker="worker-0", start_s=2.0, end_s=5.0, lost="silent <b>"),
        Absence(worker="worker-1", start_s=0.0, end_s=1.0, lost=""),
        Absence(worker="worker-1", start_s=end - 1.0, end_s=None, lost="killed"),
    )
    figure = figures.schedule(
        found,
        workers={"worker-0": 2, "worker-1": 1},
        models=MODELS,
        landmarks=Landmarks(now_s=end, absences=absences),
    )
    shades = bars(figure, "worker not there")
    assert shades["y"] == [0, 1, 2, 2]
    assert shades["x"] == [3.0, 3.0, 1.0, pytest.approx(1.0)]
    lost, came = bars(figure, "worker lost"), bars(figure, "worker came")
    assert lost["x"] == [2.0, end - 1.0]
    assert [round(place) for place in lost["y"]] == [0, 2]
    assert [round(place) for place in came["y"]] == [1, 2]
    assert "silent &lt;b&gt;" in lost["hovertext"][0]
    assert came["x"] == [5.0, 1.0]
    assert [words.split("<br>")[0] for words in came["hovertext"]] == [
        "worker-0 came back",
        "worker-1 joined",
    ]
    assert "lost 2 times and came 2 times" in description(figure)
    assert "worker lost" not in [trace["name"] for trace in drawn(found, 2)["data"]]


def test_breaks_are_shaded_and_count_for_no_worker() -> None:
    """The run was not open, so no worker could train. A break after the last sub-epoch is not drawn."""
    found = spans(last_runs=False)
    end = max(span.end_s for span in found)
    figure = drawn(found, 4, breaks=((2.0, 5.0), (end - 1.0, end + 9.0), (end + 20.0, end + 30.0)))
    shades = [shape for shape in figure["layout"]["shapes"] if shape["type"] == "rect"]
    assert [(shade["x0"], shade["x1"]) for shade in shades] == [(2.0, 5.0), (end - 1.0, end)]
    for line in table(figure).rows:
        assert float(line[3] or 0) + float(line[4] or 0) == pytest.approx(end - 4.0, abs=0.02)
    assert "4.00 s in which the run had ended" in description(figure)


def test_time_of_other_runs_is_hatched_and_not_idle() -> None:
    """In the row of its device, without a model's colour; the table counts it neither as training nor as idle."""
    (one, *_) = spans()
    found = [replace(one, worker="worker-0", devices=(1,), start_s=0.0, end_s=2.0)]
    landmarks = Landmarks(
        now_s=10.0, taken=(TakenBar(worker="worker-0", devices=(1,), start_s=2.0, end_s=8.0),)
    )
    figure = figures.schedule(found, workers={"worker-0": 2}, models=MODELS, landmarks=landmarks)
    hatched = bars(figure, "another experiment")
    assert (hatched["y"], hatched["base"], hatched["x"]) == ([1], [2.0], [6.0])
    assert hatched["marker"]["pattern"]["shape"]
    first, second = table(figure).rows
    assert (*first[3:6], first[7]) == (0, 10.0, 100.0, 0)
    assert (*second[3:6], second[7]) == (2.0, 2.0, 50.0, 6.0)
    assert "Other runs had 6.00 s" in description(figure)


# --- many sub-epochs --------------------------------------------------------------------------------------


def test_many_sub_epochs_become_few_bars_with_the_same_idle_time() -> None:
    """A bar's fill is the worker's busy share; each failure keeps a mark."""
    found = spans(8, 16, 30, last_runs=False)
    assert len(found) > MAX_BARS
    figure = drawn(found, 8)
    merged = bars(figure, "busy")
    assert len(merged["x"]) <= MAX_BARS
    shown = sum(wide * high / 0.8 for wide, high in zip(merged["x"], merged["width"], strict=True))
    sub_epoch_s = 60.0 if "min" in figure["layout"]["xaxis"]["title"]["text"] else 1.0
    assert shown * sub_epoch_s == pytest.approx(sum(span.end_s - span.start_s for span in found))
    assert len(bars(figure, "failed or revoked")["x"]) == 2
    assert "in time ranges of" in figure["layout"]["title"]["text"]


SPANS = st.lists(
    st.tuples(st.integers(0, 3), st.floats(0.0, 50.0), st.floats(0.01, 20.0)), min_size=1, max_size=60
)


def one_after_another(given_: list[tuple[int, float, float]]) -> list[Span]:
    """Sub-epochs of one worker, each some time after the previous one."""
    clock = [0.0] * 4
    found = []
    for worker, pause, seconds in given_:
        start = clock[worker] + pause
        clock[worker] = start + seconds
        found.append(
            Span(
                task="t", model="m00", epoch=1, partition=0, worker=f"worker-{worker}", attempt=1,
                start_s=start, end_s=start + seconds, outcome="committed",
            )
        )  # fmt: skip
    return found


@given(SPANS)
def test_merging_keeps_each_workers_busy_time(given_: list[tuple[int, float, float]]) -> None:
    """Exactly, for any time ranges."""
    found = one_after_another(given_)
    end = max(span.end_s for span in found)
    merged = buckets.merged(found, [f"worker-{i}" for i in range(4)], end, max_bars=40)
    for worker in {span.worker for span in found}:
        busy = sum(span.end_s - span.start_s for span in found if span.worker == worker)
        assert sum(b.busy * b.seconds for b in merged if b.worker == worker) == pytest.approx(busy)
    assert all(0 < bucket.busy <= 1 for bucket in merged)


@given(SPANS)
def test_the_strip_keeps_the_busy_time_of_all_workers(given_: list[tuple[int, float, float]]) -> None:
    """Its area is the busy share of all workers' time."""
    found = one_after_another(given_)
    end = max(span.end_s for span in found)
    line = buckets.busy_share(found, 4, end)
    area = sum(share * (after - at) for (at, share), (after, _) in pairwise(line))
    assert area * 4 == pytest.approx(sum(span.end_s - span.start_s for span in found))


# --- ETL ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [False, True])
def test_a_time_range_counts_only_its_sub_epochs(many: bool) -> None:
    """Bars that start before it are clipped; epochs, breaks and bounds outside it are not drawn."""
    sub_epochs = spans(4, 6, 200 if many else 2, last_runs=False)
    end = max(sub_epoch.end_s for sub_epoch in sub_epochs)
    since, until = 0.25 * end, 0.75 * end
    landmarks = Landmarks(
        now_s=end,
        epochs=((1, 0.5 * end), (2, end)),
        breaks=((0.0, 0.1 * end),),
        bound_at_s=end,
        lower_bound_s=end,
    )
    here = figures.within(landmarks, since, until)
    names = {f"worker-{i}": 1 for i in range(4)}
    figure = figures.schedule(sub_epochs, workers=names, models=MODELS, landmarks=here)
    inside = [
        min(u.end_s, until) - max(u.start_s, since)
        for u in sub_epochs
        if u.start_s < until and u.end_s > since
    ]
    columns, rows, _ = table(figure)
    trained = [float(str(row[columns.index("training, s")])) for row in rows]
    assert sum(trained) == pytest.approx(sum(inside), abs=0.1)
    assert "lower bound" not in str(figure["layout"]["annotations"])
    assert "epoch 1" in str(figure["layout"]["annotations"])
    assert "epoch 2" not in str(figure["layout"]["annotations"])
    (busy,) = [trace for trace in figure["data"] if trace["name"] == "busy devices"]
    seconds = figure["layout"]["xaxis"]["range"][0] / since
    assert busy["x"][0] == pytest.approx(since * seconds)
    assert busy["x"][-1] == pytest.approx(until * seconds)
