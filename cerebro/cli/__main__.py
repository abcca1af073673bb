"""``python -m cerebro.cli``: wiring only."""

import sys

from cerebro.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
