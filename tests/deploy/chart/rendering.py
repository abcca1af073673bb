"""Render the chart, once per set of values and test process."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.chart.matrix import VALUES
from tests.deploy.tools import helm
from tests.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "helm" / "cerebro"
NAMESPACE = "lab"
RELEASE = "cerebro"

Object = dict[str, Any]
Sets = Mapping[str, Mapping[str, Any]]
"""Sets of values by name."""

_TIMEOUT_S = HANG_S


class HelmError(Exception):
    """Helm failed; the message is its stderr."""


@dataclass(frozen=True)
class Rendered:
    """All objects rendered from one set of values."""

    objects: tuple[Object, ...]

    def of(self, kind: str) -> tuple[Object, ...]:
        """List the objects of a kind."""
        return tuple(one for one in self.objects if one["kind"] == kind)

    def get(self, kind: str, name: str) -> Object:
        """Return an object; `name` omits the release's prefix."""
        (found,) = (one for one in self.of(kind) if one["metadata"]["name"] == f"{RELEASE}-{name}")
        return found

    def has(self, kind: str, name: str) -> bool:
        """Return True if the object exists; `name` is the full name."""
        return any(one["metadata"]["name"] == name for one in self.of(kind))

    def pods(self) -> Iterator[tuple[str, Object]]:
        """Yield component and pod template (metadata, spec) of every workload."""
        for one in self.objects:
            if one["kind"] == "Pod":
                yield component(one), one
            elif one["kind"] in ("Deployment", "StatefulSet"):
                yield component(one), one["spec"]["template"]

    def pod(self, name: str) -> Object:
        """Return the pod template of a component."""
        return dict(self.pods())[name]

    def containers(self) -> Iterator[tuple[str, Object]]:
        """Yield ``component/container`` and the container, including init containers."""
        for name, pod in self.pods():
            for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
                yield f"{name}/{container['name']}", container

    def services(self) -> Iterator[tuple[str, Object]]:
        """Yield ``component/container`` and the container, without init containers."""
        for name, pod in self.pods():
            for container in pod["spec"]["containers"]:
                yield f"{name}/{container['name']}", container


def component(one: Object) -> str:
    """Return the component of an object."""
    return str(one["metadata"]["labels"].get("app.kubernetes.io/component", ""))


def render(values: str) -> Rendered:
    """Render the chart with one set of `VALUES`."""
    return render_each(VALUES)[values]


def render_with(values: Mapping[str, Any]) -> Rendered:
    """Render the chart with other values.

    Raises:
        HelmError: Helm refuses the values.
    """
    return _rendered(json.dumps(values, sort_keys=True))


@functools.cache
def _rendered(values: str) -> Rendered:
    return Rendered(tuple(parse(template(CHART, values))))


def render_each(sets: Sets) -> Mapping[str, Rendered]:
    """Render the chart with each of several sets of values.

    Raises:
        HelmError: Helm refuses a set.
    """
    return _rendered_each(json.dumps(sets))


@functools.cache
def _rendered_each(sets: str) -> Mapping[str, Rendered]:
    return {name: Rendered(tuple(parse(text))) for name, text in texts(json.loads(sets)).items()}


# --- many sets of values in one run of helm, which is slow to start ---


def texts(sets: Sets) -> dict[str, str]:
    """Return the output of ``helm template`` for each set, without blank lines between objects.

    A parent chart has the chart as a dependency once per set, each under its own name.

    Raises:
        HelmError: Helm refuses a set.
    """
    printed = _printed(list(sets.values()))
    return dict(zip(sets, printed, strict=True))


def refusals_of_schema(sets: Sets) -> dict[str, str]:
    """Return the schema's error for each set; empty if the set is valid."""
    try:
        _printed(list(sets.values()))
    except HelmError as refused:
        _, *parts = re.split(r"^s(\d+):$", str(refused), flags=re.MULTILINE)
        said = dict(zip(map(int, parts[::2]), parts[1::2], strict=True))
        return {name: said.get(number, "") for number, name in enumerate(sets)}
    return dict.fromkeys(sets, "")


def refusals_of_checks(sets: Sets) -> dict[str, str]:
    """Return the error of the chart's own check for each set; empty if the set is valid.

    The check normally ends Helm at the first invalid set. Here it writes its error into an object instead.
    """

    def report_refusal(chart: Path) -> None:
        check = chart / "templates" / "checks.yaml"
        for other in set(chart.rglob("templates/**/*.yaml")) - {check}:
            other.unlink()
        check_text, times = re.subn(
            r"\bfail (\(.*\)) }}", r'dict "kind" "Refusal" "said" \1 | toJson }}', check.read_text()
        )
        assert times == 1
        check.write_text(check_text)

    found = {}
    for name, text in zip(sets, _printed(list(sets.values()), report_refusal), strict=True):
        documents = yaml.load_all(text, Loader=yaml.CSafeLoader)
        found[name] = "".join(one["said"] for one in documents if one and one["kind"] == "Refusal")
    return found


def _printed(
    sets: Sequence[Mapping[str, Any]], change: Callable[[Path], None] = lambda _: None
) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "batch"
        chart = whole / "charts" / "cerebro"
        shutil.copytree(CHART, chart)
        change(chart)
        chart_file = yaml.safe_load((CHART / "Chart.yaml").read_text())
        parts = [
            {
                "name": chart_file["name"],
                "version": chart_file["version"],
                "repository": "",
                "alias": f"s{number}",
            }
            for number in range(len(sets))
        ]
        description = {"apiVersion": "v2", "name": "batch", "version": "0.0.0", "dependencies": parts}
        (whole / "Chart.yaml").write_text(json.dumps(description))
        values = {
            f"s{number}": {"nameOverride": chart_file["name"], **each} for number, each in enumerate(sets)
        }
        printed = template(whole, json.dumps(values))
    documents: list[list[str]] = [[] for _ in sets]
    for document in re.split(r"^---\n", printed, flags=re.MULTILINE)[1:]:
        origin = re.match(r"# Source: batch/charts/(s(\d+))/", document)
        assert origin is not None, document
        alias, number = origin[1], int(origin[2])
        text = document.replace(f"batch/charts/{alias}/", f"{chart_file['name']}/")
        text = text.replace(f"helm.sh/chart: {alias}-", f"helm.sh/chart: {chart_file['name']}-")
        documents[number].append(f"---\n{text.rstrip()}\n")
    return map("".join, documents)


# --- helm ---


def template(chart: Path, values: str) -> str:
    """Return the output of ``helm template`` for `values` (JSON).

    Raises:
        HelmError: Helm failed.
    """
    return run("template", RELEASE, str(chart), "--namespace", NAMESPACE, "--values", "-", stdin=values)


def run(*arguments: str, stdin: str = "") -> str:
    """Run a Helm command and return its output.

    Raises:
        HelmError: Helm failed.
    """
    done = subprocess.run(
        [str(helm()), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
        env={**os.environ, "GOGC": "off"},  # it exits before garbage collection pays off
    )
    if done.returncode:
        raise HelmError(done.stderr.strip() or done.stdout.strip())
    return done.stdout


def parse(text: str) -> Iterator[Object]:
    """Parse a stream of YAML documents."""
    return (one for one in yaml.load_all(text, Loader=yaml.CSafeLoader) if one)
