"""The controller's view of a worker, from the store, a cluster manager and silence."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro.contract.records import Device, PodRef, WorkerRecord, WorkerStatus
from cerebro.contract.tasks.failures import FailureKind
from controller.scaling.cluster_snapshot import (
    SILENT,
    STARTED_ANEW,
    Absence,
    Liveness,
    are_coming,
    trained_on,
    worker_view,
)
from controller.scaling.orchestrator import Exit, Fleet, Pod

LEASE_S = 10.0
EVICTED = Exit(reason="evicted: the node is out of disk", kind=FailureKind.PREEMPTED)
DRAINED = Exit(reason="its node is being drained", kind=FailureKind.PREEMPTED)
KILLED = Exit(reason="killed for memory: 4 GiB are too little", kind=FailureKind.OUT_OF_MEMORY)


def status(*, pod: PodRef | None = None, **fields: Any) -> WorkerStatus:
    """A worker that has just reported."""
    record = WorkerRecord(
        worker="w-0-etl",
        incarnation="a",
        weight=1.0,
        cores=1,
        kinds=("etl",),
        pod=pod,
        volume="w-0",
        **fields,
    )
    return WorkerStatus(record=record, silent_s=0.0)


def fleet(**fields: Any) -> Fleet:
    """One pod, ``w-0``, with the registered worker by default."""
    return Fleet(pods={"w-0": Pod(**({"uid": "1"} | fields))}, size=1)


REF = PodRef(name="w-0", uid="1", container="etl")
GONE, LEAVING = Liveness.GONE, Liveness.LEAVING
NO_POD = Exit(reason="its pod w-0 is no longer there", kind=FailureKind.PREEMPTED)
OTHER_POD = Exit(reason="its pod w-0 was replaced by a new one", kind=FailureKind.PREEMPTED)


@pytest.mark.parametrize(
    ("given", "silent_s", "expected"),
    [
        pytest.param(None, 0.0, None, id="no manager, heard of"),
        pytest.param(None, 11.0, (Liveness.SILENT, SILENT), id="no manager, silent"),
        pytest.param(fleet(), 0.0, None, id="its pod is there"),
        pytest.param(fleet(), 11.0, (Liveness.SILENT, SILENT), id="its pod is there, it is silent"),
        pytest.param(Fleet(pods={}, size=1), 0.0, (GONE, NO_POD), id="no such pod"),
        pytest.param(fleet(uid="2"), 0.0, (GONE, OTHER_POD), id="another pod"),
        pytest.param(fleet(dead=EVICTED), 0.0, (GONE, EVICTED), id="its pod is dead"),
        pytest.param(fleet(dead=KILLED, leaving=DRAINED), 0.0, (GONE, KILLED), id="dead while leaving"),
        pytest.param(fleet(leaving=DRAINED), 0.0, (LEAVING, DRAINED), id="its pod is leaving"),
        pytest.param(fleet(leaving=DRAINED), 11.0, (Liveness.SILENT, DRAINED), id="leaving, and silent"),
        pytest.param(fleet(dead=EVICTED), 11.0, (GONE, EVICTED), id="dead, and silent"),
        pytest.param(fleet(ended={"etl": KILLED}), 0.0, (GONE, KILLED), id="its container has ended"),
        pytest.param(fleet(ended={"etl": KILLED}), 60.0, (GONE, KILLED), id="its container is in back-off"),
        pytest.param(fleet(ended={"worker": KILLED}), 0.0, None, id="the other container has ended"),
        pytest.param(
            fleet(ended={"etl": KILLED}, leaving=DRAINED), 0.0, (GONE, DRAINED), id="ended as its pod leaves"
        ),
    ],
)
def test_the_absence_of_a_worker_follows_the_most_certain_source(
    given: Fleet | None, silent_s: float, expected: tuple[Liveness, Exit] | None
) -> None:
    """Certain facts take precedence over announcements, and announcements over silence."""
    found = worker_view(status(pod=REF), given, silent_s=silent_s, lease_s=LEASE_S)
    assert found.absence == (Absence(how=expected[0], exit=expected[1]) if expected else None)


SIGTERM = Exit(reason="SIGTERM: w-0-etl was asked to end", kind=FailureKind.PREEMPTED)


@pytest.mark.parametrize(
    ("given", "silent_s", "expected"),
    [
        pytest.param(None, 0.0, (LEAVING, SIGTERM), id="no manager"),
        pytest.param(fleet(), 0.0, (LEAVING, SIGTERM), id="its pod is there"),
        pytest.param(fleet(leaving=DRAINED), 0.0, (LEAVING, DRAINED), id="its pod is leaving, too"),
        pytest.param(fleet(uid="2"), 0.0, (GONE, OTHER_POD), id="another pod"),
        pytest.param(None, 11.0, (Liveness.SILENT, SIGTERM), id="silent by now"),
    ],
)
def test_an_announced_shutdown_makes_a_worker_absent(
    given: Fleet | None, silent_s: float, expected: tuple[Liveness, Exit]
) -> None:
    """The announcement counts, but a cluster manager may know more."""
    worker_status = status(pod=REF).model_copy(update={"leaving": SIGTERM.reason})
    found = worker_view(worker_status, given, silent_s=silent_s, lease_s=LEASE_S)
    assert found.absence == Absence(how=expected[0], exit=expected[1])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(None, STARTED_ANEW, id="no manager"),
        pytest.param(fleet(exits={"etl": KILLED}), KILLED, id="the container ended before"),
        pytest.param(fleet(exits={"worker": KILLED}), OTHER_POD, id="only the other container did"),
        pytest.param(fleet(), OTHER_POD, id="a new pod"),
    ],
)
def test_the_exit_of_the_previous_process_has_a_reason(given: Fleet | None, expected: Exit) -> None:
    """The reason is the container's last exit, or the replacement of the pod."""
    assert worker_view(status(pod=REF), given, silent_s=0.0, lease_s=LEASE_S).previous_exit == expected


def test_a_pod_that_cannot_be_created_is_not_starting() -> None:
    """No run waits for it, and its worker is lost for that reason."""
    without = Fleet(pods={}, size=1, not_created={"w-0": "Kubernetes does not create it: exceeded quota"})
    assert not are_coming([status(pod=REF)], without)
    absence = worker_view(status(pod=REF), without, silent_s=0.0, lease_s=LEASE_S).absence
    assert absence is not None
    assert "exceeded quota" in absence.exit.reason


@pytest.mark.parametrize(
    ("pods", "size", "expected"),
    [
        pytest.param({"w-0": Pod(uid="1")}, 1, False, id="all are there"),
        pytest.param({"w-0": Pod(uid="1")}, 2, True, id="one is to be created"),
        pytest.param({"w-0": Pod(uid="1"), "w-1": Pod(uid="2")}, 2, True, id="one starts"),
        pytest.param({"w-0": Pod(uid="1"), "w-1": Pod(uid="2", problem="x")}, 2, False, id="one cannot"),
        pytest.param({"w-0": Pod(uid="2")}, 1, True, id="one is a successor"),
        pytest.param({"w-1": Pod(uid="1")}, 1, True, id="who is there is not wanted"),
        pytest.param({"w-0": Pod(uid="1"), "w-1": Pod(uid="2")}, 1, False, id="who starts is not wanted"),
    ],
)
def test_a_wanted_pod_without_worker_counts_as_starting(
    pods: dict[str, Pod], size: int, expected: bool
) -> None:
    """A wanted pod without a registered worker, unless its obstacle is known."""
    assert are_coming([status(pod=REF), status()], Fleet(pods=pods, size=size)) is expected


@pytest.mark.parametrize(
    ("devices", "gpus", "weight"), [(2, 4, 2.0), (3, 0, 3.0), (1, 4, 1.0), (0, 4, 4.0), (0, 0, 1.0)]
)
def test_the_share_of_the_data_follows_the_training_devices(devices: int, gpus: int, weight: float) -> None:
    """An ETL worker gets rows in proportion to the devices of the training worker in its pod."""
    maker = status(pod=REF)
    trainer = status(pod=REF, devices=tuple(Device(kind="gpu", name="-", threads=1) for _ in range(devices)))
    trainer = trainer.model_copy(
        update={"record": trainer.record.model_copy(update={"worker": "w-0", "kinds": ("train",)})}
    )
    known = trained_on([maker, trainer])
    maker_view = worker_view(maker, fleet(gpus=gpus), silent_s=0.0, lease_s=LEASE_S, devices=known)
    assert maker_view.weight == weight
    view = worker_view(trainer, fleet(gpus=gpus), silent_s=0.0, lease_s=LEASE_S, devices=known)
    assert view.devices == max(1, devices)
    assert not devices or view.weight == 1.0, "a worker that trains counts its devices itself"
