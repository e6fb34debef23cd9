"""The bytes at the end of a block that are not durable on all of its members yet."""

from __future__ import annotations

from lockgate.storage_core.stores.gathered_bytes import GatheredBytes


class UnflushedBytes:
    """Bytes that are kept to be sent, or sent again.

    A signal handler that raises leaves a call done or not begun: it changes the state by one assignment.

    Attributes:
        begin: Offset of the first byte in the block.
        sent: Offset of the first byte that the members have not received.
    """

    def __init__(self, begin: int) -> None:
        self.begin = self.sent = begin
        self._sent: tuple[bytes, ...] = ()
        self._unsent = GatheredBytes()

    @property
    def end(self) -> int:
        """Return the offset after the last byte."""
        return self.sent + len(self._unsent)

    def add(self, data: bytes | memoryview) -> None:
        """Add bytes at the end."""
        self._unsent.add(data)

    def unsent(self) -> bytes:
        """Return the bytes that the members have not received."""
        return self._unsent.joined()

    def mark_sent(self) -> None:
        """Note that all members have all bytes."""
        data = self._unsent.joined()
        if data:
            self._sent, self.sent, self._unsent = (*self._sent, data), self.end, GatheredBytes()

    def send_from(self, offset: int) -> None:
        """Note that the members have what is before an offset, and no more."""
        data, at = b"".join([*self._sent, self._unsent.joined()]), offset - self.begin
        unsent = GatheredBytes()
        unsent.add(data[at:])
        self._sent, self.sent, self._unsent = (data[:at],), offset, unsent

    def mark_flushed(self) -> None:
        """Drop all bytes, which are durable."""
        end, unsent = self.end, GatheredBytes() if len(self._unsent) else self._unsent
        self.begin, self._sent, self.sent, self._unsent = end, (), end, unsent
