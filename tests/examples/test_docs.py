"""Check the documents against the code: diagrams, layers, links, commands, and Python examples."""

from __future__ import annotations

import ast
import configparser
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cerebro
from cerebro.cli.program import build_parser
from cerebro.client.dry_run import dry_run
from cerebro.client.experiment import Experiment
from cerebro.client.results import FitResult
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from docs.generate_state import TARGET, render
from tests.deploy import documented_commands

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path
    for path in (
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("*/README.md"),
        *ROOT.glob("*/*/README.md"),
    )
    if not path.relative_to(ROOT).parts[0].startswith(".")  # environments and caches change during the tests
)


def _blocks(path: Path, *kinds: str) -> list[str]:
    """Return the contents of fenced blocks of these kinds."""
    found = re.findall(r"^ *```([^\n]*)\n(.*?)^ *```", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [content for kind, content in found if kind in kinds]


def _python_blocks() -> list[ast.Module]:
    """Return the Python of README and of the user pages."""
    pages = (
        ROOT / "README.md",
        *(
            ROOT / "docs" / f"{name}.md"
            for name in ("tutorial", "data", "training", "experiments", "coming-from", "keras")
        ),
    )
    return [ast.parse(block) for page in pages for block in _blocks(page, "python")]


def _calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    """Yield the method calls of the variable `name`."""
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if (
            isinstance(called, ast.Attribute)
            and isinstance(called.value, ast.Name)
            and called.value.id == name
        ):
            assert isinstance(node, ast.Call)
            yield node


def test_state_diagrams_match_the_transition_tables() -> None:
    """docs/state.md equals the output of `python -m docs.generate_state`."""
    assert TARGET.read_text() == render(), "run: python -m docs.generate_state"


def test_architecture_lists_the_layers_of_the_import_linter() -> None:
    """docs/architecture.md has the layers of .importlinter, in order."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    layers = parser["importlinter:contract:floors"]["layers"].split("\n")
    checked = [re.sub(r"[()]", "", line).replace(" : ", " · ") for line in layers if line]
    messages = [
        [line.strip() for line in block.splitlines()]
        for block in _blocks(ROOT / "docs/architecture.md", "text")
    ]
    floors = "\n".join(f"  {line}" for line in checked)
    assert checked in messages, (
        f"the floors of .importlinter have changed; docs/architecture.md is to say:\n{floors}"
    )


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_link_targets_exist(path: Path) -> None:
    """Relative links outside code, including images, have a target."""
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+)", re.sub(r"`[^`\n]*`", "", text))
    missing = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert missing == []


def test_files_named_in_documents_exist() -> None:
    """Decisions and the changelog may name former files."""
    texts = [
        path.read_text()
        for path in DOCUMENTS
        if path.parent.name != "decisions" and path.name != "CHANGELOG.md"
    ]
    folders = "benchmarks|cerebro|controller|deploy|dispatcher|docs|etl_worker|examples|infra|kvs_api|tests"
    named = set(re.findall(rf"`((?:{folders})/[a-zA-Z0-9_./-]+\.(?:py|lua|md|yaml|json))`", "\n".join(texts)))
    assert {name for name in named if "NNNN" not in name and not (ROOT / name).exists()} == set()


def test_readme_python_uses_only_the_public_api() -> None:
    """The examples compile, import public names only, and pass valid arguments."""
    trees = _python_blocks()
    assert trees
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("cerebro"):
                assert node.module == "cerebro"
                assert {alias.name for alias in node.names} <= set(cerebro.__all__)
        _check_calls(tree)


def _check_calls(tree: ast.AST) -> None:
    for variable, kind in (("experiment", Experiment), ("result", FitResult)):
        for call in _calls(tree, variable):
            assert isinstance(call.func, ast.Attribute)
            method = getattr(kind, call.func.attr)
            keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
            inspect.signature(method).bind(None, *call.args, **keywords)


def test_calls_in_guides_have_valid_arguments() -> None:
    """Also in blocks that no test runs, because they need a running search or another cluster."""
    for page in ("search", "techniques", "forecasts", "registry", "kubernetes"):
        blocks = _blocks(ROOT / f"docs/{page}.md", "python", "py")
        assert blocks
        for block in blocks:
            _check_calls(ast.parse(block))


def test_documented_specs_follow_the_templates() -> None:
    """The pages' specs have the templates' methods and argument order."""
    classes = [node for tree in _python_blocks() for node in tree.body if isinstance(node, ast.ClassDef)]
    assert len(classes) >= 3
    for node in classes:
        (base,) = node.bases
        assert isinstance(base, ast.Name)
        template = getattr(cerebro, base.id)
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name != "__init__":
                expected = list(inspect.signature(getattr(template, method.name)).parameters)
                assert [argument.arg for argument in method.args.args] == expected


@pytest.mark.slow
def test_the_migrated_script_runs(tmp_path: Path) -> None:
    """Its rows and a batch go through all methods."""
    (tmp_path / "train.csv").write_text("id,x,y,label\n" + "".join(f"{n},{n},1,{n % 2}\n" for n in range(8)))
    namespace: dict[str, Any] = {"__name__": "coming_from"}
    exec(_blocks(ROOT / "docs/coming-from.md", "python")[0], namespace)
    locator = Locator(metadata=str(tmp_path / "train.csv"))
    dry_result = dry_run(
        ExperimentRecord(name="scans", locators=Locators(train=locator, valid=locator, predict=locator)),
        lambda _: b"",
        namespace["Scans"](),
        namespace["Classifier"](),
        {"lr": 0.1, "width": 4, "batch_size": 4},
        rows=8,
        parallel_plans=[],
    )
    assert "accuracy" in str(dry_result)


@pytest.mark.slow
def test_the_documented_fit_example_runs(tmp_path: Path) -> None:
    """The example of `fit` runs; a city without training rows gets its own number."""
    rows = [f"{n},{20 + n},{'Oslo' if n % 3 else 'Rome'},{n % 2}" for n in range(8)]
    (tmp_path / "train.csv").write_text("\n".join(["id,hours,city,label", *rows]) + "\n")
    (tmp_path / "valid.csv").write_text("id,hours,city,label\n0,40,Lima,1\n")
    (block,) = (each for each in _blocks(ROOT / "docs/data.md", "python") if "def fit(" in each)
    namespace: dict[str, Any] = {"__name__": "census"}
    exec(block, namespace)
    train, valid = (Locator(metadata=str(tmp_path / f"{split}.csv")) for split in ("train", "valid"))
    dry_result = dry_run(
        ExperimentRecord(name="census", locators=Locators(train=train, valid=valid)),
        lambda _: b"",
        namespace["CensusETL"](),
        namespace["CensusTraining"](),
        {"width": 4, "batch_size": 4},
        rows=8,
    )
    assert dry_result.steps[0].name == "fit"
    assert dry_result.parameters == 3 * 4 + 2 * 5 + 2


@pytest.fixture
def commands() -> set[str]:
    """List the commands in `cerebro --help`."""
    return {name for names in build_parser().groups.values() for name in names}


def test_the_commands_page_lists_all_commands(commands: set[str]) -> None:
    """Every command in a fenced block of docs/commands.md exists, and every command is listed."""
    listed = "\n".join(_blocks(ROOT / "docs/commands.md", ""))
    assert set(re.findall(r"^cerebro ([a-z-]+)", listed, flags=re.MULTILINE)) == commands


def test_each_documented_command_has_a_call_or_a_reason() -> None:
    """`tests/deploy/test_wheel.py` makes the calls, with the wheel alone."""
    tested = [command for group in documented_commands.CALLS.values() for command, _ in group]
    assert sorted([*tested, *documented_commands.ELSEWHERE]) == sorted(documented_commands.documented())


def test_commands_named_in_documents_exist(commands: set[str]) -> None:
    """In all documents and notebooks."""
    texts = [path.read_text() for path in (*DOCUMENTS, *ROOT.glob("notebooks/*.ipynb"))]
    assert set(re.findall(r"`cerebro\s+([a-z-]+)", "\n".join(texts))) - commands == set()


def test_the_table_lists_every_environment_variable() -> None:
    """docs/local-cluster.md lists every CEREBRO_ variable in the code."""
    folders = ("cerebro", "controller", "dispatcher", "etl_worker", "kvs_api", "model_hopper")
    sources = [path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    used = set(re.findall(r"\"(CEREBRO_[A-Z_]*[A-Z])\"", "\n".join(sources)))
    documented = set(re.findall(r"CEREBRO_[A-Z_]*[A-Z]", (ROOT / "docs/local-cluster.md").read_text()))
    assert used - documented - {"CEREBRO_VOLUME_LOGS"} == set()
