"""The command line ``cerebro``: one module per group of commands."""

from cerebro.cli.program import main

__all__ = ["main"]
