// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/train_overlap.h"

#include "base/clock.h"
#include "base/spin.h"
#include "device/cpu/team.h"

// Of the time of training steps and of requests that are answered beside them, what the steps keep
// while requests of normal priority wait; what they may be owed.
#define BESIDE_SHARE 0.7
#define BESIDE_OWED  100000000.0 // ns
// How long ago requests came that are expected again.
#define BESIDE_ASKED_NS 60000000000u
// How long the thread sleeps while nothing waits; while something does, which may expire.
#define BESIDE_IDLE_NS 200000000u
#define BESIDE_LOOK_NS 2000000u
// How long threads rest, behind each time that this thread has slept beside a step of low priority.
#define BESIDE_REST_NS 2000000000u

// beside_credit adds what the step's time alone, until now, gives requests.
static void beside_credit(hth_train_overlap *b, uint64_t now_ns)
{
    b->credit_ns += (double)(now_ns - b->alone_ns) * (1 - BESIDE_SHARE) / BESIDE_SHARE;
    b->credit_ns = b->credit_ns > BESIDE_OWED ? BESIDE_OWED : b->credit_ns;
    b->alone_ns = now_ns;
}

// beside_serve does one run, if there is one that may be.
static bool beside_serve(hth_train_overlap *b, uint64_t *took_ns)
{
    uint64_t from_ns = hth_now_ns();
    uint32_t priority;
    beside_credit(b, from_ns);
    if (!hth_serve_between(b->serve, b->credit_ns > 0 ? UINT32_MAX : 1, &priority)) {
        return false;
    }
    uint64_t now_ns = hth_now_ns();
    b->credit_ns -= priority > 1 ? (double)(now_ns - from_ns) : 0;
    b->alone_ns = b->asked_ns = now_ns;
    *took_ns += now_ns - from_ns;
    return true;
}

// beside_lower keeps the step out of the way of requests: of the processors, and of spinning
// threads, which would yield it theirs.
static void beside_lower(hth_train_overlap *b)
{
    if (!b->low) {
        hth_instance_lower(b->space);
        b->low = true;
    }
    hth_team_keep(true);
    hth_spin_rest(hth_real_after(BESIDE_REST_NS));
}

static hth_instance *beside_space(hth_train_overlap *b)
{
    bool asked = hth_now_ns() - b->asked_ns < BESIDE_ASKED_NS;
    if (b->space != NULL && b->low && !asked) {
        hth_instance_close(b->space);
        b->space = NULL;
    }
    if (b->space == NULL) {
        const hth_instance_config c = {.name = "step",
                                       .threads = b->serve->ms->site->device->props.n_threads,
                                       .done = b->serve->wake,
                                       .ctx = b->serve->ctx};
        b->low = false;
        (void)hth_instance_open(&c, &b->space);
    }
    return b->space;
}

static hth_err beside_work(void *ctx, hth_err (*work)(void *arg), void *arg)
{
    hth_train_overlap *b = ctx;
    bool more = true;
    uint64_t *took_ns = &b->serve->ms->site->beside_ns;
    hth_instance *s = beside_space(b);
    *took_ns = 0;
    if (s == NULL) { // no memory for a thread: nobody is served meanwhile
        return work(arg);
    }
    b->alone_ns = hth_now_ns();
    hth_instance_start(s, work, arg);
    while (hth_instance_busy(s) && more) {
        if (b->low || b->serve->batcher.n > 0) {
            beside_lower(b);
        }
        // what looked for messages may have taken the wake-up of the step's end
        if (!beside_serve(b, took_ns) && hth_instance_busy(s)) {
            bool none = hth_serve_empty(b->serve) && b->serve->await.n == 0;
            more = b->serve->wait(b->serve->ctx, none ? BESIDE_IDLE_NS : BESIDE_LOOK_NS);
        }
    }
    hth_team_keep(false);
    return hth_instance_wait(s);
}

void hth_train_overlap_init(hth_train_overlap *b)
{
    hth_site *site = b->serve->ms->site;
    if (site->device->props.inline_compute) {
        site->beside = beside_work;
        site->beside_ctx = b;
    }
}

void hth_train_overlap_fini(hth_train_overlap *b)
{
    hth_instance_close(b->space);
    b->space = NULL;
}
