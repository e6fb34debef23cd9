package lockgate;

import java.io.*;
import java.nio.*;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.BiFunction;
import java.util.stream.Collectors;
import org.apache.hadoop.fs.*;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.fs.s3a.commit.files.*;
import org.apache.hadoop.fs.s3a.commit.magic.InMemoryMagicCommitTracker;
import org.apache.hadoop.util.Progressable;
import org.apache.parquet.format.*;

/**
 * S3A, whose uploads below a magic path stay open, and which keeps the footers of Parquet files until their task ends.
 *
 * <p>As a function of a task attempt and its files it returns for each: bytes, upload id, ETags, and the footer in
 * base64, with tabs between them. Without files it aborts the attempt's uploads.
 */
public final class S3Uploads extends S3AFileSystem implements BiFunction<String, List<String>, List<String>> {
  private final Map<Path, byte[]> footers = new ConcurrentHashMap<>();

  @Override public FSDataOutputStream create(Path path, FsPermission mode, boolean overwrite, int buffer, short copies,
      long block, Progressable progress) throws IOException {
    FSDataOutputStream out = super.create(path, mode, overwrite, buffer, copies, block, progress);
    return path.getName().endsWith(".parquet") ? new FSDataOutputStream(new Tail(out, path), null) : out;
  }

  @Override public List<String> apply(String attempt, List<String> files) {
    List<Path> paths = InMemoryMagicCommitTracker.getTaskAttemptIdToPath().remove(attempt);
    if (paths != null) paths.forEach(InMemoryMagicCommitTracker.getPathToBytesWritten()::remove);
    List<SinglePendingCommit> uploads = InMemoryMagicCommitTracker.getTaskAttemptIdToMpuMetadata().remove(attempt);
    Map<String, SinglePendingCommit> closed = new HashMap<>();
    if (uploads != null) uploads.forEach(upload -> closed.put(upload.getUri(), upload));
    List<String> lines = new ArrayList<>();
    if (files == null) closed.values().forEach(this::abort);
    else for (String file : files) lines.add(line(file, closed));
    return lines;
  }

  private String line(String file, Map<String, SinglePendingCommit> closed) {
    Path path = new Path(file);
    SinglePendingCommit upload = closed.get(path.toUri().toString());
    if (upload == null) throw new IllegalStateException("S3A keeps no open upload of " + file);
    byte[] footer = footers.remove(path);
    return String.join("\t", Long.toString(upload.getLength()), upload.getUploadId(),
        upload.getEtags().stream().map(UploadEtag::getEtag).collect(Collectors.joining(",")),
        footer == null ? "" : Base64.getEncoder().encodeToString(footer));
  }

  private void abort(SinglePendingCommit upload) {
    footers.remove(new Path(upload.getUri()));
    try {
      getWriteOperationHelper().abortMultipartCommit(upload.getDestinationKey(), upload.getUploadId());
    } catch (IOException left) {
      // The end of its job, or a sweep, finds it by its name.
    }
  }

  /** Keeps the last bytes of a Parquet file, and of them the footer when it is closed. */
  private final class Tail extends FilterOutputStream {
    private static final int MOST = 1 << 20;
    private static final int MARKS = 8;
    private static final int LONGEST = 256;
    private final Path path;
    private byte[] kept = new byte[1 << 16];
    private int size;

    private Tail(OutputStream out, Path path) {
      super(out);
      this.path = path;
    }

    @Override public void write(int value) throws IOException {
      write(new byte[] {(byte) value}, 0, 1);
    }

    @Override public void write(byte[] data, int start, int length) throws IOException {
      out.write(data, start, length);
      int taken = Math.min(length, MOST);
      if (size + taken > kept.length) {
        int left = Math.min(size, MOST - taken);
        byte[] more = kept.length < 2 * MOST ? new byte[Math.min(2 * (size + taken), 2 * MOST)] : kept;
        System.arraycopy(kept, size - left, more, 0, left);
        kept = more;
        size = left;
      }
      System.arraycopy(data, start + length - taken, kept, size, taken);
      size += taken;
    }

    @Override public void close() throws IOException {
      out.close();
      byte[] footer = kept == null ? null : footer();
      if (footer != null) footers.put(path, footer);
      kept = null;
    }

    /** Return the footer with no more than Lockgate records of it: rows, types, counts and short bounds. */
    private byte[] footer() {
      if (size < MARKS || !new String(kept, size - 4, 4).equals("PAR1")) return null;
      int length = ByteBuffer.wrap(kept, size - MARKS, 4).order(ByteOrder.LITTLE_ENDIAN).getInt();
      if (length < 0 || length > size - MARKS) return null;
      try {
        FileMetaData found = Util.readFileMetaData(new ByteArrayInputStream(kept, size - MARKS - length, length));
        found.unsetKey_value_metadata();
        found.unsetColumn_orders();
        for (RowGroup group : found.getRow_groups()) group.getColumns().forEach(this::reduce);
        ByteArrayOutputStream reduced = new ByteArrayOutputStream();
        Util.writeFileMetaData(found, reduced);
        return reduced.toByteArray();
      } catch (IOException unreadable) {
        return null;
      }
    }

    private void reduce(ColumnChunk chunk) {
      chunk.unsetEncrypted_column_metadata();
      chunk.unsetCrypto_metadata();
      ColumnMetaData column = chunk.getMeta_data();
      if (column == null) return;
      column.setEncodings(List.of()).setPath_in_schema(List.of());
      column.unsetEncoding_stats();
      column.unsetSize_statistics();
      org.apache.parquet.format.Statistics bounds = column.getStatistics();
      if (bounds == null) return;
      bounds.unsetMin();
      bounds.unsetMax();
      if (bounds.isSetMin_value() && bounds.getMin_value().length > LONGEST) bounds.unsetMin_value();
      if (bounds.isSetMax_value() && bounds.getMax_value().length > LONGEST) bounds.unsetMax_value();
    }
  }
}
