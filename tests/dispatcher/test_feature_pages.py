"""Checkpoints, code and history of an experiment, the dispatcher's metrics, and its settings."""

from __future__ import annotations

import re
from ipaddress import ip_network
from pathlib import Path

import pytest

from cerebro.contract.records import CodeRecord
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import ClusterError
from cerebro.runtime.volumes import Volumes
from dispatcher.checkpoints.view import checkpoints
from dispatcher.code.view import chosen, hashes
from dispatcher.pages.live_pages import TABS
from dispatcher.read_models.read_model import ReadModel
from dispatcher.settings import AuthProxy, Links, Settings
from tests.dispatcher.fakes import TOKEN, Bench, settings
from tests.dispatcher.stories import CODE, Story, running_story

PAGE = "/experiments/digits"
FILE = "digits/fit-1/m00/u00001-e001-p0001-a1.pt"
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """One model with two checkpoints; the last one is on the volume."""
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    path = volumes.checkpoint(FILE)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"state")
    story = Story("digits", archive=None)
    story.workers_join()
    story.etl()
    story.fit(models=2, epochs=2)
    for partition, name in enumerate((FILE.replace("u00001", "u00000"), FILE)):
        result = TaskResult(
            rows=898,
            metrics={"accuracy": 0.5 + partition / 10, "loss": 1.0},
            checkpoint=CheckpointRef(name=name, checksum="0123456789abcdef", size=5),
        )
        story.run_task(f"fit-1/train/m00/e1/p{partition}", f"worker-{partition}", result)
    bench = Bench(settings=settings(volumes=volumes))
    bench.store.add(story)
    return bench


def read_model(story: Story) -> ReadModel:
    found = ReadModel(story.record)
    found.apply(story.events)
    return found


# --- checkpoints --------------------------------------------------------------------------------


def test_checkpoints_show_why_they_are_kept() -> None:
    """Best models first; each keeps its latest and previous checkpoint, and its best epoch's."""
    view = checkpoints(read_model(running_story()))
    assert [row.model for row in view.rows] == [m for m in ("m00", "m01", "m02", "m03") for _ in range(2)]
    newest, before = view.rows[:2]
    assert (newest.epoch, newest.is_epoch_end, newest.is_best) == (2, True, True)
    assert newest.reasons == ("best epoch", "parent of the next sub-epoch")
    assert newest.value == pytest.approx(0.9405)
    assert (before.reasons, before.value) == (("backup of the newest checkpoint",), None)
    assert view.best == newest


def test_checkpoints_can_be_filtered_by_model() -> None:
    """A filter, an unknown name, and an experiment without a fit."""
    story = read_model(running_story())
    assert {row.model for row in checkpoints(story, model="m02").rows} == {"m02"}
    assert checkpoints(story, model=EVIL).rows == ()
    assert checkpoints(read_model(Story("digits"))).run == ""


def test_download_with_the_session(bench: Bench) -> None:
    """The answer is always a download with a descriptive name, never rendered."""
    browser = bench.signed_in()
    link = re.search(
        r'href="(/experiments/digits/checkpoints/[^"]+u00001[^"]+)"', browser.get(f"{PAGE}/checkpoints").text
    )
    assert link
    answer = browser.get(link[1])
    assert (answer.status_code, answer.data) == (200, b"state")
    assert answer.headers["Content-Disposition"] == f"attachment; filename={FILE.replace('/', '-')}"
    assert answer.mimetype == "application/octet-stream"


@pytest.mark.parametrize(
    "path",
    [
        "fit-1/m00/other.pt", "fit-1/m00/../../../x", "fit-2/m00/x.pt", "fit-1/m09/x.pt", "x", "..%2f..%2fetc%2fpasswd",
        "fit-1/m00/u00000-e001-p0001-a1.pt",
    ],
)  # fmt: skip
def test_only_checkpoints_in_the_log_are_sent(bench: Bench, path: str) -> None:
    """Only while the file exists."""
    assert bench.signed_in().get(f"{PAGE}/checkpoints/{path}").status_code == 404


# --- code and history ---------------------------------------------------------------------------


def test_the_code_page_shows_the_executed_code(bench: Bench) -> None:
    """Source, class, hash, author and runs, all escaped."""
    bench.store.codes[CODE] = CodeRecord(
        sha256=CODE,
        fingerprint="1" * 64,
        class_name="Digits",
        source=f"class Digits:  # {EVIL}",
        encoded="x",
        author=EVIL,
    )
    page = bench.signed_in().get(f"{PAGE}/code").text
    assert "class Digits:" in page
    assert CODE in page
    assert "fit-1, etl-1" in page or "etl-1, fit-1" in page
    assert "/data/train.csv" in page
    assert "epochs: 2" in page
    assert EVIL not in page


def test_only_the_shown_code_is_fetched(bench: Bench) -> None:
    """Each package may have 32 MiB; the page lists many and shows one, and polls fetch none."""
    story = Story("many")
    story.workers_join()
    story.etl()
    story.fit(models=2)
    runs = story.state.runs
    runs["fit-1"].request = runs["fit-1"].request.model_copy(update={"code": "f" * 64})
    used = hashes(story.state)
    assert used == {"f" * 64: ("fit-1",), CODE: ("etl-1",)}
    assert chosen(used, "") == "f" * 64
    assert chosen(used, CODE[:12]) == CODE
    assert chosen(used, "nothing") == "f" * 64
    assert chosen({}, "") == ""
    bench.store.codes[CODE] = CodeRecord(
        sha256=CODE, fingerprint="1" * 64, class_name="Digits", source="class Digits: pass", encoded="x"
    )
    browser = bench.signed_in()
    for path in (f"{PAGE}/code", f"/fragments{PAGE}/code", f"{PAGE}/code"):
        assert "class Digits: pass" in browser.get(path).text
    assert bench.store.calls.count("code") == 1


# --- metrics ------------------------------------------------------------------------------------


def test_metrics_need_the_token_and_have_no_addresses(bench: Bench) -> None:
    """Labels are route names, not requested paths, so their number is bounded."""
    browser = bench.signed_in()
    browser.get(PAGE)
    browser.get("/nowhere/at/all")
    client = bench.app.test_client()
    assert client.get("/metrics", base_url="http://127.0.0.1:7080").status_code == 401
    answer = client.get(
        "/metrics", headers={"Authorization": f"Bearer {TOKEN}"}, base_url="http://127.0.0.1:7080"
    )
    assert answer.mimetype == "text/plain"
    text = answer.text
    assert 'cerebro_dispatcher_requests_total{method="GET",route="pages.experiment",status=' in text
    assert "nowhere" not in text
    assert "digits" not in text
    assert TOKEN not in text
    assert "cerebro_dispatcher_viewers 1.0" in text
    assert "cerebro_dispatcher_store_away 0.0" in text
    bench.monotonic.now += 61
    assert bench.app.extensions["cerebro-metrics"].viewers() == 0


# --- settings -----------------------------------------------------------------------------------

NEEDED = {"CEREBRO_TOKEN": "t", "CEREBRO_SERVER": "http://127.0.0.1:7070"}


def test_proxy_is_configured_as_a_whole() -> None:
    """A header without trusted addresses would let everyone sign in."""
    found = Settings.from_environment(
        NEEDED | {"CEREBRO_AUTH_HEADER": "X-User", "CEREBRO_AUTH_PROXIES": "10.0.0.7, fd00::/8"}
    )
    assert found.auth_proxy == AuthProxy(
        header="X-User", networks=(ip_network("10.0.0.7"), ip_network("fd00::/8"))
    )
    assert Settings.from_environment(NEEDED | {"CEREBRO_AUTH_PROXIES": "10.0.0.7"}).auth_proxy is None


@pytest.mark.parametrize(
    ("variables", "match"),
    [
        ({"CEREBRO_AUTH_HEADER": "X-User"}, "needs CEREBRO_AUTH_PROXIES"),
        ({"CEREBRO_AUTH_HEADER": "X User", "CEREBRO_AUTH_PROXIES": "10.0.0.7"}, "name of a header"),
        (
            {"CEREBRO_AUTH_HEADER": "X-User", "CEREBRO_AUTH_PROXIES": "proxy"},
            "expected addresses or networks",
        ),
        (
            {"CEREBRO_AUTH_HEADER": "X-User", "CEREBRO_AUTH_PROXIES": "10.0.0.7/8"},
            "expected addresses or networks",
        ),
        ({"CEREBRO_LINK_GRAFANA": "javascript:alert(1)"}, "CEREBRO_LINK_GRAFANA"),
    ],
)
def test_wrong_settings_are_reported_by_name(variables: dict[str, str], match: str) -> None:
    """By variable name, before the server listens."""
    with pytest.raises(ClusterError, match=match):
        Settings.from_environment(NEEDED | variables)


def test_each_tab_links_its_heading_in_the_documentation() -> None:
    """The headings exist; without an address there is no link."""
    bench = Bench(settings=settings(links=Links(docs="https://docs.example.org/web-page")))
    bench.store.add(running_story())
    guide = (Path(__file__).parents[2] / "docs" / "web-page.md").read_text(encoding="utf-8")
    browser = bench.signed_in()
    for tab, label, _ in TABS:
        path = "" if tab == "overview" else f"/{tab}"
        assert f"https://docs.example.org/web-page#{tab}" in browser.get(f"/experiments/digits{path}").text
        assert f"\n### {label}\n" in guide
        assert tab == label.lower()
    plain = Bench()
    plain.store.add(running_story())
    assert "Documentation of the tab" not in plain.signed_in().get("/experiments/digits").text
