package golden;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.impl.BatchMessageIdImpl;
import org.apache.pulsar.client.impl.MessageIdImpl;
import org.apache.pulsar.client.impl.MessageImpl;
import org.apache.pulsar.client.impl.TypedMessageBuilderImpl;
import org.apache.pulsar.common.api.proto.MessageMetadata;
import org.apache.pulsar.common.api.proto.SingleMessageMetadata;
import org.apache.pulsar.common.compression.CompressionCodecProvider;
import org.apache.pulsar.common.protocol.Commands;
import org.apache.pulsar.common.protocol.Commands.ChecksumType;

/** Writes entries as the official Java client encodes them, and what it reads out of them, as entries.json. */
public final class GoldenEntries {
    private static final ObjectMapper JSON = new ObjectMapper().enable(SerializationFeature.INDENT_OUTPUT);

    public static void main(String[] args) throws Exception {
        ObjectNode root = JSON.createObjectNode();
        root.put("client", "org.apache.pulsar:pulsar-client-original:4.2.4");
        ArrayNode vectors = root.putArray("vectors");
        for (CompressionType compression : CompressionType.values()) {
            vectors.add(batch(compression, messages()));
            for (TypedMessageBuilderImpl<byte[]> message : messages()) {
                vectors.add(single(compression, message));
            }
        }
        vectors.add(batch(CompressionType.LZ4, List.of(builder("alone", 7))));
        TypedMessageBuilderImpl<byte[]> delayed = builder("later", 8);
        delayed.deliverAt(1753500009999L);
        vectors.add(single(CompressionType.NONE, delayed));
        JSON.writeValue(new File(args[0], "entries.json"), root);
    }

    private static List<TypedMessageBuilderImpl<byte[]>> messages() {
        List<TypedMessageBuilderImpl<byte[]>> messages = new ArrayList<>();
        messages.add(builder("plain", 1));
        TypedMessageBuilderImpl<byte[]> keyed = builder("keyed ".repeat(40), 2);
        keyed.key("kl\u00e9").property("region", "eu").property("a", "").eventTime(1753500001234L);
        messages.add(keyed);
        TypedMessageBuilderImpl<byte[]> binary = builder("binary", 3);
        binary.keyBytes(new byte[] {0, (byte) 0xff, 0x10, 0x20}).orderingKey("order".getBytes(StandardCharsets.UTF_8));
        messages.add(binary);
        TypedMessageBuilderImpl<byte[]> tombstone = new TypedMessageBuilderImpl<>(null, Schema.BYTES);
        tombstone.key("gone").sequenceId(4).value(null);
        messages.add(tombstone);
        messages.add(builder("", 5));
        return messages;
    }

    private static TypedMessageBuilderImpl<byte[]> builder(String value, long sequenceId) {
        TypedMessageBuilderImpl<byte[]> builder = new TypedMessageBuilderImpl<>(null, Schema.BYTES);
        builder.value(value.getBytes(StandardCharsets.UTF_8)).sequenceId(sequenceId);
        return builder;
    }

    /** What ProducerImpl sets before it sends. */
    private static MessageImpl<byte[]> stamped(TypedMessageBuilderImpl<byte[]> builder) {
        MessageImpl<byte[]> message = (MessageImpl<byte[]>) builder.getMessage();
        message.getMessageBuilder().setPublishTime(1753500000000L).setProducerName("golden-0-1")
            .setSchemaVersion(new byte[] {0, 0, 0, 0, 0, 0, 0, 3});
        return message;
    }

    private static ObjectNode batch(CompressionType compression, List<TypedMessageBuilderImpl<byte[]>> builders)
            throws Exception {
        MessageMetadata metadata = new MessageMetadata();
        ByteBuf payload = Unpooled.buffer();
        for (TypedMessageBuilderImpl<byte[]> builder : builders) {
            MessageImpl<byte[]> message = stamped(builder);
            if (payload.readableBytes() == 0) {
                Commands.initBatchMessageMetadata(metadata, message.getMessageBuilder());
            }
            Commands.serializeSingleMessageInBatchWithPayload(message.getMessageBuilder(), message.getDataBuffer(), payload);
        }
        metadata.setNumMessagesInBatch(builders.size());
        ObjectNode node = entry(compression, metadata, payload);
        ArrayNode read = node.putArray("messages");
        for (int index = 0; index < builders.size(); index++) {
            SingleMessageMetadata single = new SingleMessageMetadata();
            ByteBuf one = Commands.deSerializeSingleMessageInBatch(payload, single, index, builders.size());
            read.add(read(MessageImpl.create("t", new BatchMessageIdImpl(1, 2, -1, index), metadata, single, one,
                Optional.empty(), null, Schema.BYTES, 0, false, -1)));
        }
        return node;
    }

    private static ObjectNode single(CompressionType compression, TypedMessageBuilderImpl<byte[]> builder) throws Exception {
        MessageImpl<byte[]> message = stamped(builder);
        ByteBuf payload = message.getDataBuffer();
        ObjectNode node = entry(compression, message.getMessageBuilder(), payload);
        node.putArray("messages").add(read(MessageImpl.create("t", new MessageIdImpl(1, 2, -1), message.getMessageBuilder(),
            payload, Optional.empty(), null, Schema.BYTES, 0, false, -1)));
        return node;
    }

    private static ObjectNode entry(CompressionType compression, MessageMetadata metadata, ByteBuf payload) {
        metadata.setUncompressedSize(payload.readableBytes());
        if (compression != CompressionType.NONE) {
            metadata.setCompression(CompressionCodecProvider.convertToWireProtocol(compression));
        }
        ByteBuf packed = CompressionCodecProvider.getCompressionCodec(compression).encode(payload.duplicate());
        ByteBuf entry = Commands.serializeMetadataAndPayload(ChecksumType.Crc32c, metadata, packed);
        ObjectNode node = JSON.createObjectNode();
        node.put("compression", compression.name());
        node.put("batch", metadata.hasNumMessagesInBatch());
        node.put("entry", ByteBufUtil.hexDump(entry));
        return node;
    }

    /** What an application sees. */
    private static ObjectNode read(MessageImpl<byte[]> message) {
        ObjectNode node = JSON.createObjectNode();
        byte[] value = message.getData();
        node.put("value", value == null ? null : HexFormat.of().formatHex(value));
        node.put("key", message.hasKey() ? HexFormat.of().formatHex(message.getKeyBytes()) : null);
        node.put("key_b64", message.hasBase64EncodedKey());
        node.put("ordering_key", message.hasOrderingKey() ? HexFormat.of().formatHex(message.getOrderingKey()) : null);
        ObjectNode properties = node.putObject("properties");
        new TreeMap<>(message.getProperties()).forEach(properties::put);
        node.put("event_time", message.getEventTime());
        node.put("publish_time", message.getPublishTime());
        node.put("sequence_id", message.getSequenceId());
        node.put("producer_name", message.getProducerName());
        node.put("schema_version", HexFormat.of().formatHex(message.getSchemaVersion()));
        node.put("deliver_at_time", message.getMessageBuilder().getDeliverAtTime());
        return node;
    }

    private GoldenEntries() {}
}
