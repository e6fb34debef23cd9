"""Decide which requests to S3 are sent once and which may be retried, and translate their errors.

Creations, conditional changes and completions are sent once: botocore's retry could find the effect of its
first attempt and report it as another caller's. All other requests may be retried.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from botocore.exceptions import IncompleteReadError, ResponseStreamingError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lockgate.storage_core.errors import AccessDeniedError, OutcomeUnknownError, StoreUnavailableError
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores.protocol import check_key
from lockgate.storage_core.stores.s3.clients import Clients, clients_for
from lockgate.storage_core.stores.s3.errors import RequestInfo, translated

_INCOMPLETE_BODY: Final = (IncompleteReadError, ResponseStreamingError)


class RequestPolicy:
    """Sends the requests of one store.

    Args:
        url: URL of the store, for messages.
        bucket: Name of the bucket.
        prefix: Prefix of the store in the bucket, without a trailing slash; may be empty.
        settings: Settings with endpoint, credentials and number of attempts.

    Attributes:
        prefix: Prefix of every key in the bucket: empty, or ending in a slash.
    """

    def __init__(self, url: str, bucket: str, prefix: str, settings: Settings) -> None:
        self.prefix = f"{prefix}/" if prefix else ""
        self._url = url
        self._bucket = bucket
        self._settings = settings

    def key(self, key: str) -> str:
        """Return the key in the bucket for a key of the store.

        Raises:
            InvalidInputError: The key is invalid.
        """
        return self.prefix + check_key(key)

    @contextmanager
    def reading(self, operation: str, key: str) -> Iterator[Clients]:
        """Yield the clients for a request that changes nothing."""
        with translated(self._info(operation, key, changes=False)):
            yield clients_for(self._settings)

    @contextmanager
    def once(self, operation: str, key: str, *, if_absent: bool = False) -> Iterator[Clients]:
        """Yield the clients for a request that must not be retried; use `Clients.single`."""
        with translated(self._info(operation, key, changes=True, if_absent=if_absent)):
            yield clients_for(self._settings)

    @contextmanager
    def repeating(self, operation: str, key: str) -> Iterator[Clients]:
        """Yield the clients for a request that changes something and may be retried.

        Raises:
            OutcomeUnknownError: The last attempt was refused, and an earlier one got no answer.
        """
        clients = clients_for(self._settings)
        clients.lost_tries.seen = False
        try:
            with translated(self._info(operation, key, changes=True)):
                yield clients
        except (StoreUnavailableError, AccessDeniedError) as error:
            if not clients.lost_tries.seen:
                raise
            raise OutcomeUnknownError(
                f"{error}; but an earlier try got no answer: it may have been applied; nothing was deleted"
            ) from None

    def body_attempts(self) -> Retrying:
        """Return attempts to read a response body, which repeat the request if the body is incomplete."""
        return Retrying(
            retry=retry_if_exception_type(_INCOMPLETE_BODY),
            stop=stop_after_attempt(self._settings.s3_max_attempts),
            wait=wait_random_exponential(multiplier=0.1, max=5),
            reraise=True,
        )

    def _info(self, operation: str, key: str, *, changes: bool, if_absent: bool = False) -> RequestInfo:
        return RequestInfo(
            operation, f"{self._url}/{key}", self._bucket, changes=changes, if_absent=if_absent
        )
