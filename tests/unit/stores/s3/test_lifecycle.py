"""The operator is warned if bucket rules abort uploads of running jobs, or never abort abandoned ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from lockgate import open_job
from lockgate.storage_core.errors import AccessDeniedError
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import open_store
from lockgate.storage_core.stores.probe import probe
from lockgate.storage_core.stores.s3.lifecycle import expiry_problem, rule_problem
from lockgate.storage_core.stores.s3.store import S3Store
from tests.support.cli import Run
from tests.support.s3.moto_server import mocked_aws

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

DAY_S = 86_400.0
WEEK_S = 7 * DAY_S


def rule(days: int, status: str = "Enabled", **where: Any) -> dict[str, Any]:
    return {
        "ID": f"after-{days}",
        "Status": status,
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": days},
        **(where or {"Filter": {"Prefix": ""}}),
    }


@pytest.mark.parametrize(
    "rules",
    [
        [rule(7)],
        [rule(7, Filter={})],
        [rule(7, Prefix="lake/")],
        [rule(8, Filter={"Prefix": "lake/sales"})],
        [rule(7, Filter={"And": {"Prefix": "lake/sales/", "ObjectSizeGreaterThan": 1}})],
        [rule(7), rule(1, Filter={"Prefix": "lake/sales0/"})],
        [rule(7), rule(1, status="Disabled")],
        [{"Status": "Enabled", "Expiration": {"Days": 1}, "Filter": {}}, rule(30)],
    ],
)
def test_rules_that_leave_jobs_enough_time_and_cover_all_uploads_cause_no_warning(
    rules: list[dict[str, Any]],
) -> None:
    assert rule_problem(rules, "lake/sales/", longest_job_s=WEEK_S) == ""


@pytest.mark.parametrize(
    "rules",
    [
        [],
        [rule(7, status="Disabled")],
        [rule(7, Filter={"Prefix": "lake/returns/"})],
        [rule(7, Filter={"Prefix": "lake/sales/day=1/"})],
        [{"Status": "Enabled", "Expiration": {"Days": 1}, "Filter": {}}],
    ],
)
def test_uploads_not_covered_by_a_rule_are_reported_with_the_remedy(rules: list[dict[str, Any]]) -> None:
    doubt = rule_problem(rules, "lake/sales/", longest_job_s=WEEK_S)

    assert "applies to all uploads" in doubt
    assert doubt.endswith("add AbortIncompleteMultipartUpload after at least 7 days")


@pytest.mark.parametrize(
    "rules",
    [
        [rule(6)],
        [rule(7), rule(6)],
        [rule(6, Prefix="lake/")],
        [rule(30), rule(6, Filter={"Prefix": "lake/sales/day=1/"})],
    ],
)
def test_a_rule_that_aborts_uploads_of_a_running_job_is_reported(rules: list[dict[str, Any]]) -> None:
    doubt = rule_problem(rules, "lake/sales/", longest_job_s=WEEK_S)

    assert "aborts uploads after 6 days" in doubt
    assert "LOCKGATE_LONGEST_JOB_S" in doubt


def test_every_rule_applies_to_a_destination_that_is_the_whole_bucket() -> None:
    assert "after 1 day," in rule_problem([rule(9), rule(1, Prefix="tmp/")], "", longest_job_s=DAY_S + 1)


def test_a_rule_that_deletes_files_of_the_destination_is_reported() -> None:
    def expiring(**where: Any) -> dict[str, Any]:
        return {"Status": "Enabled", "Expiration": {"Days": 1}, **where}

    for rule in (expiring(Prefix="lake/"), expiring(Filter={"Prefix": "lake/sales/_lockgate/kept/"})):
        assert "deletes objects after 1 day: live" in expiry_problem(
            [rule], "lake/sales/", keeps_versions=False
        )
    tagged = {"And": {"Prefix": "", "Tags": [{"Key": "old", "Value": "yes"}]}}
    marker = {"Status": "Enabled", "Expiration": {"ExpiredObjectDeleteMarker": True}, "Filter": {}}
    for rule in (expiring(Prefix="lake/sales0/"), expiring(Filter=tagged), marker):
        assert expiry_problem([rule], "lake/sales/", keeps_versions=False) == ""


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Client]:
    """An empty bucket `lake`, without any rule."""
    import boto3

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with mocked_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="lake")
        yield client
        boto3.resource("s3", region_name="us-east-1").Bucket("lake").object_versions.delete()
        client.delete_bucket(Bucket="lake")
        client.close()


def set_rule(bucket: S3Client, days: int) -> None:
    bucket.put_bucket_lifecycle_configuration(Bucket="lake", LifecycleConfiguration={"Rules": [rule(days)]})


def test_a_probe_reads_the_rules_of_the_bucket(bucket: S3Client) -> None:
    store = open_store("s3://lake/sales", load_settings(s3_region="us-east-1"))

    def doubt() -> str:
        (found,) = [finding for finding in probe(store).findings if "lifecycle" in finding.name]
        assert found.ok is not bool(found.detail)
        return found.detail

    assert "no rule" in doubt()
    set_rule(bucket, 1)
    assert "after 1 day," in doubt()
    set_rule(bucket, 7)
    assert doubt() == ""


@pytest.mark.parametrize(("days", "warnings"), [(1, 1), (7, 0)])
def test_job_setup_warns_of_a_rule_that_aborts_uploads_of_a_running_job_and_continues(
    bucket: S3Client, caplog: pytest.LogCaptureFixture, days: int, warnings: int
) -> None:
    set_rule(bucket, days)
    settings = load_settings(s3_region="us-east-1", lease_renew_s=3600, lease_hard_s=7200)

    with open_job("s3://lake/sales", "sales", settings=settings) as job:
        job.commit()

    messages = [record.getMessage() for record in caplog.records if "lifecycle" in record.getMessage()]
    assert len(messages) == warnings
    assert all("s3://lake/sales" in line and "AbortIncompleteMultipartUpload" in line for line in messages)


def test_store_check_shows_such_a_rule_and_still_reports_the_store_as_usable(
    bucket: S3Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_rule(bucket, 1)
    monkeypatch.setenv("LOCKGATE_S3_REGION", "us-east-1")

    result = run("store", "check", "s3://lake/sales")

    assert (result.exit_code, "aborts uploads after 1 day" in result.stdout) == (0, True)
    assert "deleted all that was written there" in result.stdout
    assert "Contents" not in bucket.list_objects_v2(Bucket="lake")
    assert "Uploads" not in bucket.list_multipart_uploads(Bucket="lake")


def test_store_check_tells_of_versions_that_no_rule_ends(bucket: S3Client) -> None:
    store = open_store("s3://lake/sales", load_settings(s3_region="us-east-1"))

    def problem() -> str:
        (found,) = [found for found in probe(store, thorough=True).findings if "noncurrent" in found.name]
        return found.detail

    assert problem() == ""
    bucket.put_bucket_versioning(Bucket="lake", VersioningConfiguration={"Status": "Enabled"})
    assert problem().endswith("add NoncurrentVersionExpiration")
    ended = {
        "ID": "versions",
        "Status": "Enabled",
        "Filter": {"Prefix": ""},
        "NoncurrentVersionExpiration": {"NoncurrentDays": 30},
    }
    bucket.put_bucket_lifecycle_configuration(
        Bucket="lake",
        LifecycleConfiguration={"Rules": [ended]},  # type: ignore[list-item] # the types want all actions
    )
    assert problem() == ""


def test_rules_that_may_not_be_read_are_no_finding(
    bucket: S3Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def denied(_: S3Store) -> str:
        raise AccessDeniedError("s3:GetLifecycleConfiguration is missing")

    monkeypatch.setattr(S3Store, "upload_expiry_problem", denied)
    settings = load_settings(s3_region="us-east-1", lease_renew_s=3600, lease_hard_s=7200)

    (found,) = [
        finding
        for finding in probe(open_store("s3://lake/sales", settings)).findings
        if "lifecycle" in finding.name
    ]
    assert found.ok is None
    assert "s3:GetLifecycleConfiguration is missing" in found.detail
    with open_job("s3://lake/sales", "sales", settings=settings) as job:
        job.commit()
    assert "lifecycle" not in caplog.text
