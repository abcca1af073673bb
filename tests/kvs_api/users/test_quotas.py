"""Project quotas are checked in the same step as the append, with usage in the error."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import redis

from cerebro.contract.accounts.identity import Role
from cerebro.contract.accounts.quotas import Quota
from cerebro.contract.events import DeletionRequested, ModelsAdded, RunRequested
from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import FitRequest, NewModel
from cerebro.contract.search import Repeat, SearchRequest
from tests.kvs_api.bench import Bench, requested, worker
from tests.kvs_api.occupancy_contract import FUSED, group
from tests.kvs_api.real import Service
from tests.kvs_api.users.people import OPERATOR, SERVICES, Place


def limit(place: Place, name: str, **quota: float) -> None:
    """Set a quota as an admin."""
    assert place.ask(OPERATOR, f"PUT /v1/quotas/{name}", quota).status_code == 200


def fit(run: str, models: int) -> RunRequested:
    """Return a grid-search request."""
    grid: tuple[Hyperparameters, ...] = tuple({"lr": number} for number in range(models))
    fit_request = FitRequest(code="a" * 64, models=grid, epochs=1, metric="accuracy", mode="max")
    return RunRequested(run=run, request=fit_request)


def test_open_runs_are_counted_over_all_experiments_of_a_project(place: Place) -> None:
    """The response is 409 with usage and quota; other projects continue, and a repeated request is no new run."""
    ada = place.person("ada", Role.MEMBER, "vision")
    bob = place.person("bob", Role.MEMBER, "text")
    limit(place, "vision", open_runs=2)
    for name in ("one", "two", "three"):
        place.create(ada, name)
    assert place.append(ada, requested("etl-1"), "one").status_code == 200
    assert place.append(ada, requested("etl-1"), "two").status_code == 200
    answer = place.append(ada, requested("etl-1"), "three")
    assert answer.status_code == 409
    assert answer.json == {
        "error": "ConflictError",
        "message": "project 'vision' would be over its quota of open runs: 2 used, 2 allowed. Wait for one "
        "to end, or stop one, or ask an admin to raise it (`cerebro quota`)",
    }
    assert place.append(ada, requested("etl-1"), "one").status_code == 200
    place.create(bob, "four")
    assert place.append(bob, requested("etl-1"), "four").status_code == 200
    limit(place, "vision")
    assert place.append(ada, requested("etl-1"), "three").status_code == 200


def test_the_quota_of_models_includes_added_models(place: Place) -> None:
    """The quota applies per run."""
    ada = place.person("ada", Role.MEMBER, "vision")
    limit(place, "vision", models=5)
    place.create(ada)
    assert place.append(ada, fit("fit-1", 6)).status_code == 409
    assert place.append(ada, fit("fit-1", 4)).status_code == 200
    added = ModelsAdded(run="fit-1", models=(NewModel(hyperparams={"lr": 9}, epochs=1),))
    assert place.append(ada, added).status_code == 200
    answer = place.append(ada, added)
    assert (answer.status_code, "6 used, 5 allowed" in answer.text) == (409, True)


class ByRole:
    """A store client that uses the caller's token for each call."""

    def __init__(self, service: Service, person: str) -> None:
        self._clients = {
            "person": service.client(person),
            "worker": service.client(SERVICES[Role.WORKER]),
            "controller": service.client(SERVICES[Role.CONTROLLER]),
        }

    def __getattr__(self, name: str) -> Any:
        working = {"register": "worker", "report": "worker", "inbox": "worker"}
        asking = {"create_experiment": "person", "append": "person"}
        return getattr(self._clients[(working | asking).get(name, "controller")], name)

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()


def test_hours_are_counted_as_attempts_end(service: Service, place: Place) -> None:
    """The store's clock counts.

    Used-up hours block new runs only. Service tokens permit all calls of controller and worker.
    """
    ada = place.person("ada", Role.MEMBER, "vision")
    with Service(service.database, has_users=True, service_tokens=SERVICES, token=OPERATOR) as users_service:
        store = ByRole(users_service, ada)
        bench = Bench(store=store, pass_a_moment=lambda: None)
        store.append("one", requested("etl-1"))
        bench.run_until("start")
        threading.Event().wait(0.02)
        bench.step("commit")
        store.close()
    (used,) = place.store.usages()
    assert (used.name, used.is_project, used.open_runs) == ("vision", True, 1)
    with redis.Redis.from_url(service.database.url) as client:
        (spent,) = client.hgetall("cerebro:2:hours:project:vision").values()
        assert 20 <= float(spent) < 20_000
        client.hincrbyfloat("cerebro:2:hours:project:vision", f"{int(time.time() // 86400) - 29}", 7.2e6)
        client.hincrbyfloat("cerebro:2:hours:project:vision", f"{int(time.time() // 86400) - 31}", 7.2e9)
    assert place.store.usages()[0].worker_hours == pytest.approx(2, abs=0.01)
    limit(place, "vision", worker_hours=2)
    answer = place.append(ada, requested("etl-2"))
    assert (answer.status_code, "quota of worker-hours in 30 days: 2 used, 2 allowed" in answer.text) == (
        409,
        True,
    )


def test_the_hours_of_a_fused_group_are_counted_once(service: Service, place: Place) -> None:
    """Two of three tasks start; one commits and the other is revoked after an hour. The third is revoked before."""
    ada = place.person("ada", Role.MEMBER, "vision")
    with Service(service.database, has_users=True, service_tokens=SERVICES, token=OPERATOR) as users_service:
        store = ByRole(users_service, ada)
        bench = Bench(store=store, pass_a_moment=lambda: None)
        store.register(worker("a"))
        assert bench.decide(group()) == ["done"]
        assert bench.revoke(task=FUSED[0]) == "done"
        with redis.Redis.from_url(service.database.url) as client:
            for task in FUSED[1:]:
                assert bench.step("start", task=task) == "done"
                assert client.hincrby(f"cerebro:2:exp:one:task:{task}", "began", -3_600_000)
        assert bench.step("commit", task=FUSED[1]) == "done"
        assert bench.revoke(task=FUSED[2], force=True) == "done"
        store.close()
    assert place.store.usages()[0].worker_hours == pytest.approx(1.0, abs=0.1)


def test_quotas_are_audited(place: Place) -> None:
    """The audit list names the admin."""
    limit(place, "vision", open_runs=2)
    assert ("admin", "set the quota of vision: open_runs 2") in place.audited()
    assert place.ask(SERVICES[Role.DISPATCHER], "GET /v1/quotas").status_code == 200
    (usage,) = place.store.usages()
    assert usage.quota == Quota(open_runs=2)


def test_bytes_are_counted_by_project_and_block_new_runs(place: Place) -> None:
    """The controller measures all experiments of a project; the response is 409 with usage and quota.

    A new measurement or deletion replaces old values, and other projects do not count.
    """
    ada, bob = place.person("ada", Role.MEMBER, "vision"), place.person("bob", Role.MEMBER, "text")
    for name in ("one", "two"):
        place.create(ada, name)
    place.create(bob, "three")
    controller = SERVICES[Role.CONTROLLER]

    def measure(**found: int) -> Any:
        return place.ask(
            controller,
            "POST /v1/bytes",
            {"measured": [{"name": name, "bytes": number} for name, number in found.items()]},
        ).json

    limit(place, "vision", bytes=10**13)
    assert measure(one=6 * 10**12, two=3 * 10**12 + 1, three=5, unknown=7) == {
        "is_counted": True,
        "known": ["one", "two", "three"],
    }
    assert place.append(ada, requested("etl-1"), "one").status_code == 200
    measure(two=4 * 10**12 + 1)
    answer = place.append(ada, requested("etl-1"), "two")
    assert (answer.status_code, answer.json["message"] if answer.json else "") == (
        409,
        "project 'vision' would be over its quota of bytes of checkpoints and predictions: 10,000,000,000,001 used, "
        "10,000,000,000,000 allowed. Delete unused experiments, or ask an admin to raise it (`cerebro "
        "quota`)",
    )
    used = {usage.name: usage.bytes for usage in place.store.usages()}
    assert used == {"vision": 10**13 + 1, "text": 5}
    measure(one=0, three=0)
    assert {usage.name: usage.bytes for usage in place.store.usages()} == {"vision": 4 * 10**12 + 1}
    assert place.append(ada, requested("etl-1"), "two").status_code == 200


def test_an_experiment_that_is_deleted_has_no_bytes(service: Service, place: Place) -> None:
    """A late measurement does not count either."""
    ada = place.person("ada", Role.MEMBER, "vision")
    place.create(ada)
    with Service(service.database, has_users=True, service_tokens=SERVICES, token=OPERATOR) as users_service:
        controller = users_service.client(SERVICES[Role.CONTROLLER])
        assert controller.note_bytes({"one": 9}) == ("one",)
        assert place.append(ada, DeletionRequested()).status_code == 200
        leader = controller.lead("test", 5.0)
        controller.delete_experiment("one", leader.term)
        assert controller.note_bytes({"one": 9}) == ()
        controller.close()
    assert place.store.usages() == ()


def test_without_users_no_bytes_are_counted(service: Service) -> None:
    """The controller gets None."""
    assert service.client().note_bytes({"one": 9}) is None


def test_usage_is_listed_without_a_scan_of_the_store(service: Service, place: Place) -> None:
    """A set lists the accounts, and drops those with only expired hours."""
    with redis.Redis.from_url(service.database.url) as client:
        today = str(int(time.time() // 86400))
        for account in ("project:vision", "owner:ada"):
            client.hset(f"cerebro:2:hours:{account}", today, 3.6e6)
            client.sadd("cerebro:2:accounts", account)
        assert {(usage.name, usage.worker_hours) for usage in place.store.usages()} == {
            ("ada", 1.0),
            ("vision", 1.0),
        }
        client.delete("cerebro:2:hours:owner:ada")
        assert [usage.name for usage in place.store.usages()] == ["vision"]
        assert client.smembers("cerebro:2:accounts") == {b"project:vision"}


def test_repeats_count_as_models_of_a_run(place: Place) -> None:
    """One model and its repeats."""
    ada = place.person("ada", Role.MEMBER, "vision")
    place.create(ada)
    limit(place, "vision", models=5)
    for seeds, status in ((5, 409), (4, 200)):
        fit_request = FitRequest(
            code="a" * 64,
            models=({"batch_size": 1},),
            epochs=1,
            metric="accuracy",
            mode="max",
            repeats=Repeat(top=1, seeds=seeds),
        )
        answer = place.append(ada, RunRequested(run="fit-1", request=fit_request))
        assert answer.status_code == status, answer.text


def test_a_search_without_a_limit_is_refused_under_a_quota_of_models(place: Place) -> None:
    """A search with `samples` counts those."""
    ada = place.person("ada", Role.MEMBER, "vision")
    place.create(ada)
    limit(place, "vision", models=5)
    space = {"lr": {"kind": "uniform", "low": 0.0, "high": 1.0}}
    for samples, status in ((None, 409), (6, 409), (5, 200)):
        search = SearchRequest.model_validate(
            {"procedure": {"kind": "random"}, "space": space, "samples": samples}
        )
        fit_request = FitRequest(
            code="a" * 64, models=(), epochs=1, metric="accuracy", mode="max", search=search
        )
        answer = place.append(ada, RunRequested(run="fit-1", request=fit_request))
        assert answer.status_code == status, answer.text
        assert samples or "samples=" in answer.text
