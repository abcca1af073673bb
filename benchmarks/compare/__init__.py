"""Cerebro beside other methods of training the same models: measured here, and simulated at the paper's scale.

``make compare`` measures all methods and writes docs/comparison.md; the benchmark ``compare`` measures those that
have a bar.
`task` is what all have in common, `contenders` and its neighbours the other methods, `ours` is Cerebro, `sitting`
measures them by turns. `simulation` and `paper` are the table at the paper's scale, `document` writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.figure import Figure


def benchmark() -> list[Figure]:
    """The methods with a bar, as lines of the table."""
    # Only now: contenders are programs of this package that run where Cerebro is not installed.
    from benchmarks.compare import figures, sitting

    return figures.of(sitting.measure(("cerebro", *figures.BARS), rounds=3))
