"""Answers are built once and cached."""

from __future__ import annotations

import gzip

import pytest
from flask import Flask, Response
from flask.testing import FlaskClient

from dispatcher.pages import answers as conditional
from dispatcher.pages.answers import Answers


class Page:
    """A page with a settable version that counts its builds."""

    def __init__(self, *, content: str = "short") -> None:
        self.version, self.built = 1, 0
        self.answers, self.content = Answers(), content
        app = Flask(__name__)
        app.add_url_rule("/page", "page", self.view)
        self.client: FlaskClient = app.test_client()

    def view(self) -> Response:
        return self.answers.answer(lambda: self.version, self.build)

    def build(self) -> str:
        self.built += 1
        return f"{self.content} {self.version}"


def test_an_unchanged_version_is_304_and_builds_no_page() -> None:
    page = Page()
    tag = page.client.get("/page").headers["ETag"]
    again = page.client.get("/page", headers={"If-None-Match": tag})
    assert again.status_code == 304
    assert again.data == b""
    assert again.headers["ETag"] == tag
    assert page.built == 1


def test_version_address_and_process_determine_the_etag() -> None:
    page = Page()
    tag = page.client.get("/page").headers["ETag"]
    assert page.client.get("/page?x=1", headers={"If-None-Match": tag}).status_code == 200
    page.version = 2
    assert page.client.get("/page", headers={"If-None-Match": tag}).text == "short 2"
    page.version, page.answers = 1, Answers()  # a new process
    assert page.client.get("/page", headers={"If-None-Match": tag}).status_code == 200


def test_a_large_answer_is_compressed_on_request() -> None:
    page = Page(content="word " * 1000)
    packed = page.client.get("/page", headers={"Accept-Encoding": "gzip"})
    plain = page.client.get("/page")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.data) == plain.data
    assert len(packed.data) < len(plain.data) / 10
    assert "Accept-Encoding" in packed.headers["Vary"]


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page(content="x" * 1000)
    for number in range(20):
        page.client.get(f"/page?n={number}")
    assert page.built == 20
    monkeypatch.setattr(conditional, "_MAX_BYTES", 5000)
    page.client.get("/page?n=99")
    page.client.get("/page?n=0")  # evicted
    page.client.get("/page?n=99")  # still cached
    assert page.built == 22
