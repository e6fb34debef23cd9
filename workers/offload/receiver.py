"""Receive offloaded arguments: the worker acknowledges the message, its pool runs the task.

A blob is released when its arguments were deserialised *and* the broker will not deliver the message again.
With `acks_late` the worker's main process releases it after the broker has the acknowledgement. Otherwise the
message is acknowledged before the task begins, and the pool's process releases the blob after reading it.
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

from lockgate.storage_core.decoding import convert
from lockgate.storage_core.errors import InvalidInputError, LockgateError
from lockgate.workers.offload.sender import GUARD, HEADER, Offload, Package, sending_of

LOG: Final = logging.getLogger("lockgate.worker")

_RELEASES: Final = ThreadPoolExecutor(1, thread_name_prefix="lockgate-acknowledge")
"""Releases blobs: a worker's main process must not wait for a journal. At its exit the process waits for this
thread."""


def receive_offloaded(task: Task, offload: Offload) -> None:
    """Make a task recall its arguments before it starts, and release their blob with its message."""
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
    """A message that a worker has received, and whose arguments may be a blob."""

    offload: Offload

    def __init__(self, message: Any, *args: Any, **options: Any) -> None:
        super().__init__(message, *args, **options)
        if self.task.acks_late and GUARD in self._kwargs:
            self._release_when_acknowledged(message)

    def _release_when_acknowledged(self, message: Any) -> None:
        """Release the blob after the broker has the acknowledgement, not when Celery requests it."""
        acknowledge = message.ack

        def ack(multiple: bool = False) -> None:
            acknowledge(multiple=multiple)
            _RELEASES.submit(_release, self.offload, message.headers)

        message.ack = ack

    @cached_property
    def _payload(self) -> Any:
        """Return the arguments and callbacks, which Celery reads only if the task's process was lost."""
        args, kwargs, rest = super()._payload
        if GUARD in kwargs:
            try:
                package = _package(self._message.headers)
                if package is not None and package.has_rest:
                    return _recall(package, self.offload, self._message.headers, self._app)
            except LockgateError:
                LOG.exception("task %s: its callbacks cannot be read and are not called", self.id)
        return args, kwargs, rest


def _fill(task: Task, args: Any, kwargs: Any, offload: Offload) -> None:
    """Replace the envelope by the recalled arguments, in place, so that all later readers see them."""
    request = task.request
    if GUARD not in kwargs or request.headers is None or HEADER not in request.headers:
        return
    package = _package(request.headers)
    if package is None:
        return
    arguments, keywords, rest = _recall(package, offload, vars(request), task.app)
    if package.has_rest:
        request.update(rest)
    args[:] = arguments
    kwargs.clear()
    kwargs.update(keywords)
    if not task.acks_late:
        offload.acknowledge(package.envelope)


def _package(headers: Mapping[str, Any]) -> Package | None:
    """Return the package in a message's headers; None: there is none."""
    package = headers.get(HEADER)
    if package is None:
        return None
    try:
        return convert(package, Package)
    except msgspec.ValidationError as error:
        raise InvalidInputError(
            f"header {HEADER} of a task's message is malformed ({error}); the task was not run; send it again"
        ) from None


def _recall(
    package: Package, offload: Offload, headers: Mapping[str, Any], app: Any
) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Return the arguments of a message, and its callbacks if they were offloaded."""
    data = offload.recall(package.envelope, sending=sending_of(headers))
    accept = prepare_accept_content(app.conf.accept_content)  # type: ignore[no-untyped-call]
    decoded = loads(data, package.content_type, package.content_encoding, accept=accept)  # type: ignore[no-untyped-call]
    arguments, keywords, *rest = decoded
    return arguments, keywords, rest[0] if rest else {}


def _release(offload: Offload, headers: Mapping[str, Any]) -> None:
    try:
        package = _package(headers)
        if package is not None:
            offload.acknowledge(package.envelope)
    except Exception:
        LOG.exception("an offloaded message could not be released; it expires")
