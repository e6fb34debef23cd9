"""Steps whose result is final are taken immediately: a pause before them leads to no new behaviour.

Such a step only reads, or creates an existing object. Before it and after it all other processes can do the
same things, so one order represents all (a partial-order reduction), with a tenth of the states.
This is valid for the full protocol only: without a rule, final records may change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from lockgate.storage_core.commit.records.phase import TERMINAL
from tests.model.commit.phases import readable_phase
from tests.model.commit.state import File, Job, Process, Step, Store, Verdict


def is_final(store: Store, process: Process) -> bool:
    """Return whether a process's next step has one permanent result and does not change the store."""
    has_final_result = _FINAL.get(process.step)
    return has_final_result is not None and has_final_result(store, process)


def _turn_ended(store: Store, process: Process) -> bool:
    return store.turns[process.turn - 1].ended


def _turn_claimed(store: Store, process: Process) -> bool:
    return process.turn <= len(store.turns)


def _holder_decided(store: Store, process: Process) -> bool:
    holder = store.turns[process.turn - 1].holder
    return store.folders[holder].decision.verdict is not Verdict.NONE


def _plan_is_known(_store: Store, process: Process) -> bool:
    return process.own is Job.APPEND  # it removes nothing from any destination


def _decided(store: Store, process: Process) -> bool:
    return store.folders[process.own].decision.verdict is not Verdict.NONE


def _job_ended(store: Store, process: Process) -> bool:
    return readable_phase(store, process.subject) in TERMINAL


def _outcome_stands(store: Store, process: Process) -> bool:
    return store.turns[process.decision.turn - 1].ended


def _upload_gone(store: Store, process: Process) -> bool:
    return store.folders[process.subject].files[process.file] is not File.PENDING


def _file_gone(store: Store, process: Process) -> bool:
    return store.folders[process.subject].files[process.file] is File.GONE


def _removed(store: Store, process: Process) -> bool:
    if process.file == 0:
        return process.decision.takes_old != store.old
    return store.folders[process.subject.other].files[process.file - 1] is File.GONE


def _nothing_open(store: Store, process: Process) -> bool:
    return File.PENDING not in store.folders[process.subject].files


def _marker_stands(store: Store, process: Process) -> bool:
    folder = store.folders[process.subject]
    return folder.failure if process.fails else folder.success


_FINAL: Final[Mapping[Step, Callable[[Store, Process], bool]]] = {
    Step.READ_HOLDER: _holder_decided,
    Step.PASS: _turn_ended,
    Step.CLAIM: _turn_claimed,
    Step.PLAN: _plan_is_known,
    Step.CHECK_TURN: _turn_ended,
    Step.DECIDE: _decided,
    Step.FAIL: _decided,
    Step.DECIDE_ABORT: _decided,
    Step.ROLL: _job_ended,
    Step.COMPLETE: _upload_gone,
    Step.RESOLVE: _file_gone,
    Step.END_TURN: _outcome_stands,
    Step.REMOVE: _removed,
    Step.ABORT_UPLOAD: _upload_gone,
    Step.TAKE_BACK: _file_gone,
    Step.DROP: _nothing_open,
    Step.END: _marker_stands,
}
