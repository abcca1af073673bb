"""The control plane runs with the packages of its image only."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.control_image import closure, hide_packages
from tests.deploy.test_images import load, requirements

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("controller", "dispatcher", "kvs_api")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables of a process that can import only the control image's packages."""
    folder = tmp_path_factory.mktemp("image")
    hidden = hide_packages(
        folder,
        installed=closure(requirements("control")),
        trimmed=load("finish").TRIMMED["control"],
        own=("cerebro", *SERVICES),
    )
    assert {"pandas", "torch", "ortools", "plotly.graph_objs"} <= hidden
    assert not {"flask", "yaml", "jinja2", "pyarrow", "plotly", "hiredis", "cryptography"} & hidden
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the image's packages."""
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False, cwd=ROOT
    )


@pytest.mark.slow
@pytest.mark.processes
def test_every_module_of_a_service_can_be_imported(environment: dict[str, str]) -> None:
    """Including modules that a service starts as child processes."""
    program = (
        "import importlib, pkgutil\n"
        f"for name in {SERVICES!r}:\n"
        "    for found in pkgutil.walk_packages(importlib.import_module(name).__path__, f'{name}.'):\n"
        "        if not found.name.endswith('__main__'):\n"
        "            importlib.import_module(found.name)\n"
    )
    done = run(environment, "-c", program)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.processes
def test_every_route_of_the_page_answers(environment: dict[str, str], tmp_path: Path) -> None:
    """Call each route once, with an experiment file, its locators, a log search and a report."""
    done = run(environment, "-m", "tests.deploy.control_image_routes", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "ModuleNotFoundError" not in done.stderr
    answers = {(method, path): status for method, path, status in json.loads(done.stdout)}
    failed = {key: status for key, status in answers.items() if status >= 500}
    assert {key for key, status in failed.items() if status != 503 or not key[1].startswith("/api/")} == set()
    assert answers["POST", "/start/check with a file"] == 200
    assert answers["POST", "/start with a file"] == 303


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_imports_nothing_by_name(service: str) -> None:
    """`.importlinter` and test_images.py follow import statements and miss module names in strings."""
    by_name = []
    for path in (ROOT / service).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
                "import_module",
                "__import__",
            ):
                by_name.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert by_name == []
