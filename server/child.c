// SPDX-License-Identifier: Apache-2.0
// The engine's process: opens store and device, and an engine of the kind that is a thread; takes
// requests from the ring, in order, and submits them. Answers leave on the engine's thread.
//
// Outputs get a block of the slab `out` when the engine asks for their place. It stays until
// hearthd says that it needs it no more (`released`), or takes the slot for another request: no
// message is spent on that. A request's record is copied, because the ring's memory is reused;
// inputs are used where they lie.
//
// Threads: the engine's looks into the ring itself while it waits for work, so that a request needs
// to wake one thread only; this one receives while the engine sleeps. The beat's counts, so that
// hearthd knows that the process runs however long a kernel takes, looks for blocks that were
// released, and ends the process when hearthd is gone. The kernel does that, too
// (PR_SET_PDEATHSIG), and at once.
#include "server/child.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/mailbox.h"
#include "base/settings.h"
#include "base/thread.h"
#include "server/child_link.h"
#include "server/shm_guard.h"

#include <jansson.h>

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHILD_HELLO_NS    60000000000u
#define CHILD_PROGRESS_NS 10000000u // from one message about a request's progress to the next

typedef struct child child;

typedef struct child_call {
    child *c;
    hth_child_record *record;
    hth_request_tensor *inputs; // and behind them the places of outputs that are known
    void *data, *far;           // blocks of the slab: outputs, a large answer; guarded by c->lock
    bool answered;              // guarded by c->lock
    uint64_t told_ns;
} child_call;

typedef struct child_region {
    uint32_t number;
    char *data;
    uint64_t bytes;
    bool writable;
    int guard; // -1: cannot shrink
    UT_hash_handle hh;
} child_region;

struct child {
    const hth_child_config *config;
    hth_child_link link;
    hth_store *store;
    hth_engine *engine;
    child_call *calls;
    child_region *regions;
    hth_poll_hook watch;
    pthread_mutex_t taking; // of messages
    pthread_mutex_t lock;
    atomic_bool ended;
};

bool hth_child_asked(int argc, char **argv)
{
    return argc == 2 && strcmp(argv[1], HTH_CHILD_FLAG) == 0;
}

static hth_child_slot *call_slot(child_call *call)
{
    return &call->c->link.board->slot[call - call->c->calls];
}

// ---- answers: the engine's thread

static void call_release(child_call *call)
{
    hth_slab_free(call->c->link.out, call->data);
    hth_slab_free(call->c->link.out, call->far);
    call->data = call->far = NULL;
    call->answered = false;
}

// call_known is the place that a client wants an output at, NULL: none that it fits.
static const hth_child_tensor *call_known(const child_call *call, const hth_request_tensor *out,
                                          void **data)
{
    const hth_child_record *q = call->record;
    for (uint32_t i = q->n_tensors - q->n_known; i < q->n_tensors; i++) {
        const hth_request_tensor *k = &call->inputs[i];
        if (k->name != NULL && k->t.data != NULL && strcmp(k->name, out->name) == 0 &&
            k->t.bytes >= out->t.bytes) {
            *data = k->t.data;
            return &q->tensor[i];
        }
    }
    return NULL;
}

static hth_err call_place(hth_request *r, hth_request_tensor *out, int n)
{
    child_call *call = r->ctx;
    size_t bytes = 0;
    for (int i = 0; i < n; i++) {
        if (call_known(call, &out[i], &out[i].t.data) == NULL) {
            out[i].t.data = NULL;
            bytes += (out[i].t.bytes + HTH_SLAB_ALIGN - 1) / HTH_SLAB_ALIGN * HTH_SLAB_ALIGN;
        }
    }
    char *at = hth_slab_alloc(call->c->link.out, bytes);
    if (at == NULL) {
        return hth_fail(HTH_ENOMEM, "out of shared memory for outputs of %zu bytes", bytes);
    }
    pthread_mutex_lock(&call->c->lock);
    call->data = at;
    pthread_mutex_unlock(&call->c->lock);
    for (int i = 0; i < n; i++) {
        if (out[i].t.data == NULL) {
            out[i].t.data = at;
            at += (out[i].t.bytes + HTH_SLAB_ALIGN - 1) / HTH_SLAB_ALIGN * HTH_SLAB_ALIGN;
        }
    }
    return HTH_OK;
}

static void call_progress(hth_request *r, const char *what, uint64_t done, uint64_t total)
{
    child_call *call = r->ctx;
    uint64_t now = hth_real_ns();
    if (now - call->told_ns >= CHILD_PROGRESS_NS || done == total) {
        hth_child_head head = {.kind = HTH_CHILD_PROGRESS,
                               .slot = (uint32_t)(call - call->c->calls),
                               .done = done,
                               .total = total};
        call->told_ns = now;
        (void)hth_child_link_text(&call->c->link, &head, what, 0); // the next one says more
    }
}

// Records are made on the heap, large ones in the slab.
typedef struct answer_memory {
    child *c;
    void *near, *far;
} answer_memory;

static void *answer_take(void *ctx, size_t bytes)
{
    answer_memory *m = ctx;
    if (bytes > HTH_CHILD_NEAR_BYTES) {
        return m->far = hth_slab_alloc(m->c->link.out, bytes);
    }
    return m->near = hth_alloc(bytes);
}

static hth_err answer_record(const hth_request *r, answer_memory *m, hth_child_record **out)
{
    bool good = r->err == HTH_OK;
    const char *text[HTH_CHILD_TEXTS] = {
        [HTH_CHILD_DETAIL] = good ? NULL : r->detail, [HTH_CHILD_JSON] = good ? r->json : NULL};
    int n = good && r->query == NULL ? r->n_outputs : 0;
    HTH_TRY(hth_child_record_new(text, r->outputs, n, answer_take, m, out));
    hth_child_record *a = *out;
    a->err = r->err;
    a->version = r->version;
    a->batched = r->batched;
    a->started_ns = r->started_ns;
    for (int i = 0; i < n; i++) {
        const hth_request_tensor *t = &r->outputs[i];
        void *at;
        if (hth_slab_holds(m->c->link.out, t->t.data, t->t.bytes)) {
            a->tensor[i].at = hth_slab_offset(m->c->link.out, t->t.data);
        } else {
            const hth_child_tensor *k = call_known(r->ctx, t, &at);
            a->tensor[i].region = k->region;
            a->tensor[i].at = k->at;
        }
    }
    return HTH_OK;
}

static void call_answer(hth_request *r)
{
    child_call *call = r->ctx;
    child *c = call->c;
    answer_memory memory = {.c = c};
    hth_child_record none = {.bytes = 0}, *a; // none: refused by who reads it
    hth_child_head head = {.kind = HTH_CHILD_DONE, .slot = (uint32_t)(call - c->calls)};
    if (answer_record(r, &memory, &a) != HTH_OK) {
        hth_free(r->json);
        r->json = NULL;
        r->err = HTH_ENOMEM;
        snprintf(r->detail, sizeof r->detail, "out of shared memory for an answer");
        if (answer_record(r, &memory, &a) != HTH_OK) {
            a = &none;
        }
    }
    if (memory.far != NULL) {
        head.far_at = hth_slab_offset(c->link.out, a);
        head.far_bytes = a->bytes;
    }
    hth_free(r->json);
    hth_free(call->record);
    hth_free(call->inputs);
    pthread_mutex_lock(&c->lock);
    call->record = NULL;
    call->inputs = NULL;
    call->far = memory.far;
    call->answered = true; // from here on the blocks may go as soon as hearthd says so
    pthread_mutex_unlock(&c->lock);
    size_t bytes = memory.far != NULL ? 0 : a->bytes;
    (void)hth_child_link_send(&c->link, &head, a, bytes, HTH_FOREVER); // fails: nobody is there
    hth_free(memory.near);
}

static void child_event(void *ctx, const char *job, const char *what, uint64_t done, uint64_t total)
{
    child *c = ctx;
    char text[2048];
    size_t n = strlen(job) + 1, m = strlen(what) + 1;
    hth_child_head head = {.kind = HTH_CHILD_EVENT, .done = done, .total = total};
    if (n + m <= sizeof text) {
        memcpy(text, job, n);
        memcpy(text + n, what, m);
        (void)hth_child_link_send(&c->link, &head, text, n + m, 0);
    }
}

// ---- requests

// child_region_at is the address of what a tensor says of a region; NULL: it is not there.
static void *child_region_at(child *c, const hth_child_tensor *w, bool write)
{
    child_region *r = NULL;
    HASH_FIND(hh, c->regions, &w->region, sizeof w->region, r);
    bool inside = r != NULL && w->at <= r->bytes && w->bytes <= r->bytes - w->at;
    return inside && (r->writable || !write) ? r->data + w->at : NULL;
}

static hth_err call_input(child *c, const hth_child_tensor *w, hth_request_tensor *t)
{
    t->t.data =
        w->region == 0 ? hth_slab_at(c->link.in, w->at, w->bytes) : child_region_at(c, w, false);
    return t->t.data != NULL
               ? HTH_OK
               : hth_fail(HTH_EIO, "an input's shared memory is not there in the engine's process");
}

static void call_output(child *c, const hth_child_tensor *w, hth_request_tensor *t)
{
    t->t.data = w->region != 0 ? child_region_at(c, w, true) : NULL; // NULL: in the slab
}

static hth_err call_open(child *c, child_call *call, const hth_child_record *q, hth_request *r)
{
    r->model = hth_child_record_text(q, HTH_CHILD_MODEL);
    r->query = hth_child_record_text(q, HTH_CHILD_QUERY);
    r->arguments = hth_child_record_text(q, HTH_CHILD_ARGUMENTS);
    r->tenant = hth_child_record_text(q, HTH_CHILD_TENANT);
    r->priority = q->priority;
    r->timeout_us = q->timeout_us;
    if (r->model == NULL && r->query == NULL) {
        return hth_fail(HTH_EINVAL, "a request asks for nothing");
    }
    call->inputs = hth_calloc(q->n_tensors + 1u, sizeof *call->inputs);
    if (call->inputs == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a request");
    }
    uint32_t n = q->n_tensors - q->n_known;
    for (uint32_t i = 0; i < q->n_tensors; i++) {
        call->inputs[i] = hth_child_record_tensor(q, (int)i);
        if (i < n) {
            HTH_TRY(call_input(c, &q->tensor[i], &call->inputs[i]));
        } else {
            call_output(c, &q->tensor[i], &call->inputs[i]);
        }
    }
    r->inputs = call->inputs;
    r->n_inputs = (int)n;
    return hth_engine_submit(c->engine, r);
}

static void child_take(child *c, const hth_child_head *head, const char *body, size_t bytes)
{
    const hth_child_record *q;
    if (head->slot >= c->link.board->n_slots) {
        return;
    }
    child_call *call = &c->calls[head->slot];
    hth_request *r = &call_slot(call)->r;
    pthread_mutex_lock(&c->lock);
    call_release(call);
    pthread_mutex_unlock(&c->lock);
    *r = (hth_request){
        .place = call_place, .progress = call_progress, .done = call_answer, .ctx = call};
    call->told_ns = 0;
    hth_err err = hth_child_link_record(head, body, bytes, c->link.in, &call->record, &q);
    if (err == HTH_OK && call->record == NULL) {
        call->record = hth_memdup(q, bytes);
        q = call->record;
        err = q != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "out of memory for a request");
    }
    if (err == HTH_OK) {
        err = call_open(c, call, q, r);
    }
    if (err != HTH_OK) {
        r->err = err;
        snprintf(r->detail, sizeof r->detail, "%s", hth_err_detail());
        call_answer(r);
    }
}

// ---- clients' memory

static void region_free(child *c, child_region *r)
{
    HASH_DEL(c->regions, r);
    munmap(r->data, r->bytes);
    hth_shm_unguard(r->guard);
    hth_free(r);
}

static void child_forget(child *c, uint32_t number)
{
    child_region *r;
    HASH_FIND(hh, c->regions, &number, sizeof number, r);
    if (r != NULL) {
        region_free(c, r);
    }
}

// child_region_take maps what hearthd passes on. A request that needs what could not be mapped says
// so.
static void child_region_take(child *c, const hth_child_head *head)
{
    int fd;
    hth_err err = hth_child_fd_receive(c->link.socket, head->slot, &fd);
    if (err != HTH_OK) {
        hth_log(WARN, SERVER, "engine-memory", "%s", hth_err_detail());
        return;
    }
    bool writable = (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
    void *p = mmap(NULL, head->done, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd,
                   (off_t)head->total);
    int seals = fcntl(fd, F_GET_SEALS);
    bool shrinks = seals < 0 || (seals & F_SEAL_SHRINK) == 0;
    close(fd);
    child_region *r = p != MAP_FAILED ? hth_calloc(1, sizeof *r) : NULL;
    if (r != NULL) {
        *r = (child_region){.number = head->slot,
                            .data = p,
                            .bytes = head->done,
                            .writable = writable,
                            .guard = -1};
        r->guard = shrinks ? hth_shm_guard(p, head->done) : -1;
        if (!shrinks || r->guard >= 0) {
            HASH_ADD(hh, c->regions, number, sizeof r->number, r);
        }
        if (r->hh.tbl != NULL) {
            return;
        }
        hth_shm_unguard(r->guard);
        hth_free(r);
    }
    if (p != MAP_FAILED) {
        munmap(p, head->done);
    }
    hth_log(WARN, SERVER, "engine-memory", "bytes=%" PRIu64 " mapped=no", head->done);
}

// ---- settings

static void child_settings(const child *c, const json_t *settings, const char *filter)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)settings, name, value)
    {
        if (hth_setting_set(name, json_string_value(value)) != HTH_OK) {
            hth_log(WARN, SERVER, "engine-settings", "%s", hth_err_detail());
        }
    }
    if (c->config->settings_changed != NULL) {
        c->config->settings_changed();
    }
    if (filter != NULL) {
        (void)hth_log_filter(filter); // it came from hth_log_filter_text
    }
}

// child_hello opens what hearthd says.
static hth_err child_hello(child *c, const char *text)
{
    json_t *settings = NULL, *hello = json_loads(text, 0, NULL);
    const char *store, *device, *filter = NULL;
    int queue = 0, resume = 0;
    if (json_unpack(hello, "{s:s, s:s, s:i, s:b, s:o, s:s}", "store", &store, "device", &device,
                    "queue", &queue, "resume", &resume, "settings", &settings, "log",
                    &filter) != 0) {
        json_decref(hello);
        return hth_fail(HTH_ECORRUPT, "the engine's process was not told what to open");
    }
    child_settings(c, settings, filter);
    hth_err err = hth_store_open(store, true, false, &c->store);
    if (err == HTH_OK) {
        hth_engine_config e = {.device = device,
                               .queue = queue,
                               .event = child_event,
                               .event_ctx = c,
                               .resume = resume != 0};
        err = hth_engine_open(&e, c->store, &c->engine);
    }
    json_decref(hello);
    return err;
}

static void child_set(const child *c, const char *text)
{
    json_t *doc = json_loads(text, 0, NULL);
    child_settings(c, json_object_get(doc, "settings"),
                   json_string_value(json_object_get(doc, "log")));
    json_decref(doc);
}

// ---- the process

static void child_beat(void *arg)
{
    child *c = arg;
    hth_child_board *b = c->link.board;
    int ms = (int)(b->beat_ns / 1000000u);
    struct pollfd gone = {.fd = c->link.socket, .events = POLLRDHUP};
    while (!atomic_load(&c->ended)) {
        atomic_fetch_add(&b->beat, 1);
        if (poll(&gone, 1, ms > 0 ? ms : 1) > 0) {
            c->config->orphaned();
            return;
        }
        pthread_mutex_lock(&c->lock);
        for (uint64_t i = 0; i < b->n_slots; i++) {
            if (c->calls[i].answered && atomic_load(&b->slot[i].released)) {
                call_release(&c->calls[i]);
            }
        }
        pthread_mutex_unlock(&c->lock);
    }
}

// child_message takes one message; HTH_ETIMEDOUT: there is none. c->taking is held.
static hth_err child_message(child *c)
{
    hth_child_head head;
    const char *body;
    size_t bytes;
    HTH_TRY(hth_child_link_receive(&c->link, 0, &head, &body, &bytes));
    switch (head.kind) {
    case HTH_CHILD_CALL:
        child_take(c, &head, body, bytes);
        return HTH_OK;
    case HTH_CHILD_REGION:
        child_region_take(c, &head);
        return HTH_OK;
    case HTH_CHILD_FORGET:
        child_forget(c, head.slot);
        return HTH_OK;
    case HTH_CHILD_DRAIN:
        hth_engine_drain(c->engine);
        return HTH_OK;
    case HTH_CHILD_SETTINGS:
        child_set(c, body);
        return HTH_OK;
    default: // to stop
        hth_ring_stop(c->link.from);
        return HTH_ECANCELED;
    }
}

// child_look is the engine's own look into the ring while it waits for work.
static void child_look(void *ctx)
{
    child *c = ctx;
    hth_ring_attend(c->link.from);
    if (hth_ring_wait(c->link.from, 0) == HTH_OK && pthread_mutex_trylock(&c->taking) == 0) {
        while (child_message(c) == HTH_OK) {
        }
        pthread_mutex_unlock(&c->taking);
    }
}

static void child_leave(void *ctx)
{
    child *c = ctx;
    if (hth_ring_leave(c->link.from)) {
        pthread_mutex_lock(&c->taking);
        while (child_message(c) == HTH_OK) {
        }
        pthread_mutex_unlock(&c->taking);
    }
}

// child_serve returns when it is told to stop, or the other side is no more.
static void child_serve(child *c)
{
    hth_err err = HTH_OK;
    c->watch = (hth_poll_hook){child_look, child_leave, c};
    hth_engine_watch(c->engine, &c->watch);
    while (err == HTH_OK || err == HTH_ETIMEDOUT) {
        err = hth_ring_wait(c->link.from, HTH_FOREVER);
        if (err == HTH_OK) {
            pthread_mutex_lock(&c->taking);
            do {
                err = child_message(c);
            } while (err == HTH_OK);
            pthread_mutex_unlock(&c->taking);
        }
    }
}

static hth_err child_map(child *c)
{
    struct stat st;
    if (fstat(HTH_CHILD_FD_BOARD, &st) != 0 || (size_t)st.st_size < sizeof *c->link.board) {
        return hth_fail(HTH_EINVAL, "this is started by hearthd, not by hand");
    }
    c->link.board_bytes = (size_t)st.st_size;
    c->link.board =
        mmap(NULL, c->link.board_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, HTH_CHILD_FD_BOARD, 0);
    if (c->link.board == MAP_FAILED) {
        return hth_fail(HTH_ENOMEM, "the engine's process cannot map its board");
    }
    const hth_child_board *b = c->link.board;
    if (hth_child_board_bytes(b->n_slots) != c->link.board_bytes) {
        return hth_fail(HTH_ECORRUPT, "the board is another program's");
    }
    HTH_TRY(hth_slab_open(HTH_CHILD_FD_IN, b->in_bytes, false, &c->link.in));
    HTH_TRY(hth_slab_open(HTH_CHILD_FD_OUT, b->out_bytes, true, &c->link.out));
    c->calls = hth_calloc(b->n_slots, sizeof *c->calls);
    if (c->calls == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for requests");
    }
    for (uint64_t i = 0; i < b->n_slots; i++) {
        c->calls[i].c = c;
    }
    return hth_child_link_open(&c->link, false);
}

static hth_err child_open(child *c)
{
    hth_child_head head = {.kind = HTH_CHILD_STARTED};
    const char *body;
    size_t bytes;
    HTH_TRY(hth_child_link_receive(&c->link, CHILD_HELLO_NS, &head, &body, &bytes));
    hth_err err = head.kind == HTH_CHILD_HELLO
                      ? child_hello(c, body)
                      : hth_fail(HTH_ECORRUPT, "the engine's process got no greeting");
    if (err != HTH_OK) {
        head = (hth_child_head){.kind = HTH_CHILD_FAILED, .done = err};
        (void)hth_child_link_text(&c->link, &head, hth_err_detail(), 0);
        return err;
    }
    head = (hth_child_head){.kind = HTH_CHILD_STARTED};
    return hth_child_link_send(&c->link, &head, NULL, 0, 0);
}

static void child_close(child *c)
{
    hth_engine_close(c->engine); // answers what was accepted
    hth_store_close(c->store);
    for (uint64_t i = 0; c->calls != NULL && i < c->link.board->n_slots; i++) {
        call_release(&c->calls[i]);
    }
    while (c->regions != NULL) {
        region_free(c, c->regions);
    }
    hth_ring_stop(c->link.to);
    hth_child_link_close(&c->link);
    hth_slab_close(c->link.in);
    hth_slab_close(c->link.out);
    hth_free(c->calls);
    munmap(c->link.board, c->link.board_bytes);
}

int hth_child_run(const hth_child_config *config)
{
    child c = {.config = config, .link = {.socket = HTH_CHILD_FD_SOCKET}};
    pthread_t beat;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "hearthd-engine");
    signal(SIGTERM, SIG_IGN); // hearthd says when to stop; these come to both of them
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    pthread_mutex_init(&c.lock, NULL);
    pthread_mutex_init(&c.taking, NULL);
    if (child_map(&c) != HTH_OK || getppid() != c.link.board->parent ||
        hth_thread_start("hth-beat", child_beat, &c, &beat) != HTH_OK) {
        return 1;
    }
    hth_err err = child_open(&c);
    if (err == HTH_OK) {
        child_serve(&c);
    }
    atomic_store(&c.ended, true);
    hth_thread_join(beat);
    child_close(&c);
    pthread_mutex_destroy(&c.lock);
    pthread_mutex_destroy(&c.taking);
    return err == HTH_OK ? 0 : 1;
}
