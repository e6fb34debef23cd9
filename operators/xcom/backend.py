"""An XCom backend that keeps large values as blobs.

Configure it as `[core] xcom_backend = lockgate.operators.xcom.BlobXCom`.

A value whose JSON is larger than `LOCKGATE_XCOM_THRESHOLD_BYTES` becomes a blob, and the row holds an
envelope with the blob's key. The blob belongs to the row and to no job, because a downstream or cleared task
may read it after the job has ended. Its reference is dropped when the row is deleted or overwritten.

    push    put the blob with the row's reference → write the row → drop the overwritten row's reference
    pull    read the row → get the blob from the cache, the HA store or the blob server; verified
    clear   drop the reference → delete the row

The reference is written before the row. `lockgate xcom sweep` finds what a crash between the two leaves, and
the blobs of rows that Airflow deletes or overwrites without calling its backend (`airflow db clean`, a
deleted DAG or run, the REST API, a deferred task that resumes). References of another scope
(`LOCKGATE_AIRFLOW_SCOPE`) belong to another Airflow and are never dropped here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.bases.xcom import BaseXCom

from lockgate.operators.xcom.envelope import Envelope, XComRow, envelope_of, looks_like_envelope
from lockgate.storage_core.blobs.keys import NO_JOB
from lockgate.storage_core.errors import CorruptBlobError, LockgateError, ObjectNotFoundError
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from airflow.sdk.execution_time.comms import XComResult

    from lockgate.storage_core.blobs.cache.blob_cache import BlobCache
    from lockgate.storage_core.blobs.registry.blob_rows import Guarantee

_LOG: Final = logging.getLogger(__name__)

GUARANTEE: Final[Guarantee] = "ha"
"""The blob is also kept in the HA store, if there is one: the row outlives a blob server's disk, and a task
may not compute the same value twice. Workers without a common blob server can then read it."""

_PUSHED: Final[dict[XComRow, Envelope]] = {}
"""Envelopes that this process has written, by row: a task may push a key twice."""


@dataclass(frozen=True)
class _Serialized:
    """Argument of the SDK's `deserialize_value`, which reads only the value."""

    value: Any


class BlobXCom(BaseXCom):
    """Airflow's own backend for small values, blobs for large ones."""

    @classmethod
    def set(cls, key: str, value: Any, **row: Any) -> None:
        """Store a value, and release the blob that this process pushed into the same row before."""
        with _overwriting(_row(key, **row)):
            super().set(key, value, **row)

    @classmethod
    async def aset(cls, key: str, value: Any, **row: Any) -> None:
        """Store a value from a coroutine; see `set`."""
        with _overwriting(_row(key, **row)):
            await super().aset(key, value, **row)

    @staticmethod
    def serialize_value(
        value: Any,
        *,
        key: str | None = None,
        task_id: str | None = None,
        dag_id: str | None = None,
        run_id: str | None = None,
        map_index: int | None = None,
    ) -> Any:
        """Return the value to store in the row: as Airflow serialises it, or the envelope of a blob.

        Raises:
            LockgateError: The blob could not be put; the task fails, and its row does not change.
        """
        serialized = BaseXCom.serialize_value(
            value, key=key, task_id=task_id, dag_id=dag_id, run_id=run_id, map_index=map_index
        )
        if key is None or task_id is None or dag_id is None or run_id is None:
            return serialized  # it has no row that could refer to a blob
        data = _json_to_offload(serialized)
        if data is None:
            return serialized
        row = _row(key, dag_id=dag_id, task_id=task_id, run_id=run_id, map_index=map_index)
        return _put(row, data).value()

    @staticmethod
    def deserialize_value(result: Any) -> Any:
        """Return the complete value that was pushed, never an envelope.

        Raises:
            ObjectNotFoundError: Its blob does not exist any more.
            CorruptBlobError: Every copy of it is damaged.
            StoreUnavailableError: No server that may have it answers; trying again later is safe.
        """
        envelope = envelope_of(result.value)
        if envelope is None:
            return BaseXCom.deserialize_value(result)
        return BaseXCom.deserialize_value(_Serialized(json.loads(_get(envelope))))

    @classmethod
    def purge(cls, xcom: XComResult, *args: Any) -> None:  # noqa: ARG003 - Airflow's
        """Drop a row's reference before Airflow deletes the row; ignore a damaged envelope."""
        with suppress(CorruptBlobError):
            envelope = envelope_of(xcom.value)
            if envelope is not None:
                _drop(envelope)


def _row(
    key: str, *, dag_id: str, task_id: str, run_id: str, map_index: int | None = None, **_more: Any
) -> XComRow:
    return XComRow(
        scope=_scope(),
        dag_id=dag_id,
        run_id=run_id,
        task_id=task_id,
        map_index=-1 if map_index is None else map_index,
        key=key,
    )


@contextmanager
def _overwriting(row: XComRow) -> Iterator[None]:
    """Release the blob that this process pushed into a row, after the row has a new value."""
    before = _PUSHED.pop(row, None)
    yield  # if the write of the row fails, both blobs are kept: the row may have either value
    if before is not None:
        _drop(before)


def _json_to_offload(serialized: Any) -> bytes | None:
    """Return a value's JSON if it must become a blob; None: the row keeps the value."""
    try:
        data = json.dumps(serialized, separators=(",", ":")).encode()
    except (TypeError, ValueError):
        return None  # Airflow raises the error
    is_large = len(data) > load_settings().xcom_threshold_bytes
    return data if is_large or looks_like_envelope(serialized) else None


def _put(row: XComRow, data: bytes) -> Envelope:
    blob = _cache().origin.put(
        data, job_id=NO_JOB, guarantee=GUARANTEE, use="message", name=f"{row.key}.json", owners=[row.owner]
    )
    envelope = Envelope(blob_key=blob.blob_key, owner=row.owner, size_bytes=blob.size_bytes)
    _PUSHED[row] = envelope
    return envelope


def _get(envelope: Envelope) -> bytes:
    try:
        return _cache().get(NO_JOB, envelope.blob_key, guarantee=GUARANTEE)
    except (ObjectNotFoundError, CorruptBlobError) as error:
        raise type(error)(
            f"{XComRow.of_owner(envelope.owner) or envelope.owner}: its value of {envelope.size_bytes} bytes "
            f"cannot be read; nothing was returned; clear the task that pushed it; {error}"
        ) from error


def _drop(envelope: Envelope) -> None:
    """Drop a row's reference; if that fails, the sweep of XCom references finds it."""
    row = XComRow.of_owner(envelope.owner)
    # In a copy of another Airflow's database the rows carry that Airflow's scope.
    if row is not None and row.scope != _scope():
        _LOG.info("%s: left alone, it is not of LOCKGATE_AIRFLOW_SCOPE=%s", envelope.owner, _scope())
        return
    try:
        _cache().origin.drop(NO_JOB, envelope.blob_key, envelope.owner)
    except LockgateError as error:
        _LOG.warning("%s: not dropped; run `lockgate xcom sweep`: %s", envelope.owner, error)


def _scope() -> str:
    return load_settings().airflow_scope


def _cache() -> BlobCache:
    from lockgate.storage_core.blobs.cache.process_cache import configured_cache

    return configured_cache(load_settings())
