"""The contract suite of search procedures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Literal

from cerebro.client.search.requests import pack_procedure
from cerebro.client.search.space import space_data
from cerebro.contract.search import SearchRequest, Space
from cerebro.errors import SearchError
from cerebro.search.procedure import Add, Procedure
from cerebro.search.transducer import Search
from cerebro.search.user_procedure import Recorder
from cerebro.search.wire_format import actions_line
from cerebro.testing.conditions import note_conditions, spaces_of
from cerebro.testing.simulated_run import SimulatedRun

_SEEDS = 5
_DISTURBANCES = 20
_MAX_STEPS = 20_000


def check_procedure(
    make: Callable[[], Procedure],
    space: Mapping[str, Any],
    *,
    epochs: int = 9,
    samples: int | None = 20,
    workers: int = 2,
    mode: Literal["min", "max"] = "max",
) -> None:
    """Run searches of a procedure in a simulation, and check them.

    It checks:

    - *objects*: each object has the methods of `cerebro.search.Procedure` and can be sent to a worker;
    - *actions*: each action is possible, also in a variant of the space in which only some models have one of the
      hyperparameters (`when`);
    - *end*: the search ends, also if users stop, add, extend and change models and if models fail;
    - *repetition*: a new object returns the same actions for the same reports, as after a crash.

    Nothing is trained. Reports arrive in several orders, with pseudo-random metrics.

    Args:
        make: returns a new procedure, such as its class.
        space: search space as of `Experiment.run_fit`, with ``batch_size``.
        epochs: maximum epochs of a model.
        samples: maximum number of sampled models.
        workers: number of workers at the start.
        mode: ``"max"`` if larger metrics are better.

    Raises:
        SearchError: the procedure does not conform; the message has the action and the report before it.

    Example:
        >>> from cerebro import choice
        >>> from cerebro.search import Add, Procedure, Suggest, Suggested
        >>> from cerebro.testing import check_procedure
        >>> class Plain(Procedure):
        ...     def begin(self, facts):
        ...         self.facts = facts
        ...         return [Suggest(count=4)]
        ...     def on_report(self, report):
        ...         if isinstance(report, Suggested):
        ...             return [Add(hyperparams=report.hyperparams, epochs=self.facts.epochs)]
        ...         return []
        >>> check_procedure(Plain, {"lr": choice([0.1, 0.01]), "batch_size": 32})
    """
    procedure, _codes = pack_procedure(make(), author="")

    def search_with(recorder: Recorder, data: Space) -> Search:
        return Search(
            SearchRequest(procedure=procedure, space=data, samples=samples),
            epochs=epochs,
            metric="metric",
            mode=mode,
            seed=7,
            workers=workers,
            user_procedure=recorder,
        )

    for data in spaces_of(space_data(space)):
        for seed in range(_SEEDS):
            for disturbances in (0, _DISTURBANCES):
                with note_conditions(data):
                    _check_run(
                        lambda: Recorder(make(), procedure.name),
                        lambda recorder, data=data: search_with(recorder, data),  # type: ignore[misc]
                        seed,
                        disturbances,
                    )


def _check_run(
    recorded: Callable[[], Recorder], search_with: Callable[[Recorder], Search], seed: int, disturbances: int
) -> None:
    first = recorded()
    try:
        run = SimulatedRun(search_with(first), seed)
        run.max_reports = _MAX_STEPS
        run.to_the_end(disturbances=disturbances, max_steps=_MAX_STEPS)
    except AssertionError as problem:
        raise SearchError(f"the procedure does not conform (order {seed}): {problem}") from problem
    for action in itertools.chain.from_iterable(run.actions):
        if isinstance(action, Add):
            _check_conditions(action, run.search.facts.space, seed)
    second = recorded()
    search = search_with(second)
    search.begin()
    for report in run.reports:
        search.on_report(report)
    earlier, later = first.take(), second.take()
    if actions_line(earlier) != actions_line(later):
        pairs = zip(earlier, later, strict=False)
        number = next(
            (n for n, (one, other) in enumerate(pairs) if one != other), min(len(earlier), len(later))
        )
        raise SearchError(
            f"a new object returned other actions for the same reports (order {seed}): action {number} was "
            f"{_at(earlier, number)}, then {_at(later, number)}. Actions may depend only on reports; random numbers "
            "come from facts.rng(number)"
        )


def _check_conditions(action: Add, space: Space, seed: int) -> None:
    for name, distribution in space.items():
        if distribution.when and name not in action.hyperparams and distribution.applies(action.hyperparams):
            raise SearchError(
                f"the procedure does not conform (order {seed}): {action} lacks {name}, whose conditions "
                f"{distribution.when} are met: add a value, or keep the values that the conditions name"
            )


def _at(actions: tuple[Any, ...], number: int) -> object:
    return actions[number] if number < len(actions) else "missing"
