package main

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

const subBuckets = 64 // of each power of two: latencies are right to 1.6 %

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
