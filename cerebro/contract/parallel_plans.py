"""Parallel plans: a technique with its parameters on a number of devices. Types only.

`cerebro.commands.planning` lists a run's plans, trials measure them, the planner and dispatch choose one for each
sub-epoch. `cerebro.techniques` implements the techniques.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from cerebro.contract.base import Contract, Sha256
from cerebro.contract.records import MAX_DEVICES

TechniqueName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,48}$")]

Params = dict[str, JsonValue]
"""Parameters of a technique, by name; any JSON values."""


Processes = Literal["ranks", "one"]

FUSED = "fused"
"""Technique that trains several models as one stack. Its parameter ``models`` is their maximum number."""

MAX_GANG_SIZE = 64
"""Maximum number of workers that train one sub-epoch together."""


class TechniqueChoice(Contract):
    """A technique that a user names for a run.

    Attributes:
        name: name of a built-in technique or of the user's own.
        version: version of the technique; other versions may need other memory or time.
        params: parameters that the user has fixed; the technique may vary the others.
        code: hash of the user's own technique, encoded like a spec; `None` if built in.
        least, most: minimum and maximum number of devices.
        processes: as in `ParallelPlan`.
    """

    name: TechniqueName
    version: int = Field(default=1, ge=1)
    params: Params = Field(default_factory=dict)
    code: Sha256 | None = None
    least: int = Field(default=1, ge=1, le=MAX_DEVICES)
    most: int = Field(default=MAX_DEVICES, ge=1, le=MAX_DEVICES)
    processes: Processes = "ranks"


class ParallelPlan(Contract):
    """A technique with its parameters on `size` devices of one worker, or of each worker of a gang.

    Attributes:
        technique: its name.
        version: version of the technique.
        params: its parameters.
        size: number of devices per worker.
        workers: number of workers in a gang; absent in JSON if 1.
        processes: ``"ranks"``: one process per device; ``"one"``: one process for all devices. The technique
            decides; stored here because the worker's agent does not open techniques.
        code: hash of a user's technique; `None` if built in.
    """

    technique: TechniqueName
    version: int = Field(default=1, ge=1)
    params: Params = Field(default_factory=dict)
    size: int = Field(default=1, ge=1, le=MAX_DEVICES)
    workers: int = Field(default=1, ge=1, le=MAX_GANG_SIZE, exclude_if=lambda workers: workers == 1)
    processes: Processes = "ranks"
    code: Sha256 | None = None

    @property
    def ranks(self) -> int:
        """Number of processes that train the model together, on all workers."""
        return self.workers * self.ranks_here

    @property
    def ranks_here(self) -> int:
        """Number of ranks on one worker."""
        return self.size if self.processes == "ranks" else 1

    @property
    def is_single(self) -> bool:
        """True if it runs user code as written, on one device."""
        return self.technique == SINGLE.technique and self.code is None

    @property
    def fused_models(self) -> int:
        """Maximum number of models that train as one stack; 0 if the plan trains one model."""
        models = self.params.get("models") if self.technique == FUSED and self.code is None else None
        return models if isinstance(models, int) else 0

    @property
    def label(self) -> str:
        """Name for people and as a key: ``fsdp-2``, ``fsdp(reshard=False)-4``, ``ddp-2x4``, ``single``.

        ``ddp-2x4`` runs on two workers with four devices each.
        """
        params = ", ".join(f"{name}={value!r}" for name, value in sorted(self.params.items()))
        name = f"{self.technique}({params})" if params else self.technique
        if self.workers > 1:
            return f"{name}-{self.workers}x{self.size}"
        return name if self.size == 1 else f"{name}-{self.size}"


SINGLE = ParallelPlan(technique="single", processes="one")
"""One process on one device, as user code is written. The default."""

MemoryKind = Literal["device", "host"]
"""Memory that ran out."""
