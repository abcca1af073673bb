"""Names in docs/scheduling.md exist; ``make scheduling`` checks its numbers."""

from __future__ import annotations

import re

from cerebro.scheduling.policies import DEFAULT_POLICY, POLICIES
from docs.generate_scheduling import TARGET
from research.scenarios import SCENARIOS
from research.solve import METHODS

_TEXT = TARGET.read_text()
_SCENARIO = r"(?:thesis|saturn|paper|hard|few|replicated|epochs|online)-[a-z0-9.-]*[0-9a-z]"


def _row(first: str) -> list[str]:
    """Return the cells of the table row that starts with `first`."""
    (line,) = re.findall(rf"^\| {re.escape(first)} \|(.*)\|$", _TEXT, flags=re.MULTILINE)
    return [cell.strip() for cell in line.split("|")]


def test_the_table_of_policies_is_complete() -> None:
    """Policies are listed in registry order and the default is marked."""
    table = _TEXT.split("| policy | rule | use it |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, flags=re.MULTILINE) == [
        DEFAULT_POLICY,
        *(name for name in POLICIES if name != DEFAULT_POLICY),
    ]
    assert "the default" in _row(f"`{DEFAULT_POLICY}`")[-1]


def test_documented_names_exist() -> None:
    """The scenarios, policies and files in text, commands and tables exist."""
    named = set(
        re.findall(rf"`({_SCENARIO})`|simulate ({_SCENARIO})|^\| ({_SCENARIO}) \|", _TEXT, flags=re.MULTILINE)
    )
    scenarios = {name for names in named for name in names if name}
    assert len(scenarios) > 10
    assert scenarios <= set(SCENARIOS)
    assert set(re.findall(r"--policy ([a-z-]+)", _TEXT)) <= set(METHODS)
    for path in re.findall(r"`((?:cerebro|controller|research)/[a-z_/]+\.py)`", _TEXT):
        assert (TARGET.parent.parent / path).is_file()
