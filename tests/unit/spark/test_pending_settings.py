"""Settings of the uploads that Spark's own writer opens."""

from __future__ import annotations

from lockgate.storage_core.settings import Settings
from lockgate.storage_core.spark.pending_write import _s3_settings


def test_uploads_have_the_encryption_class_and_acl_of_lockgates_settings() -> None:
    given = _s3_settings(
        Settings(
            s3_sse_kms_key_id="key-1",
            s3_acl="bucket-owner-full-control",
            s3_storage_class="STANDARD_IA",
            part_bytes=6 * 1024 * 1024,
        ),
        "s3://lake/sales",
    )
    assert {name.removeprefix("fs.s3a."): value for name, value in given.items()}.items() >= {
        "encryption.algorithm": "SSE-KMS",
        "encryption.key": "key-1",
        "acl.default": "BucketOwnerFullControl",
        "create.storage.class": "STANDARD_IA",
        "multipart.size": str(6 * 1024 * 1024),
        "bucket.lake.multipart.size": str(6 * 1024 * 1024),
    }.items()
    assert _s3_settings(Settings(s3_sse="AES256"), "s3://lake")["fs.s3a.encryption.algorithm"] == "AES256"
    assert "fs.s3a.encryption.algorithm" not in _s3_settings(Settings(), "s3://lake")
