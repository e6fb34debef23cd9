"""`lockgate blob-server` in a separate process, as operators run it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.blobs.http_server import PATIENCE_S

RUN = "from lockgate.storage_core.cli.root_command import main; main()"


class ServerProcess:
    """A blob server that can be killed and restarted over its files.

    Args:
        root: Folder of its home and of its HA store.
        options: More settings.
    """

    def __init__(self, root: Path, options: Mapping[str, str] | None = None) -> None:
        self.root = root
        self._environment = {
            **os.environ,
            "LOCKGATE_HOME": str(root / "home"),
            "LOCKGATE_JOURNAL_URL": f"sqlite:///{root}/journal.db",
            "LOCKGATE_BLOB_DIR": str(root / "blobs"),
            "LOCKGATE_BLOB_STORE_URL": f"file://{root}/ha",
            **(options or {}),
        }
        self.url = ""
        self.start()

    def start(self, *arguments: str) -> None:
        """Start it on its previous port; it listens when this returns."""
        port = self.url.rpartition(":")[2] or "0"
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, "blob-server", "--port", port, *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, "it did not start"

    def kill(self) -> None:
        """Kill it, as a machine would."""
        self.process.kill()
        self.wait()

    def terminate(self) -> int:
        """Ask it to stop; returns its exit code."""
        self.process.terminate()
        return self.wait()

    def peak_bytes(self) -> int:
        """Return its peak memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        line = next(line for line in status if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        code = self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextmanager
def server_process(root: Path, options: Mapping[str, str] | None = None) -> Iterator[ServerProcess]:
    """Run a blob server until the block ends."""
    server = ServerProcess(root, options)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()
