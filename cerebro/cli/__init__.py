"""The command line ``cerebro``.

`program` builds the parser and runs one command. The commands for clusters are in `administration`, the commands for
experiments in `experiments`, the checks of ``cerebro doctor`` in `doctor`. A command imports its libraries when it
runs, so that ``cerebro --help`` is fast. `administration.cluster_status`, `administration.queue` and
`experiments.status` format the output of ``cerebro status``; `parsing` and `text` serve all commands.
"""

from cerebro.cli.program import main

__all__ = ["main"]
