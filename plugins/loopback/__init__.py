"""`lockgate ui`: the pages without Airflow, on the loopback address of one machine, for one person."""
