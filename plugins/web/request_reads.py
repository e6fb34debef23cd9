"""What the routes read with: the journal through the observers' client, and stores under a time limit."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextvars import copy_context
from functools import cache, cached_property
from typing import Annotated, Final, TypeVar

from fastapi import Depends, Header, Query, Request

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.registry.rows import Destination
from lockgate.storage_core.errors import (
    DestinationNotFoundError,
    InvalidInputError,
    StateLostError,
    StoreUnavailableError,
)
from lockgate.storage_core.journal import Reading, Stamp
from lockgate.storage_core.journal.observers.process_reader import configured_reads
from lockgate.storage_core.journal.observers.reading_client import Client
from lockgate.storage_core.journal.process_journal import token_name
from lockgate.storage_core.journal.read.snapshot_read import read_epochs, survived
from lockgate.storage_core.journal.session_token import SessionToken
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores.open_store import canonical_url, open_store, parse_destination

T = TypeVar("T")

STORE_LIMIT_S: Final = 5.0
"""How long a route waits for a store."""

SLOT_LIMIT_S: Final = 1.0
"""How long a read of a store waits for others of the same store."""

AT_ONCE: Final = 24
"""Reads of all stores at a time. Each is a thread, also after its route has given up."""

AT_ONCE_PER_STORE: Final = 4
"""Reads of one store at a time, so that a store which does not answer delays no other."""


class Reads:
    """Reads of one application. Threads share it.

    Args:
        settings: Settings, or a function that returns them, another object once they have changed; None to
            read them from the environment at the first request.
        destinations: Destinations that may be read beside those in the journal.
        clock: Replaces the machine's and the database's clock, for tests.
    """

    def __init__(
        self,
        settings: Settings | Callable[[], Settings] | None = None,
        *,
        destinations: Iterable[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self._shared = _Shared(settings, tuple(destinations), clock)
        self._at_least = ""

    def at_least(self, token: str) -> Reads:
        """Return the same reads for a caller whose session has seen the state of a token."""
        reads = copy.copy(self)
        reads._at_least = token  # noqa: SLF001 - its own copy
        return reads

    @property
    def settings(self) -> Settings:
        """The settings of this process."""
        return self._shared.settings

    @property
    def clock(self) -> Clock:
        """The clock for ages and deadlines."""
        return self._shared.clock or SystemClock()

    @property
    def destinations(self) -> tuple[str, ...]:
        """Canonical URLs of the destinations that may be read beside those in the journal."""
        return self._shared.destinations

    @property
    def journal_name(self) -> str:
        """URL of the journal, without a password; empty if there is none."""
        return self.client.journal.url if self.has_journal else ""

    @property
    def has_journal(self) -> bool:
        """Whether the settings name a journal."""
        return self.settings.has_journal

    @property
    def client(self) -> Client:
        """The observers' client, which connects at its first use.

        Raises:
            InvalidInputError: There is no journal.
            JournalUnavailableError: It cannot be reached.
        """
        return self._shared.client()

    @property
    def token(self) -> str:
        """Token of what this process has seen; a read with it returns at least that state."""
        return str(self.client.token) if self.has_journal else ""

    def journal(self, query: Callable[[Reading], T]) -> T:
        """Run a query on one state of the journal: at an observer if there is one.

        After a failover it goes on with the state that has survived, because a page shows what there is.

        Args:
            query: Function of a `Reading`. It may run twice, and returns no iterator.

        Raises:
            InvalidInputError: There is no journal, or the token is invalid.
            StateLostError: The state of the caller's token did not survive, or the database was replaced.
            JournalUnavailableError: The journal cannot be reached.
        """
        client = self.client
        if self._at_least:
            _include(client, self._at_least, self.settings.journal)
        try:
            return client.read(query)
        except StateLostError:
            client.msync()
            return client.read(query)

    def known(self, destination: str) -> str:
        """Return the canonical URL of a destination that may be read.

        A route opens no other: a viewer could read every bucket and folder that this server can read.

        Raises:
            InvalidInputError: The text is not a destination.
            DestinationNotFoundError: Neither the journal nor the host knows it.
            JournalUnavailableError: The journal cannot be reached.
        """
        url = parse_destination(destination)
        if url in self.destinations:
            return url
        if self.has_journal and self.journal(lambda reading: reading.get(Destination, url)) is not None:
            return url
        where = "the journal has no job there" if self.has_journal else "this server has no journal"
        raise DestinationNotFoundError(
            f"destination {url} is not known: {where}; nothing was read; check the spelling, or add it to "
            "the index: `lockgate jobs rescan DESTINATION`"
        )

    def store(self, destination: str, read: Callable[[], T], *, limit_s: float = STORE_LIMIT_S) -> T:
        """Return the result of a function that reads a store, and wait for it no longer than the limit.

        Args:
            destination: Result of `known`.
            read: Function without effects. It goes on in its thread when the limit has passed.
            limit_s: How long to wait for it.

        Raises:
            StoreUnavailableError: It did not answer in time, or too many reads of it are waiting.
        """
        slots = (self._shared.slots_of(destination), self._shared.slots)
        taken = [slot for slot in slots if slot.acquire(timeout=min(SLOT_LIMIT_S, limit_s))]
        if len(taken) < len(slots):
            _release(taken)
            raise StoreUnavailableError(
                f"{destination}: earlier reads of it have no answer yet, so it was not read again; nothing "
                "was changed; try again later"
            )
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(read())
            except BaseException as error:  # noqa: BLE001 - raised in the route's thread
                future.set_exception(error)
            finally:
                _release(taken)

        # A daemon, unlike a pool's threads: a store that never answers must not keep the server from ending.
        threading.Thread(target=copy_context().run, args=(run,), daemon=True, name="lockgate-read").start()
        try:
            return future.result(limit_s)
        except TimeoutError:
            if future.done():
                return future.result()
            raise StoreUnavailableError(
                f"{destination} did not answer in {limit_s:g} s; nothing was changed; try again later"
            ) from None

    def close(self) -> None:
        """Close the observers' connections; the journal is the process's and stays open."""
        self._shared.close()


class _Shared:
    """What all requests of an application share."""

    def __init__(
        self,
        settings: Settings | Callable[[], Settings] | None,
        destinations: tuple[str, ...],
        clock: Clock | None,
    ) -> None:
        self.clock = clock
        self.slots = threading.BoundedSemaphore(AT_ONCE)
        self._read_settings = settings if callable(settings) else cache(lambda: settings or load_settings())
        self._settings: Settings | None = None
        self._destinations = destinations
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._slots: dict[str, threading.BoundedSemaphore] = {}

    @property
    def settings(self) -> Settings:
        found = self._read_settings()
        with self._lock:
            if found is not self._settings:
                # Requests that are under way keep the client that they have, so it is not closed.
                self._settings, self._client = found, None
        return found

    @cached_property
    def destinations(self) -> tuple[str, ...]:
        return tuple(
            canonical_url(open_store(destination, self.settings)) for destination in self._destinations
        )

    def client(self) -> Client:
        settings = self.settings
        with self._lock:
            if self._client is None:
                self._client = configured_reads(settings, clock=self.clock)
            if self._client is None:
                raise InvalidInputError(
                    "LOCKGATE_JOURNAL_URL=none: without a journal there is no index of all jobs; nothing was "
                    "read; name a destination"
                )
            return self._client

    def slots_of(self, destination: str) -> threading.BoundedSemaphore:
        with self._lock:
            return self._slots.setdefault(destination, threading.BoundedSemaphore(AT_ONCE_PER_STORE))

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


def _release(slots: Iterable[threading.BoundedSemaphore]) -> None:
    for slot in slots:
        slot.release()


def _include(client: Client, at_least: str, journal: str) -> None:
    """Make the next read include the state of a caller's token.

    The token is not added to the stamps that this process has seen: one with a stamp from the future would
    make the reads of all callers fail.

    Raises:
        InvalidInputError: The text is not a token.
        StateLostError: The primary does not have that state.
    """
    token = SessionToken.parse(at_least, journal)
    stamps = {*token.for_journal(client.journal.name), *token.for_journal(token_name(client.journal))}
    seen = {stamp.epoch: stamp for stamp in client.journal.seen_stamps.stamps}
    if all(stamp <= seen.get(stamp.epoch, Stamp()) for stamp in stamps):
        return
    newest = client.msync()
    with client.journal.reading() as reading:
        epochs = read_epochs(reading) if any(stamp.epoch != newest.epoch for stamp in stamps) else []
    for stamp in stamps:
        if stamp > newest or (stamp.epoch != newest.epoch and not survived(epochs, stamp)):
            raise StateLostError(
                f"journal {client.journal.url} is at {newest}, without {stamp} of the token: a failover or a "
                "restore lost it, or the token is another journal's; nothing was read; read without the token"
            )


def _of_request(
    request: Request,
    at_least: Annotated[
        str, Query(max_length=4_096, description="Token of the oldest state to read: `Lockgate-Token`.")
    ] = "",
    lockgate_at_least: Annotated[str, Header(max_length=4_096, include_in_schema=False)] = "",
) -> Reads:
    reads: Reads = request.app.state.reads
    request.state.lockgate_reads = reads
    return reads.at_least(at_least or lockgate_at_least)


ReadsOfRequest = Annotated[Reads, Depends(_of_request)]
"""Parameter of a route: the application's `Reads`, with the token of the request."""
