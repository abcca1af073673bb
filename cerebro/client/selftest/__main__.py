"""``python -m cerebro.client.selftest``: wiring only."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from cerebro.client.selftest.trial import TIMEOUT_S, run
from cerebro.errors import CerebroError


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the cluster of ``CEREBRO_SERVER`` or the local one; 0 if all is as it should be, else 1 and why not."""
    parser = argparse.ArgumentParser(
        prog="python -m cerebro.client.selftest", description=(__doc__ or "").strip()
    )
    parser.add_argument("--home", metavar="DIR", help="folder of a local cluster")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, metavar="S", help="seconds in all")
    options = parser.parse_args(arguments)
    try:
        return run(options.home, timeout_s=options.timeout)
    except CerebroError as problem:
        sys.stderr.write(f"selftest FAILED: {problem}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
