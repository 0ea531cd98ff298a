// SPDX-License-Identifier: Apache-2.0
// libevent gives a listener's error function the argument of its accept function, which is a front
// end's: guards are found by their listener, in a list.
#include "server/net/accept_guard.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

// What the process may need at any moment: an engine's restart, models, shared memory, its log.
#define ACCEPT_RESERVE 64
// The part of the reserve that local administrators may use: 1 / ACCEPT_ADMIN.
#define ACCEPT_ADMIN 4
// What counts as open before hth_accept_measure.
#define ACCEPT_OPEN 32
// How long a listener rests, and how many that wait it refuses before.
#define ACCEPT_REST_US (100 * 1000)
#define ACCEPT_REFUSED 256
#define SELDOM_NS      (10ull * 1000000000u)

// What each kind has for itself: 1 / ACCEPT_OWN.
#define ACCEPT_OWN 8

static atomic_int accept_open = ACCEPT_OPEN;
static pthread_mutex_t accept_lock = PTHREAD_MUTEX_INITIALIZER;
static int accept_n[HTH_ACCEPT_KINDS]; // under the lock

// ---- the count

void hth_accept_measure(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d != NULL && readdir(d) != NULL) {
        n++;
    }
    if (d != NULL) {
        closedir(d);
        n -= 3 + hth_accept_count(); // "." and "..", and the folder itself
        atomic_store(&accept_open, n > 0 ? n : 0);
    }
}

// accept_all is how many there may be of all kinds.
static int accept_all(bool admin)
{
    struct rlimit l;
    int64_t all = getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < INT32_MAX ? (int64_t)l.rlim_cur
                                                                              : INT32_MAX;
    int64_t free_ones = all - atomic_load(&accept_open);
    int64_t reserve = free_ones / 2 < ACCEPT_RESERVE ? free_ones / 2 : ACCEPT_RESERVE;
    int64_t limit = free_ones - reserve + (admin ? reserve / ACCEPT_ADMIN : 0);
    return limit > 0 ? (int)limit : 0;
}

// accept_reserved is what the other kinds have for themselves and do not use. Under the lock.
static int accept_reserved(hth_accept_kind kind, const int *n)
{
    int kept = 0, own = accept_all(false) / ACCEPT_OWN;
    for (int k = 0; k < HTH_ACCEPT_ADMIN && kind != HTH_ACCEPT_ADMIN; k++) {
        kept += k != (int)kind && n[k] < own ? own - n[k] : 0;
    }
    return kept;
}

static int accept_sum(void)
{
    int n = 0;
    for (int k = 0; k < HTH_ACCEPT_KINDS; k++) {
        n += accept_n[k];
    }
    return n;
}

int hth_accept_limit(hth_accept_kind kind)
{
    static const int none[HTH_ACCEPT_KINDS];
    return accept_all(kind == HTH_ACCEPT_ADMIN) - accept_reserved(kind, none);
}

bool hth_accept_take(hth_accept_kind kind)
{
    pthread_mutex_lock(&accept_lock);
    bool room =
        accept_sum() < accept_all(kind == HTH_ACCEPT_ADMIN) - accept_reserved(kind, accept_n);
    accept_n[kind] += room;
    pthread_mutex_unlock(&accept_lock);
    return room;
}

void hth_accept_give(hth_accept_kind kind)
{
    pthread_mutex_lock(&accept_lock);
    accept_n[kind]--;
    assert(accept_n[kind] >= 0);
    pthread_mutex_unlock(&accept_lock);
}

int hth_accept_count(void)
{
    pthread_mutex_lock(&accept_lock);
    int n = accept_sum();
    pthread_mutex_unlock(&accept_lock);
    return n;
}

// ---- lines of the log

bool hth_seldom_now(hth_seldom *seldom, uint64_t *unsaid)
{
    uint64_t now = hth_now_ns(), next = atomic_load(&seldom->next_ns);
    *unsaid = 0;
    if (now >= next && atomic_compare_exchange_strong(&seldom->next_ns, &next, now + SELDOM_NS)) {
        *unsaid = atomic_exchange(&seldom->unsaid, 0);
        return true;
    }
    atomic_fetch_add(&seldom->unsaid, 1);
    return false;
}

// ---- listeners without descriptors

struct hth_accept_guard {
    struct evconnlistener *listener;
    struct event *rested;
    char *name;
    int spare; // closed to refuse who waits; -1: it could not be had again
    bool let_wait;
    hth_seldom seldom;
    hth_accept_guard *next;
};

static pthread_mutex_t guards_lock = PTHREAD_MUTEX_INITIALIZER;
static hth_accept_guard *guards;

static int guard_spare(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

// guard_refuse closes the connections that wait, as far as one descriptor allows that.
static uint64_t guard_refuse(hth_accept_guard *guard)
{
    uint64_t n = 0;
    if (guard->spare < 0 || guard->let_wait) {
        return 0;
    }
    close(guard->spare);
    for (int fd = 0; n < ACCEPT_REFUSED && fd >= 0; n += fd >= 0) {
        fd = accept4(evconnlistener_get_fd(guard->listener), NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
            close(fd);
        }
    }
    guard->spare = guard_spare();
    return n;
}

static void guard_failed(struct evconnlistener *l, void *arg)
{
    static const struct timeval rest = {.tv_usec = ACCEPT_REST_US};
    int e = EVUTIL_SOCKET_ERROR();
    uint64_t unsaid;
    pthread_mutex_lock(&guards_lock);
    hth_accept_guard *g = guards;
    while (g != NULL && g->listener != l) {
        g = g->next;
    }
    pthread_mutex_unlock(&guards_lock);
    if (g == NULL) {
        return;
    }
    uint64_t refused = e == EMFILE || e == ENFILE ? guard_refuse(g) : 0;
    if (event_add(g->rested, &rest) == 0) {
        evconnlistener_disable(l);
    }
    if (hth_seldom_now(&g->seldom, &unsaid)) {
        hth_log(WARN, SERVER, "accept",
                "url=%s connections=%d refused=%" PRIu64 " not_logged=%" PRIu64
                " cannot accept: %s",
                g->name, hth_accept_count(), refused, unsaid, strerror(e));
    }
}

static void guard_rested(evutil_socket_t fd, short what, void *arg)
{
    hth_accept_guard *g = arg;
    if (g->spare < 0) {
        g->spare = guard_spare();
    }
    evconnlistener_enable(g->listener);
}

hth_err hth_accept_guard_open(struct event_base *base, struct evconnlistener *listener,
                              const char *name, hth_accept_guard **out)
{
    hth_accept_guard *g = hth_calloc(1, sizeof *g);
    *out = NULL;
    if (g == NULL) {
        return hth_no_memory("a listener");
    }
    g->listener = listener;
    g->spare = -1;
    g->name = hth_strdup(name);
    g->rested = evtimer_new(base, guard_rested, g);
    if (g->name == NULL || g->rested == NULL) {
        hth_accept_guard_close(g);
        return hth_no_memory("a listener");
    }
    g->spare = guard_spare();
    pthread_mutex_lock(&guards_lock);
    g->next = guards;
    guards = g;
    pthread_mutex_unlock(&guards_lock);
    evconnlistener_set_error_cb(listener, guard_failed);
    *out = g;
    return HTH_OK;
}

void hth_accept_guard_let_wait(hth_accept_guard *guard)
{
    guard->let_wait = true;
}

void hth_accept_guard_close(hth_accept_guard *guard)
{
    if (guard == NULL) {
        return;
    }
    pthread_mutex_lock(&guards_lock);
    for (hth_accept_guard **at = &guards; *at != NULL; at = &(*at)->next) {
        if (*at == guard) {
            *at = guard->next;
            break;
        }
    }
    pthread_mutex_unlock(&guards_lock);
    if (guard->rested != NULL) {
        event_free(guard->rested);
    }
    if (guard->spare >= 0) {
        close(guard->spare);
    }
    hth_free(guard->name);
    hth_free(guard);
}
