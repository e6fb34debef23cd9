"""JobSensor and ManifestSensor: wait for a job's phase, or for new data at a destination."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout

from lockgate.operators.asset_events import flat
from lockgate.operators.dag_run.job_handle import JobHandle, check_handle
from lockgate.operators.dag_run.operator import LockgateOperator, task_entry, templated
from lockgate.operators.dag_run.parameters import check_choice, positive
from lockgate.operators.deferral import defer_until, is_deferrable
from lockgate.storage_core.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lockgate.operators.condition_trigger import JobReached, ManifestHas


class _ConditionSensor(LockgateOperator, BaseSensorOperator):
    """Waits for a condition, in a slot or in the triggerer."""

    condition: str
    deferrable: bool | None

    def execute(self, context: Context) -> Any:  # noqa: RET503 - it defers
        """Wait, in the triggerer if the sensor is deferrable."""
        if not is_deferrable(self.deferrable):
            return super().execute(context)
        if done := self.poke(context):
            return done.xcom_value
        arguments = asdict(self._condition())
        defer_until(self, self.condition, arguments, timeout_s=self.timeout, poll_s=self.poke_interval)

    def resume(self, context: Context, event: dict[str, str], deadline_s: float) -> Any:  # noqa: ARG002
        """Look once more, and return what was waited for."""
        if done := self.poke(context):
            return done.xcom_value
        raise AirflowSensorTimeout(f"{self.task_id}: not so within {self.timeout:.0f} s")

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        raise NotImplementedError

    def _condition(self) -> JobReached | ManifestHas:
        raise NotImplementedError


@templated
class JobSensor(_ConditionSensor):
    """Waits until a job has reached a phase.

    A later phase counts: a committed job has been published. Fails without a retry if the job can never reach
    the phase, such as `committed` after an abort.

    Args:
        job: Handle of the job: `setup.output`, or a mapping with `destination`, `job_id` and an empty
            `job_attempt`.
        phase: Phase to wait for: `decided`, `published`, `committed`, `failed`, …
        deferrable: Wait in the triggerer; None: Airflow's `[operators] default_deferrable`.

    Returns:
        The phase in which it found the job.
    """

    condition = "job"
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        job: JobHandle | Any,
        phase: str = "committed",
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.phase = phase
        self.deferrable = deferrable

    @task_entry
    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002 - Airflow's
        """Return whether the job has reached the phase."""
        from lockgate.operators.condition_trigger import is_reached, may_reach

        condition = self._condition()
        found = condition.look()
        if is_reached(found, self.phase):
            return PokeReturnValue(is_done=True, xcom_value=str(found))
        if not may_reach(found, self.phase):
            raise AirflowFailException(
                f"job {condition.job_id} at {condition.destination} is {found}: it never becomes {self.phase}"
            )
        return PokeReturnValue(is_done=False)

    def _condition(self) -> JobReached:
        from lockgate.operators.condition_trigger import JobReached
        from lockgate.storage_core.commit.records.phase import JobPhase

        handle = check_handle(self.job)
        check_choice("phase", self.phase, JobPhase)
        return JobReached(handle["destination"], handle["job_id"], self.phase)


@templated
class ManifestSensor(_ConditionSensor):
    """Waits until the newest publication at a destination has a turn, and is newer than a time.

    Args:
        destination: URL or path.
        turn: The newest publication has at least this turn; 1: the first one.
        newer_than: It was published after this time: a `datetime`, or ISO text such as
            `{{ data_interval_start }}`; None: at any time.
        deferrable: Wait in the triggerer; None: Airflow's `[operators] default_deferrable`.

    Returns:
        The receipt of the publication, flat, as that of `JobCommitOperator`.
    """

    condition = "manifest"
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        destination: str,
        turn: int | str = 1,
        newer_than: datetime | str | None = None,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.destination = destination
        self.turn = turn
        self.newer_than = newer_than
        self.deferrable = deferrable

    @task_entry
    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002 - Airflow's
        """Return whether the destination has the data."""
        receipt = self._condition().look()
        return PokeReturnValue(
            is_done=receipt is not None, xcom_value=None if receipt is None else flat(receipt)
        )

    def _condition(self) -> ManifestHas:
        from lockgate.operators.condition_trigger import ManifestHas

        return ManifestHas(self.destination, positive("turn", self.turn), _time_s(self.newer_than))


def _time_s(value: datetime | str | None) -> float:
    if value is None or value in ("", "None"):
        return 0.0
    try:
        found = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise InvalidInputError(
            f"newer_than={value!r} must be a time with its zone, such as 2026-11-21T00:00:00+00:00; nothing "
            "was done"
        )
    return found.timestamp()
