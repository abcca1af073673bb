"""Steps of a user at the page with a notebook, for tests on a real cluster."""

from __future__ import annotations

import csv
import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.browser import WAIT_MS
from tests.e2e.harness import Lab

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


@dataclass(kw_only=True)
class Walk:
    """A user at the page, with the user's notebook."""

    lab: Lab
    page: Page
    address: str
    folder: Path

    def go(self, path: str) -> None:
        """Open a page by its address."""
        self.page.goto(self.address + path)

    def tab(self, name: str) -> None:
        """Open a tab of the experiment by its link."""
        self.page.locator("nav.tabs").get_by_role("link", name=name, exact=True).click()
        self.page.wait_for_load_state()

    def shows(self, text: str | re.Pattern[str], within: str = "main") -> Locator:
        """Wait until the page shows the text, without a reload."""
        from playwright.sync_api import expect

        place = self.page.locator(within)
        expect(place).to_contain_text(text, timeout=WAIT_MS, use_inner_text=True)
        return place

    def row(self, text: str, within: str = "main") -> Locator:
        """Return the table row with that heading."""
        return self.page.locator(f"{within} tr", has=self.page.get_by_role("rowheader", name=text)).first

    def says(self, place: Locator, text: str | re.Pattern[str]) -> None:
        """Wait until a part of the page shows the text."""
        from playwright.sync_api import expect

        expect(place).to_contain_text(text, timeout=WAIT_MS, use_inner_text=True)

    @property
    def points(self) -> int:
        """Count the points of the drawn learning curves."""
        return int(
            self.page.evaluate(
                """() => (document.querySelector("#curves .js-plotly-plot")?.data || [])
                .reduce((all, trace) => all + (trace.y?.length || 0), 0)"""
            )
        )


def image(level: int) -> bytes:
    """Make a grey 8 x 8 PNG."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)
    pixels = zlib.compress((b"\0" + bytes([level]) * 8) * 8)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def write_data(folder: Path, rows: int, first: int = 0) -> tuple[str, str]:
    """Write a table of image names and the folder of images."""
    objects = folder / "images"
    objects.mkdir(parents=True)
    for number in range(3):
        (objects / f"{number}.png").write_bytes(image(80 * number))
    with (folder / "train.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "x", "label", "image"])
        writer.writerows(
            [n, f"{0.1 + n * 0.37:.3f}", n % 3, f"{n % 3}.png"] for n in range(first, first + rows)
        )
    return str(folder / "train.csv"), str(objects)
