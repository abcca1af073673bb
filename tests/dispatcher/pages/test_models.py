"""The models table, the comparison of selected models, and a model's page."""

from __future__ import annotations

import re

from cerebro.contract.events import Event, TaskAssigned
from research.simulation.scenario import Scenario
from tests.controller.test_core import own_partition
from tests.controller.test_fused_groups import inspection
from tests.controller.test_stack_choice import chosen
from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.stories import Story, running_story, story_with_parallel_plans


def test_the_table_shows_the_state_and_metrics_of_models(bench: Bench, browser: Browser) -> None:
    """Rank, state, metrics, varied hyperparameters, epoch, sub-epochs, worker, attempts, and cause."""
    bench.store.add(running_story())
    page = text_of(browser.get("/experiments/digits/models").text)
    assert "queued 5 running 2 failed 1" in page
    assert "1 m00 best queued 0.9405 0.1 1 0.9405 3 4 /6 2" in page
    assert "\u2013 m04 running \u2013 0.00625 1 \u2013 1 0 /6" in page
    assert "user error: ValueError: shapes differ" in page
    assert "8 of 8 models." in page
    assert "batch_size 32" not in page


def test_models_are_sorted_and_filtered_by_the_server(bench: Bench, browser: Browser) -> None:
    """Rows and totals use the same filter; the address holds filter and order."""
    bench.store.add(running_story())
    page = browser.get("/experiments/digits/models?sort=-hp.learning_rate&filter=layers+%3D+2").text
    assert re.findall(r'data-model="(m\d+)"', page) == ["m01", "m03", "m05", "m07"]
    assert "4 of 4 models match, 8 in total." in text_of(page)
    assert re.search(
        r'<th scope="col" class="num" aria-sort="descending"><a data-soft href="[^"]*">learning_rate', page
    )


def test_the_best_model_is_first(bench: Bench, browser: Browser) -> None:
    """Ranks count over all models, whatever the filter and the order show; equal values share a rank."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=4, epochs=2)
    for model, epochs in (("m01", 1), ("m03", 2), ("m02", 1)):
        for epoch in range(1, epochs + 1):
            story.train(model, epoch)
    bench.store.add(story)
    page = browser.get("/experiments/digits/models").text
    assert re.findall(r'data-model="(m\d+)"', page) == ["m03", "m01", "m02", "m00"]
    assert '<th scope="col" class="num rank" aria-sort="ascending">' in page
    assert page.count("aria-sort") == 1
    some = text_of(browser.get("/experiments/digits/models?filter=id+!%3D+m03&sort=best").text)
    assert re.search(r"3 m02 .* 2 m01 .* \u2013 m00", some)


def test_the_table_shows_test_values(bench: Bench, browser: Browser) -> None:
    """A test adds a column after the validation value. Filters and the CSV know it."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=2, epochs=1)
    story.train("m00", 1)
    story.train("m01", 1)
    story.test()
    bench.store.add(story)
    page = text_of(browser.get("/experiments/digits/models?filter=test+%3E+0.97").text)
    assert "Test accuracy" in page
    assert re.search(r"1 m00 best finished [\d.]+ 0\.975 0\.1", page)
    assert "1 of 1 models match, 2 in total." in page
    assert '"test"' in browser.get("/api/views/experiments/digits/models.csv").text


def test_all_matching_models_can_be_selected(bench: Bench, browser: Browser) -> None:
    """Also those on other pages of the table. A filter with an error selects nothing."""
    bench.store.add(running_story())
    page = text_of(browser.get("/experiments/digits/models?pick=*&filter=layers+%3D+2").text)
    assert "4 selected m01, m03, m05, m07" in page
    assert "Stop 3" in page
    paged = browser.get("/experiments/digits/models?size=2").text
    assert "Select all 8 matching" in text_of(paged)
    assert "8 selected" in text_of(browser.get("/experiments/digits/models?size=2&pick=*").text)
    most = browser.get("/experiments/digits/models?size=2&pick=*,-m00,-m07").text
    assert "6 selected" in text_of(most)
    assert 'name="pick" value="-m07"' in most  # for the form without scripts
    wrong = browser.get("/experiments/digits/models?pick=*&filter=layers+%3D%3D").text
    assert 'class="selection"' not in wrong


def test_an_invalid_filter_shows_the_position_of_the_error(bench: Bench, browser: Browser) -> None:
    """The error is next to the field with its text; all models stay listed."""
    bench.store.add(running_story())
    page = browser.get("/experiments/digits/models?filter=layers+%3D%3D").text
    assert re.search(r'role="alert" data-key="mistake">filter, character \d+', page)
    assert 'value="layers =="' in page
    assert "8 of 8 models." in text_of(page)


def test_chosen_models_are_compared(bench: Bench, browser: Browser) -> None:
    """Only the differences by default. Unknown models are ignored; only possible commands are offered."""
    bench.store.add(running_story())
    page = text_of(browser.get("/experiments/digits/models?pick=m00,m07,nobody").text)
    compared = page.partition("Comparison")[2]
    assert "2 selected m00, m07" in page
    assert "Stop 1" in page
    assert "Retry 1" in page
    assert "learning_rate 0.1 0.00078125" in compared
    assert "batch_size" not in compared
    whole = text_of(browser.get("/experiments/digits/models?pick=m00&pick=m07&all=1").text)
    assert "batch_size 32 32" in whole.partition("Comparison")[2]


def test_the_page_of_a_model_shows_its_history_and_commands(bench: Bench, browser: Browser) -> None:
    """Numbers, epochs, sub-epochs, commands and links to the neighbours."""
    bench.store.add(running_story())
    page = browser.get("/experiments/digits/models/m01").text
    shown = text_of(page)
    assert "Best accuracy 0.9175 at epoch 1" in shown
    assert "trains m01, epoch 1, partition 1 committed worker-1 898" in shown
    assert "Stop model" in shown
    assert "<title>m01 · digits · Cerebro</title>" in page
    assert 'data-step="previous" data-soft aria-label="Previous model: m00"' in page
    assert 'data-step="next" data-soft aria-label="Next model: m02"' in page
    failed = text_of(browser.get("/experiments/digits/models/m07").text)
    assert "Retry model" in failed
    assert "Stop model" not in failed
    assert browser.get("/experiments/digits/models/nobody").status_code == 404


def test_epochs_with_removed_checkpoints_are_marked(bench: Bench, browser: Browser) -> None:
    """A model keeps its newest two checkpoints and its best epoch's."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=1, epochs=3)
    for epoch in (1, 2, 3):
        story.train("m00", epoch)
    bench.store.add(story)
    page = text_of(browser.get("/experiments/digits/models/m00").text)
    assert page.count(" removed ") == 2


def test_the_page_of_a_model_shows_its_parallel_plans(bench: Bench, browser: Browser) -> None:
    """The plan in use, ruled-out plans with reasons, and the plan of each sub-epoch.

    The section is absent without parallel plans.
    """
    bench.store.add(story_with_parallel_plans())
    page = browser.get("/experiments/digits/models/m00").text
    words = text_of(page)
    assert "Parallel plans Plan Devices Sub-epochs Time per sub-epoch Time per batch in trial State" in words
    assert "single 1 0 \u2013 \u2013 ruled out : out of memory of the device: CUDA out of memory" in words
    assert re.search(r"ddp-2 2 1 \S+ s? ?\u2013 in use", words)
    assert "fsdp-2 2 0 \u2013 \u2013 not used" in words
    assert "worker-0 devices 0, 1 by ddp-2" in words
    assert "by ddp-2 (devices 0, 1): committed" in words
    assert "Parallel plans" not in text_of(browser.get("/experiments/digits/models/m01").text)


def test_the_page_of_a_model_shows_the_times_of_stacks_and_separate_training(
    bench: Bench, browser: Browser
) -> None:
    """A model that was never in a stack shows the time that similar models had in one."""
    scenario = Scenario(replicas=own_partition(2), inspection=inspection(tuple(range(8)), most=16))
    story = Story("digits")
    story.events = list(chosen(scenario, models=8, epochs=2, partitions=2, stack_s=6.0).log)
    bench.store.add(story)
    alone = [
        model for model in range(8) if not any(f"/m{model:02}/" in task for task in stacked(story.events))
    ]
    words = text_of(browser.get(f"/experiments/digits/models/m{alone[0]:02}").text)
    assert re.search(r"fused\(models=16\) 1 0 1\.5 s \S+ not used; time of similar models", words)
    assert re.search(r"single 1 4 1\.0\d* s \S+ in use|single 1 4 1\.0\d* s", words)


def stacked(events: list[Event]) -> set[str]:
    """Return the tasks that were assigned in a stack."""
    return {event.task for event in events if isinstance(event, TaskAssigned) and event.group is not None}
