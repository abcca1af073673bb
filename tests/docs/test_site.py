"""The source of the documentation site: every page, name, command, route and value has its place."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cerebro
from cerebro.cli.program import build_parser
from dispatcher.api.views import openapi_document
from dispatcher.pages.live_pages import TABS
from docs.site.__main__ import write_site_source
from docs.site.chart import chart_page
from docs.site.commands import command_page
from docs.site.python_api import python_pages
from docs.site.rest import rest_page

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the generator reads."""
    folder = tmp_path_factory.mktemp("pages")
    write_site_source(folder)
    return folder


def _navigation(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from _navigation(each)


def test_the_navigation_has_every_page_of_docs_once(source: Path) -> None:
    """Decisions have their own list; files that pages only link to are not in the navigation."""
    listed = list(_navigation(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    assert len(listed) == len(set(listed))
    assert [page for page in listed if not (source / page).is_file()] == []
    pages = {path.name for path in ROOT.glob("docs/*.md")}
    generated = {path.relative_to(source).as_posix() for path in source.glob("reference/**/*.md")}
    assert (pages | generated) - set(listed) == set()


def test_every_decision_is_listed(source: Path) -> None:
    """The list has the title of each decision."""
    listed = (source / "decisions/index.md").read_text()
    for path in ROOT.glob("docs/decisions/*.md"):
        assert f"]({path.name})" in listed


def test_links_between_pages_are_kept_and_sources_become_pages(source: Path) -> None:
    """A link from a page to a file outside `docs/` leads to its copy in the site."""
    assert "](examples/digits.py.md)" in (source / "digits.md").read_text()
    assert "```python" in (source / "examples/digits.py.md").read_text()
    assert "](local-cluster.md#install)" in (source / "index.md").read_text()
    assert "](tutorial.md)" in (source / "index.md").read_text()


def test_every_public_name_has_a_docstring_and_a_place_in_the_reference() -> None:
    """mkdocstrings fills each place from the docstring."""
    pages = "\n".join(python_pages().values())
    for name in cerebro.__all__:
        assert re.search(rf"^::: cerebro\.{name}$", pages, re.MULTILINE), name
        assert getattr(cerebro, name).__doc__, name


def test_every_command_has_a_section() -> None:
    """Also commands of commands, such as `cerebro token create`."""
    headings = re.findall(r"^##+ (cerebro .*)$", command_page(), re.MULTILINE)
    commands = next(action.choices for action in build_parser()._actions if action.choices is not None)
    assert {f"cerebro {command}" for command in commands} - {*headings} == set()
    assert "cerebro token create" in headings


def test_every_route_is_in_the_rest_reference() -> None:
    """Each route once, as in the OpenAPI document; every link to a schema has its heading."""
    page = rest_page()
    listed = re.findall(r"^\| `([A-Z]+ /[^`]*)` \|", page, re.MULTILINE)
    paths = json.loads(openapi_document())["paths"]
    assert sorted(listed) == sorted(
        f"{method.upper()} {path}" for path, methods in paths.items() for method in methods
    )
    headings = {heading.lower() for heading in re.findall(r"^### (.*)$", page, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]*)\)", page)) - headings == set()


def test_every_value_of_the_chart_is_in_its_reference() -> None:
    """Each value of the schema has a row with its default, or a row for each of its fields."""
    schema = json.loads((ROOT / "deploy/helm/cerebro/values.schema.json").read_text())
    listed = set(re.findall(r"^\| `([\w.]+)` \|", chart_page(), re.MULTILINE))

    def values(properties: dict[str, Any], prefix: str) -> Iterator[str]:
        for name, value in properties.items():
            if "properties" in value:
                yield from values(value["properties"], f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}"

    sections = {".".join(name.split(".")[:depth]) for name in listed for depth in range(1, 5)}
    documented_by_helm = {"global"}
    assert set(values(schema["properties"], "")) - listed - sections - documented_by_helm == set()


def test_every_tab_of_the_web_page_has_a_section() -> None:
    """The tab's name is the anchor."""
    headings = re.findall(r"^### (.*)$", (ROOT / "docs/web-page.md").read_text(), re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    assert {tab for tab, _, _ in TABS} | {"compare", "experiments", "start", "cluster", "registry"} <= anchors


def test_readme_is_short() -> None:
    """At most 120 lines; the rest belongs on the site."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
