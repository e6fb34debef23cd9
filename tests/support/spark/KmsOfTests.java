import java.util.Base64;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.crypto.keytools.KmsClient;

/** A key server for tests of encrypted columns, whose wrapped keys are no secret. */
public final class KmsOfTests implements KmsClient {
  @Override public void initialize(Configuration conf, String instance, String url, String token) {}

  @Override public String wrapKey(byte[] key, String master) {
    return Base64.getEncoder().encodeToString(key);
  }

  @Override public byte[] unwrapKey(String wrapped, String master) {
    return Base64.getDecoder().decode(wrapped);
  }
}
