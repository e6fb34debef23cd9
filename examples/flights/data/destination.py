"""Choose the demo's destination: a new prefix, on S3 if a server is configured, else on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from lockgate.storage_core.settings import Settings

BUCKET: Final = "lockgate-demo"


def choose_destination(settings: Settings, home: Path, stamp: str) -> str:
    """Return the URL or path to write, and create the demo's bucket if it is used.

    The parent is `LOCKGATE_DEMO_DEST`, else `s3://lockgate-demo` if the environment has an S3 endpoint and
    credentials, else the demo's home.

    Raises:
        LockgateError: The bucket cannot be created or reached.
    """
    given = os.environ.get("LOCKGATE_DEMO_DEST")
    if given:
        return f"{given.rstrip('/')}/flights-{stamp}"
    if _server_is_configured():
        _make_bucket(settings)
        return f"s3://{BUCKET}/flights-{stamp}"
    return str(home / "lake" / f"flights-{stamp}")


def _server_is_configured() -> bool:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return bool(endpoint and (os.environ.get("AWS_ACCESS_KEY_ID") or os.environ.get("AWS_PROFILE")))


def _make_bucket(settings: Settings) -> None:
    from lockgate.storage_core.stores.s3.clients import clients_for  # noqa: PLC0415 - imports boto3

    client = clients_for(settings).repeating
    try:
        client.create_bucket(Bucket=BUCKET)
    except (client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
        return
