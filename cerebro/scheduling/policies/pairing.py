"""Matching of idle devices and idle models, so that every critical one is served. Pure; for `critical_first`.

"Worker" means the number of one idle device: `critical_first` lists a worker once for each. "Place" means the position
of a model in the order of criticality.

Served one by one, a worker may take the only model that fits another. A worker or model is critical if it
alone determines the makespan. In a bipartite graph some matching covers every vertex of largest degree, on
both sides at once (Koenig 1916; Mendelsohn and Dulmage 1958); for the same reason an open shop of equal times
always meets its bound (Gonzalez and Sahni 1976). With unequal times this is a heuristic that avoids conflicts
cheaply.

Models are bits of masks, the most critical one the lowest, so a search step covers all models at once.
Vertices reached by a failed search are not searched again (Kuhn 1955). The number of steps is at most pairs
times workers or models; with equal times it is one per worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence


def pair(fits: Mapping[int, int], level: Sequence[int]) -> dict[int, int]:
    """Return worker -> position of its model in a maximum matching.

    Among maximum matchings, prefers critical workers, then critical models.

    Args:
        fits: worker -> mask of possible models by position; the most critical worker first.
        level: rank of the model at each position, ascending from 0, the most critical; equals share a rank.
    """
    found = _serve_workers(fits)
    _serve_models(fits, found, level)
    return found


def _serve_workers(fits: Mapping[int, int]) -> dict[int, int]:
    """Match each worker that can have a model, by augmenting paths."""
    found: dict[int, int] = {}
    at: dict[int, int] = {}
    taken = given_up = 0
    for worker in fits:
        came_by: dict[int, int] = {}
        reached, explored = [worker], given_up
        for current in reached:
            new = fits[current] & ~explored
            free = new & ~taken
            if free:
                last = _lowest(free)
                taken |= 1 << last
                came_by[last] = current
                _move_up(worker, last, came_by, found, at)
                break
            explored |= new
            for place in _bits(new):
                came_by[place] = current
                reached.append(at[place])
        else:
            given_up = explored
    return found


def _move_up(
    worker: int, last: int, came_by: Mapping[int, int], found: dict[int, int], at: dict[int, int]
) -> None:
    """Apply an augmenting path that ends at a free model."""
    while True:
        mover = came_by[last]
        previous_place = found.get(mover)
        found[mover], at[last] = last, mover
        if mover == worker or previous_place is None:
            return
        last = previous_place


def _serve_models(fits: Mapping[int, int], found: dict[int, int], level: Sequence[int]) -> None:
    """Match each model, the most critical first, by displacing the least critical possible one.

    Uses even alternating paths. No augmenting path exists any more.
    """
    taken = sum(1 << place for place in found.values())
    places: list[int] = []
    names = list(fits)
    given_up = 0
    for place in range(len(level)):
        highest = level[taken.bit_length() - 1] if taken else 0
        if level[place] >= highest:
            return  # no less critical model is matched
        if taken >> place & 1:
            continue
        places = places or _transposed(list(fits.values()), len(level))
        came_by: dict[int, tuple[int, int]] = {}
        reached, last, explored = [place], place, given_up
        for current in reached:
            new = places[current] & ~explored
            explored |= new
            for number in _bits(new):
                displaced = found.get(names[number])
                if displaced is None:
                    continue
                came_by[displaced] = (current, names[number])
                reached.append(displaced)
                if level[displaced] > level[last]:
                    last = displaced
            if level[last] == highest:
                break
        if last == place:
            given_up = explored
            continue
        taken ^= 1 << last | 1 << place
        while last != place:
            last, worker = came_by[last]
            found[worker] = last


def _bits(mask: int) -> Iterator[int]:
    """Yield the positions of a mask's bits, ascending."""
    while mask:
        place = _lowest(mask)
        yield place
        mask &= mask - 1


def _transposed(rows: Sequence[int], width: int) -> list[int]:
    """Transpose a bit matrix: bit `r` of column `c` is bit `c` of row `r`."""
    # Converts through text: Python parses and transposes text a thousand times faster than it tests single
    # bits.
    if not rows or not width:
        return [0] * width
    texts = [format(row, f"0{width}b") for row in reversed(rows)]
    return [int("".join(column), 2) for column in zip(*texts, strict=True)][::-1]


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1
