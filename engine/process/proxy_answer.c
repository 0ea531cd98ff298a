// SPDX-License-Identifier: Apache-2.0
// Answers, and what becomes of requests to which there is none. An answer is copied once, from
// where the child put it to where `place` says, unless the request keeps it where it is.
//
// What a child says is believed as far as it has been checked: an answer to what was not asked, or
// one with offsets that lead astray, ends it.
#include "engine/process/proxy_impl.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

// Deaths of the process while a request waited in it: more are no accident.
#define CALL_MOST_DEATHS 3

// call_end takes a request out of the table, as `err` with the calling thread's detail.
static void call_end(hth_proxy *p, proxy_call *c, hth_err err)
{
    hth_request *r = c->r;
    r->err = err;
    r->detail[0] = 0;
    if (err != HTH_OK) {
        snprintf(r->detail, sizeof r->detail, "%s", hth_err_detail());
    }
    r->finished_ns = hth_now_ns();
    pthread_mutex_lock(&p->lock);
    proxy_call_free(p, c);
    pthread_mutex_unlock(&p->lock);
    hth_request_tensor *outputs = r->outputs;
    r->done(r); // r may be gone now
    hth_free(outputs);
}

// answer_at is where an output lies: in the child's slab, or where its client wants it. NULL: in
// neither.
static void *answer_at(hth_proxy *p, const hth_child_tensor *w)
{
    if (w->region == 0) {
        return hth_slab_at(p->link.out, w->at, w->bytes);
    }
    pthread_mutex_lock(&p->lock);
    const proxy_region *r = proxy_region_number(p, w->region);
    bool inside = r != NULL && w->at <= r->bytes && w->bytes <= r->bytes - w->at;
    void *at = inside ? (char *)r->base + w->at : NULL;
    pthread_mutex_unlock(&p->lock);
    return at;
}

// answer_keep has outputs stay where the child put them until they are given up.
static hth_err answer_keep(hth_proxy *p, hth_request *r, proxy_call *c)
{
    hth_kept *k = hth_alloc(sizeof *k);
    if (k == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for an answer");
    }
    pthread_mutex_lock(&p->lock);
    *k = (hth_kept){p, p->out, (int)(c - p->calls)};
    p->out->refs++;
    c->state = PROXY_KEPT;
    p->n_kept++;
    pthread_mutex_unlock(&p->lock);
    r->kept = k;
    return HTH_OK;
}

// answer_may_stay tells whether outputs may stay in the child's slab: slow readers of answers leave
// enough slots to all others.
static bool answer_may_stay(hth_proxy *p)
{
    pthread_mutex_lock(&p->lock);
    bool may = p->n_kept < p->n_calls / 4;
    pthread_mutex_unlock(&p->lock);
    return may;
}

// answer_outputs has the outputs placed, and copies them there, unless that is where they are.
static hth_err answer_outputs(hth_proxy *p, proxy_call *c, const hth_child_record *a)
{
    hth_request *r = c->r;
    int n = (int)a->n_tensors;
    bool keep = false, may = r->keeps && answer_may_stay(p);
    r->outputs = hth_calloc((size_t)n + 1, sizeof *r->outputs);
    if (r->outputs == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for %d outputs", n);
    }
    for (int i = 0; i < n; i++) {
        size_t bytes = 0;
        hth_request_tensor *t = &r->outputs[i];
        *t = hth_child_record_tensor(a, i);
        void *at = answer_at(p, &a->tensor[i]);
        if (hth_tensor_bytes(t->t.dtype, &t->t.shape, t->t.layout, &bytes) != HTH_OK ||
            bytes != t->t.bytes || at == NULL) {
            p->lost = true;
            return hth_fail(HTH_ECORRUPT, "the engine's process gave an output that cannot be");
        }
        t->t.data = NULL;
        t->offered = may && a->tensor[i].region == 0 ? at : NULL;
    }
    r->n_outputs = n;
    HTH_TRY(r->place(r, r->outputs, n));
    for (int i = 0; i < n; i++) {
        const hth_tensor *t = &r->outputs[i].t;
        const void *from = answer_at(p, &a->tensor[i]);
        if (t->data == from) {
            keep = keep || r->outputs[i].offered != NULL;
        } else if (t->bytes > 0) {
            memmove(t->data, from, t->bytes); // a client's memory may be both
        }
        r->outputs[i].offered = NULL;
    }
    return keep ? answer_keep(p, r, c) : HTH_OK;
}

static hth_err answer_read(hth_proxy *p, proxy_call *c, const hth_child_record *a)
{
    hth_request *r = c->r;
    const char *detail = hth_child_record_text(a, HTH_CHILD_DETAIL);
    const char *json = hth_child_record_text(a, HTH_CHILD_JSON);
    r->version = a->version;
    r->batched = a->batched != 0;
    r->started_ns = a->started_ns;
    if (a->err != HTH_OK) {
        p->lost |= a->err == HTH_EDEVLOST;
        return hth_fail((hth_err)a->err, "%s", detail != NULL ? detail : "");
    }
    if (r->query == NULL) {
        return answer_outputs(p, c, a);
    }
    r->json = json != NULL ? hth_strdup(json) : NULL;
    return json != NULL && r->json == NULL ? hth_fail(HTH_ENOMEM, "no memory for an answer")
                                           : HTH_OK;
}

static void answer_take(hth_proxy *p, const hth_child_head *head, proxy_call *c, const char *body,
                        size_t bytes)
{
    hth_child_record *copy;
    const hth_child_record *a;
    hth_request *r = c->r;
    hth_err err = hth_child_link_record(head, body, bytes, p->link.out, &copy, &a);
    if (err == HTH_OK) {
        err = answer_read(p, c, a);
    } else {
        p->lost |= err == HTH_ECORRUPT;
    }
    atomic_store(&p->link.board->slot[head->slot].released, r->kept == NULL);
    if (err == HTH_OK) {
        proxy_models_note(p, r);
    }
    call_end(p, c, err); // names of outputs lie in the record
    hth_free(copy);
}

void proxy_message(hth_proxy *p, const hth_child_head *head, const char *body, size_t bytes)
{
    proxy_call *c = head->slot < (uint32_t)p->n_calls ? &p->calls[head->slot] : NULL;
    pthread_mutex_lock(&p->lock);
    bool asked = c != NULL && c->state == PROXY_SENT; // only this thread changes that back
    pthread_mutex_unlock(&p->lock);
    if (head->kind == HTH_CHILD_DONE && asked) {
        answer_take(p, head, c, body, bytes);
    } else if (head->kind == HTH_CHILD_PROGRESS && asked) {
        if (c->r->progress != NULL) {
            c->r->progress(c->r, body, head->done, head->total);
        }
    } else if (head->kind == HTH_CHILD_EVENT) {
        size_t n = strlen(body) + 1;
        if (p->event != NULL && n < bytes) {
            p->event(p->event_ctx, body, body + n, head->done, head->total);
        }
    } else if (head->kind != HTH_CHILD_PROGRESS) {
        hth_log(ERROR, SERVER, "engine-nonsense", "kind=%u slot=%u", head->kind, head->slot);
        p->lost = true;
    }
}

// ---- what time brings

// call_find returns a call for which `wanted` says yes.
static proxy_call *call_find(hth_proxy *p, bool (*wanted)(hth_proxy *p, const proxy_call *c))
{
    proxy_call *found = NULL;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < p->high && found == NULL; i++) {
        found = wanted(p, &p->calls[i]) ? &p->calls[i] : NULL;
    }
    if (found != NULL) {
        found->state = PROXY_FILLING; // nobody else looks at it any more
    }
    pthread_mutex_unlock(&p->lock);
    return found;
}

static bool call_is_canceled(hth_proxy *p, const proxy_call *c)
{
    return c->state == PROXY_WAITING && c->r->canceled;
}

static bool call_is_expired(hth_proxy *p, const proxy_call *c)
{
    const hth_request *r = c->r;
    return c->state == PROXY_WAITING && r->query == NULL && r->timeout_us > 0 &&
           (hth_now_ns() - r->submitted_ns) / 1000u >= r->timeout_us;
}

void proxy_look(hth_proxy *p)
{
    proxy_call *c;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; p->phase == PROXY_UP && i < p->high; i++) {
        if (p->calls[i].state == PROXY_SENT && p->calls[i].r->canceled) {
            p->link.board->slot[i].r.canceled = 1;
        }
    }
    if (p->phase == PROXY_UP) {
        proxy_region_forget(p, false);
        (void)proxy_send_waiting(p);
    }
    pthread_mutex_unlock(&p->lock);
    while ((c = call_find(p, call_is_canceled)) != NULL) {
        call_end(p, c, hth_fail(HTH_ECANCELED, "canceled while it was queued"));
    }
    while ((c = call_find(p, call_is_expired)) != NULL) {
        call_end(p, c, hth_fail(HTH_ETIMEDOUT, "Request timeout expired"));
    }
}

static bool call_is_lost(hth_proxy *p, const proxy_call *c)
{
    return c->state == PROXY_SENT || (c->state == PROXY_WAITING && c->deaths >= CALL_MOST_DEATHS);
}

static bool call_is_open(hth_proxy *p, const proxy_call *c)
{
    return c->state == PROXY_SENT || c->state == PROXY_WAITING;
}

// call_has_begun looks at what a dead child left: while a request is queued its start is its
// submission.
static bool call_has_begun(const hth_request *r)
{
    return r->started_ns != r->submitted_ns && r->started_ns != 0;
}

// call_goes_on tells of a request that had begun whether the next child can go on with it: a
// training job has its checkpoint, or nothing that it left, and what the child knows of it.
static bool call_goes_on(const hth_request *r)
{
    return r->query != NULL && strcmp(r->query, "train") == 0;
}

void proxy_bury(hth_proxy *p, const char *sentence, bool all)
{
    int running = 0, waiting = 0;
    proxy_call *c;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < p->high; i++) {
        c = &p->calls[i];
        if (c->state == PROXY_SENT && !call_has_begun(&p->link.board->slot[i].r)) {
            c->state = PROXY_WAITING;
            c->deaths++;
            c->r->started_ns = 0; // nothing was computed for it
        } else if (c->state == PROXY_SENT) {
            c->r->started_ns = p->link.board->slot[i].r.started_ns;
            c->r->deaths++;
            c->state = call_goes_on(c->r) ? PROXY_WAITING : PROXY_SENT;
        }
        running += c->state == PROXY_SENT;
        waiting += c->state == PROXY_WAITING;
    }
    pthread_mutex_unlock(&p->lock);
    if (running + waiting > 0) {
        hth_log(WARN, SERVER, "engine-requests", "failed=%d waiting=%d", running, waiting);
    }
    while ((c = call_find(p, all ? call_is_open : call_is_lost)) != NULL) {
        if (c->deaths >= CALL_MOST_DEATHS) {
            call_end(p, c,
                     hth_fail(HTH_EDEVLOST,
                              "the engine's process died %d times while this request was in its "
                              "queue: it is not tried again",
                              c->deaths));
        } else {
            call_end(p, c, hth_fail(HTH_EDEVLOST, "%s", sentence));
        }
    }
}
