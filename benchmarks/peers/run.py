"""What all measurements of one run share: the S3 server, the proxy before it, the folder, the jars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.peers import server as s3
from benchmarks.peers.server import Server

NO_JARS: Final = "no hadoop-aws with spark-hadoop-cloud: `make s3a-jars` fetches both"
NO_SERVER: Final = "no S3 server: it is built with Go"


@dataclass
class Run:
    """One run.

    Attributes:
        rounds: Rounds that are kept.
        latency_ms: Milliseconds that the proxy adds to each request.
        folder: Temporary folder.
        jars: Folder that may have S3A's jars.
        say: Prints a line for who waits.
        server: The S3 server; None: there is none.
        proxy: URL of the proxy before it, which counts requests.
    """

    rounds: int
    latency_ms: float
    folder: Path
    jars: Path
    say: Callable[[str], None]
    server: Server | None = None
    proxy: str | None = None

    def jar_files(self) -> list[Path]:
        """Return S3A's jars; none unless all are there."""
        jars = sorted(self.jars.glob("*.jar"))
        needed = ("hadoop-aws", "spark-hadoop-cloud")
        return jars if all(any(name in jar.name for jar in jars) for name in needed) else []

    def reason_to_skip(self, way: str, *, local: bool = False) -> str | None:
        """Return why a way cannot be measured here; a local one needs no server."""
        if self.server is None and not local:
            return NO_SERVER
        return NO_JARS if way.startswith("s3a-") and not self.jar_files() else None

    def environment(self, *, proxied: bool) -> dict[str, str]:
        """Return the environment of a process of this run."""
        proxy = self.proxy if proxied else None
        environment = s3.environment(self.server, endpoint=proxy, home=self.folder / "home")
        if self.server is not None:
            environment["BENCH_SERVER_PID"] = str(self.server.pid)
        return environment | ({"BENCH_PROXY": proxy} if proxy else {})

    def known_server(self) -> Server:
        """Return the server, for a way that needs one."""
        assert self.server is not None
        return self.server
