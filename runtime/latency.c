// SPDX-License-Identifier: Apache-2.0
#include "runtime/latency.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

typedef struct latency_slot {
    uint64_t number; // of the span since the clock began; a slot with another one is empty
    uint64_t longest_ns;
    uint32_t requests, failures;
    uint32_t count[HTH_LATENCY_BUCKETS];
} latency_slot;

struct hth_latency {
    uint64_t slot_ns, since_ns;
    int n;
    latency_slot slot[];
};

// Below 2 * PARTS units a bucket is a unit; above, a power of two is PARTS buckets.
static int latency_index(uint64_t ns)
{
    uint64_t u = (ns < HTH_LATENCY_MOST ? ns : HTH_LATENCY_MOST - 1) / HTH_LATENCY_UNIT;
    int shift = 0;
    while (u >> shift >= 2 * HTH_LATENCY_PARTS) {
        shift++;
    }
    return shift * HTH_LATENCY_PARTS + (int)(u >> shift);
}

uint64_t hth_latency_bucket(int i)
{
    int shift = i < 2 * HTH_LATENCY_PARTS ? 0 : i / HTH_LATENCY_PARTS - 1;
    return ((uint64_t)(i - shift * HTH_LATENCY_PARTS) << shift) * HTH_LATENCY_UNIT;
}

hth_err hth_latency_open(uint64_t slot_ns, int slots, uint64_t now_ns, hth_latency **out)
{
    hth_latency *l = hth_calloc(1, sizeof *l + (size_t)slots * sizeof l->slot[0]);
    *out = l;
    if (l == NULL) {
        return hth_no_memory("counting requests");
    }
    l->slot_ns = slot_ns;
    l->since_ns = now_ns;
    l->n = slots;
    return HTH_OK;
}

void hth_latency_close(hth_latency *latency)
{
    hth_free(latency);
}

void hth_latency_add(hth_latency *latency, uint64_t now_ns, uint64_t took_ns, bool ok)
{
    if (latency == NULL) {
        return;
    }
    uint64_t number = now_ns / latency->slot_ns;
    latency_slot *s = &latency->slot[number % (uint64_t)latency->n];
    if (s->number != number) {
        memset(s, 0, sizeof *s);
        s->number = number;
    }
    if (!ok) {
        s->failures++;
        return;
    }
    s->requests++;
    s->count[latency_index(took_ns)]++;
    s->longest_ns = took_ns > s->longest_ns ? took_ns : s->longest_ns;
}

static void sum_add(hth_latency_sum *sum, const latency_slot *slot)
{
    sum->requests += slot->requests;
    sum->failures += slot->failures;
    sum->longest_ns = slot->longest_ns > sum->longest_ns ? slot->longest_ns : sum->longest_ns;
    for (int i = 0; i < HTH_LATENCY_BUCKETS; i++) {
        sum->count[i] += slot->count[i];
    }
}

void hth_latency_get(const hth_latency *latency, uint64_t now_ns, int back, int slots,
                     hth_latency_sum *out)
{
    memset(out, 0, sizeof *out);
    for (int i = back; latency != NULL && i < back + slots && i < latency->n; i++) {
        uint64_t number = now_ns / latency->slot_ns;
        if (number < (uint64_t)i) {
            return;
        }
        number -= (uint64_t)i;
        uint64_t from = number * latency->slot_ns, to = from + latency->slot_ns;
        from = from > latency->since_ns ? from : latency->since_ns;
        to = to < now_ns ? to : now_ns;
        if (to > from) {
            out->seconds += (double)(to - from) / 1e9;
        }
        const latency_slot *s = &latency->slot[number % (uint64_t)latency->n];
        if (s->number == number) {
            sum_add(out, s);
        }
    }
}

uint64_t hth_latency_percentile(const hth_latency_sum *sum, double q)
{
    uint64_t want = (uint64_t)ceil(q * (double)sum->requests), seen = 0;
    want = want > 0 ? want : 1;
    for (int i = 0; i < HTH_LATENCY_BUCKETS; i++) {
        seen += sum->count[i];
        if (seen >= want) {
            uint64_t from = hth_latency_bucket(i),
                     middle = from + (hth_latency_bucket(i + 1) - from) / 2;
            bool last = i == HTH_LATENCY_BUCKETS - 1;
            return last || middle > sum->longest_ns ? sum->longest_ns : middle;
        }
    }
    return 0;
}
