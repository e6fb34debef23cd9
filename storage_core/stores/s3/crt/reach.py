"""Reach: connect to a server before CRT does, for errors that CRT reports late or not clearly."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError, SSLError
from botocore.httpsession import create_urllib3_context

if TYPE_CHECKING:
    from lockgate.storage_core.stores.s3.crt.endpoint import Endpoint

_PORTS: Final = {"http": 80, "https": 443}


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
