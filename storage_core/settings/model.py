"""All settings: their names, defaults and limits, and how they are read from the environment."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings.intervals import CENTURY_S, Intervals, invalid

MIB: Final = 1024 * 1024
FAR_CALLS: Final = 128
_SCOPE: Final = re.compile(r"[A-Za-z0-9._-]{0,60}")


class Settings(Intervals, BaseSettings):
    """All settings of Lockgate. Each is read from the environment variable `LOCKGATE_<NAME>`.

    S3 credentials, `AWS_ENDPOINT_URL`, `AWS_REGION` and `AWS_PROFILE` are configured as for every AWS tool.
    """

    model_config = SettingsConfigDict(env_prefix="LOCKGATE_", frozen=True, extra="ignore")

    home: Path = Field(
        default=Path("~/.lockgate"), description="folder of the embedded journal and broker, and of staging"
    )
    journal_url: str | None = Field(
        default=None,
        description="postgresql://user@host/database or sqlite:////path; absent: SQLite below home; none: "
        "no journal, so leases are heartbeats in each job's folder and there is no registry of jobs",
    )
    journal: str = Field(default="main", description="name of the journal in its database")
    observer_urls: tuple[str, ...] = Field(
        default=(), description='hot standbys that take the reads, as JSON: ["postgresql://user@standby/db"]'
    )
    observer_wait_ms: float = Field(
        default=50.0, ge=0, description="how long a read waits for an observer that is behind"
    )
    auto_msync_ms: float = Field(
        default=-1.0, ge=-1, description="-1: never; 0: before each read; n: after n ms without contact"
    )
    always_primary: bool = Field(default=False, description="no read goes to an observer")
    checkpoint_url: str | None = Field(
        default=None, description="store of the journal's checkpoints; absent: below home"
    )
    checkpoints_kept: int = Field(default=5, ge=1, description="older checkpoints are deleted")
    request_retention_s: float = Field(
        default=7 * 86_400.0, gt=0, description="how long request ids are kept; older requests are refused"
    )
    blob_dir: Path | None = Field(
        default=None, description="local store of the blob server; absent: blobs below home"
    )
    blob_store_url: str | None = Field(
        default=None, description="HA store of blobs, e.g. s3://bucket/blobs; absent: only the local store"
    )
    blob_server_url: str | None = Field(
        default=None, description="http(s)://host:port of a blob server; absent: this process is the server"
    )
    blob_token_file: Path | None = Field(
        default=None, description="file whose first line is the bearer token for the blob server"
    )
    blob_ca_file: Path | None = Field(
        default=None, description="CA certificates for the blob server's certificate; absent: the system's"
    )
    blob_timeout_s: float = Field(
        default=300.0, gt=0, description="timeout of a blob server's response, including its HA copy"
    )
    blob_max_bytes: int = Field(
        default=64 * 1024 * MIB, ge=1, description="the blob server refuses larger blobs"
    )
    blob_server_idle_s: float = Field(
        default=60.0, gt=0, description="the blob server disconnects a client that stalls for this long"
    )
    blob_server_connections: int = Field(
        default=1_000, ge=1, description="maximum number of connections to the blob server"
    )
    blob_cache_dir: Path | None = Field(
        default=None, description="a machine's cache of blobs; absent: blob-cache below home"
    )
    blob_cache_bytes: int = Field(
        default=10 * 1024 * MIB, ge=MIB, description="size from which unreferenced blobs are evicted"
    )
    files_replicas: int = Field(
        default=3, ge=1, description="members of a new block of an appendable file, if as many volumes answer"
    )
    files_safe_share: float = Field(
        default=0.999,
        ge=0,
        le=1,
        description="share of blocks with a reporting replica below which nothing is deleted or copied",
    )
    files_safe_wait_s: float = Field(
        default=30.0, ge=0, description="time that other volumes have to report after the first ones"
    )
    volume_token_file: Path | None = Field(
        default=None, description="file whose first line is the bearer token for the volume servers"
    )
    volume_ca_file: Path | None = Field(
        default=None, description="CA certificates for the volume servers' certificates; absent: the system's"
    )
    volume_timeout_s: float = Field(
        default=30.0, gt=0, description="timeout of a volume server's response; then a writer drops it"
    )
    job_log: bool = Field(
        default=True,
        description="write an event log for each job with a journal: below home with SQLite; with PostgreSQL "
        "only if volumes are registered",
    )
    message_lapse_s: float = Field(
        default=86_400.0, gt=0, le=CENTURY_S, description="how long an unacknowledged message is kept"
    )
    xcom_threshold_bytes: int = Field(
        default=64 * 1024, ge=0, description="larger XCom values are stored as blobs"
    )
    airflow_scope: str = Field(
        default="", description="distinguishes XCom values and task logs of several Airflow installations"
    )
    log_interval_s: float = Field(
        default=10.0, gt=0, le=86_400.0, description="publication interval of a running Airflow task's log"
    )
    log_lapse_s: float = Field(
        default=30 * 86_400.0,
        gt=0,
        le=CENTURY_S,
        description="how long a finished Airflow task's log is kept",
    )
    celery_threshold_bytes: int = Field(
        default=64 * 1024, ge=0, description="larger task arguments and results are stored as blobs"
    )
    broker_url: str | None = Field(default=None, description="Celery broker; absent: the embedded one")
    broker_prefix: str = Field(
        default="lockgate:",
        pattern=r"^(\S*[:_.-])?$",
        description="prefix of all keys in the broker and of results; it ends in one of : _ . - or is empty",
    )
    staging_roots: tuple[Path, ...] = Field(
        default=(), description='directories of staged files for workers, as JSON: ["/shared"]; empty: any'
    )
    trigger_sources: tuple[str, ...] = Field(
        default=(),
        description='what the form of a DAG may read, as JSON: ["s3://raw", "/data"]; empty: what it may '
        "write",
    )
    trigger_destinations: tuple[str, ...] = Field(
        default=(), description="what the form of a DAG may write, as JSON; empty: LOCKGATE_DESTINATIONS"
    )
    trigger_libraries: tuple[str, ...] = Field(
        default=(),
        description="folders from which the form of a DAG may upload libraries, as JSON; empty: none",
    )
    trigger_transforms: tuple[str, ...] = Field(
        default=(),
        description='functions that the form of a DAG may name, as JSON: ["mypackage.sales:*"]; empty: none',
    )
    trigger_spark: tuple[str, ...] = Field(
        default=(
            "spark.master=local*",
            "spark.default.parallelism=*",
            "spark.driver.memory=*",
            "spark.executor.cores=*",
            "spark.executor.instances=*",
            "spark.executor.memory=*",
            "spark.sql.adaptive.enabled=*",
            "spark.sql.files.max*=*",
            "spark.sql.session.timeZone=*",
            "spark.sql.shuffle.partitions=*",
        ),
        description="Spark's settings that the form of a DAG may give, as JSON; default: the sizes of a "
        "local Spark",
    )
    spark_environment: tuple[str, ...] = Field(
        default=(),
        description='more variables that Spark processes of Airflow\'s tasks get, as JSON: ["GOOGLE_*"]',
    )
    redelivery_s: float = Field(
        default=300.0, gt=0, description="a task that takes longer than this is given to another worker"
    )
    worker_metrics_port: int = Field(
        default=0, ge=0, le=65_535, description="port of a Celery worker's metrics for Prometheus; 0: none"
    )
    worker_metrics_host: str = Field(
        default="127.0.0.1", description="address to bind for the metrics; 0.0.0.0: all interfaces"
    )
    failpoints: str = Field(default="", description="failpoints to arm, for tests")

    s3_endpoint_url: str | None = Field(default=None, description="absent: AWS_ENDPOINT_URL, else AWS")
    s3_region: str | None = Field(default=None, description="absent: AWS_REGION, else us-east-1")
    s3_profile: str | None = Field(default=None, description="profile in the AWS configuration files")
    s3_anonymous: bool = Field(default=False, description="send no credentials, for public buckets")
    s3_path_style: bool | None = Field(
        default=None, description="absent: path style only if an endpoint is set"
    )
    s3_timeout_s: float = Field(default=30.0, gt=0, description="timeout of one response")
    s3_max_attempts: int = Field(default=5, ge=1, description="attempts of a call that may be retried")
    s3_client: Literal["crt", "boto3"] = Field(
        default="crt", description="sends frequent calls: AWS CRT where it is installed, or boto3"
    )
    s3_storage_class: str | None = Field(default=None, description="storage class of data, e.g. STANDARD_IA")
    s3_sse_kms_key_id: str | None = Field(default=None, description="KMS key for encryption")
    spark_s3_jars: Path | None = Field(
        default=None,
        description="folder with hadoop-aws of Spark's Hadoop version and its dependencies, for Spark's S3 "
        "sources; absent: fetched from Maven Central",
    )

    committer: str | None = Field(
        default=None, description="committer if neither the job nor a prefix determines one"
    )
    committers: dict[str, str] = Field(
        default_factory=dict,
        description="committers by destination prefix, as JSON: "
        '{"s3://lake/": "magic", "file:///data": "file-v1"}',
    )

    part_bytes: int = Field(
        default=16 * MIB, ge=5 * MIB, le=5 * 1024 * MIB, description="part size of an upload"
    )
    parallelism: int = Field(
        default=16,
        ge=1,
        le=256,
        description="maximum number of concurrent calls of a process; absent: 16, and up to "
        f"{FAR_CALLS} short ones to a store that is far away",
    )

    commit_shard_files: int = Field(
        default=5_000,
        ge=0,
        description="the Airflow operator lets workers complete the uploads of a job with more files",
    )

    lease_renew_s: float = Field(default=10.0, gt=0, description="renewal interval of job leases")
    lease_soft_s: float = Field(
        default=30.0, gt=0, description="a job lease without renewal for this long is overdue"
    )
    lease_hard_s: float = Field(
        default=120.0, gt=0, description="a job lease without renewal for this long has lapsed"
    )
    commit_window_s: float = Field(
        default=10.0, gt=0, description="maximum age of the lease at the moment of the decision"
    )
    suspend_timeout_s: float = Field(
        default=86_400.0, gt=0, description="how long a job may wait between two Airflow tasks"
    )
    longest_job_s: float = Field(
        default=7 * 86_400.0, gt=0, description="bucket rules that abort uploads earlier cause a warning"
    )
    orphan_age_s: float = Field(
        default=86_400.0, gt=0, description="how long an upload must be without owner until it is aborted"
    )
    tombstone_s: float = Field(
        default=30 * 86_400.0, gt=0, description="how long markers of ended jobs are kept"
    )

    storage_price_gb_month: float = Field(
        default=0.023, ge=0, description="USD for 2^30 bytes a month; default: list price of S3 Standard"
    )

    @field_validator("airflow_scope")
    @classmethod
    def _check_scope(cls, given: str) -> str:
        """Refuse a scope that cannot be part of a reference's owner."""
        if not _SCOPE.fullmatch(given):
            raise ValueError(
                f"{given!r} is not a scope: use at most 60 letters, digits, '.', '_' and '-', such as prod-eu"
            )
        return given

    @model_validator(mode="after")
    def _check_lease_limits(self) -> Self:
        """Refuse limits with which a driver could decide after its lease has lapsed, or never hold one."""
        for name in ("lease_renew_s", "commit_window_s"):
            if getattr(self, name) >= self.lease_hard_s:
                raise ValueError(
                    f"LOCKGATE_{name.upper()} is {getattr(self, name):g} and LOCKGATE_LEASE_HARD_S "
                    f"{self.lease_hard_s:g}: a lease would lapse first; make the first one smaller"
                )
        return self

    # Not a field: fields are read from the environment, shown in the settings' text, and dumped as JSON.
    _s3_credentials: Callable[[], Any] | None = PrivateAttr(default=None)

    @property
    def s3_credentials(self) -> Callable[[], Any] | None:
        """Returns botocore's credentials for S3, which refresh themselves; None: those of boto3's chain."""
        return self._s3_credentials

    def with_s3_credentials(self, credentials: Callable[[], Any] | None, **changes: Any) -> Self:
        """Return a copy with these credentials, and without a profile.

        Args:
            credentials: Returns botocore's credentials, or None if there are none; None: boto3's chain.
            changes: Other settings to change.
        """
        copy = self.model_copy(update={"s3_profile": None, "s3_anonymous": False, **changes})
        copy._s3_credentials = credentials  # noqa: SLF001 - of its own class
        return copy

    @property
    def has_journal(self) -> bool:
        """Whether a journal is configured: `journal_url` is not `none`."""
        return self.journal_url != "none"

    @property
    def far_parallelism(self) -> int:
        """Maximum number of concurrent short calls to a store that is far away."""
        return self.parallelism if "parallelism" in self.model_fields_set else FAR_CALLS

    @property
    def home_dir(self) -> Path:
        """`home` with `~` expanded."""
        return self.home.expanduser()


def read_settings() -> Settings:
    """Return the settings that the environment has.

    Raises:
        InvalidInputError: Variables have invalid values; the message contains each.
    """
    try:
        return Settings()
    except ValidationError as error:
        raise invalid(error) from None
    except SettingsError as error:
        raise InvalidInputError(f"settings: {error}; its value must be JSON") from None
