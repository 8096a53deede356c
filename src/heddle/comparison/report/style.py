"""Style of a report: one sheet for the page and for each figure as a file, light and dark."""

LIGHT = ("#2a6f97", "#c8553d", "#4a7c4a", "#80589a", "#9a7700", "#5b6770", "#c04a70", "#1f8a83")
DARK = ("#6fb3dd", "#ef8a73", "#86c286", "#c29ad6", "#dab640", "#a3aeb8", "#ee8fae", "#5fcfc6")


def _colours(shades: tuple[str, ...]) -> str:
    return " ".join(f"--c{number}: {shade};" for number, shade in enumerate(shades))


_CLASSES = " ".join(f".c{n} {{ fill: var(--c{n}); stroke: var(--c{n}); }}" for n in range(len(LIGHT)))
_LIGHT = f"""--ink: #1c2430; --soft: #5b6472; --page: #fff; --line: #d9dee5; --band: #eef2f6;
  --better: #1f7a4d; --worse: #b3402a; --same: #2a6f97; --open: #7a808a; --failed: #b3402a; {_colours(LIGHT)}"""
_DARK = f"""--ink: #e6e9ee; --soft: #a3abb8; --page: #14181f; --line: #313a46; --band: #1f2731;
  --better: #5cc191; --worse: #ef8a73; --same: #79b8dd; --open: #8f96a1; --failed: #ef8a73; {_colours(DARK)}"""
STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
* {{ box-sizing: border-box; }} body {{ margin: 0 auto; padding: 1.2rem; max-width: 66rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.5rem; margin: 0 0 .4rem; }} h2 {{ font-size: 1.15rem; margin: 2.2rem 0 .5rem; }}
h3 {{ font-size: 1rem; margin: 1.4rem 0 .3rem; }}
p, li {{ max-width: 46rem; overflow-wrap: anywhere; }} .soft {{ color: var(--soft); }}
code {{ font-family: ui-monospace, monospace; font-size: .9em; overflow-wrap: anywhere; }}
svg {{ width: 100%; min-width: 34rem; height: auto; font: 12px system-ui, sans-serif; display: block; }}
svg text {{ fill: var(--ink); stroke: var(--page); stroke-width: 3px; paint-order: stroke; }}
svg text.soft {{ fill: var(--soft); }}
.grid {{ stroke: var(--line); }} .axis {{ stroke: var(--soft); }} .band {{ fill: var(--band); }}
.front {{ fill: none; stroke: var(--soft); stroke-dasharray: 4 3; }}
.bar {{ stroke-width: 2.5; stroke: var(--open); }} .dot {{ fill: var(--open); }} .dot.c0 {{ stroke: none; }}
.line {{ fill: none; stroke-width: 1.8; }} .spread {{ opacity: .18; stroke: none; }}
.faint {{ fill: none; stroke: var(--line); stroke-width: 1.4; }}
.bar.better {{ stroke: var(--better); }} .dot.better, td.better {{ fill: var(--better); color: var(--better); }}
.bar.worse {{ stroke: var(--worse); }} .dot.failed {{ fill: none; stroke: var(--failed); stroke-width: 1.6; }}
.dot.base {{ fill: var(--ink); }} .dot.worse, td.worse, td.failed {{ fill: var(--worse); color: var(--worse); }}
.bar.same {{ stroke: var(--same); }} .dot.same, td.same {{ fill: var(--same); color: var(--same); }}
{_CLASSES} polyline.line {{ fill: none; }}
.scroll {{ overflow-x: auto; max-width: 100%; margin: .6rem 0; }}
table {{ border-collapse: collapse; font-size: .9rem; }}
table#variants {{ min-width: 62rem; }}
th, td {{ padding: .25rem .7rem .25rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }}
td.d {{ min-width: 19rem; }}
td.n {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
th:first-child, td:first-child {{ min-width: 9rem; }} summary {{ cursor: pointer; }}
"""


def scrolling(content: str, label: str) -> str:
    """Return content that may be wider than the page in a region that scrolls, by keyboard too."""
    return f"<div class='scroll' tabindex='0' role='region' aria-label='{label}'>{content}</div>"


def standalone(figure: str) -> str:
    """Return an inline figure as a file of its own, with the sheet in it."""
    start, end = figure.index("<svg "), figure.index("</svg>") + len("</svg>")
    head, rest = figure[start:end].split(">", 1)
    head = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    own = "svg { background: var(--page); min-width: 0; }"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}><style>{STYLE}{own}</style>{rest}\n'
