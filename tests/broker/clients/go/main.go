// Scenarios of the official Go client against a broker; each prints its name when it has passed.
//
//	go run . pulsar://host:port PREFIX [SCENARIO...]
//
// PREFIX makes the topics' names; PREFIX-parts has three partitions.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const patience = 60 * time.Second

// quiet: if nothing has come for so long, nothing comes.
const quiet = 1500 * time.Millisecond

type scenario struct {
	client pulsar.Client
	topic  string
}

var scenarios = map[string]func(*scenario) error{
	"compressions":          (*scenario).compressions,
	"everything":            (*scenario).everything,
	"partitions":            (*scenario).partitions,
	"key_shared":            (*scenario).keyShared,
	"shared_nack_dlq":       (*scenario).deadLetters,
	"retry_letter":          (*scenario).retryLetter,
	"retry_by_default":      (*scenario).retryByDefault,
	"failover":              (*scenario).failover,
	"batch_index_ack":       (*scenario).batchIndexAck,
	"cumulative":            (*scenario).cumulative,
	"cumulative_in_a_batch": (*scenario).cumulativeInBatch,
	"reader":                (*scenario).reader,
	"seek":                  (*scenario).seek,
	"regex":                 (*scenario).regex,
	"chunks":                (*scenario).chunks,
	"delayed":               (*scenario).delayed,
	"schemas":               (*scenario).schemas,
	"access_modes":          (*scenario).accessModes,
	"non_persistent":        (*scenario).nonPersistent,
	"errors":                (*scenario).refusals,
	"transactions":          (*scenario).transactions,
	"table_view":            (*scenario).tableView,
	"flow":                  (*scenario).flow,
	"again":                 (*scenario).again,
}

func main() {
	url, prefix := os.Args[1], os.Args[2]
	names := os.Args[3:]
	if len(names) == 0 {
		for name := range scenarios {
			names = append(names, name)
		}
		sort.Strings(names)
	}
	failed := 0
	for _, name := range names {
		client, err := pulsar.NewClient(pulsar.ClientOptions{
			URL: url, OperationTimeout: 30 * time.Second,
			TLSTrustCertsFilePath: os.Getenv("TLS_TRUST_CERTS"), TLSValidateHostname: true,
		})
		if err == nil {
			err = scenarios[name](&scenario{client, prefix + "-" + name})
			client.Close()
		}
		if err != nil {
			failed++
			fmt.Printf("FAILED %s: %v\n", name, err)
		} else {
			fmt.Println("passed", name)
		}
	}
	if failed > 0 {
		os.Exit(1)
	}
}

// -- what scenarios need ------------------------------------------------------------------------------------------

func (s *scenario) producer(options pulsar.ProducerOptions) (pulsar.Producer, error) {
	if options.Topic == "" {
		options.Topic = s.topic
	}
	return s.client.CreateProducer(options)
}

func (s *scenario) consumer(options pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	if options.Topic == "" && options.TopicsPattern == "" {
		options.Topic = s.topic
	}
	if options.SubscriptionName == "" {
		options.SubscriptionName = "sub"
	}
	options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	return s.client.Subscribe(options)
}

// send sends the numbers from first to last, with keys, and waits for all receipts.
func send(producer pulsar.Producer, first, last int) error {
	var problem error
	var lock sync.Mutex
	for number := first; number <= last; number++ {
		message := &pulsar.ProducerMessage{Payload: []byte(strconv.Itoa(number)), Key: fmt.Sprintf("key-%d", number%10)}
		producer.SendAsync(context.Background(), message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				lock.Lock()
				problem = err
				lock.Unlock()
			}
		})
	}
	if err := producer.FlushWithCtx(context.Background()); err != nil {
		return err
	}
	lock.Lock()
	defer lock.Unlock()
	return problem
}

type receiver interface {
	Receive(context.Context) (pulsar.Message, error)
}

func receive(consumer receiver, count int) ([]pulsar.Message, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var messages []pulsar.Message
	for len(messages) < count {
		message, err := consumer.Receive(ctx)
		if err != nil {
			return nil, fmt.Errorf("after %d of %d messages: %w", len(messages), count, err)
		}
		messages = append(messages, message)
	}
	return messages, nil
}

func nothingComes(consumer receiver) error {
	ctx, cancel := context.WithTimeout(context.Background(), quiet)
	defer cancel()
	if message, err := consumer.Receive(ctx); err == nil {
		return fmt.Errorf("%s came", message.Payload())
	}
	return nil
}

func numbers(messages []pulsar.Message) []int {
	found := []int{}
	for _, message := range messages {
		number, _ := strconv.Atoi(string(message.Payload()))
		found = append(found, number)
	}
	return found
}

func expectRange(found []int, first, last int) error {
	expected := []int{}
	for number := first; number <= last; number++ {
		expected = append(expected, number)
	}
	if !slices.Equal(found, expected) {
		return fmt.Errorf("%v came instead of %d to %d", found, first, last)
	}
	return nil
}

func expectNumbers(consumer receiver, first, last int) error {
	messages, err := receive(consumer, last-first+1)
	if err != nil {
		return err
	}
	return expectRange(numbers(messages), first, last)
}

// -- scenarios ----------------------------------------------------------------------------------------------------

func (s *scenario) compressions() error {
	types := []pulsar.CompressionType{pulsar.NoCompression, pulsar.LZ4, pulsar.ZLib, pulsar.ZSTD, pulsar.SNAPPY}
	consumer, err := s.consumer(pulsar.ConsumerOptions{})
	if err != nil {
		return err
	}
	for index, type_ := range types {
		for _, unbatched := range []bool{false, true} {
			producer, err := s.producer(pulsar.ProducerOptions{CompressionType: type_, DisableBatching: unbatched})
			if err != nil {
				return err
			}
			if err := send(producer, 100*index, 100*index+49); err != nil {
				return err
			}
			producer.Close()
			if err := expectNumbers(consumer, 100*index, 100*index+49); err != nil {
				return fmt.Errorf("compression %v: %w", type_, err)
			}
		}
	}
	return nil
}

func (s *scenario) everything() error {
	consumer, err := s.consumer(pulsar.ConsumerOptions{})
	if err != nil {
		return err
	}
	producer, err := s.producer(pulsar.ProducerOptions{Name: "me", DisableBatching: true})
	if err != nil {
		return err
	}
	at := time.UnixMilli(1753500001234)
	id := int64(77)
	sent, err := producer.Send(context.Background(), &pulsar.ProducerMessage{
		Payload: []byte("v"), Key: "k", OrderingKey: "o", Properties: map[string]string{"a": "b"}, EventTime: at, SequenceID: &id,
	})
	if err != nil {
		return err
	}
	messages, err := receive(consumer, 1)
	if err != nil {
		return err
	}
	got := messages[0]
	if got.Key() != "k" || got.OrderingKey() != "o" || got.Properties()["a"] != "b" || !got.EventTime().Equal(at) ||
		got.ProducerName() != "me" || got.ID().LedgerID() != sent.LedgerID() || got.ID().EntryID() != sent.EntryID() {
		return fmt.Errorf("%v is not what was sent", got)
	}
	ids, err := consumer.GetLastMessageIDs()
	if err != nil || len(ids) != 1 || ids[0].EntryID() != sent.EntryID() {
		return fmt.Errorf("last ids %v %v", ids, err)
	}
	return consumer.Ack(got)
}

func (s *scenario) partitions() error {
	topic := s.topic[:len(s.topic)-len("-partitions")] + "-parts"
	names, err := s.client.TopicPartitions(topic)
	if err != nil || len(names) != 3 {
		return fmt.Errorf("partitions %v %v", names, err)
	}
	consumer, err := s.consumer(pulsar.ConsumerOptions{Topic: topic})
	if err != nil {
		return err
	}
	producer, err := s.producer(pulsar.ProducerOptions{Topic: topic})
	if err != nil {
		return err
	}
	if err := send(producer, 0, 99); err != nil {
		return err
	}
	messages, err := receive(consumer, 100)
	if err != nil {
		return err
	}
	found := numbers(messages)
	sort.Ints(found)
	return expectRange(found, 0, 99)
}

func (s *scenario) keyShared() error {
	var consumers []pulsar.Consumer
	for range 2 {
		consumer, err := s.consumer(pulsar.ConsumerOptions{Type: pulsar.KeyShared})
		if err != nil {
			return err
		}
		consumers = append(consumers, consumer)
	}
	producer, err := s.producer(pulsar.ProducerOptions{BatcherBuilderType: pulsar.KeyBasedBatchBuilder})
	if err != nil {
		return err
	}
	if err := send(producer, 0, 199); err != nil {
		return err
	}
	owner := map[string]int{}
	last := map[string]int{}
	count := 0
	deadline := time.Now().Add(patience)
	for count < 200 && time.Now().Before(deadline) {
		for index, consumer := range consumers {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			message, err := consumer.Receive(ctx)
			cancel()
			if err != nil {
				continue
			}
			count++
			number := numbers([]pulsar.Message{message})[0]
			if known, ok := owner[message.Key()]; ok && (known != index || last[message.Key()] > number) {
				return fmt.Errorf("%s of key %s at %d, after %d at %d", message.Payload(), message.Key(), index, last[message.Key()], known)
			}
			owner[message.Key()], last[message.Key()] = index, number
			if err := consumer.Ack(message); err != nil {
				return err
			}
		}
	}
	if count != 200 {
		return fmt.Errorf("%d messages came", count)
	}
	return nil
}

func (s *scenario) deadLetters() error {
	dead, err := s.consumer(pulsar.ConsumerOptions{Topic: s.topic + "-dead"})
	if err != nil {
		return err
	}
	consumer, err := s.consumer(pulsar.ConsumerOptions{
		Type: pulsar.Shared, NackRedeliveryDelay: 100 * time.Millisecond,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: s.topic + "-dead"},
	})
	if err != nil {
		return err
	}
	producer, err := s.producer(pulsar.ProducerOptions{})
	if err != nil {
		return err
	}
	if err := send(producer, 7, 7); err != nil {
		return err
	}
	for count := range 2 {
		messages, err := receive(consumer, 1)
		if err != nil {
			return err
		}
		if int(messages[0].RedeliveryCount()) != count {
			return fmt.Errorf("redelivery count %d instead of %d", messages[0].RedeliveryCount(), count)
		}
		consumer.Nack(messages[0])
	}
	return expectNumbers(dead, 7, 7)
}

func (s *scenario) retryLetter() error {
	consumer, err := s.consumer(pulsar.ConsumerOptions{
		Type: pulsar.Shared, RetryEnable: true,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 5, RetryLetterTopic: s.topic + "-retry", DeadLetterTopic: s.topic + "-dead"},
	})
	if err != nil {
		return err
	}
	producer, err := s.producer(pulsar.ProducerOptions{})
	if err != nil {
		return err
	}
	if err := send(producer, 7, 7); err != nil {
		return err
	}
	for range 2 {
		messages, err := receive(consumer, 1)
		if err != nil {
			return err
		}
		consumer.ReconsumeLater(messages[0], 100*time.Millisecond)
	}
	return expectNumbers(consumer, 7, 7)
}

// retryByDefault leaves the retry topic unnamed: the client then asks about topics that it never uses, named after the subscription alone.
func (s *scenario) retryByDefault() error {
	consumer, err := s.consumer(pulsar.ConsumerOptions{
		SubscriptionName: "stray", Type: pulsar.Shared, RetryEnable: true, DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2},
	})
	if err != nil {
		return err
	}
	producer, err := s.producer(pulsar.ProducerOptions{})
	if err != nil {
		return err
	}
	if err := send(producer, 7, 7); err != nil {
		return err
	}
	messages, err := receive(consumer, 1)
	if err != nil {
		return err
	}
	consumer.ReconsumeLater(messages[0], 100*time.Millisecond)
	return expectNumbers(consumer, 7, 7)
}

type turns struct {
	lock   sync.Mutex
	active bool
	told   bool
}

func (t *turns) BecameActive(pulsar.Consumer, string, int32) {
	t.lock.Lock()
	t.active, t.told = true, true
	t.lock.Unlock()
}

func (t *turns) BecameInactive(pulsar.Consumer, string, int32) {
	t.lock.Lock()
	t.active, t.told = false, true
	t.lock.Unlock()
}

func (t *turns) is(active bool) bool {
	t.lock.Lock()
	defer t.lock.Unlock()
	return t.told && t.active == active
}

func (s *scenario) failover() error {
	heard := []*turns{{}, {}}
	var consumers []pulsar.Consumer
	for index, name := range []string{"a", "b"} {
		consumer, err := s.consumer(pulsar.ConsumerOptions{Type: pulsar.Failover, Name: name, EventListener: heard[index]})
		if err != nil {
			return err
		}
		consumers = append(consumers, consumer)
	}
	// Names decide who is active, and the second consumer is told once that is decided.
	for waited := 0; !heard[1].is(true) && !heard[1].is(false); waited++ {
		if waited == 600 {
			return errors.New("who is active was not told")
		}
		time.Sleep(100 * time.Millisecond)
	}
	active, standby := 0, 1
	if heard[1].is(true) {
		active, standby = 1, 0
	}
	producer, err := s.producer(pulsar.ProducerOptions{DisableBatching: true})
	if err != nil {
		return err
	}
	if err := send(producer, 0, 9); err != nil {
		return err
	}
	messages, err := receive(consumers[active], 10)
	if err != nil {
		return err
	}
	if err := consumers[active].AckCumulative(messages[4]); err != nil {
		return err
	}
	if err := nothingComes(consumers[standby]); err != nil {
		return err
	}
	if !heard[active].is(true) || !heard[standby].is(false) {
		return errors.New("who is active was not told")
	}
	consumers[active].Close()
	if err := expectNumbers(consumers[standby], 5, 9); err != nil {
		return err
	}
	if !heard[standby].is(true) {
		return errors.New("who became active was not told")
	}
	return nil
}

func (s *scenario) batchIndexAck() error {
	options := pulsar.ConsumerOptions{Type: pulsar.Shared, EnableBatchIndexAcknowledgment: true, AckWithResponse: true}
	consumer, err := s.consumer(options)
	if err != nil {
		return err
	}
	producer, err := s.producer(pulsar.ProducerOptions{BatchingMaxPublishDelay: 5 * time.Second, BatchingMaxMessages: 100})
	if err != nil {
		return err
	}
	if err := send(producer, 0, 99); err != nil {
		return err
	}
	messages, err := receive(consumer, 100)
	if err != nil {
		return err
	}
	for index, message := range messages {
		if message.ID().EntryID() != messages[0].ID().EntryID() {
			return errors.New("it is not one batch")
		}
		if index < 90 {
			if err := consumer.Ack(message); err != nil {
				return err
			}
		}
	}
	consumer.Close()
	again, err := s.consumer(options)
	if err != nil {
		return err
	}
	if err := expectNumbers(again, 90, 99); err != nil {
		return err
	}
	return nothingComes(again)
}

func (s *scenario) cumulative() error {
	consumer, err := s.consumer(pulsar.ConsumerOptions{AckWithResponse: true})
	if err != nil {
		return err
	}
	producer, err := s.producer(pulsar.ProducerOptions{DisableBatching: true})
	if err != nil {
		return err
	}
	if err := send(producer, 0, 19); err != nil {
		return err
	}
	messages, err := receive(consumer, 20)
	if err != nil {
		return err
	}
	if err := consumer.AckCumulative(messages[11]); err != nil {
		return err
	}
	consumer.Close()
	again, err := s.consumer(pulsar.ConsumerOptions{})
	if err != nil {
		return err
	}
	if err := expectNumbers(again, 12, 19); err != nil {
		return err
	}
	return again.Unsubscribe()
}

// A cumulative acknowledgement inside a topic's first batch acknowledges the entry in front of it: number -1.
func (s *scenario) cumulativeInBatch() error {
	consumer, err := s.consumer(pulsar.ConsumerOptions{AckWithResponse: true})
	if err != nil {
		return err
	}
	producer, err := s.producer(pulsar.ProducerOptions{BatchingMaxPublishDelay: 5 * time.Second, BatchingMaxMessages: 10})
	if err != nil {
		return err
	}
	if err := send(producer, 0, 9); err != nil {
		return err
	}
	messages, err := receive(consumer, 10)
	if err != nil {
		return err
	}
	if err := consumer.AckCumulative(messages[4]); err != nil {
		return err
	}
	consumer.Close()
	again, err := s.consumer(pulsar.ConsumerOptions{AckWithResponse: true})
	if err != nil {
		return err
	}
	messages, err = receive(again, 10)
	if err != nil {
		return err
	}
	if err := again.AckCumulative(messages[9]); err != nil {
		return err
	}
	again.Close()
	last, err := s.consumer(pulsar.ConsumerOptions{})
	if err != nil {
		return err
	}
	return nothingComes(last)
}

func (s *scenario) reader() error {
	producer, err := s.producer(pulsar.ProducerOptions{BatchingMaxMessages: 7, BatchingMaxPublishDelay: time.Second})
	if err != nil {
		return err
	}
	if err := send(producer, 0, 29); err != nil {
		return err
	}
	read := func(start pulsar.MessageID, inclusive bool, first int) (pulsar.MessageID, error) {
		reader, err := s.client.CreateReader(pulsar.ReaderOptions{
			Topic: s.topic, StartMessageID: start, StartMessageIDInclusive: inclusive,
		})
		if err != nil {
			return nil, err
		}
		defer reader.Close()
		var found []pulsar.Message
		for reader.HasNext() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			message, err := reader.Next(ctx)
			cancel()
			if err != nil {
				return nil, err
			}
			found = append(found, message)
		}
		if err := expectRange(numbers(found), first, 29); err != nil {
			return nil, err
		}
		if len(found) > 10 {
			return found[10].ID(), nil
		}
		return nil, nil
	}
	tenth, err := read(pulsar.EarliestMessageID(), false, 0)
	if err != nil {
		return err
	}
	if _, err := read(tenth, false, 11); err != nil {
		return fmt.Errorf("behind the tenth: %w", err)
	}
	if _, err := read(tenth, true, 10); err != nil {
		return fmt.Errorf("from the tenth: %w", err)
	}
	if _, err := read(pulsar.LatestMessageID(), false, 30); err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	return nil
}

func (s *scenario) seek() error {
	consumer, err := s.consumer(pulsar.ConsumerOptions{})
	if err != nil {
		return err
	}
	producer, err := s.producer(pulsar.ProducerOptions{DisableBatching: true})
	if err != nil {
		return err
	}
	if err := send(producer, 0, 9); err != nil {
		return err
	}
	time.Sleep(50 * time.Millisecond)
	between := time.Now()
	time.Sleep(50 * time.Millisecond)
	if err := send(producer, 10, 19); err != nil {
		return err
	}
	messages, err := receive(consumer, 20)
	if err != nil {
		return err
	}
	if err := consumer.Seek(messages[5].ID()); err != nil {
		return err
	}
	again, err := receive(consumer, 14)
	if err != nil {
		return err
	}
	if first := numbers(again)[0]; first != 5 && first != 6 {
		return fmt.Errorf("after a seek to 5, %d came first", first)
	}
	if err := consumer.SeekByTime(between); err != nil {
		return err
	}
	messages, err = receive(consumer, 1)
	for err == nil && numbers(messages)[0] != 10 {
		// What was on its way before the seek.
		messages, err = receive(consumer, 1)
	}
	if err != nil {
		return err
	}
	return expectNumbers(consumer, 11, 19)
}

func (s *scenario) regex() error {
	first, err := s.producer(pulsar.ProducerOptions{Topic: s.topic + "-one"})
	if err != nil {
		return err
	}
	consumer, err := s.consumer(pulsar.ConsumerOptions{
		TopicsPattern: "persistent://public/default/" + s.topic + "-.*", AutoDiscoveryPeriod: time.Second,
	})
	if err != nil {
		return err
	}
	if err := send(first, 1, 1); err != nil {
		return err
	}
	if err := expectNumbers(consumer, 1, 1); err != nil {
		return err
	}
	second, err := s.producer(pulsar.ProducerOptions{Topic: s.topic + "-two"})
	if err != nil {
		return err
	}
	if err := send(second, 2, 2); err != nil {
		return err
	}
	return expectNumbers(consumer, 2, 2)
}

func (s *scenario) chunks() error {
	consumer, err := s.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared})
	if err != nil {
		return err
	}
	producer, err := s.producer(pulsar.ProducerOptions{EnableChunking: true, DisableBatching: true})
	if err != nil {
		return err
	}
	large := make([]byte, 11_000_000)
	for index := range large {
		large[index] = byte(index * index >> 3)
	}
	if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: large}); err != nil {
		return err
	}
	messages, err := receive(consumer, 1)
	if err != nil {
		return err
	}
	if !slices.Equal(messages[0].Payload(), large) {
		return errors.New("another message came")
	}
	return consumer.Ack(messages[0])
}

func (s *scenario) delayed() error {
	consumer, err := s.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared})
	if err != nil {
		return err
	}
	producer, err := s.producer(pulsar.ProducerOptions{})
	if err != nil {
		return err
	}
	start := time.Now()
	message := &pulsar.ProducerMessage{Payload: []byte("1"), DeliverAfter: 2500 * time.Millisecond}
	if _, err := producer.Send(context.Background(), message); err != nil {
		return err
	}
	if err := send(producer, 2, 2); err != nil {
		return err
	}
	if err := expectNumbers(consumer, 2, 2); err != nil {
		return err
	}
	if err := expectNumbers(consumer, 1, 1); err != nil {
		return err
	}
	if took := time.Since(start); took < 1500*time.Millisecond {
		return fmt.Errorf("it came after %v", took)
	}
	return nil
}

type person struct {
	Name string `json:"name" avro:"name"`
	Age  int    `json:"age" avro:"age"`
}

func (s *scenario) schemas() error {
	definition := `{"type":"record","name":"person","fields":[{"name":"name","type":"string"},{"name":"age","type":"int"}]}`
	other := `{"type":"record","name":"person","fields":[{"name":"name","type":"int"}]}`
	for name, schema := range map[string]pulsar.Schema{
		"json": pulsar.NewJSONSchema(definition, nil),
		"avro": pulsar.NewAvroSchema(definition, nil),
	} {
		topic := s.topic + "-" + name
		producer, err := s.producer(pulsar.ProducerOptions{Topic: topic, Schema: schema})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		consumer, err := s.consumer(pulsar.ConsumerOptions{Topic: topic, Schema: schema})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Value: &person{"Ann", 42}}); err != nil {
			return err
		}
		messages, err := receive(consumer, 1)
		if err != nil {
			return err
		}
		var got person
		if err := messages[0].GetSchemaValue(&got); err != nil || got != (person{"Ann", 42}) {
			return fmt.Errorf("%s: %v %w", name, got, err)
		}
		_, err = s.producer(pulsar.ProducerOptions{Topic: topic, Schema: pulsar.NewAvroSchema(other, nil)})
		if err == nil {
			return fmt.Errorf("%s: an incompatible schema was taken", name)
		}
	}
	return nil
}

func (s *scenario) accessModes() error {
	first, err := s.producer(pulsar.ProducerOptions{ProducerAccessMode: pulsar.ProducerAccessModeExclusive})
	if err != nil {
		return err
	}
	if _, err := s.producer(pulsar.ProducerOptions{ProducerAccessMode: pulsar.ProducerAccessModeExclusive}); err == nil {
		return errors.New("two producers are exclusive")
	}
	if err := send(first, 0, 0); err != nil {
		return err
	}
	waiting := make(chan error, 1)
	go func() {
		second, err := s.producer(pulsar.ProducerOptions{ProducerAccessMode: pulsar.ProducerAccessModeWaitForExclusive})
		if err == nil {
			err = send(second, 1, 1)
		}
		waiting <- err
	}()
	select {
	case err := <-waiting:
		return fmt.Errorf("it did not wait: %w", err)
	case <-time.After(300 * time.Millisecond):
	}
	first.Close()
	select {
	case err := <-waiting:
		return err
	case <-time.After(patience):
		return errors.New("it waits for ever")
	}
}

func (s *scenario) nonPersistent() error {
	topic := "non-persistent://public/default/" + s.topic
	consumer, err := s.consumer(pulsar.ConsumerOptions{Topic: topic})
	if err != nil {
		return err
	}
	producer, err := s.producer(pulsar.ProducerOptions{Topic: topic})
	if err != nil {
		return err
	}
	if err := send(producer, 0, 9); err != nil {
		return err
	}
	return expectNumbers(consumer, 0, 9)
}

func (s *scenario) refusals() error {
	consumer, err := s.consumer(pulsar.ConsumerOptions{})
	if err != nil {
		return err
	}
	defer consumer.Close()
	if _, err := s.consumer(pulsar.ConsumerOptions{}); err == nil {
		return errors.New("two consumers have an exclusive subscription")
	}
	if _, err := s.producer(pulsar.ProducerOptions{Name: "same"}); err != nil {
		return err
	}
	other, err := s.producer(pulsar.ProducerOptions{Name: "same"})
	if err == nil {
		other.Close()
		return errors.New("two producers have a name")
	}
	return nil
}

func (s *scenario) transactions() error {
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: url(), OperationTimeout: 5 * time.Second, EnableTransaction: true,
		TLSTrustCertsFilePath: os.Getenv("TLS_TRUST_CERTS"), TLSValidateHostname: true,
	})
	if err == nil {
		_, err = client.NewTransaction(time.Minute)
		client.Close()
	}
	if err == nil {
		return errors.New("a transaction was begun")
	}
	return nil
}

func url() string { return os.Args[1] }

func (s *scenario) tableView() error {
	definition := `{"type":"record","name":"person","fields":[{"name":"name","type":"string"},{"name":"age","type":"int"}]}`
	schema := pulsar.NewJSONSchema(definition, nil)
	producer, err := s.producer(pulsar.ProducerOptions{Schema: schema})
	if err != nil {
		return err
	}
	for number := range 100 {
		message := &pulsar.ProducerMessage{Value: &person{"Ann", number}, Key: fmt.Sprintf("key-%d", number%10)}
		if _, err := producer.Send(context.Background(), message); err != nil {
			return err
		}
	}
	view, err := s.client.CreateTableView(pulsar.TableViewOptions{
		Topic: s.topic, Schema: schema, SchemaValueType: reflect.TypeOf(person{}),
	})
	if err != nil {
		return err
	}
	defer view.Close()
	for number := range 10 {
		value := view.Get(fmt.Sprintf("key-%d", number))
		if got, ok := value.(person); !ok || got.Age != 90+number {
			return fmt.Errorf("key-%d is %v", number, value)
		}
	}
	return nil
}

// flow publishes to several topics and consumes from them for FLOW_SECONDS, while their brokers may change: nothing is
// lost, and what comes for the first time comes in order.
func (s *scenario) flow() error {
	const topics = 8
	ended := make(chan error, topics)
	for number := range topics {
		go func() {
			ended <- s.flowOf(fmt.Sprintf("%s-%d", s.topic, number), flowTime())
		}()
	}
	var err error
	for range topics {
		err = errors.Join(err, <-ended)
	}
	return err
}

func (s *scenario) flowOf(topic string, length time.Duration) error {
	consumer, err := opened(func() (pulsar.Consumer, error) { return s.consumer(pulsar.ConsumerOptions{Topic: topic}) })
	if err != nil {
		return fmt.Errorf("consumer of %s: %w", topic, err)
	}
	producer, err := opened(func() (pulsar.Producer, error) { return s.producer(pulsar.ProducerOptions{Topic: topic}) })
	if err != nil {
		return fmt.Errorf("producer of %s: %w", topic, err)
	}
	next := 0
	for end := time.Now().Add(length); time.Now().Before(end); {
		if err := send(producer, next, next+9); err != nil {
			return fmt.Errorf("%d of %s: %w", next, topic, err)
		}
		for expected, last := next, next+9; next <= last; expected = next {
			messages, err := receive(consumer, 1)
			if err != nil {
				return fmt.Errorf("%d of %s: %w", expected, topic, err)
			}
			if number := numbers(messages)[0]; number > expected {
				return fmt.Errorf("%d of %s came instead of %d", number, topic, expected)
			} else if number == expected {
				next++
			}
			if err := consumer.Ack(messages[0]); err != nil {
				return fmt.Errorf("acknowledging %d of %s: %w", expected, topic, err)
			}
		}
	}
	return nil
}

// again reads a topic from its first message over and over for FLOW_SECONDS, while its segments move and its brokers
// may change: the same messages come with the same ids, in the same order.
func (s *scenario) again() error {
	const count = 500
	producer, err := opened(func() (pulsar.Producer, error) {
		return s.producer(pulsar.ProducerOptions{BatchingMaxMessages: 10})
	})
	if err != nil {
		return err
	}
	if err := send(producer, 0, count-1); err != nil {
		return err
	}
	var first []pulsar.MessageID
	for end := time.Now().Add(flowTime()); first == nil || time.Now().Before(end); {
		ids, err := s.fromTheStart(count)
		if err != nil {
			return err
		}
		if first == nil {
			first = ids
		}
		for number, id := range ids {
			if !bytes.Equal(id.Serialize(), first[number].Serialize()) {
				return fmt.Errorf("%d was %v, and is %v", number, first[number], id)
			}
		}
	}
	return nil
}

// fromTheStart reads a topic whose messages are the numbers from 0 on, and returns their ids.
func (s *scenario) fromTheStart(count int) ([]pulsar.MessageID, error) {
	reader, err := opened(func() (pulsar.Reader, error) {
		return s.client.CreateReader(pulsar.ReaderOptions{Topic: s.topic, StartMessageID: pulsar.EarliestMessageID()})
	})
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var ids []pulsar.MessageID
	for len(ids) < count {
		message, err := reader.Next(ctx)
		if err != nil {
			return nil, fmt.Errorf("after %d messages: %w", len(ids), err)
		}
		if got := string(message.Payload()); got != strconv.Itoa(len(ids)) {
			return nil, fmt.Errorf("%s came instead of %d", got, len(ids))
		}
		ids = append(ids, message.ID())
	}
	return ids, nil
}

// opened opens a producer or a reader of a broker that may end meanwhile: unlike the other clients, this one reconnects
// what is open, and tells the application of a connection that is lost while it opens something.
func opened[T any](open func() (T, error)) (T, error) {
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		result, err := open()
		if err == nil || time.Now().After(deadline) {
			return result, err
		}
	}
}

// flowTime is the length of scenarios that go on while something else happens.
func flowTime() time.Duration {
	seconds, err := strconv.Atoi(os.Getenv("FLOW_SECONDS"))
	if err != nil {
		seconds = 3
	}
	return time.Duration(seconds) * time.Second
}
