"""Send large arguments of Celery tasks as blobs; below the threshold a message is unchanged.

Nothing of blobs is imported before the first large message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from celery.app.amqp import AMQP
from kombu.common import Broadcast
from kombu.serialization import dumps
from kombu.utils.objects import cached_property

from lockgate.storage_core.errors import InvalidInputError, LockgateError
from lockgate.storage_core.settings import Settings, load_settings

if TYPE_CHECKING:
    from lockgate.storage_core.blobs.claim_check import ClaimCheck, Envelope

LOG: Final = logging.getLogger("lockgate.blobs")

HEADER: Final = "lockgate-offloaded"
"""Of a message whose arguments are a blob: a `Package`. Who passes one as an argument passes data."""

GUARD: Final = "lockgate_arguments_are_offloaded_install_offload_in_this_worker"
"""Stands in such a message for the arguments, as the name of one that no task takes."""

JOB_HEADER: Final = "job_id"


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """What the header of an offloaded message says.

    Attributes:
        envelope: Names the blob, as built-in types.
        content_type: By which its bytes are decoded.
        content_encoding: Of these.
        has_rest: What follows the task, its chain, chord and callbacks, is in the blob, too.
    """

    envelope: dict[str, Any]
    content_type: str
    content_encoding: str
    has_rest: bool


class Offload:
    """What one application offloads by: the settings that it was given, else those of the environment.

    Envelopes go in and out as built-in types, so that who offloads nothing loads nothing of blobs.
    """

    def __init__(self, settings: Settings | None) -> None:
        self._settings = settings

    @property
    def settings(self) -> Settings:
        """Return the given settings, else those of the environment, read at each call."""
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
        """Keep a message and return its envelope, None where no blobs can be; see `ClaimCheck.offload`.

        Args:
            payload: The message.
            owner: Names its receiver.
            headers: Headers of its task, which may name a job.
            sending: The same over messages whose equal bytes need be put only once.
            is_counted: There is one receiver, and it acknowledges.
            lapse_s: It is kept at least so long if nobody acknowledges; None: for ever.
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
        """Return the message that an envelope stands for; see `ClaimCheck.recall`.

        Raises:
            InvalidInputError: It is no envelope, or no blobs can be.
        """
        messages, opened = self._opened(envelope)
        return messages.recall(opened, sending=sending, is_read_once=is_read_once)

    def acknowledge(self, envelope: Mapping[str, Any]) -> None:
        """Let go what an envelope stands for; what cannot be let go lapses."""
        try:
            messages, opened = self._opened(envelope)
            messages.acknowledge(opened)
        except LockgateError as error:
            LOG.warning("an offloaded message is not let go: %s; it lapses", error)

    def _messages(self) -> ClaimCheck | None:
        from lockgate.storage_core.blobs.claim_check import configured_claim_check  # noqa: PLC0415 - only for large ones

        return configured_claim_check(self.settings)

    def _opened(self, envelope: Mapping[str, Any]) -> tuple[ClaimCheck, Envelope]:
        from lockgate.storage_core.blobs.claim_check import Envelope  # noqa: PLC0415 - only for large ones

        messages = self._messages()
        if messages is None:
            raise InvalidInputError(
                "an offloaded message came, and this process has no blobs: LOCKGATE_JOURNAL_URL is none; "
                "nothing was read; give it the settings of the sender"
            )
        try:
            return messages, msgspec.convert(envelope, Envelope)
        except msgspec.ValidationError as error:
            raise InvalidInputError(
                f"what came in place of a large message is no envelope ({error}); nothing was read; "
                "send the message again"
            ) from None


class OffloadingAMQP(AMQP):  # type: ignore[misc]
    """Sends the arguments of a task as a blob if they are large."""

    offload: Offload

    @cached_property
    def send_task_message(self) -> Callable[..., Any]:
        """Return what publishes a task's message."""
        publish = super().send_task_message
        threshold_bytes = self.offload.settings.celery_threshold_bytes

        def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
            options["headers"] = headers = _without_ours(options.get("headers"))
            serializer = options.get("serializer") or self.app.conf.task_serializer
            # Protocol 1 has a mapping for a body: its messages go as they are.
            if isinstance(message.body, tuple) and _size(message.body, serializer) > threshold_bytes:
                task_headers = {**message.headers, **headers}
                is_broadcast = self._is_broadcast(options.get("queue"))
                message = self._offloaded(message, task_headers, serializer, threshold_bytes, is_broadcast)
            # If this fails, the broker may yet have the message: its blob is left to lapse.
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
        """Return a message that carries an envelope; the same one where no blobs can be."""
        args, kwargs, rest = message.body
        # What follows the task stays with the message unless it is large itself: should the blob be lost,
        # its chord and its callbacks hear of it.
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
            # A list, and a mapping: a worker fills them before the task is called.
            body=([], {GUARD: True}, {} if has_rest else rest),
        )

    def _is_broadcast(self, queue: Any) -> bool:
        named = self.queues[queue] if isinstance(queue, str) else queue
        return isinstance(named, Broadcast) or getattr(named.exchange, "type", None) == "fanout"


def sending_of(headers: Mapping[str, Any]) -> str:
    """Return what messages have in common whose bytes are likely the same: a group, or tries of one task."""
    return str(headers.get("group") or headers["id"])


def _waits_s(headers: Mapping[str, Any]) -> float:
    """Return how long a task waits for its `eta`: an ISO time, of UTC where it names no zone."""
    if headers.get("eta") is None:
        return 0.0
    eta = datetime.fromisoformat(str(headers["eta"]))
    if eta.tzinfo is None:
        eta = eta.replace(tzinfo=UTC)
    return max(0.0, (eta - datetime.now(UTC)).total_seconds())


def _job_of(headers: Mapping[str, Any]) -> str:
    """Return the job that a task's headers name, `no_job` if they name none."""
    from lockgate.storage_core.blobs.keys import NO_JOB, is_blob_job  # noqa: PLC0415 - only for large messages

    job_id = headers.get(JOB_HEADER)
    return job_id if isinstance(job_id, str) and is_blob_job(job_id) else NO_JOB


def _without_ours(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return headers of a sender, who may have them from a message of ours, without what we said there."""
    return {name: value for name, value in (headers or {}).items() if name != HEADER}


def _size(body: Any, serializer: str) -> int:
    return len(dumps(body, serializer)[2])  # type: ignore[no-untyped-call]
