"""The interface of a technique, and the facts it receives. Does not import torch.

`trial_runner.known_parallel_plans` calls the pure methods, such as `variants`, `is_applicable` and `memory`, to list
the plans of a model. `cerebro.worker.training.ranks.grouped` calls the others, with torch, in each rank's process
during a sub-epoch. A technique does not choose itself: the controller selects plans by their trials. `Group` is
implemented in `ranks.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cerebro.contract.records import MAX_DEVICES
from cerebro.errors import SpecError
from cerebro.spec import DataLoader, Hints

if TYPE_CHECKING:
    from torch import nn

Params = Mapping[str, Any]
"""Parameters of a technique by name; values are JSON."""


@dataclass(frozen=True, kw_only=True)
class DeviceSet:
    """Devices of one worker that a sub-epoch would use.

    Attributes:
        size: number of devices, all of one kind.
        kind: kind of the devices.
        memory_bytes: memory of each device; `None` if unknown or shared with the host.
        host_bytes: memory of the worker; `None` if unknown.
    """

    size: int = 1
    kind: Literal["gpu", "cpu"] = "cpu"
    memory_bytes: int | None = None
    host_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Facts about a model that has not been trained. Sizes are in bytes.

    Attributes:
        signature: equal for models with equal time and memory.
        param_bytes: parameters of all modules.
        trainable_bytes: parameters that need a gradient.
        buffer_bytes: buffers of all modules.
        block_bytes: parameters of the largest repeated block; 0 without blocks.
        batch_size: rows of a global batch.
        layers: class name of each repeated module -> number of such modules.
        optimizer_bytes: state of the optimizer; `None` before a sub-epoch or trial has measured it.
        activation_bytes: peak activations of a batch on one device; `None` before a trial has measured them.
        num_modules: number of modules with parameters that `create_models` returned.
        coupled: name of a module whose result for a row depends on other rows of the batch, or "".
        stages: number of sequential stages; 0 if the model is not known to be a sequence.
        splits: sizes that the number of devices must divide, from a tensor plan; () without a plan.
        only_single: why only `single` can train the model, or "".
        not_stackable: why the model cannot train in one stack with others, or "".
        alike_models: number of models of the run with the same signature.
    """

    signature: str
    param_bytes: int
    trainable_bytes: int
    buffer_bytes: int = 0
    block_bytes: int = 0
    batch_size: int = 1
    layers: Mapping[str, int] = field(default_factory=dict)
    optimizer_bytes: int | None = None
    activation_bytes: int | None = None
    num_modules: int = 1
    coupled: str = ""
    stages: int = 0
    splits: tuple[int, ...] = ()
    only_single: str = ""
    not_stackable: str = ""
    alike_models: int = 1


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Minimum bytes for a model's state: on each device, and on the host for all ranks."""

    device: int
    host: int = 0


@dataclass(frozen=True, kw_only=True)
class Share:
    """The rows of each global batch that a rank reads: part `index` of `of` nearly equal parts."""

    index: int = 0
    of: int = 1


class Group(ABC):
    """The ranks that train one model together, as one rank sees them.

    Calls are collective: all ranks make the same calls in the same order.

    Attributes:
        rank: number of this process, from 0.
        size: number of ranks.
        device: device of this rank, such as `cuda:0` or `cpu`.
        devices: devices that this process may use; several for a technique with one process.
        is_of_several_workers: True if the ranks are on several workers, without shared memory.
    """

    is_of_several_workers: bool = False
    rank: int = 0
    size: int = 1
    device: str = "cpu"
    devices: tuple[str, ...] = ("cpu",)

    @property
    @abstractmethod
    def mesh(self) -> Any:
        """A one-dimensional `torch.distributed.DeviceMesh` over all ranks."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait for all ranks."""

    @abstractmethod
    def gathered(self, value: Any) -> list[Any]:
        """Return each rank's value, in rank order. Values must be small and picklable."""

    @abstractmethod
    def summed(self, value: float) -> float:
        """Return the sum of all ranks' values, bitwise equal on every rank."""

    @abstractmethod
    def leave(self) -> None:
        """Leave the group. Calling it twice is safe."""


class Technique(ABC):
    """A way to use the devices of a worker for a sub-epoch.

    The system creates techniques without arguments; users may fix parameters for a run, such as `Fsdp(reshard=False)`.
    Methods receive all parameters as `params`. A user's technique is a subclass, which is sent to the workers like a
    spec.

    Attributes:
        name: name of the technique; part of the cache key of measured times.
        version: increased when time or memory changes; also part of the cache key.
        least: minimum number of devices.
        most: maximum number of devices.
        parameters: parameter name -> allowed values; `None` allows any parameter.
        keeps_numerics: True if results equal a single device's, up to rounding. Other techniques run only if the user
            names them.
        processes: `"ranks"` for one process per device, `"one"` for one process with all devices.
        fixed: parameters that the user has fixed.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    least: ClassVar[int] = 1
    most: ClassVar[int] = MAX_DEVICES
    parameters: ClassVar[Mapping[str, tuple[Any, ...]] | None] = None
    keeps_numerics: ClassVar[bool] = True
    processes: ClassVar[Literal["ranks", "one"]] = "ranks"

    def __init__(self, **fixed: Any) -> None:
        self.fixed: Params = self.checked(fixed)

    @classmethod
    def checked(cls, params: Params) -> Params:
        """Return the parameters after checking their names and values.

        Raises:
            SpecError: a parameter is unknown, or its value is not allowed.
        """
        for name, value in params.items():
            if cls.parameters is None:
                break
            if name not in cls.parameters:
                has = f"it has {', '.join(cls.parameters)}" if cls.parameters else "it has none"
                raise SpecError(f"technique {cls.name!r} has no parameter {name!r}: {has}")
            known = cls.parameters[name]
            if not any(type(value) is type(one) and value == one for one in known):
                choices = ", ".join(map(repr, known))
                raise SpecError(f"technique {cls.name!r} got {name}={value!r}, expected one of {choices}")
        return dict(params)

    # --- pure: from facts about the model and its devices --------------------------------------------

    def variants(self, facts: ModelFacts, devices: DeviceSet) -> Sequence[Params]:
        """Return the parameters to consider, fastest first. All of them keep the numerics."""
        return ({},)

    def considered(self, facts: ModelFacts, devices: DeviceSet) -> list[Params]:
        """Return the distinct `variants` with the user's fixed parameters."""
        unique: list[Params] = []
        for variant in self.variants(facts, devices):
            params = {**variant, **self.fixed}
            if params not in unique:
                unique.append(params)
        return unique

    def is_exact(self, params: Params) -> bool:
        """Return True if results with these parameters equal a single device's, up to rounding."""
        return self.keeps_numerics

    @abstractmethod
    def is_applicable(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> str:
        """Return "" if the technique can be used, else the reason in words for the user."""

    def helps(self, devices: DeviceSet) -> bool:
        """Return True if the technique can have an advantage there; otherwise only users choose it."""
        return True

    def memory(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> Memory | None:
        """Return the minimum memory of the model's state; `None` if unknown."""
        return None

    # --- in each rank's process, with torch --------------------------------------------------------

    def share(self, group: Group) -> Share:
        """Return the rows of each batch that this rank reads. Default: all."""
        return Share()

    def made_on(self, group: Group, params: Params) -> str:
        """Return the device that modules are created and restored on before `prepare`. Default: the rank's device."""
        return group.device

    @abstractmethod
    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        """Change the modules in place for this technique; parameter and module names stay.

        Called on every rank with the same modules, in the same order and with the same weights.

        Raises:
            NotApplicableError: the technique cannot train these modules; the message has the reason.
        """

    @contextmanager
    def running(
        self, modules: list[nn.Module], feed: DataLoader, group: Group, params: Params
    ) -> Iterator[None]:
        """Context manager around the user's `train`. Default: does nothing."""
        yield
