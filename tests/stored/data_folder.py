"""Make a data folder of the present version, for later versions to open.

``python -m tests.stored.data_folder 0.3.0`` writes ``tests/stored/0.3.0/``: `HOME`, the home folder of a local cluster
without logs and process files; `EVENTS`, the same experiment's log and the cluster log as JSON; `EXPECTED`, the results
as the version itself read them. Run it once for each released version and commit the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from cerebro import ASHA, Experiment, choice, load_model, loguniform
from cerebro.client.results import FitResult, TrainedModel, prediction_table, test_table
from cerebro.contract.events import ClusterEvent, Event
from cerebro.local import cluster
from tests.e2e.harness import DEADLINE_S, Lab
from tests.e2e.specs import TinyTraining

HOME, EVENTS, EXPECTED = "home.tar.xz", "events.json", "expected.json"
NAME = "stored"
"""Name of the experiment."""
REGISTERED = "stored-model"
LOG: TypeAdapter[tuple[Event, ...]] = TypeAdapter(tuple[Event, ...])
CLUSTER_LOG: TypeAdapter[tuple[ClusterEvent, ...]] = TypeAdapter(tuple[ClusterEvent, ...])


def results_of(experiment: Experiment) -> dict[str, Any]:
    """Return the results of the experiment that every later version must read the same."""
    grid, search = experiment.result("fit-1"), experiment.result("fit-2")
    runs, connection = experiment.state().runs, experiment.connection
    registered = connection.kvs.registered_model(REGISTERED)
    predictions = prediction_table(runs["predict-1"], connection.files)
    return {
        "grid": ranking(grid),
        "search": ranking(search),
        "failures": grid.failures(),
        "tags": [experiment.tags(), experiment.tags(model="m01", run="fit-1")],
        "weights": digest(grid.best),
        "registered": [version.version for version in registered.versions],
        "aliases": registered.aliases,
        "registered_weights": digest(load_model(f"{REGISTERED}@champion")),
        "tested": json.loads(test_table(runs["test-1"], None, None).to_json(orient="records")),
        "predicted": json.loads(predictions.to_json(orient="split")),
    }


def ranking(result: FitResult) -> list[list[Any]]:
    """Return the leaderboard's models with their states, best values, epochs and hyperparameters."""
    board = result.leaderboard()
    columns = ["model", "state", "loss", "best_epoch", "epochs", "lr"]
    return list(json.loads(board[columns].to_json(orient="values")))


def digest(model: TrainedModel) -> str:
    """Return a SHA-256 of all weights of a model."""
    found = hashlib.sha256()
    for module in model.modules():
        for name, tensor in sorted(module.state_dict().items()):
            found.update(name.encode())
            found.update(np.ascontiguousarray(tensor.numpy()).tobytes())
    return found.hexdigest()


def make(lab: Lab) -> Experiment:
    """Use every kind of run, search, failure and command that leaves something behind."""
    splits = {"train": 40, "valid": 12, "test": 12, "predict": 8}
    experiment = lab.prepared(locators=lab.tables(**splits))
    fit = lab.fit(experiment, TinyTraining(trouble={"d": "raise"}), "abcd")
    log = lab.log(experiment)
    log.until_type("RunStarted", run="fit-1")
    experiment.clone("m00", {"lr": 0.02})
    lab.result(fit, experiment)
    experiment.run_fit(
        TinyTraining(),
        {"lr": loguniform(1e-3, 0.1), "batch_size": choice([5, 10])},
        epochs=4,
        metric="loss",
        mode="min",
        search=ASHA(),
        samples=6,
        progress=False,
    )
    experiment.run_test(["m00", "m01"], fit="fit-1", progress=False)
    experiment.run_predict(fit="fit-1", progress=False)
    experiment.register(REGISTERED, "m01", fit="fit-1", alias="champion")
    experiment.set_tag("stage", "candidate", model="m01", run="fit-1")
    experiment.set_tag("note", "stored for later versions")
    experiment.run_test(split="train", progress=False)
    return experiment


def write(folder: Path) -> None:
    """Make the cluster, stop it, and write the three files."""
    with tempfile.TemporaryDirectory(prefix="cerebro-stored-") as work:
        home = Path(work) / "home"
        os.environ["CEREBRO_HOME"] = str(home)
        os.environ.pop("CEREBRO_SERVER", None)
        cluster.start(home, workers=2, tensorboard=False, timeout_s=DEADLINE_S)
        try:
            lab = Lab(home, Path(work), [NAME].__iter__())
            experiment = make(lab)
            expected = results_of(experiment) | {"python": list(sys.version_info[:2])}
            logs = {
                "experiment": json.loads(LOG.dump_json(tuple(lab.log(experiment).read()))),
                "cluster": json.loads(CLUSTER_LOG.dump_json(lab.kvs.cluster_log())),
            }
            lab.end()
        finally:
            cluster.stop(home)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / EVENTS).write_text(json.dumps(logs, separators=(",", ":")) + "\n")
        (folder / EXPECTED).write_text(json.dumps(expected, indent=1) + "\n")
        with tarfile.open(folder / HOME, "w:xz") as archive:
            for part in ("store", "volumes"):
                archive.add(home / part, part)


if __name__ == "__main__":
    write(Path(__file__).parent / sys.argv[1])
