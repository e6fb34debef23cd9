"""The bytes at the end of a block that are not durable on all of its members yet."""

from __future__ import annotations

from lockgate.storage_core.stores.gathered_bytes import GatheredBytes


class UnflushedBytes:
    """Bytes that are kept to be sent, or sent again.

    Attributes:
        begin: Offset of the first one in the block.
        sent: Offset of the first one that the members have not received.
    """

    def __init__(self, begin: int) -> None:
        self.begin = self.sent = begin
        self._sent: list[bytes] = []
        self._unsent = GatheredBytes()

    @property
    def end(self) -> int:
        """Offset after the last one."""
        return self.sent + len(self._unsent)

    def add(self, data: bytes | memoryview) -> None:
        """Add bytes at the end."""
        self._unsent.add(data)

    def unsent(self) -> bytes:
        """Return the bytes that the members have not received."""
        return self._unsent.joined()

    def mark_sent(self) -> None:
        """Note that all members have all bytes."""
        data = self._unsent.take()
        self._sent.append(data)
        self.sent += len(data)

    def send_from(self, offset: int) -> None:
        """Note that the members have what is before an offset, and no more."""
        kept = b"".join([*self._sent, self._unsent.take()])
        at = offset - self.begin
        self._sent = [kept[:at]]
        self._unsent.add(kept[at:])
        self.sent = offset

    def mark_flushed(self) -> None:
        """Drop all bytes, which are durable."""
        self.begin = self.sent = self.end
        self._sent = []
        self._unsent.clear()
