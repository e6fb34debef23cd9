"""Whether the names that lean calls rest on are still there, for not all of them are public."""

from __future__ import annotations

import logging
from functools import cache
from typing import Final

from botocore.client import BaseClient
from botocore.endpoint import Endpoint
from botocore.httpsession import ProxyConfiguration
from botocore.parsers import RestXMLParser
from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection

_NAMES: Final[tuple[tuple[type, tuple[str, ...]], ...]] = (
    (BaseClient, ("_make_api_call",)),
    (Endpoint, ("_needs_retry", "_send", "create_request", "make_request")),
    (RestXMLParser, ("_parse_header_map", "_parse_non_payload_attrs", "_parse_shape")),
    (ProxyConfiguration, ("proxy_url_for",)),
    (HTTPConnectionPool, ("_get_conn", "_put_conn")),
    (HTTPConnection, ("is_closed",)),
)

_log = logging.getLogger(__name__)


def missing() -> str:
    """Name what this version of botocore or urllib3 does not have; empty if it has everything."""
    return ", ".join(
        f"{owner.__name__}.{name}" for owner, names in _NAMES for name in names if not hasattr(owner, name)
    )


@cache
def warn(reason: str) -> None:
    """Tell the operator, once for each reason, why calls are slower than they could be."""
    _log.warning(
        "S3: this version of botocore or urllib3 is not known here (%s): calls are made by boto3 alone, "
        "which is slower, and nothing else; LOCKGATE_S3_LEAN=false silences this",
        reason,
    )
