"""The interface of a technique, and what it is told. Free of torch: the controller and the client read it.

A technique's methods come in two kinds. `variants`, `is_applicable` and `memory` are pure: they answer from facts about
the model and its place. The others run in each rank's process, with torch, while a sub-epoch is trained.
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
"""Of a technique, by name: what JSON can say."""

State = dict[str, Any]
"""A model's state as its checkpoint has it: plain tensors of the full shapes, on rank 0's host."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Devices of one worker that a sub-epoch would take.

    Attributes:
        size: number of devices, all of one kind.
        kind: of each.
        memory_bytes: of each device; `None` where it has none of its own, or that is not known.
        host_bytes: memory of the worker; `None`: not known.
    """

    size: int = 1
    kind: Literal["gpu", "cpu"] = "cpu"
    memory_bytes: int | None = None
    host_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What is known of a model without training it. Sizes are bytes.

    Attributes:
        signature: models with the same one differ in nothing that time or memory depend on.
        param_bytes, trainable_bytes, buffer_bytes: of all its modules.
        block_bytes: parameters of its largest repeated block; 0 where there is none.
        batch_size: rows of a global batch.
        layers: modules that are repeated, by class name: how often.
        optimizer_bytes: of the optimizer's state; `None` until a sub-epoch or a trial has told.
        activation_bytes: at the peak of a batch on one device; `None` until a trial has told.
        num_modules: modules with parameters that `create_models` returned.
        coupled: name of a module whose result for a row depends on the other rows of its batch; empty: none is known.
        stages: how many modules, one after another, the model is made of; 0: it is not known to be.
        splits: of a plan to split modules between devices: numbers that the devices must divide; empty: no plan.
        only_single: why it is trained as user code is written, on one device, by no technique; empty: it is not so.
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


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes that a model's state takes at least: of each device, and of the host for all ranks together."""

    device: int
    host: int = 0


@dataclass(frozen=True, kw_only=True)
class Share:
    """Which rows of each global batch a rank reads: the `index`-th of `of` parts, whose sizes differ by one at most."""

    index: int = 0
    of: int = 1


class Group(ABC):
    """The ranks that train one model together, seen from one of them. Calls on it are collective: all ranks make the
    same ones in the same order.

    Attributes:
        rank, size: number of this process, from 0; of so many.
        device: that this rank computes on, such as ``cuda:0`` or ``cpu``.
        devices: that this process may use: more than one for a technique of one process on several devices.
        is_of_several_workers: whether the ranks are on several workers, which share no memory.
    """

    is_of_several_workers: bool = False
    rank: int = 0
    size: int = 1
    device: str = "cpu"
    devices: tuple[str, ...] = ("cpu",)

    @property
    @abstractmethod
    def mesh(self) -> Any:
        """A `torch.distributed.DeviceMesh` of one dimension over all ranks."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until all ranks are here."""

    @abstractmethod
    def gathered(self, value: Any) -> list[Any]:
        """What each rank gave, in their order: small values that can be pickled."""

    @abstractmethod
    def summed(self, value: float) -> float:
        """The sum of what the ranks gave; the same bits on each."""

    @abstractmethod
    def leave(self) -> None:
        """Let go of the other ranks; nothing more can be asked. May be called twice."""


class Technique(ABC):
    """How a sub-epoch uses the devices of its worker. Made without arguments, or by users with parameters that they fix
    for a run, such as ``Fsdp(reshard=False)``; where it works, all parameters come as `Params`.

    A user's own is a subclass, which travels to the workers as a spec does.

    Attributes:
        name, version: both are part of what measured times and memory are kept under.
        least, most: numbers of devices that it can use.
        parameters: names, each with the values that it may have; `None`: any.
        keeps_numerics: whether results are those of one device up to rounding. One that does not is never chosen
            unless the user names it.
        processes: ``"ranks"``: one process for each device; ``"one"``: one process that uses all devices.
        fixed: parameters that a user has fixed.
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
        """Parameters that this technique has.

        Raises:
            SpecError: it has no such parameter, or not with this value.
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

    # --- pure: from facts about the model and its place --------------------------------------------

    def variants(self, facts: ModelFacts, place: Place) -> Sequence[Params]:
        """Parameters to consider here, the cheapest in time first. All of them keep numerics."""
        return ({},)

    def considered(self, facts: ModelFacts, place: Place) -> list[Params]:
        """`variants` with what the user has fixed, each once."""
        found: list[Params] = []
        for variant in self.variants(facts, place):
            params = {**variant, **self.fixed}
            if params not in found:
                found.append(params)
        return found

    def is_exact(self, params: Params) -> bool:
        """Whether results with these parameters are those of one device, up to rounding."""
        return self.keeps_numerics

    @abstractmethod
    def is_applicable(self, facts: ModelFacts, place: Place, params: Params) -> str:
        """Empty if it can be used, else why it cannot, for people."""

    def helps(self, place: Place) -> bool:
        """Whether there is a use for it there; if not, it is chosen only by users who name it."""
        return True

    def memory(self, facts: ModelFacts, place: Place, params: Params) -> Memory | None:
        """What the model's state takes at least; `None`: it cannot be told."""
        return None

    # --- in each rank's process, with torch --------------------------------------------------------

    def share(self, group: Group) -> Share:
        """Which rows of each batch this rank reads; by default all."""
        return Share()

    def made_on(self, group: Group, params: Params) -> str:
        """The device that modules are created and restored on before `prepare`; by default the rank's."""
        return group.device

    @abstractmethod
    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        """Make the modules work by this technique, in place; names of parameters and modules stay.

        Called on every rank, with the same modules in the same order and the same weights.

        Raises:
            NotApplicableError: they cannot, with the reason.
        """

    @contextmanager
    def running(
        self, modules: list[nn.Module], feed: DataLoader, group: Group, params: Params
    ) -> Iterator[None]:
        """Around the user's `train`."""
        yield
