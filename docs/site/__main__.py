"""Write the source of the documentation site: ``python -m docs.site FOLDER``; `make docs` then builds the site.

The folder gets the pages of `docs/`, the files that they link to, a list of the decisions, and the reference, which is
generated from the code.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from docs.site.chart import chart_page
from docs.site.commands import command_page
from docs.site.pages import ROOT, copy_pages
from docs.site.python_api import python_pages
from docs.site.rest import rest_page

_MARKER = ".cerebro-site"
"""Marks a folder that this script wrote and may replace."""


def write_site_source(target: Path) -> None:
    """Write all pages into an empty folder."""
    copy_pages(target)
    pages = {
        "decisions/index.md": _decisions(),
        "reference/commands.md": command_page(),
        "reference/rest.md": rest_page(),
        "reference/chart.md": chart_page(),
        "site.css": (ROOT / "docs/site/site.css").read_text(),
        **{f"reference/python/{name}": text for name, text in python_pages().items()},
    }
    for name, text in pages.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(text)


def _decisions() -> str:
    paths = sorted(ROOT.glob("docs/decisions/*.md"))
    titles = [path.read_text().partition("\n")[0].removeprefix("# ") for path in paths]
    lines = [f"- [{title}]({path.name})" for path, title in zip(paths, titles, strict=True)]
    return "\n".join(["# Decisions\n", "Choices between real alternatives, with the reasons.\n", *lines, ""])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if folder.exists() and not (folder / _MARKER).exists() and any(folder.iterdir()):
        sys.exit(f"{folder} has other files: name a new or empty folder, because its content is replaced")
    shutil.rmtree(folder, ignore_errors=True)
    write_site_source(folder)
    (folder / _MARKER).touch()
