"""Threads and forks that decode a type for the first time do not crash the process."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import msgspec
import pytest

from lockgate.storage_core.decoding import convert, decode_json

THREADS: Final = """
import sys
import threading
import msgspec
from lockgate.storage_core.decoding import convert, decode_json, decode_msgpack

sys.setswitchinterval(1e-6)
data = b'{"e": "x", "d": [{"a": 1}], "a": 1, "b": [1], "c": {"x": 1}}'
value = msgspec.to_builtins(decode_json(data, dict))
packed = msgspec.msgpack.encode(value)
for _ in range(300):
    inner = msgspec.defstruct("Inner", [("a", int)])
    kind = msgspec.defstruct(
        "Kind", [("a", int), ("b", list[int]), ("c", dict[str, int]), ("d", list[inner]), ("e", str)]
    )
    begin = threading.Barrier(4)
    decoded = []
    def decode():
        begin.wait()
        decoded.append(CALL)
    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.d[0].a for one in decoded] == [1] * 4
"""

FORK: Final = """
import os
import threading
import msgspec
from lockgate.storage_core.decoding import decode_json

begun, forked = threading.Event(), threading.Event()

def slow():
    begun.set()
    forked.wait(0.2)  # a fork that does not wait for the description happens now
    return int

class Inner(msgspec.Struct):
    a: "slow()"

class Kind(msgspec.Struct):
    a: Inner
    b: str

data = b'{"b": "x", "a": {"a": 1}}'
thread = threading.Thread(target=decode_json, args=(data, Kind))
thread.start()
begun.wait()
child = os.fork()
if not child:
    os._exit(0 if decode_json(data, Kind).b == "x" else 1)
forked.set()
assert os.waitpid(child, 0)[1] == 0
thread.join()
"""


def run(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    "call", ["decode_json(data, kind)", "decode_msgpack(packed, kind)", "convert(value, kind)"]
)
def test_threads_that_decode_a_type_for_the_first_time_do_not_crash(call: str) -> None:
    run(THREADS.replace("CALL", call))


def test_a_fork_beside_a_thread_that_decodes_a_type_for_the_first_time_can_decode_it() -> None:
    run(FORK)


def test_values_of_another_type_are_refused_with_their_field() -> None:
    kind = msgspec.defstruct("Kind", [("size", int)])
    with pytest.raises(msgspec.ValidationError, match=r"\$.size"):
        decode_json('{"size": "1"}', kind)
    with pytest.raises(msgspec.ValidationError, match=r"\$.size"):
        convert({"size": "1"}, kind)
