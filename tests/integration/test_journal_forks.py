"""After a fork with an open journal, the child has its own connections and the parent's still work.

Spark's daemon and Celery's prefork pool fork like this. Each test runs its own program: pytest's process has
threads and journals of other tests.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from lockgate.storage_core.journal import open_journal

pytestmark = pytest.mark.integration

BEGINNING = """
import multiprocessing, os, signal, sys, threading
from lockgate.storage_core.errors import FencedError, JournalUnavailableError
from lockgate.storage_core import forks
from lockgate.storage_core.journal import Leases, Stamp, open_journal
from lockgate.storage_core.journal.entries.lease_entries import TakeLease
from lockgate.storage_core.journal.leases.renewer import RENEWER, Renewer
from tests.support.journal.lease_states import lease_states

URL = sys.argv[1]

def take(resource):
    return TakeLease(resource=resource, holder="h", purpose="write", soft_s=600, hard_s=1200)

def in_child(act):
    '''Do something in a fork and return its exit status, 0 when nothing was raised.'''
    child = os.fork()
    if child == 0:
        signal.alarm(100)  # one that hangs is not left behind
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

journal = open_journal(URL)
journal.apply(take("of the parent"))
"""


def run(url: str, program: str) -> None:
    """Run a program and require exit code 0: all of its assertions held."""
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING + program, url],
        timeout=200,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr


def sequences(url: str) -> list[int]:
    with open_journal(url) as journal, journal.reading() as reading:
        return [entry.sequence for entry in reading.entries(0, 1000)]


def test_parent_and_children_continue_writing_with_the_same_journal(journal_url: str) -> None:
    run(
        journal_url,
        """
def write():
    for number in range(10):
        journal.apply(take(f"{os.getpid()}-{number}"))
    assert journal.seen >= Stamp(1, 11)

for _ in range(3):
    assert in_child(write) == 0
    journal.apply(take(f"after {_}"))
assert journal.status().stamp == Stamp(1, 34)
journal.close()
""",
    )
    assert sequences(journal_url) == list(range(1, 35))


@pytest.mark.soak
def test_multiprocessing_children_write_concurrently(journal_url: str) -> None:
    run(
        journal_url,
        """
def write(child):
    for number in range(10):
        journal.apply(take(f"{child}-{number}"))
    return journal.status().identity

with multiprocessing.get_context("fork").Pool(3) as pool:
    assert set(pool.map(write, range(3))) == {journal.identity}
journal.apply(take("last"))
journal.close()
""",
    )
    assert sequences(journal_url) == list(range(1, 33))


def test_a_normal_exit_of_a_child_leaves_the_connections_of_its_parent_intact(journal_url: str) -> None:
    run(
        journal_url,
        """
import gc
child = os.fork()
if child == 0:
    del journal
    gc.collect()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
journal.apply(take("a"))
journal.close()
""",
    )
    assert sequences(journal_url) == [1, 2]


def test_a_fork_during_writes_of_other_threads_blocks_none_of_them(journal_url: str) -> None:
    run(
        journal_url,
        """
ended = threading.Event()
written = []

def write_on(thread):
    while not ended.is_set():
        written.append(journal.apply(take(f"{thread}-{len(written)}-{os.urandom(8).hex()}")).stamp)

threads = [threading.Thread(target=write_on, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
for number in range(10):
    assert in_child(lambda: journal.apply(take(f"of child {number}"))) == 0
ended.set()
for thread in threads:
    thread.join()
assert journal.status().stamp == Stamp(1, 1 + 10 + len(written))
journal.close()
""",
    )
    found = sequences(journal_url)
    assert found == list(range(1, len(found) + 1))


HOLDING = """
begun, forked = threading.Event(), threading.Event()

def hold():
    with journal.database.write() as connection:
        connection.exec_driver_sql("DELETE FROM lease")
        begun.set()
        forked.wait()

holder = threading.Thread(target=hold)
"""


def test_a_fork_waits_for_an_sqlite_transaction_of_another_thread(journal_url: str) -> None:
    """On PostgreSQL it does not wait; the child works with both databases."""
    run(
        journal_url,
        HOLDING
        + """
holder.start()
begun.wait()
wait_for = forks.FORKS._changed.wait_for

def let_it_end_and_wait_for(*arguments):
    forked.set()
    return wait_for(*arguments)

forks.FORKS._changed.wait_for = let_it_end_and_wait_for
assert in_child(lambda: journal.apply(take("of the child"))) == 0
holder.join()
journal.close()
""",
    )
    assert sequences(journal_url) == [1, 2]


def test_a_fork_during_an_endless_transaction_is_safe_for_parent_and_child(journal_url: str) -> None:
    """The child is refused SQLite, which would trust the parent's locks; PostgreSQL's are in the server."""
    run(
        journal_url,
        HOLDING
        + """
forks.PATIENCE_S = 0.05
holder.start()
begun.wait()

def act():
    if not journal.database.is_sqlite:
        assert journal.status().stamp == Stamp(1, 1)
        return
    for refused in (lambda: journal.apply(take("of the child")), lambda: open_journal(URL)):
        try:
            refused()
        except JournalUnavailableError as error:
            assert "fork earlier, spawn, or use PostgreSQL" in str(error)
        else:
            raise AssertionError("not refused")

assert in_child(act) == 0
forked.set()
holder.join()
assert lease_states(journal) == {}
journal.apply(take("of the parent"))
journal.close()
""",
    )
    assert sequences(journal_url) == [1, 2]


@pytest.mark.parametrize("leaving", ["pass", "raise ZeroDivisionError"])
def test_a_child_that_leaves_a_transaction_of_its_parent_does_not_end_it(
    journal_url: str, leaving: str
) -> None:
    run(
        journal_url,
        f"""
try:
    with journal.database.write() as connection:
        connection.exec_driver_sql("DELETE FROM lease")
        child = os.fork()
        if child == 0:
            {leaving}
        else:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            connection.exec_driver_sql("UPDATE head SET sequence = 7")
except (FencedError, SystemExit, ZeroDivisionError) as error:
    assert child == 0
    os._exit(7)
assert journal.apply(take("of the parent")).stamp == Stamp(1, 8)
journal.close()
""",
    )
    assert sequences(journal_url) == [1, 8]


def test_a_child_holds_none_of_its_parents_leases_and_can_take_its_own(journal_url: str) -> None:
    run(
        journal_url,
        """
leases = Leases(journal)
renewer = Renewer(leases.renew, every_s=600)

def keep(resource):
    stamp = leases.take(resource, renewer.holder, purpose="write", soft_s=600, hard_s=1200)
    renewer.keep(resource, stamp, since_s=0.0)

def renews():
    return [thread.name for thread in threading.enumerate()].count(RENEWER)

keep("a")
parent = renewer.holder

def act():
    assert renewer.holder != parent
    assert renews() == 0
    try:
        renewer.check("a", 0.0)
    except FencedError as error:
        assert "is a fork of the one that does" in str(error)
    else:
        raise AssertionError("not refused")
    renewer.drop("a")
    keep("b")
    renewer.check("b", 0.0)
    assert renews() == 1
    renewer.drop("b")

assert in_child(act) == 0
renewer.check("a", 0.0)
assert renews() == 1
assert leases.look("b").lease.holder not in {parent, ""}
renewer.drop("a")
journal.close()
""",
    )
    assert sequences(journal_url) == [1, 2, 3]
