"""The job of `pods`, which Python in the notebook's pod reads from standard input.

Prints a line ``committed N`` per sub-epoch, and at the end the event log of the fit, a JSON object per line. Sub-epochs
take about two seconds, mostly asleep, because the time between them is measured.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from cerebro import Experiment
from cerebro.client.selftest.specs import CLASSES, Pictures, Quarters, picture
from cerebro.contract.events import TaskCommitted

ROWS, MODELS, EPOCHS = 160, 6, 2
SHARED = Path("/volumes/shared/benchmark-pods")


class Slow(Quarters):
    """Sleeps between batches."""

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        """Take two seconds for the 20 batches of half of the rows."""
        batches = iter(dataloader)

        class Paced:
            num_rows = dataloader.num_rows

            def __iter__(self) -> Any:
                for batch in batches:
                    time.sleep(0.1)
                    yield batch

        return super().train(models, checkpoint, Paced(), hyperparams)


def _locators(name: str) -> dict[str, dict[str, str]]:
    folder = SHARED / name
    (folder / "pictures").mkdir(parents=True)
    generator = np.random.default_rng(1)
    for number in range(ROWS):
        np.save(folder / "pictures" / f"{number}.npy", picture(number % CLASSES, generator))
    lines = [f"{number},{number}.npy,{number % CLASSES}\n" for number in range(ROWS)]
    (folder / "train.csv").write_text("".join(["id,picture,label\n", *lines]))
    return {"train": {"metadata": str(folder / "train.csv"), "objects": str(folder / "pictures")}}


def _tell_commits(experiment: Experiment) -> None:
    kvs, seq, count = experiment.connection.kvs, 0, itertools.count(1)
    while True:
        for event in kvs.events(experiment.name, seq, wait_s=10):
            seq = event.seq
            if isinstance(event, TaskCommitted) and "/train/m" in event.task:
                print("committed", next(count), flush=True)


def main(name: str) -> None:
    """Run ETL, then the disturbed fit."""
    experiment = Experiment(name, locators=_locators(name))
    experiment.run_etl(Pictures(), seed=1, progress=False)
    threading.Thread(target=_tell_commits, args=(experiment,), daemon=True).start()
    grid = {"lr": [0.001 * (n + 1) for n in range(MODELS)], "width": [8], "batch_size": [4]}
    experiment.run_fit(Slow(), grid, epochs=EPOCHS, metric="loss", mode="min", seed=1, progress=False)
    seq = 0
    while events := experiment.connection.kvs.events(name, seq):
        seq = events[-1].seq
        for event in events:
            print(event.model_dump_json(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
