"""The bytes at the end of a block that are not durable on all of its members yet."""

from __future__ import annotations

from lockgate.storage_core.stores.gathered_bytes import GatheredBytes


class UnflushedBytes:
    """Bytes that are kept to be sent, or sent again.

    Attributes:
        begin: Offset of the first one in the block.
        sent: Offset of the first one that the members have not received.
        end: Offset after the last one.
    """

    def __init__(self, begin: int) -> None:
        self.begin = self.sent = self.end = begin
        self._sent: list[bytes] = []
        self._unsent = GatheredBytes()

    def add(self, data: bytes | memoryview) -> None:
        """Add bytes at the end."""
        self._unsent.add(data)
        self.end += len(data)

    def unsent(self) -> bytes:
        """Return the bytes that the members have not received."""
        return self._unsent.joined()

    def mark_sent(self) -> None:
        """Note that all members have all bytes."""
        self._sent.append(self._unsent.take())
        self.sent = self.end

    def send_from(self, offset: int) -> None:
        """Note that the members have what is before an offset, and no more."""
        kept = b"".join([*self._sent, self._unsent.take()])
        at = offset - self.begin
        self._sent = [kept[:at]]
        self._unsent.add(kept[at:])
        self.sent = offset

    def mark_flushed(self) -> None:
        """Drop all bytes, which are durable."""
        self._sent = []
        self._unsent.clear()
        self.begin = self.sent = self.end
