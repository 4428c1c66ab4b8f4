// Producers and consumers that say what they see, for a judge.
//
//	history pulsar://host:port,host:port TOPIC
//
// The program says "ready" when all of them are there. Each line of the input is a number of messages that each producer
// may send; "end" ends the producers. Each line of the output is "sending", "stored", or "received" and a subscription,
// and then a message's value: its producer, number and key. The program says "ended" after the last receipt, and exits at
// the end of the input.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const keys = 7

// said writes whole lines, from any goroutine.
var said = log.New(os.Stdout, "", 0)

func main() {
	url, topic := os.Args[1], os.Args[2]
	first, second := connect(url), connect(url)
	for _, client := range []pulsar.Client{first, second} {
		consume(client, topic, "go-failover", pulsar.Failover)
		consume(client, topic, "go-keys", pulsar.KeyShared)
	}
	var ended sync.WaitGroup
	var granted []chan int
	for _, isKeyed := range []bool{false, true} {
		producer, grants := newProducer(first, topic, isKeyed), make(chan int, 1)
		granted = append(granted, grants)
		ended.Go(func() { produce(producer, isKeyed, grants) })
	}
	said.Print("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if lines.Text() == "end" {
			for _, grants := range granted {
				close(grants)
			}
			ended.Wait()
			said.Print("ended")
			continue
		}
		messages, err := strconv.Atoi(lines.Text())
		check(err)
		for _, grants := range granted {
			grants <- messages
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func connect(url string) pulsar.Client {
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: url, OperationTimeout: 2 * time.Minute})
	check(err)
	return client
}

// consume says and acknowledges what comes.
func consume(client pulsar.Client, topic, subscription string, kind pulsar.SubscriptionType) {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: subscription, Type: kind,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	check(err)
	go func() {
		for {
			message, err := consumer.Receive(context.Background())
			check(err)
			said.Printf("received %s %s", subscription, message.Payload())
			_ = consumer.Ack(message) // it comes again if this fails
		}
	}()
}

// newProducer makes a producer without a time limit; one with keys does not batch, because Key_Shared distinguishes
// messages by entry.
func newProducer(client pulsar.Client, topic string, isKeyed bool) pulsar.Producer {
	name := "go-batched"
	if isKeyed {
		name = "go-keyed"
	}
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, Name: name, DisableBatching: isKeyed, SendTimeout: -1,
	})
	check(err)
	return producer
}

// produce sends what is granted, and returns after the last receipt.
func produce(producer pulsar.Producer, isKeyed bool, grants <-chan int) {
	number := int64(0)
	for messages := range grants {
		for range messages {
			number++
			key := ""
			if isKeyed {
				key = fmt.Sprintf("k%d", number%keys)
			}
			sequenceID, value := number, fmt.Sprintf("%s %d %s", producer.Name(), number, key)
			said.Print("sending ", value)
			message := &pulsar.ProducerMessage{Payload: []byte(value), Key: key, SequenceID: &sequenceID}
			producer.SendAsync(context.Background(), message,
				func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
					if err == nil {
						said.Print("stored ", value)
					}
				})
		}
	}
	check(producer.FlushWithCtx(context.Background()))
}
