"""Measure all methods and write docs/comparison.md: ``python -m benchmarks.compare [--rows N] [--rounds N]``.

With ``--simulate`` the table at the paper's scale alone, which takes a minute.
"""

from __future__ import annotations

import argparse

from benchmarks import hop
from benchmarks.compare import document, figures, paper, sitting


def main() -> None:
    """Measure, write, print the figures with their bars."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--rows", type=int, default=sitting.ROWS, help="to train on (%(default)s)")
    parser.add_argument("--rounds", type=int, default=sitting.ROUNDS, help="(%(default)s)")
    parser.add_argument("--simulate", action="store_true", help="only the table at the paper's scale")
    arguments = parser.parse_args()
    batch_s = paper.measure_batches()
    hopped = hop.measure()
    state_s_per_byte = hopped["hop_s"] / (hopped["state_mb"] * 1e6)
    found = None
    if not arguments.simulate:
        found = sitting.measure(
            rows=arguments.rows, rounds=arguments.rounds, tell=lambda line: print(line, flush=True)
        )
    text = document.render(document.TARGET.read_text(), found, batch_s, state_s_per_byte)
    document.TARGET.write_text(text)
    print(f"written to {document.TARGET}")
    for figure in figures.of(found) if found is not None else ():
        print("  ".join(figure.cells()))


if __name__ == "__main__":
    main()
