"""Measure one way to move blobs in a separate process, so that CPU time and memory are those of the load.

    echo '{"work": "put", "by": "server", …}' | python -m benchmarks.blobs_load

Clients, journals and one connection each are opened before the measurement; blobs that it put are deleted
after it.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import boto3
import msgspec
from botocore.config import Config

from benchmarks.job_commit import peak_bytes
from lockgate.storage_core.blobs.blob_protocol import Blobs
from lockgate.storage_core.blobs.cache.blob_cache import BlobCache
from lockgate.storage_core.blobs.http.client import BlobClient
from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.open_blobs import ha_blobs, open_client, open_server
from lockgate.storage_core.blobs.server.blob_server import BlobServer
from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.settings import MIB, Settings, load_settings

if TYPE_CHECKING:
    from boto3.s3.transfer import TransferConfig
    from types_boto3_s3 import S3Client

JOB: Final = "kept"
"""The job of the blobs for gets."""

SMALL_BYTES: Final = 10 * 1024


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Description of one measurement.

    Attributes:
        work: `put` or `get` one file; `put-many` or `get-many` small blobs.
        by: `server` (in this process), `client` (over HTTP), `cache` (from the HA store), `cached`,
            `boto3`, or `tuned`: boto3 with Lockgate's part size and threads.
        file: File to put.
        keys: Keys to get: of blobs of `JOB`, or of objects.
        count: Number of small blobs to put.
        threads: Threads for small blobs.
        keep: Keep the blobs that were put.
    """

    work: str
    by: str
    file: str = ""
    keys: tuple[str, ...] = ()
    count: int = 0
    threads: int = 16
    keep: bool = False


class Done(msgspec.Struct, frozen=True):
    """Result: wall and CPU seconds, the maximum resident size, and the keys that were put and kept."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    keys: tuple[str, ...] = ()


Timed = Callable[[], Sequence[str]]


def run(load: Load) -> Done:
    """Run a load in a new process."""
    command = [sys.executable, "-m", "benchmarks.blobs_load"]
    run = subprocess.run(command, check=True, input=msgspec.json.encode(load), stdout=subprocess.PIPE)
    return decode_json(run.stdout, Done)


def small(number: int) -> bytes:
    """Return the bytes of a small blob."""
    return random.Random(number).randbytes(SMALL_BYTES)


@contextlib.contextmanager
def begun(load: Load) -> Iterator[Timed]:
    """Open everything that a load needs and yield its work."""
    settings = load_settings()
    if load.by in {"boto3", "tuned"}:
        with _by_boto3(load, settings) as work:
            yield work
    elif load.by in {"cache", "cached"}:
        with _by_cache(load, settings) as work:
            yield work
    else:
        job_id = JOB if load.keep else f"bench-{os.getpid()}"
        opened = open_server(settings) if load.by == "server" else open_client(settings)
        with opened as blobs:
            blobs.page(job_id)
            if isinstance(blobs, BlobServer):
                _warm(blobs.stores.ha)
                yield _in_process(load, blobs, job_id)
            else:
                yield _over_http(load, blobs, job_id, settings)
            if load.work.startswith("put") and not load.keep:
                blobs.finish(job_id)


def _warm(ha: HaBlobs | None) -> None:
    """Create the store's clients, which takes half a second, and connect."""
    if ha is not None:
        next(ha.blobs(JOB), None)


def _in_process(load: Load, server: BlobServer, job_id: str) -> Timed:
    """Return the work of an in-process server; a get ends at its local file, filled from the HA store."""

    def get_small() -> list[str]:
        for _ in in_order(lambda key: server.get(JOB, BlobKey(key)), load.keys, load.threads):
            pass
        return []

    works: dict[str, Timed] = {
        "put": lambda: [server.put(Path(load.file), job_id=job_id, owners=["job"]).blob_key],
        "put-many": lambda: _put_small(load, server, job_id),
        "get": lambda: [str(server.reader.path(JOB, BlobKey(key))) for key in load.keys],
        "get-many": get_small,
    }
    return works[load.work]


def _over_http(load: Load, client: BlobClient, job_id: str, settings: Settings) -> Timed:
    """Return the work of a client over HTTP; a get ends at a verified file like a cache's."""
    keys = [BlobKey(key) for key in load.keys]
    folder = LocalBlobs(Path(tempfile.mkdtemp(dir=settings.home_dir)), is_durable=False)
    works: dict[str, Timed] = {
        "put": lambda: [client.put(Path(load.file), job_id=job_id, owners=["job"]).blob_key],
        "put-many": lambda: _put_small(load, client, job_id),
        "get": lambda: [str(client.fetch(folder, JOB, key)) for key in keys],
        "get-many": lambda: [
            str(len(data)) for data in in_order(lambda key: client.get(JOB, key), keys, load.threads)
        ],
    }
    return works[load.work]


def _put_small(load: Load, blobs: Blobs, job_id: str) -> list[str]:
    def put(number: int) -> str:
        return blobs.put(small(number), job_id=job_id, owners=["job"]).blob_key

    return list(in_order(put, range(load.count), load.threads))


@contextlib.contextmanager
def _by_cache(load: Load, settings: Settings) -> Iterator[Timed]:
    """Yield gets from a cache with an HA store: of missing blobs, or of cached and verified ones."""
    keys, ha = [BlobKey(key) for key in load.keys], ha_blobs(settings)
    with (
        tempfile.TemporaryDirectory(dir=settings.home_dir) as folder,
        open_client(settings) as origin,
        BlobCache(Path(folder), ha, origin, limit_bytes=2**40, interval_s=1_800.0) as cache,
    ):

        def get(key: BlobKey) -> str:
            with cache.pinned(JOB, key) as path:
                return str(path)

        _warm(ha)
        if load.by == "cached":
            list(in_order(get, keys, load.threads))
        yield lambda: list(in_order(get, keys, load.threads))


@contextlib.contextmanager
def _by_boto3(load: Load, settings: Settings) -> Iterator[Timed]:
    """Yield the work of boto3's transfer manager, with as many connections as Lockgate has."""
    client = boto3.client(
        "s3", settings.s3_region or "us-east-1", config=Config(max_pool_connections=settings.near_calls)
    )
    bucket, _, prefix = str(settings.blob_store_url).removeprefix("s3://").partition("/")
    client.head_bucket(Bucket=bucket)
    transfer = _transfer_config(load, settings)
    put_keys: list[str] = []

    def put(number: int) -> str:
        key = f"{prefix}/boto3-{os.getpid()}/{number:06d}"
        put_keys.append(key)
        if load.file:
            client.upload_file(load.file, bucket, key, Config=transfer)
        else:
            client.upload_fileobj(io.BytesIO(small(number)), bucket, key, Config=transfer)
        return key

    with tempfile.TemporaryDirectory(dir=settings.home_dir) as folder:

        def get(key: str) -> str:
            if load.work == "get":
                client.download_file(bucket, f"{prefix}/{JOB}/{key}", f"{folder}/file", Config=transfer)
                return key
            into = io.BytesIO()
            client.download_fileobj(bucket, f"{prefix}/{JOB}/{key}", into, Config=transfer)
            return str(len(into.getvalue()))

        def work() -> Sequence[str]:
            with ThreadPoolExecutor(load.threads) as pool:
                if load.work.startswith("put"):
                    return list(pool.map(put, range(max(load.count, 1))))
                return list(pool.map(get, load.keys))

        yield work
    _delete(client, bucket, put_keys)


def _transfer_config(load: Load, settings: Settings) -> TransferConfig | None:
    """Return Lockgate's part size and threads; small blobs are one request each and use only the pool."""
    from boto3.s3.transfer import TransferConfig  # noqa: PLC0415 - not measured for other ways

    if load.by == "boto3":
        return None
    part_bytes = settings.part_bytes
    return TransferConfig(
        multipart_threshold=part_bytes,
        multipart_chunksize=part_bytes,
        max_concurrency=settings.near_calls,
        io_chunksize=MIB,
        use_threads=not load.work.endswith("many"),
    )


def _delete(client: S3Client, bucket: str, keys: Sequence[str]) -> None:
    for start in range(0, len(keys), 1_000):
        page = [{"Key": key} for key in keys[start : start + 1_000]]
        client.delete_objects(Bucket=bucket, Delete={"Objects": page})  # type: ignore[typeddict-item] # of keys alone


def main() -> None:
    """Run the load of standard input and print its result."""
    load = decode_json(sys.stdin.buffer.read(), Load)
    with begun(load) as work:
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        keys = work()
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        done = Done(wall_s, cpu_s, peak_bytes(), tuple(keys) if load.keep else ())
    print(msgspec.json.encode(done).decode())


if __name__ == "__main__":
    main()
