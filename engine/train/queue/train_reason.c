// SPDX-License-Identifier: Apache-2.0
// Why a job waits that could begin: the one sentence that its row, its record and its log have.
#include "engine/train/queue/train_fair.h"

#include "base/clock.h"
#include "base/size.h"
#include "engine/train/queue/train_entry_impl.h"

#include <math.h>
#include <stdio.h>

static double reason_least(const hth_train_entry *entry)
{
    return entry->offer.demand[entry->offer.n - 1].of[HTH_TRAIN_DEVICE_MEMORY];
}

// reason_lacks says that less is free than the job could do with.
static bool reason_lacks(const hth_train_queue *queue, const hth_train_entry *entry)
{
    return entry->offer.n > 0 && reason_least(entry) > (double)queue->fair.rest_bytes;
}

const char *hth_train_waits_word(const hth_train_queue *queue, const hth_train_entry *entry)
{
    switch (entry->gate) {
    case HTH_TRAIN_GATE_AFTER:
        return "job";
    case HTH_TRAIN_GATE_TENANT:
    case HTH_TRAIN_GATE_QUOTA:
        return "tenant";
    case HTH_TRAIN_GATE_RETRY:
        return "retry";
    case HTH_TRAIN_GATE_GROUP:
        return "memory";
    default:
        break;
    }
    if (entry->favoured[0] != 0) {
        return "share";
    }
    return reason_lacks(queue, entry) || (entry->offer.n == 0 && entry->tried > 0) ? "memory"
                                                                                   : "turn";
}

// reason_memory is the first half of the sentence: what the job itself lacks.
static int reason_memory(const hth_train_queue *queue, const hth_train_entry *entry, char *why,
                         size_t cap)
{
    uint64_t need = (uint64_t)reason_least(entry), free = queue->fair.rest_bytes;
    if (need <= free) {
        return snprintf(why, cap, "waits for its turn");
    }
    hth_size needs, left;
    hth_size_pair(need, free, &needs, &left);
    return snprintf(why, cap, "waits for %s of device memory, of which %s are free", needs.text,
                    left.text);
}

// reason_others is the second half: who comes first.
static void reason_others(const hth_train_queue *queue, const hth_train_entry *entry, char *why,
                          size_t cap)
{
    const hth_fair_job *job = hth_fair_queue_reserved(queue->fair.jobs);
    const hth_train_entry *first = job != NULL ? hth_train_fair_entry(job) : entry;
    hth_fair_standing s = hth_train_fair_standing(&queue->fair, first->tenant);
    if (s.under_since_ns > 0) {
        snprintf(why, cap, "; tenant '%s' is under its share", first->of);
    } else if (first != entry && first->tenant == entry->tenant) {
        snprintf(why, cap, "; job '%s' is ahead of it", first->job);
    } else if (first != entry) {
        snprintf(why, cap, "; a job of tenant '%s' is ahead of it", first->of);
    }
}

// reason_until is when the job's tenant has waited for long enough that others are paused for it.
static uint64_t reason_until(const hth_train_queue *queue, const hth_train_entry *entry)
{
    hth_fair_standing s = hth_train_fair_standing(&queue->fair, entry->tenant);
    uint64_t patience_ns = hth_train_fair_patience_ns();
    return s.under_since_ns > 0 && patience_ns != HTH_FAIR_NEVER ? s.under_since_ns + patience_ns
                                                                 : HTH_FAIR_NEVER;
}

double hth_train_reason(const hth_train_queue *queue, const hth_train_entry *entry, char *why,
                        size_t cap)
{
    uint64_t now_ns = hth_now_ns();
    size_t n = 0;
    if (entry->favoured[0] != 0) {
        n = (size_t)snprintf(why, cap, "paused in favour of tenant '%s'; ", entry->favoured);
    }
    n += (size_t)reason_memory(queue, entry, why + n, cap - n);
    reason_others(queue, entry, why + n, cap - n);
    const hth_fair_job *first = hth_fair_queue_reserved(queue->fair.jobs);
    uint64_t at_ns = hth_fair_queue_predict(queue->fair.jobs, &entry->fair, now_ns);
    uint64_t until_ns = reason_until(queue, entry);
    at_ns = until_ns < at_ns ? until_ns : at_ns;
    if (at_ns == HTH_FAIR_NEVER) {
        return NAN;
    }
    double seconds = at_ns > now_ns ? (double)(at_ns - now_ns) / 1e9 : 0;
    if (first != NULL && first != &entry->fair && until_ns == HTH_FAIR_NEVER) {
        seconds += first->run_ns != NULL ? (double)first->run_ns[first->n_demands - 1] / 1e9 : NAN;
    }
    return seconds;
}
