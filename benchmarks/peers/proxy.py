"""A proxy on the loopback address that delays each request to an S3 server, and counts them by kind.

The delay is before a request goes on to the server, once for each, also where a client waits for
`100 Continue` before it sends the body. The proxy is a process of its own, so its CPU time is in no figure.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Final
from urllib.request import urlopen

_LENGTH: Final = re.compile(rb"^content-length:\s*(\d+)", re.IGNORECASE | re.MULTILINE)
_LIST: Final = re.compile(rb"[?&](list-type|uploads|prefix|max-keys|delimiter|versions)\b")
_COUNTS: Final = "/-/requests"
_CHUNK_BYTES: Final = 262_144


@contextmanager
def delaying_proxy(upstream: str, latency_ms: float) -> Iterator[str]:
    """Run a proxy for a plain HTTP server, and yield the proxy's URL.

    Args:
        upstream: URL of the server.
        latency_ms: Milliseconds added to each request.
    """
    context = multiprocessing.get_context("spawn")
    receives, sends = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(upstream, latency_ms / 1e3, sends), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{receives.recv()}"
    finally:
        process.terminate()
        process.join()


def requests_at(proxy: str | None) -> Counter[str]:
    """Return the number of requests so far by kind; a GET of a listing is a LIST. Empty without a proxy."""
    if proxy is None:
        return Counter()
    with urlopen(f"{proxy}{_COUNTS}") as answer:
        return Counter(json.load(answer))


def kind_of(head: bytes) -> str:
    """Return the kind of a request by its first line."""
    method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
    return "LIST" if method == b"GET" and _LIST.search(rest) else method.decode()


def _run(upstream: str, latency_s: float, sends: Connection) -> None:
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(upstream, latency_s, sends))


async def _serve(upstream: str, latency_s: float, sends: Connection) -> None:
    connected = partial(_connected, upstream, latency_s, Counter())
    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=_CHUNK_BYTES, backlog=1024)
    sends.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _connected(
    upstream: str,
    latency_s: float,
    counts: Counter[str],
    near: asyncio.StreamReader,
    back: asyncio.StreamWriter,
) -> None:
    host, _, port = upstream.removeprefix("http://").partition(":")
    far, forth = await asyncio.open_connection(host, int(port))
    answers = asyncio.create_task(_pass_answers(far, back))
    with suppress(OSError, asyncio.IncompleteReadError):
        while True:
            head = await near.readuntil(b"\r\n\r\n")
            if head.startswith(f"GET {_COUNTS} ".encode()):
                body = json.dumps(counts).encode()
                back.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
                continue
            counts[kind_of(head)] += 1
            await asyncio.sleep(latency_s)
            forth.write(head)
            await _pass_body(head, near, forth)
    with suppress(OSError):
        forth.close()
    await answers


async def _pass_body(head: bytes, near: asyncio.StreamReader, forth: asyncio.StreamWriter) -> None:
    found = _LENGTH.search(head)
    left = int(found[1]) if found else 0
    while left and (block := await near.read(min(left, _CHUNK_BYTES))):
        forth.write(block)
        await forth.drain()
        left -= len(block)


async def _pass_answers(far: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while block := await far.read(_CHUNK_BYTES):
            back.write(block)
            await back.drain()
    with suppress(OSError):
        back.close()
