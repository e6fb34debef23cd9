"""A foreign Celery application in the Redis that Lockgate uses, whose URL is `NEIGHBOUR_URL`."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery

QUEUE = "reports"

app = Celery("neighbour")
app.conf.update(
    broker_url=os.environ.get("NEIGHBOUR_URL", "memory://"),
    broker_transport_options={
        "visibility_timeout": 3_600,
        "global_keyprefix": os.environ.get("NEIGHBOUR_PREFIX", ""),
    },
    task_default_queue=QUEUE,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
)


@app.task(name="neighbour.linger")
def linger(folder: str) -> None:
    """Note that it began, and run until there is a file `enough`."""
    begin(Path(folder), "neighbour")


def begin(folder: Path, name: str) -> None:
    """Add a line to the file of this name, and wait for the file `enough`."""
    with (folder / name).open("a") as file:
        file.write("begun\n")
    deadline = time.monotonic() + 120
    while not (folder / "enough").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def begun(folder: Path, name: str) -> int:
    """Return how often a task of this name began."""
    path = folder / name
    return len(path.read_text().splitlines()) if path.exists() else 0
