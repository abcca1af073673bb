"""Pairs several idle workers with idle models at once, so that all that is critical is served.

Taken one by one, a worker may take the very model that another could not do without. A worker or a model is critical
when the makespan waits for it alone; in a bipartite graph some matching covers every vertex of largest degree, on both
sides at once (Koenig 1916; Mendelsohn and Dulmage 1958), which is also why an open shop of equal times always meets its
bound (Gonzalez and Sahni 1976). With unequal times it is a heuristic, which spares conflicts at little cost.

Models are bits of masks here, the most critical the lowest, so a step of a search takes in all models at once. What a
search reached in vain is searched no more: nothing that comes later can help it (Kuhn 1955). So the number of steps is
at most that of the pairs times that of the workers or models, and for equals it is one a worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence


def pair(fits: Mapping[int, int], level: Sequence[int]) -> dict[int, int]:
    """Worker -> place of its model: as many as can be, and among those the workers, then the models, that come first.

    Args:
        fits: worker -> mask of the models it could take, by their places; the most critical worker first.
        level: of the model at each place, ascending; the same number for equally critical ones.
    """
    found = _serve_workers(fits)
    _serve_models(fits, found, level)
    return found


def _serve_workers(fits: Mapping[int, int]) -> dict[int, int]:
    """A model for each worker that can have one, if need be by giving others another one (augmenting paths)."""
    found: dict[int, int] = {}
    at: dict[int, int] = {}
    taken = given_up = 0
    for worker in fits:
        came_by: dict[int, int] = {}
        reached, seen = [worker], given_up
        for current in reached:
            new = fits[current] & ~seen
            free = new & ~taken
            if free:
                last = _lowest(free)
                taken |= 1 << last
                came_by[last] = current
                _move_up(worker, last, came_by, found, at)
                break
            seen |= new
            for place in _bits(new):
                came_by[place] = current
                reached.append(at[place])
        else:
            given_up = seen
    return found


def _move_up(
    worker: int, last: int, came_by: Mapping[int, int], found: dict[int, int], at: dict[int, int]
) -> None:
    """Along the path that ends at a free model, each worker takes the model that it was left by."""
    while True:
        mover = came_by[last]
        before = found.get(mover)
        found[mover], at[last] = last, mover
        if mover == worker or before is None:
            return
        last = before


def _serve_models(fits: Mapping[int, int], found: dict[int, int], level: Sequence[int]) -> None:
    """Finds each model a worker, the most critical first, at the expense of the least critical one that can be
    displaced (even alternating paths). Every worker that could have a model has one already."""
    taken = sum(1 << place for place in found.values())
    places: list[int] = []
    names = list(fits)
    given_up = 0
    for place in range(len(level)):
        highest = level[taken.bit_length() - 1] if taken else 0
        if level[place] >= highest:
            return  # nobody less critical is served
        if taken >> place & 1:
            continue
        places = places or _transposed(list(fits.values()), len(level))
        came_by: dict[int, tuple[int, int]] = {}
        reached, last, seen = [place], place, given_up
        for current in reached:
            new = places[current] & ~seen
            seen |= new
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
            given_up = seen
            continue
        taken ^= 1 << last | 1 << place
        while last != place:
            last, worker = came_by[last]
            found[worker] = last


def _bits(mask: int) -> Iterator[int]:
    """The places of a mask's bits, ascending."""
    while mask:
        place = _lowest(mask)
        yield place
        mask &= mask - 1


def _transposed(rows: Sequence[int], width: int) -> list[int]:
    """Masks as the rows of a matrix -> its columns: bit `r` of column `c` is bit `c` of row `r`."""
    # By way of text, because Python turns text into numbers, and turns it by 90 degrees, a thousand times faster than
    # it can look at bits one by one.
    if not rows or not width:
        return [0] * width
    texts = [format(row, f"0{width}b") for row in reversed(rows)]
    return [int("".join(column), 2) for column in zip(*texts, strict=True)][::-1]


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1
