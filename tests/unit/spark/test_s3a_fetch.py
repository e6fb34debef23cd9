"""The fetch of Spark's jars for S3: it is announced with its size, reports progress, and is done once."""

from __future__ import annotations

import threading
from pathlib import Path

from lockgate.storage_core.spark.s3a import hadoop_version
from lockgate.storage_core.spark.s3a_fetch import announced, is_fetched


def test_a_fetch_says_its_size_the_command_that_does_it_before_and_how_far_it_is(tmp_path: Path) -> None:
    jar = tmp_path / "cache" / "software.amazon.awssdk" / "bundle" / "jars" / "bundle-2.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(bytes(3_000_000))
    said, reported = list[str](), threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 3:
            reported.set()

    with announced(say, tmp_path, every_s=0.001):
        assert reported.wait(30)

    assert f"fetching hadoop-aws {hadoop_version()}" in said[0]
    assert "about 690 MB" in said[0]
    assert "lockgate spark-jars fetch" in said[0]
    assert said[1] == said[2] == "fetched 3 of about 690 MB"


def test_jars_that_are_there_are_not_announced(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / f"org.apache.hadoop_hadoop-aws-{hadoop_version()}.jar").touch()
    said = list[str]()

    with announced(said.append, tmp_path, every_s=0.001):
        pass

    assert is_fetched(tmp_path)
    assert said == []
