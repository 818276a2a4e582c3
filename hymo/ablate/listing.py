"""`hymo results`: finished ablations and what they said. Reads files only: no torch, no statistics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hymo.ablate.store import Store, read_json
from hymo.ablate.table import show_result
from hymo.errors import AblationError, did_you_mean


def results(name: str | None, report: bool, folder: Path, screen: Console) -> Any:
    """List finished ablations, or show one of them; what was shown, as plain values."""
    store = Store(folder)
    found = {path.parent.name: read_json(path) for path in sorted(store.root.glob("*/result.json"), key=os.path.getmtime)}
    if name is None:
        if report:
            raise AblationError("--report needs the name of an experiment, but got none; `hymo results` lists them")
        show_list(found, store, screen)
        return [{"folder": key, **summary(value)} for key, value in found.items()]
    chosen = pick(name, found, store)
    if report:
        from hymo.ablate.report import write_report

        write_report(store.root / chosen / "report.html", found[chosen], store)
    show_result(screen, found[chosen])
    screen.print(f"report: {store.root / chosen / 'report.html'}", markup=False, soft_wrap=True)
    return found[chosen]


def show_list(found: dict[str, Any], store: Store, screen: Console) -> None:
    """Every finished ablation with its verdicts."""
    if not found:
        screen.print(f"no finished ablation in {store.root}; `hymo ablate nope_hybrid` makes one", markup=False, soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("ablation", "scale", "seeds", "verdicts"):
        table.add_column(column)
    for value in found.values():
        line = summary(value)
        table.add_row(line["name"], line["scale"], str(line["seeds"]), "\n".join(f"{arm}: {words}" for arm, words in line["verdicts"].items()))
    screen.print(table)


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """One line of the list."""
    verdicts = {row["arm"]: row["words"] for row in result["rows"] if "words" in row}
    return {"name": result["name"], "scale": result["scale"], "seeds": len(result["seeds"]), "verdicts": verdicts}


def pick(name: str, found: dict[str, Any], store: Store) -> str:
    """The folder of the newest finished ablation of this name. Raises AblationError for one that is unknown or unfinished."""
    fitting = [key for key, value in found.items() if name in (key, value["name"], *(one["name"] for one in value["experiments"]))]
    if fitting:
        return fitting[-1]
    begun = [path.name for path in store.root.glob(f"{name}-*") if path.is_dir()]
    if begun:
        raise AblationError(f"an ablation must be finished to be reported, but got {begun[0]!r}, which is not; `hymo ablate {name}` goes on with it")
    raise AblationError(
        f"an ablation must be one that has been run, but got {name!r}{did_you_mean(name, [value['name'] for value in found.values()])}"
    )
