"""The keys of Lockgate in a Redis that other Celery applications use, too.

Celery applications that share keys share their unacknowledged messages. The one with the shorter visibility
timeout then sends the running tasks of the other one again. So Lockgate's keys have a prefix of their own
(`LOCKGATE_BROKER_PREFIX`), and by default a database of their own. A worker does not start if another
application has keys under that prefix.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import redis
from celery import Celery, bootsteps
from kombu.connection import Connection
from kombu.exceptions import OperationalError

from lockgate.storage_core.errors import InvalidInputError, StoreUnavailableError

DATABASE: Final = 7
"""Redis database of a URL that names none: not 0, which every other application uses by default."""

NAMES: Final = "lockgate.names"
"""Set of the tasks and queues that Lockgate's workers have had."""

_BINDING: Final = "_kombu.binding."
_CELERY_BINDINGS: Final = frozenset({"celery.pidbox", "reply.celery.pidbox", "celeryev"})
_SCAN_KEYS: Final = 10_000
_SCANS: Final = 500
"""Together they bound the check to five million keys; further ones are not looked at."""
_MESSAGES: Final = 100
"""Messages looked at in each queue, and of those that are unacknowledged."""
_HELD: Final = 10_000
"""Messages among which a sender looks for its own."""

_ANSWER_S: Final = 5.0
_AT_ONCE: Final = {"socket_connect_timeout": _ANSWER_S, "socket_timeout": _ANSWER_S, "max_retries": 0}

LOG = logging.getLogger("lockgate.worker")


def with_database(url: str) -> str:
    """Return the URL of a Redis with `DATABASE` if it names none."""
    parts = urlsplit(url)
    if parts.scheme in {"redis", "rediss"} and parts.path in {"", "/"}:
        return parts._replace(path=f"/{DATABASE}").geturl()
    return url


def result_backend(url: str) -> str:
    """Return the URL of the result backend: the broker, which must be a Redis (or memory, in tests).

    Raises:
        InvalidInputError: The broker cannot store results.
    """
    scheme = url.partition("://")[0]
    if scheme == "memory":
        return "cache+memory://"
    if scheme not in {"redis", "rediss", "redis+socket"}:
        raise InvalidInputError(
            f"LOCKGATE_BROKER_URL: {scheme}://… is not a Redis, and results are read from the broker; "
            "nothing was sent; set it to redis://host:port/db or rediss://…"
        )
    return url


def check_broker(url: str) -> str:
    """Connect to a broker and return its URL without the password.

    Raises:
        StoreUnavailableError: It does not answer.
        InvalidInputError: It cannot store results.
    """
    url = with_database(url)
    result_backend(url)
    with Connection(url, transport_options=_AT_ONCE) as connection:  # type: ignore[no-untyped-call]
        try:
            connection.default_channel.client.ping()
        except (OperationalError, redis.RedisError, OSError) as error:
            raise StoreUnavailableError(
                f"broker {connection.as_uri()}: it does not answer ({error}); check the URL and the password"
            ) from None
        return str(connection.as_uri())


class BrokerKeysStep(bootsteps.Step):  # type: ignore[misc]
    """Checks the broker's keys before a worker takes its first message."""

    def create(self, parent: Any) -> None:
        """Start the broker if none is configured; raise if another application has keys under the prefix."""
        parent.app.use_broker()
        refuse_foreign_keys(parent.app)


def refuse_foreign_keys(app: Celery) -> None:
    """Raise if another Celery application has keys under the prefix of this one; otherwise note its names.

    Waits for the broker as long as a worker does. A broker that is no Redis is not checked.

    Raises:
        InvalidInputError: Another application has keys there, or the Redis has no such database.
    """
    prefix = app.conf.broker_transport_options.get("global_keyprefix", "")
    with app.connection_for_read() as connection:
        if connection.transport.driver_type != "redis":
            return
        connection.ensure_connection(_log_or_refuse, app.conf.broker_connection_max_retries)
        pool = connection.default_channel.client.connection_pool
        with closing(redis.Redis(connection_pool=pool)) as client:
            _refuse_foreign(client, prefix, app)


@dataclass(frozen=True)
class HeldMessages:
    """What a broker holds for the workers.

    Attributes:
        ids: Tasks whose messages wait in the queue, or were taken and are not acknowledged.
        taken: Number of messages that workers have taken and not acknowledged.
        workers: Number of workers that are connected, also those that are too busy to answer; 0 if the
            broker does not tell.
    """

    ids: frozenset[str]
    taken: int
    workers: int


def held_messages(app: Celery, queue: str) -> HeldMessages | None:
    """Return what the broker holds; None if it is no Redis, or holds too many messages to look at.

    Raises:
        RedisError: It gives no answer, or does not allow the question.
        OperationalError: As above.
    """
    prefix = app.conf.broker_transport_options.get("global_keyprefix", "")
    with app.connection_for_read() as connection:
        if connection.transport.driver_type != "redis":
            return None
        pool = connection.default_channel.client.connection_pool
        with closing(redis.Redis(connection_pool=pool)) as client:
            # The queue first: a message goes from there to the taken ones.
            waiting = client.lrange(prefix + queue, 0, _HELD)
            if len(waiting) > _HELD or client.hlen(f"{prefix}unacked") > _HELD:
                return None
            taken = client.hvals(f"{prefix}unacked")
            database = str(pool.connection_kwargs.get("db", 0))
            try:
                workers = [each for each in client.client_list(_type="pubsub") if each["db"] == database]
            except redis.ResponseError:  # this user may not ask, or a look-alike lacks the command
                workers = []
    ids = {headers["id"] for headers in _headers([*waiting, *taken]) if "id" in headers}
    return HeldMessages(frozenset(ids), len(taken), len(workers))


def queue_lengths(app: Celery, queues: Iterable[str]) -> dict[str, int]:
    """Return how many messages wait in each queue; empty if the broker is no Redis, or does not answer."""
    prefix = app.conf.broker_transport_options.get("global_keyprefix", "")
    with app.connection_for_read(transport_options=_AT_ONCE) as connection:
        if connection.transport.driver_type != "redis":
            return {}
        try:
            pool = connection.default_channel.client.connection_pool
            with closing(redis.Redis(connection_pool=pool)) as client:
                return {queue: int(client.llen(prefix + queue)) for queue in queues}
        except (OperationalError, redis.RedisError, OSError):
            return {}


def _refuse_foreign(client: Any, prefix: str, app: Celery) -> None:
    own = {f"task {name}" for name in app.tasks} | {f"queue {name}" for name in app.amqp.queues}
    known = own | {name.decode() for name in client.smembers(prefix + NAMES)}
    names = set(_names(client, prefix, app.amqp.queues)) - known
    found = sorted(name for name in names if not name.startswith("task lockgate."))
    if found:
        raise InvalidInputError(
            f"broker: another Celery application uses keys {prefix or 'without a prefix'}* in this Redis "
            f"database ({', '.join(found[:3])}); the worker was not started, because each of them would run "
            "the other's long tasks a second time; set LOCKGATE_BROKER_PREFIX to an unused prefix, or "
            "another database in LOCKGATE_BROKER_URL, for all workers and clients of Lockgate; if they are "
            "your tasks in Lockgate's application, import them in this worker, or start theirs first"
        )
    client.sadd(prefix + NAMES, *own)


def _names(client: Any, prefix: str, queues: Iterable[str]) -> Iterator[str]:
    """Yield the queues and tasks that have keys and messages under a prefix."""
    cursor = 0
    for _ in range(_SCANS):
        cursor, keys = client.scan(cursor, match=f"{prefix}{_BINDING}*", count=_SCAN_KEYS)
        exchanges = {key.decode().removeprefix(prefix + _BINDING) for key in keys}
        yield from (f"queue {name}" for name in exchanges - _CELERY_BINDINGS)
        if not cursor:
            break
    for queue in queues:
        yield from _tasks(client.lrange(prefix + queue, -_MESSAGES, -1))
    _, unacked = client.hscan(f"{prefix}unacked", 0, count=_MESSAGES)
    yield from _tasks(unacked.values())


def _tasks(messages: Iterable[bytes]) -> Iterator[str]:
    return (f"task {headers['task']}" for headers in _headers(messages) if "task" in headers)


def _headers(messages: Iterable[Any]) -> Iterator[dict[Any, Any]]:
    """Yield the headers of messages in a queue, and of unacknowledged ones."""
    for message in messages:
        match json.loads(message):
            case {"headers": {**headers}} | [{"headers": {**headers}}, *_]:
                yield headers


def _log_or_refuse(error: Exception, interval_s: float) -> None:
    """Log that Kombu tries again, which does not help if the Redis has no such database."""
    if isinstance(error, redis.exceptions.ResponseError):
        raise InvalidInputError(
            f"broker: {error}; the worker was not started; if this Redis has one database only, name it in "
            "LOCKGATE_BROKER_URL: redis://host:port/0"
        ) from error
    LOG.error("broker: %s; trying again in %.0f s", error, interval_s)
