"""A unit that goes on from savepoints ends in the bits of one that never stopped, and trains every row once."""

from __future__ import annotations

import copy
import errno
import itertools
import math
import os
import random
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cerebro.data.loader import PartitionLoader
from cerebro.data.mapped import MappedRows
from cerebro.errors import PreemptedError, SpecError
from cerebro.spec import Checkpoint, DataLoader, SubEpochSpec
from cerebro.worker.training import checkpoint as checkpoints
from cerebro.worker.training.checkpoint import State
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.savepoints import Savepoints, Timer
from cerebro.worker.training.seeds import unit_seed
from cerebro.worker.training.unit import Trainee, create, restore, train_unit
from tests.data.rows import write_partition
from tests.worker.training.test_checkpoint import assert_equal

CPU = torch.device("cpu")
ROWS, SIZE = 46, 4
BATCHES = 12
"""The last one has two rows."""


@pytest.fixture(autouse=True, scope="module")
def _light() -> Iterator[None]:
    """Files need not outlive a power cut here, and tests write hundreds; models are too small for two threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> MappedRows:
    """A partition of 46 rows."""
    folder = tmp_path_factory.mktemp("partition")
    write_partition(folder, [20, 26])
    return MappedRows.open((folder,))


class Spec(SubEpochSpec):
    """Dropout, momentum, a schedule, draws from all generators, sums in `progress`; gradients of two batches are added
    up. Nothing of it lives in variables."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        layers = torch.nn.Linear(3, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.4), torch.nn.Linear(6, 1)
        return [torch.nn.Sequential(*layers)]

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        (network,) = models
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
        checkpoint.track(optimizer=optimizer, scheduler=scheduler)
        checkpoint["units"] = checkpoint.get("units", 0) + 1
        torch.rand(3), random.random(), np.random.rand()
        total = dataloader.progress({"loss": 0.0, "ids": []})
        for inputs, outputs in dataloader:
            step(network, inputs / ROWS, outputs / ROWS, total)
            total["ids"] += dataloader.ids
            if dataloader.step % 2:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if dataloader.step == 7:
                network[0].bias.requires_grad_(False)
        checkpoint["ids"] = total["ids"]
        return {"loss": total["loss"], "rate": scheduler.get_last_lr()[0], "units": checkpoint["units"]}


def step(
    network: torch.nn.Module, inputs: torch.Tensor, outputs: torch.Tensor, total: dict[str, Any]
) -> None:
    """Gradients of a batch; all generators are drawn from."""
    noise = random.random() + float(np.random.normal()) + torch.rand(1)
    loss = torch.nn.functional.mse_loss(network(inputs), outputs.float()[:, None] + noise)
    torch.autograd.backward(loss)
    total["loss"] += loss.item()


@dataclass(kw_only=True)
class Unit:
    """A unit, attempt after attempt."""

    rows: MappedRows
    folder: Path
    spec: SubEpochSpec = field(default_factory=Spec)
    start: State | None = None
    newest: str = ""
    """File of the newest savepoint."""
    taken: list[int] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)

    def attempt(self, saves: Collection[int] = (), stop: int | None = None) -> State | None:
        """Go on from the newest savepoint; `None` if the attempt is left before batch `stop`, else the state after it.

        Args:
            saves: batches before which a savepoint is to be taken.
        """
        trainee, resumed = self.trainee()
        loader = PartitionLoader(
            self.rows,
            batch_size=SIZE,
            seed=unit_seed(0, "m00", 1, 0),
            first=resumed["batch"] if resumed else 0,
        )
        savepoints = Savepoints(trainee, write=self.write, resumed=resumed)

        def on_batch(done: int, batch: int, values: Mapping[str, float]) -> None:
            if done < ROWS and batch in saves and savepoints.take(batch, done):
                self.taken.append(batch)
            if batch == stop:
                raise PreemptedError

        feed = InstrumentedLoader(loader, on_batch, savepoints=savepoints)
        with suppress(PreemptedError):
            self.metrics = train_unit(self.spec, trainee, feed, {}, seed=0, model="m00", epoch=1, partition=0)
            return trainee.state()
        return None

    def trainee(self) -> tuple[Trainee, Mapping[str, Any] | None]:
        trainee = create(self.spec, {}, seed=0, model="m00", device=CPU)
        state = self.loaded() if self.newest else copy.deepcopy(self.start)
        if state is not None:
            restore(trainee, state)
        return trainee, (state or {}).get("savepoint")

    def loaded(self) -> State:
        state = torch.load(self.folder / self.newest, weights_only=True)
        assert isinstance(state, dict)
        return state

    def write(self, state: State, batch: int, rows: int) -> None:
        assert rows == batch * SIZE
        self.newest = checkpoints.save(self.folder, f"s{batch}-{len(self.taken)}.pt", state).name


@contextmanager
def unit(rows: MappedRows, spec: SubEpochSpec | None = None, start: State | None = None) -> Iterator[Unit]:
    with tempfile.TemporaryDirectory() as folder:
        yield Unit(rows=rows, folder=Path(folder), spec=spec or Spec(), start=start)


@pytest.fixture(scope="module")
def start(rows: MappedRows) -> State:
    """The model after a unit: with momentum, and a schedule on its way."""
    with unit(rows) as before:
        state = before.attempt()
    assert state is not None
    return state


@pytest.fixture(scope="module")
def whole(rows: MappedRows, start: State) -> tuple[State, dict[str, float]]:
    """What the unit leaves that never stops, and its metrics."""
    with unit(rows, start=start) as one:
        state = one.attempt()
    assert state is not None
    return state, one.metrics


attempts = st.lists(
    st.tuples(st.sets(st.integers(1, BATCHES - 1), max_size=4), st.integers(0, BATCHES - 1)), max_size=5
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(story=attempts, last=st.sets(st.integers(1, BATCHES - 1), max_size=3))
def test_any_savepoints_and_kills_leave_the_bits_of_a_unit_that_never_stopped(
    rows: MappedRows,
    start: State,
    whole: tuple[State, dict[str, float]],
    story: list[tuple[set[int], int]],
    last: set[int],
) -> None:
    """Weights, momentum, schedule, sums, what user code counts; and the rows of the unit are trained once."""
    with unit(rows, start=start) as one:
        for saves, stop in story:
            one.attempt(saves, stop)
        state = one.attempt(last)
    assert state is not None
    assert_equal(state, whole[0])
    assert one.metrics == whole[1]
    assert sorted(state["checkpoint"]["ids"]) == list(range(ROWS))


def test_a_savepoint_at_every_batch_is_taken_and_gone_on_from(
    rows: MappedRows, start: State, whole: tuple[State, dict[str, float]]
) -> None:
    """The check above is none of nothing: eleven attempts of one batch each, and the last one."""
    with unit(rows, start=start) as one:
        for batch in range(1, BATCHES):
            assert one.attempt({batch}, batch) is None
        state = one.attempt()
    assert one.taken == list(range(1, BATCHES))
    assert_equal(state, whole[0])
    assert one.metrics == whole[1]


class Early(Spec):
    """Leaves its loop early, says what a test has it say before it, and does that after each batch, too."""

    def __init__(self, say: Callable[[DataLoader, Checkpoint], object]) -> None:
        self.say, self.late = say, False

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        if not self.late:
            self.say(dataloader, checkpoint)
        for _ in dataloader:
            if self.late:
                self.say(dataloader, checkpoint)
            break
        return {}


def _both(loader: DataLoader, checkpoint: Checkpoint) -> None:
    loader.savepoint()
    loader.savepoint()


SAYINGS: list[tuple[Callable[[DataLoader, Checkpoint], object], str]] = [
    (
        lambda loader, _: loader.savepoint(every=0),
        r"savepoint\(every=0\): expected a whole number of batches from 1",
    ),
    (lambda loader, _: loader.savepoint(every=-1), "every=-1"),
    (lambda loader, _: loader.savepoint(every=True), "every=True"),
    (lambda loader, _: loader.savepoint(every=2.0), "every=2.0"),  # type: ignore[arg-type]
    (lambda loader, _: loader.savepoint({}), "got a dict, expected a function or None"),  # type: ignore[arg-type]
    (_both, "was called before: call it once in a unit"),
    (
        lambda loader, _: [loader.progress({}), loader.progress({})],
        "was called before: keep all values in one dict",
    ),
    (lambda loader, _: loader.progress([("a", 1)]), "got a list, expected a dict"),  # type: ignore[arg-type]
    (
        lambda loader, _: loader.progress({"a": [1, {2}]}),
        r"progress\(\)\['a'\]\[1\] holds a builtins.set, which cannot",
    ),
]


@pytest.mark.parametrize(("say", "message"), SAYINGS)
def test_what_makes_no_sense_is_an_error_at_the_call(
    rows: MappedRows, say: Callable[[DataLoader, Checkpoint], object], message: str
) -> None:
    """It names what was expected."""
    with unit(rows, Early(say)) as one, pytest.raises(SpecError, match=message):
        one.attempt()


@pytest.mark.parametrize(
    ("say", "what"),
    [
        (lambda loader, _: loader.savepoint(), r"dataloader.savepoint\(\)"),
        (lambda loader, _: loader.progress({}), r"dataloader.progress\(\)"),
        (lambda _, checkpoint: checkpoint.track(x=torch.nn.Linear(1, 1)), r"checkpoint.track\(\)"),
    ],
    ids=["savepoint", "progress", "track"],
)
def test_after_the_loop_began_it_is_too_late(
    rows: MappedRows, say: Callable[[DataLoader, Checkpoint], object], what: str
) -> None:
    """A unit that goes on would meet it at another batch."""
    spec = Early(say)
    spec.late = True
    with unit(rows, spec) as one, pytest.raises(SpecError, match=what + " was called after the first batch"):
        one.attempt()


# --- what makes a unit resumable ---------------------------------------------------------------------


class Loop(Spec):
    """Tracks its optimizer, and has a loop that a test gives."""

    def __init__(self, loop: Callable[[torch.nn.Module, DataLoader, Checkpoint], object]) -> None:
        self.loop = loop

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        self.loop(models[0], dataloader, checkpoint)
        return {}


def tracked(network: torch.nn.Module, checkpoint: Checkpoint) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.5)
    checkpoint.track(optimizer=optimizer)
    return optimizer


def learn(network: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> float:
    loss = network(batch[0] / ROWS).square().mean()
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()
    return float(loss.detach())


def template(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
    optimizer = tracked(network, checkpoint)
    for batch in dataloader:
        loss = learn(network, optimizer, batch)
        dataloader.report(loss=loss)


def summing(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
    optimizer, total = tracked(network, checkpoint), 0.0
    for batch in dataloader:
        total += learn(network, optimizer, batch)


def listing(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
    optimizer, losses = tracked(network, checkpoint), list[float]()
    for batch in dataloader:
        losses.append(learn(network, optimizer, batch))


def tensors(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
    optimizer, total = tracked(network, checkpoint), torch.zeros(1)
    for batch in dataloader:
        total += learn(network, optimizer, batch)


def counting(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
    optimizer = tracked(network, checkpoint)
    for index, batch in enumerate(dataloader):
        if index % 2:
            learn(network, optimizer, batch)


class Meter:
    """Adds up, as many people's code has it."""

    def __init__(self) -> None:
        self.sums = np.zeros(2)

    def add(self, value: float) -> None:
        self.sums[0] += value


def metering(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
    optimizer, meter = tracked(network, checkpoint), Meter()
    for batch in dataloader:
        meter.add(learn(network, optimizer, batch))


def untracked(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
    optimizer = tracked(network, checkpoint)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for batch in dataloader:
        learn(network, optimizer, batch)
        scheduler.step()


def iterating(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
    optimizer, others = tracked(network, checkpoint), iter(range(100))
    for batch in dataloader:
        batch[0].add_(next(others))
        learn(network, optimizer, batch)


def preparing(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
    torch.nn.init.zeros_(next(network.parameters()))
    template(network, dataloader, checkpoint)


def told(
    loop: Callable[[torch.nn.Module, DataLoader, Checkpoint], object],
) -> Callable[[torch.nn.Module, DataLoader, Checkpoint], object]:
    """The same, with the user's word that a unit may go on from a savepoint."""

    def saying(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
        dataloader.savepoint(every=2)
        loop(network, dataloader, checkpoint)

    return saying


def test_a_tracked_optimizer_is_enough_where_nothing_else_lives_from_batch_to_batch(rows: MappedRows) -> None:
    """The README's template: nothing more is to be said."""
    with unit(rows, Loop(template)) as one:
        assert one.attempt({5}, 5) is None
        one.attempt()
    assert one.taken == [5]


@pytest.mark.parametrize(
    ("loop", "why"),
    [
        (summing, "keeps something in its variable 'total'"),
        (listing, "keeps something in its variable 'losses'"),
        (tensors, "keeps something in its variable 'total'"),
        (counting, "counts batches in its variable 'index'"),
        (metering, "keeps something in its variable 'meter'"),
        (untracked, "keeps something in its variable 'scheduler'"),
        (iterating, "keeps something in its variable 'others'"),
        (preparing, "changes the weights before its loop"),
    ],
)
def test_what_a_savepoint_would_lose_keeps_a_unit_whole(
    rows: MappedRows,
    caplog: pytest.LogCaptureFixture,
    loop: Callable[[torch.nn.Module, DataLoader, Checkpoint], object],
    why: str,
) -> None:
    """It is done again from its beginning, unless user code says that it may go on. The log says so once."""
    with unit(rows, Loop(loop)) as one:
        one.attempt(set(range(BATCHES)))
        assert one.taken == []
        assert [why in record.getMessage() for record in caplog.records] == [True]
        one.spec = Loop(told(loop))
        one.attempt({3, 4, 7})
        assert one.taken == [4]


def test_without_a_word_of_user_code_a_unit_is_done_again_whole(
    rows: MappedRows, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is taken, and nothing is said of it."""

    def silent(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for batch in dataloader:
            learn(network, optimizer, batch)

    with unit(rows, Loop(silent)) as one:
        one.attempt(set(range(BATCHES)))
    assert one.taken == []
    assert caplog.records == []


def test_a_hook_may_put_the_state_into_the_checkpoint(rows: MappedRows) -> None:
    """As user code that keeps its optimizer itself has it: it is called before each savepoint, and draws nothing that
    a unit without savepoints would not draw."""

    def hooking(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
        if "optimizer" in checkpoint:
            optimizer.load_state_dict(checkpoint["optimizer"])

        def hook() -> None:
            torch.rand(5)
            checkpoint.update(optimizer=optimizer.state_dict())

        dataloader.savepoint(hook)
        for batch in dataloader:
            learn(network, optimizer, batch)
        checkpoint.update(optimizer=optimizer.state_dict())

    with unit(rows, Loop(hooking)) as never, unit(rows, Loop(hooking)) as often:
        expected = never.attempt()
        often.attempt({3, 5}, 6)
        often.attempt({9}, 10)
        assert_equal(often.attempt(), expected)
    assert often.taken == [3, 5, 9]


def test_a_second_pass_switches_savepoints_off(rows: MappedRows, caplog: pytest.LogCaptureFixture) -> None:
    """One of the first pass is still good: what follows it is done again."""

    def twice(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
        optimizer = tracked(network, checkpoint)
        for batch in itertools.chain(dataloader, dataloader):
            learn(network, optimizer, batch)

    with unit(rows, Loop(twice)) as never, unit(rows, Loop(twice)) as often:
        expected = never.attempt()
        often.attempt({4, BATCHES + 3}, BATCHES + 5)
        assert_equal(often.attempt({5}), expected)
    assert often.taken == [4, 5]
    assert len(caplog.records) == 3
    assert all("passes over its data a second time" in record.getMessage() for record in caplog.records)


# --- what goes wrong while one is taken --------------------------------------------------------------


def test_no_room_costs_a_savepoint_and_not_the_unit(
    rows: MappedRows, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says so; the next one may have room again."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with unit(rows, Loop(template)) as never, unit(rows, Loop(template)) as one:
        expected = never.attempt()
        write, left = one.write, iter([True, True, False])

        def sometimes(state: State, batch: int, rows: int) -> None:
            with monkeypatch.context() as patched:
                if next(left):
                    patched.setattr(os, "fsync", full)
                write(state, batch, rows)

        monkeypatch.setattr(one, "write", sometimes)
        assert_equal(one.attempt({2, 4, 6}), expected)
        assert one.taken == [6]
        assert [path.name for path in one.folder.iterdir()] == [one.newest]
    assert ["no space to write" in record.getMessage() for record in caplog.records] == [True]


def test_what_cannot_be_saved_costs_the_savepoint_alone(
    rows: MappedRows, caplog: pytest.LogCaptureFixture
) -> None:
    """The unit may mend it before its end."""

    def mending(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
        checkpoint["bad"] = {1}
        template(network, dataloader, checkpoint)
        checkpoint["bad"] = [1]

    with unit(rows, Loop(mending)) as one:
        assert one.attempt({2, 4}) is not None
    assert one.taken == []
    assert ["checkpoint['bad'] holds a builtins.set" in record.getMessage() for record in caplog.records] == [
        True
    ]


# --- when --------------------------------------------------------------------------------------------


def clocked(timer: Timer, *, unit_s: float, cost_s: float, batch_s: float = 0.5) -> list[float]:
    """When savepoints are taken in a unit of so many seconds."""
    timer.begin(0.0)
    now, taken, done = 0.0, list[float](), 0
    batches = round(unit_s / batch_s)
    while done < batches:
        now, done = now + batch_s, done + 1
        if timer.is_due(now, share=done / batches):
            taken.append(now)
            timer.tried(now, now + cost_s, is_taken=True)
            now += cost_s
    return taken


@given(unit_s=st.floats(1, 119), cost_s=st.floats(0, 30))
def test_a_unit_of_less_than_two_minutes_saves_nothing_by_the_clock(unit_s: float, cost_s: float) -> None:
    """It is done again as quickly."""
    assert clocked(Timer(), unit_s=unit_s, cost_s=cost_s) == []


@given(unit_s=st.floats(130, 20_000), cost_s=st.floats(0.01, 60))
def test_savepoints_cost_a_fiftieth_at_the_most(unit_s: float, cost_s: float) -> None:
    """Of what follows the first one, whose cost nobody knew; and none waits for more than a quarter of an hour but for
    that."""
    timer = Timer()
    taken = clocked(timer, unit_s=unit_s, cost_s=cost_s, batch_s=5.0)
    pauses = [after - before for before, after in itertools.pairwise(taken)]
    assert all(pause >= 50 * cost_s for pause in pauses)
    assert all(pause <= max(900, 50 * cost_s) + cost_s + 5.0 for pause in pauses)
    assert len(taken) >= 1


def test_the_interval_is_youngs() -> None:
    """sqrt(2 d M), between a minute and a quarter of an hour."""
    timer = Timer(between_losses_s=10_000.0)
    assert timer.interval_s() == 60
    timer.tried(0.0, 2.0, is_taken=True)
    assert timer.interval_s() == math.sqrt(2 * 2.0 * 10_000.0) == 200
    timer.tried(0.0, 100.0, is_taken=True)
    assert timer.interval_s() == 5_000
    assert Timer(5.0).interval_s() == 5
    assert Timer(0.0).interval_s() == math.inf


def test_one_that_could_not_be_taken_tells_nothing_of_the_cost() -> None:
    """The next is due an interval later all the same."""
    timer = Timer(between_losses_s=10_000.0)
    timer.tried(0.0, 2.0, is_taken=True)
    timer.tried(300.0, 300.1, is_taken=False)
    assert timer.interval_s() == 200
    assert not timer.is_due(450.0, share=0.5)
    assert timer.is_due(501.0, share=0.5)


def test_one_is_taken_at_the_end_where_there_is_time() -> None:
    """Two seconds, and twice what it takes."""
    timer = Timer()
    timer.tried(10.0, 13.0, is_taken=True)
    assert timer.fits(8.0)
    assert not timer.fits(7.9)
