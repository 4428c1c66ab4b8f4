package admin;

import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.util.Arrays;
import java.util.Base64;
import java.util.Comparator;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.Authentication;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.impl.auth.AuthenticationBasic;
import org.apache.pulsar.client.impl.auth.AuthenticationTls;
import org.apache.pulsar.client.impl.auth.oauth2.AuthenticationFactoryOAuth2;
import org.apache.pulsar.common.policies.data.AuthAction;

/**
 * What the official Java clients do against a broker with TLS, authentication and authorization; each scenario prints
 * its name when it has passed.
 *
 * <p>Arguments: the service URL, the URL of HTTPS, the URL of an OpenID issuer, and a folder with what the test made:
 * the CA, a role's certificate and its key, and the credentials for the issuer. TOKEN_SECRET is the broker's secret key
 * in base64.
 */
public final class Authenticated {
    private static final int PATIENCE_S = 60;
    private static final int RENEWALS = 3;

    private final String url;
    private final String webUrl;
    private final String issuerUrl;
    private final Path folder;
    private final String topic;

    private Authenticated(String[] arguments, String name) {
        url = arguments[0];
        webUrl = arguments[1];
        issuerUrl = arguments[2];
        folder = Path.of(arguments[3]);
        topic = "persistent://public/default/java-" + name.toLowerCase();
    }

    public static void main(String[] arguments) {
        List<Method> all = Arrays.stream(Authenticated.class.getDeclaredMethods())
            .filter(each -> each.getName().startsWith("test")).sorted(Comparator.comparing(Method::getName)).toList();
        int failed = 0;
        for (Method each : all) {
            try {
                each.invoke(new Authenticated(arguments, each.getName()));
                System.out.println("passed " + each.getName());
            } catch (InvocationTargetException | IllegalAccessException problem) {
                failed++;
                System.out.println("FAILED " + each.getName() + ": " + problem.getCause());
                problem.printStackTrace(System.out);
            }
        }
        System.exit(failed == 0 ? 0 : 1);
    }

    // -- what scenarios need --------------------------------------------------------------------------------------

    private PulsarClient client(Authentication authentication) throws PulsarClientException {
        return PulsarClient.builder().serviceUrl(url).authentication(authentication)
            .tlsTrustCertsFilePath(file("ca.cert.pem")).enableTlsHostnameVerification(true)
            .operationTimeout(5, TimeUnit.SECONDS).build();
    }

    private PulsarAdmin admin(Authentication authentication) throws PulsarClientException {
        return PulsarAdmin.builder().serviceHttpUrl(webUrl).authentication(authentication)
            .tlsTrustCertsFilePath(file("ca.cert.pem")).enableTlsHostnameVerification(true).build();
    }

    private Authentication oauth2(String credentials) throws IOException {
        return AuthenticationFactoryOAuth2.clientCredentialsBuilder().issuerUrl(new URL(issuerUrl))
            .credentialsUrl(folder.resolve(credentials).toUri().toURL()).audience("pulsar")
            .trustCertsFilePath(file("ca.cert.pem")).build();
    }

    private String file(String name) {
        return folder.resolve(name).toString();
    }

    private static String token(String role, double livesS) {
        String end = "" + (System.currentTimeMillis() / 1000.0 + livesS);
        String signed = base64("{\"alg\":\"HS256\"}".getBytes(StandardCharsets.UTF_8)) + "."
            + base64(("{\"sub\":\"" + role + "\",\"exp\":" + end + "}").getBytes(StandardCharsets.UTF_8));
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(Base64.getDecoder().decode(System.getenv("TOKEN_SECRET")), "HmacSHA256"));
            return signed + "." + base64(mac.doFinal(signed.getBytes(StandardCharsets.UTF_8)));
        } catch (GeneralSecurityException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private static String base64(byte[] content) {
        return Base64.getUrlEncoder().withoutPadding().encodeToString(content);
    }

    private Consumer<byte[]> consumer(PulsarClient client) throws PulsarClientException {
        return client.newConsumer().topic(topic).subscriptionName("s").subscribe();
    }

    private Producer<byte[]> producer(PulsarClient client) throws PulsarClientException {
        return client.newProducer().topic(topic).sendTimeout(5, TimeUnit.SECONDS).create();
    }

    private static void exchange(Producer<byte[]> producer, Consumer<byte[]> consumer, String content) throws Exception {
        producer.send(content.getBytes(StandardCharsets.UTF_8));
        Message<byte[]> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
        check(message != null, content + " did not come");
        check(content.equals(new String(message.getValue(), StandardCharsets.UTF_8)), "another message than " + content);
        consumer.acknowledge(message);
    }

    private void sendAndReceive(Authentication authentication) throws Exception {
        try (PulsarClient client = client(authentication); Consumer<byte[]> consumer = consumer(client);
                Producer<byte[]> producer = producer(client)) {
            exchange(producer, consumer, "content");
        }
    }

    /** Messages flow until credentials were renewed often enough, and the connection stays. */
    private void exchangeThroughRenewals(Authentication authentication, BooleanSupplier isEnough) throws Exception {
        try (PulsarClient client = client(authentication); Consumer<byte[]> consumer = consumer(client);
                Producer<byte[]> producer = producer(client)) {
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
            for (int number = 0; !isEnough.getAsBoolean(); number++) {
                check(System.nanoTime() < end, "the broker does not ask for new credentials");
                exchange(producer, consumer, "" + number);
            }
            exchange(producer, consumer, "after the last renewal");
            check(producer.getLastDisconnectedTimestamp() == 0, "the producer was disconnected");
            check(consumer.getLastDisconnectedTimestamp() == 0, "the consumer was disconnected");
        }
    }

    private static void check(boolean isTrue, String otherwise) {
        if (!isTrue) {
            throw new AssertionError(otherwise);
        }
    }

    private static void expectRefusal(Class<? extends Exception> kind, Action action) throws Exception {
        try {
            action.run();
        } catch (Exception problem) {
            check(kind.isInstance(problem), "refused by " + problem);
            return;
        }
        throw new AssertionError("it was not refused with " + kind);
    }

    private interface Action {
        void run() throws Exception;
    }

    // -- scenarios ------------------------------------------------------------------------------------------------

    /** The client asks its supplier when it connects, and then at each AUTH_CHALLENGE. */
    public void testATokenIsRenewedOnItsConnection() throws Exception {
        AtomicInteger given = new AtomicInteger();
        exchangeThroughRenewals(AuthenticationFactory.token(() -> {
            given.incrementAndGet();
            return token("supplied", 1);
        }), () -> given.get() >= 1 + RENEWALS);
    }

    public void testATokenThatIsNotRenewedEndsItsConnection() throws Exception {
        try (PulsarClient client = client(AuthenticationFactory.token(token("orders", 2)))) {
            Consumer<byte[]> consumer = consumer(client);
            Producer<byte[]> producer = producer(client);
            exchange(producer, consumer, "in time");
            expectRefusal(PulsarClientException.class, () -> {
                for (long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S); System.nanoTime() < end;) {
                    exchange(producer, consumer, "late");
                }
            });
            check(producer.getLastDisconnectedTimestamp() > 0, "the producer is connected");
        }
    }

    public void testATokenOfAnotherKeyIsRefused() throws Exception {
        String token = token("orders", 60);
        String forged = token.substring(0, token.lastIndexOf('.')) + "." + base64(new byte[32]);
        try (PulsarClient client = client(AuthenticationFactory.token(forged))) {
            expectRefusal(PulsarClientException.AuthenticationException.class, () -> producer(client));
        }
        try (PulsarAdmin admin = admin(AuthenticationFactory.token(forged))) {
            expectRefusal(PulsarAdminException.NotAuthorizedException.class, () -> admin.tenants().getTenants());
        }
    }

    public void testClientCredentials() throws Exception {
        sendAndReceive(oauth2("orders.json"));
    }

    /** The issuer's tokens live for two seconds: the client gets others when the broker asks for them. */
    public void testClientCredentialsAreRenewedOnTheirConnection() throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(12);
        exchangeThroughRenewals(oauth2("short.json"), () -> System.nanoTime() > end);
    }

    public void testWrongClientCredentials() throws Exception {
        try (PulsarClient client = client(oauth2("wrong.json"))) {
            expectRefusal(PulsarClientException.class, () -> producer(client));
        }
    }

    public void testACertificate() throws Exception {
        sendAndReceive(new AuthenticationTls(file("orders.cert.pem"), file("orders.key.pem")));
    }

    public void testAPassword() throws Exception {
        AuthenticationBasic basic = new AuthenticationBasic();
        basic.configure("{\"userId\":\"orders\",\"password\":\"secret\"}");
        sendAndReceive(basic);
    }

    /** As an administrator of the cluster, and as a role that is granted a right, uses it, and loses it. */
    public void testPermissions() throws Exception {
        try (PulsarAdmin admin = admin(AuthenticationFactory.token(() -> token("admin", 60)));
                PulsarAdmin other = admin(oauth2("granted.json")); PulsarClient client = client(oauth2("granted.json"))) {
            admin.topics().createNonPartitionedTopic(topic);
            expectRefusal(PulsarAdminException.NotAuthorizedException.class, () -> other.topics().getStats(topic));
            expectRefusal(PulsarClientException.AuthorizationException.class, () -> producer(client));
            admin.topics().grantPermission(topic, "granted", Set.of(AuthAction.produce));
            check(admin.topics().getPermissions(topic).get("granted").equals(Set.of(AuthAction.produce)), "not granted");
            producer(client).send(new byte[1]);
            check(other.topics().getStats(topic).getPublishers().size() == 1, "there is another producer");
            expectRefusal(PulsarClientException.AuthorizationException.class, () -> consumer(client));
            expectRefusal(PulsarAdminException.NotAuthorizedException.class, () -> other.topics().terminateTopic(topic));
            admin.topics().revokePermissions(topic, "granted");
            expectRefusal(PulsarAdminException.NotAuthorizedException.class, () -> other.topics().getStats(topic));
            expectRefusal(PulsarClientException.AuthorizationException.class, () -> producer(client));
        }
    }
}
