"""Example DAGs: `lockgate dags install --examples DIR` copies them; change their constants.

No example needs a logical date: a run that was started by an Asset or through the API has none, and so no
`ds` or `ts`. `dag_run.run_after` is always there.
"""
