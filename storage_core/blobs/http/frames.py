"""Many small blobs in one stream: of each a length, that many bytes of JSON, and its bytes.

    4 bytes, big-endian | JSON with `size_bytes` | the bytes

What comes back for each blob is in the same order.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Final, Protocol, TypeVar

import msgspec

from lockgate.storage_core.blobs.http.messages import Message, Trouble, error_of
from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.protocol import BlobInfo, NewBlob
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import MIB

FRAME_BYTES: Final = 4 * MIB
"""A blob in a frame is in memory whole: a larger one goes by itself."""

FRAMES: Final = 10_000
"""In one request."""

_HEAD_BYTES: Final = 256 * 1024
_LENGTH: Final = struct.Struct(">I")

T = TypeVar("T")


class PutFrame(Message, frozen=True):
    """A blob to put."""

    new: NewBlob
    size_bytes: int


class GotFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A blob that was asked for, or why it is not there."""

    blob_key: BlobKey
    size_bytes: int = 0
    trouble: Trouble | None = None


class PutOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one blob of many; one of the two is there."""

    info: BlobInfo | None = None
    trouble: Trouble | None = None

    def told(self) -> BlobInfo:
        """Return the blob.

        Raises:
            LockgateError: What the server raised.
        """
        if self.info is None:
            raise error_of(self.trouble or Trouble("OutcomeUnknownError", "nothing was told of this blob"))
        return self.info


class Exactly(Protocol):
    """A stream of bytes."""

    def read(self, size: int) -> bytes:
        """Return so many bytes; fewer only at its end."""


def frame(head: Any, data: bytes) -> Iterator[bytes]:
    """Yield a frame's pieces."""
    text = msgspec.json.encode(head)
    yield _LENGTH.pack(len(text)) + text
    if data:
        yield data


def read_head(stream: Exactly, kind: type[T]) -> T | None:
    """Read a frame's JSON, None at the end of the stream; its bytes come next."""
    length = stream.read(_LENGTH.size)
    if not length:
        return None
    return _decoded(stream.read(_length_in(length)), kind)


class ArrivingFrames:
    """Frames in a body that comes in pieces; one blob is in memory at a time.

    Args:
        pieces: Of any length.
    """

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._held = bytearray()

    async def __aiter__(self) -> AsyncIterator[tuple[NewBlob, bytes]]:
        """Yield each blob.

        Raises:
            InvalidInputError: The stream is no sequence of whole frames, or one is too large.
        """
        count = 0
        while length := await self._read(_LENGTH.size, may_end=True):
            head = _decoded(await self._read(_length_in(length)), PutFrame)
            count += 1
            if not 0 <= head.size_bytes <= FRAME_BYTES or count > FRAMES:
                raise InvalidInputError(
                    f"frame {count} has {head.size_bytes} bytes: a request takes {FRAMES} frames of at most "
                    f"{FRAME_BYTES} bytes; nothing was kept of this frame; put larger blobs one by one"
                )
            yield head.new, await self._read(head.size_bytes)

    async def _read(self, size: int, *, may_end: bool = False) -> bytes:
        while len(self._held) < size:
            piece = await anext(self._pieces, b"")
            if not piece:
                if may_end and not self._held:
                    return b""
                raise InvalidInputError("the last frame is cut off; nothing was kept of it; send it again")
            self._held += piece
        data = bytes(memoryview(self._held)[:size])
        del self._held[:size]
        return data


def framed(blobs: Iterable[tuple[NewBlob, bytes]]) -> bytes:
    """Return blobs as a body."""
    return b"".join(
        piece for new, data in blobs for piece in frame(PutFrame(new=new, size_bytes=len(data)), data)
    )


def _length_in(packed: bytes) -> int:
    if len(packed) == _LENGTH.size:
        (length,) = _LENGTH.unpack(packed)
        if length <= _HEAD_BYTES:
            return int(length)
    raise InvalidInputError(f"a frame begins with the length of its JSON, at most {_HEAD_BYTES} bytes")


def _decoded(text: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidInputError(f"a frame's JSON cannot be read: {error}") from None
