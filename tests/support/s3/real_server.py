"""The S3 server that `make test` runs, as processes find it: in AWS's environment variables."""

from __future__ import annotations

import os
import secrets


def environment() -> dict[str, str]:
    """Return the variables in which Lockgate and AWS tools look for a server and credentials."""
    return {
        "AWS_ENDPOINT_URL": os.environ["LOCKGATE_TEST_S3_ENDPOINT"],
        "AWS_ACCESS_KEY_ID": os.environ["LOCKGATE_TEST_S3_KEY"],
        "AWS_SECRET_ACCESS_KEY": os.environ["LOCKGATE_TEST_S3_SECRET"],
        "AWS_REGION": "us-east-1",
    }


def new_url() -> str:
    """Return a prefix that nothing uses yet."""
    return f"{os.environ['LOCKGATE_TEST_S3_URL']}/{secrets.token_hex(8)}"
