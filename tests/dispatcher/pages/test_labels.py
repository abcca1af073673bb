"""Pages show the label of a failure rule with the failure and the matching line."""

from __future__ import annotations

import pytest

from cerebro.contract.events import TaskFailed
from cerebro.contract.failure_rules import MatchedRule
from cerebro.contract.tasks.failures import Failure, FailureKind
from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.stories import Story


@pytest.mark.parametrize("page", ["", "/models", "/models/m00", "/schedule"])
def test_a_label_is_shown_at_its_failure_and_links_to_its_line(
    bench: Bench, browser: Browser, page: str
) -> None:
    """On the overview, the models table, the model's page and its sub-epoch. Log text is escaped."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=2, epochs=1)
    rule = MatchedRule(name="solver <b>", action="no_retry", line="cusolver <i>gave up</i>")
    failure = Failure(
        kind=FailureKind.USER_ERROR,
        message="boom",
        rule=rule,
        late_rules=("slow one",),
        traceback="Traceback",
    )
    story.run_task("fit-1/train/m00/e1/p0", "worker-0", None)
    story.append(TaskFailed(task="fit-1/train/m00/e1/p0", attempt=1, worker="worker-0", failure=failure))
    bench.store.add(story)
    source = browser.get(f"/experiments/digits{page}").text
    assert "solver <b>, failure rule 'slow one' took too long" in text_of(source).replace("&lt;b&gt;", "<b>")
    assert "cusolver &lt;i&gt;gave up&lt;/i&gt;" in source
    assert "<i>gave up" not in source
