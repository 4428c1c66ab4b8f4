// The load that bench.broker puts on a broker: topics with producers, and with consumers if asked.
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
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	stampBytes   = 16 // hexadecimal digits of nanoseconds
	drainTimeout = 30 * time.Second
)

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
	rate                  float64 // messages a second of each producer, 0: as many as there is room for
	pending               int     // messages of a producer without a receipt
	payloads              [][]byte
	measured              atomic.Bool // the warm-up is over
	sent, acked, received atomic.Int64
	sends, endToEnd       *histogram
}

func main() {
	url := flag.String("url", "", "service URL: pulsar://, pulsar+ssl://, kafka:// or nats://")
	admin := flag.String("admin", "", "URL of a Pulsar's admin API, for partitions")
	trust := flag.String("trust", "", "file of the CAs that are trusted")
	token := flag.String("token", "", "token of the client's role")
	compression := flag.String("compression", "none", "of the messages: none or zstd")
	pending := flag.Int("pending", 1000, "messages of a producer without a receipt")
	batches := flag.Bool("batches", true, "batches of up to 128 KiB")
	topic := flag.String("topic", "", "topic, or what their names begin with")
	topics := flag.Int("topics", 1, "how many topics")
	partitions := flag.Int("partitions", 0, "partitions of a topic; 0 for a topic without")
	producersEach := flag.Int("producers", 1, "producers of each topic")
	consumersEach := flag.Int("consumers", 0, "consumers of each topic, which share its partitions")
	rate := flag.Float64("rate", 0, "messages a second of each producer; 0: as fast as it goes")
	file := flag.String("payloads", "", "file of payloads")
	size := flag.Int("size", 1024, "bytes of a payload")
	warmUp := flag.Duration("warm-up", 10*time.Second, "not measured")
	length := flag.Duration("length", 30*time.Second, "measured")
	every := flag.Duration("every", 10*time.Second, "between lines")
	flag.Parse()

	l := &load{rate: *rate, pending: *pending, payloads: read(*file, *size), sends: &histogram{}, endToEnd: &histogram{}}
	target, err := connect(*url, *admin, *trust, *token, sending{*pending, *batches, *compression})
	check(err)
	started := time.Now()
	producers := make([]producer, *topics**producersEach)
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
			check(target.create(name, *partitions))
			for range *consumersEach {
				check(target.consume(name, l.receive))
			}
			for j := range *producersEach {
				made, err := target.producer(name)
				check(err)
				producers[i**producersEach+j] = made
			}
		}()
	}
	connected.Wait()
	connecting := time.Since(started)

	done, stop := context.WithCancel(context.Background())
	var senders sync.WaitGroup
	for i, producer := range producers {
		senders.Add(1)
		go func() {
			defer senders.Done()
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
	senders.Wait()
	for _, producer := range producers {
		check(producer.flush())
	}
	for deadline := time.Now().Add(drainTimeout); *consumersEach > 0 && l.received.Load() < l.sent.Load(); {
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
func (l *load) send(done context.Context, producer producer, number int) {
	interval := time.Duration(0)
	if l.rate > 0 {
		interval = time.Duration(float64(time.Second) / l.rate)
	}
	room := make(chan struct{}, l.pending)
	due := time.Now().Add(time.Duration(float64(interval) * math.Mod(float64(number)*math.Phi, 1)))
	for n := number; done.Err() == nil; n++ {
		if interval > 0 {
			if wait := time.Until(due); wait > 0 {
				time.Sleep(wait)
			}
			due = due.Add(interval)
		}
		payload := append([]byte(nil), l.payloads[n%len(l.payloads)]...)
		room <- struct{}{}
		began := time.Now()
		copy(payload, fmt.Appendf(nil, "%016x", began.UnixNano()))
		l.sent.Add(1)
		producer.send(done, payload, func(err error) {
			<-room
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

func (l *load) receive(payload []byte) {
	at := time.Now().UnixNano()
	sent, err := strconv.ParseInt(string(payload[:stampBytes]), 16, 64)
	check(err)
	l.received.Add(1)
	if l.measured.Load() {
		l.endToEnd.add(time.Duration(at - sent))
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
