"""Write the command reference from the parser of `cerebro`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from cerebro.cli.program import GROUPS, build_parser
from docs.site.tables import code, table

_HEAD = """\
# Command line

All commands with their options, in the groups of `cerebro --help`. [Commands](../commands.md) lists them by purpose.
Errors go to standard error, and the exit status is then 1, or 2 for a wrong option.
"""


def command_page() -> str:
    """Return the page: the groups of the help, with one section per command."""
    sections = {name: _section(name, parser, text) for name, parser, text in _commands(build_parser())}
    parts = [_HEAD]
    for title, commands in GROUPS.items():
        parts.append(f"## {title.capitalize()}\n")
        parts += [text for name, text in sections.items() if name.split()[1] in commands]
    return "\n".join(parts)


def _commands(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    """Yield each command's full name, its parser and its line in the help of its parent."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._get_subactions()}
            for name, child in action.choices.items():
                yield child.prog, child, helps.get(name, "")
                yield from _commands(child)


def _section(name: str, parser: argparse.ArgumentParser, text: str) -> str:
    level = "#" * (len(name.split()) + 1)
    rows = [
        (_names(action), _text(action, parser))
        for action in parser._actions
        if not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction))
        and action.help != argparse.SUPPRESS
    ]
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    description = _sentence(parser.description or text)
    return "\n".join(
        [
            f"{level} {name}\n",
            f"{description}\n",
            f"```text\n{usage}\n```\n",
            table(("argument", "meaning"), rows) if rows else "",
        ]
    )


def _names(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else ""
    if action.choices:
        value = value or "{" + ",".join(str(each) for each in action.choices) + "}"
    if not action.option_strings:
        return code(value or action.dest)
    value = "" if action.nargs == 0 else f" {value or action.dest.upper()}"
    return ", ".join(code(f"{option}{value}") for option in action.option_strings)


def _text(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    text = (action.help or "") % {**vars(action), "prog": parser.prog} if action.help else ""
    return text.replace("<", "&lt;")


def _sentence(text: str) -> str:
    text = text.strip().replace("<", "&lt;")
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", ":")) else ".")
