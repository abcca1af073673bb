"""Searches: utilisation of the workers, time to a good model, and time of a suggestion.

Procedures decide in virtual time, in the world of `benchmarks.search_world`, with 8 workers and models of at most 81
epochs. Samplers optimize known functions.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from benchmarks.figure import Figure
from benchmarks.search_world import Configurations, Decider, Outcome, World
from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import (
    ASHA,
    TPE,
    ChoiceOf,
    Hyperband,
    LogUniform,
    ProcedureChoice,
    RandInt,
    Random,
    RandomSampler,
    Sampler,
    SearchRequest,
    Space,
    Uniform,
)
from cerebro.search.history import Past
from cerebro.search.procedure import Action, Facts, Report
from cerebro.search.procedures.hyperband import HyperbandSearch
from cerebro.search.samplers import suggest
from cerebro.search.transducer import Search

WORKERS, EPOCHS = 8, 81
SEEDS = range(30)
RANDOM_MODELS, ASHA_MODELS = 25, 545
"""Numbers of models with about the same cost, 25 x 81 epochs."""


def benchmark() -> list[Figure]:
    """Measure all rows."""
    return [*_busy(), *_hyperband(), _sooner(), _against_random(), _suggestion_time(), _decision_time()]


# --- procedures in virtual time -----------------------------------------------------------------


def _searched(procedure: ProcedureChoice, seed: int, samples: int | None = None) -> Outcome:
    request = SearchRequest(procedure=procedure, samples=samples)
    search = Search(request, epochs=EPOCHS, metric="accuracy", mode="max", seed=seed, workers=WORKERS)
    return _run(search, seed)


BUSY_SEEDS = range(100, 105)
"""Seeds that were not used to choose two models per worker."""
OTHER_MODELS = 1000
"""Offset of the seed of random search's models, which must differ from ASHA's first ones."""


def _run(decider: Decider, seed: int) -> Outcome:
    return World(Configurations(seed), workers=WORKERS, seed=seed).run(decider)


def _busy() -> list[Figure]:
    seeds = BUSY_SEEDS
    two = [_searched(ASHA(), seed, ASHA_MODELS) for seed in seeds]
    one = [_searched(ASHA(active=WORKERS), seed, ASHA_MODELS) for seed in seeds]
    busy, alone = (statistics.mean(each.busy for each in found) for found in (two, one))
    return [
        Figure(
            what="search: ASHA keeps workers busy until the last new model",
            measured=f"{busy:.3f} of the time, two models for each of {WORKERS} workers",
            ratio=busy,
            bar=0.97,
            sense="at least",
            notes=(
                f"means of seeds {seeds[0]} to {seeds[-1]}; {ASHA_MODELS} models of at most {EPOCHS} epochs",
            ),
        ),
        Figure(
            what="search: two models for each worker, against one",
            measured=f"busy {busy:.3f} and {alone:.3f} of the time",
            ratio=busy / alone,
            bar=1.12,
            sense="at least",
        ),
    ]


class _OneByOne(HyperbandSearch):
    """Sequential brackets, with all models of a bracket at once: the algorithm as published."""

    @property
    def samples(self) -> int:
        """Number of models of the started brackets."""
        begun = 0
        for bracket in self._brackets:
            begun += bracket.size
            if not bracket.is_over:
                break
        return begun

    @property
    def _target(self) -> int:
        return len(self._of_suggestion)

    def decider(self, facts: Facts) -> Decider:
        """Return the procedure without the rules and users of a search."""
        return _Alone(partial(self.begin, facts), self.on_report)


class _Alone:
    def __init__(
        self, begin: Callable[[], Sequence[Action]], on_report: Callable[[Report], Sequence[Action]]
    ) -> None:
        self.begin, self.on_report = begin, on_report


def _hyperband() -> list[Figure]:
    seeds = SEEDS[:10]
    found = [_searched(Hyperband(), seed) for seed in seeds]
    printed = [_run(_OneByOne(Hyperband()).decider(_facts(seed)), seed) for seed in seeds]
    makespan, one_by_one = (sum(each.makespan for each in of) for of in (found, printed))
    sooner = [
        (overlapping.reaches(target), other.reaches(target))
        for overlapping, other in zip(found, printed, strict=True)
        for target in [other.best[-1][1] - 0.01]
    ]
    first, second = (statistics.median(times) for times in zip(*sooner, strict=True))
    return [
        Figure(
            what="search: Hyperband's makespan, brackets overlapping against one by one",
            measured=f"{makespan / len(seeds):.0f} against {one_by_one / len(seeds):.0f} s of a typical epoch",
            ratio=makespan / one_by_one,
            bar=0.5,
            sense="at most",
            notes=(
                f"{found[0].models} and {printed[0].models} models, {found[0].epochs} and {printed[0].epochs} epochs",
                f"busy {statistics.mean(each.busy for each in found):.2f} and "
                f"{statistics.mean(each.busy for each in printed):.2f} of the time until the last new model",
            ),
        ),
        Figure(
            what="search: Hyperband's first model within 0.01 of one by one's best, against one by one",
            measured=f"after {first:.0f} against {second:.0f} s, medians of {len(seeds)} seeds",
            ratio=first / second,
            bar=1.0,
            sense="at most",
        ),
    ]


def _facts(seed: int) -> Facts:
    return Facts(epochs=EPOCHS, metric="accuracy", mode="max", samples=None, workers=WORKERS, seed=seed)


def _sooner() -> Figure:
    ratios, of_makespan = [], []
    for seed in SEEDS:
        at_random = _searched(Random(), seed + OTHER_MODELS, RANDOM_MODELS)
        found = _searched(ASHA(), seed, ASHA_MODELS)
        when, best = at_random.best[-1]
        ratios.append(found.reaches(best) / when)
        of_makespan.append(found.reaches(best) / at_random.makespan)
    ratio = statistics.median(of_makespan)
    never = sum(math.isinf(each) for each in ratios)
    return Figure(
        what="search: ASHA is as good as random search will be, against random search's time",
        measured=f"after {ratio:.2f} of its makespan, median of {len(SEEDS)} seeds",
        ratio=ratio,
        bar=0.5,
        sense="at most",
        notes=(
            f"against the moment at which random search came upon its best: {statistics.median(ratios):.2f}",
            f"ASHA did not come to it within its {ASHA_MODELS} models in {never} of {len(SEEDS)} seeds",
        ),
    )


# --- samplers -----------------------------------------------------------------------------------


def _number(hyperparams: Hyperparameters, name: str) -> float:
    value = hyperparams[name]
    assert isinstance(value, int | float)
    return float(value)


def branin(hyperparams: Hyperparameters) -> float:
    """Branin's function, three minima in two dimensions."""
    x, y = _number(hyperparams, "x"), _number(hyperparams, "y")
    bent = y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6
    return bent * bent + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def hartmann(hyperparams: Hyperparameters) -> float:
    """Hartmann's function in six dimensions."""
    point = [_number(hyperparams, f"x{place}") for place in range(6)]
    return -sum(
        weight * math.exp(-sum(a * (x - p) ** 2 for a, x, p in zip(steep, point, centre, strict=True)))
        for weight, steep, centre in _HARTMANN
    )


_HARTMANN = (
    (1.0, (10, 3, 17, 3.5, 1.7, 8), (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886)),
    (1.2, (0.05, 10, 17, 0.1, 8, 14), (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991)),
    (3.0, (3, 3.5, 1.7, 10, 17, 8), (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650)),
    (3.2, (17, 8, 0.05, 10, 0.1, 14), (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381)),
)


def network(hyperparams: Hyperparameters) -> float:
    """A function like a network's error, of numbers, an integer and choices with different influence."""
    rate, decay = (math.log10(_number(hyperparams, name)) for name in ("lr", "decay"))
    width = {32: 0.15, 64: 0.05, 128: 0.0, 256: 0.02}[int(_number(hyperparams, "width"))]
    steep = {"relu": 0.0, "tanh": 0.04, "sigmoid": 0.12}[str(hyperparams["act"])]
    depth = abs(_number(hyperparams, "layers") - 3) * 0.02
    return 0.1 + 0.05 * (rate + 2.7) ** 2 + 0.01 * (decay + 4) ** 2 + width + steep + depth


FUNCTIONS: Mapping[str, tuple[Callable[[Hyperparameters], float], Space]] = {
    "branin": (branin, {"x": Uniform(low=-5, high=10), "y": Uniform(low=0, high=15)}),
    "hartmann": (hartmann, {f"x{place}": Uniform(low=0, high=1) for place in range(6)}),
    "network": (
        network,
        {
            "lr": LogUniform(low=1e-5, high=1.0),
            "decay": LogUniform(low=1e-6, high=1e-1),
            "layers": RandInt(low=1, high=8),
            "width": ChoiceOf(values=(32, 64, 128, 256)),
            "act": ChoiceOf(values=("relu", "tanh", "sigmoid")),
            "batch_size": ChoiceOf(values=(32,)),
        },
    ),
}
SUGGESTIONS, AT_A_TIME = 100, 4


def _best(function: str, choice: Sampler, seed: int) -> float:
    of, space = FUNCTIONS[function]
    history: list[Past] = []
    while len(history) < SUGGESTIONS:
        numbers = range(len(history), len(history) + AT_A_TIME)
        history += [
            Past(hyperparams=each, scores={1: -of(each)}, is_running=False)
            for each in suggest(choice, space, history, numbers, seed)
        ]
    return max(past.scores[1] for past in history)


def _against_random() -> Figure:
    won = {
        name: sum(_best(name, TPE(), seed) > _best(name, RandomSampler(), seed + 1000) for seed in SEEDS)
        for name in FUNCTIONS
    }
    share = sum(won.values()) / (len(FUNCTIONS) * len(SEEDS))
    return Figure(
        what=f"search: TPE is better than random suggestions after {SUGGESTIONS} models",
        measured=f"in {share:.0%} of {len(FUNCTIONS) * len(SEEDS)} searches, {AT_A_TIME} models at a time",
        ratio=share,
        bar=0.8,
        sense="at least",
        notes=tuple(f"{name}: {count} of {len(SEEDS)} seeds" for name, count in won.items()),
    )


# --- times --------------------------------------------------------------------------------------

MANY = 1000
WIDE: Space = {
    **{f"x{place}": Uniform(low=0, high=1) for place in range(5)},
    "lr": LogUniform(low=1e-5, high=1e-1),
    "layers": RandInt(low=1, high=8),
    "act": ChoiceOf(values=("relu", "tanh", "sigmoid")),
}


def _suggestion_time() -> Figure:
    history = [
        Past(hyperparams=each, scores={1: -abs(_number(each, "x0") - 0.3)}, is_running=False)
        for each in suggest(RandomSampler(), WIDE, (), range(MANY), 0)
    ]
    seconds = []
    for number in range(MANY, MANY + 11):
        began = time.process_time()
        suggest(TPE(), WIDE, history, range(number, number + 1), 0)
        seconds.append(time.process_time() - began)
    took = statistics.median(seconds[1:]) * 1000  # the first one imports
    return Figure(
        what=f"search: a TPE suggestion after {MANY} models, including the replay of all models",
        measured=f"{took:.0f} ms of processor time, {len(WIDE)} hyperparameters",
        ratio=took,
        bar=50,
        sense="at most",
        measure="ms",
    )


class _Timed:
    """A search with timed decisions."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.seconds: list[float] = []

    def begin(self) -> Sequence[Action]:
        """Decide like the search."""
        return self.search.begin()

    def on_report(self, report: Report) -> Sequence[Action]:
        """Decide like the search."""
        began = time.process_time()
        actions = self.search.on_report(report)
        self.seconds.append(time.process_time() - began)
        return actions


def _decision_time() -> Figure:
    request = SearchRequest(procedure=ASHA(rule="promotion"), samples=MANY)
    search = Search(request, epochs=27, metric="accuracy", mode="max", seed=0, workers=WORKERS)
    _run(timed := _Timed(search), 0)
    late = sorted(timed.seconds[len(timed.seconds) // 2 :])
    most = late[int(len(late) * 0.99)] * 1000
    return Figure(
        what=f"search: a decision of a procedure with {MANY} models",
        measured=f"{most:.2f} ms of processor time, the 99th percentile of {len(late)} reports",
        ratio=most,
        bar=2,
        sense="at most",
        measure="ms",
        notes=("ASHA that promotes; the procedure and the search around it, no fold and no store",),
    )
