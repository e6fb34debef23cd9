"""The S3 server of one run of a benchmark: started on an empty folder, ended with its data."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import boto3
import psutil

from scripts import s3_server
from scripts.s3_server import GoMissingError, NotRunningError, S3ServerError, Server

__all__ = ["Bucket", "GoMissingError", "S3ServerError", "Server", "cpu_s", "environment", "running_server"]

_QUIET: Final = {"PYTHONWARNINGS": "ignore", "SPARK_LOCAL_IP": "127.0.0.1"}


@contextmanager
def running_server(folder: Path) -> Iterator[Server]:
    """Start a server with its data in a folder, and end it.

    Raises:
        GoMissingError: The server is not built, and there is no Go to build it.
        S3ServerError: Another server of this checkout runs: its data would be in the figures.
    """
    try:
        other = s3_server.running()
    except NotRunningError:
        server = s3_server.start(folder)
    else:
        raise S3ServerError(f"pid {other.pid} is a server of this checkout: run `make s3-server-stop` first")
    # A process that is ended leaves no server.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield server
    finally:
        s3_server.stop()


def environment(server: Server | None, *, endpoint: str | None = None, home: Path) -> dict[str, str]:
    """Return the environment of a process that uses a server, directly or by another endpoint.

    Settings of Lockgate and of AWS in this process's environment are left out, and the one by which each
    process compiles all modules again.
    """
    foreign = ("AWS_", "LOCKGATE_", "PYTHONDONTWRITEBYTECODE")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    if server is None:
        return {**inherited, **_QUIET, "LOCKGATE_HOME": str(home)}
    return {
        **inherited,
        **_QUIET,
        "LOCKGATE_HOME": str(home),
        "AWS_ENDPOINT_URL": endpoint or server.endpoint,
        "AWS_ACCESS_KEY_ID": server.key,
        "AWS_SECRET_ACCESS_KEY": server.secret,
        "AWS_REGION": s3_server.REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process so far, with those of its ended children."""
    return sum(psutil.Process(pid).cpu_times()[:4])


class Bucket:
    """The objects of the server's bucket, for what is not measured: requests go to the server itself."""

    def __init__(self, endpoint: str, url: str) -> None:
        self.url = url
        self._bucket = boto3.resource("s3", endpoint_url=endpoint).Bucket(url.removeprefix("s3://"))

    def sizes(self, destination: str) -> dict[str, int]:
        """Return the sizes of all objects of a destination, by their names below it."""
        prefix = self._prefix(destination)
        return {one.key.removeprefix(prefix): one.size for one in self._bucket.objects.filter(Prefix=prefix)}

    def read(self, destination: str, name: str) -> bytes:
        """Return the contents of an object of a destination."""
        return self._bucket.Object(f"{self._prefix(destination)}{name}").get()["Body"].read()

    def remove(self, destination: str) -> None:
        """Delete all objects of a destination."""
        self._bucket.objects.filter(Prefix=self._prefix(destination)).delete()

    def _prefix(self, destination: str) -> str:
        return f"{destination.removeprefix(self.url).strip('/')}/"
