"""The results of a run: what was measured, with which versions, on which kind of machine; as JSON."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Final, Literal

import msgspec
import psutil

from lockgate.storage_core.decoding import decode_json

FOLDER: Final = Path(__file__).parents[1] / "results"
_PACKAGES: Final = ("pyspark", "pyarrow", "boto3", "awscrt")
_FOLDERS: Final = frozenset({"--jars", "--results"})
_JARS: Final = {"bundle": "AWS SDK for Java"}


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of one way.

    Attributes:
        wall_s: Seconds until all data are visible.
        client_cpu_s: CPU seconds of the client: its process, the JVM and all Python workers.
        server_cpu_s: CPU seconds of the S3 server meanwhile; 0 where it is not used.
        load: Load average of the minute before.
        requests: Requests by kind, where a proxy counted them.
    """

    wall_s: float
    client_cpu_s: float
    server_cpu_s: float
    load: float
    requests: dict[str, int] = {}


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way of doing the work, and its turns.

    Attributes:
        key: Name of the way in the code.
        requests: Requests of the whole work by kind, counted in a turn of its own; empty: not counted.
    """

    key: str
    turns: list[Turn]
    requests: dict[str, int] = {}

    def wall_s(self) -> float:
        """Return the median."""
        return median(turn.wall_s for turn in self.turns)

    def client_cpu_s(self) -> float:
        """Return the median."""
        return median(turn.client_cpu_s for turn in self.turns)

    def server_cpu_s(self) -> float:
        """Return the median."""
        return median(turn.server_cpu_s for turn in self.turns)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One run: every way did the same work, in turns.

    Attributes:
        work: `write`: Spark writes rows; `commit`: a job of pending files is committed.
        command: Command that measured it.
        date: Day of the run.
        machine: Processor, cores, memory and system.
        versions: Versions of everything that took part, by name.
        rows: Rows that were written; 0 for a job commit.
        files: Files of the job.
        latency_ms: Milliseconds that a proxy added to each request.
        skipped: Ways that were not measured, with the reason.
    """

    work: Literal["write", "commit"]
    command: str
    date: str
    machine: str
    versions: dict[str, str]
    rows: int
    files: int
    latency_ms: float
    ways: list[Way]
    skipped: dict[str, str] = {}

    def name(self) -> str:
        """Return the name of the result's file: the work and its size."""
        rows = f"-{self.rows}-rows" if self.rows else ""
        latency = f"-{self.latency_ms:g}-ms" if self.latency_ms else ""
        return f"{self.work}{rows}-{self.files}-files{latency}"


def save(result: Result, folder: Path = FOLDER) -> Path:
    """Write a result, over an older one of the same work and size."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{result.name()}.json"
    rounded = msgspec.to_builtins(result)
    for way in rounded["ways"]:
        for turn in way["turns"]:
            del turn["requests"]
        way["turns"] = [{name: round(value, 3) for name, value in turn.items()} for turn in way["turns"]]
    path.write_bytes(msgspec.json.format(msgspec.json.encode(rounded), indent=1) + b"\n")
    return path


def load(folder: Path = FOLDER) -> list[Result]:
    """Return the results of a folder: first those of writes, then by latency and size."""
    results = [decode_json(path.read_bytes(), Result) for path in sorted(folder.glob("*.json"))]
    return sorted(results, key=lambda one: (one.work != "write", one.latency_ms, one.rows == 0, one.files))


def machine() -> str:
    """Return processor, cores, memory and system, without a name of the machine."""
    found = re.search(r"model name\s*:\s*(.+)", _text(Path("/proc/cpuinfo")))
    processor = re.sub(r"\(R\)|\(TM\)|CPU|@.*", "", found[1]).split() if found else [platform.machine()]
    memory_gib = psutil.virtual_memory().total / 2**30
    release = ".".join(platform.release().split("-")[0].split(".")[:2])
    return (
        f"{os.cpu_count()} cores ({' '.join(processor)}), {memory_gib:.0f} GiB, {platform.system()} {release}"
    )


def versions(jars: Iterable[Path], *, java: bool) -> dict[str, str]:
    """Return the versions of Python, of packages, of the S3 server, of Java and of S3A's jars."""
    from scripts.s3_server import PROGRAM, VERSION  # noqa: PLC0415 - runs in a checkout only

    found = {"Python": platform.python_version(), PROGRAM: VERSION.removeprefix("v")}
    found |= {name: version(name) for name in _PACKAGES}
    if java:
        answer = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
        found["Java"] = answer.split('"')[1]
    for jar in jars:
        if match := re.fullmatch(r"[\w.]*?_(.+?)-(\d[\w.]*)\.jar", jar.name):
            found[_JARS.get(match[1], match[1])] = match[2]
    return found


def today() -> str:
    """Return the date."""
    return time.strftime("%Y-%m-%d")


def command(arguments: Sequence[str]) -> str:
    """Return the command of a run, as a person would type it, without the folders of this machine."""
    kept = [
        argument
        for before, argument in zip(["", *arguments], arguments, strict=False)
        if not {before, argument} & _FOLDERS
    ]
    return " ".join(["python -m benchmarks.peers", *kept])


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
