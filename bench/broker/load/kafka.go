package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

type kafkaBroker struct {
	host string
	sending
}

func connectKafka(host string, s sending) broker { return &kafkaBroker{host, s} }

func (b *kafkaBroker) create(topic string, partitions int) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.host))
	if err != nil {
		return err
	}
	defer client.Close()
	// Kafka syncs a batch before its receipt only if a topic asks for it.
	each := "1"
	made, err := kadm.NewClient(client).CreateTopic(
		context.Background(), int32(max(partitions, 1)), 1, map[string]*string{"flush.messages": &each}, topic)
	if err != nil {
		return err
	}
	return made.Err
}

type kafkaProducer struct {
	*kgo.Client
	topic string
}

func (b *kafkaBroker) producer(topic string) (producer, error) {
	linger, codec := time.Millisecond, kgo.NoCompression()
	if !b.batches {
		linger = 0
	}
	if b.compression == "zstd" {
		codec = kgo.ZstdCompression()
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(b.host), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.MaxBufferedRecords(b.pending),
		kgo.ProducerLinger(linger), kgo.ProducerBatchMaxBytes(batchBytes), kgo.ProducerBatchCompression(codec),
	)
	return kafkaProducer{client, topic}, err
}

func (p kafkaProducer) send(ctx context.Context, payload []byte, done func(error)) {
	p.Produce(ctx, &kgo.Record{Topic: p.topic, Value: payload}, func(_ *kgo.Record, err error) { done(err) })
}

func (p kafkaProducer) flush() error { return p.Flush(context.Background()) }

func (b *kafkaBroker) consume(topic string, receive func(payload []byte)) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(b.host), kgo.ConsumeTopics(topic), kgo.ConsumerGroup(subscription+"-"+topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond),
	)
	if err != nil {
		return err
	}
	go func() {
		for {
			fetched := client.PollFetches(context.Background())
			fetched.EachError(func(_ string, _ int32, err error) { check(err) })
			fetched.EachRecord(func(record *kgo.Record) { receive(record.Value) })
		}
	}()
	return nil
}
