"""The DAGs of Lockgate, one file a DAG, without logic: `lockgate dags path`, `lockgate dags install DIR`."""
