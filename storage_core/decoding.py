"""Decode JSON and MessagePack and convert values into types, safely in threads and across forks.

msgspec describes a struct when its type is decoded for the first time, and other threads use the description
before it is complete: two threads that decode a type for the first time crash their process (msgspec 0.22.0).
Here descriptions are made under one lock, which a fork waits for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

_DECODERS: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}
_LOCK: Final = threading.RLock()


def decode_json(data: bytes | bytearray | memoryview | str, kind: type[T]) -> T:
    """Decode JSON.

    Args:
        data: Text in UTF-8.
        kind: Expected type: a struct, or a type of the standard library such as `list[int]`.

    Raises:
        msgspec.DecodeError: It is not JSON, or of another type.
        UnicodeDecodeError: It is not UTF-8.
        RecursionError: It is nested too deeply.
    """
    decoded: T = _decoder(kind).decode(data)
    return decoded


def decode_msgpack(data: bytes, kind: type[T]) -> T:
    """Decode MessagePack into a type, as `decode_json` does.

    Raises:
        msgspec.DecodeError: It is not MessagePack, or of another type.
    """
    _decoder(kind)
    return msgspec.msgpack.decode(data, type=kind)


def convert(
    value: object,
    kind: type[T],
    *,
    strict: bool = True,
    dec_hook: Callable[[type, Any], Any] | None = None,
) -> T:
    """Convert a value of dictionaries, lists and scalars.

    Args:
        value: Such as decoded JSON or rows of a database.
        kind: Expected type, as for `decode_json`.
        strict: Do not convert text to numbers or booleans.
        dec_hook: Makes a value of a type that msgspec does not know from another one.

    Raises:
        msgspec.ValidationError: It has another type; the message names the field.
    """
    _decoder(kind)
    return msgspec.convert(value, kind, strict=strict, dec_hook=dec_hook)


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    decoder = _DECODERS.get(kind)
    if decoder is None:
        with _LOCK:
            decoder = _DECODERS.setdefault(kind, msgspec.json.Decoder(kind))
    return decoder


# A child must not inherit a description that a thread of its parent was making, or its lock.
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)
