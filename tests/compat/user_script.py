"""What a user of version 0.1.0 ran to make the folder that is kept here: `python user_script.py PLACE PART`.

Its specs are classes of `__main__`, as in a notebook. They travel by value, with what they use of Cerebro's public
modules. All arithmetic is exact in float32: small whole numbers, steps that are powers of two. So a replay gives the
same bits on every machine, whatever its instructions.

PLACE is a folder with `data/` in it. A unit waits while PLACE has a file `hold-TAG-UNIT` (see `write_folder.py`). A
model fails while there is a file `trouble-TAG`. Wherever the folder is opened later, there is neither.
"""

import json
import platform
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cerebro
from cerebro import ETLSpec, Experiment, choice
from cerebro.errors import DataError
from cerebro.spec import DataLoader

RATES = choice([0.25, 0.5])
FEATURES = ("a", "b", "c", "d")


class Numbers(ETLSpec):
    """Four whole numbers and a class."""

    def __init__(self, broken: int = -1) -> None:
        self.broken = broken

    def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> tuple[Any, Any]:
        if row["id"] == self.broken:
            raise DataError(f"row {row['id']} cannot be read")
        values = np.array([row[name] for name in FEATURES], dtype=np.float32)
        return values, None if mode == "predict" else int(row["label"])


class Perceptron(cerebro.SubEpochSpec):
    """Rosenblatt's rule for three classes; the sum of all weights so far lives across units."""

    def __init__(self, place: str, is_scaled: bool = False) -> None:
        self.place, self.is_scaled = place, is_scaled

    def create_models(self, hyperparams: Any) -> list[Any]:
        assert isinstance(RATES, type(choice([1]))), "what a spec uses of Cerebro travels with it"
        network = torch.nn.Linear(len(FEATURES), 3, bias=False)
        with torch.no_grad():
            network.weight.copy_(torch.randint(-4, 5, network.weight.shape) * 0.125)
        return [network]

    def train(
        self, models: list[Any], checkpoint: Any, dataloader: DataLoader, hyperparams: Any
    ) -> dict[str, float]:
        (network,) = models
        tag, unit = hyperparams["tag"], checkpoint.get("units", 0)
        print("training", tag, unit, flush=True)  # noqa: T201 - in the log of the task
        if Path(self.place, f"trouble-{tag}").exists():
            raise ZeroDivisionError("a mistake in user code")
        while Path(self.place, f"hold-{tag}-{unit}").exists():
            Path(self.place, f"at-{tag}-{unit}").touch()
            time.sleep(0.02)
        rate = float(hyperparams["rate"])
        if self.is_scaled:
            import scaling  # type: ignore[import-not-found]  # among the uploaded files

            rate *= scaling.FACTOR
        right = 0
        with torch.no_grad():
            for inputs, labels in dataloader:
                guesses = network(inputs).argmax(1)
                network.weight.index_add_(0, labels, inputs, alpha=rate)
                network.weight.index_add_(0, guesses, inputs, alpha=-rate)
                right += int((guesses == labels).sum())
                dataloader.report(right=right)
            checkpoint["total"] = checkpoint.get("total", 0) + network.weight
        checkpoint["units"] = unit + 1
        return {"accuracy": right / dataloader.num_rows}

    def test(
        self, models: list[Any], checkpoint: Any, dataloader: DataLoader, hyperparams: Any
    ) -> dict[str, float]:
        (network,) = models
        right = sum(int((network(inputs).argmax(1) == labels).sum()) for inputs, labels in dataloader)
        return {"accuracy": right / dataloader.num_rows}

    def predict(
        self, models: list[Any], checkpoint: Any, dataloader: DataLoader, hyperparams: Any
    ) -> Iterator[Any]:
        (network,) = models
        for inputs, _ in dataloader:
            yield {"label": network(inputs).argmax(1)}


def space(tags: str) -> list[dict[str, Any]]:
    """A model per letter."""
    return [{"tag": tag, "rate": 0.5 / 2**n, "batch_size": 4} for n, tag in enumerate(tags)]


def locators(place: Path) -> dict[str, Any]:
    """Of the tables in `data/`."""
    return {
        split: {"metadata": str(place / "data" / f"{split}.csv")}
        for split in ("train", "valid", "test", "predict")
    }


def until(path: Path) -> None:
    """Wait for a file."""
    while not path.exists():
        time.sleep(0.02)


def finished(place: Path) -> None:
    """An experiment with all kinds of runs, steered on the way; what its results are goes to `expected.json`."""
    experiment = Experiment("finished", locators=locators(place))
    failed = experiment.run_etl(Numbers(broken=7), max_failed=0.1, seed=5, progress=False).failed_rows()
    for name in ("hold-b-1", "trouble-c"):
        (place / name).touch()

    def steer() -> None:
        until(place / "at-b-1")
        mine = Experiment.attach("finished")
        mine.set_scheduler("fifo")
        mine.stop_model("m01")
        for name in ("hold-b-1", "trouble-c"):
            (place / name).unlink()

    steering = threading.Thread(target=steer)
    steering.start()
    fit = {"epochs": 2, "metric": "accuracy", "mode": "max", "seed": 3, "progress": False}
    experiment.run_fit(Perceptron(str(place)), space("abc"), **fit)  # type: ignore[arg-type]
    steering.join()
    for go_on, model in ((experiment.resume_model, "m01"), (experiment.retry_model, "m02")):
        go_on(model)
        experiment.watch(progress=False)
    result = experiment.result()
    tested = experiment.run_test(["m00", "m01", "m02"], progress=False)
    predicted = experiment.run_predict("m02", progress=False)
    experiment.archive()
    report = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "failed_rows": table(failed.drop(columns="traceback")),
        "leaderboard": table(result.leaderboard()),
        "history": table(result.history().drop(columns="seconds")),
        "visits": [[v.model, v.epoch, v.partition, v.worker] for v in result.visits().itertuples()],
        "best": result.best.id,
        "weights": {name: result.model(name).load()["models"][0]["weight"].tolist() for name in MODELS},
        "units": {name: result.model(name).load()["checkpoint"]["units"] for name in MODELS},
        "test": table(tested),
        "predict": table(predicted),
    }
    (place / "expected.json").write_text(json.dumps(report, indent=1) + "\n")


MODELS = ("m00", "m01", "m02")


def table(frame: Any) -> Any:
    """A data frame as JSON."""
    return json.loads(frame.reset_index().to_json(orient="records"))


def in_flight(place: Path) -> None:
    """An experiment with uploaded files, whose fit is interrupted: two of its units stand still until all is killed."""
    experiment = Experiment("in-flight", locators=locators(place), code=place / "uploaded")
    experiment.run_etl(Numbers(), progress=False)
    for name in ("hold-a-2", "hold-b-2"):
        (place / name).touch()
    spec = Perceptron(str(place), is_scaled=True)
    experiment.run_fit(spec, space("abc"), epochs=2, metric="accuracy", mode="max", seed=4, progress=False)


if __name__ == "__main__":
    {"finished": finished, "in-flight": in_flight}[sys.argv[2]](Path(sys.argv[1]))
