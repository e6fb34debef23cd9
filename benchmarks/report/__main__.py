"""Write the page of benchmarks: `python -m benchmarks.report`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.peers import results
from benchmarks.report.page import CHARTS, files

DOCS: Final = Path(__file__).parents[2] / "docs"


def write(docs: Path = DOCS) -> None:
    """Write the page and its charts, and remove charts of results that are gone."""
    new = files(results.load())
    for old in (docs / CHARTS).glob("*.svg"):
        if f"{CHARTS}/{old.name}" not in new:
            old.unlink()
    for name, text in new.items():
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        (docs / name).write_text(text)


if __name__ == "__main__":
    write()
