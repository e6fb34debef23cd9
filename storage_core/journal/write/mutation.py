"""What a caller asks a journal to write, and what comes of it."""

from __future__ import annotations

import secrets
import time
from typing import Any

import msgspec

from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.journal.entries.op import Op
from lockgate.storage_core.stamp import Stamp


def new_request_id() -> str:
    """Return a fresh id of one request; whoever tries the request again uses the same one.

    It begins with the time, so that the newest ids lie together in their index, and ends with 80 random bits.
    """
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


class Mutation(msgspec.Struct, frozen=True, kw_only=True):
    """One op, under the id that makes repeating it harmless.

    Attributes:
        request_id: The same id has one effect and one result, whatever is retried.
        asked_s: When the id was made. A request older than the ids that the journal keeps is refused.
    """

    op: Op
    request_id: str = msgspec.field(default_factory=new_request_id)
    asked_s: float = msgspec.field(default_factory=time.time)


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A mutation that has its effect, now or since an earlier try.

    Attributes:
        stamp: Of its entry.
        result: What its fold returned.
        at_s: When it was accepted, by the database's clock.
        is_repeat: Whether an earlier try had the effect.
    """

    stamp: Stamp
    result: Any
    at_s: float
    is_repeat: bool = False


class Refused(msgspec.Struct, frozen=True):
    """A mutation that was refused, alone: it had no effect and took no number.

    Attributes:
        stamp: Of the newest entry before it: whoever was refused has seen that state.
    """

    error: LockgateError
    stamp: Stamp = Stamp()


WriteOutcome = Written | Refused
