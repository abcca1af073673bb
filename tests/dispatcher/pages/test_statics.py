"""Style sheets and scripts are compressed on request and cached by browsers."""

from __future__ import annotations

import gzip
import re
import tomllib
from pathlib import Path

import dispatcher
from tests.dispatcher.fakes import Bench

FILES = [
    path for path in Path(dispatcher.__file__).parent.rglob("*") if path.suffix in {".css", ".js", ".svg"}
]


def test_every_file_is_the_same_compressed_and_plain() -> None:
    client = Bench().app.test_client()
    for path in FILES:
        with client.get(f"/static/{path.name}") as plain:
            whole = plain.data
        packed = client.get(f"/static/{path.name}", headers={"Accept-Encoding": "gzip"}, buffered=True)
        content = gzip.decompress(packed.data) if "Content-Encoding" in packed.headers else packed.data
        assert content == whole == path.read_bytes()
        assert "Content-Encoding" not in plain.headers
        assert packed.content_length == len(packed.data) <= len(whole)
        assert packed.content_type == plain.content_type
        assert packed.headers.get("Vary") == plain.headers.get("Vary")


def test_versioned_files_are_cacheable_and_others_are_revalidated() -> None:
    """A page of an earlier release requests an old version; browsers must revalidate that answer."""
    bench = Bench()
    client, page = bench.app.test_client(), bench.browser().get("/sign-in").text
    address = re.findall(r'href="(/static/style.css\?v=[^"]+)"', page)[0]
    first = client.get(address, headers={"Accept-Encoding": "gzip"})
    assert first.headers["Content-Encoding"] == "gzip"
    assert "max-age=31536000" in first.headers["Cache-Control"]
    for other in ("/static/style.css", "/static/style.css?v=0"):
        assert client.get(other, buffered=True).headers["Cache-Control"] == "private, no-cache"
    headers = {"Accept-Encoding": "gzip", "If-None-Match": first.headers["ETag"]}
    again = client.get("/static/style.css", headers=headers, buffered=True)
    assert (again.status_code, again.data) == (304, b"")


def test_an_installed_package_has_every_template_and_every_file_for_browsers() -> None:
    """The package data declares each file, and each folder is a package."""
    root = Path(dispatcher.__file__).parent
    project = tomllib.loads((root.parent / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["dispatcher"]
    packed = {path for pattern in patterns for path in root.glob(pattern)}
    assert packed >= {*FILES, *root.rglob("*.html")}
    assert all((path.parent / "__init__.py").is_file() for path in packed)


def test_long_texts_are_scrolled_by_keyboard() -> None:
    """Whether a text is long enough to scroll depends on what failed, so a test in a browser may miss it."""
    texts = [
        (path.name, tag)
        for path in Path(dispatcher.__file__).parent.rglob("*.html")
        for tag in re.findall(r'<[^>]*class="log"[^>]*>', path.read_text())
    ]
    assert len(texts) > 5
    assert [text for text in texts if 'tabindex="0"' not in text[1]] == []
