"""``python -m research simulate`` with Hermes's scenarios."""

from __future__ import annotations

import json

import pytest

from research import command


def test_the_table_has_a_row_for_each_policy(capsys: pytest.CaptureFixture[str]) -> None:
    """One number for each network; JSON output has the same numbers."""
    arguments = ["simulate", "hermes-12", "--policy", "hermes", "--policy", "promising"]
    assert command.main(arguments) == 0
    *_, heads, hermes, promising, _ = capsys.readouterr().out.splitlines()
    assert heads.split() == ["GoogleNet", "VGG16", "VGG19", "ResNet50", "all", "makespan", "switches"]
    assert (hermes.split()[0], promising.split()[0]) == ("hermes", "promising")
    assert command.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scenario"] == "hermes-12"
    assert [f"{row['mean']:.2f}" for row in found["rows"]] == [hermes.split()[5], promising.split()[5]]
