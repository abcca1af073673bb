"""Read a tracking server's contents over its API."""

from __future__ import annotations

from typing import Any, NamedTuple

from cerebro.exports.mlflow_server import MlflowServer
from cerebro.exports.projection import PageKey


class Shown(NamedTuple):
    """A run in MLflow."""

    info: dict[str, Any]
    tags: dict[str, str]
    params: dict[str, str]
    rows: list[tuple[str, int, int, float]]
    """(name, step, time in ms, value), with duplicates."""


def shown(address: str, identity: str, names: set[str]) -> dict[PageKey, Shown]:
    """Return an experiment's runs by page.

    Args:
        names: metrics to read.
    """
    server = MlflowServer(address, {}, patience_s=5)
    found: dict[PageKey, Shown] = {}
    experiment = server.get("experiments/get-by-name", experiment_name=identity.partition("@")[0])[
        "experiment"
    ]
    page = ""
    while True:
        body = {
            "experiment_ids": [experiment["experiment_id"]],
            "filter": f"tags.`cerebro.experiment` = '{identity}'",
            "max_results": 100,
        }
        answer = server.post("runs/search", **body, **({"page_token": page} if page else {}))
        for run in answer.get("runs", ()):
            tags, params = (
                {pair["key"]: pair.get("value", "") for pair in run["data"].get(kind, ())}
                for kind in ("tags", "params")
            )
            page_key = PageKey(tags["cerebro.run"], tags.get("cerebro.model", ""))
            assert page_key not in found, f"two runs for {page_key}"
            rows = [row for name in sorted(names) for row in _history(server, run["info"]["run_id"], name)]
            found[page_key] = Shown(run["info"], tags, params, rows)
        page = answer.get("next_page_token", "")
        if not page:
            return found


def _history(server: MlflowServer, run: str, name: str) -> list[tuple[str, int, int, float]]:
    rows: list[tuple[str, int, int, float]] = []
    page = ""
    while True:
        more = {"page_token": page} if page else {}
        answer = server.get("metrics/get-history", run_id=run, metric_key=name, **more)
        rows += [
            (name, int(row.get("step", 0)), int(row["timestamp"]), float(row["value"]))
            for row in answer.get("metrics", ())
        ]
        page = answer.get("next_page_token", "")
        if not page:
            return rows
