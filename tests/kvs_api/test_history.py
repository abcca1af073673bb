"""The stored history counts events once, limits its tables, and skips unreadable rows."""

from __future__ import annotations

import math
import statistics

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.stored.history import FADES, SubEpochHistory, SubEpochKey
from cerebro.contract.trials import DeviceKind
from cerebro.runtime.kvs.client import KvsClient
from kvs_api.store import history as store_part
from kvs_api.store import keys
from tests.kvs_api.bench import Bench
from tests.kvs_api.history_contract import GPU, ROW, history_request, key
from tests.kvs_api.real import Service


@pytest.fixture
def bench(kvs: KvsClient) -> Bench:
    return Bench(store=kvs, pass_a_moment=lambda: None)


def test_a_table_keeps_the_most_recently_changed_rows(
    kvs: KvsClient, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_part, "MAX_ROWS", 3)
    for after, numbers in enumerate([(1, 2, 3), (1,), (4,), (5,)]):
        kvs.count_history(history_request(bench.term, after, after + 1, *numbers))
    assert set(kvs.history().sub_epochs) == {key(1), key(4), key(5)}


def test_an_unreadable_row_is_omitted_and_counted(kvs: KvsClient, bench: Bench, service: Service) -> None:
    """The next event replaces the damaged row."""
    kvs.count_history(history_request(bench.term, 0, 5, 1))
    with redis.Redis.from_url(service.database.url) as database:
        for name, content in (
            (key(2), b'{"sub-epochs": \xff'), (key(3), '{"schema_version": 99, "what": 1}'), (key(4), "null"),
            (key(5), '{"sub_epochs": "NaN", "log_rate": 0}'),
            ("no key", ROW.model_dump_json()), (b"\xff", ROW.model_dump_json()),
        ):  # fmt: skip
            database.hset(keys.SUB_EPOCHS, name, content)
        found = kvs.history()
        assert (found.sub_epochs, found.unreadable) == ({key(1): ROW}, 6)
        kvs.count_history(history_request(bench.term, 5, 6, 1, 2, 3, 4, 5))
        found = kvs.history()
        assert (set(found.sub_epochs), found.unreadable) == ({key(number) for number in range(1, 6)}, 2)


def test_keys_reveal_none_of_their_inputs() -> None:
    """Keys are hashes that do not depend on the order of hyperparameters."""

    def key_of(
        code: str = "c0de", dataset: str = "mnist-1", device: DeviceKind | None = GPU, **values: float
    ) -> SubEpochKey:
        return SubEpochKey.of(code=code, dataset=dataset, hyperparams=values, device=device)

    found = key_of(width=731, lr=0.0173)
    assert found == key_of(lr=0.0173, width=731) == SubEpochKey.parse(str(found))
    for word in ("731", "0173", "width", "mnist", "T4", "c0de"):
        assert word not in str(found).split("-")
    others = (key_of("x", width=1), key_of(dataset="x", width=1), key_of(), key_of(device=None, width=1))
    assert len({key_of(width=1), found, *others}) == 6


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=FADES), st.integers(0, 99))
def test_merged_rows_equal_the_statistics_of_all_sub_epochs(rates: list[float], cut: int) -> None:
    """Mean and variance do not depend on the split into requests, before any decay."""
    rows = [
        SubEpochHistory(sub_epochs=1, log_rate=rate, fixed_s=abs(rate), peak_bytes=int(abs(rate)))
        for rate in rates
    ]

    def put_together(some: list[SubEpochHistory]) -> SubEpochHistory:
        found = some[0]
        for row in some[1:]:
            found = found.with_more(row)
        return found

    cut = cut % len(rows)
    parts = [part for part in (rows[:cut], rows[cut:]) if part]
    found = put_together([put_together(part) for part in parts])
    assert found.sub_epochs == len(rates)
    assert math.isclose(found.log_rate, statistics.fmean(rates), abs_tol=1e-9)
    assert math.isclose(found.variance, statistics.pvariance(rates), abs_tol=1e-6)
    assert math.isclose(found.fixed_s, statistics.fmean(map(abs, rates)), abs_tol=1e-9)
    assert found.peak_bytes == int(max(map(abs, rates)))
