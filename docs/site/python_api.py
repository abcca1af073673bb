"""Write the pages of the Python API. mkdocstrings fills them from the docstrings when the site is built."""

from __future__ import annotations

import cerebro
import cerebro.client.results
import cerebro.exports
import cerebro.metrics
import cerebro.search
import cerebro.techniques
import cerebro.testing

SECTIONS: dict[str, tuple[str, ...]] = {
    "Experiments and data": ("Experiment", "Locators", "Locator", "data_folder"),
    "Specs": (
        "ETLSpec",
        "StepSpec",
        "Frozen",
        "SubEpochSpec",
        "KerasSubEpochSpec",
        "Ratio",
        "PerRow",
        "Ragged",
        "ragged",
        "Hints",
    ),
    "Search spaces": ("choice", "uniform", "loguniform", "randint"),
    "Searches": (
        *("Search", "ASHA", "Hyperband", "PBT", "Random", "TPE", "GP", "CMA"),
        *("Above", "Below", "Median", "Plateau", "Earlier", "Repeat"),
    ),
    "Options of runs": ("Scheduling", "Parallelism", "Limits", "Budget", "FailureRule"),
    "Registered models": ("load_model",),
}
"""Page -> public names of `cerebro`. Each name is on exactly one page."""
_MORE = {
    "Results": (
        *(f"cerebro.client.results.{name}" for name in cerebro.client.results.__all__),
        "cerebro.client.dry_run.DryRun",
        "cerebro.client.models.registry.RegisteredModel",
    ),
    "Arguments of spec methods": (
        "cerebro.spec.DataLoader",
        "cerebro.spec.Checkpoint",
        "cerebro.spec.Validation",
    ),
    "Techniques": tuple(
        f"cerebro.techniques.{name}" for name in cerebro.techniques.__all__ if name not in cerebro.__all__
    ),
    "Search procedures of your own": tuple(f"cerebro.search.{name}" for name in cerebro.search.__all__),
    "Metrics": tuple(f"cerebro.metrics.{name}" for name in cerebro.metrics.__all__),
    "Extensions": (
        *("cerebro.data.objects.RemoteStore", "cerebro.data.objects.Info"),
        *(f"cerebro.exports.{name}" for name in cerebro.exports.__all__),
        *(f"cerebro.testing.{name}" for name in cerebro.testing.__all__),
    ),
    "Errors": ("cerebro.errors",),
}
"""Page -> names that users meet without importing them from `cerebro`."""


def python_pages() -> dict[str, str]:
    """Return the pages by file name, with a list of all as `index.md`."""
    listed = sorted(name for names in SECTIONS.values() for name in names)
    assert listed == sorted(cerebro.__all__), (
        f"SECTIONS and cerebro.__all__ differ: {set(listed) ^ {*cerebro.__all__}}"
    )
    sections = {
        title: tuple(f"cerebro.{name}" for name in names) for title, names in SECTIONS.items()
    } | _MORE
    pages = {_file(title): _page(title, names) for title, names in sections.items()}
    lines = ["# Python API\n", "All public names, from their docstrings.\n"]
    for title, names in sections.items():
        lines.append(f"- [{title}]({_file(title)}): {', '.join(_link(title, name) for name in names)}")
    return {"index.md": "\n".join([*lines, ""])} | pages


def _file(title: str) -> str:
    return f"{title.lower().replace(' ', '-')}.md"


def _page(title: str, names: tuple[str, ...]) -> str:
    return "\n\n".join([f"# {title}", *(f"::: {name}" for name in names)]) + "\n"


def _link(title: str, name: str) -> str:
    return f"[`{name.rpartition('.')[2]}`]({_file(title)}#{name})"
