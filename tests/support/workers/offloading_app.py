"""A foreign Celery application that has only `install_offload`: its broker is `GUEST_URL`."""

from __future__ import annotations

import os

from celery import Celery

from lockgate.workers.offload import install_offload

QUEUE = "guest"

app = Celery("guest", broker=os.environ.get("GUEST_URL", "memory://"))
app.conf.update(result_backend=app.conf.broker_url, task_default_queue=QUEUE)
install_offload(app)


@app.task(name="guest.length")
def length(value: str) -> int:
    """Return the length of a large argument."""
    return len(value)
