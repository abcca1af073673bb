"""A test run with values per row, for tests of the pages Ranking and Rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cerebro.contract.events import RunRequested, RunStarted
from cerebro.contract.records import Locator
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.contract.tasks.results import TaskResult
from cerebro.data.manifests import Source
from cerebro.data.shards import write_rows
from cerebro.data.tables.whole_tables import write_columns
from cerebro.runtime.volumes import Volumes
from dispatcher.rows.thumbnails import from_array
from tests.dispatcher.fakes import Bench
from tests.dispatcher.stories import NOW, Story

Values = Mapping[str, npt.NDArray[np.float64]]


def add_ranked(bench: Bench, values: Values, *, began: float = NOW - 300) -> None:
    """Add the experiment ``ranked``, whose models were tested with these values of accuracy per row."""
    story = Story("ranked", began=began)
    objects = str(bench.settings.volumes.shared / "photos")
    record = story.record
    locators = record.locators.model_copy(
        update={"test": Locator(metadata="/data/test.csv", objects=objects)}
    )
    story.record = record.model_copy(update={"locators": locators})
    story.workers_join()
    story.etl()
    story.fit(models=len(values))
    for model in values:
        story.train(model, 1)
    rows = len(next(iter(values.values())))
    plan = EvaluatePlan(
        kind="test",
        dataset="d1",
        fit="fit-1",
        models=dict.fromkeys(values, 1),
        partitions={0: rows},
        is_whole=True,
    )
    request = EvaluateRequest(kind="test", fit="fit-1", models=tuple(values), split="test")
    story.append(RunRequested(run="test-1", request=request))
    story.append(RunStarted(run="test-1", plan=plan))
    for model, column in values.items():
        output = f"predictions/ranked/test-1/{model}-1.arrow"
        path = bench.settings.volumes.shared / output
        path.parent.mkdir(parents=True, exist_ok=True)
        write_columns(path, {"id": list(range(rows)), "accuracy": column})
        result = TaskResult(rows=rows, metrics={"accuracy": float(column.mean())}, output=output)
        story.run_task(f"test-1/test/{model}", "worker-0", result)
    story.finish("test-1")
    bench.store.add(story)


def three_models() -> Values:
    """Two models that tie, and a worse one."""
    rows = np.arange(400)
    return {
        "m00": (rows < 200).astype(np.float64),
        "m01": (rows < 330).astype(np.float64),
        "m02": (rows < 328).astype(np.float64),
    }


def add_images(volumes: Volumes, rows: int) -> None:
    """Write the data set of `add_ranked`: digits of 8 x 8 pixels, as arrays and as objects.

    Each third object is missing.
    """
    folder = volumes.partition("d1", "test", 0)
    folder.mkdir(parents=True)
    images = [digit(row) for row in range(rows)]
    source = Source(fingerprint="f", metadata="m")
    write_rows(folder, [(image, row % 10) for row, image in enumerate(images)], source)
    metadata = volumes.metadata("d1", "test", 0)
    metadata.parent.mkdir(parents=True)
    names = [f"{row % 10}/{row:04d}.png" for row in range(rows)]
    write_columns(
        metadata, {"id": list(range(rows)), "image": names, "label": [row % 10 for row in range(rows)]}
    )
    for row, (name, image) in enumerate(zip(names, images, strict=True)):
        if row % 3:
            write_photo(volumes.shared / "photos" / name, image)


def digit(row: int) -> npt.NDArray[np.uint8]:
    """Return an image whose pixels depend on the row."""
    image = np.zeros((8, 8), np.uint8)
    image[row % 8, :] = 255
    image[:, (row // 8) % 8] = 100 + row % 100
    return image


def write_photo(path: Path, image: npt.NDArray[np.uint8]) -> None:
    """Write an image object: the negative of the array."""
    path.parent.mkdir(parents=True, exist_ok=True)
    thumbnail = from_array(255 - image)
    assert thumbnail is not None
    path.write_bytes(thumbnail.content)
