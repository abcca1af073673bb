"""Argument parser with short errors and groups of commands, and argument types. For commands and research scripts."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from cerebro.contract.texts import did_you_mean


class OneLineParser(argparse.ArgumentParser):
    """Parser that reports a mistake in one line, with similar names, and without the usage.

    Attributes:
        synonyms: word that a user may try -> the command that does it.
    """

    synonyms: Mapping[str, str] = {}

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        stop = "" if message.endswith("?") else "."
        self.exit(2, f"{self.prog.split()[0]}: {message}{stop} See {self.prog} --help\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse the arguments. Refuses unknown ones, although argparse returns them: only here the command is known."""
        options, unknown = super().parse_known_args(args, namespace)
        if name := next((each.partition("=")[0] for each in unknown if each.startswith("-")), ""):
            known = [option for action in self._actions for option in action.option_strings]
            self.error(f"{self.prog} has no option {name}{did_you_mean(name, known)}")
        # argparse takes all positional arguments before the first option, even an empty list.
        rest = next((each for each in self._actions if not each.option_strings and each.nargs == "*"), None)
        if unknown and rest is not None:
            setattr(options, rest.dest, [*(getattr(options, rest.dest, None) or ()), *unknown])
            unknown = []
        if unknown:
            self.error(f"{self.prog} takes no further argument {unknown[0]!r}")
        return options, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            kind = str(action.metavar).lower()
            other = self.synonyms.get(str(value))
            hint = f": did you mean {other}?" if other else did_you_mean(str(value), action.choices)
            raise argparse.ArgumentError(None, f"{self.prog} has no {kind} {value!r}{hint}")
        if action.choices is not None and value not in action.choices:
            known = [str(each) for each in action.choices]
            hint = did_you_mean(str(value), known) or f"; choose one of {', '.join(known)}"
            raise argparse.ArgumentError(action, f"no choice {str(value)!r}{hint}")


class GroupedParser(OneLineParser):
    """Parser whose help shows its commands in groups.

    Attributes:
        groups: title -> names of its commands. Each command is in exactly one group.
    """

    groups: Mapping[str, Sequence[str]] = {}

    def format_help(self) -> str:
        """Format the usage, the groups and the options."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        lines = {line.dest: line for line in self._command_lines()}
        for title, names in self.groups.items():
            formatter.start_section(title)
            formatter.add_arguments([lines[name] for name in names])
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments([action for action in self._actions if action.option_strings])
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _command_lines(self) -> Iterable[argparse.Action]:
        commands = next(each for each in self._actions if isinstance(each, argparse._SubParsersAction))
        return commands._get_subactions()


def amount(text: str) -> float:
    """Parse a finite number from 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number from 0, not {text!r}")
    return value


def count(text: str) -> int:
    """Parse a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text!r}")
    return int(text)


def pair(text: str) -> tuple[str, str]:
    """Parse ``KEY=VALUE``."""
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, such as folder=out, not {text!r}")
    return key, value
