"""The page Rows shows the rows that models get wrong or disagree on, with fields and thumbnails."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from PIL import Image

import dispatcher.ranking.rankings as rankings_module
import dispatcher.rows.fields as fields_module
from cerebro.figures.ranking.rows import ComparedRows, RowSource, RowsRequest
from cerebro.runtime.volumes import Volumes
from dispatcher.ranking.outcomes import Job, Outcome
from dispatcher.ranking.process import compute
from dispatcher.ranking.rankings import Rankings
from dispatcher.rows.thumbnails import MAX_OBJECT_BYTES, MAX_SIDE, from_array
from tests.clocks import set_monotonic
from tests.dispatcher.fakes import TOKEN, Bench, settings
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.ranked import Values, add_images, add_ranked, digit, three_models
from tests.dispatcher.stories import running_story
from tests.waiting import until

PAGE = "/experiments/ranked/rows"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    volumes.shared.mkdir()
    return Bench(settings=settings(volumes=volumes))


def view_of(bench: Bench, query: str = "") -> dict[str, Any]:
    """Return the answer of the read API, which is 503 while the rows are selected."""
    client = bench.app.test_client()

    def answer() -> dict[str, Any] | None:
        found = client.get(f"/api/views{PAGE}{query}", headers=AUTHORIZED)
        assert found.status_code in (200, 503), found.text
        return found.get_json() if found.status_code == 200 else None

    return until(answer, "rows")


def pixels(content: bytes) -> list[list[int]]:
    with Image.open(io.BytesIO(content)) as image:
        found: list[list[int]] = np.asarray(image).tolist()
    return found


@pytest.mark.processes
def test_hard_rows_have_values_fields_and_thumbnails(bench: Bench) -> None:
    """From objects, or from arrays where an object is missing; only signed-in users see thumbnails."""
    add_ranked(bench, three_models())
    add_images(bench.settings.volumes, 400)
    view = view_of(bench)
    rows = view["rows"]
    assert (rows["all_wrong"], rows["rows"], rows["models"]) == (70, 400, ["m01", "m02", "m00"])
    assert rows["note"] == ""
    assert [row["id"] for row in rows["hardest"]] == list(range(330, 350))
    assert rows["hardest"][0]["values"] == [0, 0, 0]
    assert rows["hardest"][1]["fields"] == [["image", "1/0331.png"], ["label", "1"], ["output", "1"]]
    assert [row["id"] for row in rows["disagree"]] == [328, 329]
    browser = bench.signed_in()
    page = browser.get(PAGE).text
    assert "70 of 400 rows are wrong for all 3 models." in text_of(page)
    assert "m01 and m02 differ on 2 of 400 rows." in text_of(page)
    sources = re.findall(r'<img src="([^"]+)" [^>]*><span>(\d+)</span>', page)
    assert len(sources) == 22
    for source, row in sources[:4]:
        answer = browser.get(source)
        assert answer.content_type == "image/png"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
        image = digit(int(row))
        assert pixels(answer.data) == (255 - image if int(row) % 3 else image).tolist()
        assert bench.app.test_client().get(source).status_code in (303, 401)
    assert browser.get(f"{PAGE}/thumbnails/{'0' * 32}").status_code == 404


@pytest.mark.processes
def test_the_user_chooses_two_models(bench: Bench) -> None:
    """And the difference has a sign."""
    add_ranked(bench, three_models())
    rows = view_of(bench, "?first=m00&second=m01")["rows"]
    assert rows["models"] == ["m00", "m01", "m02"]
    assert (rows["different"], rows["disagree"][0]["values"]) == (130, [0, 1, 1])
    assert "d1 is gone, call run_etl()" in rows["note"]
    page = text_of(bench.signed_in().get(f"{PAGE}?first=m00&second=m01").text)
    assert "m00 and m01 differ on 130 of 400 rows; the 20 largest differences." in page
    same = text_of(bench.signed_in().get(f"{PAGE}?first=m00&second=m00").text)
    assert "No rows: disagree names m00 and m00: name two different models" in same


@pytest.mark.slow
@pytest.mark.processes
def test_rows_get_their_fields_once_the_files_are_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are selected again after a minute, and stay on the page until then."""
    values, volumes = three_models(), bench.settings.volumes
    add_ranked(bench, values)
    rankings, now = Rankings(volumes), [0.0]
    set_monotonic(monkeypatch, lambda: now[0], rankings_module)
    wanted = request(bench, values)
    found = until(lambda: rankings.find(wanted, 1.0, wait_s=1), "rows")
    assert "is gone" in rows_of(found).note
    add_images(volumes, 400)
    now[0] = 59.0
    assert rankings.find(wanted, 1.0) is found
    now[0] = 60.0
    again = rankings.find(wanted, 1.0)
    assert again is not None
    assert again.rows is not None
    whole = until(lambda: each if (each := rankings.find(wanted, 1.0)) is not found else None, "fields")
    assert whole is not None
    assert rows_of(whole).note == ""
    name = rows_of(whole).hardest[0].image
    assert rankings.thumbnail(name, 1.0) == whole.thumbnails[name]
    assert rankings.thumbnail(name, 2.0) is None


@pytest.mark.processes
def test_one_model_has_hard_rows_only(bench: Bench) -> None:
    """The page names the condition of a comparison."""
    add_ranked(bench, {"m00": three_models()["m00"]})
    assert view_of(bench)["rows"]["disagree"] == []
    page = text_of(bench.signed_in().get(PAGE).text)
    assert "200 of 400 rows are wrong for m00." in page
    assert "Only one model has values: test several models in one run" in page


def test_without_values_per_row_the_page_says_what_to_do(bench: Bench) -> None:
    """As before the first test."""
    bench.store.add(running_story())
    browser = bench.signed_in()
    assert "No rows: the experiment has no planned test run yet" in text_of(
        browser.get("/experiments/digits/rows").text
    )


def request(
    bench: Bench, values: Values, *, disagree: tuple[str, ...] = (), source: Mapping[str, str] | None = None
) -> RowsRequest:
    """Return the request for rows of `add_ranked`."""
    place = {"dataset": "d1", "split": "test", "objects": str(bench.settings.volumes.shared / "photos")}
    return RowsRequest(
        files={model: (f"predictions/ranked/test-1/{model}-1.arrow",) for model in values},
        mode="max",
        disagree=disagree,
        source=RowSource.model_validate({**place, "partitions": (0,), **(source or {})}),
    )


def described(
    bench: Bench, values: Values, *, disagree: tuple[str, ...] = (), source: Mapping[str, str] | None = None
) -> Outcome:
    """Compare the models of `add_ranked` in this process."""
    job = Job(
        request=request(bench, values, disagree=disagree, source=source),
        shared=str(bench.settings.volumes.shared),
        cpu_s=1,
    )
    return compute(job)


def rows_of(outcome: Outcome) -> ComparedRows:
    assert outcome.rows is not None
    return outcome.rows


def test_an_unknown_model_is_named(bench: Bench) -> None:
    """As in an old address."""
    add_ranked(bench, three_models())
    reason = described(bench, three_models(), disagree=("m00", "m77")).reason
    assert reason == "the test has no values per row of 'm77': it has them of m00, m01, m02"


def test_missing_files_leave_a_note(bench: Bench) -> None:
    """The values are shown, and a later attempt may find the files."""
    values, volumes = three_models(), bench.settings.volumes
    add_ranked(bench, values)
    add_images(volumes, 400)
    whole = described(bench, values)
    assert (rows_of(whole).note, whole.is_temporary) == ("", False)
    shutil.rmtree(volumes.partition("d1", "test", 0))
    objects = described(bench, values)
    assert objects.is_temporary
    assert rows_of(objects).note == ""
    assert [bool(row.image) for row in rows_of(objects).hardest[:3]] == [False, True, True]
    shutil.rmtree(volumes.shared / "photos")
    nothing = described(bench, values)
    assert "a partition of the data set d1 is gone, call run_etl() to make it again" in rows_of(nothing).note
    assert "no column of the rows names an object of" in rows_of(nothing).note
    assert rows_of(nothing).hardest[0].fields == (("image", "0/0330.png"), ("label", "0"))
    shutil.rmtree(volumes.shared / "datasets")
    gone = described(bench, values)
    assert rows_of(gone).note.startswith("metadata of the data set d1 is gone, call run_etl()")
    assert rows_of(gone).hardest[0].values == (0, 0, 0)


@pytest.mark.parametrize(
    ("source", "note"),
    [
        ({"split": "train"}, "training rows stay on their workers"),
        ({"objects": "s3://bucket/photos"}, "this page does not read the objects at s3://bucket/photos"),
        ({"objects": "/etc"}, "This page can check only the shared volume"),
    ],
)
def test_data_that_the_page_cannot_read_is_named(bench: Bench, source: dict[str, str], note: str) -> None:
    """Training rows, object stores, and folders outside the shared volume."""
    add_ranked(bench, three_models())
    assert note in rows_of(described(bench, three_models(), source=source)).note


def test_links_are_not_followed(bench: Bench, tmp_path: Path) -> None:
    """User code can write to the volume, but may not show other files of the machine."""
    values, volumes = three_models(), bench.settings.volumes
    add_ranked(bench, values)
    add_images(volumes, 400)
    outside = tmp_path / "outside"
    shutil.move(volumes.shared / "photos", outside)
    (volumes.shared / "photos").symlink_to(outside)
    partition = volumes.partition("d1", "test", 0)
    shutil.move(partition, tmp_path / "partition")
    partition.symlink_to(tmp_path / "partition")
    found = described(bench, values)
    assert found.thumbnails == {}


def black(side: int) -> bytes:
    """Return a small file of a large black image."""
    file = io.BytesIO()
    Image.new("1", (side, side)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    "content", [b"GIF87 no image" + bytes(MAX_OBJECT_BYTES), black(4100), b"<svg/>", b"", None]
)
def test_only_small_images_are_thumbnails(bench: Bench, content: bytes | None) -> None:
    """Other objects of the same rows are shown by their arrays."""
    values, volumes = three_models(), bench.settings.volumes
    add_ranked(bench, values)
    add_images(volumes, 400)
    photo = volumes.shared / "photos/1/0331.png"
    photo.unlink()
    if content is not None:
        photo.write_bytes(content)
    found = described(bench, values)
    row = rows_of(found).hardest[1]
    assert row.id == 331
    assert pixels(found.thumbnails[row.image].content) == digit(331).tolist()


def test_thumbnails_together_are_limited(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows have one, and a note names the limit."""
    monkeypatch.setattr(fields_module, "MAX_IMAGE_BYTES", 400)
    values = three_models()
    add_ranked(bench, values)
    add_images(bench.settings.volumes, 400)
    found = described(bench, values)
    assert 0 < sum(len(each.content) for each in found.thumbnails.values()) <= 400
    assert rows_of(found).hardest[0].image
    assert not rows_of(found).hardest[-1].image
    assert "all thumbnails together exceed" in rows_of(found).note


@pytest.mark.parametrize("damage", ["partition.json", "shard", "metadata"])
def test_damaged_files_leave_a_note(bench: Bench, damage: str) -> None:
    """No worker writes such content."""
    values, volumes = three_models(), bench.settings.volumes
    add_ranked(bench, values)
    add_images(volumes, 400)
    shutil.rmtree(volumes.shared / "photos")
    partition = volumes.partition("d1", "test", 0)
    path = {
        "partition.json": partition / "partition.json",
        "shard": next(partition.glob("*.arrow")),
        "metadata": volumes.metadata("d1", "test", 0),
    }[damage]
    path.write_bytes(b'{"schema_version": 2}' if path.suffix == ".json" else b"no table")
    found = described(bench, values)
    assert f"{path.name} cannot be read" in rows_of(found).note
    assert bool(found.thumbnails) is (damage == "metadata")
    assert found.is_temporary


images = st.one_of(
    array_shapes(min_dims=1, max_dims=4, max_side=40),
    st.tuples(st.integers(8, 200), st.integers(8, 200)),
    st.tuples(st.integers(8, 200), st.integers(8, 200), st.sampled_from([1, 3, 4])),
    st.tuples(st.sampled_from([1, 3]), st.integers(8, 200), st.integers(8, 200)),
).flatmap(
    lambda shape: st.one_of(
        *(
            st.builds(np.full, st.just(shape), value, dtype=st.just(dtype))
            for dtype, value in (
                ("uint8", st.integers(0, 255)),
                ("float32", st.floats(width=32)),
                ("bool", st.booleans()),
                ("int64", st.integers(0, 9)),
            )
        )
    )
)


@given(images)
def test_any_array_is_a_small_png_or_nothing(array: npt.NDArray[Any]) -> None:
    """Whatever its shape and values: a decoder reads the size and the channels that it should have."""
    found = from_array(array)
    if found is None:
        return
    with Image.open(io.BytesIO(found.content)) as image:
        image.load()
        assert max(image.size) <= MAX_SIDE
        assert image.mode in ("L", "RGB")
        assert found.kind == "image/png"


@given(arrays(np.uint8, st.tuples(st.integers(8, 30), st.integers(8, 30), st.sampled_from([1, 3]))))
def test_small_images_keep_their_pixels(array: npt.NDArray[np.uint8]) -> None:
    """In both orders of the axes, as bytes, and as floats from 0 to 1."""
    expected = array[..., 0].tolist() if array.shape[2] == 1 else array.tolist()
    if max(array.shape[:2]) > 4 * min(array.shape[:2]):
        return
    for each in (array, np.moveaxis(array, -1, 0), array.astype(np.float32) / 255):
        found = from_array(each)
        assert found is not None
        assert pixels(found.content) == expected
