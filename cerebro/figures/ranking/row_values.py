"""Reader of metrics per row that a test run stored, one model at a time in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from cerebro.data.tables.whole_tables import joined, read_rows
from cerebro.errors import DataError

Floats = npt.NDArray[np.float64]
OpenFile = Callable[[str], BinaryIO]
"""Opens a file of the shared volume."""

_Columns = dict[str, "np.ndarray[Any, Any]"]
_MAX_NAMES = 5


class ModelValues(NamedTuple):
    """All rows of one model.

    Attributes:
        values: chosen metric.
        metrics: all metrics by name.
    """

    model: str
    values: Floats
    metrics: Mapping[str, np.ndarray[Any, Any]]


class RowValues:
    """Metrics per row of a test run's models. Reads a model's files each time it is requested.

    Args:
        files: model -> its files, in the order of the partitions; at least one model.
        metric: chosen metric; empty for the only one in the files.

    Attributes:
        metrics: names of all metrics of the first model.
        metric: chosen metric.

    Raises:
        DataError: the metric has no values per row, or a file is damaged.
        OSError: the volume cannot be read.
    """

    def __init__(self, files: Mapping[str, tuple[str, ...]], metric: str, open_file: OpenFile) -> None:
        self._files, self._open_file = files, open_file
        self._first = next(iter(files))
        self._ids: list[Any] | None = None
        """Ids of each file of a model, as Arrow arrays."""
        self.metrics = tuple(self._read(files[self._first][0])[1])
        self.metric = self._chosen(metric)

    @property
    def num_rows(self) -> int:
        """Number of tested rows."""
        return sum(len(part) for part in self._known_ids())

    def ids(self, rows: npt.NDArray[np.int64] | None = None) -> np.ndarray[Any, Any]:
        """Return the ids of rows, by their positions in the order of the test; by default of all."""
        return joined(self._known_ids(), rows)

    def require(self, models: Sequence[str]) -> None:
        """Raise DataError if a model has no values."""
        for model in models:
            if model not in self._files:
                known = [*self._files]
                more = f" and {len(known) - _MAX_NAMES} others" if len(known) > _MAX_NAMES else ""
                raise DataError(
                    f"the test has no values per row of {model!r}: it has them of {', '.join(known[:_MAX_NAMES])}{more}"
                )

    def of(self, models: Sequence[str] | None = None) -> Iterator[ModelValues]:
        """Yield the values of models, by default of all.

        Raises:
            DataError: a model was tested on other rows, lacks the metric, or its file is damaged.
            OSError: the volume cannot be read.
        """
        for model in self._files if models is None else models:
            ids, parts = zip(*map(self._read, self._files[model]), strict=True)
            if any(self.metric not in part for part in parts):
                raise DataError(
                    f"{model} has no values per row of {self.metric!r}: test all models with the same code"
                )
            if self._ids is None:
                self._ids, self._first = list(ids), model
            elif not _are_equal(ids, self._ids):
                raise DataError(f"{model} was tested on other rows than {self._first}: test them in one run")
            metrics = {name: _column(parts, name) for name in parts[0] if all(name in part for part in parts)}
            yield ModelValues(model, metrics[self.metric].astype(np.float64, copy=False), metrics)

    def _known_ids(self) -> list[Any]:
        if self._ids is None:
            next(self.of([self._first]))
        assert self._ids is not None
        return self._ids

    def _read(self, name: str) -> tuple[Any, _Columns]:
        with self._open_file(name) as file:
            return read_rows(file, name)

    def _chosen(self, metric: str) -> str:
        if metric in self.metrics:
            return metric
        if not metric and len(self.metrics) == 1:
            return self.metrics[0]
        named = f"{metric!r} has no values per row" if metric else "no metric was chosen"
        raise DataError(f"{named}: the test has them of {', '.join(self.metrics)}")


def _are_equal(ids: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(ids) == len(others) and all(one.equals(other) for one, other in zip(ids, others, strict=True))


def _column(parts: Sequence[_Columns], name: str) -> np.ndarray[Any, Any]:
    return np.concatenate([part[name] for part in parts]) if len(parts) > 1 else parts[0][name]
