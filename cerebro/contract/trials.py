"""Groups of similar models (`Inspection`), their parallel plans, and measurements (`TrialOutcome`). Types only.

`trial_runner` makes them in workers, because only workers open user code. The run's log records them, so every reader
folds the same facts. `controller.sources.trials` decides what to measure.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from cerebro.contract.base import Contract, LateContract, Sha256
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.records import MAX_DEVICES, WorkerRecord
from cerebro.contract.texts import cleaned

GroupId = Annotated[str, StringConstraints(pattern=r"^g[0-9]{2,6}$")]

ParallelPlanId = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_.@-]{0,79}$")]
"""Id of a parallel plan on one kind of devices, within a group: ``single``, ``fsdp-2``, ``fsdp.1-4@1`` (its
second variant, on the second kind of devices)."""

MAX_REASON = 1_000
_HOST_STEP = 1 << 30

Reason = Annotated[
    str, BeforeValidator(lambda value: cleaned(value, MAX_REASON) if isinstance(value, str) else value)
]


Cause = Literal["", "device_memory", "host_memory", "gradient", "not_applicable", "failure"]


class DeviceKind(Contract):
    """Devices that are alike: a measurement on one holds for all.

    Attributes:
        kind, name, memory_bytes: as in `Device`.
        host_bytes: memory of the worker with these devices; `None` if unknown.
    """

    kind: Literal["gpu", "cpu"]
    name: str
    memory_bytes: int | None = Field(default=None, ge=0)
    host_bytes: int | None = Field(default=None, ge=0)

    @classmethod
    def of(cls, record: WorkerRecord) -> DeviceKind | None:
        """Return the kind of a worker's devices; `None` if it has no devices or they differ."""
        if len({(device.kind, device.name) for device in record.devices}) != 1:
            return None
        first = record.devices[0]
        memory = [device.memory_bytes for device in record.devices if device.memory_bytes is not None]
        host = record.memory_bytes
        return cls(
            kind=first.kind,
            name=first.name,
            memory_bytes=min(memory, default=None),
            # Machines of one type differ by what their kernels keep for themselves.
            host_bytes=None if host is None else host - host % (_HOST_STEP if host >= _HOST_STEP else 1),
        )


class AvailableDevices(Contract):
    """Devices of one kind, and the maximum per worker."""

    device: DeviceKind
    max_devices: int = Field(ge=1, le=MAX_DEVICES)


class KnownParallelPlan(Contract):
    """A parallel plan for a group of models on one kind of devices, from `inspect`.

    Attributes:
        id: id within the group.
        device_kind: index of the kind of devices in `Inspection.device_kinds`.
        reason: why the plan is not applicable; an applicable plan has no reason.
        device_bytes, host_bytes: minimum memory for the model's state: on each device, and on the host for
            all ranks; `None` if unknown.
        per_optimizer_byte, per_activation_byte: growth of `device_bytes` per byte of optimizer state, and per
            byte of activations on one device. A trial measures both.
        is_automatic: True if it may be chosen without being named: it computes the same numbers as one device
            and may help on these devices.
        cache_key: key that stores trial outcomes for other runs. Without a key they are not stored.
    """

    id: ParallelPlanId
    parallel_plan: ParallelPlan
    device_kind: int = Field(default=0, ge=0)
    reason: Reason = ""
    device_bytes: int | None = Field(default=None, ge=0)
    host_bytes: int | None = Field(default=None, ge=0)
    per_optimizer_byte: float = Field(default=0.0, ge=0)
    per_activation_byte: float = Field(default=0.0, ge=0)
    is_automatic: bool = True
    cache_key: Sha256 | Literal[""] = ""


class ModelGroup(Contract):
    """Models with equal time and memory.

    Attributes:
        name: name for people, such as the classes of its modules.
        signature: a hash; see `cerebro.worker.training.facts`.
        models: their ids.
        param_bytes, trainable_bytes, buffer_bytes, block_bytes, batch_size, layers: as in `ModelFacts`.
        parallel_plans: for each kind of devices; single-device plans first, then by number of devices.
        problem: why the inspection failed for this group.
    """

    id: GroupId
    name: str = ""
    signature: str = ""
    models: tuple[str, ...]
    param_bytes: int = Field(default=0, ge=0)
    trainable_bytes: int = Field(default=0, ge=0)
    buffer_bytes: int = Field(default=0, ge=0)
    block_bytes: int = Field(default=0, ge=0)
    batch_size: int = Field(default=1, ge=1)
    layers: dict[str, int] = Field(default_factory=dict)
    parallel_plans: tuple[KnownParallelPlan, ...] = ()
    problem: Reason = ""

    def parallel_plan(self, identity: str) -> KnownParallelPlan | None:
        """Return the parallel plan with this id, or `None`."""
        return next((known for known in self.parallel_plans if known.id == identity), None)


class Inspection(Contract):
    """Groups of all models of a run, made without training.

    Attributes:
        torch: PyTorch version of the inspection.
        problem: why the task failed, if there are no groups.
    """

    groups: tuple[ModelGroup, ...] = ()
    device_kinds: tuple[AvailableDevices, ...] = ()
    torch: str = ""
    problem: Reason = ""

    def group(self, identity: str) -> ModelGroup | None:
        """Return the group with this id, or `None`."""
        return next((group for group in self.groups if group.id == identity), None)

    def group_of(self, model: str) -> ModelGroup | None:
        """Return the group of a model, or `None`."""
        return next((group for group in self.groups if model in group.models), None)


class TrialOutcome(Contract):
    """Outcome of a trial of a parallel plan.

    Attributes:
        reason: why the plan is ruled out. A usable plan has no reason.
        cause: kind of the reason: device or host memory ran out, the gradient differs from one device's, the
            technique does not apply, or another failure (a crash, a hang).
        batch_s: mean seconds per batch (a trial measures the median); 0 if ruled out.
        sigma: standard deviation of the logarithm of a sub-epoch's time, relative to the time predicted by
            `batch_s`.
        batches: number of timed batches.
        load_s, save_s: seconds to read and write the model's state, including frozen weights.
        start_s: seconds until a group of processes was ready to train; 0 for one process.
        device_bytes: peak memory of a device; 0 if it has no memory or it is unknown.
        host_bytes: peak memory of all processes together.
        state_bytes: size of the model's state in checkpoints.
        is_verified: True if it computes the same gradient as one device.
        unverified: why the gradient is not verified.
        error: largest relative difference of a gradient, if compared.
        seconds: duration of the trial without starting its processes.
        is_recalled: True if it is from an earlier run.
    """

    reason: Reason = ""
    cause: Cause = ""
    batch_s: float = Field(default=0.0, ge=0)
    sigma: float = Field(default=0.0, ge=0)
    batches: int = Field(default=0, ge=0)
    load_s: float = Field(default=0.0, ge=0)
    save_s: float = Field(default=0.0, ge=0)
    start_s: float = Field(default=0.0, ge=0)
    device_bytes: int = Field(default=0, ge=0)
    host_bytes: int = Field(default=0, ge=0)
    state_bytes: int = Field(default=0, ge=0)
    is_verified: bool = False
    unverified: Reason = ""
    error: float | None = None
    seconds: float = Field(default=0.0, ge=0)
    is_recalled: bool = False

    @property
    def is_usable(self) -> bool:
        """True if sub-epochs may use the parallel plan."""
        return not self.reason and self.batch_s > 0


class TrialRecord(LateContract):
    """The outcome of a trial, stored for other runs under `KnownParallelPlan.cache_key`."""

    key: Sha256
    outcome: TrialOutcome
    label: str = ""
    """Label of the parallel plan, for people."""
    device: str = ""
    """Name of its devices, for people."""
    torch: str = ""
    experiment: str = ""
    run: str = ""
    """Run of the trial."""
