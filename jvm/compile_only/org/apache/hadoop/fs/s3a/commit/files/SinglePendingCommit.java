package org.apache.hadoop.fs.s3a.commit.files;

public class SinglePendingCommit {
  public String getUri() {
    return null;
  }

  public String getUploadId() {
    return null;
  }

  public String getDestinationKey() {
    return null;
  }

  public long getLength() {
    return 0;
  }

  public java.util.List<UploadEtag> getEtags() {
    return null;
  }
}
