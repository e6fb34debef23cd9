"""What Celery processes take from a Redis, run and acknowledge, as lines of a file that they share.

The environment names the file (`RECORDS`) and the file at whose sight tasks of Lockgate wait (`HOLD`).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from celery import signals
from kombu.transport.redis import Channel, QoS

from lockgate.storage_core.decoding import decode_json

RECORDS: Final = "LOCKGATE_TEST_RECORDS"
HOLD: Final = "LOCKGATE_TEST_HOLD"

What = Literal["received", "acknowledged", "restored", "begun", "ended"]
"""`restored`: put back into its queue, for another worker. `begun` and `ended`: a run of the task itself."""


class MessageRecord(msgspec.Struct, frozen=True):
    """One event.

    Attributes:
        at_s: Seconds since the machine's start.
        pid: Process in which it happened.
        application: Its Celery application.
        task: Id of the Celery task; of a run in Airflow, the name of the task instance.
        tag: Delivery tag of the message; empty for a run.
    """

    at_s: float
    pid: int
    application: str
    what: What
    task: str
    tag: str = ""


def note(application: str, what: What, task: str, tag: str = "") -> None:
    """Add a line, which a killed process leaves whole or not at all."""
    record = MessageRecord(time.monotonic(), os.getpid(), application, what, task, tag)
    file = os.open(os.environ[RECORDS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, msgspec.json.encode(record) + b"\n")
    finally:
        os.close(file)


def records(file: Path) -> list[MessageRecord]:
    """Return all records, in the order of their time."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    return sorted((decode_json(line, MessageRecord) for line in lines), key=lambda r: r.at_s)


def record_messages(application: str) -> None:
    """Record the messages that this process and its forks take, acknowledge and restore."""
    append, acknowledge, restore = QoS.append, QoS.ack, Channel._do_restore_message

    def recorded_append(self: Any, message: Any, delivery_tag: str) -> None:
        append(self, message, delivery_tag)
        note(application, "received", str(message.headers.get("id")), delivery_tag)

    def recorded_acknowledge(self: Any, delivery_tag: str) -> None:
        message = self._delivered.get(delivery_tag)
        acknowledge(self, delivery_tag)
        if message is not None:
            note(application, "acknowledged", str(message.headers.get("id")), delivery_tag)

    def recorded_restore(self: Any, payload: Any, *arguments: Any, **options: Any) -> None:
        restore(self, payload, *arguments, **options)
        note(application, "restored", payload["headers"]["id"], payload["properties"]["delivery_tag"])

    QoS.append, QoS.ack, Channel._do_restore_message = recorded_append, recorded_acknowledge, recorded_restore


def record_runs(application: str) -> None:
    """Record the runs of tasks. A task that begins while there is the file `HOLD` waits until it is gone."""

    def begun(task_id: str, **_: Any) -> None:
        note(application, "begun", task_id)
        while Path(os.environ[HOLD]).exists():
            time.sleep(0.05)

    def ended(task_id: str, **_: Any) -> None:
        note(application, "ended", task_id)

    signals.task_prerun.connect(begun, weak=False)
    signals.task_postrun.connect(ended, weak=False)
