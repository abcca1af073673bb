"""`Search`, the search options of `run_fit`, and their conversion into a `SearchRequest` with all checks.

`cerebro.client.requests.run_requests` calls it. Nothing is sampled here: the controller makes the suggestions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from cerebro.client.search.space import SearchSpace, has_distributions, space_data
from cerebro.contract.records import CodeRecord
from cerebro.contract.search import (
    ASHA,
    CMA,
    MAX_CONFIGURATIONS,
    PBT,
    Above,
    Below,
    BuiltInSampler,
    ChoiceOf,
    Distribution,
    Earlier,
    FixedProcedure,
    Hyperband,
    LogUniform,
    Median,
    OwnProcedure,
    OwnSampler,
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
from cerebro.usercode.checks import check_procedure, check_sampler
from cerebro.usercode.encoding import encode

BuiltIn = Random | Hyperband | ASHA | PBT
UserProcedure = BuiltIn | Procedure
UserStopRule = Plateau | Median | Above | Below

PERTURB_FACTORS: tuple[float, ...] = (0.8, 1.25)
"""Default factors of `PBT` for sampled numbers."""


@dataclass(frozen=True)
class Search:
    """A search with its options, for `Experiment.run_fit(search=...)`.

    Attributes:
        procedure: ``ASHA()``, ``Hyperband()``, ``PBT()`` or ``Random()``, each with an optional ``sampler=``, or your
            own `cerebro.search.Procedure`. Default: train all configurations for all epochs.
        stop: rule or rules that stop models early, such as ``Plateau(epochs=3)``, also without a procedure.
        keep: number of best models that keep their checkpoints; `None` keeps all. Default 3. Without a procedure all
            checkpoints are kept.
        start_from: ended fits that the sampler learns from, such as ``["digits/fit-1"]``. They must have the same
            metric, code and data; see `Earlier` for other code or data. Needs a sampler, such as ``TPE()``.

    Raises:
        SearchError: an argument is invalid.

    Example:
        >>> from cerebro import ASHA, Plateau, Search
        >>> Search(ASHA(), stop=Plateau(epochs=3)).keep
        3
        >>> Search(ASHA(), keep=0)
        Traceback (most recent call last):
            ...
        cerebro.errors.SearchError: keep is 0, expected the number of models that keep their checkpoints, ...
    """

    procedure: UserProcedure | None = None
    _: KW_ONLY
    stop: UserStopRule | Sequence[UserStopRule] = ()
    keep: int | None = 3
    start_from: str | Earlier | Sequence[str | Earlier] = ()

    def __post_init__(self) -> None:
        if self.procedure is not None and not isinstance(self.procedure, BuiltIn):
            check_procedure(self.procedure)
        _check_keep(self.keep)
        object.__setattr__(self, "stop", _rules(self.stop))
        object.__setattr__(self, "start_from", _earlier(self.start_from))

    @classmethod
    def of(cls, search: UserProcedure | Search | None) -> Search:
        """Return a search; a procedure alone gets the default options."""
        return search if isinstance(search, Search) else cls(search)


def search_request(
    space: SearchSpace,
    *,
    search: UserProcedure | Search | None = None,
    samples: int | None = None,
    hours: float | None = None,
    epochs: int,
    put_code: Callable[[CodeRecord], CodeRecord] = lambda code: code,
    author: str = "",
) -> SearchRequest | None:
    """Build the search request of a fit; `None` for listed models without stop rules.

    Args:
        space: search space. Without `search`, any form that `configurations` accepts.
        search: procedure or `Search`; `None` to train all configurations.
        samples: maximum number of sampled models.
        hours: hours until all models are stopped.
        epochs: maximum number of epochs of a model.
        put_code: stores a user's procedure and sampler after all checks passed.
        author: author of that code.

    Raises:
        SearchError: an argument is invalid, or two do not fit together.
        SearchSpaceError: the space is invalid.
    """
    options = Search.of(search)
    wanted, rules = options.procedure, _rules(options.stop)
    earlier = _earlier(options.start_from)
    if wanted is None:
        if earlier:
            raise SearchError(_no_sampler("this fit trains its configurations as listed"))
        if not rules and hours is None:
            return None
        return SearchRequest(procedure=FixedProcedure(), stop=rules, hours=hours)
    data = _space(wanted, space)
    _check_samples(samples)
    procedure: BuiltIn | OwnProcedure
    if isinstance(wanted, BuiltIn):
        procedure, codes = _with_packed_sampler(_procedure(wanted, data, samples, hours, epochs), author)
    else:
        procedure, codes = pack_procedure(wanted, author=author)
    request = SearchRequest(
        procedure=procedure,
        space=data,
        samples=samples,
        stop=rules,
        hours=hours,
        keep=options.keep,
        start_from=earlier,
    )
    if earlier and isinstance(request.sampler, RandomSampler):
        raise SearchError(_no_sampler(f"{_name(wanted)}() suggests values at random"))
    if isinstance(request.sampler, CMA):
        _check_cma(data)
    for code in codes:
        put_code(code)
    return request


def pack_procedure(search: object, *, author: str) -> tuple[OwnProcedure, list[CodeRecord]]:
    """Encode a user's search procedure and its own sampler, if any.

    The caller stores the returned code before sending the request.

    Raises:
        SearchError: `search` is not a procedure, or cannot be pickled.
    """
    check_procedure(search)
    code = _encoded(search, author, "procedure; create other objects in begin()")
    sampler, codes = _packed_sampler(search, author)
    return OwnProcedure(code=code.sha256, name=code.class_name, sampler=sampler), [code, *codes]


def _with_packed_sampler(procedure: BuiltIn, author: str) -> tuple[BuiltIn, list[CodeRecord]]:
    if isinstance(procedure, PBT):
        return procedure, []
    sampler, codes = _packed_sampler(procedure, author)
    return procedure.model_copy(update={"sampler": sampler}), codes


def _packed_sampler(search: object, author: str) -> tuple[Sampler, list[CodeRecord]]:
    sampler = getattr(search, "sampler", None) or RandomSampler()
    if isinstance(sampler, BuiltInSampler):
        return sampler, []
    if not hasattr(sampler, "suggest"):
        raise SearchError(
            f"{_name(search)}(sampler={sampler!r}): expected one of cerebro's samplers, as in sampler=TPE(), or an "
            "object with the method suggest() of cerebro.search.Sampler"
        )
    check_sampler(sampler)
    code = _encoded(sampler, author, "sampler; create other objects in suggest()")
    return OwnSampler(code=code.sha256, name=code.class_name), [code]


def _encoded(value: object, author: str, hint: str) -> CodeRecord:
    try:
        return encode(
            value, author=author, hint=f"Store only numbers, texts and collections of them in a {hint}"
        )
    except SpecError as error:
        raise SearchError(str(error)) from error


def _name(search: object) -> str:
    return type(search).__name__


def _space(search: object, space: SearchSpace) -> Space:
    if not isinstance(space, Mapping):
        raise SearchError(
            f"{_name(search)}() samples its models, and the search space is not a dict: pass a dict with uniform(), "
            "loguniform(), randint() or choice(), or leave `search` out to train a list"
        )
    if not has_distributions(space) and isinstance(search, BuiltIn):
        raise SearchError(
            f"{_name(search)}() samples its models, and the search space is a grid: use uniform(), loguniform(), "
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
            _check_has_end(search, samples, hours)
        case Hyperband():
            _check_first_bracket(search, samples, epochs)
        case ASHA():
            _check_rungs(search, epochs)
            _check_has_end(search, samples, hours)
            _check_halving(search, samples)
        case PBT():
            _check_population(search, samples, epochs)
            return search.model_copy(update={"perturb": _perturb(search, space)})
    return search


def _check_has_end(search: Random | ASHA, samples: int | None, hours: float | None) -> None:
    if samples is None and hours is None:
        raise SearchError(
            f"{_name(search)}() has no end: set samples=N, the maximum number of models, or limits=Limits(hours=H)"
        )


def _check_rungs(search: Hyperband | ASHA, epochs: int) -> None:
    if search.first > epochs:
        raise SearchError(
            f"{_name(search)}(first={search.first}) exceeds epochs={epochs}, the maximum of a model: lower `first` or "
            "raise `epochs`"
        )
    if search.first == epochs:
        raise SearchError(
            f"{_name(search)}(first={search.first}) with epochs={epochs} leaves no rung: raise `epochs`, "
            "or use search=Random()"
        )


def _check_first_bracket(search: Hyperband, samples: int | None, epochs: int) -> None:
    _check_rungs(search, epochs)
    sizes = bracket_sizes(len(rung_epochs(search.first, search.eta, epochs)), search.eta)
    size = sizes[0]
    models = samples or sum(sizes[: search.brackets])
    if models > MAX_CONFIGURATIONS:
        raise SearchError(
            f"Hyperband(first={search.first}, eta={search.eta}) with epochs={epochs} samples {models:,} models, "
            f"more than {MAX_CONFIGURATIONS:,}: lower `samples`, raise `first` or `eta`, or use ASHA()"
        )
    if samples is not None and samples < size:
        raise SearchError(
            f"samples={samples} is less than the {size} models of Hyperband's first bracket with first={search.first}, "
            f"eta={search.eta} and epochs={epochs}: set samples={size} or more, or use ASHA()"
        )


def _check_halving(search: ASHA, samples: int | None) -> None:
    if samples is not None and samples < search.eta:
        raise SearchError(
            f"samples={samples} is less than eta={search.eta}, so no model can pass a rung: set samples={search.eta} "
            "or more"
        )


def _check_population(search: PBT, samples: int | None, epochs: int) -> None:
    if samples not in (None, search.population):
        raise SearchError(
            f"samples={samples}, but PBT has a population of {search.population}: leave `samples` out, or use "
            f"PBT(population={samples})"
        )
    if search.every >= epochs:
        raise SearchError(
            f"PBT(every={search.every}) with epochs={epochs} leaves no complete generation: raise `epochs` or lower "
            "`every`"
        )


def _perturb(search: PBT, space: Space) -> Mapping[str, Sequence[float]]:
    for name in search.perturb:
        distribution = space.get(name)
        if distribution is None:
            raise SearchError(
                f"PBT(perturb=...) names {name!r}, but the search space has {', '.join(space)}: name one of these"
            )
        if _is_fixed(distribution):
            raise SearchError(
                f"PBT(perturb=...) names {name!r}, which is fixed in the search space: remove it, or set a range"
            )
    if search.perturb:
        return search.perturb
    factors = {
        name: PERTURB_FACTORS for name, each in space.items() if isinstance(each, Uniform | LogUniform)
    }
    if not factors:
        raise SearchError(
            "PBT() has nothing to change in its clones, because no hyperparameter uses uniform() or loguniform(): "
            'name hyperparameters and factors, as in perturb={"batch_size": [0.5, 2]}'
        )
    return factors


def _is_fixed(distribution: Distribution) -> bool:
    return isinstance(distribution, ChoiceOf) and len(distribution.values) == 1


# --- samplers, rules, limits --------------------------------------------------------------------


def _check_cma(space: Space) -> None:
    sampled = {name: distribution for name, distribution in space.items() if not _is_fixed(distribution)}
    for name, distribution in sampled.items():
        if isinstance(distribution, ChoiceOf):
            raise SearchError(
                f"CMA() samples numbers only, and {name!r} is a choice: use TPE(), or uniform(), loguniform() or "
                "randint() for it"
            )
    if len(sampled) < 2:
        raise SearchError(
            f"CMA() needs at least two numeric distributions, and the search space has {len(sampled)}: use TPE()"
        )


def _rules(stop: Any) -> tuple[StopRule, ...]:
    rules = stop if isinstance(stop, Sequence) and not isinstance(stop, str) else [stop]
    for rule in rules:
        if not isinstance(rule, Plateau | Median | Above | Below):
            raise SearchError(
                f"stop has {rule!r}, expected cerebro's Plateau(), Median(), Above() or Below(), or a list of them"
            )
    return tuple(rules)


def _earlier(start_from: Any) -> tuple[Earlier, ...]:
    fits = [start_from] if isinstance(start_from, str | Earlier) else start_from
    if not isinstance(fits, Sequence) or not all(isinstance(each, str | Earlier) for each in fits):
        raise SearchError(
            f'start_from is {start_from!r}, expected names of ended fits, such as ["digits/fit-1"], or Earlier()'
        )
    found = tuple(each if isinstance(each, Earlier) else Earlier(each) for each in fits)
    names = [each.run for each in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise SearchError(f"start_from names {min(twice)} twice: name it once")
    return found


def _no_sampler(reason: str) -> str:
    return (
        f"start_from has no effect, because {reason}: set a sampler that learns, as in ASHA(sampler=TPE()), or leave "
        "start_from out"
    )


def _check_samples(samples: object) -> None:
    if samples is None:
        return
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise SearchError(f"samples={samples!r}: expected a whole number of at least 1")


def _check_keep(keep: object) -> None:
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
        raise SearchError(
            f"keep is {keep!r}, expected the number of models that keep their checkpoints, at least 1, or None for all"
        )
