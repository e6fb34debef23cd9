"""Make what the services of compose.yaml need and is missing; repeating it changes nothing."""

import base64
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import boto3
import psycopg
from psycopg import sql

SECRETS = Path("/run/secrets/lockgate")
STATE = (
    SECRETS,
    Path("/home/lockgate/staging"),
    Path("/var/lib/lockgate/blobs"),
    Path("/var/lib/lockgate/s3"),
)
USER = 50000
OWN_S3 = "http://s3:7070"
BUCKETS = ("lake", "lockgate")
PEOPLE = {
    "airflow-admin": "Airflow, user admin",
    "airflow-user": "Airflow, user user",
    "airflow-viewer": "Airflow, user viewer",
    "grafana-password": "Grafana, user admin",
    "s3-secret": "S3 server, key lockgate",
}


def write_secrets() -> None:
    """Write the secrets that are missing, and print those that people need: once, when they are made."""
    for folder in STATE:
        os.chown(folder, USER, USER)
    new = []

    def kept(name: str, value: str | None = None, *, mode: int = 0o444) -> str:
        path = SECRETS / name
        if value is None and path.exists():
            return path.read_text()
        if value is None:
            value = secrets.token_urlsafe(24)
            new.append((name, value))
        draft = SECRETS / f".{name}"
        draft.write_text(value)
        draft.chmod(mode)
        os.chown(draft, USER, USER)
        draft.replace(path)
        return value

    kept("postgres-password"), kept("replicator-password")
    journal = f"lockgate:{kept('journal-password')}"
    airflow = f"airflow:{kept('airflow-database-password')}@journal/airflow"
    broker = f"redis://:{kept('redis-password')}@redis:6379"
    fernet = base64.urlsafe_b64encode(kept("airflow-encryption")[:32].encode()).decode()
    token, key = kept("blob-token", mode=0o400), kept("s3-secret")
    people = {user: kept(f"airflow-{user}") for user in ("admin", "user", "viewer")}
    kept("grafana-password")
    kept("blob-tokens", f"{token} *\n", mode=0o400)
    kept("redis.conf", f"requirepass {kept('redis-password')}\nappendonly yes\nmaxmemory-policy noeviction\n")
    kept("s3-environment", f"export ROOT_ACCESS_KEY=lockgate ROOT_SECRET_KEY={key}\n")
    kept("airflow-users.json", json.dumps(people))
    variables = {
        "LOCKGATE_JOURNAL_URL": f"postgresql://{journal}@journal/lockgate",
        "LOCKGATE_OBSERVER_URLS": json.dumps([f"postgresql://{journal}@standby/lockgate"]),
        "LOCKGATE_BROKER_URL": f"{broker}/7",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg://{airflow}",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": f"postgresql+psycopg://{airflow}",
        "AIRFLOW__CELERY__RESULT_BACKEND": f"db+postgresql+psycopg://{airflow}",
        "AIRFLOW__CELERY__BROKER_URL": f"{broker}/0",
        "AIRFLOW__CORE__FERNET_KEY": fernet,
        "AIRFLOW__API__SECRET_KEY": kept("airflow-cookies"),
        "AIRFLOW__API_AUTH__JWT_SECRET": kept("airflow-tokens") * 2,
        "AIRFLOW_CONN_AWS_DEFAULT": json.dumps({"conn_type": "aws"}),
        "AWS_ACCESS_KEY_ID": "lockgate",
        "AWS_SECRET_ACCESS_KEY": key,
    }
    for name, value in variables.items():
        kept(name, value)
    for name, value in new:
        if name in PEOPLE:
            sys.stdout.write(f"{PEOPLE[name]}: {value}\n")


def initialize() -> None:
    """Make the roles, databases, the standby's slot, buckets and the journal's tables that are missing."""
    password = (SECRETS / "postgres-password").read_text()
    with psycopg.connect(host="journal", user="postgres", password=password, autocommit=True) as server:
        for role, name, rights in (
            ("lockgate", "journal-password", "LOGIN"),
            ("airflow", "airflow-database-password", "LOGIN"),
            ("replicator", "replicator-password", "LOGIN REPLICATION"),
        ):
            if not server.execute("select 1 from pg_roles where rolname = %s", [role]).fetchone():
                server.execute(sql.SQL("create role {}").format(sql.Identifier(role)))
            server.execute(
                sql.SQL("alter role {} {} password {}").format(
                    sql.Identifier(role), sql.SQL(rights), (SECRETS / name).read_text()
                )
            )
        for database in ("lockgate", "airflow"):
            if not server.execute("select 1 from pg_database where datname = %s", [database]).fetchone():
                server.execute(
                    sql.SQL("create database {0} owner {0} encoding 'UTF8' template template0").format(
                        sql.Identifier(database)
                    )
                )
        slot = server.execute(
            "select wal_status from pg_replication_slots where slot_name = 'standby'"
        ).fetchone()
        if slot == ("lost",):  # the standby was away for too long: it needs a new copy
            server.execute("select pg_drop_replication_slot('standby')")
        if slot in {None, ("lost",)}:
            server.execute("select pg_create_physical_replication_slot('standby', true)")
    if os.environ["AWS_ENDPOINT_URL"] == OWN_S3:
        client = boto3.client("s3")
        for bucket in {*BUCKETS} - {one["Name"] for one in client.list_buckets()["Buckets"]}:
            client.create_bucket(Bucket=bucket)
    subprocess.run(["lockgate", "journal", "status"], check=True)


if __name__ == "__main__":
    {"secrets": write_secrets, "init": initialize}[sys.argv[1]]()
