"""One way to move blobs, measured in a process of its own, so that processor time and memory are its own.

    echo '{"work": "put", "by": "server", …}' | python -m benchmarks.blobs_load

What has to be there first is opened before the clock runs: clients, journals, a connection each. What was put
is deleted when it has stopped.
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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import boto3
import msgspec
from botocore.config import Config

from benchmarks.job_commit import peak_bytes
from lockgate.storage_core.blobs.cache.cache import BlobCache
from lockgate.storage_core.blobs.http.client.batches import batches
from lockgate.storage_core.blobs.http.client.client import BATCHES_AT_ONCE, BlobClient
from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.open_blobs import ha_blobs, open_client, open_server
from lockgate.storage_core.blobs.protocol import NewBlob
from lockgate.storage_core.blobs.server.put_batch import put_many
from lockgate.storage_core.blobs.server.server import BlobServer
from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.settings import MIB, Settings, load_settings

if TYPE_CHECKING:
    from boto3.s3.transfer import TransferConfig
    from types_boto3_s3 import S3Client

JOB: Final = "kept"
"""The job of blobs that are got."""

SMALL_BYTES: Final = 10 * 1024


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What to do.

    Attributes:
        work: `put` or `get` one file; `put-many` or `get-many` small blobs.
        by: `server` (in this process), `client` (over HTTP), `cache` (from the HA store), `cached`,
            `boto3`, or `tuned`: boto3 with parts and threads as Lockgate has them.
        file: To put.
        keys: To get: of blobs of `JOB`, or of objects.
        count: Of small blobs to put.
        threads: For small blobs.
        keep: Whether what is put stays.
    """

    work: str
    by: str
    file: str = ""
    keys: tuple[str, ...] = ()
    count: int = 0
    threads: int = 16
    keep: bool = False


class Done(msgspec.Struct, frozen=True):
    """What it took: wall and processor seconds, the greatest resident size, and the keys that were put."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    keys: tuple[str, ...] = ()


Timed = Callable[[], Sequence[str]]


def run(load: Load) -> Done:
    """Carry out a load in a new process."""
    command = [sys.executable, "-m", "benchmarks.blobs_load"]
    said = subprocess.run(command, check=True, input=msgspec.json.encode(load), stdout=subprocess.PIPE).stdout
    return msgspec.json.decode(said, type=Done)


def small(number: int) -> bytes:
    """Bytes of a small blob."""
    return random.Random(number).randbytes(SMALL_BYTES)


@contextlib.contextmanager
def begun(load: Load) -> Iterator[Timed]:
    """Open what a load needs; yields the work."""
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
                _warm(blobs.ha)
                yield _in_process(load, blobs, job_id)
            else:
                yield _over_http(load, blobs, job_id, settings)
            if load.work.startswith("put") and not load.keep:
                blobs.finish(job_id)


def _warm(ha: HaBlobs | None) -> None:
    """Make the store's clients, which takes half a second, and connect."""
    if ha is not None:
        next(ha.blobs(JOB), None)


def _in_process(load: Load, server: BlobServer, job_id: str) -> Timed:
    """Work of a blob server in this process. A get ends at its own file, filled from the HA store."""

    def put_small() -> list[str]:
        for _ in in_order(partial(put_many, server, job_id), batches(_small_ones(load)), BATCHES_AT_ONCE):
            pass
        return []

    def get_small() -> list[str]:
        for _ in in_order(lambda key: server.get(JOB, BlobKey(key)), load.keys, load.threads):
            pass
        return []

    works: dict[str, Timed] = {
        "put": lambda: [server.put(Path(load.file), job_id=job_id, owners=["job"]).blob_key],
        "put-many": put_small,
        "get": lambda: [str(server.path(JOB, BlobKey(key))) for key in load.keys],
        "get-many": get_small,
    }
    return works[load.work]


def _over_http(load: Load, client: BlobClient, job_id: str, settings: Settings) -> Timed:
    """Work of a blob server elsewhere. A get ends at a verified file like a cache's."""
    keys = [BlobKey(key) for key in load.keys]
    folder = LocalBlobs(Path(tempfile.mkdtemp(dir=settings.home_dir)), is_durable=False)
    works: dict[str, Timed] = {
        "put": lambda: [client.put(Path(load.file), job_id=job_id, owners=["job"]).blob_key],
        "put-many": lambda: [one.blob_key for one in client.put_many(_small_ones(load), job_id=job_id)],
        "get": lambda: [str(client.fetch(folder, JOB, key)) for key in keys],
        "get-many": lambda: [str(len(data)) for data in client.get_many(JOB, keys)],
    }
    return works[load.work]


def _small_ones(load: Load) -> Iterator[tuple[NewBlob, bytes]]:
    new = NewBlob(owners=("job",))
    return ((new, small(number)) for number in range(load.count))


@contextlib.contextmanager
def _by_cache(load: Load, settings: Settings) -> Iterator[Timed]:
    """Gets from a cache beside an HA store: not there yet, or there and verified."""
    keys, ha = [BlobKey(key) for key in load.keys], ha_blobs(settings)
    with (
        tempfile.TemporaryDirectory(dir=settings.home_dir) as folder,
        open_client(settings) as origin,
        BlobCache(Path(folder), ha, origin, limit_bytes=2**40, interval_s=1_800.0) as cache,
    ):

        def get(key: BlobKey) -> str:
            with cache.holding(JOB, key) as path:
                return str(path)

        _warm(ha)
        if load.by == "cached":
            list(in_order(get, keys, load.threads))
        yield lambda: list(in_order(get, keys, load.threads))


@contextlib.contextmanager
def _by_boto3(load: Load, settings: Settings) -> Iterator[Timed]:
    """Work of boto3's transfer manager, with a client of its own that has as many connections."""
    client = boto3.client(
        "s3", settings.s3_region or "us-east-1", config=Config(max_pool_connections=settings.parallelism)
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
    """Parts and threads like Lockgate's; small ones are a request each: no threads but the pool's."""
    from boto3.s3.transfer import TransferConfig  # noqa: PLC0415 - not part of what others measure

    if load.by == "boto3":
        return None
    part_bytes = settings.part_bytes
    return TransferConfig(
        multipart_threshold=part_bytes,
        multipart_chunksize=part_bytes,
        max_concurrency=settings.parallelism,
        io_chunksize=MIB,
        use_threads=not load.work.endswith("many"),
    )


def _delete(client: S3Client, bucket: str, keys: Sequence[str]) -> None:
    for start in range(0, len(keys), 1_000):
        page = [{"Key": key} for key in keys[start : start + 1_000]]
        client.delete_objects(Bucket=bucket, Delete={"Objects": page})  # type: ignore[typeddict-item] # of keys alone


def main() -> None:
    """Be the process that a load describes."""
    load = msgspec.json.decode(sys.stdin.buffer.read(), type=Load)
    with begun(load) as work:
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        keys = work()
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        done = Done(wall_s, cpu_s, peak_bytes(), tuple(keys) if load.keep else ())
    print(msgspec.json.encode(done).decode())


if __name__ == "__main__":
    main()
