"""The start form reports all errors at once and keeps the user's input."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import zipfile

import pytest

from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.stories import record

GOOD: dict[str, object] = {
    "name": "digits",
    "train_metadata": "/data/train.csv",
    "train_objects": "/data/images",
}


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def browser(bench: Bench) -> Browser:
    return bench.signed_in()


def zip_of(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in files.items():
            opened.writestr(name, content)
    return packed.getvalue()


def upload(content: bytes, name: str = "code.zip") -> dict[str, object]:
    return {"archive": (io.BytesIO(content), name)}


def test_experiment_is_created_and_shown(bench: Bench, browser: Browser) -> None:
    """All fields reach the record; the answer redirects to the experiment's page."""
    fields = GOOD | {
        "author": "Ada",
        "valid_metadata": "s3://bucket/valid.parquet",
        "misc": " /data/a.json \r\n\r\nfile:///b.txt ",
    }
    answer = browser.post("/start", fields)
    assert answer.status_code == 303
    assert answer.headers["Location"] == "/start/digits"
    record = bench.store.records["digits"]
    assert record.author == "Ada"
    assert record.locators.model_dump(exclude_none=True) == {
        "train": {"metadata": "/data/train.csv", "objects": "/data/images"},
        "valid": {"metadata": "s3://bucket/valid.parquet"},
        "misc": ("/data/a.json", "file:///b.txt"),
    }
    assert record.archive is None
    assert browser.get("/experiments/digits").status_code == 200


def test_archive_is_stored_under_its_hash(bench: Bench, browser: Browser) -> None:
    """The page lists its files later."""
    content = zip_of(**{"model.py": b"x = 1"})
    assert browser.post("/start", GOOD | upload(content)).status_code == 303
    sha256 = hashlib.sha256(content).hexdigest()
    assert bench.store.archives == {sha256: content}
    assert bench.store.records["digits"].archive == sha256
    page = browser.get("/experiments/digits/code").text
    assert "model.py" in page
    assert sha256 in page


def test_all_mistakes_are_shown_together_and_the_input_stays(bench: Bench, browser: Browser) -> None:
    """Each next to its field; nothing is created."""
    fields: dict[str, object] = {
        "name": "Bad Name", "author": "Ada", "train_metadata": "train.csv", "valid_objects": "/only/objects",
        "test_metadata": "gs://bucket/x.csv", "misc": "/ok\nnot ok",
    }  # fmt: skip
    answer = browser.post("/start", fields)
    assert answer.status_code == 422
    mistakes = set(re.findall(r'id="(\w+)-mistake"', answer.text))
    assert mistakes == {"name", "train_metadata", "valid_metadata", "test_metadata", "misc"}
    assert "Line 2:" in answer.text
    for typed in ("Bad Name", "Ada", "train.csv", "/only/objects", "gs://bucket/x.csv", "/ok\nnot ok"):
        assert typed in answer.text
    assert bench.store.records == {}


def test_an_archive_survives_a_mistake_in_another_field(bench: Bench, browser: Browser) -> None:
    """Browsers cannot refill a file field, so the server keeps the archive for the second try."""
    answer = browser.post("/start", GOOD | {"name": "Bad"} | upload(zip_of(**{"model.py": b"x"})))
    assert answer.status_code == 422
    assert "model.py" in answer.text
    kept = re.search(r'name="kept_archive" value="(\w{64})"', answer.text)
    assert kept
    again = browser.post("/start", GOOD | {"kept_archive": kept[1], "kept_archive_name": "code.zip"})
    assert again.status_code == 303
    assert bench.store.records["digits"].archive == kept[1]


def evil_tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as opened:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        opened.addfile(link)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (zip_of(**{"../evil.py": b"x"}), "climbs out"),
        (zip_of(**{"/etc/evil": b"x"}), "absolute path"),
        (zip_of(**{"bomb.bin": bytes(20_000_000)}), "unpacks to more than 100 times"),
        (evil_tar(), "is a link"),
        (b"MZ this is no archive", "not a zip"),
        (b"", "is empty"),
        (bytes(32 * 1024 * 1024 + 1), "the limit is 32 MiB"),
    ],
    ids=["traversal", "absolute", "bomb", "link", "no-archive", "empty", "too-large"],
)
def test_a_malicious_archive_is_refused(bench: Bench, browser: Browser, content: bytes, match: str) -> None:
    """The reason is next to the field; nothing is stored."""
    answer = browser.post("/start", GOOD | upload(content))
    assert answer.status_code == 422
    mistake = re.search(r'id="archive-mistake">([^<]+)<', answer.text)
    assert mistake
    assert match in mistake[1]
    assert bench.store.archives == {}
    assert bench.store.records == {}


def test_form_that_is_too_large_gets_a_page(browser: Browser) -> None:
    """It names the limit and says that Back keeps the input."""
    answer = browser.post("/start", GOOD | upload(bytes(34 * 1024 * 1024)))
    assert answer.status_code == 413
    assert "33 MiB" in answer.text
    assert "still there" in answer.text


def test_an_existing_name_is_refused(bench: Bench, browser: Browser) -> None:
    """The message is next to the name and links to the existing experiment."""
    bench.store.records["digits"] = record("digits", locators={"train": {"metadata": "/other.csv"}})
    answer = browser.post("/start", GOOD)
    assert answer.status_code == 409
    assert "exists already" in answer.text
    assert 'href="/experiments/digits"' in answer.text
    assert 'value="/data/train.csv"' in answer.text


def test_an_unavailable_store_keeps_the_input(bench: Bench, browser: Browser) -> None:
    """The form is shown again with its input."""
    bench.store.is_away = True
    answer = browser.post("/start", GOOD)
    assert answer.status_code == 503
    assert "did not answer" in answer.text
    assert 'value="/data/train.csv"' in answer.text


def test_typed_text_is_escaped(browser: Browser) -> None:
    """In fields, messages and file names."""
    evil = '"><script>alert(1)</script>'
    fields = GOOD | {"name": evil, "train_metadata": evil, "misc": evil, "author": evil} | upload(b"x", evil)
    page = browser.post("/start", fields).text
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;") >= 4
