"""The bytes at the end of a block that are not durable on all of its members yet."""

from __future__ import annotations


class UnflushedBytes:
    """Bytes that are kept to be sent, or sent again.

    They are kept as they come and joined once: a copy of 1 MiB costs more than its write to a local volume.

    Attributes:
        begin: Offset of the first one in the block.
        sent: Offset of the first one that the members have not received.
        end: Offset after the last one.
    """

    def __init__(self, begin: int) -> None:
        self.begin = self.sent = self.end = begin
        self._sent: list[bytes] = []
        self._unsent: list[bytes] = []

    def add(self, data: bytes) -> None:
        """Add bytes at the end."""
        self._unsent.append(data)
        self.end += len(data)

    def unsent(self) -> bytes:
        """Return the bytes that the members have not received."""
        if len(self._unsent) != 1:
            self._unsent = [b"".join(self._unsent)]
        return self._unsent[0]

    def mark_sent(self) -> None:
        """Note that all members have all bytes."""
        self._sent += self._unsent
        self._unsent = []
        self.sent = self.end

    def send_from(self, offset: int) -> None:
        """Note that the members have what is before an offset, and no more."""
        kept = b"".join([*self._sent, *self._unsent])
        at = offset - self.begin
        self._sent, self._unsent = [kept[:at]], [kept[at:]]
        self.sent = offset

    def mark_flushed(self) -> None:
        """Drop all bytes, which are durable."""
        self._sent, self._unsent = [], []
        self.begin = self.sent = self.end
