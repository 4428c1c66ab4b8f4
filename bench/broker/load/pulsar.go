package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

type pulsarBroker struct {
	client pulsar.Client
	admin  string // URL of the admin API, for partitioned topics
	sending
}

func connectPulsar(url, admin, trust, token string, s sending) (broker, error) {
	logger := logrus.New()
	logger.SetLevel(logrus.ErrorLevel)
	options := pulsar.ClientOptions{
		URL: url, OperationTimeout: 2 * time.Minute, Logger: log.NewLoggerWithLogrus(logger),
		TLSTrustCertsFilePath: trust, TLSValidateHostname: true,
	}
	if token != "" {
		options.Authentication = pulsar.NewAuthenticationToken(token)
	}
	client, err := pulsar.NewClient(options)
	return &pulsarBroker{client, admin, s}, err
}

func (b *pulsarBroker) create(topic string, partitions int) error {
	if partitions == 0 {
		return nil // its first producer or consumer creates it
	}
	path := fmt.Sprintf("%s/admin/v2/persistent/public/default/%s/partitions", b.admin, topic)
	request, err := http.NewRequest(http.MethodPut, path, strings.NewReader(strconv.Itoa(partitions)))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode >= 300 {
		said, _ := io.ReadAll(answer.Body)
		return fmt.Errorf("PUT %s: %s %s", path, answer.Status, said)
	}
	return nil
}

type pulsarProducer struct{ pulsar.Producer }

func (b *pulsarBroker) producer(topic string) (producer, error) {
	compression := pulsar.NoCompression
	if b.compression == "zstd" {
		compression = pulsar.ZSTD
	}
	made, err := b.client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, MaxPendingMessages: b.pending, DisableBatching: !b.batches,
		BatchingMaxPublishDelay: time.Millisecond, BatchingMaxSize: batchBytes, BatchingMaxMessages: 1000,
		CompressionType: compression,
	})
	return pulsarProducer{made}, err
}

func (p pulsarProducer) send(ctx context.Context, payload []byte, done func(error)) {
	p.SendAsync(ctx, &pulsar.ProducerMessage{Payload: payload},
		func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { done(err) })
}

func (p pulsarProducer) flush() error { return p.Flush() }

func (b *pulsarBroker) consume(topic string, receive func(payload []byte)) error {
	consumer, err := b.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: subscription, Type: pulsar.Failover,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	if err != nil {
		return err
	}
	go func() {
		for message := range consumer.Chan() {
			receive(message.Payload())
			check(consumer.Ack(message))
		}
	}()
	return nil
}
