"""``cerebro completion``: print the script that makes a shell complete commands, options and experiments.

The script calls ``cerebro`` again at each Tab, with ``_ARGCOMPLETE`` in its environment; `complete` then prints the
words. argcomplete does both.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from cerebro.errors import CerebroError

_WHERE = {
    "bash": "~/.bashrc",
    "zsh": "~/.zshrc",
    "fish": "~/.config/fish/config.fish",
}
_TIMEOUT_S = 1.0
"""Longest wait for the names of experiments: a user waits for Tab."""


def register(commands: Any) -> None:
    """Add ``completion`` to the subcommands."""
    parser = commands.add_parser(
        "completion",
        help="print a script for completion in your shell",
        epilog='In bash and zsh: eval "$(cerebro completion bash)". In fish: cerebro completion fish | source. '
        f"To keep it, add this line to {', '.join(_WHERE.values())}.",
    )
    parser.add_argument("shell", choices=tuple(_WHERE), metavar="SHELL", help="bash, zsh or fish")
    parser.set_defaults(run=_completion)


def _completion(options: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["cerebro"], shell=options.shell))
    return 0


def complete(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    """Print the completions and exit, if a shell asks for them."""
    if "_ARGCOMPLETE" in environment:
        import argcomplete

        argcomplete.autocomplete(parser, always_complete_options=False)


def add_completers(parser: argparse.ArgumentParser) -> None:
    """Complete every argument EXPERIMENT with the names of experiments."""
    for command in _commands(parser):
        for action in command._actions:
            if action.metavar == "EXPERIMENT":
                action.completer = _experiments  # type: ignore[attr-defined]  # argcomplete reads it


def _commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield command
                yield from _commands(command)


def _experiments(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return the names of experiments, or an empty list if the cluster does not answer in time."""
    import os

    from cerebro.local.home import ClusterHome, find_running
    from cerebro.runtime.kvs.client import KvsClient

    home = getattr(parsed_args, "home", None)
    address, token = os.environ.get("CEREBRO_SERVER", ""), os.environ.get("CEREBRO_TOKEN", "")
    try:
        if home or not address:
            info = find_running(ClusterHome(home))
            if info is None:
                return []
            address, token = info.kvs, info.token()
        kvs = KvsClient(address, token, retry_for_s=_TIMEOUT_S, timeout_s=_TIMEOUT_S)
        prefix = kvs.api_prefix()
        if prefix:
            kvs = KvsClient(address.rstrip("/") + prefix, token, retry_for_s=_TIMEOUT_S, timeout_s=_TIMEOUT_S)
        return [summary.experiment.name for summary in kvs.experiments()]
    except CerebroError:
        return []
