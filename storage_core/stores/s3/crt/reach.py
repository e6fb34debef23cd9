"""Reach: try what CRT needs before it does, for errors that it reports late or not clearly, or dies of."""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError, SSLError
from botocore.httpsession import create_urllib3_context

if TYPE_CHECKING:
    from lockgate.storage_core.stores.s3.crt.endpoint import Endpoint

_PORTS: Final = {"http": 80, "https": 443}
_DESCRIPTORS: Final = 32 + 4 * (os.cpu_count() or 1)
"""Ten were taken with two processors."""


def need_descriptors() -> None:
    """Check that CRT can start its threads: where one gets no file descriptors, CRT ends the process.

    Raises:
        OSError: Too few are free.
    """
    with ExitStack() as sockets:
        for _ in range(_DESCRIPTORS):
            sockets.enter_context(socket.socket())


def reach(endpoint: Endpoint, *, ca_file: str, timeout_s: float) -> None:
    """Connect to a server, by TLS as boto3 would, and disconnect.

    Raises:
        ConnectTimeoutError: There was no connection in time.
        EndpointConnectionError: There is no connection.
        SSLError: Its certificate is not trusted.
    """
    url = f"{endpoint.scheme}://{endpoint.host}"
    try:
        place = urlsplit(url)
        address = place.hostname, place.port or _PORTS[endpoint.scheme]
        with socket.create_connection(address, timeout_s) as connection:
            if endpoint.scheme == "https":
                context = create_urllib3_context()
                context.load_verify_locations(ca_file)
                context.check_hostname, context.hostname_checks_common_name = True, False
                context.wrap_socket(connection, server_hostname=place.hostname).close()
    except ssl.SSLCertVerificationError as error:
        raise SSLError(endpoint_url=url, error=error) from None
    except TimeoutError as error:
        raise ConnectTimeoutError(endpoint_url=url, error=error) from None
    except OSError as error:
        raise EndpointConnectionError(endpoint_url=f"{url} ({error})", error=error) from None
