package clients;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * Producers and consumers that say what they see, for a judge.
 *
 * <p>Arguments: the service URL and a topic. The program says "ready" when all of them are there. Each line of the input
 * is a number of messages that each producer may send; "end" ends the producers. Each line of the output is "sending",
 * "stored", or "received" and a subscription, and then a message's value: its producer, number and key. The program says
 * "ended" after the last receipt, and exits at the end of the input.
 */
public final class History {
    private static final int KEYS = 7;

    private final Producer<byte[]> producer;
    private final boolean isKeyed;
    private long number;

    /** One with keys does not batch, because Key_Shared distinguishes messages by entry. */
    private History(PulsarClient client, String topic, boolean isKeyed) throws PulsarClientException {
        this.isKeyed = isKeyed;
        this.producer = client.newProducer().topic(topic).producerName(isKeyed ? "java-keyed" : "java-batched")
            .enableBatching(!isKeyed).sendTimeout(0, TimeUnit.SECONDS).blockIfQueueFull(true).create();
    }

    public static void main(String[] args) throws Exception {
        List<PulsarClient> clients = List.of(client(args[0]), client(args[0]));
        for (PulsarClient client : clients) {
            consume(client, args[1], "java-failover", SubscriptionType.Failover);
            consume(client, args[1], "java-keys", SubscriptionType.Key_Shared);
        }
        List<History> producers = new ArrayList<>();
        for (boolean isKeyed : new boolean[] {false, true}) {
            producers.add(new History(clients.get(0), args[1], isKeyed));
        }
        System.out.println("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            for (History history : producers) {
                if (line.equals("end")) {
                    history.producer.flush();
                } else {
                    history.send(Integer.parseInt(line));
                }
            }
            if (line.equals("end")) {
                System.out.println("ended");
            }
        }
        System.exit(0);
    }

    private static PulsarClient client(String url) throws PulsarClientException {
        return PulsarClient.builder().serviceUrl(url).operationTimeout(2, TimeUnit.MINUTES).build();
    }

    /** Says and acknowledges what comes, in the client's own thread. */
    private static void consume(PulsarClient client, String topic, String subscription, SubscriptionType type)
        throws PulsarClientException {
        client.newConsumer().topic(topic).subscriptionName(subscription).subscriptionType(type)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
            .messageListener((consumer, message) -> {
                System.out.println("received " + subscription + " "
                    + new String(message.getValue(), StandardCharsets.UTF_8));
                consumer.acknowledgeAsync(message);
            }).subscribe();
    }

    private void send(int messages) {
        for (int last = messages; last > 0; last--) {
            number++;
            String key = isKeyed ? "k" + number % KEYS : "";
            String value = producer.getProducerName() + " " + number + " " + key;
            System.out.println("sending " + value);
            TypedMessageBuilder<byte[]> message = producer.newMessage().sequenceId(number)
                .value(value.getBytes(StandardCharsets.UTF_8));
            (isKeyed ? message.key(key) : message).sendAsync().thenRun(() -> System.out.println("stored " + value));
        }
    }
}
