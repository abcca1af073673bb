"""Groups of commands in the help, similar names in error messages, and completion in shells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cerebro.cli.program import GROUPS, build_parser, main
from cerebro.contract.records import ExperimentRecord
from cerebro.contract.texts import did_you_mean
from cerebro.runtime.kvs.client import KvsClient
from tests.dispatcher.users.signed import LOCATORS
from tests.kvs_api.real import TOKEN, Service


def test_each_command_is_in_one_group_of_the_help() -> None:
    """The help has the groups in their order, and the groups name no other commands."""
    parser = build_parser()
    commands = {line.dest for line in parser._command_lines()}
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(commands)
    shown = parser.format_help()
    places = [shown.index(f"\n{title}:\n") for title in GROUPS]
    assert places == sorted(places)
    assert set(parser.synonyms.values()) <= set(commands)
    assert not set(parser.synonyms) & set(commands)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("stauts", "cerebro has no command 'stauts': did you mean status? See cerebro --help"),
        ("qqq", "cerebro has no command 'qqq'. See cerebro --help"),
        ("leaderboard x", "cerebro has no command 'leaderboard': did you mean status? See cerebro --help"),
        (
            "status --jsn",
            "cerebro status has no option --jsn: did you mean --json? See cerebro status --help",
        ),
        (
            "status --tpo=3",
            "cerebro status has no option --tpo: did you mean --top? See cerebro status --help",
        ),
        ("status a b", "cerebro status takes no further argument 'b'. See cerebro status --help"),
        (
            "completion basch",
            "argument SHELL: no choice 'basch': did you mean bash? See cerebro completion --help",
        ),
        ("token creat", "cerebro token has no action 'creat': did you mean create? See cerebro token --help"),
        (
            "export mlfow x",
            "cerebro export has no tracker 'mlfow': did you mean mlflow? See cerebro export --help",
        ),
    ],
)
def test_a_misspelled_word_is_answered_by_a_similar_one(
    arguments: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, which names the command and its help."""
    with pytest.raises(SystemExit, match="2"):
        main(arguments.split())
    assert capsys.readouterr().err == f"cerebro: {says}\n"


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("digts", ["digits", "whales"], "digits"),
        ("m3", ["m01", "m03"], "m03"),
        ("ftt-1", ["fit-1", "fit-2"], "fit-1"),
        ("fit-9", ["fit-1", "fit-2"], ""),
        ("other", ["digits"], ""),
        ("x" + "9" * 5000, ["x1"], ""),
        ("digits", [], ""),
    ],
)
def test_another_number_is_no_misspelling(name: str, known: list[str], found: str) -> None:
    assert did_you_mean(name, known) == (f": did you mean {found}?" if found else "")


def test_an_unknown_experiment_is_answered_by_a_similar_or_the_newest_name(
    service: Service, kvs: KvsClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store knows all names, so every command says it."""
    monkeypatch.setenv("CEREBRO_SERVER", service.address)
    monkeypatch.setenv("CEREBRO_TOKEN", TOKEN)
    kvs.create_experiment(ExperimentRecord(name="digits", locators=LOCATORS))
    for arguments in (
        "status digts",
        "stop digts",
        "failed-rows digts",
        "trials digts",
        "export mlflow digts --url http://localhost:1",
    ):
        assert main(arguments.split()) == 1
        assert "no experiment 'digts': did you mean digits?" in capsys.readouterr().err
    assert main(["status", "whales"]) == 1
    assert "no experiment 'whales'; the newest are: digits" in capsys.readouterr().err


def completions(line: str, out: Path, **variables: str) -> list[str]:
    """Return the words that a shell offers after a line."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("CEREBRO_")},
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(out),
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
        **variables,
    }
    out.unlink(missing_ok=True)
    subprocess.run([sys.executable, "-m", "cerebro.cli"], env=environment, check=True, capture_output=True)
    return [word.strip() for word in out.read_text().splitlines()]


@pytest.mark.commands
def test_a_shell_completes_commands_options_and_experiments(
    service: Service, kvs: KvsClient, tmp_path: Path
) -> None:
    """Names of experiments come from the cluster; without one there are none."""
    kvs.create_experiment(ExperimentRecord(name="digits", locators=LOCATORS))
    out = tmp_path / "out"
    assert completions("cerebro sta", out) == ["status", "stacks"]
    assert "--json" in completions("cerebro status --", out)
    assert completions("cerebro completion ", out) == ["bash", "zsh", "fish"]
    cluster = {"CEREBRO_SERVER": service.address, "CEREBRO_TOKEN": TOKEN}
    assert completions("cerebro stop dig", out, **cluster) == ["digits"]
    assert completions("cerebro stop dig", out, CEREBRO_HOME=str(tmp_path)) == []


@pytest.mark.commands
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_names_the_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Bash accepts the script for bash."""
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "cerebro" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
