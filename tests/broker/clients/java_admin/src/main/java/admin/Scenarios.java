package admin;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.EnumSet;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.LongRunningProcessStatus;
import org.apache.pulsar.client.admin.OffloadProcessStatus;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.impl.MessageIdImpl;
import org.apache.pulsar.common.policies.data.AuthAction;
import org.apache.pulsar.common.policies.data.BacklogQuota;
import org.apache.pulsar.common.policies.data.DelayedDeliveryPolicies;
import org.apache.pulsar.common.policies.data.DispatchRate;
import org.apache.pulsar.common.policies.data.OffloadPolicies;
import org.apache.pulsar.common.policies.data.PartitionedTopicStats;
import org.apache.pulsar.common.policies.data.PersistencePolicies;
import org.apache.pulsar.common.policies.data.PersistentTopicInternalStats;
import org.apache.pulsar.common.policies.data.PublishRate;
import org.apache.pulsar.common.policies.data.RetentionPolicies;
import org.apache.pulsar.common.policies.data.SchemaCompatibilityStrategy;
import org.apache.pulsar.common.policies.data.TenantInfo;
import org.apache.pulsar.common.policies.data.TopicStats;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.policies.data.loadbalancer.LoadManagerReport;

/** What the official Java admin client does against a broker; each scenario prints its name when it has passed. */
public final class Scenarios {
    private final PulsarAdmin admin;
    private final PulsarClient client;
    private final String name;

    private Scenarios(PulsarAdmin admin, PulsarClient client, String name) {
        this.admin = admin;
        this.client = client;
        this.name = name;
    }

    public static void main(String[] arguments) throws Exception {
        List<Method> all = new ArrayList<>();
        for (Method each : Scenarios.class.getDeclaredMethods()) {
            if (each.getName().startsWith("test")) {
                all.add(each);
            }
        }
        all.sort(Comparator.comparing(Method::getName));
        int failed = 0;
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[1]).build();
                PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            for (Method each : all) {
                try {
                    each.invoke(new Scenarios(admin, client, "java-admin-" + each.getName().toLowerCase()));
                    System.out.println("passed " + each.getName());
                } catch (InvocationTargetException problem) {
                    failed++;
                    System.out.println("FAILED " + each.getName() + ": " + problem.getCause());
                    problem.getCause().printStackTrace(System.out);
                }
            }
        }
        System.exit(failed == 0 ? 0 : 1);
    }

    private String topic() {
        return "persistent://public/default/" + name;
    }

    private List<MessageId> send(String topic, int count) throws Exception {
        List<MessageId> ids = new ArrayList<>();
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
            for (int i = 0; i < count; i++) {
                ids.add(producer.newMessage().key("k" + i).property("n", "" + i).value(("m" + i).getBytes()).send());
            }
        }
        return ids;
    }

    private static void same(Object expected, Object found) {
        if (expected instanceof Number && found instanceof Number) {
            expected = ((Number) expected).doubleValue();
            found = ((Number) found).doubleValue();
        }
        if (!expected.equals(found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }

    private static void refused(Class<? extends PulsarAdminException> kind, Action action) throws Exception {
        try {
            action.run();
        } catch (PulsarAdminException error) {
            if (!kind.isInstance(error)) {
                throw error;
            }
            return;
        }
        throw new AssertionError("not refused");
    }

    private interface Action {
        void run() throws Exception;
    }

    public void testClusterAndBrokers() throws Exception {
        same(List.of("standalone"), admin.clusters().getClusters());
        same(true, admin.clusters().getCluster("standalone").getBrokerServiceUrl().startsWith("pulsar://"));
        same(1, admin.brokers().getActiveBrokers("standalone").size());
        same(true, admin.brokers().getLeaderBroker().getServiceUrl().startsWith("http://"));
        same(true, admin.brokers().getRuntimeConfigurations().containsKey("maxMessageSize"));
        same(true, admin.brokers().getDynamicConfigurationNames().contains("maxSubscriptionsPerTopic"));
        admin.brokers().updateDynamicConfiguration("maxSubscriptionsPerTopic", "77");
        same("77", admin.brokers().getRuntimeConfigurations().get("maxSubscriptionsPerTopic"));
        same(Map.of("maxSubscriptionsPerTopic", "77"), admin.brokers().getAllDynamicConfigurations());
        admin.brokers().deleteDynamicConfiguration("maxSubscriptionsPerTopic");
        same(Map.of(), admin.brokers().getAllDynamicConfigurations());
        admin.brokers().healthcheck();
        same(false, admin.brokers().getVersion().isEmpty());
        LoadManagerReport load = admin.brokerStats().getLoadReport();
        same(true, load.getPulsarServiceUrl().startsWith("pulsar://"));
        same(load.getNumBundles(), load.getBundleStats().size());
        same(true, load.getMemory().percentUsage() > 0);
    }

    public void testTenantsAndNamespaces() throws Exception {
        TenantInfo info = TenantInfo.builder().adminRoles(Set.of("a")).allowedClusters(Set.of("standalone")).build();
        admin.tenants().createTenant(name, info);
        refused(PulsarAdminException.ConflictException.class, () -> admin.tenants().createTenant(name, info));
        same(Set.of("a"), admin.tenants().getTenantInfo(name).getAdminRoles());
        admin.namespaces().createNamespace(name + "/n");
        admin.namespaces().createNamespace(name + "/m", Set.of("standalone"));
        same(new HashSet<>(List.of(name + "/n", name + "/m")), new HashSet<>(admin.namespaces().getNamespaces(name)));
        admin.namespaces().setProperty(name + "/n", "a", "1");
        same("1", admin.namespaces().getProperty(name + "/n", "a"));
        same(4, admin.namespaces().getBundles(name + "/n").getNumBundles());
        same(List.of("standalone"), new ArrayList<>(admin.namespaces().getPolicies(name + "/n").replication_clusters));
        admin.topics().createNonPartitionedTopic("persistent://" + name + "/n/t");
        refused(PulsarAdminException.ConflictException.class, () -> admin.namespaces().deleteNamespace(name + "/n"));
        admin.namespaces().deleteNamespace(name + "/m");
        admin.namespaces().unload(name + "/n");
        admin.namespaces().deleteNamespace(name + "/n", true);
        admin.tenants().deleteTenant(name);
        refused(PulsarAdminException.NotFoundException.class, () -> admin.tenants().getTenantInfo(name));
    }

    public void testNamespacePolicies() throws Exception {
        String namespace = "public/" + name;
        admin.namespaces().createNamespace(namespace);
        same(true, admin.namespaces().getRetention(namespace) == null);
        RetentionPolicies retention = new RetentionPolicies(10, 20);
        admin.namespaces().setRetention(namespace, retention);
        same(retention, admin.namespaces().getRetention(namespace));
        admin.namespaces().setNamespaceMessageTTL(namespace, 60);
        same(60, admin.namespaces().getNamespaceMessageTTL(namespace));
        BacklogQuota quota = BacklogQuota.builder().limitSize(1000)
                .retentionPolicy(BacklogQuota.RetentionPolicy.producer_exception).build();
        admin.namespaces().setBacklogQuota(namespace, quota, BacklogQuota.BacklogQuotaType.destination_storage);
        same(1000, admin.namespaces().getBacklogQuotaMap(namespace)
                .get(BacklogQuota.BacklogQuotaType.destination_storage).getLimitSize());
        admin.namespaces().setDeduplicationStatus(namespace, true);
        same(true, admin.namespaces().getDeduplicationStatus(namespace));
        admin.namespaces().setSchemaCompatibilityStrategy(namespace, SchemaCompatibilityStrategy.BACKWARD);
        same(SchemaCompatibilityStrategy.BACKWARD, admin.namespaces().getSchemaCompatibilityStrategy(namespace));
        admin.namespaces().setCompactionThreshold(namespace, 1 << 20);
        same(1 << 20, admin.namespaces().getCompactionThreshold(namespace));
        admin.namespaces().setMaxConsumersPerTopic(namespace, 5);
        same(5, admin.namespaces().getMaxConsumersPerTopic(namespace));
        admin.namespaces().setSubscriptionTypesEnabled(namespace, EnumSet.of(SubscriptionType.Shared));
        same(EnumSet.of(SubscriptionType.Shared), admin.namespaces().getSubscriptionTypesEnabled(namespace));
        admin.namespaces().removeRetention(namespace);
        same(true, admin.namespaces().getRetention(namespace) == null);
        same(false, admin.namespaces().getSchemaValidationEnforced(namespace));
        same(true, admin.namespaces().getIsAllowAutoUpdateSchema(namespace));
        admin.namespaces().setPersistence(namespace, new PersistencePolicies(3, 2, 2, 0.0));
        same(2, admin.namespaces().getPersistence(namespace).getBookkeeperWriteQuorum());
        same(Map.of(), admin.namespaces().getPermissions(namespace));
        refused(PulsarAdminException.ServerSideErrorException.class, () -> admin.namespaces()
                .grantPermissionOnNamespace(namespace, "r", Set.of(AuthAction.produce)));
        admin.namespaces().clearNamespaceBacklog(namespace);
        same(60, admin.namespaces().getPolicies(namespace).message_ttl_in_seconds);
    }

    public void testTopicPolicies() throws Exception {
        admin.topics().createNonPartitionedTopic(topic());
        RetentionPolicies retention = new RetentionPolicies(10, 20);
        admin.topicPolicies().setRetention(topic(), retention);
        same(retention, admin.topicPolicies().getRetention(topic()));
        admin.topicPolicies().removeRetention(topic());
        same(true, admin.topicPolicies().getRetention(topic()) == null);
        same(true, admin.topicPolicies().getRetention(topic(), true) != null);
        PublishRate rate = new PublishRate(100, 1000);
        admin.topicPolicies().setPublishRate(topic(), rate);
        same(rate, admin.topicPolicies().getPublishRate(topic()));
        admin.topicPolicies().setMaxProducers(topic(), 3);
        same(3, admin.topicPolicies().getMaxProducers(topic()));
        admin.topicPolicies().setMessageTTL(topic(), 9);
        same(9, admin.topicPolicies().getMessageTTL(topic()));
        DispatchRate dispatch = DispatchRate.builder().dispatchThrottlingRateInMsg(10).ratePeriodInSecond(1).build();
        admin.topicPolicies().setDispatchRate(topic(), dispatch);
        same(10, admin.topicPolicies().getDispatchRate(topic()).getDispatchThrottlingRateInMsg());
        admin.topicPolicies().setDelayedDeliveryPolicy(topic(),
                DelayedDeliveryPolicies.builder().active(true).tickTime(500).build());
        same(500, admin.topicPolicies().getDelayedDeliveryPolicy(topic()).getTickTime());
        admin.topicPolicies().setMaxMessageSize(topic(), 1000);
        same(1000, admin.topicPolicies().getMaxMessageSize(topic()));
        same(3, admin.topicPolicies().getPersistence(topic(), true).getBookkeeperEnsemble());
        same(true, admin.topicPolicies().getPersistence(topic()) == null);
        PersistencePolicies persistence = new PersistencePolicies(2, 2, 1, 0.0);
        admin.topicPolicies().setPersistence(topic(), persistence);
        same(persistence, admin.topicPolicies().getPersistence(topic()));
        refused(PulsarAdminException.PreconditionFailedException.class,
                () -> admin.topicPolicies().setPersistence(topic(), new PersistencePolicies(9, 9, 9, 0.0)));
        same(false, admin.topics().getSchemaValidationEnforced(topic(), true));
        admin.topicPolicies().setDeduplicationSnapshotInterval(topic(), 10);
        same(10, admin.topicPolicies().getDeduplicationSnapshotInterval(topic()));
        refused(PulsarAdminException.ServerSideErrorException.class,
                () -> admin.topics().setReplicationClusters(topic(), List.of("east")));
    }

    public void testTopicsAndPartitions() throws Exception {
        admin.topics().createPartitionedTopic(topic(), 2, Map.of("a", "b"));
        same(2, admin.topics().getPartitionedTopicMetadata(topic()).partitions);
        same(Map.of("a", "b"), admin.topics().getProperties(topic()));
        admin.topics().updatePartitionedTopic(topic(), 3);
        same(true, admin.topics().getPartitionedTopicList("public/default").contains(topic()));
        same(true, admin.topics().getList("public/default").contains(topic() + "-partition-2"));
        send(topic(), 9);
        admin.topics().createSubscription(topic(), "s", MessageId.earliest);
        PartitionedTopicStats stats = admin.topics().getPartitionedStats(topic(), true);
        same(9, stats.getSubscriptions().get("s").getMsgBacklog());
        same(3, stats.getPartitions().size());
        same(3, admin.topics().getPartitionedInternalStats(topic()).partitions.size());
        admin.topics().deletePartitionedTopic(topic(), true);
        refused(PulsarAdminException.NotFoundException.class,
                () -> admin.topics().getPartitionedTopicMetadata(topic()));
    }

    public void testStatsAndSubscriptions() throws Exception {
        admin.topics().createNonPartitionedTopic(topic());
        admin.topics().createSubscription(topic(), "s", MessageId.latest);
        refused(PulsarAdminException.ConflictException.class,
                () -> admin.topics().createSubscription(topic(), "s", MessageId.latest));
        List<MessageId> ids = send(topic(), 10);
        TopicStats stats = admin.topics().getStats(topic());
        same(10, stats.getSubscriptions().get("s").getMsgBacklog());
        same(10, stats.getMsgInCounter());
        PersistentTopicInternalStats internal = admin.topics().getInternalStats(topic());
        same(10, internal.numberOfEntries);
        same(1, internal.ledgers.size());
        same(List.of("s"), admin.topics().getSubscriptions(topic()));
        admin.topics().skipMessages(topic(), "s", 4);
        same(6, admin.topics().getStats(topic()).getSubscriptions().get("s").getMsgBacklog());
        admin.topics().resetCursor(topic(), "s", ids.get(2));
        same(8, admin.topics().getStats(topic()).getSubscriptions().get("s").getMsgBacklog());
        admin.topics().resetCursor(topic(), "s", ids.get(2), true);
        same(7, admin.topics().getStats(topic()).getSubscriptions().get("s").getMsgBacklog());
        admin.topics().resetCursor(topic(), "s", 0L);
        same(10, admin.topics().getStats(topic()).getSubscriptions().get("s").getMsgBacklog());
        same(true, admin.topics().getBacklogSizeByMessageId(topic(), ids.get(4)) > 0);
        admin.topics().expireMessagesForAllSubscriptions(topic(), 100_000);
        admin.topics().skipAllMessages(topic(), "s");
        same(0, admin.topics().getStats(topic()).getSubscriptions().get("s").getMsgBacklog());
        admin.topics().deleteSubscription(topic(), "s");
        refused(PulsarAdminException.NotFoundException.class, () -> admin.topics().deleteSubscription(topic(), "s"));
        admin.topics().unload(topic());
        admin.topics().delete(topic());
    }

    public void testMessages() throws Exception {
        List<MessageId> ids = send(topic(), 5);
        admin.topics().createSubscription(topic(), "s", MessageId.earliest);
        List<Message<byte[]>> peeked = admin.topics().peekMessages(topic(), "s", 3);
        same(3, peeked.size());
        same("m1", new String(peeked.get(1).getData(), StandardCharsets.UTF_8));
        same("1", peeked.get(1).getProperty("n"));
        same("k1", peeked.get(1).getKey());
        MessageIdImpl id = (MessageIdImpl) ids.get(3);
        Message<byte[]> found = admin.topics().getMessagesById(topic(), id.getLedgerId(), id.getEntryId()).get(0);
        same("m3", new String(found.getData(), StandardCharsets.UTF_8));
        same("m4", new String(admin.topics().examineMessage(topic(), "latest", 1).getData(), StandardCharsets.UTF_8));
        same("m0", new String(admin.topics().examineMessage(topic(), "earliest", 1).getData(), StandardCharsets.UTF_8));
        same(ids.get(4), admin.topics().getLastMessageId(topic()));
        same(ids.get(0), admin.topics().getMessageIdByTimestamp(topic(), 0));
        try (Producer<byte[]> producer = client.newProducer().topic(topic() + "-batch").enableBatching(true)
                .batchingMaxPublishDelay(1, TimeUnit.MINUTES).create()) {
            for (int i = 0; i < 3; i++) {
                producer.sendAsync(("b" + i).getBytes());
            }
            producer.flush();
        }
        admin.topics().createSubscription(topic() + "-batch", "s", MessageId.earliest);
        List<Message<byte[]>> batch = admin.topics().peekMessages(topic() + "-batch", "s", 3);
        same("b2", new String(batch.get(2).getData(), StandardCharsets.UTF_8));
    }

    public void testSchemas() throws Exception {
        admin.topics().createNonPartitionedTopic(topic());
        SchemaInfo schema = Schema.JSON(Click.class).getSchemaInfo();
        admin.schemas().createSchema(topic(), schema);
        same(true, Arrays.equals(schema.getSchema(), admin.schemas().getSchemaInfo(topic()).getSchema()));
        same(0, admin.schemas().getVersionBySchema(topic(), new org.apache.pulsar.common.protocol.schema.PostSchemaPayload(
                "JSON", schema.getSchemaDefinition(), Map.of())));
        same(1, admin.schemas().getAllSchemas(topic()).size());
        same(1, admin.schemas().getSchemaMetadata(topic()).index.size());
        admin.schemas().deleteSchema(topic());
        refused(PulsarAdminException.NotFoundException.class, () -> admin.schemas().getSchemaInfo(topic()));
        admin.schemas().createSchema(topic(), Schema.STRING.getSchemaInfo());
        same(2L, admin.schemas().getSchemaInfoWithVersion(topic()).getVersion());
    }

    /** A message with a schema. */
    public static final class Click {
        public String url;
        public int count;
    }

    public void testTerminate() throws Exception {
        List<MessageId> ids = send(topic(), 3);
        same(ids.get(2), admin.topics().terminateTopic(topic()));
    }

    public void testCompaction() throws Exception {
        send(topic(), 3);
        admin.topics().triggerCompaction(topic());
        LongRunningProcessStatus.Status status = LongRunningProcessStatus.Status.RUNNING;
        for (int i = 0; i < 600 && status == LongRunningProcessStatus.Status.RUNNING; i++) {
            Thread.sleep(100);
            status = admin.topics().compactionStatus(topic()).status;
        }
        same(LongRunningProcessStatus.Status.SUCCESS, status);
    }

    public void testOffload() throws Exception {
        String namespace = "public/" + name;
        admin.namespaces().createNamespace(namespace);
        same(-1L, admin.namespaces().getOffloadThreshold(namespace));
        same(true, admin.namespaces().getOffloadDeleteLagMs(namespace) == null);
        admin.namespaces().setOffloadThreshold(namespace, 1000);
        admin.namespaces().setOffloadThresholdInSeconds(namespace, 60);
        admin.namespaces().setOffloadDeleteLag(namespace, 5, TimeUnit.SECONDS);
        same(1000L, admin.namespaces().getOffloadThreshold(namespace));
        same(60L, admin.namespaces().getOffloadThresholdInSeconds(namespace));
        same(5000L, admin.namespaces().getOffloadDeleteLagMs(namespace));
        admin.namespaces().clearOffloadDeleteLag(namespace);
        same(true, admin.namespaces().getOffloadDeleteLagMs(namespace) == null);
        OffloadPolicies policies = OffloadPolicies.builder().managedLedgerOffloadDriver("archive")
                .managedLedgerOffloadThresholdInBytes(7L).managedLedgerOffloadDeletionLagInMillis(1L).build();
        admin.namespaces().setOffloadPolicies(namespace, policies);
        same(7L, admin.namespaces().getOffloadPolicies(namespace).getManagedLedgerOffloadThresholdInBytes());
        admin.namespaces().removeOffloadPolicies(namespace);
        same(true, admin.namespaces().getOffloadPolicies(namespace) == null);
        OffloadPolicies elsewhere = OffloadPolicies.builder().managedLedgerOffloadDriver("aws-s3")
                .managedLedgerOffloadBucket("mine").build();
        refused(PulsarAdminException.PreconditionFailedException.class,
                () -> admin.namespaces().setOffloadPolicies(namespace, elsewhere));

        send(topic(), 3);
        admin.topicPolicies().setOffloadPolicies(topic(), policies);
        same("archive", admin.topicPolicies().getOffloadPolicies(topic(), true).getManagedLedgerOffloadDriver());
        same(LongRunningProcessStatus.Status.NOT_RUN, admin.topics().offloadStatus(topic()).getStatus());
        admin.topics().triggerOffload(topic(), admin.topics().getLastMessageId(topic()));
        OffloadProcessStatus offload = admin.topics().offloadStatus(topic());
        for (int i = 0; i < 600 && offload.getStatus() == LongRunningProcessStatus.Status.RUNNING; i++) {
            Thread.sleep(100);
            offload = admin.topics().offloadStatus(topic());
        }
        same(LongRunningProcessStatus.Status.SUCCESS, offload.getStatus());
        same(true, ((MessageIdImpl) offload.getFirstUnoffloadedMessage()).getLedgerId() > 0);
        same(0L, admin.topics().getStats(topic()).getOffloadedStorageSize());
    }
}
