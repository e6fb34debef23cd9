"""Send large arguments and results of Celery tasks as blobs; the message carries only an envelope.

`install_offload(app)` works with any Celery application. It extends three parts of it:

    sender     `app.amqp`, which publishes every task message: see `lockgate.workers.offload.sender`
    receiver   each task's `Request` and `before_start`: see `lockgate.workers.offload.receiver`
    results    the result backend and `app.AsyncResult`: see `lockgate.workers.offload.results`

A worker opens the machine's cache of blobs at its start, and deletes it at its end.
"""

from __future__ import annotations

from typing import Any

from celery import Celery, signals
from kombu.utils.imports import symbol_by_name

from lockgate.storage_core.settings import Settings
from lockgate.workers.offload.results import offload_results
from lockgate.workers.offload.sender import Offload, OffloadingAMQP


def install_offload(app: Celery, settings: Settings | None = None) -> None:
    """Make an application send large arguments and results as blobs, and receive them.

    Call it in the module that creates the application, because its workers and its clients both need it. A
    second call changes nothing.

    Args:
        app: Any Celery application; its tasks may be defined before or after the call.
        settings: `celery_threshold_bytes`, `message_lapse_s` and the settings of blobs; None: those of the
            environment, read when they are needed.
    """
    kind = symbol_by_name(app.amqp_cls)  # type: ignore[no-untyped-call]
    if issubclass(kind, OffloadingAMQP):
        return
    offload = Offload(settings)
    app.amqp_cls = type(kind.__name__, (OffloadingAMQP, kind), {"offload": offload})
    app.__dict__.pop("amqp", None)
    offload_results(app, offload)

    def receive(sender: Any, **_: Any) -> None:
        from lockgate.workers.libraries import WorkerCacheStep
        from lockgate.workers.offload.receiver import receive_offloaded

        if sender.app is app:
            app.steps["worker"].add(type("WorkerCacheStep", (WorkerCacheStep,), {"settings": settings}))
            for task in list(app.tasks.values()):
                receive_offloaded(task, offload)

    signals.worker_init.connect(receive, weak=False)
