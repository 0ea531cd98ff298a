// SPDX-License-Identifier: Apache-2.0
// The supervisor's loop: when a child is started, listened to, given up, and started again.
//
//     DOWN --(started)--> STARTING --(device and store open)--> UP
//       ^                     |                                  |
//       +---(it ended, after a pause that grows with quick crashes)---+
//
// A crash is quick if the child was not up for a while: a start that takes long, and fails, is one.
//
// The supervisor sleeps on the ring. It wakes by itself to look after requests (cancellation is a
// flag that nobody announces) and to see whether the process has ended: every 10 ms while there are
// requests, every 50 ms otherwise. Heartbeats are counted in the supervisor's own ticks: when
// the whole machine stood still, no tick was missed.
#include "engine/process/proxy_impl.h"

#include "base/thread_cache.h"
#include "base/ipc/memfd.h"
#include "base/settings.h"
#include "base/thread.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BUSY_NS      10000000u
#define IDLE_NS      50000000u
#define PAUSE_NS     100000000u   // before the second restart in a row; doubles
#define PAUSE_DOUBLE 20           // at most that often
#define BIRTH_NS     60000000000u // until the first heartbeat: a program may take long to load
#define START_BEATS  30           // times the heartbeats that may be missed: until it is up
#define END_BEATS    3            // and until it has ended, once nothing is asked of it

static void supervisor_phase(hth_proxy *proxy, proxy_phase phase)
{
    pthread_mutex_lock(&proxy->lock);
    proxy->phase = phase;
    pthread_cond_broadcast(&proxy->changed);
    pthread_mutex_unlock(&proxy->lock);
}

// ---- the first start's result, which hth_proxy_open waits for

static void supervisor_opened(hth_proxy *proxy, hth_err err, const char *detail)
{
    pthread_mutex_lock(&proxy->lock);
    if (!proxy->opened) {
        proxy->opened = true;
        proxy->open_err = err;
        snprintf(proxy->open_detail, sizeof proxy->open_detail, "%s", detail);
        proxy->stopping = proxy->stopping || err != HTH_OK;
    }
    pthread_cond_broadcast(&proxy->changed);
    pthread_mutex_unlock(&proxy->lock);
}

// ---- the child

void proxy_tell_end(hth_proxy *proxy)
{
    hth_child_head drain = {.kind = HTH_CHILD_DRAIN}, stop = {.kind = HTH_CHILD_STOP};
    if (proxy->phase != PROXY_UP || (!proxy->draining && !proxy->stopping) ||
        proxy_send_waiting(proxy) == HTH_EBUSY) {
        return;
    }
    if (proxy->draining && !proxy->drain_sent) {
        proxy->drain_sent = hth_child_link_send(&proxy->link, &drain, NULL, 0, 0) == HTH_OK;
    }
    if (proxy->stopping && !proxy->stop_sent && proxy->drain_sent == proxy->draining) {
        proxy->stop_sent = hth_child_link_send(&proxy->link, &stop, NULL, 0, 0) == HTH_OK;
    }
}

// supervisor_loosen tells whether the first child could not open a GPU because it is confined,
// perhaps: drivers differ in what they open. The next one is not. Later children may not ask for
// that: what they fail for may be somebody's doing.
static bool supervisor_loosen(hth_proxy *proxy)
{
    char word[HTH_SETTING_TEXT];
    bool confined = strcmp(hth_setting_text(HTH_SET_ENGINE_SANDBOX, word), "true") == 0;
    if (proxy->opened || proxy->loose || !confined || strncmp(proxy->device, "cuda", 4) != 0) {
        return false;
    }
    proxy->loose = proxy->again = true;
    return true;
}

// supervisor_unconfined says once, however many children there are, that they are not confined.
static void supervisor_unconfined(const hth_proxy *proxy)
{
    static atomic_bool told;
    if (proxy->loose) {
        hth_log(WARN, SERVER, "engine-unconfined",
                "device %s does not open in the sandbox: its process can open whatever hearthd's "
                "account can",
                proxy->device);
    } else if (!atomic_exchange(&told, true)) {
        hth_log(WARN, SERVER, "engine-unconfined",
                "this kernel has no Landlock (Linux 5.19 or later, lsm=landlock): the engine "
                "process can open whatever hearthd's account can");
    }
}

static void supervisor_started(hth_proxy *proxy, bool confined)
{
    if (!confined) {
        supervisor_unconfined(proxy);
    }
    proxy_models_again(proxy); // nobody else sends anything yet
    pthread_mutex_lock(&proxy->lock);
    proxy->phase = PROXY_UP;
    proxy->drain_sent = proxy->stop_sent = false;
    proxy->beats = 0;
    proxy_region_forget(proxy, true);
    (void)proxy_send_waiting(proxy);
    proxy_tell_end(proxy);
    pthread_mutex_unlock(&proxy->lock);
    hth_log(INFO, SERVER, "engine-started", "pid=%d ms=%" PRIu64, (int)proxy->pid,
            (hth_real_ns() - proxy->started_ns) / 1000000u);
    proxy->up = true;
    proxy->up_ns = hth_real_ns();
    supervisor_opened(proxy, HTH_OK, "");
}

static void supervisor_message(hth_proxy *proxy, const hth_child_head *head, const char *body,
                               size_t bytes)
{
    if (head->kind == HTH_CHILD_STARTED && proxy->phase == PROXY_STARTING) {
        supervisor_started(proxy, head->done != HTH_CHILD_UNCONFINED);
    } else if (head->kind == HTH_CHILD_FAILED && proxy->phase == PROXY_STARTING &&
               supervisor_loosen(proxy)) {
        hth_log(INFO, SERVER, "engine-again", "%s", body);
    } else if (head->kind == HTH_CHILD_FAILED && proxy->phase == PROXY_STARTING) {
        hth_log(ERROR, SERVER, "engine-failed", "%s", body);
        supervisor_opened(
            proxy, head->done < HTH_N_ERR && head->done > 0 ? (hth_err)head->done : HTH_EIO, body);
    } else {
        proxy_message(proxy, head, body, bytes);
    }
}

// proxy_take takes what the child has sent, until `until_ns`. proxy->taking is held.
static hth_err proxy_take(hth_proxy *proxy, uint64_t until_ns, bool *came)
{
    hth_child_head head;
    const char *body;
    size_t bytes;
    hth_err err = hth_child_link_receive(&proxy->link, 0, &head, &body, &bytes);
    while (err == HTH_OK) {
        *came = true;
        supervisor_message(proxy, &head, body, bytes);
        err = hth_real_ns() < until_ns
                  ? hth_child_link_receive(&proxy->link, 0, &head, &body, &bytes)
                  : HTH_ETIMEDOUT;
    }
    if (err == HTH_ECORRUPT) {
        proxy->lost = true;
    }
    return err;
}

// supervisor_receive takes what the child has sent, waiting for it at most `timeout_ns`. false: it
// sends no more.
static bool supervisor_receive(hth_proxy *proxy, uint64_t timeout_ns)
{
    bool came = false;
    uint64_t until_ns = proxy->link.control->spin_suspended_ns;
    uint64_t most_ns = hth_real_after(HTH_CHILD_NO_SPIN_NS);
    hth_spin_suspend(until_ns < most_ns ? until_ns : most_ns);
    hth_err err = hth_ring_wait(proxy->link.from, timeout_ns);
    if (err == HTH_OK) {
        pthread_mutex_lock(&proxy->taking);
        err = proxy_take(proxy, proxy->next_tick_ns, &came);
        pthread_mutex_unlock(&proxy->taking);
    }
    return err != HTH_ECANCELED;
}

// ---- another thread that polls

void proxy_stop_polling(hth_proxy *proxy)
{
    if (proxy->polled) { // what came meanwhile is taken by that thread's next poll
        proxy->polled = false;
        (void)hth_ring_poll_end(proxy->link.from);
    }
}

bool proxy_take_now(hth_engine *engine, bool on)
{
    hth_proxy *p = hth_proxy_of(engine);
    bool came = false;
    if (pthread_mutex_trylock(&p->taking) != 0) {
        if (on) {
            return false; // somebody is at it
        }
        pthread_mutex_lock(&p->taking);
    }
    pthread_mutex_lock(&p->lock);
    p->polling = p->polling || on;
    p->poller = pthread_self();
    if (!on || !p->up || p->others > 0) {
        proxy_stop_polling(p);
    } else if (!p->polled) {
        p->polled = true;
        hth_ring_poll_begin(p->link.from);
    }
    pthread_mutex_unlock(&p->lock);
    if (p->up) {
        (void)proxy_take(p, HTH_FOREVER, &came);
    }
    pthread_mutex_unlock(&p->taking);
    return came;
}

// supervisor_overdue counts this look at a child that starts or ends, and tells whether it takes
// too long for that, however well its heart beats.
static bool supervisor_overdue(hth_proxy *proxy, int most)
{
    pthread_mutex_lock(&proxy->lock);
    bool starts = proxy->phase == PROXY_STARTING;
    bool ends = proxy->stop_sent && proxy->in_flight == 0;
    pthread_mutex_unlock(&proxy->lock);
    proxy->beats = starts || ends ? proxy->beats + 1 : 0;
    return proxy->beats > (starts ? START_BEATS : END_BEATS) * most;
}

static void supervisor_check_heartbeat(hth_proxy *proxy, uint64_t now)
{
    if (now < proxy->next_heartbeat_ns) {
        return;
    }
    uint64_t heartbeat = atomic_load(&proxy->link.control->heartbeats);
    proxy->next_heartbeat_ns =
        now + (uint64_t)hth_setting_int(HTH_SET_ENGINE_HEARTBEAT_MS) * 1000000u;
    proxy->missed = heartbeat == proxy->heartbeats && heartbeat > 0 ? proxy->missed + 1 : 0;
    proxy->heartbeats = heartbeat;
    int most = (int)hth_setting_int(HTH_SET_ENGINE_MISSED_HEARTBEATS);
    if (supervisor_overdue(proxy, most) || proxy->missed >= most ||
        (heartbeat == 0 && now - proxy->started_ns > BIRTH_NS)) {
        hth_log(ERROR, SERVER, "engine-hangs", "pid=%d heartbeats=%d up=%s", (int)proxy->pid,
                proxy->missed, proxy->phase == PROXY_UP ? "yes" : "no");
        kill(proxy->pid, SIGKILL);
    }
    if (proxy->phase == PROXY_UP) {
        proxy_settings(proxy);
    }
}

// supervisor_pause is how long to wait after the crashes so far.
static uint64_t supervisor_pause(int crashes)
{
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_ENGINE_RESTART_BACKOFF_MS) * 1000000u;
    int doubled = crashes - 2 < PAUSE_DOUBLE ? crashes - 2 : PAUSE_DOUBLE;
    uint64_t pause = crashes >= 2 ? (uint64_t)PAUSE_NS << doubled : 0;
    return pause < most ? pause : most;
}

// supervisor_crashed counts a child that has ended, or did not start, and sets when the next one
// does; true: there were too many.
static bool supervisor_crashed(hth_proxy *proxy)
{
    uint64_t now = hth_real_ns();
    pthread_mutex_lock(&proxy->lock);
    bool lived = proxy->up_ns > 0 && now - proxy->up_ns >= PROXY_LIVED_NS;
    int crashes = proxy->crashes = lived ? 1 : proxy->crashes + 1;
    pthread_mutex_unlock(&proxy->lock);
    uint64_t pause_ns = supervisor_pause(crashes);
    proxy->next_start_ns = now + pause_ns;
    return crashes >= PROXY_LOST && pause_ns > 0;
}

static void supervisor_tell_lost(const hth_proxy *proxy)
{
    uint64_t now = hth_real_ns();
    uint64_t left = proxy->next_start_ns > now ? proxy->next_start_ns - now : 0;
    hth_log(ERROR, SERVER, "engine-lost", "crashes=%d next_start_ms=%" PRIu64, proxy->crashes,
            left / 1000000u);
}

// supervisor_leave has others poll what the supervisor polled while it waited for a child.
static void supervisor_leave(hth_proxy *proxy)
{
    const hth_poll_hook *hook = proxy->hook;
    hth_ring_set_poll(proxy->link.from, NULL);
    if (hook != NULL) {
        hook->leave(hook->ctx);
    }
}

// supervisor_died is for a child that has ended, however that came.
static void supervisor_died(hth_proxy *proxy, proxy_end how)
{
    char sentence[300];
    bool came;
    pthread_mutex_lock(&proxy->taking);
    (void)proxy_take(proxy, HTH_FOREVER, &came); // what it had answered is an answer
    proxy->up = false;                           // only now: that it is up may have been among them
    pthread_mutex_lock(&proxy->lock);
    bool stopping = proxy->stopping;
    proxy->phase = PROXY_DOWN;
    proxy->polled = false; // the ring goes
    pthread_mutex_unlock(&proxy->lock);
    bool lost = supervisor_crashed(proxy);
    bool again = proxy->again;
    bool clean = again || (stopping && how.word[0] == 'e' && how.number == 0);
    proxy->again = false;
    if (!clean) {
        hth_log(ERROR, SERVER, "engine-died", "pid=%d %s=%d lived_ms=%" PRIu64 " crashes=%d",
                (int)proxy->pid, how.word, how.number,
                (hth_real_ns() - proxy->started_ns) / 1000000u, proxy->crashes);
    }
    if (!stopping && lost) {
        supervisor_tell_lost(proxy);
    }
    const char *when = lost ? "too often" : "while this request ran";
    const char *next = stopping ? "the server is stopping" : "it is being restarted";
    snprintf(sentence, sizeof sentence, "the engine process died %s (%s %d); %s", when, how.word,
             how.number, next);
    proxy_bury(proxy, sentence, stopping || lost);
    snprintf(sentence, sizeof sentence, "the engine process ended before it was ready (%s %d)",
             how.word, how.number);
    if (!again) {
        supervisor_opened(proxy, HTH_EDEVLOST, sentence);
    }
    proxy_forget_child(proxy);
    proxy->pid = 0;
    pthread_mutex_unlock(&proxy->taking);
}

// supervisor_serve works with a child until it has ended.
static void supervisor_serve(hth_proxy *proxy)
{
    proxy_end how;
    bool open = true;
    while (open) {
        uint64_t now = hth_real_ns();
        uint64_t left = proxy->next_tick_ns > now ? proxy->next_tick_ns - now : 0;
        hth_ring_set_poll(proxy->link.from, proxy->hook);
        open = supervisor_receive(proxy, left);
        if (atomic_exchange(&proxy->lost, false)) {
            kill(proxy->pid, SIGKILL);
        }
        now = hth_real_ns();
        if (now >= proxy->next_tick_ns) {
            proxy_tick(proxy);
            supervisor_check_heartbeat(proxy, now);
            pthread_mutex_lock(&proxy->lock);
            proxy_tell_end(proxy);
            proxy->next_tick_ns =
                now + (proxy->in_flight > 0 || proxy->stopping ? BUSY_NS : IDLE_NS);
            pthread_mutex_unlock(&proxy->lock);
            if (proxy_ended(proxy, false, &how)) {
                supervisor_leave(proxy);
                supervisor_died(proxy, how);
                return;
            }
        }
    }
    supervisor_leave(proxy);
    (void)proxy_ended(proxy, true, &how); // it said that it ends
    supervisor_died(proxy, how);
}

// supervisor_iterate waits until it is time for the next start; false: there is none.
static bool supervisor_iterate(hth_proxy *proxy)
{
    while (hth_real_ns() < proxy->next_start_ns) {
        pthread_mutex_lock(&proxy->lock);
        bool stopping = proxy->stopping;
        pthread_mutex_unlock(&proxy->lock);
        if (stopping) {
            return false;
        }
        proxy_tick(proxy);
        nanosleep(&(struct timespec){.tv_nsec = BUSY_NS}, NULL);
    }
    pthread_mutex_lock(&proxy->lock);
    bool stopping = proxy->stopping;
    pthread_mutex_unlock(&proxy->lock);
    return !stopping;
}

// supervisor_failed is for a child that the system did not start.
static void supervisor_failed(hth_proxy *proxy, hth_err err)
{
    char sentence[700];
    snprintf(sentence, sizeof sentence, "the engine process does not start: %s", hth_err_detail());
    hth_log(ERROR, SERVER, "engine-failed", "%s", hth_err_detail());
    supervisor_opened(proxy, err, hth_err_detail());
    bool lost = supervisor_crashed(proxy);
    uint64_t least = hth_real_after(PAUSE_NS);
    proxy->next_start_ns = proxy->next_start_ns > least ? proxy->next_start_ns : least;
    if (lost) {
        supervisor_tell_lost(proxy);
        pthread_mutex_lock(&proxy->taking);
        proxy_bury(proxy, sentence, true);
        pthread_mutex_unlock(&proxy->taking);
    }
}

static void supervisor_start(hth_proxy *proxy)
{
    proxy->child++;
    proxy->lost = false;
    proxy->missed = proxy->beats = 0;
    proxy->heartbeats = proxy->up_ns = 0;
    proxy->started_ns = hth_real_ns();
    proxy->next_tick_ns = proxy->next_heartbeat_ns = proxy->started_ns;
    hth_err err = proxy_start(proxy);
    if (err != HTH_OK) {
        supervisor_failed(proxy, err);
        return;
    }
    supervisor_phase(proxy, PROXY_STARTING);
    proxy_greet(proxy);
    supervisor_serve(proxy);
}

void proxy_supervise(void *arg)
{
    hth_proxy *p = arg;
    hth_thread_cache_begin();
    while (supervisor_iterate(p)) {
        supervisor_start(p);
    }
    proxy_bury(p, "the server is stopping, and the engine process is not there", true);
    hth_thread_cache_end();
}
