"""Failure rules match task logs in order, with a time limit per pattern."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest

from cerebro.contract.failure_rules import MAX_LINE, FailureRule
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.errors import ClusterError
from cerebro.runtime.failure_rule_settings import FAILURE_RULES
from cerebro.worker.agent.settings import Settings
from cerebro.worker.health.failure_rules import BUILT_IN, apply_rules
from tests.small_volume import fill, small_volume

BOOM = Failure(
    kind=FailureKind.USER_ERROR, message="ValueError: boom", traceback="Traceback ...\nValueError: boom"
)
CATASTROPHIC = FailureRule(name="backtracks", pattern=r"(a+)+$")
"""A pattern with exponential backtracking on many a's followed by a b."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "task.log"
    path.write_text("epoch 1\nRuntimeError: cusolver gave up\nthe last line\n")
    return path


@pytest.mark.processes
def test_the_first_rule_that_matches_counts(log: Path, tmp_path: Path) -> None:
    """The failure has the rule's name, its action and the matching line. Built-in rules follow."""
    rules = (
        FailureRule(name="never", pattern="no such thing"),
        FailureRule(name="solver", pattern="^RuntimeError: cusolver", action="retry_elsewhere"),
        FailureRule(name="line", pattern="last line"),
    )
    found = apply_rules(BOOM, log, rules)
    assert found.rule is not None
    assert (found.rule.name, found.rule.action) == ("solver", "retry_elsewhere")
    assert found.rule.line == "RuntimeError: cusolver gave up"
    assert (found.kind, found.message, found.late_rules) == (BOOM.kind, BOOM.message, ())
    assert found.line == "[solver] ValueError: boom"
    assert found.text.startswith("[solver] ValueError: boom\nTraceback")
    (tmp_path / "x.log").write_text("step 1\nOSError: [Errno 24] Too many open files\n")
    found = apply_rules(BOOM, tmp_path / "x.log", rules)
    assert found.rule is not None
    assert (found.rule.name, found.rule.action) == ("too many open files", "label")
    assert found.rule.line == "OSError: [Errno 24] Too many open files"


@pytest.mark.processes
def test_rules_are_tried_although_the_folder_for_temporary_files_is_full(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error here would replace the task's failure."""
    with small_volume(tmp_path / "temporary", "64k") as folder:
        fill(folder)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        found = apply_rules(BOOM, log, (FailureRule(name="line", pattern="last line"),))
    assert found.line == "[line] ValueError: boom"


@pytest.mark.processes
def test_a_slow_pattern_times_out_and_the_others_are_tried(tmp_path: Path) -> None:
    """The failure names the slow pattern, and has the label of the next matching rule."""
    path = tmp_path / "a.log"
    path.write_text("a" * 64 + "b\n")
    found = apply_rules(BOOM, path, (CATASTROPHIC, FailureRule(name="boom", pattern="boom")), limit_s=1.0)
    assert found.late_rules == ("backtracks",)
    assert found.rule is not None
    assert found.line == "[boom, failure rule 'backtracks' took too long] ValueError: boom"


@pytest.mark.processes
def test_the_search_ends_after_three_slow_patterns(tmp_path: Path) -> None:
    """After three slow patterns the search ends."""
    path = tmp_path / "a.log"
    path.write_text("a" * 64 + "b\n")
    rules = (*(CATASTROPHIC.model_copy(update={"name": f"b{n}"}) for n in range(6)),)
    found = apply_rules(BOOM, path, rules, limit_s=0.01)
    assert found.late_rules == ("b0", "b1", "b2")
    assert found.rule is None


@pytest.mark.processes
def test_a_quarantine_rule_blames_the_machine(log: Path) -> None:
    """The controller decides about the quarantine."""
    found = apply_rules(BOOM, log, (FailureRule(name="solver", pattern="cusolver", action="quarantine"),))
    assert found.kind is FailureKind.DEVICE


@pytest.mark.parametrize(
    "kind",
    [
        FailureKind.PREEMPTED,
        FailureKind.CHECKPOINT,
        FailureKind.STORAGE_FULL,
        FailureKind.NOT_APPLICABLE,
        FailureKind.MEMBER_LOST,
    ],
)
def test_preemptions_and_revocations_match_no_rule(log: Path, kind: FailureKind) -> None:
    """A revoked sub-epoch's output must not prevent its retry."""
    failure = Failure(kind=kind, message="revoked")
    assert apply_rules(failure, log, (FailureRule(name="all", pattern=".", action="no_retry"),)) == failure


@pytest.mark.parametrize(
    ("line", "label"),
    [
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.", "shared memory is full"),
        ("OSError: [Errno 28] No space left on device: '/tmp/x'", "disk is full"),
        ("OSError: [Errno 24] Too many open files", "too many open files"),
        ("ModuleNotFoundError: No module named 'timm'", "package is missing"),
        ("ImportError: libGL.so.1: cannot open shared object file", "package is missing"),
        ("OSError: libfoo.so: undefined symbol: cudnnCreate", "library is missing"),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes", "host memory"),
        ("RuntimeError: ncclSystemError: System call failed", "NCCL"),
        ("URLError: <urlopen error [Errno 111] Connection refused>", "network"),
    ],
)
def test_common_causes_are_labelled(line: str, label: str) -> None:
    """No configured rule is needed, and the first rule that matches has the label."""
    text = f"step 1\n{line}\n"
    matching = [rule for rule in BUILT_IN if re.search(rule.pattern, text, re.MULTILINE)]
    assert matching[0].name == label
    assert all(rule.action == "label" for rule in BUILT_IN)


@pytest.mark.processes
def test_long_lines_are_truncated_and_control_characters_removed(tmp_path: Path) -> None:
    """The line is shown in the experiment's log, on pages and in terminals."""
    path = tmp_path / "x.log"
    path.write_bytes(b"\x1b[31mmark \xff" + b"y" * 100_000 + b"\n")
    found = apply_rules(BOOM, path, (FailureRule(name="y", pattern="y$"),))
    assert found.rule is not None
    assert len(found.rule.line) <= MAX_LINE
    assert "\x1b" not in found.rule.line
    assert Failure.model_validate_json(found.model_dump_json()) == found


# --- rules of the cluster --------------------------------------------------------------------------

ENVIRONMENT = {"CEREBRO_TOKEN": "t", "CEREBRO_WORKER": "w"}


def test_rules_of_the_cluster_come_from_the_environment() -> None:
    """The Helm chart sets them; only these may quarantine."""
    text = (
        '[{"name": "ib", "pattern": "ibv_post_send", "action": "quarantine"}, {"name": "x", "pattern": "x"}]'
    )
    found = Settings.from_environment({**ENVIRONMENT, FAILURE_RULES: text}).failure_rules
    assert [(rule.name, rule.action) for rule in found] == [("ib", "quarantine"), ("x", "label")]
    assert Settings.from_environment(ENVIRONMENT).failure_rules == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", r"CEREBRO_FAILURE_RULES is no JSON"),
        ('{"name": "x"}', r"CEREBRO_FAILURE_RULES\[0\]: name is|expected a list of rules"),
        ('[{"name": "x", "pattern": "a("}]', r"CEREBRO_FAILURE_RULES\[0\] \('x'\).* at position 1"),
        (
            '[{"name": "x", "pattern": "a", "action": "explode"}]',
            r"action is 'explode', expected one of label, no_",
        ),
        ('[{"name": "x", "pattern": "a", "why": "b"}]', r"has why, expected only name, pattern and action"),
    ],
)
def test_invalid_rules_of_the_cluster_are_refused_at_startup(text: str, message: str) -> None:
    """The error has the rule's number and the position in its pattern."""
    with pytest.raises(ClusterError, match=message):
        Settings.from_environment({**ENVIRONMENT, FAILURE_RULES: text})
