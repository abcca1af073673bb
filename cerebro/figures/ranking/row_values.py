"""Reader of metrics per row that a test run stored, one model at a time in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from cerebro.data.tables.whole_tables import read_arrays
from cerebro.errors import DataError

Floats = npt.NDArray[np.float64]
OpenFile = Callable[[str], BinaryIO]
"""Opens a file of the shared volume."""

_Table = dict[str, "np.ndarray[Any, Any]"]
_MAX_NAMES = 5


class ModelValues(NamedTuple):
    """All rows of one model.

    Attributes:
        values: chosen metric.
        table: the other metrics, and the rows' ids as ``id``.
    """

    model: str
    values: Floats
    table: Mapping[str, np.ndarray[Any, Any]]


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
        self._ids: np.ndarray[Any, Any] | None = None
        self.metrics = tuple(name for name in self._read(files[self._first][0]) if name != "id")
        self.metric = self._chosen(metric)

    @property
    def num_rows(self) -> int:
        """Rows of the test; reads the first model if none was read."""
        if self._ids is None:
            next(self.of([self._first]))
        assert self._ids is not None
        return len(self._ids)

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
            tables = [self._read(name) for name in self._files[model]]
            if any(self.metric not in table for table in tables):
                raise DataError(
                    f"{model} has no values per row of {self.metric!r}: test all models with the same code"
                )
            names = [name for name in tables[0] if all(name in table for table in tables)]
            table = {name: _column(tables, name) for name in names}
            if self._ids is None:
                self._ids, self._first = table["id"], model
            elif not np.array_equal(table["id"], self._ids):
                raise DataError(f"{model} was tested on other rows than {self._first}: test them in one run")
            yield ModelValues(model, table[self.metric].astype(np.float64, copy=False), table)

    def _read(self, name: str) -> _Table:
        with self._open_file(name) as file:
            return read_arrays(file, name)

    def _chosen(self, metric: str) -> str:
        if metric in self.metrics:
            return metric
        if not metric and len(self.metrics) == 1:
            return self.metrics[0]
        named = f"{metric!r} has no values per row" if metric else "no metric was chosen"
        raise DataError(f"{named}: the test has them of {', '.join(self.metrics)}")


def _column(tables: Sequence[_Table], name: str) -> np.ndarray[Any, Any]:
    return np.concatenate([table[name] for table in tables]) if len(tables) > 1 else tables[0][name]
