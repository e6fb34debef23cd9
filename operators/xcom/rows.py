"""XCom rows whose values are blobs: what such a row keeps, and who refers to its blob."""

from __future__ import annotations

from typing import Any, Final, Self, TypeGuard
from urllib.parse import quote, unquote

import msgspec

from lockgate.storage_core.blobs.keys import BlobKey, is_blob_key
from lockgate.storage_core.errors import CorruptBlobError

MARK: Final = "lockgate_blob"
"""The only key of an envelope. No other value with it is ever written into a row: see `looks_like_one`."""

OWNER: Final = "xcom:"

_READABLE: Final = ":+=,@ "
"""Left as they are in an owner, for a run's id is full of them."""


class XComRow(msgspec.Struct, frozen=True, kw_only=True):
    """Names one row of Airflow's table.

    Attributes:
        scope: Of the Airflow, `LOCKGATE_AIRFLOW_SCOPE`; empty: there is only one, or the others have one.
    """

    scope: str = ""
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    key: str

    def __str__(self) -> str:
        mapped = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"XCom {self.key} of {self.dag_id}.{self.task_id}{mapped}, run {self.run_id}"

    @property
    def owner(self) -> str:
        """Of the reference that the row has to its blob. Only with a scope it begins with one."""
        names = [self.dag_id, self.run_id, self.task_id, str(self.map_index), self.key]
        scoped = [self.scope, *names] if self.scope else names
        return OWNER + "/".join(quote(name, safe=_READABLE) for name in scoped)

    @classmethod
    def of_owner(cls, owner: str) -> Self | None:
        """Return the row that an owner names; None: it names none."""
        names = [unquote(name) for name in owner.removeprefix(OWNER).split("/")]
        try:
            *scope, dag_id, run_id, task_id, map_index, key = names
            row = cls(
                scope="".join(scope),
                dag_id=dag_id,
                run_id=run_id,
                task_id=task_id,
                map_index=int(map_index),
                key=key,
            )
        except ValueError:
            return None
        return row if row.owner == owner else None


class Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a row keeps in its value's stead.

    Attributes:
        owner: Of the row's reference.
        size_bytes: Of the value as JSON.
    """

    blob_key: BlobKey
    owner: str
    size_bytes: int

    def value(self) -> dict[str, Any]:
        """Return what the row keeps."""
        return {MARK: msgspec.to_builtins(self)}


def looks_like_one(value: object) -> TypeGuard[dict[str, Any]]:
    """Tell whether a row's value is an envelope; a user's own that looks like one is made a blob itself."""
    return isinstance(value, dict) and MARK in value


def envelope_of(value: object) -> Envelope | None:
    """Return the envelope that a row's value is, None if it is a value.

    Raises:
        CorruptBlobError: It is a damaged one.
    """
    if not looks_like_one(value):
        return None
    try:
        (told,) = value.values()
        envelope = msgspec.convert(told, Envelope)
    except (ValueError, msgspec.ValidationError) as error:
        raise CorruptBlobError(
            f"XCom value {str(value)[:200]} should name a blob and does not ({error}); nothing was returned; "
            "clear the task that pushed it"
        ) from None
    if not is_blob_key(envelope.blob_key) or not envelope.owner.startswith(OWNER):
        raise CorruptBlobError(
            f"XCom value {str(value)[:200]} names no blob of an XCom row; nothing was returned; clear the "
            "task that pushed it"
        )
    return envelope
