package golden;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Random;
import org.apache.pulsar.client.api.HashingScheme;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageRouter;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TopicMetadata;
import org.apache.pulsar.client.impl.JavaStringHash;
import org.apache.pulsar.client.impl.MessageImpl;
import org.apache.pulsar.client.impl.Murmur3Hash32;
import org.apache.pulsar.client.impl.RoundRobinPartitionMessageRouterImpl;
import org.apache.pulsar.client.impl.TypedMessageBuilderImpl;
import org.apache.pulsar.common.naming.NamespaceName;
import org.apache.pulsar.common.naming.TopicName;
import org.apache.pulsar.common.protocol.Commands;
import org.apache.pulsar.common.util.Murmur3_32Hash;

/** Writes what the official Java client does with keys and topic names, as JSON files in the given folder. */
public final class GoldenVectors {
    private static final int[] PARTITIONS = {1, 3, 8, 1000};
    private static final ObjectMapper JSON = new ObjectMapper().enable(SerializationFeature.INDENT_OUTPUT);

    private record Partitions(int numPartitions) implements TopicMetadata {}

    public static void main(String[] args) throws Exception {
        File folder = new File(args[0]);
        JSON.writeValue(new File(folder, "keys.json"), keys());
        JSON.writeValue(new File(folder, "topic_names.json"), topicNames());
    }

    private static ObjectNode keys() {
        ObjectNode root = JSON.createObjectNode();
        root.put("client", "org.apache.pulsar:pulsar-client-original:4.2.4");
        ArrayNode vectors = root.putArray("vectors");
        String[] strings = {
            "", "a", "key", "AA", "UA", "polygenelubricants", "\u0000", "line\nbreak", "\u00e9", "e\u0301",
            "stra\u00dfe", "\u20ac", "\u65e5\u672c\u8a9e", "\ud55c\uad6d\uc5b4", "\ud83d\ude00", "\ud83d\udc69\u200d\ud83d\ude80",
            "a\ud800\udf48b", "\udbff\udfff", "\u0928\u093f", "mix \u00e9 \u20ac \ud83d\ude00 end", "\uffff", "\u07ff\u0800"
        };
        for (String text : strings) {
            vectors.add(vector(text.getBytes(StandardCharsets.UTF_8), 1, false));
        }
        for (int length = 0; length <= 40; length++) {
            vectors.add(vector("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGH".substring(0, length)
                .getBytes(StandardCharsets.UTF_8), 1, false));
        }
        vectors.add(vector("0123456789abcdef-".getBytes(StandardCharsets.UTF_8), 4099, false));
        vectors.add(vector("\u00e9\u20ac\ud83d\ude00x".getBytes(StandardCharsets.UTF_8), 8191, false));
        byte[] allBytes = new byte[256];
        for (int value = 0; value < 256; value++) {
            allBytes[value] = (byte) value;
            vectors.add(vector(new byte[] {(byte) value}, 1, true));
        }
        vectors.add(vector(allBytes, 1, true));
        vectors.add(vector(allBytes, 300, true));
        Random random = new Random(20260726);
        for (int length = 0; length <= 40; length++) {
            byte[] key = new byte[length];
            random.nextBytes(key);
            vectors.add(vector(key, 1, true));
        }
        return root;
    }

    /** One key: `hex` repeated `times`, given by key(String) or, if binary, by keyBytes(byte[]). */
    private static ObjectNode vector(byte[] unit, int times, boolean binary) {
        byte[] key = new byte[unit.length * times];
        for (int at = 0; at < key.length; at++) {
            key[at] = unit[at % unit.length];
        }
        TypedMessageBuilderImpl<byte[]> builder = new TypedMessageBuilderImpl<>(null, Schema.BYTES);
        if (binary) {
            builder.keyBytes(key);
        } else {
            builder.key(new String(key, StandardCharsets.UTF_8));
        }
        builder.value(new byte[0]);
        Message<byte[]> message = builder.getMessage();
        ObjectNode node = JSON.createObjectNode();
        node.put("hex", HexFormat.of().formatHex(unit));
        node.put("times", times);
        node.put("binary", binary);
        node.put("b64", message.hasBase64EncodedKey());
        node.put("java_string_hash", JavaStringHash.getInstance().makeHash(message.getKey()));
        node.put("murmur3_32", Murmur3Hash32.getInstance().makeHash(message.getKey()));
        byte[] sticky = Commands.resolveStickyKey(((MessageImpl<byte[]>) message).getMessageBuilder());
        node.put("sticky_key_hash", Murmur3_32Hash.getInstance().makeHash(sticky) & Integer.MAX_VALUE);
        for (HashingScheme scheme : HashingScheme.values()) {
            MessageRouter router = new RoundRobinPartitionMessageRouterImpl(scheme, 0, true, 1000);
            ArrayNode chosen = node.putArray("partition_" + scheme);
            for (int partitions : PARTITIONS) {
                chosen.add(router.choosePartition(message, new Partitions(partitions)));
            }
        }
        return node;
    }

    private static ObjectNode topicNames() {
        ObjectNode root = JSON.createObjectNode();
        root.put("client", "org.apache.pulsar:pulsar-client-original:4.2.4");
        ArrayNode vectors = root.putArray("vectors");
        String[] names = {
            "x", "t/n/x", "persistent://t/n/x", "persistent://public/default/my-topic", "a/b", "t/n/x/y", "/", "", " ", "x ",
            " x", "t/n/", "t//x", "/n/x", "//x", "x/", "/x", "t/n/ ", "persistent://t/n", "persistent://t/n/", "persistent://t/n/ ",
            "persistent://t/n/x/y", "persistent://t/n//x", "persistent://t//x", "persistent:///n/x", "persistent://", "://t/n/x",
            "kafka://t/n/x", "Persistent://t/n/x", "persistent:/t/n/x", "persistent://t/n/a://b", "a://b", "t.1/n-2/x", "t:1/n=2/x",
            "t_1/n.2/x", "t 1/n/x", "t%/n/x", "t/n%20/x", "\u00e9/n/x", "t/\u00e9/x", "t/n/\u00e9", "t/n/x y", "t/n/x\ty", "t/n/x\ny",
            "t/n/x\u0000y", "t/n/x\u007fy", "t/n/\ud83d\ude00", "t/n/x%2Fy", "x%2F", "t/n/x?y#z", "t/n/x\\y", "t/n/*", "t/n/..", "..",
            "x-partition-0", "x-partition-1", "x-partition-10", "x-partition-01", "x-partition--1", "x-partition-", "x-partition-a",
            "x-partition-+1", "x-partition-2147483647", "x-partition-2147483648", "x-partition-1-partition-2", "-partition-3",
            "x-partition-1 ", "t/n/x-partition-4", "persistent://t/n/x-partition-5", "x-partition-1-DLQ", "\u200bx", "\u3000",
            "\u00a0", "-", ".", ":", "=", "_", "t/n/:", "-/-/-", "x-partition-\u0661"
        };
        for (String name : names) {
            ObjectNode node = vectors.addObject();
            node.put("name", name);
            try {
                TopicName topic = TopicName.get(name);
                node.put("full", topic.toString());
                node.put("tenant", topic.getTenant());
                node.put("namespace", topic.getNamespace());
                node.put("local", topic.getLocalName());
                node.put("partition_index", topic.getPartitionIndex());
                node.put("partitioned_base", topic.getPartitionedTopicName());
                node.put("partition_7", topic.getPartition(7).toString());
            } catch (RuntimeException error) {
                node.put("error", error.getClass().getSimpleName() + ": " + error.getMessage());
            }
        }
        String[] namespaces = {"t/n", "t/n ", "t/", "/n", "t", "t/n/c", "T-1/n:2", "t/\u00e9"};
        ArrayNode verdicts = root.putArray("namespaces");
        for (String name : namespaces) {
            ObjectNode node = verdicts.addObject();
            node.put("name", name);
            try {
                NamespaceName.get(name);
                node.put("valid", true);
            } catch (RuntimeException error) {
                node.put("valid", false);
            }
        }
        return root;
    }

    private GoldenVectors() {}
}
