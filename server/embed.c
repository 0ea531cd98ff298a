// SPDX-License-Identifier: Apache-2.0
// Inferences from within the process go to the engine as they are: nothing is encoded or copied.
// All else is asked over a url. It carries the process id and a count: nng's in-process names are
// global to the process.
#include "client/embed.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/spin.h"
#include "runtime/arguments.h"
#include "runtime/request.h"
#include "runtime/tenants/tenant_rules.h"
#include "engine/query/query.h"
#include "server/server.h"

#include <jansson.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EMBED_LISTEN   8 // urls, one of them its own
#define EMBED_FOLDER   "hearth-memory-"
#define EMBED_LOCK     "/in-use"
#define EMBED_PATH     256
#define EMBED_TRIES    3
#define EMBED_OPEN_FDS 16

struct hth_embedded {
    hth_server *server;
    char url[64];
    char folder[EMBED_PATH]; // of a store that is not kept; "": it is a directory
    int lock;                // in there, while it is in use; -1: there is none
};

// ---- settings

static atomic_int embed_open; // engines of this process

// What is the engine's own.
typedef struct embed_own {
    const char *listen[EMBED_LISTEN], *http, *metrics;
    int n_listen;
    char *texts[EMBED_LISTEN + 2]; // of those
    int n_texts;
} embed_own;

static void own_fini(embed_own *own)
{
    for (int i = 0; i < own->n_texts; i++) {
        hth_free(own->texts[i]);
    }
}

// own_take keeps a value of the engine's own; *taken: it is one.
static hth_err own_take(embed_own *own, const char *name, const char *value, bool *taken)
{
    bool listen = strcmp(name, "listen") == 0, http = strcmp(name, "http") == 0;
    *taken = listen || http || strcmp(name, "metrics") == 0;
    if (!*taken) {
        return HTH_OK;
    }
    if (own->n_texts == EMBED_LISTEN + 2 || (listen && own->n_listen == EMBED_LISTEN)) {
        return hth_fail(HTH_EINVAL, "more than %d addresses to listen on", EMBED_LISTEN - 1);
    }
    char *text = hth_strdup(value);
    if (text == NULL) {
        return hth_no_memory("a setting");
    }
    own->texts[own->n_texts++] = text;
    if (listen) {
        own->listen[own->n_listen++] = text;
    } else if (http) {
        own->http = text;
    } else {
        own->metrics = text;
    }
    return HTH_OK;
}

// setting_set sets one of the process's.
static hth_err setting_set(const char *name, const char *value)
{
    int i = hth_setting_find(name);
    HTH_TRY(hth_setting_check(name, value));
    bool fixed = hth_setting_get_info((hth_setting)i)->change == HTH_CHANGE_FIXED;
    return fixed && atomic_load(&embed_open) > 0 && !hth_setting_is((hth_setting)i, value)
               ? hth_fail(HTH_EBUSY, "'%s' has another value for an engine of this process", name)
               : hth_setting_set(name, value);
}

static hth_err settings_take(const hearth_embed_options *options, embed_own *own)
{
    for (size_t i = 0; i < options->n_settings; i++) {
        const char *text = options->settings[i], *eq = text != NULL ? strchr(text, '=') : NULL;
        char name[64];
        bool taken;
        if (eq == NULL || (size_t)(eq - text) >= sizeof name) {
            return hth_fail(HTH_EINVAL, "setting '%.60s': expected name=value",
                            text != NULL ? text : "NULL");
        }
        snprintf(name, sizeof name, "%.*s", (int)(eq - text), text);
        HTH_TRY(own_take(own, name, eq + 1, &taken));
        HTH_TRY(taken ? HTH_OK : setting_set(name, eq + 1));
    }
    return HTH_OK;
}

// The program's function; under the log's lock while it is called, and when it is set.
static struct {
    hearth_log fn;
    void *ctx;
} embed_log;

static void log_pass(void *ctx, const hth_log_record *record)
{
    embed_log.fn(embed_log.ctx, hth_log_level_name(record->level), record->event, record->text);
}

static hth_err log_set(const hearth_embed_options *options)
{
    char text[HTH_SETTING_TEXT], filter[HTH_SETTING_TEXT + 8];
    if (options->log == NULL) {
        return HTH_OK;
    }
    hth_log_sink(NULL, NULL); // nobody is being called any more
    embed_log.fn = options->log;
    embed_log.ctx = options->log_ctx;
    snprintf(filter, sizeof filter, "warn,%s", hth_setting_text(HTH_SET_LOG_LEVEL, text));
    HTH_TRY(hth_log_filter(filter));
    hth_log_sink(log_pass, NULL);
    return HTH_OK;
}

// ---- a store that is not kept

static int folder_remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)remove(path);
    return 0;
}

static void folder_remove(const char *folder)
{
    (void)nftw(folder, folder_remove_one, EMBED_OPEN_FDS, FTW_DEPTH | FTW_PHYS);
}

// folder_lock has the lock of a folder, -1: somebody else does, there is none, or the folder is
// not this user's alone: nobody else can change what is in there.
static int folder_lock(const char *folder, int flags)
{
    char path[EMBED_PATH + sizeof EMBED_LOCK];
    struct stat st;
    if (lstat(folder, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() ||
        (st.st_mode & 077) != 0) {
        return -1;
    }
    snprintf(path, sizeof path, "%s" EMBED_LOCK, folder);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

// folders_sweep removes what processes that died have left: their locks are free.
static void folders_sweep(const char *parent)
{
    DIR *dir = opendir(parent);
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        char folder[EMBED_PATH];
        if (strncmp(e->d_name, EMBED_FOLDER, strlen(EMBED_FOLDER)) != 0 ||
            snprintf(folder, sizeof folder, "%s/%s", parent, e->d_name) >= (int)sizeof folder) {
            continue;
        }
        int fd = folder_lock(folder, 0);
        if (fd >= 0) {
            folder_remove(folder);
            close(fd);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
}

static hth_err folder_make(hth_embedded *e)
{
    const char *temporary = getenv("TMPDIR");
    const char *parent = temporary != NULL && temporary[0] == '/' ? temporary : "/tmp";
    folders_sweep(parent);
    for (int k = 0; k < EMBED_TRIES && e->lock < 0; k++) { // another one's sweep may be faster
        int n = snprintf(e->folder, sizeof e->folder, "%s/" EMBED_FOLDER "XXXXXX", parent);
        if (n >= (int)sizeof e->folder || mkdtemp(e->folder) == NULL) {
            hth_err err = hth_fail_errno(errno, "a folder for a store, %s", e->folder);
            e->folder[0] = 0;
            return err;
        }
        e->lock = folder_lock(e->folder, O_CREAT);
    }
    return e->lock >= 0 ? HTH_OK : hth_fail_errno(errno, "a lock in %s", e->folder);
}

static void folder_end(hth_embedded *e)
{
    if (e->folder[0] != 0) {
        folder_remove(e->folder);
    }
    if (e->lock >= 0) {
        close(e->lock);
    }
}

// ---- lifetime

static hth_err embed_start(hth_embedded *e, const hearth_embed_options *options, embed_own *own)
{
    char store[EMBED_PATH + 8];
    bool kept = strcmp(options->store, ":memory:") != 0;
    own->listen[own->n_listen++] = e->url;
    HTH_TRY(settings_take(options, own));
    HTH_TRY(log_set(options));
    HTH_TRY(kept ? HTH_OK : folder_make(e));
    snprintf(store, sizeof store, "%s/store", e->folder);
    const hth_server_config config = {.store = kept ? options->store : store,
                                      .may_only_read = true,
                                      .device = options->device,
                                      .listen = own->listen,
                                      .n_listen = own->n_listen,
                                      .http = own->http,
                                      .metrics = own->metrics};
    return hth_server_open(&config, &e->server);
}

hth_err hth_embed_open(const hearth_embed_options *options, hth_embedded **out)
{
    static atomic_uint count;
    *out = NULL;
    hth_embedded *e = hth_calloc(1, sizeof *e);
    embed_own own = {.n_listen = 0};
    if (e == NULL) {
        return hth_no_memory("an embedded server");
    }
    e->lock = -1;
    snprintf(e->url, sizeof e->url, "inproc://hearth-%d-%u", (int)getpid(),
             atomic_fetch_add(&count, 1));
    hth_err err = embed_start(e, options, &own);
    own_fini(&own);
    if (err != HTH_OK) {
        folder_end(e);
        hth_free(e);
        return err;
    }
    atomic_fetch_add(&embed_open, 1);
    *out = e;
    return HTH_OK;
}

const char *hth_embed_url(const hth_embedded *embedded)
{
    return embedded->url;
}

void hth_embed_close(hth_embedded *embedded)
{
    if (embedded != NULL) {
        hth_server_close(embedded->server);
        folder_end(embedded);
        atomic_fetch_sub(&embed_open, 1);
        hth_free(embedded);
    }
}

// ---- inferences

_Static_assert(HEARTH_MAX_RANK == HTH_MAX_RANK, "shapes are copied as they are");

#define EMBED_TENSORS 8 // that need no memory of their own

// A request, and what answers it: who waits (`wake`), or `answered`.
struct hth_embed_call {
    hth_request r;
    hth_embed_infer asked;
    char tenant[HTH_TENANT];
    hth_embed_done answered; // NULL: its caller waits
    atomic_bool done;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    hth_request_tensor few[EMBED_TENSORS], *inputs;
};

// Without data a tensor is only described: one of no bytes has some all the same.
static void call_input(const hearth_tensor *in, hth_request_tensor *out)
{
    static char nothing[1];
    *out = (hth_request_tensor){.name = in->name != NULL && in->name[0] != 0 ? in->name : NULL,
                                .t = {.dtype = (hth_dtype)in->dtype,
                                      .layout = HTH_LAYOUT_PLAIN,
                                      .shape = {.rank = in->rank},
                                      .data = in->data != NULL ? in->data : nothing,
                                      .bytes = in->bytes}};
    if (in->rank > 0) {
        memcpy(out->t.shape.dim, in->shape, (size_t)in->rank * sizeof in->shape[0]);
    }
}

// call_place tells the caller what the outputs are like, and takes over where they go.
static hth_err call_place(hth_request *r, hth_request_tensor *out, int n)
{
    const hth_embed_call *c = r->ctx;
    hearth_tensor few[EMBED_TENSORS], *t = few;
    if (n > EMBED_TENSORS && (t = hth_alloc((size_t)n * sizeof *t)) == NULL) {
        return hth_no_memory("a request");
    }
    for (int i = 0; i < n; i++) {
        t[i] = (hearth_tensor){.name = out[i].name,
                               .dtype = (hearth_dtype)out[i].t.dtype,
                               .rank = out[i].t.shape.rank,
                               .bytes = out[i].t.bytes};
        memcpy(t[i].shape, out[i].t.shape.dim, sizeof t[i].shape);
    }
    hth_err err = c->asked.place(c->asked.ctx, r->model, r->version, t, n);
    for (int i = 0; i < n && err == HTH_OK; i++) {
        out[i].t.data = t[i].data;
    }
    if (t != few) {
        hth_free(t);
    }
    return err;
}

static void call_fini(hth_embed_call *c)
{
    if (c->inputs != c->few) {
        hth_free(c->inputs);
    }
}

static void call_done(hth_request *r)
{
    hth_embed_call *c = r->ctx;
    if (c->answered != NULL) {
        c->answered(c->asked.ctx, r->err, r->detail);
        call_fini(c);
        hth_free(c);
        return;
    }
    pthread_mutex_lock(&c->lock);
    atomic_store(&c->done, true);
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
}

static bool call_waits(void *ctx)
{
    return !atomic_load(&((hth_embed_call *)ctx)->done);
}

// call_wait returns when the request is done; false: it was canceled, because limit_ms were over.
static bool call_wait(hth_embed_call *c, uint64_t limit_ms)
{
    uint64_t spin_ns = (uint64_t)hth_setting_int(HTH_SET_QUEUE_SPIN_US) * 1000u;
    uint64_t end_ns = hth_real_after(limit_ms * 1000000u);
    struct timespec end = {(time_t)(end_ns / 1000000000u), (long)(end_ns % 1000000000u)};
    bool in_time = true;
    hth_spin(call_waits, c, hth_real_after(spin_ns));
    pthread_mutex_lock(&c->lock); // also where it is done: its thread may have to leave the lock
    while (!atomic_load(&c->done)) {
        if (!in_time) {
            pthread_cond_wait(&c->wake, &c->lock);
        } else if (pthread_cond_timedwait(&c->wake, &c->lock, &end) == ETIMEDOUT &&
                   !atomic_load(&c->done)) {
            in_time = false;
            atomic_store(&c->r.canceled, 1); // its inputs are borrowed until it is over
        }
    }
    pthread_mutex_unlock(&c->lock);
    return in_time;
}

static hth_err call_init(hth_embed_call *c, const hth_embed_infer *infer, hth_embed_done answered)
{
    memset(&c->r, 0, sizeof c->r);
    c->inputs = c->few;
    if (infer->n_inputs > EMBED_TENSORS &&
        (c->inputs = hth_alloc((size_t)infer->n_inputs * sizeof *c->inputs)) == NULL) {
        return hth_no_memory("a request");
    }
    for (int i = 0; i < infer->n_inputs; i++) {
        call_input(&infer->inputs[i], &c->inputs[i]);
    }
    c->asked = *infer;
    c->answered = answered;
    atomic_init(&c->done, false);
    c->r.model = infer->model;
    c->r.inputs = c->inputs;
    c->r.n_inputs = infer->n_inputs;
    c->r.priority = infer->priority;
    c->r.timeout_us = infer->timeout_us;
    c->r.place = call_place;
    c->r.done = call_done;
    c->r.ctx = c;
    return HTH_OK;
}

static hth_err call_run(hth_embed_call *c, hth_embedded *embedded, uint64_t limit_ms)
{
    HTH_TRY(hth_server_infer(embedded->server, c->asked.token, c->tenant, true, &c->r));
    bool in_time = call_wait(c, limit_ms);
    if (c->r.err != HTH_OK && !in_time) {
        return hth_fail(HTH_ETIMEDOUT, "no answer within %" PRIu64 " ms; the request was canceled",
                        limit_ms);
    }
    return hth_err_restore(c->r.err, c->r.detail);
}

hth_err hth_embed_infer_wait(hth_embedded *embedded, const hth_embed_infer *infer,
                             uint64_t limit_ms)
{
    hth_embed_call c;
    pthread_condattr_t attr;
    HTH_TRY(call_init(&c, infer, NULL));
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c.wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&c.lock, NULL);
    hth_err err = call_run(&c, embedded, limit_ms);
    pthread_cond_destroy(&c.wake);
    pthread_mutex_destroy(&c.lock);
    call_fini(&c);
    return err;
}

static hth_err call_start(hth_embed_call *c, hth_embedded *embedded, const hth_embed_infer *infer,
                          hth_embed_done done)
{
    HTH_TRY(call_init(c, infer, done));
    hth_err err = hth_server_infer(embedded->server, infer->token, c->tenant, false, &c->r);
    if (err != HTH_OK) {
        call_fini(c);
    }
    return err;
}

hth_err hth_embed_infer_start(hth_embedded *embedded, const hth_embed_infer *infer,
                              hth_embed_done done, hth_embed_call **out)
{
    hth_embed_call *c = hth_alloc(sizeof *c);
    if (c == NULL) {
        return hth_no_memory("a request");
    }
    *out = c; // before it may be done
    hth_err err = call_start(c, embedded, infer, done);
    if (err != HTH_OK) {
        hth_free(c);
    }
    return err;
}

void hth_embed_infer_cancel(hth_embed_call *call)
{
    atomic_store(&call->r.canceled, 1);
}

// ---- data

hth_err hth_embed_data(bool curve, const char *arguments, char **json)
{
    hth_command_id command = curve ? HTH_COMMAND_CURVE : HTH_COMMAND_PLAN;
    json_t *args, *doc = NULL;
    char *text = NULL;
    hth_err err;
    *json = NULL;
    HTH_GOTO(hth_arguments_read(command, arguments, &args), done);
    HTH_GOTO(hth_arguments_check(command, args), done);
    HTH_GOTO(hth_query_data(command, args, &doc), done);
    text = json_dumps(doc, JSON_COMPACT);
    *json = text != NULL ? hth_strdup(text) : NULL;
    err = *json != NULL ? HTH_OK : hth_no_memory("a plan");
done:
    free(text);
    json_decref(doc);
    json_decref(args);
    return err;
}
