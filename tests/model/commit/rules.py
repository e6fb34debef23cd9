"""The rules of the protocol as switches: the model follows all except those that a test drops."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from lockgate.storage_core.commit.records.job_record import OnLapse
from tests.model.commit.state import Job


class Rule(StrEnum):
    """One rule. Its text states what a process does; a comment in the step states what fails without it."""

    TURN_BEFORE_PLAN = "a plan is made within the turn"
    TURNS_END_FIRST = "a turn has its outcome before the next one is claimed"
    TURN_IF_ABSENT = "a turn is claimed by create-if-absent"
    DECISION_IF_ABSENT = "the decision is created if absent, abort as well as commit"
    LOSERS_FOLLOW_THE_DECISION = "who comes second at the decision follows the one that stands"
    ABORT_IS_DECIDED = "an undecided job is aborted only by deciding so"
    FILES_BEFORE_OUTCOME = "a turn is published only after every file is complete or lost"
    OUTCOME_IF_ABSENT = "the outcome is created if absent"
    LOSERS_FOLLOW_THE_OUTCOME = "who comes second at the outcome follows the one that stands"
    PASSED_REVERTS = "a decision whose turn was passed is reverted"
    OUTCOME_BEFORE_REVERT = "a lost file reverts the job only through the turn's outcome"
    OUTCOME_BEFORE_DELETION = "replaced files go only after the outcome says published"
    DELETION_BY_VERSION = "a replaced file is deleted only if it is the planned version"
    UPLOADS_BEFORE_FILES = "a revert aborts uploads before it deletes objects"
    REVERT_BEFORE_MARKER = "COMMIT_FAIL stands only after all was taken back"
    UNKNOWN_IS_READ_BACK = "a lost answer is read back, never taken for a failure"
    DECIDED_IS_HELPED = "a decided job that has the turn is helped, not passed"
    TURN_IS_LEFT = "a commit that fails does not pass its own turn"
    CHECK_BEFORE_DECISION = "a committer looks whether its turn was passed before it decides"
    PREFLIGHT = "one listing checks that all uploads are alive before the decision"


class Role(NamedTuple):
    """The task of a process.

    Attributes:
        commits: The job that it commits once; its crash is an endless pause.
        recovers: Whether it recovers every job instead; it restarts after its end or crash, and may treat
            an undecided job as expired at any moment.
    """

    commits: Job | None
    recovers: bool = False


COMMITTER: Final = {job: Role(job) for job in Job}
RECOVERER: Final = Role(None, recovers=True)
Policies = tuple[OnLapse, ...]


class World(NamedTuple):
    """The configuration of an exploration.

    Attributes:
        roles: Roles of the concurrent processes; equal roles are adjacent.
        on_lapse: Possible policies of each job.
        files: Number of files of each job.
        calm: Whether no process is considered dead, no upload lost and no completion refused; processes still
            crash, pause and lose answers.
        dropped: Rules that are not followed.
        at_once: Whether final steps are taken immediately; never if a rule is dropped.
    """

    roles: tuple[Role, ...]
    on_lapse: tuple[Policies, Policies] = (("abort",), ("abort",))
    files: tuple[int, int] = (1, 1)
    calm: bool = False
    dropped: frozenset[Rule] = frozenset()
    at_once: bool = True

    def __str__(self) -> str:
        """Describe the processes in one line."""
        who = [
            "recoverer" if role.commits is None else f"{role.commits.name} committer" for role in self.roles
        ]
        files = f"{self.files[Job.APPEND]} + {self.files[Job.REPLACE]} files"
        resumed = [f"{job.name} may be resumed" for job in Job if "resume" in self.on_lapse[job]]
        return "; ".join((", ".join(who), files, *resumed, *(["calm"] * self.calm)))
