"""A volume of another process, over HTTP.

A change without an answer may have been done. Each call has the same effect twice as once, so a caller may
repeat it; this class does not, because a writer would rather drop a member than wait for it again.
"""

from __future__ import annotations

from typing import Final, TypeVar
from urllib.parse import quote, urlencode

from lockgate.storage_core.errors import NotAppliedError, OutcomeUnknownError, StoreUnavailableError
from lockgate.storage_core.files.volumes.protocol import Usage, VolumeId, check_limit
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.files.volumes.server.wire import (
    BYTES,
    KNOWN,
    PIECE_BYTES,
    Found,
    Length,
    Served,
    checksum,
    holds,
    knows_crc32c,
)
from lockgate.storage_core.http.connection import Connection, Peer, decoded
from lockgate.storage_core.stamp import Stamp

VOLUME_SERVER: Final = Peer(
    name="volume server",
    url_setting="the URL of a volume",
    ca_setting="LOCKGATE_VOLUME_CA_FILE",
    example="https://volumes.example.com:8420",
    advice="try again, or leave the file to its recovery",
)

T = TypeVar("T")


class RemoteVolume:
    """A `Volume` behind a volume server. Safe to use from several threads.

    Attributes:
        id: Its id; the server refuses calls for a volume that it does not have.

    Args:
        volume: Its id.
        connection: Connection to the server; closed with the volume.
    """

    def __init__(self, volume: VolumeId, connection: Connection) -> None:
        self.id = volume
        self._connection = connection
        self._sends_crc32c = False  # before the server has said that it knows it
        self._path = f"/volumes/{quote(volume, safe='')}"

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def answers(self) -> bool:
        """Return whether the server can be reached, and has the volume."""
        try:
            return self._get("", Served).volume == self.id
        except (NotAppliedError, OutcomeUnknownError):
            return False

    def create(self, block: BlockId, stamp: Stamp) -> Replica:
        """Create an empty replica; one that stands at this stamp is returned."""
        return self._change("PUT", self._block(block, stamp=stamp), Replica)

    def append(self, block: BlockId, stamp: Stamp, offset: int, data: bytes) -> int:
        """Append bytes at the end of a replica; bytes that stand already are compared."""
        length = 0
        for start in range(0, len(data) or 1, PIECE_BYTES):
            piece = bytes(data[start : start + PIECE_BYTES])
            path = self._block(block, "/bytes", stamp=stamp, offset=offset + start)
            headers = {"content-type": BYTES, **checksum(piece, is_crc32c=self._sends_crc32c)}
            call = self._connection.request("POST", f"{self._path}{path}", headers=headers, body=piece)
            with call as response:
                self._sends_crc32c = knows_crc32c(response.headers)
                length = decoded(response, Length).length_bytes
        return length

    def flush(self, block: BlockId, stamp: Stamp) -> int:
        """Make all received bytes durable, and return their number."""
        return self._change("POST", self._block(block, "/flush", stamp=stamp), Length).length_bytes

    def read(self, block: BlockId, stamp: Stamp, offset: int, size: int) -> bytes:
        """Return durable bytes whose checksums hold; fewer than `size` only at their end."""
        pieces: list[bytes] = []
        for start in range(0, size or 1, PIECE_BYTES):
            wanted = min(PIECE_BYTES, size - start)
            pieces.append(self._read(block, stamp, offset + start, wanted))
            if len(pieces[-1]) < wanted:
                break
        return b"".join(pieces)

    def stat(self, block: BlockId) -> Replica | None:
        """Return a replica, or None if there is none."""
        return self._get(f"/blocks/{block}", Replica | None)  # type: ignore[arg-type] # a type of msgspec

    def fence(self, block: BlockId, stamp: Stamp) -> Replica:
        """Refuse older stamps from here on, and return the replica once that is durable."""
        return self._change("POST", self._block(block, "/fence", stamp=stamp), Replica)

    def trim(self, block: BlockId, stamp: Stamp, length_bytes: int) -> Replica:
        """Cut a replica at the stamp of its fence; a shorter one is refused."""
        path = self._block(block, "/trim", stamp=stamp, length_bytes=length_bytes)
        return self._change("POST", path, Replica)

    def finish(self, block: BlockId, stamp: Stamp, length_bytes: int, state: ReplicaState) -> Replica:
        """Seal a replica or open it to appends, durably with its bytes."""
        path = self._block(block, "/finish", stamp=stamp, length_bytes=length_bytes, state=state.value)
        return self._change("POST", path, Replica)

    def delete(self, block: BlockId, stamp: Stamp) -> bool:
        """Delete a replica that is not newer than the stamp; return whether there was one."""
        return self._change("DELETE", self._block(block, stamp=stamp), Found).is_found

    def quarantine(self, block: BlockId, stamp: Stamp) -> bool:
        """Set a damaged replica aside; one that is newer than the stamp stays."""
        return self._change("POST", self._block(block, "/quarantine", stamp=stamp), Found).is_found

    def quarantined(self, after: BlockId | None, limit: int) -> tuple[BlockId, ...]:
        """Return the blocks of the next replicas that are set aside."""
        return tuple(map(BlockId, self._page("/quarantined", after, limit, tuple[int, ...])))

    def discard(self, block: BlockId) -> bool:
        """Delete the replica of a block that is set aside; return whether there was one."""
        return self._change("DELETE", self._block(block, "/quarantine"), Found).is_found

    def replicas(self, after: BlockId | None, limit: int) -> tuple[Replica, ...]:
        """Return the next replicas in the order of their blocks."""
        return self._page("/replicas", after, limit, tuple[Replica, ...])

    def usage(self) -> Usage:
        """Return the used and the free space."""
        return self._get("/usage", Usage)

    def _block(self, block: BlockId, call: str = "", **query: object) -> str:
        return f"/blocks/{block}{call}?{urlencode(query)}"

    def _page(self, path: str, after: BlockId | None, limit: int, kind: type[T]) -> T:
        check_limit(limit)
        query = {"limit": limit} if after is None else {"limit": limit, "after": after}
        return self._get(f"{path}?{urlencode(query)}", kind)

    def _read(self, block: BlockId, stamp: Stamp, offset: int, size: int) -> bytes:
        path = f"{self._path}{self._block(block, '/bytes', stamp=stamp, offset=offset, size=size)}"
        with self._connection.request("GET", path, headers=KNOWN) as response:
            data = response.read()
            if not holds(data, response.headers):
                raise StoreUnavailableError(
                    f"GET {self._connection.url}{path}: the checksum of the answer does not hold; try again"
                )
        return data

    def _get(self, path: str, kind: type[T]) -> T:
        try:
            with self._connection.request("GET", f"{self._path}{path}") as response:
                return decoded(response, kind)
        except OutcomeUnknownError as error:
            raise StoreUnavailableError(str(error)) from error  # a read changes nothing

    def _change(self, method: str, path: str, kind: type[T]) -> T:
        with self._connection.request(method, f"{self._path}{path}") as response:
            return decoded(response, kind)
