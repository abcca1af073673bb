"""Pairs several idle workers with idle models at once, so that all that is critical is served.

Taken one by one, a worker may take the very model that another could not do without. A worker or a model is critical
when the makespan waits for it alone; in a bipartite graph some matching covers every vertex of largest degree, on both
sides at once (Koenig 1916; Mendelsohn and Dulmage 1958), which is also why an open shop of equal times always meets its
bound (Gonzalez and Sahni 1976). With unequal times it is a heuristic, which spares conflicts at little cost.
"""

from __future__ import annotations

from collections import defaultdict


def pair(fits: dict[int, list[int]], level: dict[int, int]) -> dict[int, int]:
    """Worker -> model: as many as can be, and among those the workers, then the models, that come first.

    Args:
        fits: worker -> models it could take, the most urgent first; the most urgent worker first.
        level: of each model, the most urgent 0.
    """
    found: dict[int, int] = {}
    at: dict[int, int] = {}
    for worker in fits:
        _serve_worker(worker, fits, found, at, set())
    places: dict[int, list[int]] = defaultdict(list)
    for worker, models in fits.items():
        for model in models:
            places[model].append(worker)
    for model in sorted(places, key=lambda m: (level[m], m)):
        if model not in at:
            _serve_model(model, places, found, at, level)
    return found


def _serve_worker(
    worker: int, fits: dict[int, list[int]], found: dict[int, int], at: dict[int, int], seen: set[int]
) -> bool:
    """Finds the worker a model, if need be by giving others another one (an augmenting path)."""
    for model in fits[worker]:
        if model not in seen:
            seen.add(model)
            if model not in at or _serve_worker(at[model], fits, found, at, seen):
                found[worker], at[model] = model, worker
                return True
    return False


def _serve_model(
    model: int,
    places: dict[int, list[int]],
    found: dict[int, int],
    at: dict[int, int],
    urgency: dict[int, int],
) -> None:
    """Finds the model a worker at the expense of the least urgent model that can be displaced (an even alternating
    path). Every worker that could have a model has one already."""
    came_by: dict[int, tuple[int, int]] = {}
    reached, last = [model], model
    for current in reached:
        for worker in places[current]:
            displaced = found.get(worker)
            if displaced is not None and displaced != model and displaced not in came_by:
                came_by[displaced] = (current, worker)
                reached.append(displaced)
                if urgency[displaced] > urgency[last]:
                    last = displaced
    if last == model:
        return
    del at[last]
    while last != model:
        last, worker = came_by[last]
        found[worker], at[last] = last, worker
