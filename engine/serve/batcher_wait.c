// SPDX-License-Identifier: Apache-2.0
// How long a new item would wait: the run at work, and what comes before its turn.
#include "engine/serve/batcher_choose_impl.h"

#include <stddef.h>

// wait_count sums up what waits at this priority, by flow; returns what waits at a higher one.
static double wait_count(const hth_batcher *batcher, uint32_t priority)
{
    double higher = 0;
    for (hth_batch_flow *f = batcher->flows; f != NULL; f = f->next) {
        f->waiting_ns = f->longest_ns = 0;
    }
    for (const hth_batch_queue *q = batcher->queues; q != NULL; q = q->next) {
        for (const hth_batch_item *i = q->first; i != NULL && i->priority <= priority;
             i = i->next) {
            double ns = hth_batch_item_ns(i);
            higher += i->priority < priority ? ns : 0;
            i->flow->waiting_ns += i->priority == priority ? ns : 0;
            i->flow->longest_ns = ns > i->flow->longest_ns ? ns : i->flow->longest_ns;
        }
    }
    return higher;
}

// Until its flow has come to the new item's virtual time the others come as far, and one item
// further.
uint64_t hth_batcher_wait_ns(const hth_batcher *batcher, const hth_batch_flow *flow,
                             uint32_t priority, uint64_t now_ns)
{
    double ns = batcher->busy_until_ns > now_ns ? (double)(batcher->busy_until_ns - now_ns) : 0;
    flow = flow != NULL ? flow : &batcher->nobodys;
    ns += wait_count(batcher, priority);
    double own = flow->n > 0 ? flow->waiting_ns : 0;
    double at = flow->n > 0 || flow->at > batcher->at ? flow->at : batcher->at;
    at += own / flow->weight;
    for (const hth_batch_flow *f = batcher->flows; f != NULL; f = f->next) {
        double most = at > f->at ? (at - f->at) * f->weight : 0;
        most += f->longest_ns;
        ns += f == flow || most > f->waiting_ns ? f->waiting_ns : most;
    }
    return (uint64_t)ns;
}
