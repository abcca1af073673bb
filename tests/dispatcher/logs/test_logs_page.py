"""The logs page shows, follows and searches output, and explains missing output."""

from __future__ import annotations

import pytest

from cerebro.contract.events import TaskCommitted
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult
from cerebro.runtime.volumes import Volumes
from tests.dispatcher.fakes import Bench
from tests.dispatcher.logs.printed import M05, M07, write
from tests.dispatcher.stories import Story

LOGS = "/experiments/digits/logs"

COMMIT = TaskCommitted(
    task=M05,
    attempt=1,
    worker="worker-0",
    result=TaskResult(rows=898, checkpoint=CheckpointRef(name="x", checksum="0" * 16, size=1)),
)
"""The running sub-epoch on worker-0."""


def test_the_page_shows_the_output_escaped(bench: Bench, volumes: Volumes) -> None:
    """Escaped, with colours as classes, and a link to each whole log."""
    write(volumes, M07, b"\x1b[32m<script>alert(1)</script>\x1b[0m\nValueError: shapes differ\n")
    page = bench.signed_in().get(LOGS).text
    assert "<script>alert" not in page
    assert '<span class="ansi-32">&lt;script&gt;alert(1)&lt;/script&gt;</span>' in page
    assert '<li class="level-error"' in page
    whole = bench.signed_in().get(f"{LOGS}/file?task={M07}&attempt=1")
    assert whole.data.startswith(b"\x1b[32m<script>")
    assert whole.headers["Content-Disposition"].startswith("attachment")
    assert whole.mimetype == "application/octet-stream"


def test_the_page_follows_logs(bench: Bench, volumes: Volumes) -> None:
    """The page polls from its cursor: 204 without news, else new lines, new sub-epochs and the next cursor."""
    path = write(volumes, M05, b"one\n")
    browser = bench.signed_in()
    page = browser.get(LOGS).text
    cursor = page.split('data-cursor="')[1].split('"')[0].replace("&#34;", '"')

    def poll(after: str) -> tuple[int, str, str]:
        answer = browser.client.get(
            f"{LOGS}/lines", query_string={"after": after}, base_url="http://127.0.0.1:7080"
        )
        return answer.status_code, answer.text, answer.headers.get("X-Cursor", "")

    assert poll(cursor)[0] == 204
    with path.open("ab") as file:
        file.write(b"two\n")
    status, html, cursor = poll(cursor)
    assert (status, "two" in html, "one" in html) == (200, True, False)
    story = Story("digits", began=0)
    story.events = bench.store.logs["digits"]
    for event in story.events:
        story.state.apply(event)
    story.time = bench.clock.now
    story.append(COMMIT)
    story.run_task("fit-1/train/m06/e1/p0", "worker-0", None)
    bench.monotonic.now += 5
    write(volumes, "fit-1/train/m06/e1/p0", b"fresh\n")
    status, html, cursor = poll(cursor)
    assert (status, "fresh" in html) == (200, True)
    assert poll(cursor)[0] == 204
    assert poll("nonsense")[0] == 400


@pytest.mark.parametrize(
    "query", ["task=", "task=fit-1/train/m06/e1/p0", "task=../../x", "attempt=9&task=" + M05]
)
def test_an_unknown_log_is_not_found(bench: Bench, query: str) -> None:
    assert bench.signed_in().get(f"{LOGS}/file?{query}").status_code == 404


@pytest.mark.processes
def test_a_search_covers_logs_of_older_runs(bench: Bench, volumes: Volumes) -> None:
    """The first view shows the newest log with output; the user can choose a run."""
    etl = "etl-1/etl/train/p0"
    write(volumes, etl, b"ValueError: row 7\n")
    browser = bench.signed_in()
    assert "1 line in" in browser.get(f"{LOGS}?q=ValueError").text
    first = browser.get(LOGS).text
    assert "ValueError: row 7" in first
    assert '<option value="">all runs</option>' in first
    assert "0 lines in" in browser.get(f"{LOGS}?q=ValueError&fit=fit-1").text
