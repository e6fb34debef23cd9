"""Give a Spark session Hadoop's S3 file system, S3A, for `s3://` and `s3a://` sources.

Spark from PyPI has no S3 file system: hadoop-aws of its Hadoop version is fetched from a Maven repository, or
read from a folder. Endpoint and credentials are those of Lockgate's stores. They are set after the session
has started, because Spark shows its first settings on the JVM's command line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark

from lockgate.storage_core.errors import MissingPartError
from lockgate.storage_core.stores.s3.clients import endpoint_of, region_of
from lockgate.storage_core.stores.s3.credentials import FixedCredentials

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockgate.storage_core.settings import Settings

ENDPOINT: Final = "fs.s3a.endpoint"
_LISTS: Final = ("spark.jars", "spark.jars.packages")
_PROVIDERS: Final = "org.apache.hadoop.fs.s3a"


def merged_config(*configs: Mapping[str, str]) -> dict[str, str]:
    """Return all settings; a later one wins, but lists of jars and packages are joined."""
    merged: dict[str, str] = {}
    for config in configs:
        for name, value in config.items():
            parts = [merged[name], value] if name in _LISTS and merged.get(name) else [value]
            merged[name] = ",".join(parts)
    return merged


def s3a_jars(settings: Settings) -> dict[str, str]:
    """Return the settings with which a new session gets hadoop-aws.

    Raises:
        MissingPartError: The folder of the settings has no jars, or Spark's Hadoop version is not known.
    """
    folder = settings.spark_s3_jars
    if folder is None:
        return {"spark.jars.packages": f"org.apache.hadoop:hadoop-aws:{hadoop_version()}"}
    jars = sorted(str(jar.absolute()) for jar in folder.glob("*.jar"))
    if not any("hadoop-aws" in jar for jar in jars):
        raise MissingPartError(
            f"LOCKGATE_SPARK_S3_JARS={folder}: there is no hadoop-aws jar; nothing was started; put "
            f"hadoop-aws {hadoop_version()} and its dependencies there, or unset it to fetch them"
        )
    return {"spark.jars": ",".join(jars)}


def hadoop_version() -> str:
    """Return the version of Hadoop that this Spark contains.

    Raises:
        MissingPartError: Spark's jars are not where Spark is installed.
    """
    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent, "jars")
    for jar in jars.glob("hadoop-client-api-*.jar"):
        if found := re.fullmatch(r"hadoop-client-api-(.+)\.jar", jar.name):
            return found[1]
    raise MissingPartError(
        f"Spark in {jars.parent} has no hadoop-client-api jar, so its Hadoop version is not known; nothing "
        "was started; name the jars for S3 in LOCKGATE_SPARK_S3_JARS"
    )


def configure_s3a(spark: SparkSession, settings: Settings) -> None:
    """Make a session read `s3://` and `s3a://` with the endpoint and the credentials of the settings."""
    for name, value in s3a_config(settings).items():
        spark.conf.set(name, value)


def s3a_config(settings: Settings) -> dict[str, str]:
    """Return Hadoop's settings. Spark masks those that are secret, by their names, where it shows settings.

    Without credentials in the settings, S3A looks for them itself: in AWS's environment variables and in the
    machine's role.
    """
    endpoint = endpoint_of(settings)
    path_style = endpoint is not None if settings.s3_path_style is None else settings.s3_path_style
    config = {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.endpoint.region": region_of(settings),
        "fs.s3a.path.style.access": str(path_style).lower(),
    }
    if endpoint is not None:
        config[ENDPOINT] = endpoint
    return {**config, **_credentials(settings)}


def _credentials(settings: Settings) -> dict[str, str]:
    if settings.s3_anonymous:
        return {"fs.s3a.aws.credentials.provider": f"{_PROVIDERS}.AnonymousAWSCredentialsProvider"}
    fixed = FixedCredentials.of(settings)
    if fixed is None:
        return {}
    config = {"fs.s3a.access.key": fixed.access_key, "fs.s3a.secret.key": fixed.secret_key}
    if fixed.token is None:
        return {**config, "fs.s3a.aws.credentials.provider": f"{_PROVIDERS}.SimpleAWSCredentialsProvider"}
    provider = f"{_PROVIDERS}.TemporaryAWSCredentialsProvider"
    return {**config, "fs.s3a.session.token": fixed.token, "fs.s3a.aws.credentials.provider": provider}
