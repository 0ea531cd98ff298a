// SPDX-License-Identifier: Apache-2.0
// A list by arrival. There is one per engine, and it is empty nearly always, so that walking it is
// all the order it needs.
#include "engine/serve/memory_wait.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/settings.h"
#include "runtime/tenants/quota.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static hth_infer_request *await_work(hth_batch_item *item)
{
    return (hth_infer_request *)item; // its first member
}

// What the oldest needs is kept from new jobs and pins; not for who waits for its own tenant.
static void await_reserve(hth_memory_wait *wait)
{
    hth_site *site = wait->ms->site;
    hth_batch_item *i = wait->first;
    while (i != NULL && await_work(i)->awaits_bytes == 0) {
        i = i->next;
    }
    site->awaited_bytes = i != NULL ? await_work(i)->awaits_bytes : 0;
    site->awaiting = wait->n;
}

// When its time is over: its own, where it has one.
static uint64_t await_until(hth_batch_item *item)
{
    return item->expires_ns != 0 ? item->expires_ns : await_work(item)->awaits_until_ns;
}

static hth_infer_request *await_take(hth_memory_wait *wait, hth_batch_item **at)
{
    hth_batch_item *i = *at;
    hth_infer_request *w = await_work(i);
    *at = i->next;
    i->next = NULL;
    assert(wait->n > 0);
    wait->n--;
    assert(w->model->queue.away > 0);
    w->model->queue.away--;
    assert(w->item.flow->away > 0);
    w->item.flow->away--;
    await_reserve(wait);
    return w;
}

// Why it waited stands in its request.
static void await_over(hth_infer_request *request, uint64_t now_ns)
{
    char why[sizeof request->r->detail];
    double s = (double)(now_ns - request->awaits_since_ns) / 1e9;
    snprintf(why, sizeof why, "%.*s", (int)sizeof why - 80, request->r->detail);
    if (request->r->canceled) {
        hth_infer_request_result(request,
                                 hth_fail(HTH_ECANCELED, "canceled while it waited for memory"));
    } else if (request->item.expires_ns != 0 && now_ns >= request->item.expires_ns) {
        hth_infer_request_result(request,
                                 hth_fail(HTH_ETIMEDOUT, "Request timeout expired: %s", why));
    } else {
        hth_infer_request_result(request,
                                 hth_fail(HTH_ENODEVMEM, "%s; it waited for %.1f s", why, s));
    }
}

bool hth_memory_wait_add(hth_memory_wait *memory_wait, hth_infer_request *infer, int most)
{
    const hth_site *site = memory_wait->ms->site;
    uint64_t now_ns = hth_now_ns();
    uint64_t wait_ns = (uint64_t)hth_setting_int(HTH_SET_QUEUE_MEMORY_WAIT) * 1000000u;
    if (infer->awaits_until_ns == 0) {
        infer->awaits_since_ns = now_ns;
        infer->awaits_until_ns = now_ns + wait_ns;
    }
    if (wait_ns == 0 || infer->r->at_once || memory_wait->n >= most) {
        return false;
    }
    if (infer->r->canceled ||
        now_ns >= await_until(&infer->item)) { // its time went while it was tried
        await_over(infer, now_ns);
        return false;
    }
    infer->awaits_over = site->refused_over;
    infer->awaits_bytes = site->refused_bytes;
    infer->done = false;
    hth_batch_item **at = &memory_wait->first;
    while (*at != NULL && (*at)->arrived_ns <= infer->item.arrived_ns) {
        at = &(*at)->next;
    }
    infer->item.next = *at;
    *at = &infer->item;
    memory_wait->n++;
    infer->model->queue.away++;
    infer->item.flow->away++;
    await_reserve(memory_wait);
    hth_log(DEBUG, SERVER, "memory-wait", "model=%s n=%d: %s", infer->model->name, memory_wait->n,
            infer->r->detail);
    return true;
}

bool hth_memory_wait_joins(const hth_memory_wait *memory_wait, hth_infer_request *infer)
{
    hth_site *site = memory_wait->ms->site;
    for (hth_batch_item *i = memory_wait->first; i != NULL; i = i->next) {
        const hth_infer_request *x = await_work(i);
        if (x->model == infer->model && infer->item.samples >= i->samples &&
            hth_infer_request_alike(x, infer) &&
            x->awaits_over >= hth_quota_models(site, &x->model->account)) {
            site->refused_over = x->awaits_over;
            site->refused_bytes = x->awaits_bytes;
            infer->r->err = x->r->err;
            snprintf(infer->r->detail, sizeof infer->r->detail, "%s", x->r->detail);
            return true;
        }
    }
    return false;
}

hth_infer_request *hth_memory_wait_ready(hth_memory_wait *memory_wait)
{
    const hth_site *site = memory_wait->ms->site;
    if (memory_wait->n == 0 || memory_wait->freed == site->freed) {
        return NULL;
    }
    for (hth_batch_item **at = &memory_wait->first; *at != NULL; at = &(*at)->next) {
        const hth_infer_request *w = await_work(*at);
        if (w->awaits_over == 0 || hth_quota_models(site, &w->model->account) > w->awaits_over) {
            return await_take(memory_wait, at);
        }
    }
    memory_wait->freed = site->freed;
    return NULL;
}

hth_infer_request *hth_memory_wait_ended(hth_memory_wait *memory_wait, uint64_t now_ns)
{
    for (hth_batch_item **at = &memory_wait->first; *at != NULL; at = &(*at)->next) {
        hth_infer_request *w = await_work(*at);
        if (w->r->canceled || now_ns >= await_until(*at)) {
            await_over(w, now_ns);
            return await_take(memory_wait, at);
        }
    }
    return NULL;
}

uint64_t hth_memory_wait_wake_ns(const hth_memory_wait *memory_wait)
{
    uint64_t wake_ns = UINT64_MAX;
    for (hth_batch_item *i = memory_wait->first; i != NULL; i = i->next) {
        uint64_t until_ns = await_until(i);
        wake_ns = until_ns < wake_ns ? until_ns : wake_ns;
    }
    return wake_ns;
}

hth_infer_request *hth_memory_wait_last(hth_memory_wait *memory_wait)
{
    return memory_wait->n > 0 ? await_take(memory_wait, &memory_wait->first) : NULL;
}
