"""XCom rows whose values are blobs: the envelope in the row, and the owner of the blob's reference."""

from __future__ import annotations

from typing import Any, Final, Self, TypeGuard
from urllib.parse import quote, unquote

import msgspec

from lockgate.storage_core.blobs.keys import BlobKey, is_blob_key
from lockgate.storage_core.decoding import convert
from lockgate.storage_core.errors import CorruptBlobError

MARK: Final = "lockgate_blob"
"""The only key of an envelope. No other value with it is written into a row: see `looks_like_envelope`."""

OWNER: Final = "xcom:"

_READABLE: Final = ":+=,@ "
"""Characters that an owner does not escape, because run ids contain many of them."""


class XComRow(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies one row of Airflow's table.

    Attributes:
        scope: `LOCKGATE_AIRFLOW_SCOPE`; empty: this is the only Airflow, or all others have a scope.
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
        """Owner of the row's reference to its blob; it begins with the scope, if there is one."""
        names = [self.dag_id, self.run_id, self.task_id, str(self.map_index), self.key]
        scoped = [self.scope, *names] if self.scope else names
        return OWNER + "/".join(quote(name, safe=_READABLE) for name in scoped)

    @classmethod
    def of_owner(cls, owner: str) -> Self | None:
        """Return the row that an owner names; None: it does not name a row."""
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
    """Stored in a row in place of its value.

    Attributes:
        owner: Owner of the row's reference.
        size_bytes: Size of the value as JSON.
    """

    blob_key: BlobKey
    owner: str
    size_bytes: int

    def value(self) -> dict[str, Any]:
        """Return the row's value."""
        return {MARK: msgspec.to_builtins(self)}


def looks_like_envelope(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a value looks like an envelope; a user's value that does is stored as a blob."""
    return isinstance(value, dict) and MARK in value


def envelope_of(value: object) -> Envelope | None:
    """Return the envelope in a row; None: the row holds a value.

    Raises:
        CorruptBlobError: The envelope is damaged.
    """
    if not looks_like_envelope(value):
        return None
    try:
        (marked,) = value.values()
        envelope = convert(marked, Envelope)
    except (ValueError, msgspec.ValidationError) as error:
        raise CorruptBlobError(
            f"XCom value {str(value)[:200]} is a damaged envelope ({error}); nothing was returned; "
            "clear the task that pushed it"
        ) from None
    if not is_blob_key(envelope.blob_key) or not envelope.owner.startswith(OWNER):
        raise CorruptBlobError(
            f"XCom value {str(value)[:200]} does not name a blob of an XCom row; nothing was returned; clear "
            "the task that pushed it"
        )
    return envelope
