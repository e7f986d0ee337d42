"""What the laboratory shows to people: a text for the terminal and one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from milepost.charts import line_chart
from milepost.disk import write_whole
from milepost.lab.arms import BASE
from milepost.lab.credit import Cell, Lab, holm
from milepost.lab.table import METHOD, TITLES, curve_of, heading, notes, rows_of, sentences, warm
from milepost.report import page
from milepost.terminal import table

FILES = (("lab.json", "everything on this page as values"), ("lab.csv", "one row per reported run"),
         ("lab-curves.csv", "its learning curve: success in training by tokens sampled, one row per step"),
         ("WORLD-HORIZON/RULE-lr…-s….json", "what each run showed, those for choosing rates included"),
         ("WORLD-HORIZON/start-s…/", "warm starts: `milepost show`"))  # fmt: skip


def text(lab: Lab) -> str:
    """For a terminal: a table per world and horizon, what each comparison shows, what to know about it."""
    corrected = holm(lab)
    lines = []
    for cell in lab.cells:
        lines += [heading(cell), *table([TITLES, *rows_of(cell, corrected)]), *sentences(lab, cell), ""]
    if lab.num_left:
        lines.append(f"{lab.num_left} reported runs are not finished")
    return "\n".join([*lines, *notes(lab)])


def write_page(lab: Lab, command: str) -> Path:
    """Writes `report.html` into the laboratory's folder and returns its path. Needs no network. Raises StoreError."""
    corrected = holm(lab)
    cells = [
        {"title": heading(cell), "rows": rows_of(cell, corrected), "sentences": sentences(lab, cell), "warm": warm(cell),
         "charts": [_chart(cell, rule) for rule in cell.rules if rule != BASE and cell.of(rule)]}
        for cell in lab.cells
    ]  # fmt: skip
    content = page(
        "lab.html.j2", cells=cells, titles=TITLES, notes=notes(lab), method=METHOD, files=FILES, command=command,
        left=lab.num_left, path=str(lab.plan.out.resolve()),
    )  # fmt: skip
    return write_whole(lab.plan.out / "report.html", content)


def _chart(cell: Cell, rule: str) -> dict[str, Any]:
    lines = [curve_of(cell.of(name), cell.budget, name) for name in (rule, BASE)]
    legend = [{"index": i, "label": line.label} for i, line in enumerate(lines) if line.points]
    note = "success in training by tokens sampled; band: the lowest and highest seed"
    svg = Markup(line_chart(lines, percent=True, floor=0.0))
    return {"title": f"{rule} and {BASE}", "note": note, "legend": legend, "svg": svg}
