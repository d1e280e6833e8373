import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Counts records per key on Kafka Streams: Avro in and out, RocksDB store, changelog, one output per input.
 *
 * <p>Everything is the library's default but what is said here: the record cache is off, so that every update
 * is written out; the commit interval is given; the latency run does not linger; and the job leaves its group
 * when it is stopped, without which a restart would wait for 45 seconds.
 */
public final class KStreamsJob {
  private static final int HEADER_BYTES = 5;

  private KStreamsJob() {}

  public static void main(String[] words) throws Exception {
    Map<String, String> options = options(words);
    Schema in = new Schema.Parser().parse(options.get("in-schema"));
    Schema out = new Schema.Parser().parse(options.get("out-schema"));
    Serde<String> text = Serdes.String();
    Serde<GenericRecord> views = avro(in, 0);
    Serde<GenericRecord> counts = avro(out, Integer.parseInt(options.get("out-schema-id")));

    StreamsBuilder builder = new StreamsBuilder();
    builder.stream(options.get("in"), Consumed.with(text, views))
        .groupByKey(Grouped.with(text, views))
        .count(
            Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts")
                .withKeySerde(text)
                .withValueSerde(Serdes.Long()))
        .toStream()
        .mapValues((user, count) -> record(out, user, count))
        .to(options.get("out"), Produced.with(text, counts));

    KafkaStreams streams = new KafkaStreams(builder.build(), settings(options));
    streams.setGlobalStateRestoreListener(new Restores());
    CloseOptions leave =
        CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP)
            .withTimeout(Duration.ofSeconds(20));
    Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(leave)));
    streams.start();
  }

  private static Map<String, String> options(String[] words) {
    Map<String, String> options = new HashMap<>();
    for (int i = 0; i + 1 < words.length; i += 2) {
      options.put(words[i].substring(2), words[i + 1]);
    }
    return options;
  }

  private static Properties settings(Map<String, String> options) {
    Properties settings = new Properties();
    settings.put("application.id", options.get("app"));
    settings.put("bootstrap.servers", options.get("bootstrap"));
    settings.put("state.dir", options.get("state"));
    settings.put("num.stream.threads", options.get("workers"));
    settings.put("auto.offset.reset", "earliest");
    settings.put("replication.factor", "1");
    boolean exact = options.get("guarantee").equals("exactly-once");
    settings.put("processing.guarantee", exact ? "exactly_once_v2" : "at_least_once");
    settings.put("statestore.cache.max.bytes", "0");
    settings.put("commit.interval.ms", options.get("commit-ms"));
    if (options.get("latency").equals("yes")) {
      settings.put("producer.linger.ms", "0");
    }
    return settings;
  }

  /** Avro behind the five header bytes of a schema registry: skipped when read, put in front when written. */
  private static Serde<GenericRecord> avro(Schema schema, int schemaId) {
    byte[] header = ByteBuffer.allocate(HEADER_BYTES).put((byte) 0).putInt(schemaId).array();
    GenericDatumReader<GenericRecord> reader = new GenericDatumReader<>(schema);
    GenericDatumWriter<GenericRecord> writer = new GenericDatumWriter<>(schema);
    ThreadLocal<BinaryDecoder> decoders = new ThreadLocal<>();
    ThreadLocal<BinaryEncoder> encoders = new ThreadLocal<>();
    return Serdes.serdeFrom(
        (topic, value) -> {
          try {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream(64);
            bytes.write(header, 0, HEADER_BYTES);
            BinaryEncoder encoder = EncoderFactory.get().directBinaryEncoder(bytes, encoders.get());
            encoders.set(encoder);
            writer.write(value, encoder);
            encoder.flush();
            return bytes.toByteArray();
          } catch (IOException error) {
            throw new UncheckedIOException(error);
          }
        },
        (topic, bytes) -> {
          if (bytes == null) {
            return null;
          }
          try {
            int length = bytes.length - HEADER_BYTES;
            BinaryDecoder decoder =
                DecoderFactory.get().binaryDecoder(bytes, HEADER_BYTES, length, decoders.get());
            decoders.set(decoder);
            return reader.read(null, decoder);
          } catch (IOException error) {
            throw new UncheckedIOException(error);
          }
        });
  }

  private static GenericRecord record(Schema schema, String user, long count) {
    GenericRecord made = new GenericData.Record(schema);
    made.put("user", user);
    made.put("count", count);
    return made;
  }

  /** Says when the restore of a partition begins and ends: `RESTORING` and `RESTORED`, partition, records, time. */
  private static final class Restores implements StateRestoreListener {
    @Override
    public void onRestoreStart(TopicPartition partition, String store, long begin, long end) {
      say("RESTORING", partition, end - begin);
    }

    @Override
    public void onBatchRestored(TopicPartition partition, String store, long end, long records) {}

    @Override
    public void onRestoreEnd(TopicPartition partition, String store, long records) {
      say("RESTORED", partition, records);
    }

    private static void say(String what, TopicPartition partition, long records) {
      if (records > 0) {
        long now = System.currentTimeMillis();
        System.out.println(what + " " + partition.partition() + " " + records + " " + now);
      }
    }
  }
}
