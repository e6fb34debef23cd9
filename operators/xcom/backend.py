"""An XCom backend that keeps large values as blobs.

Configure it as `[core] xcom_backend = lockgate.operators.xcom.BlobXCom`.

A value whose JSON is larger than `LOCKGATE_XCOM_THRESHOLD_BYTES` becomes a blob, and the row keeps an
envelope that names it. The blob is the row's: it belongs to no job, for a downstream or cleared task may
still read it when the job has ended, and its reference goes when the row goes or is overwritten.

    push    bytes, with the row's reference → row in Airflow's database → the overwritten one's reference goes
    pull    row → the cache, else the HA store, else the blob server; verified
    clear   reference dropped → row deleted

The reference stands before the row does. What a crash between leaves, and the blobs of rows that Airflow
deletes or overwrites without telling its backend (`airflow db clean`, a deleted DAG or run, its REST API, a
task that resumes after it had deferred), `lockgate xcom sweep` finds. References of another scope
(`LOCKGATE_AIRFLOW_SCOPE`) are another Airflow's: nothing here drops them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.bases.xcom import BaseXCom

from lockgate.operators.xcom.rows import Envelope, XComRow, envelope_of, looks_like_one
from lockgate.storage_core.blobs.keys import NO_JOB
from lockgate.storage_core.errors import CorruptBlobError, LockgateError, ObjectNotFoundError

if TYPE_CHECKING:
    from airflow.sdk.execution_time.comms import XComResult

    from lockgate.storage_core.blobs.cache.cache import BlobCache
    from lockgate.storage_core.blobs.registry.rows import Guarantee

_LOG: Final = logging.getLogger(__name__)

GUARANTEE: Final[Guarantee] = "ha"
"""In the HA store, too, where there is one. A value in Airflow's database outlives a blob server's disk, and
running its task again may not give the same value; so workers without a common blob server have it, too."""

_PUSHED: Final[dict[XComRow, Envelope]] = {}
"""By row, the envelopes that this process has put into rows: it may push a key twice."""


@dataclass(frozen=True)
class _Serialized:
    """What the SDK's own backend deserialises: a result of which it looks at the value only."""

    value: Any


class BlobXCom(BaseXCom):
    """Airflow's own backend for small values, blobs for large ones."""

    @classmethod
    def set(
        cls,
        key: str,
        value: Any,
        *,
        dag_id: str,
        task_id: str,
        run_id: str,
        map_index: int = -1,
        **more: Any,
    ) -> None:
        """Store a value; a blob that this process had pushed into the same row before is let go."""
        with _overwriting(_row(key, task_id, dag_id, run_id, map_index)):
            super().set(
                key, value, dag_id=dag_id, task_id=task_id, run_id=run_id, map_index=map_index, **more
            )

    @classmethod
    async def aset(
        cls,
        key: str,
        value: Any,
        *,
        dag_id: str,
        task_id: str,
        run_id: str,
        map_index: int = -1,
        **more: Any,
    ) -> None:
        """Store a value from a coroutine; see `set`."""
        with _overwriting(_row(key, task_id, dag_id, run_id, map_index)):
            await super().aset(
                key, value, dag_id=dag_id, task_id=task_id, run_id=run_id, map_index=map_index, **more
            )

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
        """Return what the row is to keep: the value as Airflow serialises it, or the envelope of a blob.

        Raises:
            LockgateError: The blob could not be put; the task fails, and its row stays as it was.
        """
        serialized = BaseXCom.serialize_value(
            value, key=key, task_id=task_id, dag_id=dag_id, run_id=run_id, map_index=map_index
        )
        if key is None or task_id is None or dag_id is None or run_id is None:
            return serialized  # of no row, which could not keep a blob
        data = _large(serialized)
        if data is None:
            return serialized
        return _put(_row(key, task_id, dag_id, run_id, map_index), data).value()

    @staticmethod
    def deserialize_value(result: Any) -> Any:
        """Return the value that was pushed, whole: never an envelope, and never a part of it.

        Raises:
            ObjectNotFoundError: Its blob is gone.
            CorruptBlobError: Every copy of it is damaged.
            StoreUnavailableError: No server that may have it answers; trying again later is safe.
        """
        envelope = envelope_of(result.value)
        if envelope is None:
            return BaseXCom.deserialize_value(result)
        return BaseXCom.deserialize_value(_Serialized(json.loads(_get(envelope))))

    @classmethod
    def purge(cls, xcom: XComResult, *args: Any) -> None:  # noqa: ARG003 - Airflow's
        """Let a row's blob go; Airflow deletes the row next, also one whose envelope is damaged."""
        with suppress(CorruptBlobError):
            envelope = envelope_of(xcom.value)
            if envelope is not None:
                _drop(envelope)


def _row(key: str, task_id: str, dag_id: str, run_id: str, map_index: int | None) -> XComRow:
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
    """Let go what this process had pushed into a row, once the row has another value.

    If it is not known whether the row was written, both are kept.
    """
    before = _PUSHED.pop(row, None)
    yield
    if before is not None:
        _drop(before)


def _large(serialized: Any) -> bytes | None:
    """Return as JSON what a row is not to keep; None: Airflow takes the value as it is."""
    from lockgate.storage_core.settings import load_settings  # noqa: PLC0415 - read when a value is pushed

    try:
        data = json.dumps(serialized, separators=(",", ":")).encode()
    except (TypeError, ValueError):
        return None  # Airflow says what is wrong with it
    is_large = len(data) > load_settings().xcom_threshold_bytes
    return data if is_large or looks_like_one(serialized) else None


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
            f"cannot be had; nothing was returned; clear the task that pushed it; {error}"
        ) from error


def _drop(envelope: Envelope) -> None:
    """Drop a row's reference; one that could not be dropped is found by the sweep of XCom references.

    In a copy of another Airflow's database, which has a scope of its own, the references are that one's.
    """
    row = XComRow.of_owner(envelope.owner)
    if row is not None and row.scope != _scope():
        _LOG.info("%s: left, for it is not of LOCKGATE_AIRFLOW_SCOPE=%s", envelope.owner, _scope())
        return
    try:
        _cache().origin.drop(NO_JOB, envelope.blob_key, envelope.owner)
    except LockgateError as error:
        _LOG.warning("%s: `lockgate xcom sweep` lets it go: %s", envelope.owner, error)


def _scope() -> str:
    from lockgate.storage_core.settings import load_settings  # noqa: PLC0415 - read when a value is pushed or goes

    return load_settings().airflow_scope


def _cache() -> BlobCache:
    from lockgate.storage_core.blobs.cache.process_cache import configured_cache  # noqa: PLC0415 - opens a journal
    from lockgate.storage_core.settings import load_settings  # noqa: PLC0415

    return configured_cache(load_settings())
