package org.apache.hadoop.fs.s3a.commit.magic;

import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.commit.files.SinglePendingCommit;

public class InMemoryMagicCommitTracker {
  public static Map<String, List<SinglePendingCommit>> getTaskAttemptIdToMpuMetadata() {
    return null;
  }

  public static Map<Path, Long> getPathToBytesWritten() {
    return null;
  }

  public static Map<String, List<Path>> getTaskAttemptIdToPath() {
    return null;
  }
}
