"""Configuration: read once, at the edge, into a frozen object. Nothing reads the environment at import."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any, Final, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from lockgate.storage_core.errors import InvalidInputError

MIB = 1024 * 1024
_CENTURY_S: Final = 100 * 365 * 86_400.0
_FORMER_INTERVAL: Final = "library_cache_manager_cleanup_interval_s"
_SCOPE: Final = re.compile(r"[A-Za-z0-9._-]{0,60}")


class Settings(BaseSettings):
    """Every setting of Lockgate; each is the environment variable `LOCKGATE_<NAME>`.

    Credentials are not among them: S3 takes those, and `AWS_ENDPOINT_URL`, `AWS_REGION` and `AWS_PROFILE`,
    from where every AWS tool takes them.
    """

    model_config = SettingsConfigDict(env_prefix="LOCKGATE_", frozen=True, extra="ignore")

    home: Path = Field(
        default=Path("~/.lockgate"), description="holds the embedded journal, the embedded broker and staging"
    )
    journal_url: str | None = Field(
        default=None,
        description="postgresql://user@host/database or sqlite:////path; absent: SQLite below home; none: "
        "no journal, so leases are heartbeats in each job's folder and nothing knows jobs over destinations",
    )
    journal: str = Field(default="main", description="name of the journal in that database")
    observer_urls: tuple[str, ...] = Field(
        default=(), description='hot standbys that take the reads, as JSON: ["postgresql://user@standby/db"]'
    )
    observer_wait_ms: float = Field(
        default=50.0,
        ge=0,
        description="an observer that is behind is waited for so long, then another is asked",
    )
    auto_msync_ms: float = Field(
        default=-1.0, ge=-1, description="-1: never; 0: before each read; n: after n ms without contact"
    )
    always_primary: bool = Field(default=False, description="no read goes to an observer")
    checkpoint_url: str | None = Field(
        default=None, description="store that keeps the journal's checkpoints; absent: below home"
    )
    checkpoints_kept: int = Field(default=5, ge=1, description="older ones are deleted")
    request_retention_s: float = Field(
        default=7 * 86_400.0, gt=0, description="ids of requests are kept so long; an older one is refused"
    )
    blob_dir: Path | None = Field(
        default=None, description="local store of the blob server; absent: blobs below home"
    )
    blob_store_url: str | None = Field(
        default=None, description="HA store of blobs, e.g. s3://bucket/blobs; absent: the local store is all"
    )
    blob_server_url: str | None = Field(
        default=None, description="http(s)://host:port of a blob server; absent: this process is its own"
    )
    blob_token_file: Path | None = Field(
        default=None, description="its first line is the bearer token that this process shows a blob server"
    )
    blob_ca_file: Path | None = Field(
        default=None, description="certificates that the blob server's is verified by; absent: the system's"
    )
    blob_timeout_s: float = Field(
        default=300.0, gt=0, description="for one answer of a blob server, with its copy to the HA store"
    )
    blob_max_bytes: int = Field(
        default=64 * 1024 * MIB, ge=1, description="the blob server refuses a larger blob"
    )
    blob_server_idle_s: float = Field(
        default=60.0, gt=0, description="a client that sends or takes hardly anything is given up after this"
    )
    blob_server_connections: int = Field(
        default=1_000, ge=1, description="the blob server refuses more of them at once"
    )
    blob_cache_dir: Path | None = Field(
        default=None, description="a worker's cache of blobs; absent: blob-cache below home"
    )
    blob_cache_bytes: int = Field(
        default=10 * 1024 * MIB, ge=MIB, description="unreferenced blobs leave the cache beyond this"
    )
    retention_interval_s: float = Field(
        default=1_800.0, gt=0, le=_CENTURY_S, description="an unreferenced blob lives one to two of these"
    )
    library_cache_manager_cleanup_interval_s: float | None = Field(
        default=None,
        gt=0,
        le=_CENTURY_S,
        description="deprecated name of retention_interval_s; draws a warning",
    )
    message_lapse_s: float = Field(
        default=86_400.0,
        gt=0,
        le=_CENTURY_S,
        description="a message that no receiver acknowledges is kept so long",
    )
    xcom_threshold_bytes: int = Field(
        default=64 * 1024, ge=0, description="a larger XCom value is kept as a blob"
    )
    airflow_scope: str = Field(
        default="", description="tells this Airflow's XCom values and task logs from those of another one"
    )
    log_interval_s: float = Field(
        default=10.0,
        gt=0,
        le=86_400.0,
        description="the log of a running Airflow task is published this often",
    )
    log_lapse_s: float = Field(
        default=30 * 86_400.0,
        gt=0,
        le=_CENTURY_S,
        description="the log of an Airflow task is kept so long after its end",
    )
    celery_threshold_bytes: int = Field(
        default=64 * 1024, ge=0, description="larger arguments or results of a task are kept as a blob"
    )
    broker_url: str | None = Field(default=None, description="Celery broker; absent: the embedded one")
    staging_roots: tuple[Path, ...] = Field(
        default=(), description='workers read staged files only below these, as JSON: ["/shared"]; none: any'
    )
    redelivery_s: float = Field(
        default=300.0, gt=0, description="a worker's task is given to another when it takes longer than this"
    )
    worker_metrics_port: int = Field(
        default=0, ge=0, le=65_535, description="a Celery worker shows Prometheus its figures there; 0: none"
    )
    worker_metrics_host: str = Field(
        default="127.0.0.1", description="whose address that is; 0.0.0.0: whoever reaches the machine"
    )
    failpoints: str = Field(default="", description="points to crash at, for tests")

    s3_endpoint_url: str | None = Field(default=None, description="absent: AWS_ENDPOINT_URL, else AWS")
    s3_region: str | None = Field(default=None, description="absent: AWS_REGION, else us-east-1")
    s3_profile: str | None = Field(default=None, description="a profile of the AWS configuration files")
    s3_path_style: bool | None = Field(
        default=None, description="absent: path style exactly when an endpoint is given"
    )
    s3_timeout_s: float = Field(default=30.0, gt=0, description="for one answer, after which it is unknown")
    s3_max_attempts: int = Field(default=5, ge=1, description="tries of a call that may be repeated")
    s3_lean: bool = Field(
        default=True, description="spare most of boto3's work in calls by the thousand; false: boto3 alone"
    )
    s3_storage_class: str | None = Field(default=None, description="of data files, e.g. STANDARD_IA")
    s3_sse_kms_key_id: str | None = Field(default=None, description="encrypt with this KMS key")

    committer: str | None = Field(default=None, description="where a job names none and no prefix does")
    committers: dict[str, str] = Field(
        default_factory=dict,
        description='by destination prefix, as JSON: {"s3://lake/": "magic", "file:///data": "file-v1"}',
    )

    part_bytes: int = Field(default=16 * MIB, ge=5 * MIB, le=5 * 1024 * MIB, description="of an upload")
    parallelism: int = Field(default=16, ge=1, le=256, description="calls in flight in one process")

    lease_renew_s: float = Field(default=10.0, gt=0, description="job leases are renewed this often")
    lease_soft_s: float = Field(
        default=30.0, gt=0, description="a job lease without a renewal for so long is shown as overdue"
    )
    lease_hard_s: float = Field(
        default=120.0, gt=0, description="a job lease without a renewal for so long has lapsed"
    )
    commit_window_s: float = Field(
        default=10.0, gt=0, description="the lease's greatest age at the moment of the decision"
    )
    park_timeout_s: float = Field(
        default=86_400.0, gt=0, description="a job between two Airflow tasks is left alone this long"
    )
    recovery_minutes: float = Field(
        default=5.0, gt=0, description="between two runs of the DAG that recovers what drivers left"
    )
    longest_job_s: float = Field(
        default=7 * 86_400.0, gt=0, description="a bucket that aborts open uploads earlier draws a warning"
    )
    orphan_age_s: float = Field(default=86_400.0, gt=0, description="age of what has no owner")
    tombstone_s: float = Field(
        default=30 * 86_400.0, gt=0, description="markers of ended jobs stay this long"
    )

    storage_price_gb_month: float = Field(
        default=0.023, ge=0, description="USD for 2^30 bytes a month, as S3 Standard's published price"
    )

    @model_validator(mode="before")
    @classmethod
    def _take_former_names(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Take a value that was given under a name from before, with a warning."""
        if given.get(_FORMER_INTERVAL) is None:
            return given
        if "retention_interval_s" in given:
            advice = "LOCKGATE_RETENTION_INTERVAL_S is set, too, and counts"
        else:
            given = {**given, "retention_interval_s": given[_FORMER_INTERVAL]}
            advice = (
                "set LOCKGATE_RETENTION_INTERVAL_S instead; an unreferenced blob lives one to two of these, "
                "so half the value keeps the delay that you had"
            )
        warnings.warn(
            f"LOCKGATE_{_FORMER_INTERVAL.upper()} is deprecated: {advice}", FutureWarning, stacklevel=2
        )
        return given

    @field_validator("airflow_scope")
    @classmethod
    def _scope_is_a_name(cls, given: str) -> str:
        """Refuse a scope that the owner of a reference could not carry as it is."""
        if not _SCOPE.fullmatch(given):
            raise ValueError(
                f"{given!r} is no scope: at most 60 letters, digits, '.', '_' and '-', such as prod-eu"
            )
        return given

    @model_validator(mode="after")
    def _limits_follow_each_other(self) -> Self:
        """Refuse limits by which a driver could decide after its lease had lapsed, or never hold one."""
        for name in ("lease_renew_s", "commit_window_s"):
            if getattr(self, name) >= self.lease_hard_s:
                raise ValueError(
                    f"LOCKGATE_{name.upper()} is {getattr(self, name):g} and LOCKGATE_LEASE_HARD_S "
                    f"{self.lease_hard_s:g}: a lease would lapse first; make the former the smaller one"
                )
        return self

    @property
    def has_journal(self) -> bool:
        """Whether there is one: `journal_url` is not `none`."""
        return self.journal_url != "none"

    @property
    def home_dir(self) -> Path:
        """`home` with `~` expanded."""
        return self.home.expanduser()


def load_settings() -> Settings:
    """Read the environment.

    Raises:
        InvalidInputError: A variable has a value that cannot be; the message names each.
    """
    try:
        return Settings()
    except ValidationError as error:
        faults = "; ".join(
            f"LOCKGATE_{str(e['loc'][0]).upper()}: {e['msg']}" if e["loc"] else e["msg"]
            for e in error.errors()
        )
        raise InvalidInputError(f"settings: {faults}") from None
    except SettingsError as error:
        raise InvalidInputError(f"settings: {error}; its value must be JSON") from None
