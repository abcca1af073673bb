"""Techniques that a user names for a fit: checked, and made ready to be sent.

What is wrong is told at once, with what could be chosen instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from cerebro.client.session import author
from cerebro.commands.planning import parallel_plans_of
from cerebro.contract.parallel_plans import MAX_GANG_SIZE, Params, TechniqueChoice
from cerebro.contract.records import CodeRecord
from cerebro.errors import SpecError
from cerebro.techniques import Technique
from cerebro.techniques.named import KINDS
from cerebro.usercode.encoding import encode

Named = Sequence["str | Technique"]
"""Techniques as a user names them: by name, or as objects, which carry the parameters that are fixed."""


def chosen(
    techniques: Named | None,
    gpus: Sequence[int] | None,
    trials: str,
    gang: int = 1,
    *,
    workers: Mapping[str, int],
    put_code: Callable[[CodeRecord], CodeRecord],
    apart: Collection[str] = (),
) -> dict[str, Any]:
    """The fields of a `FitRequest` that tell of techniques.

    Args:
        techniques, gpus, trials, gang: as `run_fit` has them.
        workers: worker that trains -> how many devices it has; empty: none is known.
        apart: those of them that train with no other workers.
        put_code: stores a user's own technique; called once all is found to be right.

    Raises:
        SpecError: what is named is no technique, or named twice; or no worker has so many devices. The message names
            the choices, the workers and their devices.
    """
    if trials not in ("auto", "never"):
        raise SpecError(f"trials is {trials!r}, expected 'auto' or 'never'")
    _check_gpus(gpus, workers)
    if type(gang) is not int or not 1 <= gang <= MAX_GANG_SIZE:
        raise SpecError(
            f"gang is {gang!r}, expected how many workers are to train each sub-epoch together: a whole number from 1 "
            f"to "
            f"{MAX_GANG_SIZE}"
        )
    own = [_own(each) for each in _listed(techniques)]
    names = [name for name, _ in own]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"techniques names {name!r} twice: name each technique once")
    made = None if techniques is None else [_choice(name, technique) for name, technique in own]
    parallel_plans_of(made, gpus or (), workers, gang_size=gang)
    if gang > 1 and workers and len(workers) - len(apart) < gang:
        raise SpecError(
            f"gang is {gang}, but {', '.join(apart)} train{'s' if len(apart) == 1 else ''} with no other workers: set "
            "worker.gangs.enabled of the chart (CEREBRO_ADDRESS of a worker), or leave gang out"
        )
    for number, (_, technique) in enumerate(own):
        if made and not _is_built_in(technique):
            code = put_code(encode(technique, author=author())).sha256
            made[number] = made[number].model_copy(update={"code": code})
    return {
        "techniques": made and tuple(made),
        "gpus": tuple(gpus or ()),
        "trials": trials,
        "gang": gang,
    }


def to_try(techniques: Named | None, gpus: Sequence[int] | None) -> list[tuple[Technique, int]]:
    """Techniques that a user names for a dry run, each with the numbers of devices to try it on: those in `gpus` that
    it can use, or its least.

    Raises:
        SpecError: as of `chosen`; or a technique can use none of these numbers.
    """
    if techniques is None:
        return []
    _check_gpus(gpus, {})
    found = []
    for name, technique in map(_own, _listed(techniques)):
        sizes = [size for size in gpus or (technique.least,) if technique.least <= size <= technique.most]
        if not sizes:
            raise SpecError(f"{name} cannot be tried on {gpus} devices: it takes {technique.least} or more")
        found += [(technique, size) for size in sizes]
    return found


def _check_gpus(gpus: object, workers: Mapping[str, int]) -> None:
    if gpus is None:
        return
    told = ", ".join(f"{name}: {count}" for name, count in sorted(workers.items()))
    hint = f"the numbers of devices that a sub-epoch may take{f' (the workers and their devices: {told})' * bool(told)}"
    listed = isinstance(gpus, Collection) and not isinstance(gpus, str | bytes | Mapping)
    if not listed or not gpus:
        raise SpecError(f"gpus is {gpus!r}, expected a list such as [1, 2]: {hint}")
    assert isinstance(gpus, Collection)
    for number in gpus:
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise SpecError(f"gpus has {number!r}, expected whole numbers of at least 1: {hint}")
    if len(set(gpus)) < len(gpus):
        raise SpecError(f"gpus is {gpus!r}: name each number once")


def _listed(techniques: object) -> list[object]:
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


_CHOICES = f"There are {', '.join(KINDS)}, and objects of your own subclasses of cerebro.techniques.Technique"


def _own(given: object) -> tuple[str, Technique]:
    """A technique and its name."""
    if isinstance(given, str):
        if given not in KINDS:
            raise SpecError(f"there is no technique {given!r}. {_CHOICES}")
        return given, KINDS[given]()
    if isinstance(given, type) and issubclass(given, Technique):
        raise SpecError(f"techniques takes objects: pass {given.__name__}() instead of {given.__name__}")
    if not isinstance(given, Technique):
        raise SpecError(f"{given!r} in techniques is no technique. {_CHOICES}")
    name = getattr(given, "name", None)
    if not isinstance(name, str) or not name:
        raise SpecError(f"{type(given).__name__} has no name: give the class an attribute `name`")
    if not _is_built_in(given) and name in KINDS:
        raise SpecError(
            f"{type(given).__name__} is named {name!r}, as a technique that comes with Cerebro is: give it another name"
        )
    return name, given


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
    """What the user has fixed."""
    fixed = dict(getattr(technique, "fixed", {}))
    for name, value in fixed.items():
        try:
            is_plain = json.loads(json.dumps(value)) == value
        except (TypeError, ValueError):
            is_plain = False
        if not is_plain:
            raise SpecError(
                f"parameter {name!r} of {type(technique).__name__} is {value!r}: expected what JSON can say (text, "
                "numbers, True, False, None, lists and dicts of these)"
            )
    return fixed


def _is_built_in(technique: Technique) -> bool:
    return type(technique).__module__.partition(".")[0] == "cerebro"
