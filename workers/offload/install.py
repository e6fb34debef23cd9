"""Large arguments and results of Celery tasks as blobs: the message carries an envelope only.

`install_offload(app)` serves any Celery application. It extends three parts of it:

    sender     `app.amqp`, which publishes every task message: see `lockgate.workers.offload.sender`
    receiver   each task's `Request` and `before_start`: see `lockgate.workers.offload.receiver`
    results    the result backend and `app.AsyncResult`: see `lockgate.workers.offload.results`
"""

from __future__ import annotations

from typing import Any

from celery import Celery, signals
from kombu.utils.imports import symbol_by_name

from lockgate.storage_core.settings import Settings
from lockgate.workers.offload.results import keep_offloaded
from lockgate.workers.offload.sender import Offload, OffloadingAMQP


def install_offload(app: Celery, settings: Settings | None = None) -> None:
    """Have an application send large arguments and results as blobs, and recall those that come.

    Call it in the module that makes the application: its workers and its clients both need it. A second call
    changes nothing.

    Args:
        app: Lockgate's own or any other; its tasks may be defined before or after.
        settings: `celery_threshold_bytes`, `message_lapse_s` and those of the blobs; absent: the
            environment's, read when they are needed.
    """
    kind = symbol_by_name(app.amqp_cls)  # type: ignore[no-untyped-call]
    if issubclass(kind, OffloadingAMQP):
        return
    offload = Offload(settings)
    app.amqp_cls = type(kind.__name__, (OffloadingAMQP, kind), {"offload": offload})
    app.__dict__.pop("amqp", None)
    keep_offloaded(app, offload)

    def receive(sender: Any, **_: Any) -> None:
        from lockgate.workers.offload.receiver import receive_offloaded  # noqa: PLC0415 - only workers receive

        if sender.app is app:
            for task in list(app.tasks.values()):
                receive_offloaded(task, offload)

    signals.worker_init.connect(receive, weak=False)
