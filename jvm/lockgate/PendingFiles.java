package lockgate;

import java.io.*;
import java.lang.reflect.Method;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.security.MessageDigest;
import java.util.*;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.*;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.*;
import org.apache.hadoop.mapreduce.*;
import org.apache.spark.internal.io.*;
import org.apache.spark.sql.classic.*;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.util.QueryExecutionListener;
import scala.Option;
import scala.collection.immutable.Seq;

/**
 * Lets Spark's own writers stream into the pending files of a Lockgate job: uploads that stay open, or hidden files.
 *
 * <p>The driver writes the token of the uploads to the file {@code lockgate.spool}, and for each file of a task that
 * Spark accepts a line: path, bytes, and those of {@link S3Uploads}, with tabs between them. Messages of tasks hold
 * classes of the JDK only: an executor may have loaded this class by another class loader than the driver.
 */
public final class PendingFiles extends FileCommitProtocol implements Serializable {
  private static final long serialVersionUID = 1;
  private static final String TOKEN = UUID.randomUUID().toString().replace("-", "");
  private static final String TRACKER = "org.apache.hadoop.fs.s3a.commit.magic.InMemoryMagicCommitTracker";
  private static final String HEADERS = "client.s3.custom.headers";
  private static final String TOKEN_HEADER = "x-amz-meta-lockgate-token";
  private final String destination;
  private transient List<String> names;
  private transient List<String> files;
  private transient BufferedWriter spool;

  public PendingFiles(String jobId, String destination, boolean dynamic) {
    this.destination = destination;
  }

  /** Finds what a Spark lacks. No signature of its methods names a class of Spark, so any Spark can call them. */
  public static final class Fit {
    /** Return the first class or method that this Spark or Hadoop lacks, of those by which versions differ; or none. */
    public String lacks(boolean s3) {
      try {
        Dataset.class.getMethod("logicalPlan");
        SparkSession.class.getMethod("cloneSession");
        SparkSession.class.getMethod("observationManager");
        tryComplete();
        for (String name : s3 ? List.of("lockgate.S3Uploads", TRACKER) : List.<String>of()) {
          Class.forName(name, true, getClass().getClassLoader());
        }
        return "";
      } catch (ReflectiveOperationException | LinkageError error) {
        return error.toString();
      }
    }
  }

  /** Writes for Lockgate's Python. */
  public static final class Writer {
    /**
     * Write rows with Spark's own writer, in a copy of their session with more settings.
     *
     * @param root directory to write to; with the scheme {@code s3}, the destination.
     */
    public void write(Dataset<?> rows, Map<String, String> settings, String format, Map<String, String> options,
        List<String> folders, String root) throws Exception {
      Thread thread = Thread.currentThread();
      ClassLoader before = thread.getContextClassLoader();
      thread.setContextClassLoader(getClass().getClassLoader());
      try {
        SparkSession session = rows.sparkSession().cloneSession();
        session.listenerManager().register(new Observed(rows.sparkSession().observationManager()));
        settings.forEach((name, value) -> session.conf().set(name, value));
        session.conf().set("spark.sql.sources.commitProtocolClass", PendingFiles.class.getName());
        String place = root.startsWith("s3:") ? ownFileSystem(session, root) : root;
        Dataset.ofRows(session, rows.logicalPlan()).write().format(format).mode("append").options(options)
            .partitionBy(folders.toArray(new String[0])).save(place);
      } finally {
        thread.setContextClassLoader(before);
      }
    }

    /** Make a file system of the session's settings with the token; return a URL of S3 as its own. */
    private static String ownFileSystem(SparkSession session, String url) throws Exception {
      Configuration given = session.sessionState().newHadoopConf();
      String ofBucket = "fs.s3a.bucket." + url.split("/")[2] + ".";
      String kept = given.get(ofBucket + HEADERS) == null ? "fs.s3a." : ofBucket;
      List<String> headers = new ArrayList<>(List.of(TOKEN_HEADER + "=" + TOKEN));
      for (String header : given.getTrimmedStrings(kept + HEADERS)) {
        if (!header.toLowerCase(Locale.ROOT).startsWith(TOKEN_HEADER)) headers.add(header);
      }
      for (String start : List.of("fs.s3a.", ofBucket)) { // S3A takes what is set for a bucket before the rest
        session.conf().set(start + HEADERS, String.join(",", headers));
        session.conf().set(start + "committer.magic.enabled", "true");
        session.conf().set(start + "committer.magic.track.commits.in.memory.enabled", "true");
      }
      TreeMap<String, String> of = new TreeMap<>();
      session.sessionState().newHadoopConf().iterator().forEachRemaining(entry -> {
        if (entry.getKey().startsWith("fs.s3a.")) of.put(entry.getKey(), entry.getValue());
      });
      byte[] digest = MessageDigest.getInstance("SHA-256").digest(of.toString().getBytes(StandardCharsets.UTF_8));
      // Hadoop keeps a file system for the life of the process, by its scheme: that of other settings is another.
      String scheme = "lockgate-s3-" + HexFormat.of().formatHex(digest, 0, 6);
      session.conf().set("fs." + scheme + ".impl", "lockgate.S3Uploads");
      Configuration conf = session.sessionState().newHadoopConf();
      conf.setClassLoader(PendingFiles.class.getClassLoader()); // that of the driver's configuration may not know it
      new Path(scheme + url.substring(2)).getFileSystem(conf);
      return scheme + url.substring(2);
    }
  }

  /** Gives the metrics that a user observes to their session: Spark knows only that of the write. */
  private record Observed(ObservationManager manager) implements QueryExecutionListener {
    @Override public void onSuccess(String name, QueryExecution execution, long nanoseconds) {
      complete(execution);
    }

    @Override public void onFailure(String name, QueryExecution execution, Exception error) {
      complete(execution);
    }

    private void complete(QueryExecution execution) {
      try {
        tryComplete().invoke(manager, execution);
      } catch (ReflectiveOperationException error) {
        throw new IllegalStateException(error);
      }
    }
  }

  /** Return the method, which has a longer name before Spark 4.2. */
  private static Method tryComplete() throws NoSuchMethodException {
    for (Method found : ObservationManager.class.getMethods()) {
      boolean takesExecution = Arrays.equals(found.getParameterTypes(), new Class<?>[] {QueryExecution.class});
      if (takesExecution && found.getName().endsWith("tryComplete")) return found;
    }
    throw new NoSuchMethodException("ObservationManager.tryComplete");
  }

  @Override public synchronized void setupJob(JobContext job) {
    unchecked(() -> {
      spool = Files.newBufferedWriter(java.nio.file.Path.of(job.getConfiguration().get("lockgate.spool")));
      spool.write(TOKEN + "\n");
    });
  }

  @Override public void setupTask(TaskAttemptContext task) {
    names = new ArrayList<>();
    files = new ArrayList<>();
  }

  @Override public String newTaskTempFile(TaskAttemptContext task, Option<String> folder, FileNameSpec name) {
    Configuration conf = task.getConfiguration();
    int dot = (name.suffix() + ".").indexOf('.');
    String stem = String.format("%s%spart-%05d-%s%s", folder.isDefined() ? folder.get() + "/" : "", name.prefix(),
        task.getTaskAttemptID().getTaskID().getId(), attempt(task), name.suffix().substring(0, dot));
    String ending = name.suffix().substring(dot);
    names.add(stem + ending);
    String file = isS3()
        ? "__magic_job-" + conf.get("lockgate.job") + "/job/01/tasks/" + attempt(task) + "/__base/" + stem + "-"
            + conf.get("lockgate.short.id") + ending
        : stem + ending;
    files.add(new Path(destination, file).toString());
    return files.get(files.size() - 1);
  }

  @Override public String newTaskTempFileAbsPath(TaskAttemptContext task, String folder, FileNameSpec name) {
    throw new UnsupportedOperationException("a partition of another location than its table's");
  }

  @Override public TaskCommitMessage commitTask(TaskAttemptContext task) {
    StringBuilder lines = new StringBuilder();
    List<String> found = new ArrayList<>();
    unchecked(() -> {
      FileSystem system = new Path(destination).getFileSystem(task.getConfiguration());
      if (isS3()) found.addAll(uploads(system).apply(attempt(task), files));
      else for (String file : files) found.add(Long.toString(system.getFileStatus(new Path(file)).getLen()));
    });
    for (int i = 0; i < found.size(); i++) lines.append(names.get(i)).append('\t').append(found.get(i)).append('\n');
    return new TaskCommitMessage(new AtomicReference<>(lines.toString()));
  }

  @Override public void abortTask(TaskAttemptContext task) {
    boolean interrupted = Thread.interrupted(); // a killed task's thread, whose requests would fail
    try {
      unchecked(() -> {
        if (isS3()) uploads(new Path(destination).getFileSystem(task.getConfiguration())).apply(attempt(task), null);
      });
    } finally {
      if (interrupted) Thread.currentThread().interrupt();
    }
  }

  /** The file system as a class of the JDK: its own may be of another class loader. */
  @SuppressWarnings("unchecked")
  private static BiFunction<String, List<String>, List<String>> uploads(FileSystem system) {
    return (BiFunction<String, List<String>, List<String>>) (Object) system;
  }

  private boolean isS3() {
    return destination.startsWith("lockgate-s3-");
  }

  /** Name a task attempt: Spark's number is unique in its application, the job attempt's among applications. */
  private static String attempt(TaskAttemptContext task) {
    return task.getConfiguration().get("lockgate.job.attempt") + "-" + task.getTaskAttemptID().getId();
  }

  /** Append a task's lines once, and free their memory: Spark keeps all messages until the job ends. */
  @Override @SuppressWarnings("unchecked")
  public synchronized void onTaskCommit(TaskCommitMessage message) {
    unchecked(() -> {
      spool.write(((AtomicReference<String>) message.obj()).getAndSet(""));
      spool.flush();
    });
  }

  @Override public void commitJob(JobContext job, Seq<TaskCommitMessage> messages) {
    for (scala.collection.Iterator<TaskCommitMessage> each = messages.iterator(); each.hasNext(); ) onTaskCommit(each.next());
    abortJob(job);
  }

  @Override public synchronized void abortJob(JobContext job) {
    unchecked(() -> spool.close());
  }

  private interface Action {
    void run() throws IOException;
  }

  private static void unchecked(Action action) {
    try {
      action.run();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}
