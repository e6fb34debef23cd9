"""The Celery application; settings are read on first use, and the broker is started by the first task.

This module is not named `app`: a submodule of that name would hide the attribute `app` of `lockgate.workers`,
which `celery -A lockgate.workers` uses.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

from celery import bootsteps, signals

from lockgate.storage_core.commit.job_events import end_logs
from lockgate.storage_core.errors import LockgateError, StoreUnavailableError
from lockgate.storage_core.settings import load_settings
from lockgate.workers.broker.broker_keys import check_broker, result_backend, with_database
from lockgate.workers.broker.embedded_broker import known_broker_url
from lockgate.workers.broker.lazy_broker import LazyBrokerCelery
from lockgate.workers.offload import install_offload

COMMIT_QUEUE: Final = "commit"
RECOVERY_QUEUE: Final = "recovery"
SWEEP_QUEUE: Final = "sweep"
QUEUES: Final = (COMMIT_QUEUE, RECOVERY_QUEUE, SWEEP_QUEUE)

ROUTES: Final = {
    "lockgate.commit_task": {"queue": COMMIT_QUEUE},
    "lockgate.complete_shard": {"queue": COMMIT_QUEUE},
    "lockgate.recover_job": {"queue": RECOVERY_QUEUE},
    "lockgate.sweep_blobs": {"queue": SWEEP_QUEUE},
}

SOFT_TIME_LIMIT_S: Final = 2 * 3600
"""After this time a task is asked to stop; it aborts its uploads."""
TIME_LIMIT_S: Final = SOFT_TIME_LIMIT_S + 300
"""After this time it is killed; its uploads are aborted at the end of its job."""

ANSWER_S: Final = 30.0
"""How long to wait for an answer of the broker: one that hangs is then an error, as one that is gone."""
PATIENCE_S: Final = 2
"""How long a worker that ends waits before it looks whether its broker answers."""


def configuration() -> dict[str, Any]:
    """Return the configuration of the Celery application, from the current settings.

    Raises:
        InvalidInputError: A setting is invalid, or the broker cannot store results.
    """
    settings = load_settings()
    url = with_database(known_broker_url(settings))
    prefix = {"global_keyprefix": settings.broker_prefix} if settings.broker_prefix else {}
    return {
        "broker_url": url,
        "result_backend": result_backend(url),
        "broker_connection_retry_on_startup": True,
        # A Redis that refuses for a moment (READONLY in a failover, OOM) is waited for, as one that is away.
        "broker_channel_error_retry": True,
        "broker_transport_options": {
            "visibility_timeout": settings.redelivery_s,
            # By default Kombu looks for messages of dead workers only every 100 s.
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "socket_timeout": ANSWER_S,
            "socket_connect_timeout": ANSWER_S,
            **prefix,
        },
        "redis_socket_timeout": ANSWER_S,
        "redis_socket_connect_timeout": ANSWER_S,
        "result_backend_transport_options": prefix,
        "accept_content": ["json"],
        "task_serializer": "json",
        "result_serializer": "json",
        "task_routes": ROUTES,
        "task_default_queue": COMMIT_QUEUE,
        # A message is acknowledged after its effect, so that another worker runs a dead worker's task.
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
        # To cancel a task Celery writes its result to the broker that is away, and ends at the error; the
        # pools `solo` and `threads` cannot cancel at all. A task that runs twice has one effect.
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "task_soft_time_limit": SOFT_TIME_LIMIT_S,
        "task_time_limit": TIME_LIMIT_S,
        "worker_proc_alive_timeout": 60.0,
        "worker_log_format": "%(asctime)s %(levelname)s %(processName)s %(message)s",
        "worker_task_log_format": "%(asctime)s %(levelname)s %(task_name)s %(task_id)s %(message)s",
    }


class LostConnectionStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Drops a lost connection at the end of a worker, which Celery would close.

    Its channel would return unacknowledged messages to the broker that is away, and the worker end with the
    error. The broker delivers them again.
    """

    requires = ("celery.worker.consumer.connection:Connection",)

    def shutdown(self, parent: Any) -> None:
        """Drop the connection unless it is open."""
        if parent.connection is not None and not parent.connection.connected:
            parent.connection = None


app = LazyBrokerCelery("lockgate", include=["lockgate.workers.tasks"])
app.add_defaults(configuration)
app.steps["worker"].update(
    {
        "lockgate.workers.broker.broker_keys:BrokerKeysStep",
        "lockgate.workers.metrics.endpoint:MetricsStep",
    }
)
app.steps["consumer"].add(LostConnectionStep)
install_offload(app)


def _start_for_beat(sender: Any, **_: Any) -> None:
    """Start the embedded broker for Celery's scheduler, which connects before it sends."""
    if sender.app is app:
        app.use_broker()


def _start_for_worker(instance: Any, **_: Any) -> None:
    """Start the embedded broker for a worker, which takes a connection before its first bootstep."""
    if instance.app is app:
        app.use_broker()
        signals.worker_shutting_down.connect(_end_without_broker, weak=False)
        atexit.register(signal.alarm, 0)  # Python removes its handlers afterwards: an alarm would kill


def _end_without_broker(exitcode: int, **_: Any) -> None:
    """End an idle worker that is told to end, once its broker gives no answer.

    Celery would wait `ANSWER_S` for each of several answers. The broker delivers unacknowledged messages
    again. An alarm interrupts the main thread, which waits.
    """
    from billiard import active_children
    from celery.apps.worker import safe_say
    from celery.worker import state

    def end_if_stuck(*_: Any) -> None:
        if not state.active_requests:
            try:
                check_broker(app.conf.broker_url)
            except StoreUnavailableError as error:
                safe_say(f"worker: ends although its messages are not returned: {error}", sys.__stdout__)
                for process in active_children():  # of the pool: they wait for tasks
                    process.terminate()
                os._exit(exitcode)
        signal.alarm(1)

    signal.signal(signal.SIGALRM, end_if_stuck)
    signal.alarm(PATIENCE_S)


def _in_one_sentence(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    """Print an error that ends the program `celery` without a traceback, as `lockgate worker` does."""
    if isinstance(error, LockgateError) and not os.environ.get("LOCKGATE_DEBUG"):
        sys.stderr.write(f"error: {error}\n")
    else:
        sys.__excepthook__(kind, error, traceback)


def _end_logs(**_: Any) -> None:
    """Close the event logs of a worker's process, which ends without Python's exit handlers."""
    end_logs()


signals.worker_process_shutdown.connect(_end_logs, weak=False)
signals.beat_init.connect(_start_for_beat, weak=False)
signals.celeryd_init.connect(_start_for_worker, weak=False)
if Path(sys.argv[0]).name == "celery" or Path(sys.argv[0]).parts[-2:] == ("celery", "__main__.py"):
    sys.excepthook = _in_one_sentence
