package main

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

type natsBroker struct {
	url string
	sending
}

// NATS has neither batches nor compression: messages of a client share its writes to the socket.
func connectNats(url string, s sending) broker { return &natsBroker{url, s} }

// A connection of its own for each producer and consumer, as NATS recommends for throughput.
func (b *natsBroker) stream() (jetstream.JetStream, error) {
	connection, err := nats.Connect(b.url)
	if err != nil {
		return nil, err
	}
	return jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(b.pending))
}

func (b *natsBroker) create(topic string, partitions int) error {
	if partitions > 0 {
		return errors.New("NATS has no partitioned streams: give no partitions")
	}
	stream, err := b.stream()
	if err != nil {
		return err
	}
	defer stream.Conn().Close()
	_, err = stream.CreateStream(context.Background(), jetstream.StreamConfig{
		Name: topic, Subjects: []string{topic}, Storage: jetstream.FileStorage, Replicas: 1,
	})
	return err
}

type natsProducer struct {
	jetstream.JetStream
	topic string
}

func (b *natsBroker) producer(topic string) (producer, error) {
	stream, err := b.stream()
	return natsProducer{stream, topic}, err
}

func (p natsProducer) send(_ context.Context, payload []byte, done func(error)) {
	future, err := p.PublishAsync(p.topic, payload, jetstream.WithStallWait(time.Minute))
	if err != nil {
		done(err)
		return
	}
	go func() {
		select {
		case <-future.Ok():
			done(nil)
		case err := <-future.Err():
			done(err)
		}
	}()
}

func (p natsProducer) flush() error {
	<-p.PublishAsyncComplete()
	return nil
}

func (b *natsBroker) consume(topic string, receive func(payload []byte)) error {
	stream, err := b.stream()
	if err != nil {
		return err
	}
	consumer, err := stream.CreateOrUpdateConsumer(context.Background(), topic, jetstream.ConsumerConfig{
		Durable: subscription, AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 10_000,
	})
	if err != nil {
		return err
	}
	_, err = consumer.Consume(func(message jetstream.Msg) {
		receive(message.Data())
		check(message.Ack())
	})
	return err
}
