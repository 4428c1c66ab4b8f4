package main

import (
	"context"
	"fmt"
	"net/url"
)

// A broker under load, by its official or most used Go client.
type broker interface {
	// Create a topic with so many partitions; 0 for a topic without partitions.
	create(topic string, partitions int) error
	// Connect a producer.
	producer(topic string) (producer, error)
	// Connect a consumer, which shares the topic with the load's other consumers, from the topic's first message on.
	consume(topic string, receive func(payload []byte)) error
}

// A producer that sends messages without waiting for their receipts, up to a limit.
type producer interface {
	// Send a message, and call `done` with its outcome.
	send(ctx context.Context, payload []byte, done func(error))
	// Wait until all messages have an outcome.
	flush() error
}

// The same for producers of all brokers.
type sending struct {
	pending     int    // messages without a receipt
	batches     bool   // batches of up to 128 KiB, after a millisecond at the latest
	compression string // none or zstd
}

const (
	batchBytes   = 128 * 1024
	subscription = "bench"
)

func connect(address, admin, trust, token string, s sending) (broker, error) {
	if s.compression != "none" && s.compression != "zstd" {
		return nil, fmt.Errorf("compression %q is neither none nor zstd", s.compression)
	}
	parsed, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	switch parsed.Scheme {
	case "pulsar", "pulsar+ssl":
		return connectPulsar(address, admin, trust, token, s)
	case "kafka":
		return connectKafka(parsed.Host, s), nil
	case "nats":
		return connectNats(address, s), nil
	}
	return nil, fmt.Errorf("%s is neither a pulsar://, a kafka:// nor a nats:// URL", address)
}
