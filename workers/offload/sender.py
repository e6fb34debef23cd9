"""Send large arguments of Celery tasks as blobs; below the threshold a message is unchanged.

The blobs' modules are imported with the first large message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from celery.app.amqp import AMQP
from kombu.serialization import dumps
from kombu.utils.objects import cached_property

from lockgate.storage_core.decoding import convert
from lockgate.storage_core.errors import InvalidInputError, LockgateError
from lockgate.storage_core.settings import Settings, load_settings

if TYPE_CHECKING:
    from lockgate.storage_core.blobs.claim_check import ClaimCheck, Envelope

LOG: Final = logging.getLogger("lockgate.blobs")

HEADER: Final = "lockgate-offloaded"
"""Header of a message whose arguments are a blob: a `Package`. Arguments are never read as envelopes."""

GUARD: Final = "lockgate_arguments_are_offloaded_install_offload_in_this_worker"
"""Keyword argument in place of the offloaded arguments: a worker without offloading fails with this name."""

JOB_HEADER: Final = "job_id"


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """Header of an offloaded message.

    Attributes:
        envelope: Envelope of the blob, as built-in types.
        content_type: Content type of its bytes.
        content_encoding: Encoding of its bytes.
        has_rest: The blob also holds the task's chain, chord and callbacks.
    """

    envelope: dict[str, Any]
    content_type: str
    content_encoding: str
    has_rest: bool


class Offload:
    """Offloads the messages of one application, by the given settings or those of the environment.

    Envelopes are passed as built-in types, so that the blobs' modules are imported only for large messages.
    """

    def __init__(self, settings: Settings | None) -> None:
        self._settings = settings

    @property
    def settings(self) -> Settings:
        """Settings that were given, else those of the environment, read at each call."""
        return self._settings or load_settings()

    def put(
        self,
        payload: str | bytes,
        *,
        owner: str,
        headers: Mapping[str, Any],
        sending: str = "",
        is_counted: bool = True,
        lapse_s: float | None = 0.0,
    ) -> dict[str, Any] | None:
        """Store a message and return its envelope; None: blobs are not configured. See `ClaimCheck.offload`.

        Args:
            payload: The message.
            owner: Owner of the reference: the receiver.
            headers: Headers of its task, which may name a job.
            sending: Key of messages whose equal bytes are put only once.
            is_counted: There is one receiver, and it acknowledges.
            lapse_s: How long to keep the message without an acknowledgement; None: for ever.
        """
        messages = self._messages()
        if messages is None:
            return None
        envelope = messages.offload(
            payload.encode() if isinstance(payload, str) else bytes(payload),
            owner=owner,
            job_id=_job_of(headers),
            sending=sending,
            is_counted=is_counted,
            lapse_s=lapse_s,
        )
        return dict(msgspec.to_builtins(envelope))

    def recall(self, envelope: Mapping[str, Any], *, sending: str = "", is_read_once: bool = False) -> bytes:
        """Return the message of an envelope; see `ClaimCheck.recall`.

        Raises:
            InvalidInputError: It is not an envelope, or blobs are not configured.
        """
        messages, opened = self._opened(envelope)
        return messages.recall(opened, sending=sending, is_read_once=is_read_once)

    def acknowledge(self, envelope: Mapping[str, Any]) -> None:
        """Release the message of an envelope; if that fails, it expires."""
        try:
            messages, opened = self._opened(envelope)
            messages.acknowledge(opened)
        except LockgateError as error:
            LOG.warning("an offloaded message was not released and expires: %s", error)

    def _messages(self) -> ClaimCheck | None:
        from lockgate.storage_core.blobs.claim_check import configured_claim_check

        return configured_claim_check(self.settings)

    def _opened(self, envelope: Mapping[str, Any]) -> tuple[ClaimCheck, Envelope]:
        from lockgate.storage_core.blobs.claim_check import Envelope

        messages = self._messages()
        if messages is None:
            raise InvalidInputError(
                "an offloaded message was received, and this process has no blobs: LOCKGATE_JOURNAL_URL is "
                "none; nothing was read; give it the settings of the sender"
            )
        try:
            return messages, convert(envelope, Envelope)
        except msgspec.ValidationError as error:
            raise InvalidInputError(
                f"the envelope of a large message is malformed ({error}); nothing was read; "
                "send the message again"
            ) from None


class OffloadingAMQP(AMQP):  # type: ignore[misc]
    """Sends the arguments of a task as a blob if they are large."""

    offload: Offload

    @cached_property
    def send_task_message(self) -> Callable[..., Any]:
        """Return the function that publishes a task's message."""
        publish = super().send_task_message
        threshold_bytes = self.offload.settings.celery_threshold_bytes

        def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
            # A sender may pass on the headers of a message that it received.
            headers = {
                name: value for name, value in (options.get("headers") or {}).items() if name != HEADER
            }
            options["headers"] = headers
            serializer = options.get("serializer") or self.app.conf.task_serializer
            # In protocol 1 the body is a mapping: such messages are not offloaded.
            if isinstance(message.body, tuple) and _size(message.body, serializer) > threshold_bytes:
                task_headers = {**message.headers, **headers}
                is_broadcast = self._is_broadcast(options.get("queue"))
                message = self._offloaded(message, task_headers, serializer, threshold_bytes, is_broadcast)
            # If this fails, the broker may still have the message: its blob is kept until it expires.
            return publish(producer, name, message, **options)

        return send_task_message

    def _offloaded(
        self,
        message: Any,
        headers: Mapping[str, Any],
        serializer: str,
        threshold_bytes: int,
        is_broadcast: bool,
    ) -> Any:
        """Return a message that carries an envelope; the given message if blobs are not configured."""
        args, kwargs, rest = message.body
        # Callbacks stay in the message unless they are large, so that they are called if the blob is lost.
        has_rest = _size(((), {}, rest), serializer) > threshold_bytes
        content_type, content_encoding, payload = dumps(  # type: ignore[no-untyped-call]
            message.body if has_rest else (args, kwargs), serializer
        )
        envelope = self.offload.put(
            payload,
            owner=f"receiver:{headers['id']}",
            headers=headers,
            sending=sending_of(headers),
            is_counted=not is_broadcast,
            lapse_s=_waits_s(headers) + self.offload.settings.message_lapse_s,
        )
        if envelope is None:
            return message
        package = Package(
            envelope=envelope,
            content_type=content_type,
            content_encoding=content_encoding,
            has_rest=has_rest,
        )
        return message._replace(
            headers={**message.headers, HEADER: msgspec.to_builtins(package)},
            # A mutable list and mapping: a worker fills them before the task is called.
            body=([], {GUARD: True}, {} if has_rest else rest),
        )

    def _is_broadcast(self, queue: Any) -> bool:
        named = self.queues[queue] if isinstance(queue, str) else queue
        return getattr(named.exchange, "type", None) == "fanout"


def sending_of(headers: Mapping[str, Any]) -> str:
    """Return a key of messages whose bytes are probably equal: those of a group, or the tries of one task."""
    return str(headers.get("group") or headers["id"])


def _waits_s(headers: Mapping[str, Any]) -> float:
    """Return how long a task waits for its `eta`: an ISO time, in UTC if it has no zone."""
    if headers.get("eta") is None:
        return 0.0
    eta = datetime.fromisoformat(str(headers["eta"]))
    if eta.tzinfo is None:
        eta = eta.replace(tzinfo=UTC)
    return max(0.0, (eta - datetime.now(UTC)).total_seconds())


def _job_of(headers: Mapping[str, Any]) -> str:
    """Return the job in a task's headers, else `no_job`."""
    from lockgate.storage_core.blobs.keys import NO_JOB, is_blob_job

    job_id = headers.get(JOB_HEADER)
    return job_id if isinstance(job_id, str) and is_blob_job(job_id) else NO_JOB


def _size(body: Any, serializer: str) -> int:
    return len(dumps(body, serializer)[2])  # type: ignore[no-untyped-call]
