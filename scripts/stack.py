#!/usr/bin/env python3
"""Start and end the services of docker/compose.yaml. Needs Python alone, no virtual environment.

    python3 -m scripts.stack up [SERVICE ...]   start what does not run, wait until it is healthy, print it
    python3 -m scripts.stack down               end all; the data stay in named volumes

Exit codes: 0 done, 1 a service is not healthy, or a port is taken; else that of docker.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

DOCKER: Final = Path(__file__).resolve().parent.parent / "docker"
PROFILES: Final = "spark,monitoring"
PATIENCE_S: Final = 300.0
POLL_S: Final = 1.0
CLEAR_LINE: Final = "\x1b[2K"
"""Compose 2.26 begins each line of a log with it, on a terminal or not."""

PORT: Final = re.compile(r"(?:127\.0\.0\.1):(\d+)->")


def main(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code."""
    command, *services = arguments
    os.environ.setdefault("COMPOSE_PROFILES", _from_file("COMPOSE_PROFILES") or PROFILES)
    for name in [one for one in os.environ if one.startswith("AWS_")]:
        del os.environ[name]  # docker/.env says what the services use, not the caller's shell
    return {"up": up, "down": down}[command](services)


def up(services: Sequence[str]) -> int:
    """Start the services that do not run, and wait until they are healthy."""
    began_s, began = time.monotonic(), datetime.now(UTC).isoformat()
    if taken := _taken_ports(services):
        say(f"in use on this machine: {', '.join(taken)}; set other ports in docker/.env")
        return 1
    for name in ("data", "dags"):
        (DOCKER / name).mkdir(exist_ok=True)  # else the engine makes them, as root
    code = compose("up", "--detach", *services).returncode
    if code:
        return code
    while (waiting := [one for one in _services() if not _is_fine(one)]) and not _is_late(waiting, began_s):
        time.sleep(POLL_S)
    say(_table(_services()))
    for line in _output("logs", "--no-log-prefix", "--since", began, "secrets").splitlines():
        say(f"new password, shown once: {line.removeprefix(CLEAR_LINE)}")
    for one in waiting:
        say(f"\n{one['Service']} is not healthy; its last lines:")
        say(_output("logs", "--no-log-prefix", "--tail", "10", one["Service"]))
    say(f"{'not healthy' if waiting else 'healthy'} after {time.monotonic() - began_s:.0f} s")
    return int(bool(waiting))


def down(_: Sequence[str]) -> int:
    """End the services of all profiles, and remove their containers and network."""
    return compose("--profile", "*", "down", "--remove-orphans").returncode


def _is_fine(service: Mapping[str, Any]) -> bool:
    """Return whether a service is healthy, or was to end and did well."""
    if service["State"] == "exited":
        return bool(service["ExitCode"] == 0)
    return service["State"] == "running" and service["Health"] in {"healthy", ""}


def _is_late(waiting: Sequence[Mapping[str, Any]], began_s: float) -> bool:
    failed = any(one["State"] == "exited" for one in waiting)
    return failed or time.monotonic() - began_s > PATIENCE_S


def _table(services: Sequence[Mapping[str, Any]]) -> str:
    rows = [("service", "state", "address")]
    for one in sorted(services, key=lambda one: str(one["Name"])):
        state = one["Health"] or (f"ended ({one['ExitCode']})" if one["State"] == "exited" else one["State"])
        ports = PORT.findall(one["Ports"])
        rows.append((one["Name"], state, ", ".join(f"http://127.0.0.1:{port}" for port in ports)))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(
        f"{name:{widths[0]}}  {state:{widths[1]}}  {address}".rstrip() for name, state, address in rows
    )


def _taken_ports(services: Sequence[str]) -> list[str]:
    """Return the ports that the stack publishes and that another program holds."""
    if _services():
        return []
    model = json.loads(_output("config", "--format", "json"))
    return [
        f"{port['published']} ({name})"
        for name, service in model["services"].items()
        if (not services or name in services) and (service.get("deploy") or {}).get("replicas") != 0
        for port in service.get("ports", ())
        if not _is_free(port["host_ip"], int(port["published"]))
    ]


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _services() -> list[dict[str, Any]]:
    return [json.loads(line) for line in _output("ps", "--all", "--format", "json").splitlines() if line]


def _from_file(name: str) -> str | None:
    path = DOCKER / ".env"
    found = re.search(rf"^{name}=(.*)$", path.read_text(), re.MULTILINE) if path.exists() else None
    return found and found[1]


def compose(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run `docker compose` for the stack."""
    return subprocess.run(["docker", "compose", *arguments], cwd=DOCKER, check=False)


def _output(*arguments: str) -> str:
    return subprocess.run(
        ["docker", "compose", *arguments], cwd=DOCKER, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
