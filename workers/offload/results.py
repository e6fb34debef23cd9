"""What keeps large results: the backend has an envelope, and whoever reads the result recalls it.

A result is let go when `get` has handed it out, or with `forget`. Else it lapses, no earlier than Celery
would have dropped it. That its task succeeded stays known: else its chain would fail, and a redelivery do the
task again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from celery import Celery, current_task, states
from celery.backends.base import BaseKeyValueStoreBackend
from celery.result import AsyncResult

from lockgate.storage_core.errors import (
    CorruptBlobError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockgate.workers.offload.sender import Offload

LOG: Final = logging.getLogger("lockgate.blobs")

PREFIX: Final = b"lockgate-offloaded:"
"""Begins what the backend has in place of a large result: no serialiser of Celery begins so."""

MARK: Final = "lockgate-envelope"
"""Among what is known of a task, beside its result: by it the reader lets the result go."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in the backend.

    Attributes:
        envelope: Names the blob, as built-in types.
        task_id: Whose result it is.
        is_part: It is for the body of a chord, which reads it once.
    """

    envelope: dict[str, Any]
    task_id: str
    is_part: bool


def keep_offloaded(app: Celery, offload: Offload) -> None:
    """Have an application keep large results as blobs, if its backend is one of keys and values."""
    build = app._get_backend  # noqa: SLF001 - the only seam that every way to a backend passes

    def backend() -> Any:
        built = build()
        if isinstance(built, BaseKeyValueStoreBackend):
            kind = type(built)
            ours = {"offload": offload, "threshold_bytes": offload.settings.celery_threshold_bytes}
            built.__class__ = type(kind.__name__, (OffloadedResults, kind), ours)
        return built

    app._get_backend = backend  # noqa: SLF001
    app._backend_cache = None  # noqa: SLF001
    app.AsyncResult = app.subclass_with_self(OffloadedResult, name="AsyncResult", reverse="AsyncResult")


class Gone(msgspec.Struct, frozen=True):
    """Stands for a result whose blob is gone."""

    why: Exception


class OffloadedResult(AsyncResult):  # type: ignore[misc]
    """A result that is let go once it was read."""

    def get(self, timeout: float | None = None, propagate: bool = True, *args: Any, **options: Any) -> Any:
        """Wait for the result and return it.

        Raises:
            ObjectNotFoundError: It is gone: it lapsed, or was read long ago.
            CorruptBlobError: Every copy of it is damaged.
        """
        value = super().get(timeout, propagate, *args, **options)
        if not isinstance(value, Gone):
            _let_go(self.backend, self._cache)
            return value
        if propagate:
            raise value.why
        return value.why


class OffloadedResults(BaseKeyValueStoreBackend):  # type: ignore[misc]
    """A result backend whose large results are blobs."""

    offload: Offload
    threshold_bytes: int

    def encode(self, data: Any) -> Any:
        """Return the payload of what is known of a task, or an envelope."""
        payload = super().encode(data)
        if len(payload) <= self.threshold_bytes:
            return payload
        task_id, is_part = _whose(data)
        if not task_id:
            return payload
        try:
            envelope = self.offload.put(
                payload,
                owner=f"receiver:result:{task_id}",
                told=_headers_of(task_id),
                lapse_s=float(self.expires) if self.expires else None,
            )
        except (StoreUnavailableError, OutcomeUnknownError) as error:
            # The task is done, and what follows it may have been sent: it must not fail now.
            LOG.warning("the result of task %s goes to the result backend whole: %s", task_id, error)
            return payload
        if envelope is None:
            return payload
        kept = Kept(envelope=envelope, task_id=task_id, is_part=is_part)
        return (PREFIX + msgspec.json.encode(kept)).decode()

    def decode(self, payload: Any) -> Any:
        """Return what is known of a task; a result whose blob is gone raises when it is asked for."""
        kept = _kept(payload)
        if kept is None:
            return super().decode(payload)
        try:
            known = super().decode(self.offload.recall(kept.envelope, is_read_once=True))
        except (ObjectNotFoundError, CorruptBlobError) as error:
            return _lost(kept, error)
        if kept.is_part:
            self.offload.acknowledge(kept.envelope)
        else:
            known[MARK] = kept.envelope
        return known

    def get_many(self, *args: Any, **options: Any) -> Iterator[tuple[str, Any]]:
        """Yield tasks and what is known of them."""
        for task_id, known in super().get_many(*args, **options):
            yield task_id, _handed_out(self, known)

    def iter_native(self, *args: Any, **options: Any) -> Iterator[tuple[str, Any]]:
        """Yield tasks and what is known of them, as they end."""
        for task_id, known in super().iter_native(*args, **options):
            yield task_id, _handed_out(self, known)

    def forget(self, task_id: str) -> None:
        """Delete what is known of a task."""
        kept = _kept(self.get(self.get_key_for_task(task_id)))
        super().forget(task_id)
        if kept is not None:
            self.offload.acknowledge(kept.envelope)


def _whose(data: Any) -> tuple[str, bool]:
    """Return the task whose result this is, and whether it is for a chord; empty: it is something else.

    A failure is none: it must reach whoever waits, also where no blob can be put.
    """
    match data:
        case {"status": states.SUCCESS, "task_id": str(task_id)}:
            return task_id, False
        case [1, str(task_id), states.SUCCESS, _]:
            return task_id, True
    return "", False


def _headers_of(task_id: str) -> Mapping[str, Any]:
    """Return the headers of a task that this process runs; none of another."""
    request = current_task.request if current_task else None
    return (request.headers or {}) if request is not None and request.id == task_id else {}


def _kept(payload: Any) -> Kept | None:
    """Return what stands in the backend, if it is an envelope."""
    if isinstance(payload, str):
        payload = payload.encode() if payload.startswith(PREFIX.decode()) else b""
    if not payload or bytes(payload[: len(PREFIX)]) != PREFIX:
        return None
    return msgspec.json.decode(bytes(payload[len(PREFIX) :]), type=Kept)


def _lost(kept: Kept, error: Exception) -> Any:
    """Return what is known of a task whose result is gone: that it succeeded. A chord's body cannot begin."""
    if kept.is_part:
        return [1, kept.task_id, states.FAILURE, error]
    return {
        "status": states.SUCCESS,
        "result": Gone(error),
        "traceback": None,
        "children": [],
        "date_done": None,
        "task_id": kept.task_id,
    }


def _handed_out(backend: Any, known: Any) -> Any:
    """Return what a reader of many results takes, and let it go; one that is gone is a failure to it."""
    if isinstance(known, dict) and isinstance(known.get("result"), Gone):
        return {**known, "status": states.FAILURE, "result": known["result"].why}
    _let_go(backend, known)
    return known


def _let_go(backend: Any, known: Any) -> None:
    envelope = known.pop(MARK, None) if isinstance(known, dict) else None
    if envelope is not None:
        backend.offload.acknowledge(envelope)
