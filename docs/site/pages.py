"""Copy the documents of the repository into the folder that the site generator reads.

Documents keep their relative links in the repository. README is the home page, pages of `docs/` become the top level
of the site, and other files keep their path. The files that a document links to are copied, too: Markdown as a page,
sources and notebooks as a page that shows their code, everything else unchanged.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
_SOURCES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".sh": "bash", "": "text"}
"""File suffix -> language of the page that shows such a file."""
_LINK = re.compile(r"(\]\()([^)\s#]*)((?:#[^)\s]*)?\))")
_FENCE = re.compile(r"^( *```.*?^ *```)", re.MULTILINE | re.DOTALL)


def copy_pages(target: Path) -> None:
    """Copy README, all pages of `docs/`, and every file that they link to, directly or not."""
    waiting = [
        "README.md",
        *(path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("docs/**/*.md"))),
    ]
    copied = set(waiting)
    while waiting:
        source = waiting.pop()
        page = target / site_path(source)
        page.parent.mkdir(parents=True, exist_ok=True)
        text = _as_markdown(source)
        if text is None:
            shutil.copyfile(ROOT / source, page)
            continue
        found, text = _rewrite_links(source, text)
        page.write_text(text)
        waiting += sorted(found - copied)
        copied |= found


def site_path(source: str) -> str:
    """Return the path in the site of a file, both relative to their roots.

    Example:
        >>> site_path("docs/search.md"), site_path("examples/digits.py"), site_path("deploy/helm/README.md")
        ('search.md', 'examples/digits.py.md', 'deploy/helm/README.md')
    """
    if source == "README.md":
        return "index.md"
    path = PurePosixPath(source)
    if path.suffix in _SOURCES or path.suffix == ".ipynb":
        path = path.with_name(f"{path.name}.md")
    return str(path.relative_to("docs") if path.parts[0] == "docs" else path)


def _as_markdown(source: str) -> str | None:
    """Return the file as Markdown; `None` for a file that is copied unchanged."""
    path = ROOT / source
    if path.suffix == ".md":
        return path.read_text()
    if path.suffix == ".ipynb":
        return "\n\n".join(_cell(cell) for cell in json.loads(path.read_text())["cells"])
    if path.suffix in _SOURCES:
        return f"# {source}\n\n```{_SOURCES[path.suffix]}\n{path.read_text().rstrip()}\n```\n"
    return None


def _cell(cell: dict[str, object]) -> str:
    lines = cell["source"]
    assert isinstance(lines, list)
    text = "".join(lines)
    return text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"


def _rewrite_links(source: str, text: str) -> tuple[set[str], str]:
    """Return the files that a document links to, and its text with links within the site."""
    found = set[str]()

    def rewrite(match: re.Match[str]) -> str:
        start, link, end = match.groups()
        if not link or ":" in link:
            return match[0]
        linked = os.path.normpath(f"{PurePosixPath(source).parent}/{link}")
        if (ROOT / linked).is_dir():
            linked += "/index.md" if linked == "docs/decisions" else "/README.md"
        if (ROOT / linked).is_file():  # the generator reports links to other files
            found.add(linked)
        return f"{start}{os.path.relpath(site_path(linked), PurePosixPath(site_path(source)).parent)}{end}"

    parts = _FENCE.split(text)  # every second part is a fenced block
    parts[::2] = [_LINK.sub(rewrite, part) for part in parts[::2]]
    return found, "".join(parts)
