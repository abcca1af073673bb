"""Ray Tune: a core per trial, all rows in each. The rows are in Ray's object store, where trials read them in
place."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch

from benchmarks.compare import task
from benchmarks.compare.contenders import Outcome
from benchmarks.compare.processes import train


def run(folder: str, rates: list[float], into: str) -> Outcome:
    """All models. Ray is up and has the rows when the clock begins, as Cerebro's cluster is; processes are used for
    one trial after another; checkpoints are not synchronized anywhere, and each trial reports once."""
    import ray
    from ray import tune

    ray.init(num_cpus=task.WORKERS, include_dashboard=False, log_to_driver=False)
    splits = {split: task.Rows.load(folder, split) for split in task.SPLITS}
    rows = {split: (found.inputs.numpy(), found.labels.numpy()) for split, found in splits.items()}
    trial = tune.with_parameters(partial(_trial, into=into), rows=rows)
    began = time.monotonic()
    results = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        param_space={"rate": tune.grid_search(rates)},
        tune_config=tune.TuneConfig(reuse_actors=True),
        run_config=tune.RunConfig(storage_path=into, verbose=0),
    ).fit()
    seconds = time.monotonic() - began
    assert len(results) == len(rates), results.errors
    assert not results.errors, results.errors
    found = sorted(
        (result.metrics for result in results), key=lambda metrics: rates.index(metrics["config"]["rate"])
    )
    ray.shutdown()
    return Outcome(
        seconds=seconds,
        accuracy=[metrics["accuracy"] for metrics in found],
        held=max(metrics["held"] for metrics in found),
        moved=sum(metrics["written"] for metrics in found),
    )


def _trial(config: dict[str, Any], rows: dict[str, Any], into: str) -> None:
    from ray import tune

    torch.set_num_threads(1)
    train_rows, valid_rows = (task.Rows(*rows[split]) for split in task.SPLITS)
    result = train(train_rows, valid_rows, config["rate"], into, "plasma")
    # Held-out rows are in the same mapping, and were all read.
    tune.report(result._replace(held=result.held - rows["valid"][0].nbytes)._asdict())
