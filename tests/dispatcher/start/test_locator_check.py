"""The locator check previews data, reports certain errors next to the field, and reads nothing else."""

from __future__ import annotations

import base64
import http.server
import re
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cerebro.contract.records import Locator, Locators
from cerebro.runtime.volumes import Volumes
from dispatcher.start.locator_check import LocatorCheck, LocatorFinding
from dispatcher.start.locator_process import findings, size_of, without_keys
from dispatcher.start.locator_sources import NotCheckedError, root_of
from tests.dispatcher.fakes import TOKEN, Bench, Browser, settings
from tests.http_server import HttpServer

pytestmark = pytest.mark.usefixtures("forked_looks")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write a table of six rows; the third row's object is missing."""
    folder = tmp_path / "volumes" / "shared" / "data"
    (folder / "images").mkdir(parents=True)
    rows = ["id,file,label", *(f"{number},im{number}.png,{number % 2}" for number in range(6))]
    (folder / "train.csv").write_text("\n".join(rows))
    for number in (0, 1, 3, 4, 5):
        Image.new("RGB", (4, 3)).save(folder / "images" / f"im{number}.png")
    (folder / "notes.txt").write_text("some text")
    return folder


def checker(data: Path, *, host: str = "127.0.0.1") -> LocatorCheck:
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(data.parent.parent)})
    return LocatorCheck(settings(host=host, volumes=volumes))


def found(check: LocatorCheck, metadata: str, objects: str | None = None) -> tuple[LocatorFinding, ...]:
    return check.check(Locators(train=Locator(metadata=metadata, objects=objects)))


def test_the_check_shows_table_and_objects(data: Path) -> None:
    """Rows, typed columns, five rows, the object column, missing objects, and one object."""
    table, objects = found(checker(data), f"{data}/train.csv", f"file://{data}/images")
    assert (table.state, table.rows) == ("fine", 6)
    assert table.columns == (("id", "int64"), ("file", "string"), ("label", "int64"))
    assert table.preview[0] == ("0", "im0.png", "0")
    assert len(table.preview) == 5
    assert (objects.state, objects.column, objects.missing) == ("fine", "file", ("im2.png",))
    assert objects.sample == "im0.png"
    kind, _, content = objects.image.partition(";base64,")
    assert kind == "data:image/png"
    assert base64.b64decode(content) == (data / "images" / "im0.png").read_bytes()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("name\na", "no column 'id'"),
        ("", "cannot be read as CSV"),
    ],
)
def test_an_unusable_table_is_reported(data: Path, content: str, match: str) -> None:
    """With the controller's message."""
    (data / "bad.csv").write_text(content)
    (finding,) = found(checker(data), f"{data}/bad.csv")
    assert finding.state == "wrong"
    assert match in finding.message


@pytest.mark.parametrize("path", ["/proc/self/environ", "/dev/zero"])
def test_system_files_are_refused_as_data(data: Path, path: str) -> None:
    """Reading a device file would never end."""
    (finding,) = found(checker(data), path)
    assert finding.state == "wrong"
    assert finding.preview == ()


def test_links_to_system_files_are_refused_as_data(data: Path) -> None:
    """Wherever the link is."""
    (data / "linked.csv").symlink_to("/proc/self/environ")
    (finding,) = found(checker(data), f"{data}/linked.csv")
    assert finding.state == "wrong"
    assert finding.preview == ()


def test_time_is_bounded(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeout is not reported as the user's error."""
    monkeypatch.setattr("dispatcher.start.locator_check.CHECK_S", 0.05)
    (finding,) = found(checker(data), f"{data}/train.csv")
    assert finding.state == "unseen"
    assert "not an error" in finding.message


def test_long_names_types_and_values_are_cut(data: Path) -> None:
    """The limits protect both the page and this process."""
    long = "y" * 2_000_000
    deep = pa.struct([(f"field{number}", pa.int64()) for number in range(2_000)])
    table = pa.table(
        {
            "id": pa.array([1, 2]),
            "file": ["im0.png", long],
            "z" * 300_000: [long, long],
            "nested": pa.array([None, None], deep),
        }
    )
    pq.write_table(table, data / "wide.parquet")
    wide, objects = found(checker(data), f"{data}/wide.parquet", f"file://{data}/images")
    assert (wide.state, objects.state) == ("fine", "fine")
    assert (objects.column, objects.sample) == ("file", "im0.png")
    assert objects.image
    assert objects.missing == ("y" * 80 + "...",)
    assert max(len(text) for row in (*wide.columns, *wide.preview) for text in row) <= 83
    assert len(repr(wide)) + len(repr(objects)) < 4_000


def test_token_is_not_shown(data: Path) -> None:
    """In any position and in any encoding."""
    (data / "token.csv").write_text(f"id\n{TOKEN}\n")
    (finding,) = found(checker(data), f"{data}/token.csv")
    assert finding.preview == ()
    assert TOKEN not in repr(finding)


# --- on a cluster -------------------------------------------------------------------------------


def test_in_a_cluster_only_the_shared_volume_is_checked(data: Path, tmp_path: Path) -> None:
    """Other paths are in the dispatcher's own pod: not checked, and not reported as wrong."""
    (tmp_path / "own.csv").write_text("id\n1\n")
    check = checker(data, host="0.0.0.0")
    assert [each.state for each in found(check, f"{data}/train.csv", f"{data}/images")] == ["fine", "fine"]
    for path in (f"{tmp_path}/own.csv", "/etc/passwd", f"{data}/../../../own.csv"):
        (finding,) = found(check, path)
        assert finding.state == "unseen", path
        assert finding.preview == ()


def test_in_a_cluster_links_are_not_followed(data: Path, tmp_path: Path) -> None:
    """User code writes to the shared volume."""
    (tmp_path / "own.csv").write_text("id,secret\n1,hush\n")
    (data / "link.csv").symlink_to(tmp_path / "own.csv")
    (data / "linked").symlink_to(tmp_path)
    check = checker(data, host="0.0.0.0")
    for path in (f"{data}/link.csv", f"{data}/linked/own.csv"):
        (finding,) = found(check, path)
        assert finding.state == "unseen", path
        assert "hush" not in repr(finding)
    assert found(check, f"{data}/train.csv", f"{data}/linked")[1].state == "unseen"


@pytest.mark.parametrize(
    "name",
    ["linked/*", "linked/z*", "linked/own.csv", "linked/absent.csv"],
)
def test_in_a_cluster_folders_behind_links_are_not_listed(data: Path, tmp_path: Path, name: str) -> None:
    """For folders and patterns, neither the names nor their existence are shown."""
    (tmp_path / "hush").mkdir()
    (tmp_path / "hush" / "own.csv").write_text("id\n1\n")
    (tmp_path / "hush" / "other.parquet").touch()
    (data / "linked").symlink_to(tmp_path / "hush")
    (finding,) = findings(Locators(train=Locator(metadata=f"{data}/{name}")), data.parent)
    assert finding.state == "unseen"
    assert "contains a link" in finding.message
    assert "own" not in finding.message.replace(name, "")
    assert "other" not in finding.message


def test_memory_of_a_pod_is_bounded(data: Path) -> None:
    """A small compressed file can expand beyond the pod's memory. The page survives and does not blame the user."""
    part = pa.table({"id": range(1_000), "text": ["x" * 50_000] * 1_000})
    with pq.ParquetWriter(data / "bomb.parquet", part.schema) as writer:
        for _ in range(20):
            writer.write_table(part)
    assert (data / "bomb.parquet").stat().st_size < 4 << 20
    (finding,) = found(checker(data, host="0.0.0.0"), f"{data}/bomb.parquet")
    assert finding.state == "unseen"
    assert "too large to check" in finding.message


class _ForeignService(http.server.BaseHTTPRequestHandler):
    """A service of the cluster's network that the page must not reach."""

    requests: list[str]

    def do_GET(self) -> None:
        self.requests.append(self.path)
        self.send_response(200)
        self.end_headers()

    do_HEAD = do_PUT = do_GET  # noqa: N815 - the names that the base class looks for

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.5"])
def test_in_a_cluster_private_addresses_are_not_contacted(
    data: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """Neither by an S3 endpoint nor to fetch credentials of the machine."""
    handler = type("Handler", (_ForeignService,), {"requests": []})
    server = HttpServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    for name in (
        "AWS_ENDPOINT_URL",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ):
        monkeypatch.setenv(name, address)
    try:
        check = checker(data, host=host)
        (without,) = found(check, "s3://bucket/train.csv")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        (with_keys,) = found(check, "s3://bucket/train.csv")
    finally:
        server.shutdown()
        server.server_close()
    assert handler.requests == []  # type: ignore[attr-defined]
    assert (without.state, with_keys.state) == ("unseen", "unseen")
    assert "no AWS credentials" in without.message
    assert "not a public address" in with_keys.message


def test_objects_outside_their_root_are_refused(data: Path) -> None:
    """Objects must be below their root, whatever the table contains."""
    root = root_of(str(data / "images"), data.parent)
    assert size_of(root, "../train.csv") is None
    assert size_of(root, "im0.png")
    with pytest.raises(NotCheckedError):
        root_of("/etc", data.parent)


# --- images -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("evil.svg", b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"),
        ("page.png", b"<html><script>alert(1)</script>"),
        ("large.png", b"\x89PNG\r\n\x1a\n" + bytes(3 << 20)),
    ],
)
def test_only_valid_images_are_shown(data: Path, name: str, content: bytes) -> None:
    """HTML, SVG with scripts and oversized images are refused."""
    (data / "other").mkdir()
    (data / "other" / name).write_bytes(content)
    locator = Locator(metadata=f"{data}/train.csv", objects=f"{data}/other")
    _, objects = findings(Locators(train=locator), None)
    assert (objects.state, objects.sample, objects.image) == ("fine", name, "")


# --- the page -----------------------------------------------------------------------------------


@pytest.fixture
def browser(data: Path) -> Browser:
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(data.parent.parent)})
    return Bench(settings=settings(volumes=volumes)).signed_in()


def test_the_check_works_without_scripts(browser: Browser, data: Path) -> None:
    """The button gives the same result and reports all errors; nothing is created."""
    fields = {
        "name": "digits", "action": "check", "train_metadata": f"{data}/train.csv",
        "train_objects": f"{data}/images", "valid_metadata": f"{data}/absent.csv", "misc": f"{data}/none",
    }  # fmt: skip
    answer = browser.post("/start", fields)
    assert answer.status_code == 422
    assert set(re.findall(r'id="(\w+)-mistake"', answer.text)) == {"valid_metadata", "misc"}
    assert "6 rows, 3 columns" in answer.text
    assert '<img src="data:image/png;base64,' in answer.text


def test_text_of_tables_is_escaped(browser: Browser, data: Path) -> None:
    """Column names, cells and file names come from the user."""
    evil = "<script>alert(1)</script>"
    (data / "evil.csv").write_text(f"id,{evil}\n1,{evil}\n")
    fields = {"name": "digits", "action": "check", "train_metadata": f"{data}/evil.csv"}
    page = browser.post("/start", fields).text
    assert evil not in page
    assert page.count("&lt;script&gt;alert(1)") >= 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Invalid header value b'AKIAEXAMPLE/2026'", "Invalid header value b'.../2026'"),
        ("a token-of-the-session and a secret-of-the-store", "a ... and a ..."),
        ("s3://test/train.csv does not exist", "s3://test/train.csv does not exist"),
    ],
)
def test_errors_contain_no_keys(text: str, message: str) -> None:
    """A secret often ends with a line break that the error text lacks."""
    keys = {
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE\n",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-store",
        "AWS_SESSION_TOKEN": "token-of-the-session\n",
    }
    assert without_keys(text, keys) == message
    assert without_keys(text, {"AWS_ACCESS_KEY_ID": "test", "AWS_SESSION_TOKEN": ""}) == text
