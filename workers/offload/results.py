"""Store large results as blobs: the backend stores an envelope, and the reader of the result gets the blob.

The blob is released after `get` has returned the result, or by `forget`. Otherwise it expires, no earlier
than Celery would drop the result. If a blob is lost, the task's state stays SUCCESS: otherwise its chain
would fail, and a redelivery would run the task again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from celery import Celery, current_task, states
from celery.backends.base import BaseKeyValueStoreBackend
from celery.result import AsyncResult

from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import (
    CorruptBlobError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockgate.workers.offload.sender import Offload

LOG: Final = logging.getLogger("lockgate.blobs")

PREFIX: Final = b"lockgate-offloaded:"
"""Prefix of a stored envelope; no serialiser of Celery produces it."""

MARK: Final = "lockgate-envelope"
"""Key in a task's metadata: the envelope by which the reader releases the result."""


class StoredEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    """Stored in the backend in place of a large result.

    Attributes:
        envelope: Envelope of the blob, as built-in types.
        task_id: Id of the task.
        is_part: It is for the body of a chord, which reads it once.
    """

    envelope: dict[str, Any]
    task_id: str
    is_part: bool


def offload_results(app: Celery, offload: Offload) -> None:
    """Make an application store large results as blobs, if it has a key-value backend."""
    build = app._get_backend  # noqa: SLF001 - every access to a backend calls it

    def backend() -> Any:
        built = build()
        if isinstance(built, BaseKeyValueStoreBackend):
            kind = type(built)
            attributes = {"offload": offload, "threshold_bytes": offload.settings.celery_threshold_bytes}
            built.__class__ = type(kind.__name__, (OffloadedResults, kind), attributes)
        return built

    app._get_backend = backend  # noqa: SLF001
    app._backend_cache = None  # noqa: SLF001
    app.AsyncResult = app.subclass_with_self(OffloadedResult, name="AsyncResult", reverse="AsyncResult")


class LostResult(msgspec.Struct, frozen=True):
    """Placeholder of a result whose blob is lost."""

    error: Exception


class OffloadedResult(AsyncResult):  # type: ignore[misc]
    """A result that is released after it was read."""

    def get(self, timeout: float | None = None, propagate: bool = True, *args: Any, **options: Any) -> Any:
        """Wait for the result and return it.

        Raises:
            ObjectNotFoundError: It has expired, or was read long ago.
            CorruptBlobError: Every copy of it is damaged.
        """
        value = super().get(timeout, propagate, *args, **options)
        if not isinstance(value, LostResult):
            _release(self.backend, self._cache)
            return value
        if propagate:
            raise value.error
        return value.error


class OffloadedResults(BaseKeyValueStoreBackend):  # type: ignore[misc]
    """A result backend whose large results are blobs."""

    offload: Offload
    threshold_bytes: int

    def encode(self, data: Any) -> Any:
        """Return the payload of a task's metadata, or an envelope."""
        payload = super().encode(data)
        if len(payload) <= self.threshold_bytes:
            return payload
        task_id, is_part = _succeeded_task(data)
        if not task_id:
            return payload
        try:
            envelope = self.offload.put(
                payload,
                owner=f"receiver:result:{task_id}",
                headers=_headers_of(task_id),
                lapse_s=float(self.expires) if self.expires else None,
            )
        except (StoreUnavailableError, OutcomeUnknownError) as error:
            # The task is done, and its callbacks may have been sent: it must not fail now.
            LOG.warning("the result of task %s is stored whole in the result backend: %s", task_id, error)
            return payload
        if envelope is None:
            return payload
        stored = StoredEnvelope(envelope=envelope, task_id=task_id, is_part=is_part)
        return (PREFIX + msgspec.json.encode(stored)).decode()

    def decode(self, payload: Any) -> Any:
        """Return a task's metadata; a result whose blob is lost raises when it is read."""
        stored = _stored_envelope(payload)
        if stored is None:
            return super().decode(payload)
        try:
            meta = super().decode(self.offload.recall(stored.envelope, is_read_once=True))
        except (ObjectNotFoundError, CorruptBlobError) as error:
            return _lost(stored, error)
        if stored.is_part:
            self.offload.acknowledge(stored.envelope)
        else:
            meta[MARK] = stored.envelope
        return meta

    def get_many(self, *args: Any, **options: Any) -> Iterator[tuple[str, Any]]:
        """Yield task ids and their metadata."""
        for task_id, meta in super().get_many(*args, **options):
            yield task_id, _released(self, meta)

    def iter_native(self, *args: Any, **options: Any) -> Iterator[tuple[str, Any]]:
        """Yield task ids and their metadata, as the tasks end."""
        for task_id, meta in super().iter_native(*args, **options):
            yield task_id, _released(self, meta)

    def forget(self, task_id: str) -> None:
        """Delete a task's metadata."""
        stored = _stored_envelope(self.get(self.get_key_for_task(task_id)))
        super().forget(task_id)
        if stored is not None:
            self.offload.acknowledge(stored.envelope)


def _succeeded_task(data: Any) -> tuple[str, bool]:
    """Return the id of the task whose result this is, and whether it is for a chord; empty: no result."""
    # A failure is not offloaded: it must reach its reader even if no blob can be put.
    match data:
        case {"status": states.SUCCESS, "task_id": str(task_id)}:
            return task_id, False
        case [1, str(task_id), states.SUCCESS, _]:
            return task_id, True
    return "", False


def _headers_of(task_id: str) -> Mapping[str, Any]:
    """Return the headers of the task that this process runs; empty for another task."""
    request = current_task.request if current_task else None
    return (request.headers or {}) if request is not None and request.id == task_id else {}


def _stored_envelope(payload: Any) -> StoredEnvelope | None:
    """Return the envelope in a payload of the backend; None: it is not an envelope."""
    if isinstance(payload, str):
        payload = payload.encode() if payload.startswith(PREFIX.decode()) else b""
    if not payload or bytes(payload[: len(PREFIX)]) != PREFIX:
        return None
    return decode_json(bytes(payload[len(PREFIX) :]), StoredEnvelope)


def _lost(stored: StoredEnvelope, error: Exception) -> Any:
    """Return the metadata of a task whose result is lost: a success, but a failure for a chord's body."""
    if stored.is_part:
        return [1, stored.task_id, states.FAILURE, error]
    return {
        "status": states.SUCCESS,
        "result": LostResult(error),
        "traceback": None,
        "children": [],
        "date_done": None,
        "task_id": stored.task_id,
    }


def _released(backend: Any, meta: Any) -> Any:
    """Release a result for a reader of many and return its metadata; a lost result becomes a failure."""
    if isinstance(meta, dict) and isinstance(meta.get("result"), LostResult):
        return {**meta, "status": states.FAILURE, "result": meta["result"].error}
    _release(backend, meta)
    return meta


def _release(backend: Any, meta: Any) -> None:
    envelope = meta.pop(MARK, None) if isinstance(meta, dict) else None
    if envelope is not None:
        backend.offload.acknowledge(envelope)
