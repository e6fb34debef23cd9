package org.apache.hadoop.fs.s3a;

public class S3AFileSystem extends org.apache.hadoop.fs.FilterFileSystem {
  public WriteOperationHelper getWriteOperationHelper() {
    return null;
  }
}
