package clients;

import java.io.InputStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageListener;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;
import org.apache.pulsar.client.api.schema.GenericRecord;

/**
 * Scenarios of the official Java client against a broker; each prints its name when it has passed.
 *
 * <p>Arguments: the service URL, the URL of HTTP, a prefix of the topics' names (PREFIX-parts has three partitions), and
 * the scenarios to run; all if none is named.
 */
public final class Scenarios {
    private static final int PATIENCE_S = 60;
    /** If nothing has come for so long, nothing comes. */
    private static final int QUIET_MS = 1500;

    private final PulsarClient client;
    private final String webUrl;
    private final String prefix;
    private final String topic;

    private Scenarios(PulsarClient client, String webUrl, String prefix, String name) {
        this.client = client;
        this.webUrl = webUrl;
        this.prefix = prefix;
        this.topic = prefix + "-" + name;
    }

    private static ClientBuilder builder(String url) {
        return PulsarClient.builder().serviceUrl(url).tlsTrustCertsFilePath(System.getenv("TLS_TRUST_CERTS"))
            .enableTlsHostnameVerification(true);
    }

    public static void main(String[] args) throws Exception {
        List<String> names = args.length > 3 ? List.of(args).subList(3, args.length)
            : Arrays.stream(Scenarios.class.getDeclaredMethods()).filter(method -> method.getName().startsWith("test"))
                .map(Method::getName).sorted(Comparator.naturalOrder()).toList();
        int failed = 0;
        for (String name : names) {
            try (PulsarClient client = builder(args[0]).build()) {
                Scenarios.class.getDeclaredMethod(name).invoke(new Scenarios(client, args[1], args[2], name));
                System.out.println("passed " + name);
            } catch (InvocationTargetException problem) {
                failed++;
                System.out.println("FAILED " + name + ": " + problem.getCause());
                problem.getCause().printStackTrace();
            }
        }
        System.exit(failed == 0 ? 0 : 1);
    }

    // -- what scenarios need --------------------------------------------------------------------------------------

    private ProducerBuilder<byte[]> producer() {
        return client.newProducer().topic(topic);
    }

    private ConsumerBuilder<byte[]> consumer() {
        return client.newConsumer().topic(topic).subscriptionName("sub")
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    /** Any broker can be asked: it names the topic's owner. */
    private static HttpClient http() throws Exception {
        HttpClient.Builder builder = HttpClient.newBuilder().followRedirects(HttpClient.Redirect.NORMAL);
        String trusted = System.getenv("TLS_TRUST_CERTS");
        if (!trusted.isEmpty()) {
            KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
            store.load(null, null);
            try (InputStream file = Files.newInputStream(Path.of(trusted))) {
                for (Certificate each : CertificateFactory.getInstance("X.509").generateCertificates(file)) {
                    store.setCertificateEntry("ca-" + store.size(), each);
                }
            }
            TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            managers.init(store);
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(null, managers.getTrustManagers(), null);
            builder.sslContext(context);
        }
        return builder.build();
    }

    /** Sends the numbers from first to last, with keys, and waits for all receipts. */
    private static void send(Producer<byte[]> producer, int first, int last) throws Exception {
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        for (int number = first; number <= last; number++) {
            receipts.add(producer.newMessage().key("key-" + number % 10).value(bytes("" + number)).sendAsync());
        }
        producer.flush();
        CompletableFuture.allOf(receipts.toArray(new CompletableFuture<?>[0])).get(PATIENCE_S, TimeUnit.SECONDS);
    }

    private static <T> List<Message<T>> receive(Consumer<T> consumer, int count) throws Exception {
        List<Message<T>> messages = new ArrayList<>();
        while (messages.size() < count) {
            Message<T> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
            check(message != null, consumer.getSubscription() + ": only " + messages.size() + " of " + count + " came");
            messages.add(message);
        }
        return messages;
    }

    private static void expectNothing(Consumer<?> consumer) throws Exception {
        Message<?> message = consumer.receive(QUIET_MS, TimeUnit.MILLISECONDS);
        check(message == null, "nothing was to come, and there is " + message);
    }

    private static void expect(Consumer<byte[]> consumer, int first, int last) throws Exception {
        List<Integer> found = receive(consumer, last - first + 1).stream().map(Scenarios::number).toList();
        check(found.equals(range(first, last)), found + " came instead of " + first + " to " + last);
    }

    private static List<Integer> range(int first, int last) {
        return IntStream.rangeClosed(first, last).boxed().toList();
    }

    private static int number(Message<byte[]> message) {
        return Integer.parseInt(new String(message.getValue(), StandardCharsets.UTF_8));
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static void check(boolean isTrue, String otherwise) {
        if (!isTrue) {
            throw new AssertionError(otherwise);
        }
    }

    private static void expectRefusal(Class<? extends Exception> type, Action action) {
        try {
            action.run();
        } catch (Exception problem) {
            check(type.isInstance(problem), "refused by " + problem);
            return;
        }
        throw new AssertionError("it was not refused with " + type);
    }

    private interface Action {
        void run() throws Exception;
    }

    // -- scenarios ------------------------------------------------------------------------------------------------

    void testCompressions() throws Exception {
        Consumer<byte[]> consumer = consumer().subscribe();
        for (CompressionType type : CompressionType.values()) {
            for (boolean batched : new boolean[] {true, false}) {
                try (Producer<byte[]> producer = producer().compressionType(type).enableBatching(batched).create()) {
                    send(producer, 0, 49);
                }
                expect(consumer, 0, 49);
            }
        }
    }

    void testEverythingOfAMessage() throws Exception {
        Consumer<byte[]> consumer = consumer().subscribe();
        Producer<byte[]> producer = producer().producerName("me").create();
        MessageId sent = producer.newMessage().value(bytes("v")).key("k").orderingKey(bytes("o")).property("a", "b")
            .eventTime(1753500001234L).sequenceId(77).send();
        Message<byte[]> got = receive(consumer, 1).get(0);
        check(got.getKey().equals("k") && Arrays.equals(got.getOrderingKey(), bytes("o"))
            && got.getProperty("a").equals("b") && got.getEventTime() == 1753500001234L && got.getSequenceId() == 77
            && got.getProducerName().equals("me") && got.getMessageId().equals(sent), "not what was sent: " + got);
        check(consumer.getLastMessageIds().get(0).equals(sent), "the last id is " + consumer.getLastMessageIds());
        producer.newMessage().key("k").value(null).send();
        check(receive(consumer, 1).get(0).getValue() == null, "a tombstone has a value");
    }

    void testPartitions() throws Exception {
        String parts = prefix + "-parts";
        check(client.getPartitionsForTopic(parts).get().size() == 3, "there are other partitions");
        Consumer<byte[]> consumer = consumer().topics(List.of(parts)).subscribe();
        send(client.newProducer().topic(parts).create(), 0, 99);
        List<Integer> found = receive(consumer, 100).stream().map(Scenarios::number).sorted().toList();
        check(found.equals(range(0, 99)), found.toString());
    }

    void testKeyShared() throws Exception {
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        for (Range range : List.of(Range.of(0, 30_000), Range.of(30_001, 65_535))) {
            consumers.add(consumer().subscriptionType(SubscriptionType.Key_Shared)
                .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(range)).subscribe());
        }
        expectRefusal(PulsarClientException.class, () -> consumer().subscriptionType(SubscriptionType.Key_Shared)
            .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(Range.of(1, 2))).subscribe());
        send(producer().batcherBuilder(BatcherBuilder.KEY_BASED).create(), 0, 199);
        Map<String, Integer> owners = new HashMap<>();
        int count = 0;
        for (int index = 0; index < 2; index++) {
            Message<byte[]> message;
            while ((message = consumers.get(index).receive(QUIET_MS, TimeUnit.MILLISECONDS)) != null) {
                Integer owner = owners.put(message.getKey(), index);
                check(owner == null || owner == index, "a key has two consumers");
                consumers.get(index).acknowledge(message);
                count++;
            }
        }
        check(count == 200, count + " messages came");
    }

    void testDeadLetters() throws Exception {
        Consumer<byte[]> consumer = consumer().subscriptionType(SubscriptionType.Shared)
            .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).deadLetterPolicy(DeadLetterPolicy.builder()
                .maxRedeliverCount(1).deadLetterTopic(topic + "-dead").initialSubscriptionName("first").build())
            .subscribe();
        send(producer().create(), 7, 7);
        for (int count = 0; count < 2; count++) {
            Message<byte[]> message = receive(consumer, 1).get(0);
            check(message.getRedeliveryCount() == count, "redelivery count " + message.getRedeliveryCount());
            consumer.negativeAcknowledge(message);
        }
        expect(client.newConsumer().topic(topic + "-dead").subscriptionName("first").subscribe(), 7, 7);
    }

    void testRetryLetters() throws Exception {
        Consumer<byte[]> consumer = consumer().subscriptionType(SubscriptionType.Shared).enableRetry(true).subscribe();
        send(producer().create(), 7, 7);
        for (int count = 0; count < 2; count++) {
            consumer.reconsumeLater(receive(consumer, 1).get(0), 100, TimeUnit.MILLISECONDS);
        }
        expect(consumer, 7, 7);
    }

    void testFailover() throws Exception {
        Map<String, Boolean> active = new ConcurrentHashMap<>();
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        for (String name : List.of("a", "b")) {
            consumers.add(consumer().subscriptionType(SubscriptionType.Failover).consumerName(name)
                .consumerEventListener(new ConsumerEventListener() {
                    @Override
                    public void becameActive(Consumer<?> consumer, int partition) {
                        active.put(name, true);
                    }

                    @Override
                    public void becameInactive(Consumer<?> consumer, int partition) {
                        active.put(name, false);
                    }
                }).subscribe());
        }
        // Names decide who is active, and the second consumer is told once that is decided.
        for (int waited = 0; !active.containsKey("b"); waited++) {
            check(waited < PATIENCE_S * 10, "who is active: " + active);
            Thread.sleep(100);
        }
        boolean isSecond = active.get("b");
        Consumer<byte[]> first = consumers.get(isSecond ? 1 : 0), standby = consumers.get(isSecond ? 0 : 1);
        send(producer().enableBatching(false).create(), 0, 9);
        List<Message<byte[]>> messages = receive(first, 10);
        first.acknowledgeCumulative(messages.get(4));
        expectNothing(standby);
        awaitActive(active, Map.of("a", !isSecond, "b", isSecond));
        first.close();
        expect(standby, 5, 9);
        awaitActive(active, Map.of("a", true, "b", true));
    }

    /** The client calls listeners in a thread of their own: a message may come before them. */
    private static void awaitActive(Map<String, Boolean> active, Map<String, Boolean> expected) throws Exception {
        for (int waited = 0; !active.equals(expected); waited++) {
            check(waited < PATIENCE_S * 10, "who is active: " + active);
            Thread.sleep(100);
        }
    }

    void testBatchIndexAcknowledgements() throws Exception {
        ConsumerBuilder<byte[]> builder = consumer().subscriptionType(SubscriptionType.Shared)
            .enableBatchIndexAcknowledgment(true).isAckReceiptEnabled(true);
        Consumer<byte[]> consumer = builder.subscribe();
        send(producer().batchingMaxPublishDelay(5, TimeUnit.SECONDS).batchingMaxMessages(100).create(), 0, 99);
        for (Message<byte[]> message : receive(consumer, 100)) {
            if (number(message) < 90) {
                consumer.acknowledge(message);
            }
        }
        consumer.close();
        Consumer<byte[]> again = builder.clone().subscribe();
        expect(again, 90, 99);
        expectNothing(again);
    }

    void testReaders() throws Exception {
        send(producer().batchingMaxMessages(7).create(), 0, 29);
        List<Message<byte[]>> all = read(client.newReader().topic(topic).startMessageId(MessageId.earliest).create());
        check(all.stream().map(Scenarios::number).toList().equals(range(0, 29)), "all: " + all.size());
        MessageId tenth = all.get(10).getMessageId();
        check(number(read(client.newReader().topic(topic).startMessageId(tenth).create()).get(0)) == 11, "behind");
        check(number(read(client.newReader().topic(topic).startMessageId(tenth).startMessageIdInclusive().create()).get(0))
            == 10, "from the tenth");
        Reader<byte[]> latest = client.newReader().topic(topic).startMessageId(MessageId.latest).create();
        check(!latest.hasMessageAvailable(), "there is something behind the end");
        Reader<byte[]> last = client.newReader().topic(topic).startMessageId(MessageId.latest).startMessageIdInclusive()
            .create();
        check(number(read(last).get(0)) == 29, "the last one");
    }

    private static List<Message<byte[]>> read(Reader<byte[]> reader) throws Exception {
        List<Message<byte[]>> found = new ArrayList<>();
        while (reader.hasMessageAvailable()) {
            found.add(reader.readNext(PATIENCE_S, TimeUnit.SECONDS));
        }
        reader.close();
        return found;
    }

    void testSeek() throws Exception {
        Consumer<byte[]> consumer = consumer().startMessageIdInclusive().subscribe();
        Producer<byte[]> producer = producer().enableBatching(false).create();
        send(producer, 0, 9);
        Thread.sleep(50);
        long between = System.currentTimeMillis();
        Thread.sleep(50);
        send(producer, 10, 19);
        MessageId fifth = receive(consumer, 20).get(5).getMessageId();
        consumer.seek(fifth);
        expect(consumer, 5, 19);
        consumer.seek(between);
        expect(consumer, 10, 19);
        consumer.seek(MessageId.earliest);
        expect(consumer, 0, 19);
    }

    void testPattern() throws Exception {
        send(client.newProducer().topic(topic + "-one").create(), 1, 1);
        Consumer<byte[]> consumer = client.newConsumer()
            .topicsPattern(Pattern.compile("persistent://public/default/" + topic + "-.*")).subscriptionName("sub")
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
            .patternAutoDiscoveryPeriod(1, TimeUnit.SECONDS).subscribe();
        expect(consumer, 1, 1);
        send(client.newProducer().topic(topic + "-two").create(), 2, 2);
        expect(consumer, 2, 2);
    }

    /** With a period of an hour it is the broker that tells of new topics; a pattern that it cannot apply is polled. */
    void testWatchedPattern() throws Exception {
        String watched = prefix + "-watched"; // as long as the pattern has at most 50 characters, it may be watched
        send(client.newProducer().topic(watched + "-one").create(), 1, 1);
        Consumer<byte[]> consumer = patternConsumer(watched + "-.*", "watching", 3600);
        expect(consumer, 1, 1);
        send(client.newProducer().topic(watched + "-two").create(), 2, 2);
        expect(consumer, 2, 2);
        Consumer<byte[]> polling = patternConsumer("(?!x)" + watched + "-.*", "polling", 1);
        List<Integer> both = receive(polling, 2).stream().map(Scenarios::number).sorted().toList(); // of two topics
        check(both.equals(range(1, 2)), both.toString());
        send(client.newProducer().topic(watched + "-three").create(), 3, 3);
        expect(polling, 3, 3);
        expect(consumer, 3, 3);
    }

    private Consumer<byte[]> patternConsumer(String pattern, String name, int periodS) throws Exception {
        return client.newConsumer().topicsPattern(Pattern.compile("persistent://public/default/" + pattern))
            .subscriptionName(name).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
            .patternAutoDiscoveryPeriod(periodS, TimeUnit.SECONDS).subscribe();
    }

    void testTermination() throws Exception {
        CompletableFuture<Void> ended = new CompletableFuture<>();
        Consumer<byte[]> listening = client.newConsumer().topic(topic).subscriptionName("listening")
            .messageListener(new MessageListener<byte[]>() {
                @Override
                public void received(Consumer<byte[]> consumer, Message<byte[]> message) {
                    consumer.acknowledgeAsync(message);
                }

                @Override
                public void reachedEndOfTopic(Consumer<byte[]> consumer) {
                    ended.complete(null);
                }
            }).subscribe();
        Producer<byte[]> producer = client.newProducer().topic(topic).create();
        send(producer, 0, 9);
        Consumer<byte[]> slow = consumer().subscribe();
        HttpRequest request = HttpRequest.newBuilder()
            .uri(URI.create(webUrl + "/admin/v2/persistent/public/default/" + topic + "/terminate"))
            .POST(HttpRequest.BodyPublishers.noBody()).build();
        int status = http().send(request, HttpResponse.BodyHandlers.discarding()).statusCode();
        check(status == 200, "terminating is answered with " + status);
        ended.get(PATIENCE_S, TimeUnit.SECONDS);
        check(!slow.hasReachedEndOfTopic(), "there are messages left");
        for (Message<byte[]> message : receive(slow, 10)) {
            slow.acknowledge(message);
        }
        for (int waited = 0; !slow.hasReachedEndOfTopic(); waited++) {
            check(waited < PATIENCE_S * 10, "it is not told of the end");
            Thread.sleep(100);
        }
        expectRefusal(PulsarClientException.TopicTerminatedException.class, () -> producer.send(bytes("late")));
        expectRefusal(PulsarClientException.TopicTerminatedException.class,
            () -> client.newProducer().topic(topic).create());
        try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
            for (int number = 0; number <= 9; number++) {
                check(number(reader.readNext(PATIENCE_S, TimeUnit.SECONDS)) == number, "it is read to its end");
            }
        }
        listening.close();
    }

    void testChunks() throws Exception {
        Consumer<byte[]> consumer = consumer().subscribe();
        byte[] large = new byte[11_000_000];
        for (int index = 0; index < large.length; index++) {
            large[index] = (byte) (index * index >> 3);
        }
        producer().enableChunking(true).enableBatching(false).create().send(large);
        check(Arrays.equals(receive(consumer, 1).get(0).getValue(), large), "another message came");
    }

    void testDelayed() throws Exception {
        Consumer<byte[]> consumer = consumer().subscriptionType(SubscriptionType.Shared).subscribe();
        Producer<byte[]> producer = producer().create();
        long start = System.nanoTime();
        producer.newMessage().value(bytes("1")).deliverAfter(2500, TimeUnit.MILLISECONDS).send();
        send(producer, 2, 2);
        expect(consumer, 2, 2);
        expect(consumer, 1, 1);
        check(System.nanoTime() - start > 1_500_000_000L, "it came too early");
    }

    public static class Person {
        public String name;
        public int age;
    }

    public static class Other {
        public int name;
    }

    void testSchemas() throws Exception {
        for (Schema<Person> schema : List.of(Schema.JSON(Person.class), Schema.AVRO(Person.class))) {
            String name = topic + "-" + schema.getSchemaInfo().getType();
            Producer<Person> producer = client.newProducer(schema).topic(name).create();
            Consumer<Person> consumer = client.newConsumer(schema).topic(name).subscriptionName("sub").subscribe();
            Consumer<GenericRecord> any = client.newConsumer(Schema.AUTO_CONSUME()).topic(name).subscriptionName("any")
                .subscribe();
            Person person = new Person();
            person.name = "Ann";
            person.age = 42;
            producer.send(person);
            Person got = receive(consumer, 1).get(0).getValue();
            check(got.name.equals("Ann") && got.age == 42, "another person");
            check(receive(any, 1).get(0).getValue().getField("age").equals(42), "another person");
            Producer<byte[]> raw = client.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(name).create();
            raw.send(schema.encode(person));
            check(receive(consumer, 1).get(0).getValue().age == 42, "another person");
            expectRefusal(PulsarClientException.IncompatibleSchemaException.class,
                () -> client.newProducer(Schema.AVRO(Other.class)).topic(name).create());
        }
        String numbers = topic + "-numbers";
        Consumer<Long> consumer = client.newConsumer(Schema.INT64).topic(numbers).subscriptionName("sub").subscribe();
        client.newProducer(Schema.INT64).topic(numbers).create().send(1L << 40);
        check(receive(consumer, 1).get(0).getValue() == 1L << 40, "another number");
    }

    void testAccessModes() throws Exception {
        ProducerBuilder<byte[]> exclusive = producer().accessMode(ProducerAccessMode.Exclusive);
        Producer<byte[]> first = exclusive.create();
        expectRefusal(PulsarClientException.ProducerFencedException.class, () -> exclusive.clone().create());
        CompletableFuture<Producer<byte[]>> waiting = producer().accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
        Thread.sleep(300);
        check(!waiting.isDone(), "it did not wait");
        first.close();
        Producer<byte[]> second = waiting.get(PATIENCE_S, TimeUnit.SECONDS);
        send(second, 1, 1);
        Producer<byte[]> third = producer().accessMode(ProducerAccessMode.ExclusiveWithFencing).create();
        expectRefusal(PulsarClientException.class, () -> second.send(bytes("late")));
        send(third, 2, 2);
        expect(consumer().subscribe(), 1, 2);
    }

    void testNonPersistent() throws Exception {
        String name = "non-persistent://public/default/" + topic;
        Consumer<byte[]> consumer = client.newConsumer().topic(name).subscriptionName("sub").subscribe();
        send(client.newProducer().topic(name).create(), 0, 9);
        expect(consumer, 0, 9);
    }

    void testHttpLookup() throws Exception {
        try (PulsarClient http = builder(webUrl).build()) {
            Consumer<byte[]> consumer = http.newConsumer().topic(topic).subscriptionName("sub").subscribe();
            send(http.newProducer().topic(topic).create(), 0, 9);
            expect(consumer, 0, 9);
            check(http.getPartitionsForTopic(prefix + "-parts").get().size() == 3, "there are other partitions");
        }
    }

    void testTransactionsAreRefused() throws Exception {
        expectRefusal(Exception.class, () -> {
            try (PulsarClient asking = builder(url())
                    .operationTimeout(5, TimeUnit.SECONDS).enableTransaction(true).build()) {
                asking.newTransaction().build().get(PATIENCE_S, TimeUnit.SECONDS);
            }
        });
    }

    private String url() {
        return ((org.apache.pulsar.client.impl.PulsarClientImpl) client).getLookup().getServiceUrl();
    }

    void testTableView() throws Exception {
        send(producer().create(), 0, 99);
        // By its short name it would be taken for a topic without storage, and not be read to its end at once.
        String name = "persistent://public/default/" + topic;
        try (TableView<byte[]> view = client.newTableView().topic(name).create()) {
            for (int number = 0; number < 10; number++) {
                String found = new String(view.get("key-" + number), StandardCharsets.UTF_8);
                check(found.equals("" + (90 + number)), "key-" + number + " is " + found);
            }
        }
    }

    void testCompaction() throws Exception {
        Producer<byte[]> producer = producer().create();
        send(producer, 0, 99);
        producer.newMessage().key("key-3").value(null).send();
        String name = "persistent://public/default/" + topic;
        String path = webUrl + "/admin/v2/persistent/public/default/" + topic + "/compaction";
        HttpRequest start = HttpRequest.newBuilder().uri(URI.create(path))
            .PUT(HttpRequest.BodyPublishers.noBody()).build();
        HttpRequest ask = HttpRequest.newBuilder().uri(URI.create(path)).GET().build();
        HttpClient http = http();
        int status = http.send(start, HttpResponse.BodyHandlers.discarding()).statusCode();
        check(status == 204, "compacting is answered with " + status);
        String said = "RUNNING";
        for (int waited = 0; said.contains("RUNNING") && waited < PATIENCE_S * 10; waited++) {
            Thread.sleep(100);
            said = http.send(ask, HttpResponse.BodyHandlers.ofString()).body();
        }
        check(said.contains("SUCCESS"), "compacting ends with " + said);
        try (TableView<byte[]> view = client.newTableView().topic(name).create()) {
            check(view.size() == 9 && !view.containsKey("key-3"), "the view has " + view.keySet());
            check(new String(view.get("key-4"), StandardCharsets.UTF_8).equals("94"), "key-4 is old");
        }
        send(producer, 100, 100);
        List<String> values = new ArrayList<>();
        try (Reader<byte[]> reader = client.newReader().topic(name).readCompacted(true)
                .startMessageId(MessageId.earliest).create()) {
            while (reader.hasMessageAvailable()) {
                values.add(new String(reader.readNext(PATIENCE_S, TimeUnit.SECONDS).getValue(), StandardCharsets.UTF_8));
            }
        }
        List<String> left = List.of("90", "91", "92", "94", "95", "96", "97", "98", "99", "100");
        check(values.equals(left), "the reader gets " + values);
        Consumer<byte[]> consumer = consumer().readCompacted(true).subscribe();
        for (String value : left) {
            Message<byte[]> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
            check(new String(message.getValue(), StandardCharsets.UTF_8).equals(value), "the consumer misses " + value);
            consumer.acknowledge(message);
        }
        expectRefusal(PulsarClientException.class, () -> consumer().subscriptionName("shared")
            .subscriptionType(SubscriptionType.Shared).readCompacted(true).subscribe());
    }

    void testRefusals() throws Exception {
        consumer().subscribe();
        expectRefusal(PulsarClientException.ConsumerBusyException.class, () -> consumer().subscribe());
        producer().producerName("same").create();
        expectRefusal(PulsarClientException.ProducerBusyException.class, () -> producer().producerName("same").create());
        expectRefusal(PulsarClientException.class, () -> producer().create().send(new byte[6_000_000]));
    }

    /**
     * Publishes to several topics and consumes from them for FLOW_SECONDS, while their brokers may change: nothing is
     * lost, and what comes for the first time comes in order.
     */
    void testFlow() throws Exception {
        long lengthMs = flowMs();
        List<CompletableFuture<Void>> flows = IntStream.range(0, 8).mapToObj(number -> CompletableFuture.runAsync(() -> {
            try {
                flow(topic + "-" + number, lengthMs);
            } catch (Exception problem) {
                throw new IllegalStateException(topic + "-" + number + ": " + problem, problem);
            }
        }, command -> new Thread(command).start())).toList();
        CompletableFuture.allOf(flows.toArray(new CompletableFuture<?>[0])).get(lengthMs + 2000L * PATIENCE_S,
            TimeUnit.MILLISECONDS);
    }

    private void flow(String name, long lengthMs) throws Exception {
        Consumer<byte[]> consumer = client.newConsumer().topic(name).subscriptionName("sub")
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        Producer<byte[]> producer = client.newProducer().topic(name).create();
        int next = 0;
        for (long end = System.currentTimeMillis() + lengthMs; System.currentTimeMillis() < end;) {
            send(producer, next, next + 9);
            for (int last = next + 9; next <= last;) {
                Message<byte[]> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
                check(message != null, next + " does not come");
                int number = Integer.parseInt(new String(message.getValue(), StandardCharsets.UTF_8));
                check(number <= next, number + " came instead of " + next);
                next = Math.max(next, number + 1);
                consumer.acknowledge(message);
            }
        }
    }

    /**
     * Reads a topic from its first message over and over for FLOW_SECONDS, while its segments move and its brokers may
     * change: the same messages come with the same ids, in the same order.
     */
    void testAgain() throws Exception {
        int count = 500;
        send(producer().batchingMaxMessages(10).create(), 0, count - 1);
        List<MessageId> first = null;
        for (long end = System.currentTimeMillis() + flowMs(); first == null || System.currentTimeMillis() < end;) {
            List<MessageId> ids = new ArrayList<>();
            try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
                for (int number = 0; number < count; number++) {
                    Message<byte[]> message = reader.readNext(PATIENCE_S, TimeUnit.SECONDS);
                    check(message != null, number + " does not come");
                    String value = new String(message.getValue(), StandardCharsets.UTF_8);
                    check(value.equals("" + number), value + " came instead of " + number);
                    ids.add(message.getMessageId());
                }
            }
            first = first == null ? ids : first;
            check(ids.equals(first), "ids have changed");
        }
    }

    /** Length of scenarios that go on while something else happens, in milliseconds. */
    private static long flowMs() {
        return 1000L * Integer.parseInt(System.getenv().getOrDefault("FLOW_SECONDS", "3"));
    }
}
