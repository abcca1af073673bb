"""Entry point of ``python -m research``."""

import sys

from research.command import main

sys.exit(main())
