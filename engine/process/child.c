// SPDX-License-Identifier: Apache-2.0
// The engine's process: opens store and device, and an engine of the kind that is a thread, and
// takes messages from the ring, in order.
//
// Threads: the engine's polls the ring itself while it waits for work, so that a request needs
// to wake one thread only; this one receives while the engine sleeps. The heartbeat's counts, so
// that hearthd knows that the process runs however long a kernel takes, looks for blocks that were
// released, and ends the process when hearthd is gone. The kernel does that, too
// (PR_SET_PDEATHSIG), and at once.
#include "engine/process/child_impl.h"

#include "base/settings.h"
#include "base/thread.h"
#include "device/cpu/quantum.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHILD_HELLO_NS 60000000000u

bool hth_child_requested(int argc, char **argv)
{
    return argc == 2 && strcmp(argv[1], HTH_CHILD_FLAG) == 0;
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

// child_hello reads what hearthd wants opened, and takes its settings.
static hth_err child_hello(child *c, const char *text)
{
    json_t *settings = NULL;
    const char *filter = NULL;
    c->hello = json_loads(text, 0, NULL);
    if (json_unpack(c->hello, "{s:s, s:s, s:i, s:b, s:b, s:o, s:s}", "store", &c->open.store,
                    "device", &c->open.device, "queue", &c->open.queue, "resume", &c->open.resume,
                    "loose", &c->open.loose, "settings", &settings, "log", &filter) != 0) {
        return hth_fail(HTH_ECORRUPT, "the engine process received no configuration");
    }
    child_settings(c, settings, filter);
    return HTH_OK;
}

// child_open opens the device that the greeting names; afterwards no other system call is needed.
static hth_err child_open(child *c)
{
    hth_engine_config e = {.device = c->open.device,
                           .queue = c->open.queue,
                           .event = child_event,
                           .event_ctx = c,
                           .resume = c->open.resume != 0,
                           .polled_ns = &c->link.control->polled_ns,
                           .inner = true};
    HTH_TRY(hth_engine_open(&e, c->store, &c->engine));
    return child_is_confined() ? hth_sandbox_calls(&c->sandbox) : HTH_OK;
}

static void child_set(const child *c, const char *text)
{
    json_t *doc = json_loads(text, 0, NULL);
    child_settings(c, json_object_get(doc, "settings"),
                   json_string_value(json_object_get(doc, "log")));
    json_decref(doc);
}

// ---- the process

static void child_heartbeat(void *arg)
{
    child *c = arg;
    hth_child_control *b = c->link.control;
    int ms = (int)(b->heartbeat_ns / 1000000u);
    struct pollfd gone = {.fd = c->link.socket, .events = POLLRDHUP};
    while (!atomic_load(&c->ended)) {
        atomic_fetch_add(&b->heartbeats, 1);
        if (poll(&gone, 1, ms > 0 ? ms : 1) > 0) {
            c->config->orphaned();
            return;
        }
        pthread_mutex_lock(&c->lock);
        for (uint64_t i = 0; i < b->n_entries; i++) {
            if (c->calls[i].answered && atomic_load(&b->entry[i].released)) {
                child_release(&c->calls[i]);
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
        child_region_forget(c, head.entry);
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

// child_poll polls the ring on the engine's thread while it waits for work.
static bool child_poll(void *ctx)
{
    child *c = ctx;
    bool came = false;
    hth_ring_poll_begin(c->link.from);
    if (hth_ring_wait(c->link.from, 0) == HTH_OK && pthread_mutex_trylock(&c->taking) == 0) {
        while (child_message(c) == HTH_OK) {
            came = true;
        }
        pthread_mutex_unlock(&c->taking);
    }
    return came;
}

static void child_leave(void *ctx)
{
    child *c = ctx;
    if (hth_ring_poll_end(c->link.from)) {
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
    c->hook = (hth_poll_hook){child_poll, child_leave, c};
    hth_engine_set_poll_hook(c->engine, &c->hook);
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
    if (fstat(HTH_CHILD_FD_CONTROL, &st) != 0 || (size_t)st.st_size < sizeof *c->link.control) {
        return hth_fail(HTH_EINVAL, "the engine process is started by hearthd, not by hand");
    }
    c->link.control_bytes = (size_t)st.st_size;
    c->link.control = mmap(NULL, c->link.control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                           HTH_CHILD_FD_CONTROL, 0);
    if (c->link.control == MAP_FAILED) {
        return hth_fail(HTH_ENOMEM, "the engine process cannot map its control block");
    }
    const hth_child_control *b = c->link.control;
    if (hth_child_control_bytes(b->n_entries) != c->link.control_bytes) {
        return hth_fail(HTH_ECORRUPT, "the control block belongs to another program");
    }
    HTH_TRY(hth_slab_open(HTH_CHILD_FD_IN, b->in_bytes, false, &c->link.in));
    HTH_TRY(hth_slab_open(HTH_CHILD_FD_OUT, b->out_bytes, true, &c->link.out));
    c->calls = hth_calloc(b->n_entries, sizeof *c->calls);
    if (c->calls == NULL) {
        return hth_no_memory("requests");
    }
    for (uint64_t i = 0; i < b->n_entries; i++) {
        c->calls[i].c = c;
    }
    return hth_child_link_open(&c->link, false);
}

// child_greet takes the greeting, opens the store, which makes one that is not there, and enters
// the sandbox while this thread is the only one: those that it starts are in it, too.
static hth_err child_greet(child *c)
{
    hth_child_head head;
    const char *body;
    size_t bytes;
    HTH_TRY(hth_child_link_receive(&c->link, CHILD_HELLO_NS, &head, &body, &bytes));
    HTH_TRY(head.kind == HTH_CHILD_HELLO
                ? child_hello(c, body)
                : hth_fail(HTH_ECORRUPT, "the engine process received no greeting"));
    hth_sandbox_oom();
    HTH_TRY(hth_store_open(c->open.store, true, false, &c->store));
    return child_confine(c);
}

// child_report answers the greeting: the engine is there, or why not.
static hth_err child_report(child *c, hth_err err)
{
    hth_child_head head = {.kind = HTH_CHILD_STARTED};
    if (err == HTH_OK) {
        head.done = child_is_confined() && !c->sandbox.files ? HTH_CHILD_UNCONFINED : 0;
        return hth_child_link_send(&c->link, &head, NULL, 0, 0);
    }
    head = (hth_child_head){.kind = HTH_CHILD_FAILED, .done = err};
    (void)hth_child_link_text(&c->link, &head, hth_err_detail(), 0);
    return err;
}

static void child_close(child *c)
{
    hth_store_close(c->store);
    for (uint64_t i = 0; c->calls != NULL && i < c->link.control->n_entries; i++) {
        child_release(&c->calls[i]);
    }
    child_region_close(c);
    hth_ring_stop(c->link.to);
    hth_child_link_close(&c->link);
    hth_slab_close(c->link.in);
    hth_slab_close(c->link.out);
    hth_free(c->calls);
    json_decref(c->hello);
    munmap(c->link.control, c->link.control_bytes);
}

int hth_child_run(const hth_child_config *config)
{
    child c = {.config = config, .link = {.socket = HTH_CHILD_FD_SOCKET}};
    pthread_t heartbeat;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "hearthd-engine");
    hth_quantum_raise(true);  // this process is there to answer, and nobody else's program
    signal(SIGTERM, SIG_IGN); // hearthd says when to stop; these come to both of them
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    sigset_t none; // they were blocked until here
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    pthread_mutex_init(&c.lock, NULL);
    pthread_mutex_init(&c.taking, NULL);
    if (child_map(&c) != HTH_OK || getppid() != c.link.control->parent) {
        return 1;
    }
    hth_err err = child_greet(&c);
    if (err != HTH_OK) {
        (void)child_report(&c, err);
        return 1;
    }
    if (hth_thread_start("hth-heartbeat", child_heartbeat, &c, &heartbeat) != HTH_OK) {
        return 1;
    }
    err = child_report(&c, child_open(&c));
    if (err == HTH_OK) {
        child_serve(&c);
    }
    hth_engine_close(c.engine); // answers what was accepted; the heartbeat goes on for as long
    c.engine = NULL;
    atomic_store(&c.ended, true);
    hth_thread_join(heartbeat);
    child_close(&c);
    pthread_mutex_destroy(&c.lock);
    pthread_mutex_destroy(&c.taking);
    return err == HTH_OK ? 0 : 1;
}
