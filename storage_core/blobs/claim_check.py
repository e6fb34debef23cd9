"""Large messages: their bytes are a blob, and what is sent is an envelope that names it.

Each receiver has a reference to the blob, from before the message is sent until it has acknowledged. One that
never comes lapses. Bytes that several receivers of one sending get, or the next try of one, are put once.

Source: Flink BLOB storage, "RPC Messages".
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

from lockgate.storage_core.blobs.cache.cache import BlobCache
from lockgate.storage_core.blobs.cache.process_cache import configured_cache
from lockgate.storage_core.blobs.keys import NO_JOB, BlobKey, digest_of
from lockgate.storage_core.errors import LockgateError, ObjectNotFoundError, StoreUnavailableError
from lockgate.storage_core.settings import Settings

LOG: Final = logging.getLogger("lockgate.blobs")

REMEMBERED: Final = 64
"""Sendings whose blobs a thread remembers, the latest."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent in place of a large message.

    Attributes:
        size_bytes: Of the message.
        owner: Of the reference that its receiver drops; None: nobody counts the receivers, and it lapses.
    """

    job_id: str
    blob_key: BlobKey
    size_bytes: int
    owner: str | None


class Messages:
    """Offloads messages and recalls them. Safe to use from several threads.

    Args:
        cache: Of this process, over the blob server; another try on this machine finds the message there.
        lapse_s: A message that is not acknowledged is kept so long.
    """

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
        """Keep a message for a receiver; durable when this returns.

        Args:
            data: The message.
            owner: Names the receiver.
            job_id: Of the job that it belongs to; when that fails or ends, the message goes.
            sending: The same over messages whose equal bytes need be put only once.
            is_counted: There is one receiver, and it acknowledges.
            lapse_s: It is kept at least so long if nobody acknowledges; None: for ever.

        Raises:
            FencedError: The job has ended; nothing was kept.
            StoreUnavailableError: The blob server is full or away; nothing was kept.
            OutcomeUnknownError: The message may have been kept; it lapses.
        """
        until_s = None if lapse_s is None else max(self._lapse_s, lapse_s)
        blob_key = _SENT.find(job_id, sending, data)
        if blob_key is not None:
            # Another message may have this blob and this receiver: each needs a reference of its own.
            again = f"{owner}:{secrets.token_hex(4)}"
            try:
                self._cache.origin.refer(job_id, blob_key, again, lapse_s=until_s)
            except ObjectNotFoundError:
                blob_key = None
            else:
                owner = again
        if blob_key is None:
            blob_key = self._put(data, job_id, owner, until_s)
        _SENT.remember(job_id, sending, blob_key)
        return Envelope(
            job_id=job_id,
            blob_key=blob_key,
            size_bytes=len(data),
            owner=owner if is_counted else None,
        )

    def recall(self, envelope: Envelope, *, sending: str = "", is_read_once: bool = False) -> bytes:
        """Return a message, whole and verified.

        Args:
            envelope: That came in its place.
            sending: As for `offload`: what this thread sends on under it, it need not put again.
            is_read_once: Nobody on this machine will ask again; nothing is kept in its cache.

        Raises:
            ObjectNotFoundError: It is gone: it lapsed, was acknowledged long ago, or its job failed or ended.
            CorruptBlobError: Every copy of it is damaged.
            StoreUnavailableError: Nobody who has it answers.
        """
        if is_read_once:
            data = self._cache.origin.get(envelope.job_id, envelope.blob_key)
        else:
            data = self._cache.get(envelope.job_id, envelope.blob_key, guarantee="recreatable")
        _SENT.remember(envelope.job_id, sending, envelope.blob_key)
        return data

    def acknowledge(self, envelope: Envelope) -> None:
        """Drop the receiver's reference; one that cannot be dropped now lapses."""
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
            # A server in a process that slept for long has lost its upload set, and says so once.
            return put().blob_key


def configured_messages(settings: Settings) -> Messages | None:
    """Return what offloads the messages of this process; None, with one warning, where no blobs can be.

    Args:
        settings: `message_lapse_s`, and what `configured_cache` takes.
    """
    if settings.has_journal or settings.blob_server_url is not None:
        return Messages(configured_cache(settings), lapse_s=settings.message_lapse_s)
    global _is_warned  # noqa: PLW0603 - once a process
    if not _is_warned:
        _is_warned = True
        LOG.warning(
            "LOCKGATE_JOURNAL_URL is none: large messages go through the broker whole; unset it, or name a "
            "blob server"
        )
    return None


_is_warned = False


class _Sent(threading.local):
    """The blobs that this thread has sent or received last."""

    def __init__(self) -> None:
        self._blobs: OrderedDict[tuple[str, str], BlobKey] = OrderedDict()

    def find(self, job_id: str, sending: str, data: bytes) -> BlobKey | None:
        """Return the blob of the same bytes in the same sending."""
        blob_key = self._blobs.get((job_id, sending)) if sending else None
        if blob_key is not None and hashlib.sha256(data).hexdigest() == digest_of(blob_key):
            return blob_key
        return None

    def remember(self, job_id: str, sending: str, blob_key: BlobKey) -> None:
        """Remember the latest blob of a sending."""
        if not sending:
            return
        self._blobs[(job_id, sending)] = blob_key
        self._blobs.move_to_end((job_id, sending))
        if len(self._blobs) > REMEMBERED:
            self._blobs.popitem(last=False)


_SENT: Final = _Sent()
