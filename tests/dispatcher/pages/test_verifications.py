"""The experiment page reports verified sub-epochs."""

from __future__ import annotations

from cerebro.contract.events import RunRequested, RunStarted, WorkerJoined
from cerebro.contract.records import COMPUTES, Hyperparameters, Replica
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult, VerificationOutcome
from cerebro.contract.trials import DeviceKind
from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.stories import CODE, Story


def verified_story(*, differs: bool) -> Story:
    """One model whose first sub-epoch a second worker re-executed, and optionally a third."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    for name in ("worker-2", "worker-3"):
        joined = WorkerJoined(
            worker=name,
            incarnation="a",
            weight=1,
            kinds=("train", "verify", f"{COMPUTES}here"),
            replicas=(Replica(dataset="d1", partition=0),),
            device=DeviceKind(kind="cpu", name="1 core"),
        )
        story.append(joined)
    models: tuple[Hyperparameters, ...] = ({"batch_size": 32},)
    request = FitRequest(code=CODE, models=models, epochs=1, metric="loss", mode="min", verify=1.0)
    story.append(RunRequested(run="fit-1", request=request, author="ada"))
    plan = FitPlan(dataset="d1", models={"m00": models[0]}, partitions={0: 898, 1: 898})
    story.append(RunStarted(run="fit-1", plan=plan))
    checkpoint = CheckpointRef(name="digits/fit-1/m00/u00000.pt", checksum="-", size=1)
    sub_epoch = TaskResult(rows=898, cores=1, metrics={"loss": 0.5}, checkpoint=checkpoint)
    story.run_task("fit-1/train/m00/e1/p0", "worker-0", sub_epoch)
    names = ("state['models'][0]['weight']",) if differs else ()
    for number, name in ((1, "worker-2"), (2, "worker-3")) if differs else ((1, "worker-2"),):
        outcome = VerificationOutcome(is_exact=True, differences=names, digest="b" * 16)
        story.run_task(f"fit-1/verify/m00/e1/p0/reexecution-{number}", name, TaskResult(verification=outcome))
    return story


def test_the_page_names_the_differing_sub_epoch_and_the_faulty_worker(bench: Bench, browser: Browser) -> None:
    """With the sub-epoch, the difference and the consequence for the model."""
    bench.store.add(verified_story(differs=True))
    source = browser.get("/experiments/digits").text
    page = text_of(source)
    assert 'class="card failure" data-key="verifications"' in source
    assert "verification: 1 differs" in page
    assert "fit-1/train/m00/e1/p0: worker-0 computed wrongly when it trained the sub-epoch" in page
    assert "worker-2 and worker-3 agree. What m00 has learned since then comes from it" in page
