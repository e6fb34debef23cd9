"""Mutations that callers submit to a journal, and their outcomes."""

from __future__ import annotations

import secrets
import time
from typing import Any

import msgspec

from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.journal.entries.op import Op
from lockgate.storage_core.stamp import Stamp


def new_request_id() -> str:
    """Return a new request id, which all tries of the request share.

    It begins with the time, so that new ids are neighbours in the index, and ends with 80 random bits.
    """
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


class Mutation(msgspec.Struct, frozen=True, kw_only=True):
    """One op with an idempotency key.

    Attributes:
        request_id: Retries with the same id have one effect and one result.
        asked_s: When the id was created. A request older than the ids that the journal keeps is refused.
    """

    op: Op
    request_id: str = msgspec.field(default_factory=new_request_id)
    asked_s: float = msgspec.field(default_factory=time.time)


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """An applied mutation.

    Attributes:
        stamp: Stamp of its entry.
        result: Return value of its fold.
        at_s: When it was accepted, by the database's clock.
        is_repeat: Whether an earlier try applied it.
    """

    stamp: Stamp
    result: Any
    at_s: float
    is_repeat: bool = False


class Refused(msgspec.Struct, frozen=True):
    """A refused mutation: it had no effect and got no entry.

    Attributes:
        error: Why it was refused.
        stamp: Stamp of the newest entry before this one. The caller of a refused mutation has observed that
            state.
    """

    error: LockgateError
    stamp: Stamp = Stamp()


WriteOutcome = Written | Refused
