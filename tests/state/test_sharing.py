"""Queue positions of open runs: fair shares, projects, and waiting reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.priority import HIGH, LOW, NORMAL, weight
from cerebro.contract.rest.api import Attended, AttendedRun, QueueAnswer, QueueEntry
from cerebro.state.reports.sharing import due_shares, queue_positions
from tests.state.stories import Story, sub_epoch

weighted = st.dictionaries(
    st.integers(0, 20),
    st.tuples(
        st.sampled_from(["", "p", "q"]),
        st.sampled_from([weight(priority) for priority in (LOW, NORMAL, HIGH)]),
    ),
    min_size=1,
)


@given(weighted)
def test_due_shares_sum_to_one(runs: dict[int, tuple[str, float]]) -> None:
    """For any weights and projects, each share is positive."""
    found = due_shares(runs)
    assert sum(found.values()) == pytest.approx(1)
    assert found.keys() == runs.keys()
    assert min(found.values()) > 0


@given(weighted, st.sampled_from(["", "p", "q"]))
def test_a_projects_share_does_not_depend_on_its_number_of_runs(
    runs: dict[int, tuple[str, float]], project: str
) -> None:
    """A project's share does not depend on its number of runs; priorities count within it."""
    alike = {key: (name, 1.0 if name == project else weight) for key, (name, weight) in runs.items()}
    found, members = due_shares(alike), [key for key, (name, _) in alike.items() if name == project]
    if members:
        one = {key: each for key, each in alike.items() if key not in members[1:]}
        assert sum(found[key] for key in members) == pytest.approx(due_shares(one)[members[0]])
    for name in {name for name, _ in runs.values()}:
        due = {
            weight: share
            for key, share in due_shares(runs).items()
            for own, weight in [runs[key]]
            if own == name
        }
        assert sorted(due, key=due.__getitem__) == sorted(due)


def attended(experiment: str, devices: int = 0, *, priority: int = NORMAL, **more: bool) -> AttendedRun:
    return AttendedRun(
        experiment=experiment,
        run="fit-1",
        priority=priority,
        devices=devices,
        could_use_more=more.get("could_use_more", False),
    )


def queue(
    names: str, *runs: AttendedRun, open_runs: int = 8, devices: int = 4, waiting: Sequence[int] = ()
) -> QueueAnswer:
    """Return open runs of these experiments, oldest first.

    `waiting` has the positions of runs that wait for another run of their experiment.
    """
    entries = tuple(QueueEntry(experiment=name, run="fit-1") for name in names.split())
    attended = Attended(runs=runs, devices=devices, waiting=tuple(entries[number] for number in waiting))
    return QueueAnswer(runs=entries, open_runs=open_runs, attended=attended)


def test_a_run_reports_its_due_share_and_its_devices() -> None:
    """The line mentions only unusual priorities."""
    found = queue_positions(queue("one two", attended("one", 3), attended("two", 1, priority=HIGH)))
    assert [each.line for each in found] == [
        "runs now: due 20% of the cluster, has 3 of 4 devices",
        "runs now: due 80% of the cluster, priority high, has 1 of 4 devices",
    ]
    assert [each.reason for each in found] == ["", ""], "neither could use more"


def test_a_run_above_the_open_run_limit_reports_its_queue_position() -> None:
    """It has a queue position and no share. Started runs continue even if there are too many."""
    given = queue("one two three four", attended("two"), attended("one"), open_runs=2)
    found = queue_positions(given)
    assert [each.position for each in found] == [
        "runs now",
        "runs now",
        "1st in the queue",
        "2nd in the queue",
    ]
    assert found[3].line == "2nd in the queue"
    assert [each.reason for each in found[2:]] == [
        "2 runs are open before it; 2 may be open at once",
        "3 runs are open before it; 2 may be open at once",
    ]
    assert found[2].due is None
    later = queue_positions(queue("one two three", attended("two"), attended("one"), open_runs=1))
    assert [each.is_attended for each in later] == [True, True, False]


def test_a_run_waiting_for_its_own_experiment_has_no_queue_position() -> None:
    """It occupies no position in the queue or among the open runs."""
    given = queue("one blocked two three", attended("one"), attended("two"), open_runs=2, waiting=[1])
    one, blocked, two, three = queue_positions(given)
    assert [each.position for each in (one, two)] == ["runs now"] * 2
    assert (blocked.position, blocked.place, blocked.reason) == ("waits for a run of its experiment", 0, "")
    assert three.position == "1st in the queue"
    assert three.reason == "2 runs are open before it; 2 may be open at once"
    roomy = queue_positions(given.model_copy(update={"open_runs": 3}))
    assert roomy[1] == blocked
    assert roomy[3].position == "begins in a moment"


def test_a_run_waiting_for_devices_reports_its_turn() -> None:
    """The order is by turn. A run with its full share, or with no further use for devices, does not wait."""
    given = queue(
        "one two three four",
        attended("three", could_use_more=True),
        attended("two", 0, could_use_more=True),
        attended("one", 6, could_use_more=True),
        attended("four", 2),
        devices=8,
    )
    reasons = {each.experiment: each.reason for each in queue_positions(given)}
    assert reasons["three"] == "other runs have the devices, and it is next in turn"
    assert reasons["two"] == "other runs have the devices, and 1 other is before it in turn"
    assert (reasons["one"], reasons["four"]) == ("", "")


def test_a_run_does_not_wait_if_no_other_run_has_devices() -> None:
    """No other run has a device, so no run blocks it."""
    (alone,) = queue_positions(queue("one", attended("one", could_use_more=True)))
    assert alone.reason == ""
    answer = queue("one", attended("two", 4), attended("one", could_use_more=True))
    assert [each.reason for each in queue_positions(answer)] == [""], "the other one has ended since"
    both = queue("one two", attended("one", could_use_more=True), attended("two", could_use_more=True))
    assert [each.reason for each in queue_positions(both)] == ["", ""]


@given(st.integers(0, 4), st.integers(1, 3))
def test_the_log_decides_how_many_devices_a_run_has(sub_epochs: int, devices: int) -> None:
    """The log is newer than the controller's last report."""
    story = Story(workers=2, devices=devices)
    story.fit(models=4, partitions=2)
    for number in range(min(sub_epochs, 2 * devices)):
        story.assign(sub_epoch(1, number % 2, f"m{number:02}"), number % 2, (number // 2,))
    there = min(sub_epochs, 2 * devices)
    answer = queue("one two", attended("two", 2), attended("one", could_use_more=True), devices=2 * devices)
    found = queue_positions(answer)[0].as_logged(story.state)
    assert found.has == f"{there} of {2 * devices} devices"
    assert found.position == ("runs now" if there else "waits for a device")
    assert ("other runs have the devices" in found.reason) == (not there)


@given(
    st.lists(st.integers(0, 9), unique=True, max_size=10),
    st.lists(st.integers(0, 9), unique=True, max_size=10),
    st.sets(st.integers(0, 9)),
    st.integers(1, 5),
)
def test_each_open_run_has_a_queue_position(
    queued: list[int], begun: list[int], waiting: set[int], most: int
) -> None:
    """Positions of waiting runs count from 1, and the limit holds. Runs that wait for their own experiment do
    not affect others."""
    names = [f"e{number}" for number in queued]
    runs = [attended(f"e{number}") for number in begun]
    blocked = [at for at, number in enumerate(queued) if number in waiting - set(begun)]
    given = queue(" ".join(names), *runs, open_runs=most, waiting=blocked)
    found = queue_positions(given)
    assert [each.experiment for each in found] == names
    assert [each.has_to_wait for each in found] == [at in blocked for at in range(len(names))]
    found = [each for each in found if not each.has_to_wait]
    others = " ".join(each.experiment for each in found)
    assert found == queue_positions(queue(others, *runs, open_runs=most))
    places = [each.place for each in found if each.place]
    assert places == list(range(1, len(places) + 1))
    there = Counter(each.is_attended for each in found)
    assert len(found) - len(places) <= max(most, there[True])
    assert all(bool(each.reason) for each in found if each.place)
    shares = [each.due for each in found if each.due is not None]
    assert not shares or sum(shares) == pytest.approx(1)
