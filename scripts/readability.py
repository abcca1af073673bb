"""Check prose, names, sizes of folders and classes, and import cycles.

``python scripts/readability.py [--root DIR]`` prints each finding and exits with 1 if any exist. The constants below
are the limits; CONTRIBUTING.md explains them.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PRODUCT = (
    "cerebro",
    "controller",
    "dispatcher",
    "kvs_api",
    "etl_worker",
    "model_hopper",
    "trial_runner",
)
PROSE = (*PRODUCT, "research", "tests", "docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")

PHRASES_PER_1000_WORDS = 4.0
"""Maximum share of roundabout phrases in the prose of a top-level folder."""
VAGUE_NAMES = 10
"""Maximum number of assignments to names in `_VAGUE`, in all product code. Only ever lower it."""
MODULES_PER_FOLDER = 15
ATTRIBUTES_PER_CLASS = 20

_ROUNDABOUT = re.compile(
    "|".join(
        (
            r"\bwhat (?:is|are|was|were|has|it|they|the|a|this|that|its|comes|becomes)\b",
            r"\b(?:of|and) what\b",
            r"\b(?:that|those) of\b",
            r"\bthose (?:that|who|which)\b",
            r"\b(?:the )?ones? that\b",
            r"\bthere is (?:none|nothing|no such)\b",
            r"\b(?:is|are) left\b|\bleft out\b|\bbut for\b|\bnone of\b|\bno such\b",
            r"\bso (?:many|much|long|far)\b|\bhow (?:many|much|long)\b|\bas far as\b",
            r"\b(?:is|are|was|were|been) told\b|\btells (?:of|what|how|which|who)\b|\btold of\b",
            r"\b(?:by|in|of|for|from|to|with|on|at|beside) (?:which|whom|whose)\b",
            r"\b(?:nobody|somebody|whoever|whatever|anew|meanwhile|thereby|perhaps)\b|\bby now\b",
            r"\b(?:is|are|was|were) to (?:be|have|go|come|do|end|begin|run|wait|take|get)\b",
            r"\bof (?:it|them)\b|\bof (?:its|their|one's) own\b",
            r"\bgiven? (?:back|up|anew)\b|\bgives? back\b|\bmade (?:of|anew)\b|\b(?:goes|go) on\b",
            r"\bas (?:it|they) (?:is|are|was|were)\b",
        )
    ),
    re.IGNORECASE,
)
_VAGUE = frozenset(
    (
        *(
            "told",
            "tell",
            "tells",
            "look",
            "looks",
            "ask",
            "asked",
            "asks",
            "seen",
            "sees",
            "wish",
            "wished",
            "fell",
        ),
        *("own", "among", "beside", "apart", "stay", "stays", "whole", "others"),
        *("before", "after", "given", "made", "kept", "left"),
    )
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation of a limit, with its location."""

    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


def _python_files(root: Path, folders: tuple[str, ...]) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((root / folder).rglob("*.py"))


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line number and text of docstrings and comments, or of Markdown outside code blocks."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        in_code = False
        for number, line in enumerate(source.splitlines(), 1):
            if line.lstrip().startswith("```"):
                in_code = not in_code
            elif not in_code:
                yield number, line
        return
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            for offset, line in enumerate(node.value.value.splitlines()):
                yield node.lineno + offset, line
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def roundabout_prose(root: Path) -> Iterator[Finding]:
    """Find folders with too many roundabout phrases, and list the phrases."""
    for name in PROSE:
        top = root / name
        paths = [top] if top.is_file() else sorted([*top.rglob("*.py"), *top.rglob("*.md")])
        phrases: list[Finding] = []
        words = 0
        for path in paths:
            for number, line in _texts(path):
                words += len(line.split())
                for match in _ROUNDABOUT.finditer(line):
                    phrases.append(
                        Finding(f"{path.relative_to(root)}:{number}", f"roundabout: {match.group()!r}")
                    )
        if len(phrases) > PHRASES_PER_1000_WORDS * words / 1000:
            score = 1000 * len(phrases) / max(words, 1)
            yield Finding(
                name, f"{score:.1f} roundabout phrases per 1,000 words, above {PHRASES_PER_1000_WORDS:g}"
            )
            yield from phrases


def vague_names(root: Path) -> Iterator[Finding]:
    """List vague names if their number exceeds the limit."""
    found = []
    for path in _python_files(root, PRODUCT):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name, line = "", getattr(node, "lineno", 0)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = node.name
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                name = node.attr
            if name.strip("_").lower() in _VAGUE:
                found.append(Finding(f"{path.relative_to(root)}:{line}", f"vague name: {name}"))
    if len(found) > VAGUE_NAMES:
        yield Finding("names", f"{len(found)} vague names, above {VAGUE_NAMES}")
        yield from found


def large_folders(root: Path) -> Iterator[Finding]:
    """Find folders with too many modules."""
    folders: dict[Path, int] = {}
    for path in _python_files(root, PRODUCT):
        if path.name != "__init__.py":
            folders[path.parent] = folders.get(path.parent, 0) + 1
    for folder, modules in sorted(folders.items()):
        if modules > MODULES_PER_FOLDER:
            yield Finding(str(folder.relative_to(root)), f"{modules} modules, above {MODULES_PER_FOLDER}")


def _attributes(node: ast.ClassDef) -> set[str]:
    """Return the names that the class declares or assigns to ``self``."""
    names = {
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign)
        and isinstance(item.target, ast.Name)
        and not (
            isinstance(item.annotation, ast.Subscript) and ast.unparse(item.annotation).startswith("ClassVar")
        )
    }
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.args.args:
            first = method.args.args[0].arg
            names |= {
                target.attr
                for target in ast.walk(method)
                if isinstance(target, ast.Attribute)
                and isinstance(target.ctx, ast.Store)
                and isinstance(target.value, ast.Name)
                and target.value.id == first
            }
    return names


def large_classes(root: Path) -> Iterator[Finding]:
    """Find classes with too many attributes."""
    for path in _python_files(root, PRODUCT):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                count = len(_attributes(node))
                if count > ATTRIBUTES_PER_CLASS:
                    place = f"{path.relative_to(root)}:{node.lineno}"
                    yield Finding(place, f"{node.name} has {count} attributes, above {ATTRIBUTES_PER_CLASS}")


def _imports(tree: ast.Module, module: str, modules: set[str]) -> set[str]:
    """Return the modules that `module` imports at load time, without imports in functions and for type checkers."""
    found = set()
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        pending += ast.iter_child_nodes(node)
    return {
        name for name in found if name in modules and name != module and not module.startswith(f"{name}.")
    }


def import_cycles(root: Path) -> Iterator[Finding]:
    """Find groups of modules that import each other (Tarjan's strongly connected components)."""
    trees = {}
    for path in _python_files(root, PRODUCT):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    graph = {name: sorted(_imports(tree, name, set(trees))) for name, tree in trees.items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for imported in graph[name]:
            if imported not in index:
                visit(imported)
                low[name] = min(low[name], low[imported])
            elif imported in stack:
                low[name] = min(low[name], index[imported])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                cycles.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for name in graph:
        if name not in index:
            visit(name)
    for group in cycles:
        yield Finding(group[0], "import cycle: " + " ".join(group))


CHECKS = (roundabout_prose, vague_names, large_folders, large_classes, import_cycles)


def main(arguments: list[str] | None = None) -> int:
    """Run all checks and print their findings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    root = parser.parse_args(arguments).root
    findings = [finding for check in CHECKS for finding in check(root)]
    for finding in findings:
        print(finding)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
