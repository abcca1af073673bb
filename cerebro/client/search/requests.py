"""From the arguments of `run_fit` to the request of a search; what is wrong with them is said here, before a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cerebro.client.search.space import SearchSpace, is_drawn, space_data
from cerebro.contract.records import CodeRecord
from cerebro.contract.search import (
    ASHA,
    CMA,
    GP,
    MAX_CONFIGURATIONS,
    PBT,
    TPE,
    Above,
    Below,
    ChoiceOf,
    FixedProcedure,
    Hyperband,
    LogUniform,
    Median,
    OwnProcedure,
    Plateau,
    Random,
    RandomSampler,
    Sampler,
    SearchRequest,
    Space,
    StopRule,
    Uniform,
)
from cerebro.errors import SearchError, SpecError
from cerebro.search.procedure import Procedure
from cerebro.search.procedures.rungs import bracket_sizes, rung_epochs
from cerebro.usercode.checks import check_procedure
from cerebro.usercode.encoding import encode

BuiltIn = Random | Hyperband | ASHA | PBT
ProcedureOfUser = BuiltIn | Procedure
RuleOfUser = Plateau | Median | Above | Below

KEEP = 3
"""Models of a search that keep their checkpoints if it is not told."""

PERTURBED_BY: tuple[float, ...] = (0.8, 1.25)
"""Factors of what `PBT` changes if it is not told."""


def search_request(  # noqa: PLR0913 - the arguments of `run_fit` that are about it
    space: SearchSpace,
    *,
    search: ProcedureOfUser | None = None,
    stop: Any = (),
    samples: int | None = None,
    hours: float | None = None,
    keep: int | None = KEEP,
    epochs: int,
    put_code: Callable[[CodeRecord], CodeRecord] = lambda code: code,
    author: str = "",
) -> SearchRequest | None:
    """What a fit asks of the search; `None`: its models are listed and trained to the end.

    Args:
        space: of the draws; of any form without `search`, whose models are those of `configurations` then.
        search: the procedure.
        stop: a stop rule or several; they act without a procedure, too.
        samples: draws at most.
        hours: after which models are stopped where they are.
        keep: so many of the models that a procedure draws keep their checkpoints; `None`: all do, as listed ones do.
        epochs: the most that a model is trained for.
        put_code: stores a procedure of the user's own; called once all is found to be right.
        author: of it.

    Raises:
        SearchError: what is wrong with the arguments, or does not go together.
        SearchSpaceError: what is wrong with the space.
    """
    rules, hours = _rules(stop), _hours(hours)
    _check_keep(keep)
    if search is None:
        if not rules and hours is None:
            return None
        return SearchRequest(procedure=FixedProcedure(), stop=rules, hours=hours)
    if not isinstance(search, BuiltIn):
        check_procedure(search)
    data = _space(search, space)
    _check_samples(samples)
    procedure, code = (
        (_procedure(search, data, samples, hours, epochs), None)
        if isinstance(search, BuiltIn)
        else packed_procedure(search, author=author)
    )
    request = SearchRequest(
        procedure=procedure,
        space=data,
        samples=samples,
        stop=rules,
        hours=hours,
        keep=keep,
    )
    if isinstance(request.sampler, CMA):
        _check_cma(data)
    if code is not None:
        put_code(code)
    return request


def packed_procedure(search: object, *, author: str) -> tuple[OwnProcedure, CodeRecord]:
    """A procedure of the user's own, and its code, which has to be stored before it is asked for.

    Raises:
        SearchError: it is none, or cannot be sent.
    """
    check_procedure(search)
    hint = "A procedure has numbers, texts and collections of them; make what else it needs in begin()"
    try:
        code = encode(search, author=author, hint=hint)
    except SpecError as error:
        raise SearchError(str(error)) from error
    return OwnProcedure(code=code.sha256, name=code.class_name, sampler=_sampler(search)), code


def _sampler(search: object) -> Sampler:
    found = getattr(search, "sampler", None) or RandomSampler()
    if not isinstance(found, RandomSampler | TPE | GP | CMA):
        raise SearchError(
            f"{_name(search)}(sampler={found!r}): expected one of cerebro's samplers, as in sampler=TPE()"
        )
    return found


def _name(search: object) -> str:
    return type(search).__name__


def _space(search: object, space: SearchSpace) -> Space:
    if not isinstance(space, Mapping):
        raise SearchError(
            f"{_name(search)}() draws its models and the search space is no dict: give a dict with uniform(), "
            "loguniform(), randint() or choice(), or leave `search` out to train a list"
        )
    if not is_drawn(space) and isinstance(search, BuiltIn):
        raise SearchError(
            f"{_name(search)}() draws its models and the search space is a grid: use uniform(), loguniform(), "
            "randint() or choice() for a value, or leave `search` out to train the grid"
        )
    return space_data(space)


# --- procedures ---------------------------------------------------------------------------------


def _procedure(
    search: BuiltIn,
    space: Space,
    samples: int | None,
    hours: float | None,
    epochs: int,
) -> BuiltIn:
    match search:
        case Random():
            _check_end(search, samples, hours)
        case Hyperband():
            _check_bracket(search, samples, epochs)
        case ASHA():
            _check_rungs(search, epochs)
            _check_end(search, samples, hours)
            _check_halving(search, samples)
        case PBT():
            _check_population(search, samples, epochs)
            return search.model_copy(update={"perturb": _perturb(search, space)})
    return search


def _check_end(search: Random | ASHA, samples: int | None, hours: float | None) -> None:
    if samples is None and hours is None:
        raise SearchError(
            f"{_name(search)}() goes on drawing models for ever: give samples=N, the most models, or hours=H"
        )


def _check_rungs(search: Hyperband | ASHA, epochs: int) -> None:
    if search.first > epochs:
        raise SearchError(
            f"{_name(search)}(first={search.first}) is more than epochs={epochs}, the most that a model is trained "
            "for: lower `first` or raise `epochs`"
        )
    if search.first == epochs:
        raise SearchError(
            f"{_name(search)}(first={search.first}) with epochs={epochs} leaves no rung to decide at: raise "
            "`epochs`, or use search=Random()"
        )


def _check_bracket(search: Hyperband, samples: int | None, epochs: int) -> None:
    _check_rungs(search, epochs)
    sizes = bracket_sizes(len(rung_epochs(search.first, search.eta, epochs)), search.eta)
    size = sizes[0]
    models = samples or sum(sizes[: search.brackets])
    if models > MAX_CONFIGURATIONS:
        raise SearchError(
            f"Hyperband(first={search.first}, eta={search.eta}) with epochs={epochs} draws {models:,} models, at most "
            f"{MAX_CONFIGURATIONS:,}: lower `samples`, raise `first` or `eta`, or use ASHA()"
        )
    if samples is not None and samples < size:
        raise SearchError(
            f"samples={samples} is less than the {size} models of Hyperband's first bracket with first={search.first}, "
            f"eta={search.eta} and epochs={epochs}: give samples={size} or more, or use ASHA()"
        )


def _check_halving(search: ASHA, samples: int | None) -> None:
    if samples is not None and samples < search.eta:
        raise SearchError(
            f"samples={samples} is less than eta={search.eta}, so that no rung has a best 1/{search.eta}: give "
            f"samples={search.eta} or more"
        )


def _check_population(search: PBT, samples: int | None, epochs: int) -> None:
    if samples not in (None, search.population):
        raise SearchError(
            f"samples={samples}, but PBT draws its population of {search.population}: leave `samples` out, or give "
            f"PBT(population={samples})"
        )
    if search.every >= epochs:
        raise SearchError(
            f"PBT(every={search.every}) with epochs={epochs} leaves no generation to decide after: raise `epochs` or "
            "lower `every`"
        )


def _perturb(search: PBT, space: Space) -> Mapping[str, Sequence[float]]:
    for name in search.perturb:
        among = space.get(name)
        if among is None:
            raise SearchError(
                f"PBT(perturb=...) names {name!r}, and the search space has {', '.join(space)}: name one of these"
            )
        if isinstance(among, ChoiceOf) and len(among.values) == 1:
            raise SearchError(
                f"PBT(perturb=...) names {name!r}, which is fixed in the search space: leave it out, or give its range"
            )
    if search.perturb:
        return search.perturb
    found = {name: PERTURBED_BY for name, among in space.items() if isinstance(among, Uniform | LogUniform)}
    if not found:
        raise SearchError(
            "PBT() has nothing to change in its clones, since nothing is drawn by uniform() or loguniform(): name "
            'hyper-parameters and factors, as in perturb={"batch_size": [0.5, 2]}'
        )
    return found


# --- samplers, rules, limits --------------------------------------------------------------------


def _check_cma(space: Space) -> None:
    drawn = {
        name: among
        for name, among in space.items()
        if not (isinstance(among, ChoiceOf) and len(among.values) == 1)
    }
    for name, among in drawn.items():
        if isinstance(among, ChoiceOf):
            raise SearchError(
                f"CMA() draws numbers only, and {name!r} is a choice: use TPE(), or uniform(), loguniform() or "
                "randint() for it"
            )
    if len(drawn) < 2:
        raise SearchError(
            f"CMA() needs two numbers or more to draw, and the search space has {len(drawn)}: use TPE()"
        )


def _rules(stop: Any) -> tuple[StopRule, ...]:
    rules = stop if isinstance(stop, Sequence) and not isinstance(stop, str) else [stop]
    for rule in rules:
        if not isinstance(rule, Plateau | Median | Above | Below):
            raise SearchError(
                f"stop={rule!r}: expected cerebro's Plateau(), Median(), Above() or Below(), or a list of them"
            )
    return tuple(rules)


def _check_samples(samples: object) -> None:
    if samples is None:
        return
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise SearchError(f"samples={samples!r}: expected a whole number of at least 1")


def _check_keep(keep: object) -> None:
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
        raise SearchError(
            f"keep={keep!r}: expected a whole number of at least 1, of models that keep their checkpoints, or None for "
            "all of them"
        )


def _hours(hours: Any) -> float | None:
    if hours is None:
        return None
    is_number = isinstance(hours, int | float) and not isinstance(hours, bool)
    if not is_number or not 0 < hours < float("inf"):
        raise SearchError(f"hours={hours!r}: expected a positive number of hours, such as 1.5")
    return float(hours)
