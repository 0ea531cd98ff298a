// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include "base/alloc.h"
#include "base/sanitized.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

typedef struct thread_start {
    void (*fn)(void *ctx);
    void *ctx;
    char name[16];
} thread_start;

static void *thread_main(void *arg)
{
    thread_start start = *(thread_start *)arg;
    hth_free(arg);
    pthread_setname_np(pthread_self(), start.name);
    start.fn(start.ctx);
    return NULL;
}

hth_err hth_thread_start(const char *name, void (*fn)(void *ctx), void *ctx, pthread_t *out)
{
    thread_start *start = hth_alloc(sizeof *start);
    if (start == NULL) {
        return hth_no_memory("starting thread '%s'", name);
    }
    start->fn = fn;
    start->ctx = ctx;
    snprintf(start->name, sizeof start->name, "%s", name);
    // What a thread does to itself: blocked, it would end the process whatever handler there is.
    static const int own[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL};
    sigset_t all, old; // the new thread inherits the mask of the moment
    sigfillset(&all);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        sigdelset(&all, own[i]);
    }
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(out, NULL, thread_main, start);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) {
        hth_free(start);
        return hth_fail_errno(rc == EAGAIN ? ENOMEM : rc, "cannot start thread '%s'", name);
    }
    return HTH_OK;
}

void hth_thread_stacks(size_t bytes)
{
#if HTH_SANITIZED_THREAD
    bytes += (size_t)8 << 20; // its own part of a thread's stack
#endif
    pthread_attr_t a;
    if (pthread_attr_init(&a) == 0) {
        if (pthread_attr_setstacksize(&a, bytes) == 0) {
            pthread_setattr_default_np(&a); // else the default stays
        }
        pthread_attr_destroy(&a);
    }
}

void hth_thread_join(pthread_t t)
{
    pthread_join(t, NULL);
}

static void (*low_fn)(void);

void hth_thread_low_inject(void (*fn)(void))
{
    low_fn = fn;
}

// Priorities are a thread's, and 0 is the calling one: a confined process may name no other.
//
// A thread that wakes takes the processor from one of SCHED_IDLE at once; from a nice one, only
// when the scheduler's accounts say so, which can be milliseconds later.
void hth_thread_low(void)
{
    if (low_fn != NULL) {
        low_fn();
        return;
    }
    (void)setpriority(PRIO_PROCESS, 0, 19); // where there is no SCHED_IDLE
    (void)sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0});
}

void hth_thread_nice(int n)
{
    int now = getpriority(PRIO_PROCESS, 0); // -1 if it fails, too: no harm
    (void)setpriority(PRIO_PROCESS, 0, now + n);
}

static uint64_t (*delay_fn)(void *ctx);
static void *delay_ctx;

void hth_thread_delay_inject(uint64_t (*fn)(void *ctx), void *ctx)
{
    delay_fn = fn;
    delay_ctx = ctx;
}

uint64_t hth_thread_delay_ns(void)
{
    uint64_t sum = 0;
    if (delay_fn != NULL) {
        return delay_fn(delay_ctx);
    }
    const struct dirent *e;
    DIR *d = opendir("/proc/self/task");
    while (d != NULL && (e = readdir(d)) != NULL) {
        char path[300];
        uint64_t ran, waited;
        snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", e->d_name);
        FILE *f = e->d_name[0] != '.' ? fopen(path, "re") : NULL;
        if (f != NULL) {
            sum += fscanf(f, "%" SCNu64 " %" SCNu64, &ran, &waited) == 2 ? waited : 0;
            fclose(f);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return sum;
}

uint64_t hth_thread_delay_since(uint64_t before)
{
    uint64_t now = hth_thread_delay_ns();
    return now > before ? now - before : 0;
}
