"""Read what a job has published, as soon as it is committed."""

from __future__ import annotations

from airflow.sdk import DAG, AssetAlias, task

ORDERS = AssetAlias("lockgate_orders")


@task.lockgate(inlets=[ORDERS])  # like @task, with Airflow's connections
def read(inlet_events=None):
    """Return the size of the newest version; the event's `extra` is the receipt of its job."""
    from lockgate import read_manifest

    receipt = inlet_events[ORDERS][-1].extra
    files = read_manifest(receipt["destination"]).files
    return {"turn": receipt["turn"], "rows": receipt["rows"], "files": len(files)}


# Started by an Asset, so a run has no logical date.
with DAG("asset_scheduled", description=__doc__, schedule=[ORDERS], tags=["lockgate"]) as dag:
    read()
