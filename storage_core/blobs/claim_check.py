"""Store large messages as blobs, and send an envelope that names the blob.

Each receiver holds a reference to the blob from before the message is sent until it acknowledges the message;
an unacknowledged reference lapses. Messages with the same bytes and the same sending share one blob.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
from collections import OrderedDict
from functools import partial
from typing import Final

import msgspec

from lockgate.storage_core.blobs.cache.blob_cache import BlobCache
from lockgate.storage_core.blobs.cache.process_cache import configured_cache
from lockgate.storage_core.blobs.keys import NO_JOB, BlobKey, digest_of
from lockgate.storage_core.errors import LockgateError, ObjectNotFoundError, StoreUnavailableError
from lockgate.storage_core.settings import Settings

LOG: Final = logging.getLogger("lockgate.blobs")

RECENT_SENDINGS: Final = 64
"""Number of sendings whose blobs a thread remembers."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """Sent in place of a large message.

    Attributes:
        size_bytes: Size of the message.
        owner: Owner of the reference that the receiver drops; None: the receivers are not counted, and the
            reference lapses.
    """

    job_id: str
    blob_key: BlobKey
    size_bytes: int
    owner: str | None


class ClaimCheck:
    """Offload and recall messages. Safe to use from several threads."""

    def __init__(self, cache: BlobCache, *, lapse_s: float) -> None:
        self._cache = cache
        self._lapse_s = lapse_s

    def offload(
        self,
        data: bytes,
        *,
        owner: str,
        job_id: str = NO_JOB,
        sending: str = "",
        is_counted: bool = True,
        lapse_s: float | None = 0.0,
    ) -> Envelope:
        """Store a message for a receiver; it is durable when this returns.

        Args:
            data: The message.
            owner: Name of the receiver.
            job_id: Job that the message belongs to; the message is deleted when the job fails or ends.
            sending: Id of the sending; equal bytes of one sending are stored once.
            is_counted: Whether there is exactly one receiver, which acknowledges.
            lapse_s: Keep the message at least this long without an acknowledgement; None: without limit.

        Raises:
            FencedError: The job has ended; nothing was kept.
            StoreUnavailableError: The blob server is full or unreachable; nothing was kept.
            OutcomeUnknownError: The message may have been kept; if so, it lapses.
        """
        keep_s = None if lapse_s is None else max(self._lapse_s, lapse_s)
        blob_key = _RECENT.find(job_id, sending, data)
        if blob_key is not None:
            # Another message may use this blob and this owner: each message needs a separate reference.
            new_owner = f"{owner}:{secrets.token_hex(4)}"
            try:
                self._cache.origin.refer(job_id, blob_key, new_owner, lapse_s=keep_s)
            except ObjectNotFoundError:
                blob_key = None
            else:
                owner = new_owner
        if blob_key is None:
            blob_key = self._put(data, job_id, owner, keep_s)
        _RECENT.remember(job_id, sending, blob_key)
        return Envelope(
            job_id=job_id,
            blob_key=blob_key,
            size_bytes=len(data),
            owner=owner if is_counted else None,
        )

    def recall(self, envelope: Envelope, *, sending: str = "", is_read_once: bool = False) -> bytes:
        """Return the complete, verified bytes of a message.

        Args:
            envelope: Envelope that was received.
            sending: As for `offload`: this thread can send the same bytes again without storing them.
            is_read_once: Whether nothing on this machine reads it again; it is then not cached.

        Raises:
            ObjectNotFoundError: It lapsed, was acknowledged, or its job failed or ended.
            CorruptBlobError: Every copy of it is damaged.
            StoreUnavailableError: No server that may have it answers.
        """
        if is_read_once:
            data = self._cache.origin.get(envelope.job_id, envelope.blob_key)
        else:
            data = self._cache.get(envelope.job_id, envelope.blob_key, guarantee="recreatable")
        _RECENT.remember(envelope.job_id, sending, envelope.blob_key)
        return data

    def acknowledge(self, envelope: Envelope) -> None:
        """Drop the receiver's reference. A failure is logged: the reference then lapses."""
        if envelope.owner is None:
            return
        try:
            self._cache.origin.drop(envelope.job_id, envelope.blob_key, envelope.owner)
        except LockgateError as error:
            LOG.warning("message %s of %s: %s; it lapses", envelope.blob_key, envelope.owner, error)

    def _put(self, data: bytes, job_id: str, owner: str, lapse_s: float | None) -> BlobKey:
        put = partial(
            self._cache.origin.put,
            data,
            job_id=job_id,
            guarantee="recreatable",
            use="message",
            owners=[owner],
            lapse_s=lapse_s,
        )
        try:
            return put().blob_key
        except StoreUnavailableError:
            # A server whose process was suspended may have lost its upload set; the next put opens another.
            return put().blob_key


def configured_claim_check(settings: Settings) -> ClaimCheck | None:
    """Return the `ClaimCheck` of this process; None, with one warning, if the settings allow no blobs."""
    if settings.has_journal or settings.blob_server_url is not None:
        return ClaimCheck(configured_cache(settings), lapse_s=settings.message_lapse_s)
    global _is_warned  # noqa: PLW0603 - once a process
    if not _is_warned:
        _is_warned = True
        LOG.warning(
            "LOCKGATE_JOURNAL_URL is none: large messages are sent through the broker in full; unset it, or "
            "name a blob server"
        )
    return None


_is_warned = False


class _RecentBlobs(threading.local):
    """The last blobs that this thread sent or received."""

    def __init__(self) -> None:
        self._blobs: OrderedDict[tuple[str, str], BlobKey] = OrderedDict()

    def find(self, job_id: str, sending: str, data: bytes) -> BlobKey | None:
        """Return the blob with these bytes in the same sending, None if there is none."""
        blob_key = self._blobs.get((job_id, sending)) if sending else None
        if blob_key is not None and hashlib.sha256(data).hexdigest() == digest_of(blob_key):
            return blob_key
        return None

    def remember(self, job_id: str, sending: str, blob_key: BlobKey) -> None:
        if not sending:
            return
        self._blobs[(job_id, sending)] = blob_key
        self._blobs.move_to_end((job_id, sending))
        if len(self._blobs) > RECENT_SENDINGS:
            self._blobs.popitem(last=False)


_RECENT: Final = _RecentBlobs()
