"""Entry point of ``python -m cerebro.cli``, the same as the command ``cerebro``."""

import sys

from cerebro.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
