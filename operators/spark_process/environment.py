"""The environment of the Spark child: what Spark, Python and Lockgate need, and no secret of Airflow."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Final, Literal

Part = Literal["journal", "s3"]
"""What a child may connect to with credentials from its environment."""

ALL: Final[frozenset[Part]] = frozenset({"journal", "s3"})

_ALWAYS: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TEMP", "TMP"),
    *("JAVA_HOME", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "LD_*", "SPARK_*", "PYSPARK_*", "PYTHON*"),
    *("HADOOP_*", "YARN_CONF_DIR", "KRB5*", "VIRTUAL_ENV", "AIRFLOW_HOME", "GX_*", "LOCKGATE_*"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
_NEVER: Final = ("LOCKGATE_BROKER_URL",)
_ONLY: Final[dict[Part, tuple[str, ...]]] = {
    "journal": ("LOCKGATE_JOURNAL_URL", "LOCKGATE_OBSERVER_URLS"),
    "s3": ("AWS_*",),
}


def child_environment(parts: Collection[Part] = ALL) -> dict[str, str]:
    """Return the environment of a Spark child.

    Args:
        parts: What the child needs besides Spark: the journal's URL, AWS's variables, or both. The setting
            `LOCKGATE_SPARK_ENVIRONMENT` names more variables.
    """
    from lockgate.storage_core.settings import load_settings  # noqa: PLC0415 - when a task runs

    more = load_settings().spark_environment
    wanted = (*_ALWAYS, *(pattern for part in parts for pattern in _ONLY[part]))
    refused = (*_NEVER, *(pattern for part in ALL - set(parts) for pattern in _ONLY[part]))
    kept = {
        name: value
        for name, value in os.environ.items()
        if _matches(name, more) or (_matches(name, wanted) and not _matches(name, refused))
    }
    # The child can import what the task can, such as a module beside the DAG file.
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _matches(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
