"""A real PostgreSQL server, its streaming standbys, and their faults."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

USER = "lockgate"

UNSYNCED = {"fsync": "off", "lockgate.may_lose_entries": "on"}
"""Options of a server whose data need not survive its machine. Without the second, no journal opens."""


def postgres_bin() -> Path | None:
    """Return the directory of the newest server's programs, or None."""
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    if candidates:
        return candidates[-1].parent
    found = shutil.which("initdb")
    return None if found is None else Path(found).resolve().parent


@dataclass
class Server:
    """One server, listening on 127.0.0.1 only.

    Attributes:
        root: Folder of its data, its log and its socket.
    """

    root: Path
    port: int
    options: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """URL of its database `lockgate`."""
        return self.url_of("lockgate")

    def url_of(self, database: str) -> str:
        """URL of a database."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        chosen = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.root),
            "dynamic_shared_memory_type": "mmap",  # below its folder, so that a killed server leaves nothing
            **self.options,
        }
        options = " ".join(f"-c {name}={value}" for name, value in {"port": str(self.port), **chosen}.items())
        data, log = str(self.root / "data"), str(self.root / "log")
        _run("pg_ctl", "-D", data, "-o", options, "-l", log, "-t", "60", "-w", "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop it: `fast` as an operator does, `immediate` as a crash does."""
        _run("pg_ctl", "-D", str(self.root / "data"), "-m", mode, "-w", "stop")

    def promote(self) -> None:
        """Make a standby the primary of a new timeline."""
        _run("pg_ctl", "-D", str(self.root / "data"), "-w", "promote")

    def run_sql(self, statement: str, database: str = "postgres") -> str:
        """Run a statement and return its first answer as text."""
        import psycopg

        with psycopg.connect(self.url_of(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
        return "" if row is None else str(row[0])

    def new_english_database(self, name: str) -> str:
        """Create a database that sorts text as English dictionaries do, and return its URL."""
        locale = "LOCALE_PROVIDER icu ICU_LOCALE 'en-US' ENCODING 'UTF8' TEMPLATE template0"
        self.run_sql(f'CREATE DATABASE "{name}" {locale}')
        return self.url_of(name)

    def new_database(self, name: str, template: str = "template1") -> str:
        """Create an empty database, or a copy of another one, and return its URL."""
        # By default PostgreSQL 15 copies the files through its log, in nearly twice the CPU time.
        can_copy = int(self.run_sql("SHOW server_version_num")) >= 150_000
        strategy = " STRATEGY FILE_COPY" if can_copy else ""
        self.run_sql(f'CREATE DATABASE "{name}" TEMPLATE "{template}"{strategy}')
        return self.url_of(name)

    def new_standby(self, root: Path, **options: str) -> Server:
        """Clone it into a hot standby that streams from it, and start that.

        Args:
            root: An empty directory.
            **options: Of the standby, such as `recovery_min_apply_delay="500ms"`.
        """
        _own(root)
        _run(
            "pg_basebackup", "-D", str(root / "data"), "-R", "-X", "stream", "-c", "fast", "--no-sync",
            "-d", f"host=127.0.0.1 port={self.port} user={USER}",
        )  # fmt: skip
        standby = Server(root, free_port(), {**self.options, **options})
        standby.start()
        return standby


@contextmanager
def primary(root: Path, **options: str) -> Iterator[Server]:
    """A new server, stopped at the end.

    Args:
        root: An empty directory that the user `postgres` can reach.
        **options: Settings, such as `max_connections="200"`.
    """
    _own(root)
    _run("initdb", "-D", str(root / "data"), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync")
    server = Server(root, free_port(), options)
    server.start()
    try:
        server.new_database("lockgate")
        yield server
    finally:
        server.stop("immediate")


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _own(root: Path) -> None:
    """Make the server's user the owner of a directory: the server refuses to run as root."""
    root.mkdir(parents=True, exist_ok=True)
    if os.getuid() == 0:
        account = pwd.getpwnam("postgres")
        os.chown(root, account.pw_uid, account.pw_gid)
    for above in (root, *root.parents):
        if above == Path("/"):
            break
        if above.stat().st_uid == os.getuid() or os.getuid() == 0:
            above.chmod(above.stat().st_mode | 0o055)


def _run(program: str, *arguments: str) -> None:
    directory = postgres_bin()
    assert directory is not None
    command: Sequence[str] = [str(directory / program), *arguments]
    account = pwd.getpwnam("postgres") if os.getuid() == 0 else None
    ids = {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    done = subprocess.run(
        command,
        capture_output=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd="/",
        check=False,
        **ids,
    )
    assert done.returncode == 0, (program, done.stderr.decode())
