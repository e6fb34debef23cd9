"""What receives offloaded arguments: the worker, which acknowledges, and its pool, which runs the task.

A blob is let go when it was deserialised and the broker will not deliver its message again. With `acks_late`
that is the moment at which the broker takes the acknowledgement, in the worker's main process. Without, the
message is gone before the task begins, and the process that has recalled it lets it go.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
from celery import Task
from celery.worker.request import Request
from kombu.serialization import loads, prepare_accept_content
from kombu.utils.imports import symbol_by_name
from kombu.utils.objects import cached_property

from lockgate.storage_core.errors import InvalidInputError, LockgateError
from lockgate.workers.offload.sender import GUARD, HEADER, Offload, Package, sending_of

LOG: Final = logging.getLogger("lockgate.worker")

_LATER: Final = ThreadPoolExecutor(1, thread_name_prefix="lockgate-acknowledge")
"""A worker's main process does not wait for a journal. Its end waits for what is to be done here."""


def receive_offloaded(task: Task, offload: Offload) -> None:
    """Have a task recall its arguments before it starts, and let their blob go when its message is."""
    kind = type(task)
    request = symbol_by_name(kind.Request)  # type: ignore[no-untyped-call]
    if issubclass(request, OffloadedRequest):
        return
    start = kind.before_start

    def before_start(self: Task, task_id: str, args: Any, kwargs: Any) -> None:
        _fill(self, args, kwargs, offload)
        start(self, task_id, args, kwargs)

    kind.before_start = before_start
    kind.Request = type("Request", (OffloadedRequest, request), {"offload": offload})


class OffloadedRequest(Request):  # type: ignore[misc]
    """A message that a worker has taken, and whose arguments may be a blob."""

    offload: Offload

    def __init__(self, message: Any, *args: Any, **options: Any) -> None:
        super().__init__(message, *args, **options)
        if self.task.acks_late and GUARD in self._kwargs:
            self._let_go_when_acknowledged(message)

    def _let_go_when_acknowledged(self, message: Any) -> None:
        """Let the blob go with the message: not as Celery wishes to acknowledge, but as the broker has it."""
        acknowledge = message.ack

        def ack(multiple: bool = False) -> None:
            acknowledge(multiple=multiple)
            _LATER.submit(_let_go, self.offload, message.headers)

        message.ack = ack

    @cached_property
    def _payload(self) -> Any:
        """Return arguments and what follows the task: asked for only if it ended without its process."""
        args, kwargs, rest = super()._payload
        if GUARD in kwargs:
            try:
                package = _package(self._message.headers)
                if package is not None and package.has_rest:
                    return _recalled(package, self.offload, self._message.headers, self._app)
            except LockgateError:
                LOG.exception("task %s: what follows it is not told of its end", self.id)
        return args, kwargs, rest


def _fill(task: Task, args: Any, kwargs: Any, offload: Offload) -> None:
    """Put the recalled arguments where the envelope was: all that looks at them afterwards sees them.

    Raises:
        LockgateError: They cannot be had; the task fails with it, and is not called.
    """
    request = task.request
    if GUARD not in kwargs or request.headers is None or HEADER not in request.headers:
        return
    package = _package(request.headers)
    if package is None:
        return
    arguments, keywords, rest = _recalled(package, offload, vars(request), task.app)
    if package.has_rest:
        request.update(rest)
    args[:] = arguments
    kwargs.clear()
    kwargs.update(keywords)
    if not task.acks_late:
        offload.acknowledge(package.envelope)


def _package(headers: Mapping[str, Any]) -> Package | None:
    """Return what a message says of its blob.

    Raises:
        InvalidInputError: It says nothing that could be understood.
    """
    told = headers.get(HEADER)
    if told is None:
        return None
    try:
        return msgspec.convert(told, Package)
    except msgspec.ValidationError as error:
        raise InvalidInputError(
            f"header {HEADER} of a task's message is none of Lockgate's ({error}); the task was not run; "
            "send it again"
        ) from None


def _recalled(
    package: Package, offload: Offload, told: Mapping[str, Any], app: Any
) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Return the arguments that a message was sent with, and what follows its task if that was offloaded."""
    data = offload.recall(package.envelope, sending=sending_of(told))
    accept = prepare_accept_content(app.conf.accept_content)  # type: ignore[no-untyped-call]
    decoded = loads(data, package.content_type, package.content_encoding, accept=accept)  # type: ignore[no-untyped-call]
    arguments, keywords, *rest = decoded
    return arguments, keywords, rest[0] if rest else {}


def _let_go(offload: Offload, headers: Mapping[str, Any]) -> None:
    try:
        package = _package(headers)
        if package is not None:
            offload.acknowledge(package.envelope)
    except Exception:
        LOG.exception("an offloaded message could not be let go; it lapses")
