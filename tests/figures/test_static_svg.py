"""Line figures as a static SVG without scripts and links."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cerebro.figures import Axis, Curve, curves, static_svg

SVG = "{http://www.w3.org/2000/svg}"
HARMLESS = {f"{SVG}{name}" for name in ("svg", "rect", "text", "tspan", "line", "path", "circle")}
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def drawn_curves(draw: st.DrawFn) -> list[Curve]:
    found = []
    for index in range(draw(st.integers(0, 4))):
        y = draw(st.lists(NUMBERS, max_size=50))
        x = sorted(draw(st.lists(st.floats(0, 1e15), min_size=len(y), max_size=len(y))))
        found.append(
            Curve(
                model=draw(st.text(max_size=10)),
                index=index * draw(st.integers(1, 9)),
                x=tuple(x),
                y=tuple(y),
                broke_at=draw(st.none() | st.floats(0, 1e15)),
                best_at=draw(st.none() | st.integers(0, len(y) - 1)) if y else None,
            )
        )
    return found


EXTREME = Curve(model="m00", index=0, x=(0.0, 1.0, 2.0), y=(1e300, 5e-324, -1e308))


@example([EXTREME], "row", True, "loss")
@example([EXTREME], "epoch", False, "loss")
@given(drawn_curves(), st.sampled_from(["epoch", "row", "time"]), st.booleans(), st.text(max_size=20))
def test_a_drawing_is_one_svg_document_of_shapes_and_text(
    found: list[Curve], axis: Axis, is_log: bool, metric: str
) -> None:
    """Well-formed, with only shapes and text, all inside the picture."""
    drawn = curves(found, metric=metric, mode="min", axis=axis, is_log=is_log)
    for element in ElementTree.fromstring(static_svg(drawn)).iter():
        assert element.tag in HARMLESS
        assert not any(name.startswith("on") or "href" in name or name == "style" for name in element.attrib)
        for name in ("x1", "x2", "cx"):
            assert 0 <= float(element.get(name, "0").removesuffix("%")) <= 100
        for name in ("y1", "y2", "cy"):
            assert -1e-6 <= float(element.get(name, "0")) <= 320
        if element.tag == f"{SVG}text" and not element.get("y", "").endswith("%"):
            assert 0 <= float(element.get("y", "0")) <= 320
        places = [float(number) for number in re.findall(r"-?[\d.]+", element.get("d", ""))]
        assert all(math.isfinite(place) and abs(place) <= 1000 for place in places)


def test_a_line_follows_its_values() -> None:
    """Values run from left to right, higher values are above, and a value without a position breaks the line."""
    found = Curve(model="m00", index=0, x=(1.0, 2.0, 3.0, 4.0), y=(100.0, 10.0, -1.0, 1.0))
    root = ElementTree.fromstring(static_svg(curves([found], metric="loss", mode="min", is_log=True)))
    (path,) = (each for each in root.iter(f"{SVG}path") if each.get("vector-effect"))
    steps = [
        (kind, float(x), float(y)) for kind, x, y in re.findall(r"([ML])([\d.]+) ([\d.]+)", path.get("d", ""))
    ]
    assert [kind for kind, _, _ in steps] == ["M", "L", "M"]
    assert [x for _, x, _ in steps] == sorted(x for _, x, _ in steps)
    assert steps[0][2] < steps[1][2] < steps[2][2]  # screen coordinates point downwards
    # The middle of three values with a ratio of ten each is in the middle.
    assert steps[1][2] == pytest.approx((steps[0][2] + steps[2][2]) / 2, abs=0.2)


@example([1.0, 1.0000000000000002], True)
@given(
    st.lists(st.floats(1e-9, 1e9), min_size=2, max_size=4, unique=True) | st.just([0.6931, 0.6931812]),
    st.booleans(),
)
def test_axis_labels_are_distinct(y: list[float], is_log: bool) -> None:
    """Also for less than one power of ten, and for a constant."""
    found = Curve(model="m00", index=0, x=tuple(map(float, range(len(y)))), y=tuple(y))
    root = ElementTree.fromstring(static_svg(curves([found], metric="loss", mode="min", is_log=is_log)))
    numbers = [each.text for each in root.iter(f"{SVG}text") if each.get("text-anchor") == "end"]
    assert len(numbers) == len(set(numbers)) >= 2
