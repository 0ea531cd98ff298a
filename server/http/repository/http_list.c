// SPDX-License-Identifier: Apache-2.0
// Documents about all models: with thousands of them each costs the engine and a thread some time,
// and would cost the loop, on which everybody waits, as much. They are written by the threads of
// http_work.h, and each kind by one at a time: who asks while one is being made waits for the next,
// with all others who do, so that an answer is never older than its request. The engine is asked
// again only after it has had twice the time of its last answer for something else, or a second.
//
//     asked first -> engine ("stats", then "shares"; "loaded") -> written (thread) -> answered
//          while one is made: waiting ------------------------------------^ then asked for them
#include "server/http/http_call.h"

#include "base/clock.h"
#include "server/http/tensors/http_json.h"

#include <string.h>

// The parts of the engine's time that others have after an answer, for each that it took, waiting
// included; and the longest pause.
#define LIST_PAUSE         2
#define LIST_PAUSE_MOST_NS 1000000000u

// Who waits for a document.
typedef struct list_waiter {
    hth_http_req *req;
    struct list_waiter *next;
} list_waiter;

// What several answers share: sent from where it lies.
typedef struct list_text {
    hth_text text;
    int refs;
} list_text;

struct hth_http_list {
    hth_http *h;
    const struct list_kind *kind;
    bool far;                             // for who is not on this machine
    bool making;                          // a call is pending
    list_waiter *asked, *waiting, **last; // for whom it is made; .. the next one will be
    uint64_t requested_ns, next_ns;       // when the engine was asked; .. may be the next time
};

typedef struct list_call {
    hth_http_call c;
    hth_http_list *list;
    hth_text text;
    char *first; // the answer to the first of two questions
} list_call;

static const struct list_kind {
    hth_command_id command; // MODELS: the store is read, and no engine asked
    const char *type;
    hth_http_writer *write;
    bool private;           // neither the client nor a proxy is to keep it
    hth_command_id further; // asked after it: the document's "further"; NONE: nothing
} list_kinds[HTH_HTTP_LISTS] = {
    [HTH_HTTP_LIST_INDEX] = {HTH_COMMAND_LOADED, "application/json", hth_http_write_index, false,
                             HTH_COMMAND_NONE},
    [HTH_HTTP_LIST_READY] = {HTH_COMMAND_LOADED, "application/json", hth_http_write_index_ready,
                             false, HTH_COMMAND_NONE},
    [HTH_HTTP_LIST_STATS] = {HTH_COMMAND_STATS, "application/json", hth_http_write_stats, false,
                             HTH_COMMAND_NONE},
    [HTH_HTTP_LIST_METRICS] = {HTH_COMMAND_STATS, "text/plain; charset=utf-8",
                               hth_http_write_metrics, false, HTH_COMMAND_SHARES},
    [HTH_HTTP_LIST_MODELS] = {HTH_COMMAND_MODELS, "application/json", hth_http_write_models, true,
                              HTH_COMMAND_NONE},
};

// ---- answers

static void text_rele(const void *data, size_t n, void *text)
{
    list_text *t = text;
    if (--t->refs == 0) {
        hth_text_fini(&t->text);
        hth_free(t);
    }
}

static void list_send(const hth_http_list *list, hth_http_req *req, list_text *text)
{
    struct evbuffer *body = evbuffer_new();
    if (body == NULL ||
        evbuffer_add_reference(body, text->text.p, text->text.n, text_rele, text) != 0) {
        hth_http_fail(list->h, req, 503, "out of memory for an answer");
    } else {
        text->refs++;
        if (list->kind->private) {
            hth_http_add(req, "Cache-Control", "no-store");
        }
        hth_http_send(list->h, req, 200, list->kind->type, body);
    }
    if (body != NULL) {
        evbuffer_free(body);
    }
}

static void list_drop(hth_http_call *call)
{
    hth_text_fini(&((list_call *)call)->text);
    hth_free(((list_call *)call)->first);
}

// list_over answers all for whom the document was made, with it or with the call's error.
static void list_over(hth_http_call *c)
{
    list_call *call = (list_call *)c;
    hth_http_list *l = call->list;
    list_text *t = c->r.err == HTH_OK ? hth_calloc(1, sizeof *t) : NULL;
    if (t != NULL) {
        *t = (list_text){call->text, 1};
        call->text = (hth_text){.p = NULL};
    }
    while (l->asked != NULL) {
        list_waiter *w = l->asked;
        l->asked = w->next;
        c->req = w->req;
        hth_free(w);
        if (t != NULL) {
            list_send(l, c->req, t);
        } else if (c->r.err != HTH_OK) {
            hth_http_fail_call(c, NULL);
        } else {
            hth_http_fail(l->h, c->req, 503, "out of memory for an answer");
        }
    }
    c->req = NULL;
    if (t != NULL) {
        text_rele(NULL, 0, t);
    }
    l->making = false;
    hth_http_lists_start(l->h, hth_now_ns());
}

// ---- the document

// list_document reads what the engine has answered. Without the further answer there is the first.
static json_t *list_document(const list_call *call)
{
    const char *last = call->c.r.json;
    json_t *further = last != NULL ? json_loads(last, 0, NULL) : NULL;
    if (call->first == NULL) {
        return further;
    }
    json_t *doc = json_loads(call->first, 0, NULL);
    json_object_set_new(doc, "further", further != NULL ? further : json_null());
    return doc;
}

// list_work runs on a thread.
static hth_err list_work(hth_http_call *c)
{
    list_call *call = (list_call *)c;
    const struct list_kind *k = call->list->kind;
    json_t *doc = list_document(call);
    if (doc == NULL && k->command != HTH_COMMAND_MODELS) {
        return hth_fail(HTH_EIO, "the engine did not answer");
    }
    hth_err err = k->write(c->h, doc, call->list->far, &call->text);
    json_decref(doc);
    if (err == HTH_OK && call->text.failed) {
        return hth_no_memory("a list of all models");
    }
    return err;
}

static void list_write(hth_http_call *c)
{
    list_call *call = (list_call *)c;
    size_t bytes = c->r.json != NULL ? strlen(c->r.json) : 0;
    uint64_t now = hth_now_ns(), pause = LIST_PAUSE * (now - call->list->requested_ns);
    call->list->next_ns = now + (pause < LIST_PAUSE_MOST_NS ? pause : LIST_PAUSE_MOST_NS);
    c->task.group = c->task.one = (uintptr_t)call->list;
    c->task.cost = bytes;
    hth_http_call_work(c, list_work, list_over);
}

// list_ask_further asks the second question of a document.
static void list_ask_further(list_call *call)
{
    call->first = call->c.r.json;
    call->c.r.json = NULL;
    call->c.r.command = call->list->kind->further;
    hth_http_call_submit(&call->c);
}

static void list_answered(hth_http_call *c)
{
    list_call *call = (list_call *)c;
    bool further = call->list->kind->further != HTH_COMMAND_NONE;
    if (c->r.err != HTH_OK && call->first == NULL) {
        list_over(c);
    } else if (further && call->first == NULL && c->r.json != NULL) {
        list_ask_further(call);
    } else {
        list_write(c);
    }
}

static void list_refuse(hth_http_list *list)
{
    while (list->asked != NULL) {
        list_waiter *w = list->asked;
        list->asked = w->next;
        hth_http_fail(list->h, w->req, 503, "out of memory for a request");
        hth_free(w);
    }
}

// list_start has the document made for all that wait. Whoever asked first hanging up ends nothing:
// it is no client's call.
static void list_start(hth_http_list *list)
{
    list->asked = list->waiting;
    list->waiting = NULL;
    list->last = &list->waiting;
    list_call *call = hth_calloc(1, sizeof *call);
    if (call == NULL) {
        list_refuse(list);
        return;
    }
    call->list = list;
    call->c.h = list->h;
    call->c.drop = list_drop;
    call->c.r.command = list->kind->command;
    list->making = true;
    list->requested_ns = hth_now_ns();
    if (list->kind->command == HTH_COMMAND_MODELS) {
        list_write(&call->c);
        return;
    }
    call->c.finish = list_answered;
    call->c.r.arguments = "{}";
    hth_http_call_submit(&call->c);
}

void hth_http_lists_start(hth_http *http, uint64_t now)
{
    for (int i = 0; i < HTH_HTTP_LISTS * 2; i++) {
        hth_http_list *l = http->lists[i];
        if (l != NULL && l->waiting != NULL && !l->making &&
            (now >= l->next_ns || atomic_load(&http->stopping))) {
            list_start(l);
        }
    }
}

bool hth_http_lists_wait(const hth_http *http)
{
    bool any = false;
    for (int i = 0; i < HTH_HTTP_LISTS * 2; i++) {
        any = any || (http->lists[i] != NULL && http->lists[i]->waiting != NULL);
    }
    return any;
}

void hth_http_lists_close(hth_http *http)
{
    for (int i = 0; i < HTH_HTTP_LISTS * 2; i++) {
        hth_free(http->lists[i]);
        http->lists[i] = NULL;
    }
}

static hth_http_list *list_of(hth_http *http, hth_http_listed kind, bool far)
{
    hth_http_list **at = &http->lists[kind * 2 + far];
    if (*at == NULL && (*at = hth_calloc(1, sizeof **at)) != NULL) {
        **at = (hth_http_list){.h = http, .kind = &list_kinds[kind], .far = far};
        (*at)->last = &(*at)->waiting;
    }
    return *at;
}

void hth_http_list_request(hth_http *http, hth_http_req *req, hth_http_listed kind)
{
    bool index = kind == HTH_HTTP_LIST_INDEX || kind == HTH_HTTP_LIST_READY;
    hth_http_list *l = list_of(http, kind, index && !hth_http_is_near(req));
    list_waiter *w = l != NULL ? hth_calloc(1, sizeof *w) : NULL;
    if (w == NULL) {
        hth_http_fail(http, req, 503, "out of memory for a request");
        return;
    }
    w->req = req;
    *l->last = w;
    l->last = &w->next;
    hth_http_lists_start(http, hth_now_ns());
}
