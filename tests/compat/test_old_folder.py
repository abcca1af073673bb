"""The data folder of version 0.1.0, opened by this one: see README.md here for what is in it.

What needs no cluster reads its store through kvs_api, and its volumes, as the client of a cluster elsewhere does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from cerebro import ETLSpec, Experiment, SubEpochSpec
from cerebro.client.results import prediction_table
from cerebro.client.results import test_table as metrics_of
from cerebro.contract.events import Event
from cerebro.contract.runs import EtlRequest, FitRequest
from cerebro.local import cluster
from cerebro.runtime.kvs import KvsClient
from cerebro.usercode.archive import extract
from cerebro.usercode.encoding import decode, encode
from tests.compat.user_script import MODELS, Numbers, Perceptron, table
from tests.e2e.harness import DEADLINE_S, Log
from tests.kvs_api.real import TOKEN, Database, Service

pytestmark = pytest.mark.processes

HERE = Path(__file__).resolve().parent
EXPECTED: dict[str, Any] = json.loads((HERE / "folder-0.1.0.json").read_text())
EPOCHS, PARTITIONS = (1, 2), (0, 1)

of_its_python = pytest.mark.skipif(
    EXPECTED["python"].split(".")[:2] != [str(part) for part in sys.version_info[:2]],
    reason=f"user code travels as bytecode, here that of Python {EXPECTED['python']}",
)


def unpack(folder: Path) -> Path:
    """The home, as it was when all its processes were killed."""
    shutil.unpack_archive(HERE / "folder-0.1.0.tar.xz", folder)  # Debian 12's tarfile knows no filters
    return folder / "home"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Its store behind this version's kvs_api, its volumes where a client looks for them."""
    home = unpack(tmp_path_factory.mktemp("old"))
    with (
        Database(home) as database,
        Service(database) as service,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("CEREBRO_VOLUMES", str(home / "volumes"))
        patch.setenv("CEREBRO_CACHE", str(home / "cache"))
        yield service


def attach(store: Service, name: str) -> Experiment:
    return Experiment.attach(name, server=store.address, token=TOKEN)


def test_its_experiments_are_listed(store: Service) -> None:
    """With what was said of them, and the run that is open; all of both can be read."""
    found = {summary.experiment.name: summary for summary in store.client().experiments()}
    assert found.keys() == {"finished", "in-flight"}
    assert [found[name].is_archived for name in ("finished", "in-flight")] == [True, False]
    assert [found[name].open_runs for name in ("finished", "in-flight")] == [(), ("fit-1",)]
    assert not any(summary.unreadable for summary in found.values())
    for name in found:
        assert attach(store, name).state().runs["etl-1"].state == "finished"


def test_its_results_are_those_that_were_shown_then(store: Service) -> None:
    """Leaderboard, history, visits, tests, predictions, rows that failed, and the weights in the checkpoints."""
    experiment = attach(store, "finished")
    result, runs = experiment.result(), experiment.state().runs
    found = {
        "failed_rows": table(experiment.failed_rows().drop(columns="traceback")),
        "leaderboard": table(result.leaderboard()),
        "history": table(result.history().drop(columns="seconds")),
        "visits": [[v.model, v.epoch, v.partition, v.worker] for v in result.visits().itertuples()],
        "best": result.best.id,
        "weights": {name: result.model(name).load()["models"][0]["weight"].tolist() for name in MODELS},
        "units": {name: result.model(name).load()["checkpoint"]["units"] for name in MODELS},
        "test": table(metrics_of(runs["test-1"])),
        "predict": table(prediction_table(runs["predict-1"], experiment.connection.files)),
    }
    assert found == {name: EXPECTED[name] for name in found}
    assert set(EXPECTED) - set(found) == {"python", "torch"}


def test_its_interrupted_run_is_where_it_was(store: Service) -> None:
    """Two units run, what was committed is known, and the schedule of either experiment can be drawn."""
    experiment = attach(store, "in-flight")
    run = experiment.state().runs["fit-1"]
    assert run.state == "running"
    assert [len(model.visits) for model in run.models.values()] == [2, 2, 3]
    assert {task.key.model for task in run.tasks.values() if task.state == "running"} == {"m00", "m01"}
    for name in ("in-flight", "finished"):
        assert attach(store, name).result("fit-1").plot_schedule().data


@pytest.mark.processes
def test_its_uploaded_files_are_unpacked(store: Service, tmp_path: Path) -> None:
    """From the archive in the store."""
    client = store.client()
    sha256 = client.experiment("in-flight").archive
    assert sha256 is not None
    extract(client.archive(sha256), tmp_path / "files")
    assert (tmp_path / "files" / "scaling.py").read_text() == "FACTOR = 0.5\n"


@of_its_python
def test_its_user_code_is_restored(store: Service) -> None:
    """With what it refers to of Cerebro, wherever that is now; a model is built from it and has the weights."""
    kinds = {"etl": ETLSpec, "fit": SubEpochSpec}
    for name in ("finished", "in-flight"):
        for run in attach(store, name).state().runs.values():
            if isinstance(run.request, EtlRequest | FitRequest):
                spec = decode(store.client().code(run.request.code).encoded)
                assert isinstance(spec, kinds[run.kind])
    (network,) = attach(store, "finished").result().model("m01").modules()
    assert network.weight.tolist() == EXPECTED["weights"]["m01"]


@of_its_python
def test_its_user_code_is_known_again(store: Service) -> None:
    """The same code sent once more has the same fingerprint, so what it preprocessed is not preprocessed again."""
    request = attach(store, "finished").state().runs["etl-1"].request
    assert isinstance(request, EtlRequest)
    assert encode(Numbers(broken=7)).fingerprint == request.code_fingerprint


EVENTS = (HERE / "events-0.1.0.jsonl").read_text().splitlines()


@pytest.mark.parametrize("line", EVENTS, ids=[json.loads(line)["type"] for line in EVENTS])
def test_every_kind_of_event_is_read(line: str) -> None:
    """With all fields it had. Logs are append-only, so a name that is written once is read for ever."""
    event = TypeAdapter[Event](Event).validate_json(line)
    told = json.loads(event.model_dump_json())
    assert told == told | json.loads(line)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What the user's command says, where no module of this test can be imported."""
    script = Path(sys.executable).with_name("cerebro")
    return subprocess.run(
        [sys.executable, "-P", str(script), *arguments],
        cwd="/",
        env=os.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=4 * DEADLINE_S,
    )


def page(address: str, token: str) -> str:
    """A page of the dispatcher."""
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return str(answer.read().decode())


@of_its_python
@pytest.mark.slow
def test_its_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This version's cluster on the old folder ends the run, each unit committed once. The weights of both experiments
    are, to the bit, those of a training from the start by this version. New runs use the old data and models."""
    home = unpack(tmp_path)
    monkeypatch.setenv("CEREBRO_HOME", str(home))
    monkeypatch.delenv("CEREBRO_SERVER", raising=False)
    info = cluster.start(home, workers=2, tensorboard=False, timeout_s=DEADLINE_S)
    try:
        kvs = KvsClient(info.kvs, info.token())
        log = Log(kvs, "in-flight")
        log.until_type("RunFinished", run="fit-1", outcome="finished")
        commits = Counter(event.task for event in log.read() if event.type == "TaskCommitted")
        units = {f"fit-1/train/{m}/e{e}/p{p}": 1 for m in MODELS for e in EPOCHS for p in PARTITIONS}
        assert {task: n for task, n in commits.items() if "/train/m" in task} == units
        for name in ("finished", "in-flight"):
            done = command("replay", name)
            lines = [f"{m}: 4 units replayed, final state equal to the bit" for m in MODELS]
            assert [line for line in done.stdout.splitlines() if " replayed, " in line] == lines, done.stdout
            for place in ("", "/models", "/models/m00", "/schedule", "/data", "/logs", "/code", "/history"):
                assert name in page(f"{info.dispatcher}/experiments/{name}{place}", info.token())
        new = Experiment.attach("in-flight")
        assert new.run_test("m02", progress=False)["accuracy"].between(0, 1).all()
        fit = {"epochs": 1, "metric": "accuracy", "mode": "max", "progress": False}
        space = [{"tag": "z", "rate": 0.5, "batch_size": 4}]
        assert not new.run_fit(Perceptron(str(tmp_path)), space, **fit).failures()  # type: ignore[arg-type]
    finally:
        cluster.stop(home)
