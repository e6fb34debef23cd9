"""All settings: their names, defaults and limits, and how they are read from the environment."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args, get_origin

from msgspec import Meta, MsgspecError, Struct, structs

from lockgate.storage_core.decoding import convert, decode_json
from lockgate.storage_core.errors import InvalidInputError

MIB: Final = 1024 * 1024
NEAR_CALLS: Final = 16
FAR_CALLS: Final = 128

_PREFIX: Final = "LOCKGATE_"
_CENTURY_S: Final = 100 * 365 * 86_400.0
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_JOURNAL_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,59}")
_NOT_READ: Final = ("is_one_journal", "s3_credentials")
_INTERVALS: Final = ("recovery_minutes", "retention_interval_s")

# Each type of a setting with limits, with the words of an error for what is allowed.
Flag = Annotated[bool, Meta(description="true or false")]
Count = Annotated[int, Meta(ge=1, description="a number, at least 1")]
Size = Annotated[int, Meta(ge=0, description="a number of bytes or files, at least 0")]
Wait = Annotated[float, Meta(ge=0, le=_CENTURY_S, description="a number, at least 0")]
Seconds = Annotated[float, Meta(gt=0, le=_CENTURY_S, description="seconds, above 0 and at most a century")]
Paths = Annotated[tuple[Path, ...], Meta(description='JSON, such as ["/one", "/another"]')]
Texts = Annotated[tuple[str, ...], Meta(description='JSON, such as ["one", "another"]')]


class NamedJournal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another journal, as of a satellite: its settings in `journals`.

    Attributes:
        url: URL of its database; empty: SQLite below home, in `journals/NAME`.
        observers: Hot standbys that take its reads.
        checkpoint_url: Store of its checkpoints; empty: below home.
    """

    url: str = ""
    observers: tuple[str, ...] = ()
    checkpoint_url: str = ""


Journals = Annotated[
    dict[str, NamedJournal],
    Meta(
        description='JSON, such as {"logs": {"url": "postgresql://…", "observers": [], "checkpoint_url": ""}}'
    ),
]


class Settings(Struct, frozen=True, kw_only=True):
    """All settings of Lockgate. `load_settings` reads each from the environment variable `LOCKGATE_<NAME>`.

    S3 credentials, `AWS_ENDPOINT_URL`, `AWS_REGION` and `AWS_PROFILE` are configured as for every AWS tool.
    `msgspec.structs.replace` makes a copy with changes. An invalid value raises `InvalidInputError`.
    """

    home: Path = Path("~/.lockgate")
    """Folder of the embedded journal and broker, and of staging."""

    journal_url: str | None = None
    """URL: postgresql://user@host/database or sqlite:////path; None: SQLite below home; "none": no
    journal, so leases are heartbeats in each job's folder, and there is no registry of jobs."""

    journal: str = "main"
    """Name of the journal in its database."""

    journals: Journals = {}
    """More journals by name, as of satellites: {"logs": {"url": "postgresql://user@host/logs"}}, with the
    same name in its database; `observers` and `checkpoint_url` may be given, too."""

    satellite_fallback: Flag = False
    """While a satellite is down, make new files in the default journal: for unique names only, as of logs."""

    observer_urls: Texts = ()
    """Hot standbys that take the reads: ["postgresql://user@standby/db"]."""

    observer_wait_ms: Wait = 50.0
    """How long a read waits for an observer that is behind."""

    auto_msync_ms: Annotated[float, Meta(ge=-1, description="a number of milliseconds, at least -1")] = -1.0
    """-1: never; 0: before each read; n: after n ms without contact."""

    always_primary: Flag = False
    """No read goes to an observer."""

    checkpoint_url: str | None = None
    """Store of the journal's checkpoints; None: below home."""

    checkpoints_kept: Count = 5
    """Older checkpoints are deleted."""

    request_retention_s: Seconds = 7 * 86_400.0
    """How long request ids are kept; older requests are refused."""

    retention_interval_s: Seconds = 1_800.0
    """Unreferenced blobs live for one to two intervals."""

    blob_dir: Path | None = None
    """Local store of the blob server; None: blobs below home."""

    blob_store_url: str | None = None
    """HA store of blobs, e.g. s3://bucket/blobs; None: only the local store."""

    blob_server_url: str | None = None
    """URL of a blob server, `http(s)://host:port`; None: this process is the server."""

    blob_token_file: Path | None = None
    """File whose first line is the bearer token for the blob server."""

    blob_ca_file: Path | None = None
    """CA certificates for the blob server's certificate; None: the system's."""

    blob_timeout_s: Seconds = 300.0
    """Timeout of a blob server's response, including its HA copy."""

    blob_max_bytes: Count = 64 * 1024 * MIB
    """The blob server refuses larger blobs."""

    blob_server_idle_s: Seconds = 60.0
    """The blob server disconnects a client that stalls for this long."""

    blob_server_connections: Count = 1_000
    """Maximum number of connections to the blob server."""

    blob_cache_dir: Path | None = None
    """A machine's cache of blobs; None: blob-cache below home."""

    blob_cache_bytes: Annotated[int, Meta(ge=MIB, description="a number of bytes, at least 1048576")] = (
        10 * 1024 * MIB
    )
    """Size from which unreferenced blobs are evicted."""

    files_replicas: Count = 3
    """Members of a new block of an appendable file, if as many volumes answer."""

    files_safe_share: Annotated[float, Meta(ge=0, le=1, description="a number from 0 to 1")] = 0.999
    """Share of blocks with a reporting replica below which nothing is deleted or copied."""

    report_virtual_volumes: Count = 1
    """Slices in which a volume's replicas are compared with the journal: 10 for some millions of replicas."""

    report_slice_ms: Annotated[float, Meta(gt=0, le=60_000, description="milliseconds, above 0")] = 50.0
    """How long a slice of a report's entries may hold back other writers of the journal."""

    files_retention: Annotated[
        dict[str, Seconds], Meta(description='JSON, such as {"/logs/**": 7}: days by path pattern')
    ] = {}
    """Days after which the DAG retention deletes closed files, by path pattern: {"/logs/**": 7}."""

    job_log: Flag = True
    """Write an event log for each job with a journal: below home with SQLite; with PostgreSQL on registered
    volumes, else at the job's destination."""

    message_lapse_s: Seconds = 86_400.0
    """How long an unacknowledged message is kept."""

    xcom_threshold_bytes: Size = 64 * 1024
    """Larger XCom values are stored as blobs."""

    airflow_scope: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9._-]{0,60}\Z",
            description="at most 60 letters, digits, '.', '_' and '-', such as prod-eu",
        ),
    ] = ""
    """Distinguishes XCom values and task logs of several Airflow installations."""

    log_interval_s: Annotated[
        float, Meta(gt=0, le=86_400, description="seconds, above 0 and at most a day")
    ] = 10.0
    """Publication interval of a running Airflow task's log."""

    log_lapse_s: Seconds = 30 * 86_400.0
    """How long a finished Airflow task's log is kept."""

    celery_threshold_bytes: Size = 64 * 1024
    """Larger task arguments and results are stored as blobs."""

    broker_url: str | None = None
    """Celery broker; None: the embedded one."""

    broker_prefix: Annotated[
        str,
        Meta(
            pattern=r"^(\S*[:_.-])?\Z",
            description="empty, or text without spaces that ends in one of : _ . -",
        ),
    ] = "lockgate:"
    """Prefix of all keys in the broker and of results; it ends in one of : _ . - or is empty."""

    staging_roots: Paths = ()
    """Directories of staged files for workers: ["/shared"]; empty: any."""

    trigger_sources: Texts = ()
    """What the form of a DAG may read: ["s3://raw", "/data"]; empty: what it may write."""

    trigger_destinations: Texts = ()
    """What the form of a DAG may write; empty: LOCKGATE_DESTINATIONS."""

    trigger_libraries: Texts = ()
    """Folders from which the form of a DAG may upload libraries; empty: none."""

    trigger_transforms: Texts = ()
    """Functions that the form of a DAG may name: ["mypackage.sales:*"]; empty: none."""

    trigger_spark: Texts = (
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
    )
    """Spark's settings that the form of a DAG may give; default: the sizes of a local Spark."""

    spark_environment: Texts = ()
    """More variables that Spark processes of Airflow's tasks get: ["GOOGLE_*"]."""

    redelivery_s: Seconds = 300.0
    """A task that takes longer than this is given to another worker."""

    worker_metrics_port: Annotated[int, Meta(ge=0, le=65_535, description="a port, or 0")] = 0
    """Port of a Celery worker's metrics for Prometheus; 0: none."""

    worker_metrics_host: str = "127.0.0.1"
    """Address to bind for the metrics; 0.0.0.0: all interfaces."""

    failpoints: str = ""
    """Failpoints to arm, for tests."""

    docs_url: Annotated[str, Meta(pattern="^https?://", description="an address, https://…")] | None = None
    """Address of a copy of the documentation, to whose runbook pages link; None: no links."""

    s3_endpoint_url: str | None = None
    """None: AWS_ENDPOINT_URL, else AWS."""

    s3_region: str | None = None
    """None: AWS_REGION, else us-east-1."""

    s3_profile: str | None = None
    """Profile in the AWS configuration files."""

    s3_anonymous: Flag = False
    """Send no credentials, for public buckets."""

    s3_path_style: Flag | None = None
    """None: path style only if an endpoint is set."""

    s3_timeout_s: Seconds = 30.0
    """Timeout of one response."""

    s3_max_attempts: Count = 5
    """Attempts of a call that may be retried."""

    s3_client: Annotated[Literal["crt", "boto3"], Meta(description="crt or boto3")] = "crt"
    """Sends frequent calls: AWS CRT where it is installed, or boto3."""

    s3_storage_class: str | None = None
    """Storage class of data, e.g. STANDARD_IA."""

    s3_sse_kms_key_id: str | None = None
    """KMS key for encryption."""

    s3_sse: Annotated[
        Literal["AES256", "aws:kms", "aws:kms:dsse"] | None,
        Meta(description="AES256, aws:kms or aws:kms:dsse"),
    ] = None
    """Encryption that a bucket's policy demands; None: aws:kms with a KMS key, else the bucket's default."""

    s3_acl: Annotated[
        Literal[
            "authenticated-read",
            "aws-exec-read",
            "bucket-owner-full-control",
            "bucket-owner-read",
            "private",
            "public-read",
            "public-read-write",
        ]
        | None,
        Meta(description="a canned ACL, such as bucket-owner-full-control"),
    ] = None
    """Canned ACL of new objects, e.g. bucket-owner-full-control."""

    s3_equal_parts: Flag = False
    """Never enlarge the parts of an upload on its way, for stores that want them equal (Cloudflare R2)."""

    accept_unsafe_store: Flag = False
    """Set jobs up also where the probe saw a listing or an abort that a commit cannot rely on."""

    spark_s3_jars: Path | None = None
    """Folder with hadoop-aws of Spark's Hadoop version and its dependencies, for Spark's S3 sources; None:
    fetched from Maven Central."""

    committer: str | None = None
    """Committer if neither the job nor a prefix determines one."""

    committers: Annotated[dict[str, str], Meta(description='JSON, such as {"s3://lake/": "magic"}')] = {}
    """Committers by destination prefix: {"s3://lake/": "magic", "file:///data": "file-v1"}."""

    part_bytes: Annotated[
        int,
        Meta(ge=5 * MIB, le=5 * 1024 * MIB, description="bytes, from 5242880 (5 MiB) to 5368709120 (5 GiB)"),
    ] = 16 * MIB
    """Part size of an upload."""

    parallelism: Annotated[int, Meta(ge=1, le=256, description="a number from 1 to 256")] | None = None
    """Maximum number of concurrent calls of a process; None: `NEAR_CALLS`, and `FAR_CALLS` short ones to a
    store that is far away."""

    commit_shard_files: Size = 5_000
    """The Airflow operator lets workers complete the uploads of a job with more files."""

    lease_renew_s: Seconds = 10.0
    """Renewal interval of job leases."""

    lease_soft_s: Seconds = 30.0
    """A job lease without renewal for this long is overdue."""

    lease_hard_s: Seconds = 120.0
    """A job lease without renewal for this long has lapsed."""

    commit_window_s: Seconds = 10.0
    """Maximum age of the lease at the moment of the decision."""

    suspend_timeout_s: Seconds = 86_400.0
    """How long a job may wait between two Airflow tasks."""

    recovery_minutes: Annotated[
        float, Meta(gt=0, le=_CENTURY_S / 60, description="a number of minutes above 0")
    ] = 5.0
    """Interval of the DAG job_recovery."""

    longest_job_s: Seconds = 7 * 86_400.0
    """Bucket rules that abort uploads earlier cause a warning."""

    orphan_age_s: Seconds = 86_400.0
    """How long an upload must be without owner until it is aborted."""

    tombstone_s: Seconds = 30 * 86_400.0
    """How long folders of ended jobs are kept; beyond the newest 1,000, only `orphan_age_s`."""

    storage_price_gb_month: Annotated[float, Meta(ge=0, description="a price, at least 0")] = 0.023
    """USD for 2^30 bytes a month; default: list price of S3 Standard."""

    s3_credentials: Callable[[], Any] | None = None
    """Returns botocore's credentials for S3, which refresh themselves; None: those of boto3's chain. Not read
    from the environment."""

    is_one_journal: Flag = False
    """Made by `for_journal`: no satellite is read with the journal. Not read from the environment."""

    def __post_init__(self) -> None:
        """Refuse values that are not allowed, and leases with which a driver could decide too late."""
        for name, field in _fields().items():
            value = getattr(self, name)
            try:
                if value != field.default:
                    convert(value, field.type)
            except MsgspecError:
                raise InvalidInputError(f"settings: {_problem(name, value)}") from None
        for name in ("lease_renew_s", "commit_window_s"):
            if getattr(self, name) >= self.lease_hard_s:
                raise InvalidInputError(
                    f"settings: {_variable(name)} is {getattr(self, name):g} and LOCKGATE_LEASE_HARD_S "
                    f"{self.lease_hard_s:g}: a lease would lapse first; make the first one smaller"
                )
        for name in self.journals:
            if name == self.journal or not _JOURNAL_NAME.fullmatch(name):
                why = (
                    "is that of LOCKGATE_JOURNAL"
                    if name == self.journal
                    else "has other characters than a-z0-9_-"
                )
                raise InvalidInputError(
                    f"settings: LOCKGATE_JOURNALS: the name {name!r} {why}; use another name"
                )

    def for_journal(self, name: str) -> Self:
        """Return the settings for which a named journal is the only one.

        What is below home, such as the volume of this machine, is in `journals/NAME` there.

        Raises:
            InvalidInputError: `journals` does not have it.
        """
        if name == self.journal:
            return structs.replace(self, journals={}, is_one_journal=True)
        found = self.journals.get(name)
        if found is None:
            known = ", ".join((self.journal, *sorted(self.journals)))
            raise InvalidInputError(
                f"no journal {name!r} in LOCKGATE_JOURNALS; nothing was done; known are: {known}"
            )
        return structs.replace(
            self,
            home=self.home / "journals" / name,
            journal=name,
            journals={},
            is_one_journal=True,
            journal_url=found.url or None,
            observer_urls=found.observers,
            checkpoint_url=found.checkpoint_url or None,
        )

    def each_journal(self) -> Iterator[Self]:
        """Yield the settings of the default journal, and then those of each named one."""
        for name in (self.journal, *sorted(self.journals)):
            yield self.for_journal(name)

    def with_s3_credentials(self, credentials: Callable[[], Any] | None, **changes: Any) -> Self:
        """Return a copy with these credentials, and without a profile.

        Args:
            credentials: Returns botocore's credentials, or None if there are none; None: boto3's chain.
            changes: Other settings to change.
        """
        given = {"s3_profile": None, "s3_anonymous": False, "s3_credentials": credentials, **changes}
        return structs.replace(self, **given)

    @property
    def has_journal(self) -> bool:
        """Whether a journal is configured: `journal_url` is not `none`."""
        return self.journal_url != "none"

    @property
    def near_calls(self) -> int:
        """Maximum number of concurrent calls."""
        return self.parallelism or NEAR_CALLS

    @property
    def far_calls(self) -> int:
        """Maximum number of concurrent short calls to a store that is far away."""
        return self.parallelism or FAR_CALLS

    @property
    def home_dir(self) -> Path:
        """`home` with `~` expanded."""
        return self.home.expanduser()


_IN_EFFECT: Final[ContextVar[Settings | None]] = ContextVar("lockgate-settings", default=None)


@contextmanager
def settings_in_effect(settings: Settings | None) -> Iterator[None]:
    """Make `load_settings` return these settings within the block, in this context only; None: no change."""
    token = _IN_EFFECT.set(settings or _IN_EFFECT.get())
    try:
        yield
    finally:
        _IN_EFFECT.reset(token)


def given_settings() -> Settings | None:
    """Return the settings of the enclosing `settings_in_effect`; None if there is none."""
    return _IN_EFFECT.get()


def load_settings(**changes: Any) -> Settings:
    """Return the settings of the enclosing `settings_in_effect`, else read them from the environment.

    Args:
        changes: Settings to change, by name.

    Raises:
        InvalidInputError: Variables have invalid values; the message contains each.
    """
    return structs.replace(given_settings() or _read(_fields()), **changes)


def load_intervals() -> Settings:
    """Return settings of which only the intervals of DAGs are read: an error in another must not stop them.

    Raises:
        InvalidInputError: An interval is invalid.
    """
    return _read(_INTERVALS)


def _read(names: Collection[str]) -> Settings:
    """Read settings from the environment; raise with each variable that has an invalid value."""
    given, problems = {}, []
    for variable, text in os.environ.items():
        name = variable.removeprefix(_PREFIX).lower()
        if variable == _variable(name) and name in names:
            try:
                given[name] = _parsed(text, _fields()[name].type)
            except MsgspecError:
                problems.append(_problem(name, text))
            except InvalidInputError as error:
                problems.append(f"{variable}: {error}")
    if problems:
        raise InvalidInputError(f"settings: {'; '.join(problems)}")
    return Settings(**given)


@cache
def _fields() -> Mapping[str, structs.FieldInfo]:
    """Return all settings of the environment by name."""
    return {field.name: field for field in structs.fields(Settings) if field.name not in _NOT_READ}


def _variable(name: str) -> str:
    return f"{_PREFIX}{name.upper()}"


def _parsed(text: str, kind: Any) -> Any:
    """Return the value of a variable; raise a `MsgspecError` if it is none of this kind."""
    value = decode_json(text, object) if _is_json(kind) else text
    if isinstance(value, dict):
        json.loads(text, object_pairs_hook=_refuse_twice)  # which keeps what msgspec drops
    return convert(value, kind, strict=False, dec_hook=lambda _, path: _path(path))


def _refuse_twice(pairs: list[tuple[str, Any]]) -> None:
    twice = sorted(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    if twice:
        raise InvalidInputError(f"{', '.join(twice)} stands there twice; name each once")


def _path(text: str) -> Path:
    """Return a path; a URL is refused, because it would be a folder of the current directory."""
    if _URL.match(text):
        raise ValueError(text)
    return Path(text)


def _is_json(kind: Any) -> bool:
    return bool({tuple, dict} & {get_origin(part) for part in get_args(kind)})


def _problem(name: str, value: object) -> str:
    """Return what is wrong with a value, which is shown unless it may hold a password."""
    kind = _fields()[name].type
    metadata = (getattr(part, "__metadata__", ()) for part in (kind, *get_args(kind)))
    default = "a path, not a URL" if Path in {kind, *get_args(kind)} else f"of type {kind}"
    expected = next((limit.description for limits in metadata for limit in limits), default)
    shown = "cannot be read" if _is_json(kind) else f"is {value!r}"
    return f"{_variable(name)} {shown}: it must be {expected}"
