"""Cerebro and other methods of training the same models: measured here, and simulated at the paper's scale.

``make compare`` measures all methods and writes docs/comparison.md; the benchmark ``compare`` measures methods with a
bar. `task` is the common part, `contenders` and its neighbours are the other methods, `ours` is Cerebro, and `sitting`
measures them in turns. `simulation` and `paper` give the table at the paper's scale, and `document` writes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.figure import Figure


def benchmark() -> list[Figure]:
    """Measure the methods with a bar."""
    # Imported late: contenders are programs of this package that run in environments without Cerebro.
    from benchmarks.compare import figures, sitting

    return figures.of(sitting.measure(("cerebro", *figures.BARS), rounds=3))
