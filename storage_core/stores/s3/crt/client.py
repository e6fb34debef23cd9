"""CrtClient: boto3's S3 client, whose frequent calls are sent by AWS CRT."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ProxyConnectionError,
)

from lockgate.storage_core.retry import Retry
from lockgate.storage_core.stores.s3.answers import CutAnswerError
from lockgate.storage_core.stores.s3.crt.answer import Answer, error_of, results
from lockgate.storage_core.stores.s3.crt.connections import Connections
from lockgate.storage_core.stores.s3.crt.endpoint import Endpoint, Endpoints
from lockgate.storage_core.stores.s3.crt.operation import NAMES, Operation
from lockgate.storage_core.stores.s3.crt.transport import Transport

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

_RETRIED_STATUSES: Final = frozenset({429, 500, 502, 503, 504})
_RETRIED_CODES: Final = frozenset({"RequestTimeout", "SlowDown", "Throttling", "RequestLimitExceeded"})
_ELSEWHERE: Final = frozenset({301, 307, 308, 400})
_LARGE_BYTES: Final = 4 * 2**20
"""Ranges of this length are read by boto3, which copies a body less often than CRT. One from the first byte
on is mostly the limit for a small record."""


class Network:
    """The connections of one process and configuration. Thread-safe.

    Args:
        client_in: Returns a boto3 client for a region, or for the configured one.
        connections: Shared by all endpoints.
    """

    def __init__(self, client_in: Callable[[str | None], S3Client], connections: Connections) -> None:
        self.endpoints = Endpoints(client_in)
        self.patience_s = connections.patience_s
        self._connections = connections
        self._transports: dict[Endpoint, Transport] = {}
        self._lock = threading.Lock()

    def transport(self, endpoint: Endpoint) -> Transport:
        """Return the transport to an endpoint, to which there has been a connection.

        Raises:
            BotoCoreError: There is none, or CRT cannot be started: nothing was sent.
        """
        if known := self._transports.get(endpoint):
            return known
        self._connections.reach(endpoint)
        with self._lock:
            if endpoint not in self._transports:
                self._transports[endpoint] = self._connections.transport(endpoint)
            return self._transports[endpoint]


class CrtClient:
    """A client with the methods of boto3's; those in `operation.NAMES` are sent by CRT. Thread-safe.

    Args:
        boto3_client: Makes all other calls, and those for buckets whose signature CRT does not make.
        network: Where requests are sent.
        tries: Number of attempts of a call.
        note: Called with the error of each attempt that is followed by another.
    """

    def __init__(
        self, boto3_client: S3Client, network: Network, tries: int, note: Callable[[Exception], None]
    ) -> None:
        self._boto3_client = boto3_client
        self._network = network
        self._note = note
        self._operation = cache(partial(Operation.of, boto3_client.meta.service_model))
        self._retry = Retry(self._may_repeat, tries, pause_s=0.5, longest_pause_s=20)

    def __getattr__(self, name: str) -> Any:
        """Return the method for an operation, as boto3 does."""
        if name in NAMES:
            return partial(self._call, name)
        return getattr(self._boto3_client, name)

    @property
    def patience_s(self) -> float:
        """Time after which the answer to a small request does not come any more."""
        return self._network.patience_s

    def reaches(self, bucket: str) -> bool:
        """Return whether CRT sends the calls for a bucket."""
        return self._network.endpoints.of(bucket) is not None

    def send(
        self, method: str, arrived: Callable[[], None], **parameters: Any
    ) -> Callable[[], dict[str, Any]]:
        """Send a call once; return a function that waits, and then returns or raises what the method does.

        Args:
            method: One of `NAMES`.
            arrived: Called, from any thread, when the answer is there, or it is known that none will come.
            parameters: Those of the method, for a bucket that CRT reaches.
        """
        endpoint = self._network.endpoints.of(parameters["Bucket"])
        if endpoint is None:
            raise EndpointConnectionError(endpoint_url=parameters["Bucket"], error="CRT cannot reach it")
        return self._sent(self._operation(NAMES[method]), endpoint, parameters, arrived)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        endpoint = self._network.endpoints.of(parameters["Bucket"])
        if endpoint is None or _range_bytes(parameters) >= _LARGE_BYTES:
            by_boto3: Callable[..., dict[str, Any]] = getattr(self._boto3_client, method)
            return by_boto3(**parameters)
        operation = self._operation(NAMES[method])

        def call() -> dict[str, Any]:
            return self._sent(operation, endpoint, parameters)()

        return self._retry.call(call)

    def _sent(
        self,
        operation: Operation,
        endpoint: Endpoint,
        parameters: dict[str, Any],
        arrived: Callable[[], None] = lambda: None,
    ) -> Callable[[], dict[str, Any]]:
        message = operation.message(parameters)
        answered = self._network.transport(endpoint).send(message, arrived)

        def found() -> dict[str, Any]:
            answer = answered()
            moved = self._moved(endpoint, parameters["Bucket"], answer)
            if moved is not None:
                answer = self._network.transport(moved).send(message)()
            return results(operation, answer)

        return found

    def _may_repeat(self, error: Exception) -> bool:
        is_repeated = _is_repeated(error)
        if is_repeated:
            self._note(error)
        return is_repeated

    def _moved(self, endpoint: Endpoint, bucket: str, answer: Answer) -> Endpoint | None:
        """Return the bucket's endpoint in the region that S3 named in place of applying the request."""
        if answer.status not in _ELSEWHERE:
            return None
        region = answer.headers.get("x-amz-bucket-region") or error_of(answer).get("Region")
        if not region or region == endpoint.region:
            return None
        moved = self._network.endpoints.moved(bucket, region)
        return None if moved == endpoint else moved


def _range_bytes(parameters: Mapping[str, Any]) -> int:
    """Return the length of the range that is read; 0 if it is not known, or begins with the first byte."""
    first, _, last = parameters.get("Range", "").removeprefix("bytes=").partition("-")
    return int(last) - int(first) + 1 if last and first != "0" else 0


def _is_repeated(error: Exception) -> bool:
    if isinstance(error, CutAnswerError):
        return False  # reads are repeated by `RequestPolicy.read`, for boto3's calls too
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status in _RETRIED_STATUSES or error.response.get("Error", {}).get("Code") in _RETRIED_CODES
    return isinstance(
        error, HTTPClientError | EndpointConnectionError | ConnectTimeoutError | ProxyConnectionError
    )
