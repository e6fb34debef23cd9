"""The bytes at the end of a block that are not durable on all of its members yet."""

from __future__ import annotations

from typing import NamedTuple

from lockgate.storage_core.stores.gathered_bytes import GatheredBytes


class _Kept(NamedTuple):
    """The state; it is replaced as a whole, so that no interrupt leaves a part of a change.

    Attributes:
        begin: Offset of the first byte in the block.
        sent_pieces: What the members have received.
        sent: Offset after it.
        unsent: What they have not.
    """

    begin: int
    sent_pieces: tuple[bytes, ...]
    sent: int
    unsent: GatheredBytes


class UnflushedBytes:
    """Bytes that are kept to be sent, or sent again.

    A signal handler that raises leaves a call done or not begun.
    """

    def __init__(self, begin: int) -> None:
        self._kept = _Kept(begin, (), begin, GatheredBytes())

    @property
    def begin(self) -> int:
        """Return the offset of the first byte in the block."""
        return self._kept.begin

    @property
    def sent(self) -> int:
        """Return the offset of the first byte that the members have not received."""
        return self._kept.sent

    @property
    def end(self) -> int:
        """Return the offset after the last byte."""
        return self._kept.sent + len(self._kept.unsent)

    def add(self, data: bytes | memoryview) -> None:
        """Add bytes at the end."""
        self._kept.unsent.add(data)

    def unsent(self) -> bytes:
        """Return the bytes that the members have not received."""
        return self._kept.unsent.joined()

    def mark_sent(self) -> None:
        """Note that all members have all bytes."""
        kept = self._kept
        self._kept = _Kept(kept.begin, (*kept.sent_pieces, kept.unsent.joined()), self.end, GatheredBytes())

    def send_from(self, offset: int) -> None:
        """Note that the members have what is before an offset, and no more."""
        begin, sent, _, rest = self._kept
        data = b"".join([*sent, rest.joined()])
        unsent = GatheredBytes()
        unsent.add(data[offset - begin :])
        self._kept = _Kept(begin, (data[: offset - begin],), offset, unsent)

    def mark_flushed(self) -> None:
        """Drop all bytes, which are durable."""
        self._kept = _Kept(self.end, (), self.end, GatheredBytes())
