"""Task keys: readable names of tasks, the same for every attempt."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from cerebro.contract.base import Split


class TaskKey(NamedTuple):
    """Key of a task in a run; fields that its kind lacks are `None`.

    As text: ``etl-1/etl/train/p0``, ``fit-1/train/m03/e2/p1`` (on a set of partitions,
    ``fit-1/train/m03/e2/p1+p4``), ``fit-1/valid/m03/e2`` (in a cross-validation
    ``fit-1/valid/m03-f1/e2/p4``), ``test-1/test/m03`` (or of one partition,
    ``test-1/test/m03/p1``), ``predict-1/predict/m03/p1``, ``fit-1/inspect``, ``fit-1/trial/g03/fsdp-2``,
    ``fit-1/search/actions-17``, ``fit-1/search/suggestions-5``, ``fit-1/verify/m03/e2/p1/reexecution-1``.
    """

    run: str
    kind: str
    split: Split | None = None
    model: str | None = None
    epoch: int | None = None
    partition: int | None = None
    """Partition; the smallest one of a set."""
    group: str | None = None
    """Group of alike models in a trial."""
    parallel_plan: str | None = None
    """Id of the trial's parallel plan in its group."""
    other_partitions: tuple[int, ...] = ()
    """Other partitions of a set, ascending."""
    request: str | None = None
    """Request of a search.

    ``actions-N``: actions from the N-th report on (0: the start). ``suggestions-N``: suggestions from number N on."""
    reexecution: int | None = None
    """Number of a re-execution: 1, or 2 after a difference."""

    @property
    def partitions(self) -> tuple[int, ...]:
        """All its partitions, ascending."""
        return () if self.partition is None else (self.partition, *self.other_partitions)

    def __str__(self) -> str:
        parts = [self.run, self.kind]
        if self.split is not None:
            parts.append(self.split)
        if self.model is not None:
            parts.append(self.model)
        if self.epoch is not None:
            parts.append(f"e{self.epoch}")
        if self.partition is not None:
            parts.append("+".join(f"p{partition}" for partition in self.partitions))
        if self.group is not None and self.parallel_plan is not None:
            parts += [self.group, self.parallel_plan]
        if self.request is not None:
            parts.append(self.request)
        if self.reexecution is not None:
            parts.append(f"reexecution-{self.reexecution}")
        return "/".join(parts)

    @classmethod
    @lru_cache(maxsize=4096)  # consecutive events often name the same task
    def parse(cls, text: str) -> TaskKey:
        """Parse a key; raise `ValueError` for anything else."""
        run, kind, *rest = text.split("/")
        if kind == "etl":
            split, partition = rest
            return cls(run=run, kind=kind, split=split, partition=_number("p", partition))
        if kind == "train":
            model, epoch, partitions = rest
            first, *other_partitions = _ascending(partitions)
            return cls(
                run=run,
                kind=kind,
                model=model,
                epoch=_number("e", epoch),
                partition=first,
                other_partitions=tuple(other_partitions),
            )
        if kind == "verify":
            model, epoch, partition, reexecution = rest
            return cls(
                run=run,
                kind=kind,
                model=model,
                epoch=_number("e", epoch),
                partition=_number("p", partition),
                reexecution=_number("reexecution-", reexecution),
            )
        if kind == "valid":
            model, epoch, *folds = rest
            key = cls(run=run, kind=kind, model=model, epoch=_number("e", epoch))
            if not folds:
                return key
            (partition,) = folds
            return key._replace(partition=_number("p", partition))
        if kind == "test" and len(rest) == 1:
            return cls(run=run, kind=kind, model=rest[0])
        if kind in ("test", "predict"):
            model, partition = rest
            return cls(run=run, kind=kind, model=model, partition=_number("p", partition))
        if kind in ("inspect", "fitting") and not rest:
            return cls(run=run, kind=kind)
        if kind == "trial":
            group, parallel_plan = rest
            return cls(run=run, kind=kind, group=group, parallel_plan=parallel_plan)
        if kind == "search":
            (request,) = rest
            _, _, number = request.partition("-")
            if request not in (f"actions-{int(number)}", f"suggestions-{int(number)}"):
                raise ValueError(f"{text!r} is no request of a search")
            return cls(run=run, kind=kind, request=request)
        raise ValueError(f"{text!r} is no task key")


@lru_cache(maxsize=4096)
def _ascending(text: str) -> tuple[int, ...]:
    """Parse a set of partitions; each set has one name."""
    numbers = tuple(_number("p", part) for part in text.split("+"))
    if list(numbers) != sorted(set(numbers)):
        raise ValueError(f"{text!r} does not name each partition once, in ascending order")
    return numbers


@lru_cache(maxsize=4096)
def _number(letter: str, text: str) -> int:
    if not text.startswith(letter):
        raise ValueError(f"{text!r} does not start with {letter!r}")
    return int(text.removeprefix(letter))
