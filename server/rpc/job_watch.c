// SPDX-License-Identifier: Apache-2.0
// Numbers begin at the time at which the table was made, times 2^20: a server that lives on has
// made fewer than a million events a second, so the next one begins after them.
#include "server/rpc/job_watch.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/settings.h"
#include "base/thread.h"
#include "runtime/checkpoint_index.h"

#include <jansson.h>

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WATCH_JOBS    256         // whose events are kept
#define WATCH_TEXT    4096        // bytes of an event, at most
#define WATCH_LOOK_NS 1000000000u // from one look at the clock to the next, at most
#define WATCH_NUMBERS 20
#define WATCH_EVENT   96 // bytes of an event in an answer, without its text

typedef struct watch_event {
    uint64_t n, done, total;
    char *what;
} watch_event;

typedef struct watch_job {
    struct watch_job *next; // in the table, the one used last first
    char name[HTH_CHECKPOINT_JOB], tenant[HTH_TENANT];
    uint64_t id;                // 0: not known yet
    int n_beginning, n_waiting; // while there are any, it stays
    uint64_t dropped;           // the last event that is not here any more
    int first, n;               // of `events`, a ring
    watch_event events[HTH_JOB_EVENTS];
} watch_job;

struct hth_job_watches {
    pthread_t thread;
    pthread_mutex_t lock; // guards what follows
    pthread_cond_t wake;
    bool stopping, closing, look;
    uint64_t last; // number
    watch_job *jobs;
    int n_jobs, n_waiting;
    hth_job_waiter *waiters;
    hth_tenant_parts parts; // of them
};

// ---- events; under the lock

static watch_event *job_event(watch_job *job, int i)
{
    return &job->events[(job->first + i) % HTH_JOB_EVENTS];
}

static void job_drop_oldest(watch_job *job)
{
    job->dropped = job_event(job, 0)->n;
    hth_free(job_event(job, 0)->what);
    job->first = (job->first + 1) % HTH_JOB_EVENTS;
    job->n--;
}

static uint64_t job_last(watch_job *job)
{
    return job->n > 0 ? job_event(job, job->n - 1)->n : job->dropped;
}

// What is not JSON would spoil the whole answer: an engine's process may have gone mad.
static char *event_text(const char *what)
{
    json_t *doc = strlen(what) < WATCH_TEXT ? json_loads(what, 0, NULL) : NULL;
    json_decref(doc);
    return doc != NULL ? hth_strdup(what) : NULL;
}

// job_events writes the events after number `after` as the elements of an array. NULL: no memory.
static char *job_events(watch_job *job, uint64_t after)
{
    size_t cap = 1, at = 0;
    for (int i = 0; i < job->n; i++) {
        cap += strlen(job_event(job, i)->what) + WATCH_EVENT;
    }
    char *out = hth_alloc(cap);
    if (out == NULL) {
        return NULL;
    }
    out[0] = 0;
    for (int i = 0; i < job->n; i++) {
        const watch_event *e = job_event(job, i);
        if (e->n > after) {
            at += (size_t)snprintf(out + at, cap - at,
                                   "%s{\"n\":%" PRIu64 ",\"done\":%" PRIu64 ",\"total\":%" PRIu64
                                   ",\"what\":%s}",
                                   at > 0 ? "," : "", e->n, e->done, e->total, e->what);
        }
    }
    return out;
}

char *hth_job_watches_text(const char *job, const char *events, uint64_t last, bool missed)
{
    static const char *const word[] = {"false", "true"};
    events = events != NULL ? events : "";
    if (job == NULL) {
        return hth_asprintf("{\"events\":[%s],\"next\":%" PRIu64 ",\"missed\":%s}", events, last,
                            word[missed]);
    }
    return hth_asprintf("{\"job\":%s,\"events\":[%s],\"next\":%" PRIu64 ",\"missed\":%s}", job,
                        events, last, word[missed]);
}

// ---- jobs; under the lock

static watch_job *jobs_find(hth_job_watches *watches, const char *name, uint64_t id)
{
    watch_job *j = watches->jobs;
    while (j != NULL && (name != NULL ? strcmp(j->name, name) != 0 : j->id != id)) {
        j = j->next;
    }
    return j;
}

static void jobs_remove(hth_job_watches *watches, watch_job *job)
{
    watch_job **at = &watches->jobs;
    while (*at != job) {
        at = &(*at)->next;
    }
    *at = job->next;
    watches->n_jobs--;
    while (job->n > 0) {
        job_drop_oldest(job);
    }
    hth_free(job);
}

// jobs_use has a job be the last one that is forgotten.
static void jobs_use(hth_job_watches *watches, watch_job *job)
{
    watch_job **at = &watches->jobs;
    while (*at != job) {
        at = &(*at)->next;
    }
    *at = job->next;
    job->next = watches->jobs;
    watches->jobs = job;
}

// jobs_room forgets the job that nobody has asked about for longest; false: all are asked about.
static bool jobs_room(hth_job_watches *watches)
{
    watch_job *idle = NULL;
    for (watch_job *j = watches->jobs; j != NULL; j = j->next) {
        idle = j->n_beginning == 0 && j->n_waiting == 0 ? j : idle;
    }
    if (watches->n_jobs >= WATCH_JOBS && idle != NULL) {
        jobs_remove(watches, idle);
    }
    return watches->n_jobs < WATCH_JOBS;
}

static watch_job *jobs_add(hth_job_watches *watches, const char *name)
{
    watch_job *j = jobs_room(watches) ? hth_calloc(1, sizeof *j) : NULL;
    if (j != NULL) {
        snprintf(j->name, sizeof j->name, "%s", name);
        j->dropped = watches->last;
        j->next = watches->jobs;
        watches->jobs = j;
        watches->n_jobs++;
    }
    return j;
}

void hth_job_watches_event(void *watches, const char *job, const char *what, uint64_t done,
                           uint64_t total)
{
    hth_job_watches *t = watches;
    pthread_mutex_lock(&t->lock);
    watch_job *j = jobs_find(t, job, 0);
    char *text = j != NULL ? event_text(what) : NULL;
    if (j != NULL && text == NULL) {
        while (j->n > 0) { // numbers have no gaps but the one before the oldest
            job_drop_oldest(j);
        }
        j->dropped = ++t->last;
    } else if (j != NULL) {
        if (j->n == HTH_JOB_EVENTS) {
            job_drop_oldest(j);
        }
        *job_event(j, j->n++) = (watch_event){++t->last, done, total, text};
    }
    if (j != NULL && j->n_waiting > 0) {
        pthread_cond_signal(&t->wake);
    }
    pthread_mutex_unlock(&t->lock);
}

void hth_job_watches_begin(hth_job_watches *watches, const char *name, uint64_t *last)
{
    pthread_mutex_lock(&watches->lock);
    watch_job *j = jobs_find(watches, name, 0);
    j = j != NULL ? j : jobs_add(watches, name);
    if (j != NULL) {
        jobs_use(watches, j);
        j->n_beginning++;
    }
    *last = watches->last;
    pthread_mutex_unlock(&watches->lock);
}

void hth_job_watches_end(hth_job_watches *watches, const char *name, uint64_t id,
                         const char *tenant)
{
    pthread_mutex_lock(&watches->lock);
    watch_job *j = jobs_find(watches, name, 0);
    if (j != NULL && j->n_beginning > 0) { // else there was no room for it
        j->n_beginning--;
        if (id > j->id) {                    // or one of before, which made the same model
            while (j->id != 0 && j->n > 0) { // whose events are perhaps another tenant's
                job_drop_oldest(j);
            }
            j->id = id;
            snprintf(j->tenant, sizeof j->tenant, "%s", tenant);
            pthread_cond_signal(&watches->wake); // who waits for that one
        }
        if (j->id == 0 && j->n_beginning == 0) {
            jobs_remove(watches, j);
        }
    }
    pthread_mutex_unlock(&watches->lock);
}

// ---- waiting; under the lock

static bool waiter_canceled(const hth_job_watches *watches, const hth_job_waiter *waiter)
{
    return watches->stopping || atomic_load(waiter->canceled) != 0;
}

static bool waiter_due(const hth_job_watches *watches, const hth_job_waiter *waiter,
                       uint64_t now_ns)
{
    watch_job *j = waiter->job;
    return waiter_canceled(watches, waiter) || j->id != waiter->id || job_last(j) > waiter->after ||
           waiter->after > watches->last || now_ns >= waiter->end_ns;
}

// waiter_text is what a waiter is answered with.
static hth_err waiter_text(const hth_job_watches *watches, const hth_job_waiter *waiter,
                           char **json)
{
    watch_job *j = waiter->job;
    *json = NULL;
    if (waiter_canceled(watches, waiter)) {
        return hth_fail(HTH_ECANCELED, watches->stopping
                                           ? "the server is stopping: it takes no new requests"
                                           : "the watch was canceled by its client");
    }
    bool missed =
        j->id != waiter->id || waiter->after < j->dropped || waiter->after > watches->last;
    uint64_t after = waiter->after > watches->last ? j->dropped : waiter->after;
    char *events = j->id == waiter->id ? job_events(j, after) : hth_strdup("");
    uint64_t last = job_last(j) > after ? job_last(j) : after;
    if (events != NULL) {
        *json = hth_job_watches_text(NULL, events, last, missed);
    }
    hth_free(events);
    return *json != NULL ? HTH_OK : hth_no_memory("events of a job");
}

// waiter_count counts a waiter among those of who asks.
static hth_err waiter_count(hth_job_watches *watches, hth_job_waiter *waiter)
{
    const hth_tenant_limited limited = {"watches of training jobs", "limits.watches",
                                        hth_setting_int(HTH_SET_LIMIT_WATCHES)};
    return hth_tenant_part_take(&watches->parts, waiter->asks, &limited, &waiter->part);
}

hth_err hth_job_watches_wait(hth_job_watches *watches, hth_job_waiter *waiter, char **json)
{
    hth_job_watches *t = watches;
    hth_err err = HTH_OK;
    *json = NULL;
    pthread_mutex_lock(&t->lock);
    watch_job *j = jobs_find(t, NULL, waiter->id);
    bool mine = j != NULL && waiter->id > 0 &&
                (waiter->tenant == NULL || strcmp(waiter->tenant, j->tenant) == 0);
    waiter->job = j;
    if (!mine) {
        err = hth_fail(HTH_ENOENT, "job %" PRIu64 " is not watched", waiter->id);
    } else if (waiter_due(t, waiter, hth_now_ns())) {
        err = waiter_text(t, waiter, json);
        jobs_use(t, j);
    } else if ((err = waiter_count(t, waiter)) == HTH_OK) {
        jobs_use(t, j);
        j->n_waiting++;
        t->n_waiting++;
        waiter->next = t->waiters;
        t->waiters = waiter;
        pthread_cond_signal(&t->wake); // it may be the first one whose time is over
    }
    pthread_mutex_unlock(&t->lock);
    return err;
}

// watches_due takes a waiter out that is to be answered; NULL: there is none. *next_ns becomes when
// the next one's time is over.
static hth_job_waiter *watches_due(hth_job_watches *watches, uint64_t *next_ns)
{
    uint64_t now_ns = hth_now_ns();
    *next_ns = UINT64_MAX;
    for (hth_job_waiter **at = &watches->waiters; *at != NULL; at = &(*at)->next) {
        hth_job_waiter *w = *at;
        if (waiter_due(watches, w, now_ns)) {
            *at = w->next;
            ((watch_job *)w->job)->n_waiting--;
            watches->n_waiting--;
            hth_tenant_part_give(w->part);
            return w;
        }
        *next_ns = w->end_ns < *next_ns ? w->end_ns : *next_ns;
    }
    return NULL;
}

// watches_sleep waits for something to happen; times are hth_now_ns's, not the system's.
static void watches_sleep(hth_job_watches *watches, uint64_t next_ns)
{
    struct timespec at;
    if (next_ns == UINT64_MAX) {
        pthread_cond_wait(&watches->wake, &watches->lock);
        return;
    }
    uint64_t now = hth_now_ns(), ns = next_ns > now ? next_ns - now : 0;
    clock_gettime(CLOCK_MONOTONIC, &at);
    ns = (ns < WATCH_LOOK_NS ? ns : WATCH_LOOK_NS) + (uint64_t)at.tv_nsec;
    at.tv_sec += (time_t)(ns / 1000000000u);
    at.tv_nsec = (long)(ns % 1000000000u);
    (void)pthread_cond_timedwait(&watches->wake, &watches->lock, &at);
}

static void watches_main(void *arg)
{
    hth_job_watches *t = arg;
    uint64_t next_ns;
    pthread_mutex_lock(&t->lock);
    while (!t->closing) {
        t->look = false;
        hth_job_waiter *w = watches_due(t, &next_ns);
        if (w != NULL) {
            char *json;
            hth_err err = waiter_text(t, w, &json);
            pthread_mutex_unlock(&t->lock);
            w->answer(w, err, json);
            pthread_mutex_lock(&t->lock);
        } else if (!t->look) {
            watches_sleep(t, next_ns);
        }
    }
    pthread_mutex_unlock(&t->lock);
}

void hth_job_watches_look(hth_job_watches *watches)
{
    pthread_mutex_lock(&watches->lock);
    watches->look = true;
    if (watches->n_waiting > 0) {
        pthread_cond_signal(&watches->wake);
    }
    pthread_mutex_unlock(&watches->lock);
}

int hth_job_watches_waiting(hth_job_watches *watches)
{
    pthread_mutex_lock(&watches->lock);
    int n = watches->n_waiting;
    pthread_mutex_unlock(&watches->lock);
    return n;
}

// ---- lifetime

hth_err hth_job_watches_open(hth_job_watches **out)
{
    struct timespec now;
    pthread_condattr_t monotonic;
    *out = NULL;
    hth_job_watches *t = hth_calloc(1, sizeof *t);
    if (t == NULL) {
        return hth_no_memory("events of jobs");
    }
    clock_gettime(CLOCK_REALTIME, &now);
    t->last = (uint64_t)now.tv_sec << WATCH_NUMBERS;
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&t->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    hth_err err = hth_thread_start("hth-watch", watches_main, t, &t->thread);
    if (err != HTH_OK) {
        pthread_cond_destroy(&t->wake);
        pthread_mutex_destroy(&t->lock);
        hth_free(t);
        return err;
    }
    *out = t;
    return HTH_OK;
}

void hth_job_watches_stop(hth_job_watches *watches)
{
    pthread_mutex_lock(&watches->lock);
    watches->stopping = true;
    pthread_cond_signal(&watches->wake);
    pthread_mutex_unlock(&watches->lock);
}

void hth_job_watches_close(hth_job_watches *watches)
{
    if (watches == NULL) {
        return;
    }
    pthread_mutex_lock(&watches->lock);
    assert(watches->n_waiting == 0);
    watches->closing = true;
    pthread_cond_signal(&watches->wake);
    pthread_mutex_unlock(&watches->lock);
    hth_thread_join(watches->thread);
    while (watches->jobs != NULL) {
        jobs_remove(watches, watches->jobs);
    }
    pthread_cond_destroy(&watches->wake);
    pthread_mutex_destroy(&watches->lock);
    hth_free(watches);
}
