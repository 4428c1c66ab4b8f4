// The load that bench.broker puts on a broker: topics with a producer each, and with a consumer each if asked.
//
// Every message is one of the payloads, which have one size, with the time of its sending over its first 16 bytes.
// A line of JSON says every few seconds, and once at the end, what was sent, acknowledged and received.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/bits"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

const (
	stampBytes    = 16 // hexadecimal digits of nanoseconds
	subBuckets    = 64 // of each power of two: latencies are right to 1.6 %
	pending       = 1000
	batchingBytes = 128 * 1024
	drainTimeout  = 30 * time.Second
)

// A histogram of durations that many goroutines add to.
type histogram struct {
	counts [64 * subBuckets]atomic.Int64
	max    atomic.Int64
}

func (h *histogram) add(d time.Duration) {
	ns := max(int64(d), 1)
	power := bits.Len64(uint64(ns)) - 1
	place := 0
	if power >= 6 {
		place = int(ns>>(power-6)) & (subBuckets - 1)
	}
	h.counts[power*subBuckets+place].Add(1)
	for {
		known := h.max.Load()
		if ns <= known || h.max.CompareAndSwap(known, ns) {
			return
		}
	}
}

// The latency in ms below which a share of all lies; 0 without any.
func (h *histogram) quantile(share float64) float64 {
	total := int64(0)
	for i := range h.counts {
		total += h.counts[i].Load()
	}
	if total == 0 {
		return 0
	}
	left := int64(math.Ceil(share * float64(total)))
	for i := range h.counts {
		if left -= h.counts[i].Load(); left <= 0 {
			power, place := i/subBuckets, i%subBuckets
			return math.Ldexp(1+(float64(place)+0.5)/subBuckets, power) / 1e6
		}
	}
	return float64(h.max.Load()) / 1e6
}

type summary struct {
	Seconds   float64 `json:"seconds"` // since the last line; of the last one: since the warm-up
	Acked     int64   `json:"acked"`
	Received  int64   `json:"received"`
	SendP50   float64 `json:"send_p50_ms"` // of the last line only, as are all below
	SendP99   float64 `json:"send_p99_ms"`
	EndP50    float64 `json:"end_to_end_p50_ms"`
	EndP99    float64 `json:"end_to_end_p99_ms"`
	EndMax    float64 `json:"end_to_end_max_ms"`
	Connect   float64 `json:"connect_s"` // until all producers and consumers were there
	AllAcked  int64   `json:"all_acked"` // since the start
	IsSummary bool    `json:"is_summary"`
}

type load struct {
	rate                  float64 // messages a second of each topic, 0: as many as there is room for
	payloads              [][]byte
	measured              atomic.Bool // the warm-up is over
	sent, acked, received atomic.Int64
	sends, endToEnd       *histogram
}

func main() {
	url := flag.String("url", "", "service URL")
	trust := flag.String("trust", "", "file of the CAs that are trusted")
	token := flag.String("token", "", "token of the client's role")
	compression := flag.String("compression", "none", "of the messages: none or zstd")
	topic := flag.String("topic", "", "topic, or what their names begin with")
	topics := flag.Int("topics", 1, "how many topics")
	rate := flag.Float64("rate", 0, "messages a second of each topic; 0: as fast as it goes")
	consume := flag.Bool("consume", false, "a consumer on each topic, too")
	file := flag.String("payloads", "", "file of payloads")
	size := flag.Int("size", 1024, "bytes of a payload")
	warmUp := flag.Duration("warm-up", 10*time.Second, "not measured")
	length := flag.Duration("length", 30*time.Second, "measured")
	every := flag.Duration("every", 10*time.Second, "between lines")
	flag.Parse()

	l := &load{rate: *rate, payloads: read(*file, *size), sends: &histogram{}, endToEnd: &histogram{}}
	logger := logrus.New()
	logger.SetLevel(logrus.ErrorLevel)
	options := pulsar.ClientOptions{
		URL: *url, OperationTimeout: 2 * time.Minute, Logger: log.NewLoggerWithLogrus(logger),
		TLSTrustCertsFilePath: *trust, TLSValidateHostname: true,
	}
	if *token != "" {
		options.Authentication = pulsar.NewAuthenticationToken(*token)
	}
	compressionType, isKnown := map[string]pulsar.CompressionType{"none": pulsar.NoCompression, "zstd": pulsar.ZSTD}[*compression]
	if !isKnown {
		check(fmt.Errorf("compression %q is neither none nor zstd", *compression))
	}
	client, err := pulsar.NewClient(options)
	check(err)
	started := time.Now()
	producers := make([]pulsar.Producer, *topics)
	together := make(chan struct{}, 64) // connecting at once
	var connected sync.WaitGroup
	for i := range *topics {
		connected.Add(1)
		together <- struct{}{}
		go func() {
			defer func() { <-together; connected.Done() }()
			name := *topic
			if *topics > 1 {
				name = fmt.Sprintf("%s-%d", *topic, i)
			}
			if *consume {
				consumer, err := client.Subscribe(pulsar.ConsumerOptions{
					Topic: name, SubscriptionName: "bench", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
				})
				check(err)
				go l.receive(consumer)
			}
			producer, err := client.CreateProducer(pulsar.ProducerOptions{
				Topic: name, MaxPendingMessages: pending, BatchingMaxPublishDelay: time.Millisecond,
				BatchingMaxSize: batchingBytes, BatchingMaxMessages: 1000, CompressionType: compressionType,
			})
			check(err)
			producers[i] = producer
		}()
	}
	connected.Wait()
	connecting := time.Since(started)

	done, stop := context.WithCancel(context.Background())
	var sending sync.WaitGroup
	for i, producer := range producers {
		sending.Add(1)
		go func() {
			defer sending.Done()
			l.send(done, producer, i)
		}()
	}
	time.Sleep(*warmUp)
	l.measured.Store(true)
	began := l.now()
	last := began
	for end := began.at.Add(*length); last.at.Before(end); {
		time.Sleep(min(*every, time.Until(end)))
		next := l.now()
		say(next.since(last))
		last = next
	}
	l.measured.Store(false)
	whole := last.since(began)
	stop()
	sending.Wait()
	for _, producer := range producers {
		check(producer.Flush())
	}
	for deadline := time.Now().Add(drainTimeout); *consume && l.received.Load() < l.sent.Load(); {
		if time.Now().After(deadline) {
			check(fmt.Errorf("%d of %d messages were received", l.received.Load(), l.sent.Load()))
		}
		time.Sleep(10 * time.Millisecond)
	}
	whole.SendP50, whole.SendP99 = l.sends.quantile(0.5), l.sends.quantile(0.99)
	whole.EndP50, whole.EndP99 = l.endToEnd.quantile(0.5), l.endToEnd.quantile(0.99)
	whole.EndMax = float64(l.endToEnd.max.Load()) / 1e6
	whole.Connect = connecting.Seconds()
	whole.AllAcked = l.acked.Load()
	whole.IsSummary = true
	say(whole)
}

// Sends until it is done, each message when it is due; topics do not send at the same time.
func (l *load) send(done context.Context, producer pulsar.Producer, number int) {
	interval := time.Duration(0)
	if l.rate > 0 {
		interval = time.Duration(float64(time.Second) / l.rate)
	}
	due := time.Now().Add(time.Duration(float64(interval) * math.Mod(float64(number)*math.Phi, 1)))
	for n := number; done.Err() == nil; n++ {
		if interval > 0 {
			if wait := time.Until(due); wait > 0 {
				time.Sleep(wait)
			}
			due = due.Add(interval)
		}
		payload := append([]byte(nil), l.payloads[n%len(l.payloads)]...)
		began := time.Now()
		copy(payload, fmt.Appendf(nil, "%016x", began.UnixNano()))
		l.sent.Add(1)
		producer.SendAsync(done, &pulsar.ProducerMessage{Payload: payload},
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				if err != nil {
					if done.Err() == nil {
						check(err)
					}
					l.sent.Add(-1)
					return
				}
				l.acked.Add(1)
				if l.measured.Load() {
					l.sends.add(time.Since(began))
				}
			})
	}
}

func (l *load) receive(consumer pulsar.Consumer) {
	for message := range consumer.Chan() {
		at := time.Now().UnixNano()
		sent, err := strconv.ParseInt(string(message.Payload()[:stampBytes]), 16, 64)
		check(err)
		l.received.Add(1)
		if l.measured.Load() {
			l.endToEnd.add(time.Duration(at - sent))
		}
		check(consumer.Ack(message))
	}
}

type moment struct {
	at              time.Time
	acked, received int64
}

func (l *load) now() moment {
	return moment{time.Now(), l.acked.Load(), l.received.Load()}
}

func (m moment) since(before moment) summary {
	return summary{
		Seconds: m.at.Sub(before.at).Seconds(), Acked: m.acked - before.acked, Received: m.received - before.received,
	}
}

func read(file string, size int) [][]byte {
	all, err := os.ReadFile(file)
	check(err)
	var payloads [][]byte
	for at := 0; at+size <= len(all); at += size {
		payloads = append(payloads, all[at:at+size])
	}
	if len(payloads) == 0 || size < stampBytes {
		check(fmt.Errorf("%s holds no payload of %d bytes", file, size))
	}
	return payloads
}

func say(s summary) {
	line, err := json.Marshal(s)
	check(err)
	fmt.Println(string(line))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
