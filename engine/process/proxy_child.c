// SPDX-License-Identifier: Apache-2.0
// One child, from its start to its end. It is this very program (/proc/self/exe, also when the file
// has been replaced meanwhile), without any descriptor but those of the link, and with no signal
// blocked. It is started by the keeper, whose end ends it.
#include "engine/process/proxy_impl.h"

#include "base/ipc/memfd.h"
#include "base/settings.h"
#include "base/thread.h"
#include "engine/process/child.h"
#include "engine/process/child_files.h"

#include <jansson.h>

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

#define OUT_BYTES ((uint64_t)64 << 30) // address space; memory as much as outputs take at a time
#define END_NS    20000000000u         // how long a child that was told to stop may take
#define BEATS     4                    // of the child, for one look at it

// ---- what is shared

static hth_err child_share(hth_proxy *p, int theirs[2])
{
    hth_child_link *l = &p->link;
    uint64_t out_bytes;
    void *board;
    *l = (hth_child_link){.socket = -1, .board_fd = -1};
    theirs[0] = theirs[1] = -1;
    proxy_out *out = hth_calloc(1, sizeof *out);
    if (out == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for the engine's process");
    }
    *out = (proxy_out){.fd = -1, .refs = 1};
    pthread_mutex_lock(&p->lock);
    p->out = out;
    pthread_mutex_unlock(&p->lock);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, theirs) != 0) {
        return hth_fail_errno(errno, "cannot make a socket for the engine's process");
    }
    l->socket = theirs[0];
    l->board_bytes = hth_child_board_bytes((uint64_t)p->n_calls);
    HTH_TRY(hth_memfd_make("hearth-board", l->board_bytes, &l->board_fd, &board));
    l->board = board;
    HTH_TRY(hth_slab_make("hearth-out", OUT_BYTES, &out->fd, &out_bytes));
    HTH_TRY(hth_slab_open(out->fd, out_bytes, false, &out->slab));
    l->out = out->slab;
    l->board->n_slots = (uint64_t)p->n_calls;
    l->board->in_bytes = p->in_bytes;
    l->board->out_bytes = out_bytes;
    l->board->spin_ns = (uint64_t)hth_setting_int(HTH_SET_QUEUE_SPIN_US) * 1000u;
    l->board->beat_ns = (uint64_t)hth_setting_int(HTH_SET_ENGINE_HEARTBEAT_MS) * 1000000u / BEATS;
    l->board->parent = getpid();
    l->in = p->in;
    return hth_child_link_open(l, true);
}

void proxy_out_rele(hth_proxy *p, proxy_out *out)
{
    pthread_mutex_lock(&p->lock);
    bool last = --out->refs == 0;
    pthread_mutex_unlock(&p->lock);
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
static hth_err files_start(hth_proxy *p, int *theirs)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return hth_fail_errno(errno, "cannot make a socket for the engine's process");
    }
    p->files = ends[0];
    *theirs = ends[1];
    hth_err err = hth_thread_start("hth-opener", files_main, p, &p->opener);
    if (err != HTH_OK) {
        close(p->files);
        p->files = -1;
    }
    return err;
}

static void files_stop(hth_proxy *p)
{
    if (p->files >= 0) {
        shutdown(p->files, SHUT_RDWR);
        hth_thread_join(p->opener);
        close(p->files);
        p->files = -1;
    }
}

void proxy_forget_child(hth_proxy *p)
{
    hth_child_link *l = &p->link;
    files_stop(p);
    pthread_mutex_lock(&p->lock);
    proxy_out *out = p->out;
    p->out = NULL; // from here on nobody writes to the board for an answer that was kept
    pthread_mutex_unlock(&p->lock);
    if (l->to != NULL) {
        hth_child_link_close(l);
    }
    if (l->board != NULL) {
        hth_memfd_drop(l->board_fd, l->board, l->board_bytes);
    }
    if (l->socket >= 0) {
        close(l->socket);
    }
    *l = (hth_child_link){.socket = -1, .board_fd = -1};
    if (out != NULL) {
        proxy_out_rele(p, out);
    }
}

// ---- start

static hth_err child_actions(const hth_proxy *p, int socket, int files,
                             posix_spawn_file_actions_t *a)
{
    const int from[] = {socket, p->link.board_fd, p->in_fd, p->out->fd, files};
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
    return rc == 0 ? HTH_OK : hth_fail_errno(rc, "cannot start the engine's process");
}

static hth_err child_spawn(hth_proxy *p, int socket, int files)
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
    hth_err err = child_actions(p, socket, files, &actions);
    if (err == HTH_OK) {
        int rc = posix_spawn(&p->pid, "/proc/self/exe", &actions, &attr, argv, environ);
        err = rc == 0 ? HTH_OK : hth_fail_errno(rc, "cannot start the engine's process");
    }
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    return err;
}

hth_err proxy_start(hth_proxy *p)
{
    int ends[2], files = -1;
    hth_err err = child_share(p, ends);
    err = err == HTH_OK ? files_start(p, &files) : err;
    if (err == HTH_OK) {
        err = child_spawn(p, ends[1], files);
    }
    if (ends[1] >= 0) {
        close(ends[1]);
    }
    if (files >= 0) {
        close(files);
    }
    if (err != HTH_OK) {
        proxy_forget_child(p);
        p->pid = 0;
    }
    return err;
}

// ---- what it is told

static json_t *settings_json(hth_proxy *p)
{
    json_t *list = json_object();
    char value[HTH_SETTING_TEXT];
    p->settings = hth_setting_changes();
    hth_log_filter_text(p->filter);
    for (int i = 0; i < HTH_N_SETTINGS; i++) {
        const char *name = hth_setting_get_info((hth_setting)i)->name;
        if (hth_setting_get(name, value, sizeof value) == HTH_OK) {
            json_object_set_new(list, name, json_string(value));
        }
    }
    return list;
}

static void child_tell(hth_proxy *p, hth_child_kind kind, json_t *doc)
{
    hth_child_head head = {.kind = (uint32_t)kind};
    char *text = doc != NULL ? json_dumps(doc, JSON_COMPACT) : NULL;
    if (text == NULL || hth_child_link_text(&p->link, &head, text, 0) != HTH_OK) {
        hth_log(WARN, SERVER, "engine-settings", "the engine's process was not told");
        p->settings = 0; // the next look tries again
    }
    free(text);
    json_decref(doc);
}

void proxy_greet(hth_proxy *p)
{
    child_tell(p, HTH_CHILD_HELLO,
               json_pack("{s:s, s:s, s:i, s:b, s:b, s:o, s:s}", "store", p->store, "device",
                         p->device, "queue", p->queue, "resume", p->resume && !p->draining, "loose",
                         p->loose, "settings", settings_json(p), "log", p->filter));
}

void proxy_settings(hth_proxy *p)
{
    char filter[HTH_LOG_FILTER_TEXT];
    if (p->settings != hth_setting_changes() ||
        strcmp(p->filter, hth_log_filter_text(filter)) != 0) {
        json_t *settings = settings_json(p);
        child_tell(p, HTH_CHILD_SETTINGS,
                   json_pack("{s:o, s:s}", "settings", settings, "log", p->filter));
    }
}

// ---- end

bool proxy_ended(hth_proxy *p, bool wait, proxy_end *how)
{
    int status = 0;
    pid_t got = waitpid(p->pid, &status, WNOHANG);
    uint64_t until = hth_real_after(END_NS);
    while (got == 0 && wait) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        if (hth_real_ns() > until) {
            kill(p->pid, SIGKILL);
            until = HTH_FOREVER;
        }
        got = waitpid(p->pid, &status, WNOHANG);
    }
    if (got == 0) {
        return false;
    }
    bool killed = got == p->pid && WIFSIGNALED(status);
    how->word = killed ? "signal" : "exit";
    how->number = killed ? WTERMSIG(status) : got == p->pid ? WEXITSTATUS(status) : -1;
    return true;
}
