"""The commands of docs/commands.md, each with calls that one machine can run."""

from __future__ import annotations

import re
from pathlib import Path

_PAGE = Path(__file__).resolve().parents[2] / "docs/commands.md"

FILE = """\
name: from-file
locators:
  train: {metadata: DATA/train.csv, objects: DATA/images}
  valid: {metadata: DATA/valid.csv, objects: DATA/images}
etl: {spec: "digits:DigitsETL"}
fit:
  spec: digits:DigitsTraining
  space: {lr: 0.003, width: 8, dropout: 0.25, batch_size: 32}
  epochs: 1
  metric: accuracy
  mode: max
"""
"""The file of `cerebro run`."""

CALLS: dict[str, tuple[tuple[str, tuple[tuple[str, str], ...]], ...]] = {
    "start": (
        ("up [--workers N] [--devices N]", (("up --workers 2", "web page"),)),
        (
            "down",
            (
                ("up --workers 1 --no-tensorboard --home other", "web page"),
                ("down --home other", "has ended"),
            ),
        ),
        ("selftest", (("selftest", "selftest passed"),)),
        ("files NAME", (("files examples", "cerebro/shipped/examples"),)),
        ("completion SHELL", (("completion bash", "cerebro"),)),
    ),
    "watch": (
        ("status", (("status", "digits"), ("status --json", '"experiments"'))),
        ("status EXPERIMENT", (("status digits", "m07"), ("status digits --top 1 --json", '"best_epoch"'))),
        ("open [EXPERIMENT]", (("open digits --print", "/sign-in?next=/experiments/digits#"),)),
        ("logs [SERVICE] [-f]", (("logs kvs_api", "started"),)),
        ("failed-rows EXPERIMENT", (("failed-rows digits", "No row"),)),
        ("trials EXPERIMENT", (("trials digits", "fit-1"),)),
        (
            "notify add|list|test|remove",
            (("notify add json://127.0.0.1:9/runs", "reports finished"), ("notify list", "json://127.0.0.1")),
        ),
    ),
    "steer": (
        (
            "run FILE.yaml",
            (("run file.yaml --dry-run", "nothing failed"), ("run file.yaml", "leaderboard of fit-1")),
        ),
        (
            "clone EXPERIMENT M [NAME=VALUE]",
            (("clone from-file m00 lr=0.001 --warm --epochs 2", "added a model to fit-1, from m00"),),
        ),
        ("extend EXPERIMENT M EPOCHS", (("extend from-file m00 5000", "trained for 5000 epochs"),)),
        (
            "add EXPERIMENT NAME=VALUE...",
            (("add from-file lr=0.01 width=8 dropout=0.1 batch_size=32", "added a model"),),
        ),
        ("change EXPERIMENT M NAME=VALUE", (("change from-file m00 lr=0.002", "lr=0.002"),)),
        ("stacks EXPERIMENT M", (("stacks from-file m00", "most recent call first"),)),
        (
            "prioritize EXPERIMENT PRIORITY",
            (("prioritize from-file high", "to high"), ("prioritize from-file low --model m00", "to low")),
        ),
        ("scheduler EXPERIMENT NAME", (("scheduler from-file fifo", "scheduler"),)),
        ("retry EXPERIMENT --model M", (("retry from-file --model m00", "not possible to retry"),)),
        ("stop-search EXPERIMENT", (("stop-search from-file", "fit-1 has no search"),)),
        ("stop EXPERIMENT [--model M]", (("stop from-file --model m00", "stop the model"),)),
        (
            "resume EXPERIMENT [--model M]",
            (("resume from-file --model m00", "resume the model"), ("stop from-file", "stop the run")),
        ),
    ),
    "results": (
        ("ranking EXPERIMENT [RUN]", (("ranking digits", "INTERVAL"),)),
        ("rows EXPERIMENT [RUN]", (("rows digits", "MEAN"),)),
        ("register EXPERIMENT NAME", (("register digits best --alias first", "is best/1"),)),
        ("models [NAME]", (("models", "best/1"), ("models best", "digits/fit-1"))),
        ("alias NAME ALIAS VERSION", (("alias best champion 1", "best@champion is best/1"),)),
        (
            "export mlflow EXPERIMENT --url URL",
            (("export mlflow digits --url nowhere", "no address of an MLflow"),),
        ),
        (
            "export package NAME EXPERIMENT",
            (("export package other digits", "no installed package exports to 'other'"),),
        ),
        ("replay EXPERIMENT [--run R]", (("replay digits", "equal"),)),
        ("replay EXPERIMENT --tolerance T", (("replay digits --tolerance 1e-4", "equal"),)),
        ("tag EXPERIMENT KEY=VALUE", (("tag digits stage=baseline note=first", "stage=baseline"),)),
        ("archive EXPERIMENT", (("archive digits", "archive"),)),
        ("unarchive EXPERIMENT", (("unarchive digits", "archive"),)),
        ("delete EXPERIMENT", (("delete digits", "cerebro delete digits --yes digits"),)),
    ),
    "administer": (
        ("doctor", (("doctor", " 0 failed"),)),
        ("recommend", (("recommend", "containers that train"),)),
        ("check [WORKER]", (("check worker-0", "as expected"),)),
        ("quarantine WORKER --reason TEXT", (("quarantine worker-1 --reason disk", "is quarantined"),)),
        ("release WORKER", (("release worker-1", "is released"),)),
        ("remove WORKER", (("remove worker-1", "so it is alive"),)),
        (
            "scale --workers N",
            (("scale --workers 1", "1 worker now"), ("scale --workers 2", "2 workers now")),
        ),
        ("restore EXPERIMENT", (("restore digits", "nothing to restore"),)),
        ("forget history", (("forget history", "of the history were removed"),)),
        ("token create|list|revoke", (("token list", "has no users"),)),
        ("quota [PROJECT] [--open-runs N]", (("quota", "No quota is set"),)),
        ("audit", (("audit", "audit log"),)),
        (
            "cluster ACTION -f FILE",
            (("cluster create --dry-run -f CLUSTERS/cluster.yaml", "helm upgrade --install cerebro CHART "),),
        ),
    ),
}
"""Group -> documented command -> calls in order, each with a part of its output.

The groups are independent of each other. DATA, CLUSTERS and CHART stand for folders. An output that begins with
`cerebro:` is a refusal: the command ran, but its object does not exist here.
"""

ELSEWHERE = {
    "demo [--workers N]": "the fixture `demo` makes it",
    "export wandb EXPERIMENT": "needs an account",
}
"""Documented command -> reason why no call is made."""


def documented() -> list[str]:
    """Return the commands in the code blocks of the page, without their comments."""
    blocks = re.findall(r"^```\n(.*?)^```", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [re.split(r"\s+#", line)[0].removeprefix("cerebro ") for line in "".join(blocks).splitlines()]
