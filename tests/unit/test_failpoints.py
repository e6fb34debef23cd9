"""Failpoints: places at which tests crash, fail, or suppress the response of a call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lockgate.storage_core.errors import InvalidInputError, OutcomeUnknownError, StoreUnavailableError
from lockgate.storage_core.failpoints import FAILPOINTS, Failpoints, current_step, parse_failpoints, step


def test_the_text_of_the_environment_names_points_and_actions() -> None:
    assert parse_failpoints("") == {}
    assert parse_failpoints(" a.put.before=kill@3 , b.get.after=lost,") == {
        "a.put.before": "kill@3",
        "b.get.after": "lost",
    }


@pytest.mark.parametrize("action", ["explode", "kill@x", "", "lost@-1"])
def test_an_unknown_action_is_refused(action: str) -> None:
    with pytest.raises(InvalidInputError, match="use kill, lost or refuse"):
        Failpoints().arm({"decide.create.after": action})


@pytest.mark.parametrize(
    ("action", "error"), [("lost", OutcomeUnknownError), ("refuse", StoreUnavailableError)]
)
def test_a_failpoint_acts_only_at_the_configured_pass(action: str, error: type[Exception]) -> None:
    points = Failpoints()
    points.arm({"a.put.before": f"{action}@2"})

    points.hit("a.put.before")
    points.hit("b.put.before")
    with pytest.raises(error, match=r"a\.put\.before"):
        points.hit("a.put.before")
    points.hit("a.put.before")


def test_a_failpoint_acts_in_only_one_of_many_threads() -> None:
    points = Failpoints()
    points.arm({"a": "lost@40"})
    met: list[str] = []

    def pass_often() -> None:
        for _ in range(20):
            try:
                points.hit("a")
            except OutcomeUnknownError as fault:
                met.append(str(fault))

    threads = [threading.Thread(target=pass_often) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(met) == 1


def test_the_innermost_step_names_the_call() -> None:
    assert current_step() == "idle"
    with step("complete"):
        with step("clean-up"):
            assert current_step() == "clean-up"
        assert current_step() == "complete"
    assert current_step() == "idle"


def test_an_observer_sees_every_point_including_unarmed_ones() -> None:
    points, seen = Failpoints(), []
    points.observer = seen.append
    points.hit("a")

    assert seen == ["a"]


def test_arming_replaces_the_points_armed_before() -> None:
    FAILPOINTS.arm({"a": "lost"})
    FAILPOINTS.arm({})
    FAILPOINTS.hit("a")

    assert FAILPOINTS.armed == {}


@pytest.mark.parametrize(("when", "exists"), [("before", False), ("after", True)])
def test_kill_really_kills_before_or_after_the_effect(tmp_path: Path, when: str, exists: bool) -> None:
    program = (
        "import sys\n"
        "from lockgate.storage_core.failpoints import step\n"
        "from lockgate.storage_core.stores import open_store\n"
        "store = open_store(sys.argv[1])\n"
        "with step('decide'):\n"
        "    store.create('marker', b'x')\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "dest")],
        env={**os.environ, "LOCKGATE_FAILPOINTS": f"decide.create.{when}=kill"},
        timeout=60,
        check=False,
    )

    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "dest" / "marker").exists() is exists
