// SPDX-License-Identifier: Apache-2.0
// Between two passes the thread sleeps until something is due, at most an hour: imports bring what
// nobody has told it of, and settings change. It is nice, and not of the lowest class: what it has
// found it writes to the index, and whoever wants to write there at that moment waits for it.
#include "server/scrub.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/thread.h"
#include "modelstore/scrub.h"
#include "runtime/content/dataset_own.h"
#include "runtime/job_index.h"

#include <linux/ioprio.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SCRUB_LEAST_NS ((uint64_t)10 * 1000000000u)
#define SCRUB_MOST_NS  ((uint64_t)3600 * 1000000000u)

struct hth_scrub {
    hth_store *store;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop; // guarded by lock
};

// scrub_wait waits, unless it is to end.
static hth_err scrub_wait(void *ctx, uint64_t ns)
{
    hth_scrub *c = ctx;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec += (long)(ns % 1000000000u);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&c->lock);
    while (!c->stop && pthread_cond_timedwait(&c->wake, &c->lock, &until) == 0) {
    }
    bool stop = c->stop;
    pthread_mutex_unlock(&c->lock);
    return stop ? hth_fail(HTH_ECANCELED, "hearthd ends") : HTH_OK;
}

// scrub_rest is how long there is nothing to do.
static uint64_t scrub_rest(const hth_scrub_result *result)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    uint64_t ns = result->next_ns > now_ns ? result->next_ns - now_ns : 0;
    ns = ns < SCRUB_MOST_NS ? ns : SCRUB_MOST_NS;
    return ns < SCRUB_LEAST_NS ? SCRUB_LEAST_NS : ns;
}

// scrub_datasets removes those that came with jobs which nobody submitted.
static void scrub_datasets(hth_store *store)
{
    uint64_t age = (uint64_t)hth_setting_int(HTH_SET_STORE_UPLOAD_SECONDS) * 1000000000u;
    if (hth_dataset_own_expire(store, hth_job_index_now(), age) != HTH_OK) {
        hth_log(WARN, STORE, "scrub", "%s", hth_err_detail());
    }
}

static void scrub_main(void *ctx)
{
    hth_scrub *c = ctx;
    hth_scrub_result r = {.next_ns = 0};
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), 19);
    // where the system does not do that, the rate alone is what keeps it from others' way
    (void)syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0));
    do {
        scrub_datasets(c->store);
        hth_err err = hth_scrub_pass(c->store, scrub_wait, c, &r);
        if (err != HTH_OK && err != HTH_ECANCELED) {
            hth_log(WARN, STORE, "scrub", "%s", hth_err_detail());
            r.next_ns = UINT64_MAX;
        }
    } while (scrub_wait(c, scrub_rest(&r)) == HTH_OK);
}

hth_err hth_scrub_open(hth_store *store, hth_scrub **out)
{
    pthread_condattr_t monotonic;
    hth_scrub *c = hth_calloc(1, sizeof *c);
    *out = NULL;
    if (c == NULL) {
        return hth_no_memory("the store's reader");
    }
    c->store = store;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    hth_err err = hth_thread_start("hth-scrub", scrub_main, c, &c->thread);
    if (err != HTH_OK) {
        pthread_cond_destroy(&c->wake);
        pthread_mutex_destroy(&c->lock);
        hth_free(c);
        return err;
    }
    *out = c;
    return HTH_OK;
}

void hth_scrub_close(hth_scrub *scrub)
{
    if (scrub == NULL) {
        return;
    }
    pthread_mutex_lock(&scrub->lock);
    scrub->stop = true;
    pthread_cond_signal(&scrub->wake);
    pthread_mutex_unlock(&scrub->lock);
    hth_thread_join(scrub->thread);
    pthread_cond_destroy(&scrub->wake);
    pthread_mutex_destroy(&scrub->lock);
    hth_free(scrub);
}
