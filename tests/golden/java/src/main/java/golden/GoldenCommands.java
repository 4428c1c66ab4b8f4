package golden;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.commons.lang3.tuple.Triple;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.common.api.AuthData;
import org.apache.pulsar.common.api.proto.BaseCommand;
import org.apache.pulsar.common.api.proto.CommandAck.AckType;
import org.apache.pulsar.common.api.proto.CommandAck.ValidationError;
import org.apache.pulsar.common.api.proto.CommandGetTopicsOfNamespace.Mode;
import org.apache.pulsar.common.api.proto.CommandLookupTopicResponse.LookupType;
import org.apache.pulsar.common.api.proto.CommandSubscribe.InitialPosition;
import org.apache.pulsar.common.api.proto.CommandSubscribe.SubType;
import org.apache.pulsar.common.api.proto.FeatureFlags;
import org.apache.pulsar.common.api.proto.MessageIdData;
import org.apache.pulsar.common.api.proto.MessageMetadata;
import org.apache.pulsar.common.api.proto.ServerError;
import org.apache.pulsar.common.protocol.ByteBufPair;
import org.apache.pulsar.common.protocol.Commands;
import org.apache.pulsar.common.protocol.Commands.ChecksumType;
import org.apache.pulsar.common.protocol.schema.BytesSchemaVersion;
import org.apache.pulsar.common.protocol.schema.SchemaVersion;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;
import org.apache.pulsar.common.util.collections.BitSetRecyclable;
import org.apache.pulsar.common.util.collections.ConcurrentBitSet;

/** Writes frames as the official Java library makes them, of a client and of a broker, as commands.json. */
public final class GoldenCommands {
    private static final String TOPIC = "persistent://public/default/t";
    private static final long LEDGER = 54321;
    private static final long ENTRY = 987;

    public static void main(String[] args) throws Exception {
        ObjectMapper json = new ObjectMapper().enable(SerializationFeature.INDENT_OUTPUT);
        ObjectNode root = json.createObjectNode();
        root.put("library", "org.apache.pulsar:pulsar-client-original:4.2.4");
        ofClient(root.putObject("client"));
        ofBroker(root.putObject("broker"));
        json.writeValue(new File(args[0], "commands.json"), root);
    }

    private static void ofClient(ObjectNode out) {
        FeatureFlags flags = new FeatureFlags().setSupportsAuthRefresh(true).setSupportsTopicWatchers(true);
        put(out, "connect", Commands.newConnect("token", AuthData.of(bytes("secret")), 21, "4.2.4", "broker:6650",
            "principal", AuthData.of(bytes("original")), "tls", "proxy", flags));
        put(out, "ping", Commands.serializeWithSize(ping()));
        put(out, "pong", Commands.newPong());
        put(out, "partitioned_metadata", Commands.newPartitionMetadataRequest(TOPIC, 1, false));
        put(out, "lookup", Commands.newLookup(TOPIC, "internal", true, 2, Map.of("a", "b")));
        put(out, "producer", Commands.newProducer(TOPIC, 3, 4, "me", true, Map.of("a", "b"), schema(), 5, true,
            ProducerAccessMode.WaitForExclusive, Optional.of(6L), true, "first"));
        put(out, "producer_plain", Commands.newProducer(TOPIC, 3, 4, null, false, Map.of(), null, 0, false,
            ProducerAccessMode.Shared, Optional.empty(), false, null));
        put(out, "send", Commands.newSend(3, 100000, 1, ChecksumType.Crc32c, metadata(), payload()));
        put(out, "send_without_checksum", Commands.newSend(3, 100000, 1, ChecksumType.None, metadata(), payload()));
        put(out, "send_batch", Commands.newSend(3, 100000, 100009, 10, ChecksumType.Crc32c, metadata(), payload()));
        put(out, "send_transaction",
            Commands.newSend(3, 100000, 100009, 10, 1L << 40, 2, ChecksumType.Crc32c, -1, -1, metadata(), payload()));
        put(out, "send_replicated",
            Commands.newSend(3, 100000, 10, ChecksumType.Crc32c, LEDGER, ENTRY, metadata(), payload()));
        put(out, "send_chunk", Commands.newSend(3, 100000, 1, ChecksumType.Crc32c,
            metadata().setUuid("me-100000").setChunkId(1).setNumChunksFromMsg(3).setTotalChunkMsgSize(20), payload()));
        put(out, "send_marker",
            Commands.newSend(3, 100000, 1, ChecksumType.Crc32c, metadata().setMarkerType(21), payload()));
        put(out, "subscribe", Commands.newSubscribe(TOPIC, "sub", 7, 8, SubType.Key_Shared, 2, "me", true, null,
            Map.of("a", "b"), false, true, InitialPosition.Earliest, 0, schema(), true,
            KeySharedPolicy.stickyHashRange().ranges(Range.of(0, 99), Range.of(200, 65535))
                .setAllowOutOfOrderDelivery(true), Map.of("c", "d"), 9));
        put(out, "subscribe_reader", Commands.newSubscribe(TOPIC, "reader", 7, 8, SubType.Exclusive, 0, "me", false,
            id(LEDGER, ENTRY).setPartition(1).setBatchIndex(2), Map.of(), true, false, InitialPosition.Latest, 60,
            null, false));
        put(out, "subscribe_earliest", Commands.newSubscribe(TOPIC, "reader", 7, 8, SubType.Failover, 0, "me", false,
            id(-1, -1), Map.of(), false, false, InitialPosition.Latest, 0, null, true));
        put(out, "flow", Commands.newFlow(7, 1000));
        put(out, "ack", Commands.newAck(7, LEDGER, ENTRY, null, AckType.Individual, null, Map.of(), -1));
        put(out, "ack_batch_index", Commands.newAck(7, LEDGER, ENTRY,
            BitSetRecyclable.valueOf(new long[] {-2, 3}), AckType.Individual, null, Map.of("p", 1L), 11));
        put(out, "ack_cumulative",
            Commands.newAck(7, LEDGER, ENTRY, null, AckType.Cumulative, ValidationError.ChecksumMismatch, Map.of(), 12));
        put(out, "ack_many", Commands.newMultiMessageAck(7, List.of(Triple.of(LEDGER, ENTRY, null),
            Triple.of(LEDGER, ENTRY + 1, bits())), 13));
        put(out, "redeliver", Commands.newRedeliverUnacknowledgedMessages(7, List.of(id(LEDGER, ENTRY), id(LEDGER, 3))));
        put(out, "redeliver_all", Commands.newRedeliverUnacknowledgedMessages(7, 14));
        put(out, "unsubscribe", Commands.newUnsubscribe(7, 15, true));
        put(out, "seek", Commands.newSeek(7, 16, LEDGER, ENTRY, new long[] {-4}));
        put(out, "seek_time", Commands.newSeek(7, 16, 1753500000000L));
        put(out, "get_last_message_id", Commands.newGetLastMessageId(7, 17));
        put(out, "close_producer", Commands.newCloseProducer(3, 18));
        put(out, "close_consumer", Commands.newCloseConsumer(7, 19, null, null));
        put(out, "get_topics_of_namespace", Commands.newGetTopicsOfNamespaceRequest("public/default", 20, Mode.ALL,
            "public/default/t.*", "abcd", Map.of("a", "b")));
        put(out, "get_schema", Commands.newGetSchema(21, TOPIC, Optional.of(version())));
        put(out, "get_newest_schema", Commands.newGetSchema(21, TOPIC, Optional.empty()));
        put(out, "get_or_create_schema", Commands.newGetOrCreateSchema(22, TOPIC, schema()));
        put(out, "tc_client_connect_request", Commands.newTcClientConnectRequest(5, 23));
        put(out, "new_txn", Commands.newTxn(5, 24, 60));
        put(out, "watch_topic_list", Commands.serializeWithSize(
            Commands.newWatchTopicList(25, 26, "public/default", "public/default/t.*", "abcd")));
    }

    private static void ofBroker(ObjectNode out) {
        put(out, "connected", Commands.newConnected(21, 5242880, false));
        put(out, "ping", Commands.serializeWithSize(ping()));
        put(out, "pong", Commands.newPong());
        put(out, "success", Commands.newSuccess(1));
        put(out, "error", Commands.newError(-1, ServerError.TopicNotFound, "no such topic"));
        put(out, "lookup_response",
            Commands.newLookupResponse("pulsar://b:6650", "pulsar+ssl://b:6651", true, LookupType.Connect, 2, false));
        put(out, "lookup_redirect",
            Commands.newLookupResponse("pulsar://b:6650", null, false, LookupType.Redirect, 2, false));
        put(out, "lookup_failed", Commands.newLookupErrorResponse(ServerError.ServiceNotReady, "not yet", 2));
        put(out, "partition_metadata_response", Commands.newPartitionMetadataResponse(8, 3));
        put(out, "partition_metadata_failed",
            Commands.newPartitionMetadataResponse(ServerError.AuthorizationError, "not yours", 3));
        put(out, "producer_success", Commands.newProducerSuccess(4, "me", -1, SchemaVersion.Empty, Optional.empty(), true));
        put(out, "producer_success_exclusive", Commands.newProducerSuccess(4, "me", 41, version(), Optional.of(7L), false));
        put(out, "send_receipt", Commands.newSendReceipt(3, 100000, 100009, LEDGER, ENTRY));
        put(out, "send_receipt_not_stored", Commands.newSendReceipt(3, 1, 0, -1, -1));
        put(out, "send_error", Commands.newSendError(3, 100000, ServerError.ChecksumError, "broken"));
        put(out, "message", head(LEDGER, ENTRY, -1, 0, null, -1));
        put(out, "message_redelivered", head(LEDGER, ENTRY, 3, 2, new long[] {-2, 3}, 5));
        put(out, "ack_response", Commands.newAckResponse(11, null, null, 7));
        put(out, "ack_refused", Commands.newAckResponse(11, ServerError.NotAllowedError, "no", 7));
        put(out, "active_consumer_change", Commands.newActiveConsumerChange(7, true));
        put(out, "inactive_consumer_change", Commands.newActiveConsumerChange(7, false));
        put(out, "reached_end_of_topic", Commands.newReachedEndOfTopic(7));
        put(out, "close_producer", Commands.newCloseProducer(3, -1));
        put(out, "close_consumer", Commands.newCloseConsumer(7, -1, null, null));
        put(out, "get_last_message_id_response", Commands.newGetLastMessageIdResponse(17, LEDGER, ENTRY, 3, 9, LEDGER, -1));
        put(out, "get_topics_of_namespace_response", Commands.serializeWithSize(
            Commands.newGetTopicsOfNamespaceResponseCommand(List.of(TOPIC, TOPIC + "2"), "abcd", true, true, 20)));
        put(out, "get_schema_response", Commands.newGetSchemaResponse(21, schema(), version()));
        put(out, "get_schema_failed", Commands.newGetSchemaResponseError(21, ServerError.TopicNotFound, "none"));
        put(out, "get_or_create_schema_response", Commands.newGetOrCreateSchemaResponse(22, version()));
        put(out, "get_or_create_schema_failed",
            Commands.newGetOrCreateSchemaResponseError(22, ServerError.IncompatibleSchema, "other"));
    }

    /** A MESSAGE with an entry of four bytes. */
    private static ByteBufPair head(long ledger, long entry, int partition, int redeliveries, long[] ackSet, long epoch) {
        ByteBuf four = Unpooled.wrappedBuffer(bytes("data"));
        return Commands.serializeCommandMessageWithSize(
            Commands.newMessageCommand(7, ledger, entry, partition, redeliveries, ackSet, epoch), four);
    }

    private static BaseCommand ping() {
        BaseCommand command = new BaseCommand().setType(BaseCommand.Type.PING);
        command.setPing();
        return command;
    }

    private static MessageMetadata metadata() {
        return new MessageMetadata().setProducerName("me").setSequenceId(100000).setPublishTime(1753500000000L);
    }

    private static ByteBuf payload() {
        return Unpooled.wrappedBuffer(bytes("hello"));
    }

    private static MessageIdData id(long ledger, long entry) {
        return new MessageIdData().setLedgerId(ledger).setEntryId(entry);
    }

    private static ConcurrentBitSet bits() {
        ConcurrentBitSet bits = new ConcurrentBitSet();
        bits.set(1, 70);
        return bits;
    }

    private static SchemaVersion version() {
        return BytesSchemaVersion.of(new byte[] {0, 0, 0, 0, 0, 0, 0, 3});
    }

    private static SchemaInfo schema() {
        return SchemaInfo.builder().name("s").type(SchemaType.JSON).schema(bytes("{\"type\":\"string\"}"))
            .properties(new TreeMap<>(Map.of("__alwaysAllowNull", "true"))).timestamp(0).build();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static void put(ObjectNode out, String name, ByteBuf frame) {
        out.put(name, ByteBufUtil.hexDump(frame));
    }

    private static void put(ObjectNode out, String name, ByteBufPair frame) {
        put(out, name, ByteBufPair.coalesce(frame));
    }

    private GoldenCommands() {}
}
