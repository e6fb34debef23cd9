"""Make the files of an earlier turn of a destination live again."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from lockgate.operators.revert import RevertOperator

with DAG(
    "turn_revert",
    description=__doc__,
    schedule=None,
    catchup=False,
    tags=["lockgate"],
    default_args={"restricted": True},  # the form may name only destinations that the settings allow
    params={
        "destination": Param(
            type="string",
            minLength=1,
            title="Destination",
            description="s3://bucket/prefix, file:///directory or a path.",
        ),
        "turn": Param(
            type="string",
            minLength=1,
            title="Turn",
            description="A turn, a time such as 2026-11-29T12:00+01:00 (without a zone in UTC), or a tag.",
        ),
        "dry_run": Param(False, type="boolean", title="Only report what would change"),
    },
    doc_md="""
Does what `lockgate revert --yes` does, as one job that writes and copies no file; the turns in between stay
in the log, and can be reverted to. The page of a destination starts it. Fails, and changes nothing, if files
of the turn are gone, or if neither the history rule nor a tag keeps them.
""",
) as dag:
    RevertOperator(
        task_id="revert",
        destination=dag.param("destination"),
        turn=dag.param("turn"),
        report_only=dag.param("dry_run"),
    )
