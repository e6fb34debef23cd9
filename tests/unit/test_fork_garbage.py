"""A child process never finalises garbage of its parent, such as a connection that a thread was closing."""

from __future__ import annotations

import subprocess
import sys

FORKING = """
import gc, os, sys
import lockgate.storage_core.forks

class Inherited:
    def __del__(self):
        if os.getpid() != parent:
            os.write(1, b"finalised in the child")

parent = os.getpid()
gc.disable()
garbage = Inherited()
garbage.itself = garbage
del garbage
if sys.argv[1] == "enabled":
    gc.enable()
child = os.fork()
if not child:
    os.write(1, b"enabled " if gc.isenabled() else b"disabled ")
    gc.collect()
    own = [[]]
    own[0].append(own)
    del own
    os.write(1, b"own " if gc.collect() else b"")
    os._exit(0)
os.waitpid(child, 0)
os.write(1, b"enabled" if gc.isenabled() else b"disabled")
os._exit(0)
"""


def forked(collection: str) -> str:
    command = [sys.executable, "-c", FORKING, collection]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_child_collects_its_own_garbage_and_never_its_parents() -> None:
    assert forked("enabled") == "enabled own enabled"


def test_a_fork_leaves_garbage_collection_switched_off() -> None:
    assert forked("disabled") == "disabled own disabled"
