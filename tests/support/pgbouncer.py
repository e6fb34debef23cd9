"""A real pgbouncer in front of a PostgreSQL server."""

from __future__ import annotations

import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import getuid
from pathlib import Path

from tests.support.postgres import USER, Server, free_port


def pgbouncer_program() -> str | None:
    """Return the path of pgbouncer, or None."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


@contextmanager
def pgbouncer(server: Server, database: str, mode: str, **settings: str) -> Iterator[str]:
    """Run a pooler that has two sessions of a database, and yield the URL of the database behind it.

    Args:
        server: The PostgreSQL server.
        database: Name of the database.
        mode: When a client gives a session back: `session` or `transaction`.
        **settings: More of `pgbouncer.ini`.
    """
    account = pwd.getpwnam("nobody") if getuid() == 0 else None  # it refuses to run as root
    port = free_port()
    chosen = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(port),
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": mode,
        "default_pool_size": "2",
        **settings,
    }
    with tempfile.TemporaryDirectory(prefix="lockgate-pgbouncer-") as folder:
        ini = Path(folder) / "pgbouncer.ini"
        target = f"host=127.0.0.1 port={server.port} dbname={database} user={USER}"
        lines = [f"{name} = {value}" for name, value in chosen.items()]
        ini.write_text("\n".join(["[databases]", f"{database} = {target}", "[pgbouncer]", *lines, ""]))
        Path(folder).chmod(0o755)
        ids = {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        command = [str(pgbouncer_program()), "--quiet", str(ini)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, **ids) as running:
            try:
                url = f"postgresql://{USER}@127.0.0.1:{port}/{database}"
                _wait_until_ready(url, running)
                yield url
            finally:
                running.kill()


def _wait_until_ready(url: str, running: subprocess.Popen[bytes]) -> None:
    import psycopg

    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            assert running.poll() is None, running.stderr and running.stderr.read()
        else:
            return
