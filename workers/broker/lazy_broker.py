"""A Celery application that starts the embedded broker when it first sends or receives a task.

Commands that only look, such as `celery report`, `inspect` or `status`, start nothing.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from celery import Celery
from kombu.connection import Connection

from lockgate.storage_core.errors import StoreUnavailableError
from lockgate.storage_core.settings import Settings, given_settings, load_settings
from lockgate.workers.broker.broker_keys import result_backend, with_database
from lockgate.workers.broker.embedded_broker import find_broker, start_broker

NOT_USED: Final = object()
OF_CONNECTIONS: Final = (
    "broker_transport_options",
    "redis_socket_connect_timeout",
    "redis_socket_timeout",
    "result_backend_transport_options",
)


class LazyBrokerCelery(Celery):  # type: ignore[misc]
    """An application whose broker is the embedded one if none is configured."""

    _used_for: object = NOT_USED
    """The given settings (`settings_in_effect`) for which the broker was looked up."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lock, self._askers = threading.Lock(), dict[str, Celery]()

    def asker(self) -> Celery:
        """Return an application to ask the broker of the settings in effect; tasks are not sent with it.

        Threads of a triggerer ask several brokers at the same moment, and an application has one.

        Raises:
            StoreUnavailableError: It is the embedded broker, and does not run.
        """
        settings = given_settings()
        if settings is None:
            return self
        url = with_database(settings.broker_url or _embedded_url(settings))
        with self._lock:
            if url not in self._askers:
                asker = Celery(self.main, broker=url, backend=result_backend(url), set_as_current=False)
                for name in OF_CONNECTIONS:
                    asker.conf[name] = self.conf[name]
                self._askers[url] = asker
            return self._askers[url]

    def broker_address(self) -> str:
        """Return the broker's URL without its password, for messages."""
        return str(Connection(str(self.conf.broker_url)).as_uri())  # type: ignore[no-untyped-call]

    @property
    def backend(self) -> Any:
        """The result backend of the settings in effect."""
        self._change_broker()
        return super().backend

    @property
    def pool(self) -> Any:
        """The connections to the broker of the settings in effect."""
        self._change_broker()
        return super().pool

    def use_broker(self) -> None:
        """Start the embedded broker, once, if none is configured: this process sends or receives tasks.

        Within `settings_in_effect` the broker of those settings is used.

        Raises:
            InvalidInputError: The configured broker cannot store results.
            MissingPartError: There is no Redis program.
            StoreUnavailableError: It does not start or does not answer.
        """
        if not self._uses_broker():
            settings = load_settings()
            if settings.broker_url is None:
                self._adopt(start_broker(settings).url)
            else:
                self._adopt_configured(settings.broker_url)
            self._used_for = given_settings()

    def send_task(self, *arguments: Any, **options: Any) -> Any:
        """Send a task, to a broker that runs."""
        self.use_broker()
        return super().send_task(*arguments, **options)

    def producer_or_acquire(self, producer: Any = None) -> Any:
        """Return a producer, of a broker that runs."""
        if producer is None:
            self.use_broker()
        return super().producer_or_acquire(producer)

    def _uses_broker(self) -> bool:
        return self._used_for is given_settings()

    def _change_broker(self) -> None:
        """Look for another broker if the settings in effect are others: Celery keeps backend and pool."""
        given = given_settings()
        if not self._uses_broker() and (given is not None or isinstance(self._used_for, Settings)):
            self._running_url("")
            self._used_for = NOT_USED if given is None else given

    def _connection(self, url: str, **options: Any) -> Any:
        if not self._uses_broker():
            url = self._running_url(url)
        return super()._connection(url, **options)

    def _get_backend(self) -> Any:
        if not self._uses_broker():
            self._running_url("")
        return super()._get_backend()

    def _running_url(self, url: str) -> str:
        """Return the URL of the embedded broker, which must run, or the given URL if one is configured."""
        settings = load_settings()
        if settings.broker_url is not None:
            self._adopt_configured(settings.broker_url)
            return url if given_settings() is None else str(self.conf.broker_url)
        found = _embedded_url(settings)
        self._adopt(found)
        return found

    def _adopt_configured(self, url: str) -> None:
        # Without given settings the application is configured already, perhaps by its own program.
        if given_settings() is not None or isinstance(self._used_for, Settings):
            self._adopt(url)

    def _adopt(self, url: str) -> None:
        """Use the broker at this address, and no connection to an earlier one."""
        url = with_database(url)
        if self.conf.broker_url != url:
            self.conf.broker_url, self.conf.result_backend = url, result_backend(url)
            self._after_fork()  # forgets the pools
            self._backend_cache, self._local = None, threading.local()


def _embedded_url(settings: Settings) -> str:
    record = find_broker(settings)
    if record is None:
        raise StoreUnavailableError(
            "embedded broker: it does not run, and a command that only looks does not start it; start it "
            "with `lockgate broker start`, or name another broker in LOCKGATE_BROKER_URL"
        )
    return record.url
