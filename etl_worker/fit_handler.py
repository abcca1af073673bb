"""The handler of `fitting` tasks: calls the user's `ETLSpec.fit` with all training rows.

The child's task loop creates `Handler` and calls `handle`, before any `etl` task of the data set. It reads the metadata
of all training partitions on the shared volume, and the objects they name, and writes one file there: the pickled
return value. It makes no shards. A spec without `fit` gives an empty result.
"""

from __future__ import annotations

import shutil
import time

from cerebro.contract.tasks.bodies import FittingTask, TaskBody
from cerebro.contract.tasks.results import TaskResult, Timings
from cerebro.errors import SpecError
from cerebro.state import TaskKey
from cerebro.usercode.checks import NO_TRAINING_ROWS, check_etl_spec, fits
from cerebro.usercode.fitted import pack_fitted, write_fitted
from cerebro.worker.child.context import BaseHandler
from cerebro.worker.preprocessing.fit_pass import FitPass


class Handler(BaseHandler):
    """Calls `ETLSpec.fit`."""

    def handle(self, body: TaskBody, attempt: int) -> TaskResult:
        """Call `fit` and store its return value.

        The file name contains the attempt, and the log records which attempt counts.
        """
        if not isinstance(body, FittingTask):
            raise SpecError(f"etl_worker.fit_handler does not execute tasks of kind {body.kind!r}")
        spec = self._context.user_code.spec_factory(body.code, body.locators.misc)()
        timings = Timings(start_s=self._context.start_up.finish())
        if not fits(spec):  # known only after the spec is restored
            return TaskResult(timings=timings)
        check_etl_spec(spec, "run_etl")
        if body.locators.train is None:
            raise SpecError(NO_TRAINING_ROWS)
        began = time.monotonic()

        def on_rows(rows: int, total: int) -> None:
            self._context.listen()
            self._context.progress(rows=rows, total_rows=total)
            if rows < total:
                self._context.raise_if_ending()

        run, scratch = TaskKey.parse(body.key).run, self._volumes.downloads(body.dataset, "fitting")
        fitting = FitPass(
            spec,
            [self._volumes.metadata(body.dataset, "train", number) for number in body.partitions],
            objects_uri=body.locators.train.objects,
            scratch=scratch,
            seed_key=f"{body.dataset}/fit",
            on_rows=on_rows,
        )
        try:
            content = pack_fitted(fitting.fit())
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        self._context.raise_if_ended()
        compute_s, saving = time.monotonic() - began, time.monotonic()
        path = self._volumes.fitted(body.dataset, run, attempt)
        reference = write_fitted(path, content, self._volumes.shared)
        took = {"compute_s": compute_s, "save_s": time.monotonic() - saving}
        return TaskResult(
            rows=fitting.rows,
            cores=self._context.cores,
            fitted=reference,
            timings=timings.model_copy(update=took),
        )
