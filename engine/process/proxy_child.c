// SPDX-License-Identifier: Apache-2.0
// One child, from its start to its end. It is this very program (/proc/self/exe, also when the file
// has been replaced meanwhile), without any descriptor but those of the link, and with no signal
// blocked. It is started by the supervisor, whose end ends it.
//
// Which models a child has loaded, and which are pinned, is known from the answers to requests. A
// new child is asked to load them, as far as there is room, before it is given what was asked
// meanwhile: to unload one, perhaps, or to unpin it. One whose loading ends the process is not
// asked for again: the request for it is answered with an error, like any that was begun.
#include "engine/process/proxy_impl.h"

#include "base/ipc/memfd.h"
#include "base/settings.h"
#include "base/thread.h"
#include "engine/process/child.h"
#include "engine/process/child_files.h"

#include <jansson.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OUT_BYTES   ((uint64_t)64 << 30) // address space; memory as much as outputs take at a time
#define END_NS      20000000000u         // how long a child that was told to stop may take
#define HEARTBEATS  4                    // of the child, for one look at it
#define MODELS_MOST 256                  // more are loaded when they are asked for

// ---- what is shared

static hth_err child_share(hth_proxy *proxy, int theirs[2])
{
    hth_child_link *l = &proxy->link;
    uint64_t out_bytes;
    void *control;
    *l = (hth_child_link){.socket = -1, .control_fd = -1};
    theirs[0] = theirs[1] = -1;
    proxy_out *out = hth_calloc(1, sizeof *out);
    if (out == NULL) {
        return hth_no_memory("the engine process");
    }
    *out = (proxy_out){.fd = -1, .refs = 1};
    pthread_mutex_lock(&proxy->lock);
    proxy->out = out;
    pthread_mutex_unlock(&proxy->lock);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, theirs) != 0) {
        return hth_fail_errno(errno, "cannot make a socket for the engine process");
    }
    l->socket = theirs[0];
    l->control_bytes = hth_child_control_bytes((uint64_t)proxy->n_calls);
    HTH_TRY(hth_memfd_make("hearth-control", l->control_bytes, &l->control_fd, &control));
    l->control = control;
    HTH_TRY(hth_slab_make("hearth-out", OUT_BYTES, &out->fd, &out_bytes));
    HTH_TRY(hth_slab_open(out->fd, out_bytes, false, &out->slab));
    l->out = out->slab;
    l->control->n_entries = (uint64_t)proxy->n_calls;
    l->control->in_bytes = proxy->in_bytes;
    l->control->out_bytes = out_bytes;
    l->control->spin_ns = (uint64_t)hth_setting_int(HTH_SET_QUEUE_SPIN_US) * 1000u;
    l->control->heartbeat_ns =
        (uint64_t)hth_setting_int(HTH_SET_ENGINE_HEARTBEAT_MS) * 1000000u / HEARTBEATS;
    l->control->parent = getpid();
    l->in = proxy->in;
    return hth_child_link_open(l, true);
}

void proxy_out_rele(hth_proxy *proxy, proxy_out *out)
{
    pthread_mutex_lock(&proxy->lock);
    assert(out->refs > 0);
    bool last = --out->refs == 0;
    pthread_mutex_unlock(&proxy->lock);
    if (last) {
        hth_slab_close(out->slab);
        if (out->fd >= 0) {
            close(out->fd);
        }
        hth_free(out);
    }
}

// ---- files that are opened for it

static void files_main(void *arg)
{
    hth_proxy *p = arg;
    hth_child_files_serve(p->files, p->store);
}

// files_start makes the socket, of which *theirs is the child's end, and the thread that answers.
static hth_err files_start(hth_proxy *proxy, int *theirs)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return hth_fail_errno(errno, "cannot make a socket for the engine process");
    }
    proxy->files = ends[0];
    *theirs = ends[1];
    hth_err err = hth_thread_start("hth-opener", files_main, proxy, &proxy->opener);
    if (err != HTH_OK) {
        close(proxy->files);
        proxy->files = -1;
    }
    return err;
}

static void files_stop(hth_proxy *proxy)
{
    if (proxy->files >= 0) {
        shutdown(proxy->files, SHUT_RDWR);
        hth_thread_join(proxy->opener);
        close(proxy->files);
        proxy->files = -1;
    }
}

void proxy_forget_child(hth_proxy *proxy)
{
    hth_child_link *l = &proxy->link;
    files_stop(proxy);
    pthread_mutex_lock(&proxy->lock);
    proxy_out *out = proxy->out;
    proxy->out =
        NULL; // from here on nobody writes to the control block for an answer that was kept
    pthread_mutex_unlock(&proxy->lock);
    if (l->to != NULL) {
        hth_child_link_close(l);
    }
    if (l->control != NULL) {
        hth_memfd_drop(l->control_fd, l->control, l->control_bytes);
    }
    if (l->socket >= 0) {
        close(l->socket);
    }
    *l = (hth_child_link){.socket = -1, .control_fd = -1};
    if (out != NULL) {
        proxy_out_rele(proxy, out);
    }
}

// ---- start

static hth_err child_actions(const hth_proxy *proxy, int socket, int files,
                             posix_spawn_file_actions_t *a)
{
    const int from[] = {socket, proxy->link.control_fd, proxy->in_reader, proxy->out->fd, files};
    const int n = sizeof from / sizeof *from;
    int rc = 0, spare = HTH_CHILD_FD_FILES;
    _Static_assert(HTH_CHILD_FD_FILES == HTH_CHILD_FD_SOCKET + 4, "in the order of `from`");
    for (int i = 0; i < n; i++) {
        spare = from[i] > spare ? from[i] : spare;
    }
    for (int i = 0; i < n && rc == 0; i++) { // out of each other's way first
        rc = posix_spawn_file_actions_adddup2(a, from[i], spare + 1 + i);
    }
    for (int i = 0; i < n && rc == 0; i++) {
        rc = posix_spawn_file_actions_adddup2(a, spare + 1 + i, HTH_CHILD_FD_SOCKET + i);
    }
    rc = rc == 0 ? posix_spawn_file_actions_addclosefrom_np(a, HTH_CHILD_FD_FILES + 1) : rc;
    return rc == 0 ? HTH_OK : hth_fail_errno(rc, "cannot start the engine process");
}

static hth_err child_spawn(hth_proxy *proxy, int socket, int files)
{
    static char name[] = "hearthd", flag[] = HTH_CHILD_FLAG;
    char *argv[] = {name, flag, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t ours; // a terminal sends them to both: the child ignores them, once it can
    sigemptyset(&ours);
    sigaddset(&ours, SIGTERM);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGHUP);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &ours);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    hth_err err = child_actions(proxy, socket, files, &actions);
    if (err == HTH_OK) {
        int rc = posix_spawn(&proxy->pid, "/proc/self/exe", &actions, &attr, argv, environ);
        err = rc == 0 ? HTH_OK : hth_fail_errno(rc, "cannot start the engine process");
    }
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    return err;
}

hth_err proxy_start(hth_proxy *proxy)
{
    int ends[2], files = -1;
    hth_err err = child_share(proxy, ends);
    if (err == HTH_OK) {
        err = files_start(proxy, &files);
    }
    if (err == HTH_OK) {
        err = child_spawn(proxy, ends[1], files);
    }
    if (ends[1] >= 0) {
        close(ends[1]);
    }
    if (files >= 0) {
        close(files);
    }
    if (err != HTH_OK) {
        proxy_forget_child(proxy);
        proxy->pid = 0;
    }
    return err;
}

// ---- what it is told

static json_t *settings_json(hth_proxy *proxy)
{
    json_t *list = json_object();
    char value[HTH_SETTING_TEXT];
    proxy->settings = hth_setting_changes();
    hth_log_filter_text(proxy->filter);
    for (int i = 0; i < HTH_N_SETTINGS; i++) {
        const char *name = hth_setting_get_info((hth_setting)i)->name;
        if (hth_setting_get(name, value, sizeof value) == HTH_OK) {
            json_object_set_new(list, name, json_string(value));
        }
    }
    return list;
}

static bool child_send_json(hth_proxy *proxy, hth_child_kind kind, json_t *doc)
{
    hth_child_head head = {.kind = (uint32_t)kind};
    char *text = doc != NULL ? json_dumps(doc, JSON_COMPACT) : NULL;
    bool sent = text != NULL && hth_child_link_text(&proxy->link, &head, text, 0) == HTH_OK;
    if (!sent) {
        hth_log(WARN, SERVER, "engine-settings", "settings did not reach the engine process");
        proxy->settings = 0; // the next tick tries again
    }
    free(text);
    json_decref(doc);
    return sent;
}

void proxy_greet(hth_proxy *proxy)
{
    json_t *settings = settings_json(proxy);
    proxy->lost = !child_send_json(
        proxy, HTH_CHILD_HELLO,
        json_pack("{s:s, s:s, s:i, s:b, s:b, s:o, s:s}", "store", proxy->store, "device",
                  proxy->device, "queue", proxy->queue, "resume", proxy->resume && !proxy->draining,
                  "loose", proxy->loose, "settings", settings, "log", proxy->filter));
}

void proxy_settings(hth_proxy *proxy)
{
    char filter[HTH_LOG_FILTER_TEXT];
    if (proxy->settings != hth_setting_changes() ||
        strcmp(proxy->filter, hth_log_filter_text(filter)) != 0) {
        json_t *settings = settings_json(proxy);
        (void)child_send_json(proxy, HTH_CHILD_SETTINGS,
                              json_pack("{s:o, s:s}", "settings", settings, "log", proxy->filter));
    }
}

// ---- end

bool proxy_ended(hth_proxy *proxy, bool wait, proxy_end *how)
{
    int status = 0;
    pid_t got = waitpid(proxy->pid, &status, WNOHANG);
    uint64_t until = hth_real_after(END_NS);
    while (got == 0 && wait) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        if (hth_real_ns() > until) {
            kill(proxy->pid, SIGKILL);
            until = HTH_FOREVER;
        }
        got = waitpid(proxy->pid, &status, WNOHANG);
    }
    if (got == 0) {
        return false;
    }
    *how = (proxy_end){"exit", -1};
    if (got == proxy->pid && WIFSIGNALED(status)) {
        *how = (proxy_end){"signal", WTERMSIG(status)};
    } else if (got == proxy->pid) {
        how->number = WEXITSTATUS(status);
    }
    return true;
}

// ---- the models that a new child is to load

// A request of our own.
typedef struct models_call {
    hth_request r;
    hth_proxy *p;
    char *arguments; // malloc'd
    char spec[216];
} models_call;

// models_drop forgets a name with all its versions, or the one that is named.
static void models_drop(hth_proxy *proxy, const char *spec)
{
    proxy_model *m, *next;
    size_t n = strlen(spec);
    HASH_ITER (hh, proxy->models, m, next) {
        if (strncmp(m->spec, spec, n) == 0 && (m->spec[n] == 0 || m->spec[n] == ':')) {
            HASH_DEL(proxy->models, m);
            hth_free(m);
        }
    }
}

// models_add returns the row of a model, NULL: there is no room for it.
static proxy_model *models_add(hth_proxy *proxy, const char *spec)
{
    proxy_model *m;
    HASH_FIND_STR(proxy->models, spec, m);
    if (m != NULL || strlen(spec) >= sizeof m->spec || HASH_COUNT(proxy->models) >= MODELS_MOST) {
        return m;
    }
    m = hth_calloc(1, sizeof *m);
    if (m != NULL) {
        strcpy(m->spec, spec);
        HASH_ADD_STR(proxy->models, spec, m);
        if (!HTH_HASH_ADDED(m)) {
            hth_free(m);
            m = NULL;
        }
    }
    return m;
}

void proxy_models_note(hth_proxy *proxy, const hth_request *request)
{
    if (request->command == HTH_COMMAND_NONE) {
        (void)models_add(proxy, request->model);
        return;
    }
    bool load = request->command == HTH_COMMAND_LOAD;
    if (!load && request->command != HTH_COMMAND_UNLOAD) {
        return;
    }
    json_t *args = json_loads(request->arguments != NULL ? request->arguments : "", 0, NULL);
    const char *spec = json_string_value(json_object_get(args, "model"));
    const json_t *pin = json_object_get(args, "pin");
    proxy_model *m = spec != NULL && load ? models_add(proxy, spec) : NULL;
    bool unpin = json_is_true(json_object_get(args, "unpin"));
    if (m != NULL && (pin != NULL || unpin)) {
        m->pinned = json_is_true(pin) && !unpin;
    } else if (spec != NULL && !load) {
        models_drop(proxy, spec);
    }
    json_decref(args);
}

// models_hopeless tells whether a model is not asked for again: it is gone from the store, or
// cannot be loaded, or its loading ended the process. Others have no room, perhaps, and next time
// they do.
static bool models_hopeless(const hth_request *request)
{
    switch (request->err) {
    case HTH_OK:
    case HTH_EBUSY:
    case HTH_ENOMEM:
    case HTH_ENODEVMEM:
    case HTH_ECANCELED:
    case HTH_ETIMEDOUT:
        return false;
    case HTH_EDEVLOST:
        return request->started_ns > 0; // else it was buried with others
    default:
        return true;
    }
}

static void models_done(hth_request *request)
{
    models_call *call = request->ctx;
    proxy_model *m;
    HASH_FIND_STR(call->p->models, call->spec, m);
    if (request->err != HTH_OK) {
        hth_log(WARN, SERVER, "engine-model", "%s: not loaded again: %s", call->spec,
                request->detail);
    }
    if (m != NULL) {
        m->asked = false;
        if (models_hopeless(request)) {
            HASH_DEL(call->p->models, m);
            hth_free(m);
        }
    }
    hth_free(request->json);
    free(call->arguments);
    hth_free(call);
}

void proxy_models_again(hth_proxy *proxy)
{
    for (proxy_model *m = proxy->models; m != NULL; m = m->hh.next) {
        if (m->asked) {
            continue; // that waits for this child
        }
        models_call *call = hth_calloc(1, sizeof *call);
        json_t *args = json_pack("{s:s, s:b}", "model", m->spec, "wait", 0);
        if (m->pinned) {
            json_object_set_new(args, "pin", json_true());
        }
        if (call != NULL) {
            call->p = proxy;
            call->arguments = json_dumps(args, JSON_COMPACT);
            strcpy(call->spec, m->spec);
            call->r = (hth_request){.command = HTH_COMMAND_LOAD,
                                    .arguments = call->arguments,
                                    .done = models_done,
                                    .ctx = call};
            m->asked = call->arguments != NULL && proxy_submit_again(proxy, &call->r) == HTH_OK;
            if (!m->asked) {
                free(call->arguments);
                hth_free(call);
            }
        }
        json_decref(args);
    }
}

void proxy_models_close(hth_proxy *proxy)
{
    while (proxy->models != NULL) {
        proxy_model *m = proxy->models;
        HASH_DEL(proxy->models, m);
        hth_free(m);
    }
}
