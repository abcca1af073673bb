"""Parallel techniques that a user names for a fit or dry run: their checks and their request fields.

`Experiment` and experiment files call it. It sends nothing; the caller's `put_code` stores a user's technique. The
controller decides which plan a sub-epoch gets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cerebro.client.connection import author
from cerebro.commands.planning import parallel_plans_of
from cerebro.contract.parallel_plans import MAX_GANG_SIZE, Params, TechniqueChoice
from cerebro.contract.records import CodeRecord
from cerebro.errors import PluginError, SpecError
from cerebro.runtime import plugins
from cerebro.techniques import Technique
from cerebro.techniques.named import KINDS
from cerebro.usercode.encoding import encode

TechniqueNames = Sequence["str | Technique"]
"""Techniques by name, or as objects with fixed parameters."""


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """Parallel plans that a sub-epoch may use, for `Experiment.run_fit(parallelism=...)`.

    Attributes:
        techniques: parallel techniques: names (``"single"``, ``"ddp"``, ..., or from an installed package) or objects
            of `cerebro.techniques`, also your own. Default: one device, and more only for models that do not fit.
        gpus: allowed numbers of devices per sub-epoch, such as ``[1, 2]``. Default: chosen by Cerebro.
        trials: ``"auto"`` (default) to measure parallel plans before choosing one, or ``"never"``.
        gang: workers that train each sub-epoch together, each on its own partition. Default 1. Useful with fewer models
            than workers.

    Raises:
        SpecError: a technique is unknown or named twice, or a value is out of range.

    Example:
        >>> from cerebro import Parallelism
        >>> Parallelism(techniques=["single", "ddp"], gpus=[1, 2]).trials
        'auto'
        >>> Parallelism(gang=0)
        Traceback (most recent call last):
            ...
        cerebro.errors.SpecError: gang is 0, expected the number of workers that train each sub-epoch together, ...
    """

    techniques: TechniqueNames | None = None
    gpus: Sequence[int] | None = None
    trials: Literal["auto", "never"] = "auto"
    gang: int = 1

    def __post_init__(self) -> None:
        if self.trials not in ("auto", "never"):
            raise SpecError(f"trials is {self.trials!r}, expected 'auto' or 'never'")
        _check_gpus(self.gpus)
        if type(self.gang) is not int or not 1 <= self.gang <= MAX_GANG_SIZE:
            raise SpecError(
                f"gang is {self.gang!r}, expected the number of workers that train each sub-epoch together, from 1 to "
                f"{MAX_GANG_SIZE}"
            )
        named = [_named(each) for each in _checked_list(self.techniques)]
        names = [name for name, _ in named]
        for name, technique in named:
            if names.count(name) > 1:
                raise SpecError(f"techniques names {name!r} twice: name each technique once")
            _choice(name, technique)


def resolve_techniques(
    parallelism: Parallelism,
    *,
    workers: Mapping[str, int],
    put_code: Callable[[CodeRecord], CodeRecord],
    solo_workers: Collection[str] = (),
) -> dict[str, Any]:
    """Check parallel plans against the workers, and return their fields of a `FitRequest`.

    Args:
        parallelism: option group of `run_fit`.
        workers: number of devices of each training worker; empty before workers register.
        put_code: stores a user's technique; called after all checks passed.
        solo_workers: workers that cannot train in a gang.

    Raises:
        SpecError: no worker has enough devices, or too few workers form gangs. The message lists the workers and their
            devices.
    """
    gpus, gang = parallelism.gpus, parallelism.gang
    named = [_named(each) for each in parallelism.techniques or ()]
    choices = [_choice(name, technique) for name, technique in named] or None
    parallel_plans_of(choices, gpus or (), workers, gang_size=gang)
    if gang > 1 and workers and len(workers) - len(solo_workers) < gang:
        raise SpecError(
            f"gang is {gang}, but {', '.join(solo_workers)} cannot train with other workers: set "
            "worker.gangs.enabled in the chart (CEREBRO_ADDRESS of a worker), or leave gang out"
        )
    for number, (_, technique) in enumerate(named):
        if choices and not _is_built_in(technique):
            code = put_code(encode(technique, author=author())).sha256
            choices[number] = choices[number].model_copy(update={"code": code})
    return {
        "techniques": choices and tuple(choices),
        "gpus": tuple(gpus or ()),
        "trials": parallelism.trials,
        "gang": gang,
    }


def dry_run_plans(parallelism: Parallelism) -> list[tuple[Technique, int]]:
    """Return the techniques of a dry run, each with a number of devices to try.

    The numbers are the entries of `gpus` that the technique supports (`least` to `most`). Default: its `least`.

    Raises:
        SpecError: a technique supports none of the numbers.
    """
    gpus, plans = parallelism.gpus, []
    for name, technique in map(_named, parallelism.techniques or ()):
        sizes = [size for size in gpus or (technique.least,) if technique.least <= size <= technique.most]
        if not sizes:
            numbers = ", ".join(map(str, gpus or ()))
            raise SpecError(
                f"{name} uses {technique.least} to {technique.most} devices, but gpus is {numbers}"
            )
        plans += [(technique, size) for size in sizes]
    return plans


def _check_gpus(gpus: object) -> None:
    if gpus is None:
        return
    hint = "numbers of devices per sub-epoch"
    is_list = isinstance(gpus, Collection) and not isinstance(gpus, str | bytes | Mapping)
    if not is_list or not gpus:
        raise SpecError(f"gpus is {gpus!r}, expected a list such as [1, 2]: {hint}")
    assert isinstance(gpus, Collection)
    for number in gpus:
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise SpecError(f"gpus has {number!r}, expected whole numbers of at least 1: {hint}")
    if len(set(gpus)) < len(gpus):
        raise SpecError(f"gpus is {gpus!r}: name each number once")


def _checked_list(techniques: object) -> list[object]:
    if techniques is None:
        return []
    if not isinstance(techniques, Sequence) or isinstance(techniques, str | bytes):
        raise SpecError(
            f"techniques is {techniques!r}, expected a list such as ['single', 'ddp']: {_CHOICES}"
        )
    if not techniques:
        raise SpecError(
            f"techniques is empty: leave it out for an automatic choice, or name some. {_CHOICES}"
        )
    return [*techniques]


_CHOICES = (
    f"Choose among {', '.join(KINDS)}, or pass an object of your own subclass of cerebro.techniques.Technique"
)


def _named(technique: object) -> tuple[str, Technique]:
    if isinstance(technique, str):
        return technique, KINDS[technique]() if technique in KINDS else _of_package(technique)
    if isinstance(technique, type) and issubclass(technique, Technique):
        raise SpecError(
            f"techniques takes objects: pass {technique.__name__}() instead of {technique.__name__}"
        )
    if not isinstance(technique, Technique):
        raise SpecError(f"{technique!r} in techniques is not a technique. {_CHOICES}")
    name = getattr(technique, "name", None)
    if not isinstance(name, str) or not name:
        raise SpecError(f"{type(technique).__name__} has no name: give the class an attribute `name`")
    if not _is_built_in(technique) and name in KINDS:
        raise SpecError(
            f"{type(technique).__name__} has the name {name!r} of a built-in technique: give it another name"
        )
    return name, technique


def _of_package(name: str) -> Technique:
    """Return the technique of an installed package."""
    plugin = plugins.find("techniques", name)
    if plugin is None:
        installed = plugins.names("techniques")
        more = f". Installed packages add {', '.join(installed)}" if installed else ""
        raise SpecError(f"there is no technique {name!r}. {_CHOICES}{more}")
    kind = plugin.load()
    if not (isinstance(kind, type) and issubclass(kind, Technique) and kind.name == name):
        raise PluginError(
            f"{plugin.place} of the package {plugin.package} is {kind!r}, expected a subclass of "
            f"cerebro.techniques.Technique whose name is {name!r}"
        )
    return kind()


def _choice(name: str, technique: Technique) -> TechniqueChoice:
    try:
        return TechniqueChoice(
            name=name,
            version=technique.version,
            params=_params(technique),
            least=technique.least,
            most=technique.most,
            processes=technique.processes,
        )
    except ValueError as cause:
        raise SpecError(
            f"the technique {type(technique).__name__} cannot be used: expected a name of lower-case letters, digits, "
            f"dashes and underscores, a version and numbers of devices of at least 1, found name={name!r}, "
            f"version={technique.version!r}, least={technique.least!r}, most={technique.most!r}"
        ) from cause


def _params(technique: Technique) -> Params:
    fixed = dict(getattr(technique, "fixed", {}))
    for name, value in fixed.items():
        try:
            is_plain = json.loads(json.dumps(value)) == value
        except (TypeError, ValueError):
            is_plain = False
        if not is_plain:
            raise SpecError(
                f"parameter {name!r} of {type(technique).__name__} is {value!r}: expected a JSON value (text, number, "
                "True, False, None, or a list or dict of these)"
            )
    return fixed


def _is_built_in(technique: Technique) -> bool:
    return type(technique).__module__.partition(".")[0] == "cerebro"
