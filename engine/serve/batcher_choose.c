// SPDX-License-Identifier: Apache-2.0
// Which requests make a run with the head of a queue, in how large a bucket, and whether it pays to
// wait for more.
//
// The objective is time per sample that somebody asked for: a bucket's padding counts as time, not
// as samples. Of each bucket only the longest prefix of the queue that fits is looked at: a shorter
// one in the same bucket is dearer.
#include "engine/serve/batcher_choose_impl.h"

#include <stddef.h>

// A joined run must be this much faster per sample: what is within the noise stays as it is.
#define CHOOSE_GAIN 0.97
// The other way is taken, so that both measurements stay fresh, after so many decisions or so much
// time, and so many times what it takes longer: it costs less than 1 % of the time.
#define CHOOSE_OTHER      16
#define CHOOSE_OTHER_NS   1000000000u
#define CHOOSE_OTHER_COST 128
// After this many waits that brought nobody, only one decision in so many waits.
#define WAIT_VAIN 4
#define WAIT_TRY  16

int64_t hth_batch_bucket(const hth_batch_policy *policy, int64_t samples)
{
    int64_t b = 1;
    while (b < samples) {
        b *= 2;
    }
    for (int i = 0; i < policy->n_preferred; i++) {
        b = policy->preferred[i] >= samples && policy->preferred[i] < b ? policy->preferred[i] : b;
    }
    return policy->max_samples >= samples && policy->max_samples < b ? policy->max_samples : b;
}

// bucket_below is the largest bucket that is smaller than `bucket`.
static int64_t bucket_below(const hth_batch_policy *policy, int64_t bucket)
{
    int64_t b = 1;
    while (b * 2 < bucket) {
        b *= 2;
    }
    for (int i = 0; i < policy->n_preferred; i++) {
        b = policy->preferred[i] < bucket && policy->preferred[i] > b ? policy->preferred[i] : b;
    }
    return b;
}

typedef struct chooser {
    hth_batcher *b;
    const hth_batch_item *head;
    const hth_batch_policy *policy;
    int64_t total[HTH_BATCH_ITEMS]; // samples of the first items
    int n;
    double rate; // of the head alone: nanoseconds per sample
    // the fastest joined run that is known
    double best_rate;
    int best_n;
    int64_t best_bucket;
} chooser;

// collect_from adds items that fit with the head, in the queue's order: of its flow, or of
// others.
static void collect_from(chooser *c, const hth_batch_item *head, bool own, uint64_t now_ns,
                         hth_batch_choice *out)
{
    const hth_batch_oracle *o = &c->b->oracle;
    for (hth_batch_item *i = head->queue->first; i != NULL && c->n < HTH_BATCH_ITEMS; i = i->next) {
        int64_t total = c->total[c->n - 1] + i->samples;
        if (i != head && (i->flow == head->flow) == own && i->joins &&
            total <= c->policy->max_samples && !hth_batch_item_ended(i, now_ns) &&
            o->alike(o->ctx, head, i)) {
            out->item[c->n] = i;
            c->total[c->n++] = total;
        }
    }
}

// collect finds the head's company: its own tenant's first, whose turn it is.
static void collect(chooser *c, hth_batch_item *head, uint64_t now_ns, hth_batch_choice *out)
{
    out->item[0] = head;
    c->total[0] = head->samples;
    c->n = 1;
    if (head->joins) {
        collect_from(c, head, true, now_ns, out);
    }
    if (head->joins && c->b->flows->next != NULL) {
        collect_from(c, head, false, now_ns, out);
    }
}

// prefix is how many of the first items fit into a bucket.
static int prefix(const chooser *c, int64_t bucket)
{
    int n = c->n;
    while (n > 1 && c->total[n - 1] > bucket) {
        n--;
    }
    return n;
}

// weigh looks at all buckets, the largest first. true: one was found that must be tried.
static bool weigh(chooser *c)
{
    const hth_batch_oracle *o = &c->b->oracle;
    bool requested = false;
    int64_t bucket = hth_batch_bucket(c->policy, c->total[c->n - 1]);
    for (; bucket > c->head->samples; bucket = bucket_below(c->policy, bucket)) {
        int n = prefix(c, bucket);
        if (n < 2) {
            break;
        }
        uint64_t ns = o->time_ns(o->ctx, c->head, bucket);
        double rate = (double)ns / (double)c->total[n - 1];
        if (ns == HTH_BATCH_NONE) {
            if (!requested && !(c->best_n > 0 && c->best_rate < c->rate * CHOOSE_GAIN)) {
                requested = o->want(o->ctx, c->head, bucket);
            }
        } else if (ns == 0 || c->best_n == 0 || rate < c->best_rate) {
            c->best_rate = rate;
            c->best_n = n;
            c->best_bucket = bucket;
            if (ns == 0) {
                return true;
            }
        }
    }
    return false;
}

// other_way says that what is slower, by what was measured, is to be measured again.
static bool other_way(const chooser *c, hth_batch_queue *queue, bool joined, uint64_t now_ns)
{
    double alone = (double)c->head->samples * c->rate, all = (double)c->total[c->best_n - 1];
    double longer =
        joined ? alone - (double)c->head->samples * c->best_rate : all * (c->best_rate - c->rate);
    queue->other_ns = queue->other_ns != 0 ? queue->other_ns : now_ns;
    uint64_t since_ns = now_ns > queue->other_ns ? now_ns - queue->other_ns : 0;
    if ((++queue->decisions < CHOOSE_OTHER && since_ns < CHOOSE_OTHER_NS) ||
        (double)since_ns < longer * CHOOSE_OTHER_COST) {
        return false;
    }
    queue->decisions = 0;
    queue->other_ns = now_ns;
    return true;
}

// join decides how many of the first items are run together: 1, or a joined run.
static int join(chooser *c, hth_batch_queue *queue, uint64_t now_ns)
{
    const hth_batch_oracle *o = &c->b->oracle;
    uint64_t alone = o->time_ns(o->ctx, c->head, c->head->samples);
    if (alone == 0 || alone == HTH_BATCH_NONE) {
        return 1;
    }
    c->rate = (double)alone / (double)c->head->samples;
    if (weigh(c)) {
        return c->best_n;
    }
    bool joined = c->best_n > 0 && c->best_rate < c->rate * CHOOSE_GAIN;
    if (c->best_n > 0 && other_way(c, queue, joined, now_ns)) {
        joined = !joined;
    }
    return joined ? c->best_n : 1;
}

// larger_pays says that a run of more samples than there are may be faster per sample.
static bool larger_pays(const chooser *c)
{
    const hth_batch_oracle *o = &c->b->oracle;
    int64_t total = c->total[c->n - 1], bucket = hth_batch_bucket(c->policy, total + 1);
    uint64_t now = o->time_ns(o->ctx, c->head, hth_batch_bucket(c->policy, total)),
             then = o->time_ns(o->ctx, c->head, bucket);
    return now == 0 || then == 0 || now == HTH_BATCH_NONE || then == HTH_BATCH_NONE ||
           (double)then / (double)bucket < (double)now / (double)total * CHOOSE_GAIN;
}

static bool is_preferred(const hth_batch_policy *policy, int64_t total)
{
    for (int i = 0; i < policy->n_preferred; i++) {
        if (policy->preferred[i] == total) {
            return true;
        }
    }
    return false;
}

// waits says that the head is to wait for company.
static bool waits(const chooser *c, hth_batch_queue *queue, uint64_t now_ns)
{
    const hth_batch_policy *p = c->policy;
    int64_t total = c->total[c->n - 1];
    if (p->delay_ns == 0 || !c->head->joins || total >= p->max_samples ||
        now_ns >= c->head->arrived_ns + p->delay_ns || is_preferred(p, total)) {
        return false;
    }
    if (queue->waited_n == 0 && queue->vain >= WAIT_VAIN && ++queue->waits % WAIT_TRY != 0) {
        return false;
    }
    return larger_pays(c);
}

void hth_batch_choose(hth_batcher *batcher, hth_batch_item *head, uint64_t now_ns,
                      hth_batch_filter filter, hth_batch_choice *out)
{
    hth_batch_queue *q = head->queue;
    chooser c = {.b = batcher, .head = head, .policy = &q->policy};
    out->n = 0;
    out->bucket = 0;
    out->wake_ns = UINT64_MAX;
    collect(&c, head, now_ns, out);
    if (!filter.hurry && waits(&c, q, now_ns)) {
        q->waited_n = q->waited_n == 0 ? q->n : q->waited_n;
        out->wake_ns = head->arrived_ns + q->policy.delay_ns;
        return;
    }
    if (q->waited_n > 0) {
        q->vain = q->n > q->waited_n ? 0 : q->vain + 1;
        q->waited_n = 0;
    }
    out->n = c.n > 1 ? join(&c, q, now_ns) : 1;
    out->bucket = out->n > 1 ? c.best_bucket : 0;
}
