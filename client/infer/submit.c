// SPDX-License-Identifier: Apache-2.0
#include "client/infer/submit.h"

#include "base/alloc.h"
#include "base/thread.h"
#include "client/infer/infer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SUBMIT_WORKERS 64 // threads of a connection to a server, and so many requests at a time

typedef enum submit_state {
    SUBMIT_WAITS, // in the connection's list
    SUBMIT_SENT,  // the engine's, or a worker's
    SUBMIT_ENDED, // its callback is to be called
} submit_state;

typedef struct submit_call {
    uint64_t number;
    struct submit_call *table_next; // in the same part of the table
    struct submit_call *next;
    hearth *h;
    submit_state state;
    hearth_done done;
    void *ctx;
    char *model;
    hearth_infer_options options;
    hearth_tensor *inputs; // a copy, of data that is the caller's
    int n_inputs;
    hth_embed_call *embedded; // while the engine has it
    hth_infer_watch watch;    // while a worker has it
    hth_err err;
    char *detail;
    hearth_tensor *outputs;
    int n_outputs;
} submit_call;

typedef struct submit_list {
    submit_call *first, **last;
} submit_list;

struct hth_submits {
    pthread_mutex_t lock; // guards what follows, and what of the connection's calls changes
    pthread_cond_t ended; // .. a call, or the last one's callback
    pthread_cond_t work;
    submit_list waiting, over;
    int left;                         // calls whose callbacks have not returned
    int engine;                       // requests that the engine has
    int n_workers, n_idle, n_waiting; // the last: calls that no worker has taken
    pthread_t worker[SUBMIT_WORKERS];
    pthread_t caller;
    bool called;  // there is that thread
    int event_fd; // -1: none, and there is a thread
    bool stops;
    pthread_t inside; // whose callback runs
    bool is_inside, closes;
};

#define TABLE_PARTS 1024

// All calls of the process by number. Of a process that was forked they are its parent's.
static struct {
    pthread_mutex_t lock;
    submit_call *part[TABLE_PARTS];
    uint64_t last;
    unsigned forks;
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void list_add(submit_list *list, submit_call *call)
{
    call->next = NULL;
    *list->last = call;
    list->last = &call->next;
}

static submit_call *list_take(submit_list *list)
{
    submit_call *call = list->first;
    if (call != NULL) {
        list->first = call->next;
        list->last = call->next == NULL ? &list->first : list->last;
    }
    return call;
}

static bool list_remove(submit_list *list, const submit_call *call)
{
    submit_call **at = &list->first;
    while (*at != NULL && *at != call) {
        at = &(*at)->next;
    }
    if (*at == NULL) {
        return false;
    }
    *at = call->next;
    list->last = *at == NULL ? at : list->last;
    return true;
}

// table_at is where the call with a number is, or would be. Lock held.
static submit_call **table_at(uint64_t number)
{
    submit_call **at = &table.part[number % TABLE_PARTS];
    while (*at != NULL && (*at)->number != number) {
        at = &(*at)->table_next;
    }
    return at;
}

static void table_add(submit_call *call)
{
    if (table.forks != hth_forks()) { // a thread that is not here may have had the lock
        pthread_mutex_init(&table.lock, NULL);
        memset(table.part, 0, sizeof table.part);
        table.forks = hth_forks();
    }
    pthread_mutex_lock(&table.lock);
    call->number = ++table.last;
    submit_call **first = &table.part[call->number % TABLE_PARTS];
    call->table_next = *first;
    *first = call;
    pthread_mutex_unlock(&table.lock);
}

static void call_free(submit_call *call)
{
    if (call->number != 0) {
        pthread_mutex_lock(&table.lock);
        *table_at(call->number) = call->table_next;
        pthread_mutex_unlock(&table.lock);
    }
    hth_free(call->model);
    hth_free(call->inputs);
    hth_free(call->detail);
    hth_free(call);
}

// ---- ends

// call_over puts a call that has ended where its callback is called from. Lock held.
static void call_over(hth_submits *s, submit_call *call)
{
    const uint64_t one = 1;
    bool first = s->over.first == NULL;
    call->state = SUBMIT_ENDED;
    list_add(&s->over, call);
    if (s->event_fd < 0 || s->stops) { // who closes calls what is left
        pthread_cond_broadcast(&s->ended);
    } else if (first && write(s->event_fd, &one, sizeof one) < 0) {
        hth_fail_errno(errno, "an event"); // it is readable already
    }
}

static void call_result(submit_call *call, hth_err err, const char *detail)
{
    call->err = err;
    call->detail = err != HTH_OK ? hth_strdup(detail) : NULL;
}

static void engine_more(hearth *h, submit_call *last);

static void engine_done(void *ctx, hth_err err, const char *detail)
{
    submit_call *call = ctx;
    call_result(call, err, detail);
    engine_more(call->h, call);
}

// call_tell calls the callback, on this thread.
static void call_tell(submit_call *call)
{
    hearth_tensor *out = call->outputs;
    if (call->err != HTH_OK && out != NULL) {
        hearth_tensors_free(out, call->n_outputs);
        out = NULL;
    }
    (void)hth_err_restore(call->err, call->detail != NULL ? call->detail : "");
    call->done(call->ctx, (hearth_status)call->err, out, out != NULL ? call->n_outputs : 0);
    call_free(call);
}

// tell_one calls the callback of the next call that has ended. Lock held, but for the callback.
static bool tell_one(hth_submits *s)
{
    submit_call *call = s->is_inside ? NULL : list_take(&s->over); // one after the other
    if (call == NULL) {
        return false;
    }
    s->inside = pthread_self();
    s->is_inside = true;
    pthread_mutex_unlock(&s->lock);
    call_tell(call);
    pthread_mutex_lock(&s->lock);
    s->is_inside = false;
    s->left--;
    pthread_cond_broadcast(&s->ended); // who closes may be the next to call some
    return true;
}

static void caller_main(void *ctx)
{
    hearth *h = ctx;
    hth_submits *s = h->submits;
    pthread_mutex_lock(&s->lock);
    while (!s->closes && (!s->stops || s->left > 0)) {
        if (!tell_one(s)) {
            pthread_cond_wait(&s->ended, &s->lock);
        }
    }
    bool closes = s->closes;
    s->called = s->called && !closes; // nobody joins it
    pthread_mutex_unlock(&s->lock);
    if (closes) {
        pthread_detach(pthread_self());
        hearth_close(h);
    }
}

// ---- to the engine

static hth_err engine_place(void *ctx, const char *model, int version, hearth_tensor *out, int n)
{
    submit_call *call = ctx;
    hth_infer_made made = {.outputs = NULL};
    HTH_TRY(hth_infer_place(&made, model, version, out, n));
    call->outputs = made.outputs;
    call->n_outputs = made.n;
    return HTH_OK;
}

// engine_start hands a call over. HTH_EBUSY: the engine takes no more now. Lock held.
static hth_err engine_start(hth_submits *s, submit_call *call)
{
    const hth_embed_infer infer = {.model = call->model,
                                   .token = call->h->token,
                                   .inputs = call->inputs,
                                   .n_inputs = call->n_inputs,
                                   .priority = call->options.priority,
                                   .timeout_us = call->options.timeout_us,
                                   .place = engine_place,
                                   .ctx = call};
    hth_err err = hth_embed_infer_start(call->h->embedded, &infer, engine_done, &call->embedded);
    s->engine += err == HTH_OK;
    call->state = err == HTH_OK ? SUBMIT_SENT : SUBMIT_WAITS; // who ends it needs the lock
    return err;
}

// engine_more ends the call that the engine has answered, and hands over what waits.
static void engine_more(hearth *h, submit_call *last)
{
    hth_submits *s = h->submits;
    pthread_mutex_lock(&s->lock);
    s->engine--;
    call_over(s, last);
    for (submit_call *next; (next = s->waiting.first) != NULL;) {
        hth_err err = engine_start(s, next);
        if (err == HTH_EBUSY && s->engine > 0) {
            break; // until the next answer
        }
        (void)list_take(&s->waiting);
        if (err != HTH_OK) {
            call_result(next, err, hth_err_detail());
            call_over(s, next);
        }
    }
    pthread_mutex_unlock(&s->lock);
}

// ---- to a server

static void worker_main(void *ctx)
{
    hearth *h = ctx;
    hth_submits *s = h->submits;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        submit_call *call = list_take(&s->waiting);
        s->n_waiting -= call != NULL;
        if (call == NULL && s->stops) {
            break;
        }
        if (call == NULL) {
            s->n_idle++;
            pthread_cond_wait(&s->work, &s->lock);
            s->n_idle--;
            continue;
        }
        call->state = SUBMIT_SENT;
        pthread_mutex_unlock(&s->lock);
        hth_err err =
            hth_infer_sent(h, call->model, call->inputs, (size_t)call->n_inputs, &call->options,
                           &call->watch, &call->outputs, &call->n_outputs);
        call_result(call, err, hth_err_detail());
        pthread_mutex_lock(&s->lock);
        call_over(s, call);
    }
    pthread_mutex_unlock(&s->lock);
}

// worker_wake has a thread for the call that waits; without any there is none to answer it.
static hth_err worker_wake(hearth *h, hth_submits *s)
{
    if (s->n_idle > s->n_waiting) { // who was woken before may not have taken its call
        pthread_cond_signal(&s->work);
        return HTH_OK;
    }
    if (s->n_workers == SUBMIT_WORKERS) {
        return HTH_OK;
    }
    hth_err err = hth_thread_start("hearth-submit", worker_main, h, &s->worker[s->n_workers]);
    s->n_workers += err == HTH_OK;
    return s->n_workers > 0 ? HTH_OK : err;
}

// ---- calls

static void submits_free(hth_submits *s)
{
    if (s->event_fd >= 0) {
        close(s->event_fd);
    }
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->ended);
    pthread_mutex_destroy(&s->lock);
    hth_free(s);
}

// submits_of makes what the connection's calls need, with the first of them.
static hth_err submits_of(hearth *h, hth_submits **out)
{
    pthread_mutex_lock(&h->lock);
    hth_submits *s = h->submits;
    if (s == NULL && (s = hth_calloc(1, sizeof *s)) != NULL) {
        pthread_mutex_init(&s->lock, NULL);
        pthread_cond_init(&s->ended, NULL);
        pthread_cond_init(&s->work, NULL);
        s->waiting.last = &s->waiting.first;
        s->over.last = &s->over.first;
        s->event_fd = -1;
        h->submits = s;
    }
    pthread_mutex_unlock(&h->lock);
    *out = s;
    return s != NULL ? HTH_OK : hth_no_memory("a connection");
}

static hth_err call_new(hearth *h, const char *model, const hearth_tensor *inputs, int n_inputs,
                        submit_call **out)
{
    *out = NULL;
    HTH_TRY(hth_infer_begin(h, model, n_inputs));
    for (int i = 0; i < n_inputs; i++) {
        HTH_TRY(hth_infer_check(&inputs[i]));
    }
    submit_call *call = hth_calloc(1, sizeof *call);
    if (call == NULL) {
        return hth_no_memory("a call");
    }
    call->h = h;
    call->model = hth_strdup(model);
    call->inputs = hth_alloc((size_t)n_inputs * sizeof *inputs + 1);
    if (call->model == NULL || call->inputs == NULL) {
        hth_free(call->model);
        hth_free(call->inputs);
        hth_free(call);
        return hth_no_memory("a call");
    }
    memcpy(call->inputs, inputs, (size_t)n_inputs * sizeof *inputs);
    call->n_inputs = n_inputs;
    *out = call;
    return HTH_OK;
}

// submit_send hands a call over, or has it wait for its turn. Lock held.
static hth_err submit_send(hearth *h, hth_submits *s, submit_call *call)
{
    if (s->event_fd < 0 && !s->called) {
        HTH_TRY(hth_thread_start("hearth-done", caller_main, h, &s->caller));
        s->called = true;
    }
    if (h->embedded != NULL) {
        hth_err err = s->waiting.first == NULL ? engine_start(s, call) : HTH_EBUSY;
        if (err != HTH_EBUSY || s->engine == 0) {
            return err;
        }
        list_add(&s->waiting, call);
        return HTH_OK;
    }
    HTH_TRY(worker_wake(h, s));
    list_add(&s->waiting, call);
    s->n_waiting++;
    return HTH_OK;
}

// submit_begin has the call be one of the connection's, and sends it. On an error it is not.
static hth_err submit_begin(hearth *h, hth_submits *s, submit_call *call)
{
    pthread_mutex_lock(&s->lock);
    s->left++;
    hth_err err = s->stops ? hth_fail(HTH_ECANCELED, "the connection is being closed")
                           : submit_send(h, s, call);
    if (err != HTH_OK && --s->left == 0) {
        pthread_cond_broadcast(&s->ended);
    }
    pthread_mutex_unlock(&s->lock);
    return err;
}

static hth_err submit(hearth *h, submit_call *call, hearth_call **out)
{
    hth_submits *s;
    HTH_TRY(submits_of(h, &s));
    table_add(call);
    *out = (hearth_call *)(uintptr_t)call->number; // before it may be done
    return submit_begin(h, s, call);
}

hearth_status hearth_submit(hearth *h, const char *model, const hearth_tensor *inputs, int n_inputs,
                            const hearth_infer_options *options, hearth_done done, void *ctx,
                            hearth_call **out)
{
    hearth_call *unwanted, **at = out != NULL ? out : &unwanted;
    submit_call *call;
    *at = NULL;
    if (done == NULL) {
        return (hearth_status)hth_fail(HTH_EINVAL,
                                       "a call needs a function to be called when it is done");
    }
    hth_err err = call_new(h, model, inputs, n_inputs, &call);
    if (call == NULL) {
        return (hearth_status)err;
    }
    call->options = options != NULL ? *options : call->options;
    call->done = done;
    call->ctx = ctx;
    err = submit(h, call, at);
    if (err != HTH_OK) {
        call_free(call);
        *at = NULL;
    }
    return (hearth_status)err;
}

// cancel_sent has what was sent to a server end there; one that does not know the request any more
// does nothing.
static void cancel_sent(hearth *h, uint64_t request)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Cancel body = HEARTH__CANCEL__INIT;
    hth_reply r;
    body.call = request;
    q.body_case = HEARTH__REQUEST__BODY_CANCEL;
    q.cancel = &body;
    if (hth_exchange(h, &q, NULL, NULL, &r) == HTH_OK) {
        hth_reply_fini(&r);
    }
}

// call_cancel stores what else is to be canceled: a request of a server, 0: nothing. The table's
// lock and the connection's are held.
static void call_cancel(hth_submits *s, submit_call *call, uint64_t *request)
{
    *request = 0;
    if (call->state == SUBMIT_WAITS && list_remove(&s->waiting, call)) {
        s->n_waiting -= call->h->embedded == NULL;
        call_result(call, HTH_ECANCELED, "canceled before it was sent");
        call_over(s, call);
    } else if (call->state == SUBMIT_SENT && call->h->embedded != NULL) {
        hth_embed_infer_cancel(call->embedded);
    } else if (call->state == SUBMIT_SENT) {
        atomic_store(&call->watch.canceled, true);
        // over streams of their own who asks looks at that
        *request = call->h->by_socket ? 0 : atomic_load(&call->watch.request);
    }
}

void hearth_call_cancel(hearth_call *call)
{
    uint64_t number = (uint64_t)(uintptr_t)call, request = 0;
    hearth *h = NULL;
    if (number == 0 || table.forks != hth_forks()) {
        return;
    }
    pthread_mutex_lock(&table.lock);
    submit_call *c = *table_at(number);
    if (c != NULL) { // and so its connection is there, until its callback has returned
        h = c->h;
        pthread_mutex_lock(&h->submits->lock);
        call_cancel(h->submits, c, &request);
        pthread_mutex_unlock(&h->submits->lock);
    }
    if (request != 0) {
        hth_exchange_hold(h);
    }
    pthread_mutex_unlock(&table.lock);
    if (request != 0) {
        cancel_sent(h, request);
        hth_exchange_rele(h);
    }
}

// ---- event loops

int hearth_event_fd(hearth *h)
{
    hth_submits *s;
    if (hth_exchange_check(h) != HTH_OK || submits_of(h, &s) != HTH_OK) {
        return -1;
    }
    pthread_mutex_lock(&s->lock);
    if (s->called) {
        (void)hth_fail(HTH_EBUSY, "calls were submitted before: their callbacks have a thread");
    } else if (s->event_fd < 0 && (s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
        (void)hth_fail_errno(errno, "an eventfd");
    }
    int fd = s->called ? -1 : s->event_fd;
    pthread_mutex_unlock(&s->lock);
    return fd;
}

int hearth_event_run(hearth *h)
{
    hth_submits *s = hth_exchange_check(h) == HTH_OK ? h->submits : NULL;
    uint64_t count;
    int n = 0;
    if (s == NULL || s->event_fd < 0) {
        (void)hth_fail(HTH_EINVAL, "hearth_event_fd was not called");
        return -1;
    }
    pthread_mutex_lock(&s->lock);
    while (!s->closes && tell_one(s)) {
        n++;
    }
    // where something is left, another thread, or who called this callback, is at it
    if (s->over.first == NULL && read(s->event_fd, &count, sizeof count) < 0 && errno != EAGAIN) {
        (void)hth_fail_errno(errno, "an eventfd");
    }
    bool closes = s->closes;
    pthread_mutex_unlock(&s->lock);
    if (closes) {
        hearth_close(h);
    }
    return n;
}

bool hth_submit_end(hearth *handle)
{
    hth_submits *s = handle->submits;
    if (s == NULL) {
        return true;
    }
    pthread_mutex_lock(&s->lock);
    if (s->is_inside && pthread_equal(s->inside, pthread_self())) {
        s->closes = true;
        pthread_mutex_unlock(&s->lock);
        return false;
    }
    s->stops = true;
    pthread_cond_broadcast(&s->work);
    pthread_cond_broadcast(&s->ended);
    bool mine = !s->called; // nobody else calls callbacks any more
    while (s->left > 0) {
        if (!mine || !tell_one(s)) {
            pthread_cond_wait(&s->ended, &s->lock);
        }
    }
    bool joins = s->called;
    pthread_mutex_unlock(&s->lock);
    if (joins) {
        hth_thread_join(s->caller);
    }
    for (int i = 0; i < s->n_workers; i++) {
        hth_thread_join(s->worker[i]);
    }
    handle->submits = NULL;
    submits_free(s);
    return true;
}
