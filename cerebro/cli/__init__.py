"""The command line ``cerebro``.

`program` builds the parser and runs one command. Each other module has the commands of one topic. Modules import what
a command needs when it runs, so that ``cerebro --help`` is fast. `status` and `experiment_status` format the output of
``cerebro status``, `queue` its queue and its JSON, and `text` numbers and tables. `doctor` checks the machine.
"""

from cerebro.cli.program import main

__all__ = ["main"]
