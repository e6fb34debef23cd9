"""Tasks of a user in workers of Lockgate's application; they import the libraries of their jobs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from lockgate.workers.celery_app import app
from lockgate.workers.libraries import LibraryTask


@app.task(name="tests.rate", base=LibraryTask, ignore_result=True)
def rate(module: str, answer: str) -> None:
    """Import a module, and write what it has."""
    _write(answer, str(importlib.import_module(module).RATE))


@app.task(name="tests.seen", ignore_result=True)
def seen(module: str, answer: str) -> None:
    """Write whether anything of a module is left in this process."""
    _write(answer, str(module in sys.modules or any("libraries" in entry for entry in sys.path)))


def _write(answer: str, text: str) -> None:
    path = Path(answer)
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)
