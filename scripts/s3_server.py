#!/usr/bin/env python3
"""Build, start and stop the S3 server that tests and benchmarks use.

    python scripts/s3_server.py start         builds it once, starts it, prints shell exports
    eval "$(python scripts/s3_server.py env)" the exports of the running server
    python scripts/s3_server.py status        0 running, 3 not running
    python scripts/s3_server.py stop

`docs/internals/decisions.md, ADR 2` has the reasons for this server and its differences from AWS.

All files are in `.tools` of the checkout. The server holds `s3-server.lock` until it ends, so two starts
never create two servers. Every start creates a new secret, so another process with the same pid or port is
never taken for the server.

Exit codes: 0 done, 1 failed, 2 Go is not on this machine, 3 the server is not running.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

PROGRAM: Final = "versitygw"
VERSION: Final = "v1.8.0"
PACKAGE: Final = f"github.com/versity/versitygw/cmd/{PROGRAM}@{VERSION}"

TOOLS: Final = Path(__file__).resolve().parent.parent / ".tools"
BINARY: Final = TOOLS / "bin" / f"{PROGRAM}-{VERSION}"
DATA: Final = TOOLS / "s3-data"
STATE: Final = TOOLS / "s3-server.json"
LOCK: Final = TOOLS / "s3-server.lock"
LOG: Final = TOOLS / "s3-server.log"

BUCKET: Final = "lockgate-test"
# The key is the same for every start, because the server records it as the owner of the bucket.
ACCESS_KEY: Final = "lockgate-test"
REGION: Final = "us-east-1"

BUILD_TIMEOUT_S: Final = 1800
START_TIMEOUT_S: Final = 30
STOP_TIMEOUT_S: Final = 10
POLL_S: Final = 0.05


class S3ServerError(Exception):
    """The command failed; the message has the reason and the remedy.

    Attributes:
        exit_code: Exit code of the command.
    """

    exit_code = 1


class GoMissingError(S3ServerError):
    """Go, which builds the server, is not installed."""

    exit_code = 2


class NotRunningError(S3ServerError):
    """No server runs that was started from this checkout."""

    exit_code = 3


@dataclass(frozen=True, kw_only=True)
class Server:
    """Address, credentials and process of a started server."""

    pid: int
    endpoint: str
    key: str
    secret: str
    bucket: str

    def client(self) -> S3Client:
        """Return a client without retries and with short timeouts."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            region_name=REGION,
            config=Config(
                connect_timeout=2,
                read_timeout=5,
                retries={"total_max_attempts": 1},
                s3={"addressing_style": "path"},
            ),
        )

    def answers(self) -> bool:
        """Return whether this server runs: no other server accepts its secret and has its bucket."""
        try:
            self.client().head_bucket(Bucket=self.bucket)
        except (BotoCoreError, ClientError):
            return False
        return True

    def make_bucket(self) -> bool:
        """Create the bucket if it is absent; return False if the server does not accept connections yet."""
        try:
            self.client().create_bucket(Bucket=self.bucket)
        except BotoCoreError:
            return False
        except ClientError as error:
            if error.response["Error"]["Code"] not in {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}:
                raise
        return True

    def test_variables(self) -> dict[str, str]:
        """Return the environment variables by which Lockgate's tests find this server."""
        return {
            "LOCKGATE_TEST_S3_URL": f"s3://{self.bucket}",
            "LOCKGATE_TEST_S3_ENDPOINT": self.endpoint,
            "LOCKGATE_TEST_S3_KEY": self.key,
            "LOCKGATE_TEST_S3_SECRET": self.secret,
        }

    def exports(self) -> str:
        """Return shell lines that configure AWS tools and Lockgate's tests for this server."""
        variables = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": REGION,
            **self.test_variables(),
        }
        # A token or profile of the user's environment would be sent with these credentials.
        lines = ["unset AWS_SESSION_TOKEN AWS_PROFILE"]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        return "\n".join(lines) + "\n"


def start(data: Path) -> Server:
    """Start the server on `data` unless it runs, and wait until its bucket exists.

    Raises:
        GoMissingError: The server must be built first, and Go is not installed.
        S3ServerError: It could not be built or started; no process was left running.
    """
    build()
    with lock() as lock_fd:
        if lock_fd is None:
            return await_other_start()
        STATE.unlink(missing_ok=True)
        return launch(data, lock_fd)


def stop() -> bool:
    """End the server and wait for its end; keep its data. Return False if none was running.

    Raises:
        S3ServerError: A process holds the lock and may not be the server, or it did not end.
    """
    try:
        server = running()
    except NotRunningError:
        if lock_is_held():
            raise S3ServerError(
                f"a process holds {LOCK} but does not answer as the server of {STATE}: it is starting, "
                "or hangs; nothing was stopped; try again, then end it by hand"
            ) from None
        STATE.unlink(missing_ok=True)
        return False
    for sent in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, sent)
        if poll(lambda: not lock_is_held(), timeout_s=STOP_TIMEOUT_S):
            STATE.unlink(missing_ok=True)
            return True
    raise S3ServerError(f"pid {server.pid} was killed but something still holds {LOCK}; see `fuser {LOCK}`")


def running() -> Server:
    """Return the running server.

    Raises:
        NotRunningError: No server was started, or it has ended.
    """
    with contextlib.suppress(FileNotFoundError):
        server = Server(**json.loads(STATE.read_text()))
        if server.answers():
            return server
    raise NotRunningError(
        "the S3 server is not running: `make s3-server` starts it; tests that need it are skipped"
    )


def build() -> None:
    """Build the pinned version with `go install`, once.

    Raises:
        GoMissingError: Go is not installed.
        S3ServerError: `go install` failed.
    """
    if BINARY.exists():
        return
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        raise GoMissingError(
            f"Go is not installed (no `go` on PATH), and {PROGRAM} {VERSION} is built with it: the S3 server "
            "was not started; tests marked requires('s3-server') are skipped; to run them, install Go 1.25 "
            "or newer"
        )
    say(f"building {PACKAGE} (once; a few minutes)")
    BINARY.parent.mkdir(parents=True, exist_ok=True)
    # Built in a temporary folder and renamed, so that an interrupted build leaves no partial program.
    with tempfile.TemporaryDirectory(dir=BINARY.parent) as folder:
        install = subprocess.run(
            [go, "install", PACKAGE],
            env=os.environ | {"GOBIN": folder},
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
        if install.returncode != 0:
            raise S3ServerError(
                f"`go install {PACKAGE}` failed; nothing was installed:\n{install.stderr[-2000:]}"
            )
        (Path(folder) / PROGRAM).replace(BINARY)


def launch(data: Path, lock_fd: int) -> Server:
    """Start the process in a new session, and return the server when its bucket exists."""
    data.mkdir(parents=True, exist_ok=True)
    address = f"127.0.0.1:{free_port()}"
    secret = secrets.token_hex(20)
    with private(LOG).open("wb") as log:
        child = subprocess.Popen(
            [BINARY, "--port", address, "--region", REGION, "--quiet", "--keep-alive", "posix", data],
            # Not on the command line, which every user of the machine can read.
            env={"PATH": os.defpath, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": secret},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock_fd],
        )
    server = Server(pid=child.pid, endpoint=f"http://{address}", key=ACCESS_KEY, secret=secret, bucket=BUCKET)
    try:
        poll(lambda: child.poll() is not None or server.make_bucket(), timeout_s=START_TIMEOUT_S)
        if not server.answers():
            raise S3ServerError(f"{PROGRAM} did not start; its log ends with:\n{LOG.read_text()[-2000:]}")
        record(server)
    except BaseException:
        child.kill()
        child.wait()
        raise
    return server


def await_other_start() -> Server:
    """Return the server that another process has started or is starting."""
    if poll(is_running, timeout_s=START_TIMEOUT_S):
        return running()
    raise S3ServerError(
        f"another process holds {LOCK} but no server answered in {START_TIMEOUT_S} s; see {LOG}"
    )


def is_running() -> bool:
    """Return whether the server runs."""
    try:
        running()
    except NotRunningError:
        return False
    return True


def record(server: Server) -> None:
    """Write the state file atomically, readable by its owner only."""
    temporary = private(STATE.with_suffix(".new"))
    temporary.write_text(json.dumps(asdict(server), indent=2) + "\n")
    temporary.replace(STATE)


def private(path: Path) -> Path:
    """Replace the file by an empty one that only its owner can read."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    return path


@contextlib.contextmanager
def lock() -> Iterator[int | None]:
    """Hold the lock that the server inherits; yield None if another process holds it."""
    TOOLS.mkdir(exist_ok=True)
    fd = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield fd
    except BlockingIOError:
        yield None
    finally:
        os.close(fd)


def lock_is_held() -> bool:
    """Return whether a server runs or is starting."""
    with lock() as fd:
        return fd is None


def free_port() -> int:
    """Return an unused port of 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def poll(condition: Callable[[], bool], *, timeout_s: float) -> bool:
    """Wait until the condition holds; return False if it does not in time."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True


def say(message: str) -> None:
    """Print a message to standard error; `eval` reads standard output."""
    sys.stderr.write(f"s3-server: {message}\n")


def run(command: str, data: Path) -> None:
    """Run one command."""
    match command:
        case "start":
            server = start(data)
            say(f"runs at {server.endpoint} (pid {server.pid}, bucket {server.bucket})")
            sys.stdout.write(server.exports())
        case "stop":
            say("stopped" if stop() else "was not running")
        case "status":
            server = running()
            say(f"runs at {server.endpoint} (pid {server.pid}, bucket {server.bucket})")
        case "env":
            sys.stdout.write(running().exports())


def main() -> int:
    """Read the command line and return the exit code."""
    parser = argparse.ArgumentParser(description="The S3 server that tests and benchmarks use.")
    parser.add_argument("command", choices=["start", "stop", "status", "env"])
    parser.add_argument(
        "--data", type=Path, default=DATA, help="where a new server keeps objects (default: %(default)s)"
    )
    arguments = parser.parse_args()
    try:
        run(arguments.command, arguments.data.resolve())
    except S3ServerError as error:
        say(str(error))
        return error.exit_code
    except (OSError, ClientError, subprocess.TimeoutExpired) as error:
        say(f"{arguments.command} failed: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
