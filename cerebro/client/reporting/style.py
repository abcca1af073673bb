"""The report's style sheet: one file has it all, so it is text in here."""

from __future__ import annotations

from cerebro.figures import LOOKS
from cerebro.figures.palette import Look

_RULES = """\
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p { margin: .4rem 0; } .quiet, figcaption, caption { color: var(--quiet); }
caption { text-align: left; padding: .3rem 0; } figcaption { font-size: .9rem; }
a { color: inherit; }
.wide { overflow-x: auto; } :focus-visible { outline: 2px solid currentColor; outline-offset: 2px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { border-bottom: 1px solid var(--grid); padding: .25rem .6rem; text-align: left; vertical-align: top; }
thead th { border-bottom: 2px solid var(--quiet); white-space: nowrap; } tbody th { font-weight: 600; }
th, td { white-space: nowrap; } td.number { text-align: right; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; gap: .2rem 1rem; margin: .5rem 0; }
dt { color: var(--quiet); } dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
pre { border: 1px solid var(--grid); border-radius: 4px; padding: .6rem .8rem; overflow-x: auto; font-size: .85rem; }
.answer { border: 2px solid var(--ink); border-radius: 6px; padding: .2rem 1rem .6rem; margin: 1rem 0; }
.answer .value { font-size: 1.4rem; font-weight: 600; }
figure { margin: 1rem 0 1.5rem; } .plot { min-height: 21rem; }
details > summary { cursor: pointer; color: var(--quiet); }
nav ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1rem; }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; } nav, .plot .modebar { display: none; }
  figure, tr, .answer { break-inside: avoid; } h2, h3 { break-after: avoid; } .wide { overflow: visible; }
  th, td { white-space: normal; overflow-wrap: break-word; padding: .15rem .4rem; font-size: 8pt; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
}
@page { margin: 15mm; }
"""


def _colours(look: Look) -> str:
    return f"--ground: {look.ground}; --ink: {look.ink}; --quiet: {look.quiet}; --grid: {look.grid};"


STYLE_SHEET = f"""
:root {{ color-scheme: light; {_colours(LOOKS["light"])} }}
@media screen and (prefers-color-scheme: dark) {{
  :root {{ color-scheme: dark; {_colours(LOOKS["dark"])} }}
}}
{_RULES}"""
"""Light or dark as the reader's system is; on paper always light."""
