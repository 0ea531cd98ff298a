// SPDX-License-Identifier: Apache-2.0
// Hours of random jobs on a simulated clock, through what an engine decides with: who begins, who
// gives memory back for whom, who has more, and whose step is next. Jobs are numbers here: what
// they hold, what a step takes, how many there are. Nobody starves, and tenants have the device's
// time by their weights.
#include "base/clock.h"
#include "engine/train/queue/train_entry_impl.h"
#include "fair/fixture.h"
#include "runtime/job_memory.h"

#include <math.h>

#define S        UINT64_C(1000000000)
#define CAPACITY UINT64_C(1000000)
#define TENANTS  5
#define JOBS     60
#define HOURS    300
#define STEP_NS  (8 * S) // of the longest step
#define OPEN_NS  (1 * S) // the longest that making a job ready takes
#define WRITE_NS (2 * S) // .. and writing its state
#define PLAN_NS  (S / 2) // .. and a search for another plan

typedef struct sim sim;

// A job, for as long as it lives; what is at work is part of it.
typedef struct sim_job sim_job;
struct sim_job {
    hth_job work; // first
    hth_train_entry entry;
    sim *s;
    uint64_t arrives_ns, step_ns; // with the most memory
    uint64_t least_bytes, most_bytes;
    int left;                // steps
    bool bends;              // it can be planned again while it runs
    uint64_t bytes, plan_ns; // that it holds; when the search ends, 0: there is none
    uint64_t wants_bytes, written_ns;
    hth_job_memory share;
    uint64_t tenant_ns; // what its tenant had at its last step, or when it began
    sim_job *next;
};

typedef struct sim_tenant {
    hth_tenant tenant;
    uint64_t hungry_ns; // since when it waits and has nothing at work; 0: it does not
    // while it has steps to make without a break: since when, and what it had then
    bool works;
    uint64_t works_ns, had_ns;
} sim_tenant;

struct sim {
    hth_device device;
    hth_site site;
    hth_models models;
    hth_train_queue queue;
    sim_tenant tenant[TENANTS];
    sim_job job[JOBS];
    int n, n_tenants, arrived, ended;
    uint64_t seed, now_ns, stepped_ns; // stepped: that steps took
};

static struct {
    uint64_t begun, paused, shrunk, grown, steps, hungriest_ns, longest_ns;
} seen;

static uint64_t sim_clock(void *ctx)
{
    return ((const sim *)ctx)->now_ns;
}

static sim_job *job_of(hth_train_entry *entry)
{
    return (sim_job *)((char *)entry - offsetof(sim_job, entry));
}

static sim_job *job_at(const hth_job *work)
{
    return (sim_job *)work;
}

// What a step takes with so much memory: up to twice as long with the least.
static uint64_t step_ns(const sim_job *job, uint64_t bytes)
{
    double part = (double)(job->most_bytes - bytes) / (double)job->most_bytes;
    return (uint64_t)((double)job->step_ns * (1 + fmax(0, part)));
}

static void job_hold(sim_job *job, uint64_t bytes)
{
    uint64_t sum = 0;
    job->bytes = bytes;
    hth_job_memory_set(&job->s->site, &job->share, &(hth_curve_point){.device_bytes = bytes});
    for (int i = 0; i < job->s->arrived; i++) {
        sum += job->s->job[i].bytes;
    }
    assert_true(sum <= CAPACITY);
}

// ---- what stands for a job's steps, its checkpoint and its records

uint64_t hth_job_device_bytes(const hth_job *work)
{
    const sim_job *job = job_at(work);
    return job->bytes;
}

const json_t *hth_job_planned(const hth_job *work)
{
    return NULL;
}

double hth_job_seconds_left(const hth_job *work)
{
    const sim_job *job = job_at(work);
    return (double)step_ns(job, job->bytes) / 1e9 * job->left;
}

uint64_t hth_job_left_ns(const hth_job *work)
{
    const sim_job *job = job_at(work);
    return step_ns(job, job->bytes) * (uint64_t)job->left;
}

int64_t hth_job_saved(const hth_job *work)
{
    return 1;
}

hth_err hth_job_leave(hth_job *work)
{
    sim_job *job = job_at(work);
    job->written_ns = job->s->now_ns + fair_below(&job->s->seed, WRITE_NS);
    return HTH_OK;
}

bool hth_job_left(hth_job *work, hth_err *err)
{
    sim_job *job = job_at(work);
    *err = HTH_OK;
    return job->s->now_ns >= job->written_ns;
}

void hth_job_free(hth_job *work)
{
    sim_job *job = job_at(work);
    job->plan_ns = 0;
    job_hold(job, 0);
}

static hth_err job_resize(sim_job *job, uint64_t bytes)
{
    if (job->plan_ns > 0 || !job->bends) {
        return job->bends ? HTH_EBUSY : HTH_ENOTSUP;
    }
    job->wants_bytes = bytes;
    job->plan_ns = job->s->now_ns + PLAN_NS;
    return HTH_OK;
}

hth_err hth_job_more(hth_job *work)
{
    sim_job *job = job_at(work);
    uint64_t bytes = hth_job_memory_rest(&job->s->site, &job->share);
    bytes = bytes < job->most_bytes ? bytes : job->most_bytes;
    return bytes > job->bytes ? job_resize(job, bytes) : HTH_ENOTSUP;
}

hth_err hth_job_less(hth_job *work, uint64_t bytes)
{
    sim_job *job = job_at(work);
    assert_true(bytes < job->bytes);
    return job_resize(job, bytes);
}

bool hth_job_resized(hth_job *work, hth_err *err)
{
    sim_job *job = job_at(work);
    bool fits = job->wants_bytes >= job->least_bytes &&
                job->wants_bytes <= hth_job_memory_rest(&job->s->site, &job->share);
    *err = job->plan_ns > 0 && fits ? HTH_OK : HTH_ENOTSUP;
    if (job->s->now_ns < job->plan_ns) {
        return false;
    }
    job->plan_ns = 0;
    if (*err == HTH_OK) {
        seen.shrunk += job->wants_bytes < job->bytes;
        seen.grown += job->wants_bytes > job->bytes;
        job_hold(job, job->wants_bytes);
    }
    return true;
}

void hth_job_keep_size(hth_job *work)
{
    sim_job *job = job_at(work);
    job->plan_ns = 0;
}

// A job goes on from its checkpoint with what it had when it began.
hth_err hth_train_entry_resume(hth_train_queue *queue, hth_train_entry *entry, json_t *given)
{
    sim_job *j = job_of(entry);
    uint64_t bytes = (uint64_t)entry->offer.demand[entry->fair.with].of[HTH_TRAIN_DEVICE_MEMORY];
    json_t *had = json_pack("{s:{s:I, s:i, s:I, s:f}}", HTH_TRAIN_HAD, "need_bytes",
                            (json_int_t)bytes, "host_bytes", 0, "budget_bytes", (json_int_t)bytes,
                            "step_us", (double)step_ns(j, bytes) / 1e3);
    entry->left_steps = j->left;
    hth_train_fair_forget(queue, entry);
    hth_train_fair_exact(entry, had);
    json_decref(had);
    seen.paused++;
    return HTH_OK;
}

void hth_train_entry_state(const hth_train_queue *queue, hth_train_entry *entry, const char *word,
                           const char *why)
{
}

void hth_train_entry_log(hth_train_entry *entry, const char *level, const char *text)
{
}

void hth_train_queue_event(const hth_train_queue *queue, const char *job, const char *word)
{
}

hth_train_entry *hth_train_queue_ahead(const hth_train_queue *queue)
{
    hth_train_entry *e = queue->first;
    while (e != NULL && !hth_train_entry_waits(e)) {
        e = e->next;
    }
    return e;
}

// ---- jobs come and go

// A job of a tenth of the device to all of it, of half a minute to ten; half of them can do with
// less memory.
static void sim_make(sim *s, sim_job *job, uint64_t at_ns)
{
    double most = fair_below(&s->seed, 4) == 0 ? fair_between(&s->seed, 0.6, 1)
                                               : fair_between(&s->seed, 0.1, 0.5);
    *job = (sim_job){.s = s,
                     .arrives_ns = at_ns,
                     .most_bytes = (uint64_t)(most * CAPACITY),
                     .step_ns = (uint64_t)(1e9 * exp(fair_between(&s->seed, 0, 2.07))),
                     .bends = fair_below(&s->seed, 2) == 0};
    hth_train_entry *e = &job->entry;
    hth_train_offer *o = &e->offer;
    o->n = 1 + (int)fair_below(&s->seed, 4);
    job->least_bytes = (uint64_t)((double)job->most_bytes * (1 - 0.2 * (o->n - 1)));
    job->left = 1 + (int)(30e9 * exp(fair_between(&s->seed, 0, 3)) / (double)job->step_ns);
    for (int k = 0; k < o->n; k++) {
        uint64_t bytes = (uint64_t)((double)job->most_bytes * (1 - 0.2 * k));
        o->demand[k].of[HTH_TRAIN_DEVICE_MEMORY] = (double)bytes;
        o->budget_bytes[k] = bytes;
        o->run_ns[k] = step_ns(job, bytes) * (uint64_t)job->left;
    }
    e->tenant = &s->tenant[fair_below(&s->seed, (uint64_t)s->n_tenants)].tenant;
    e->priority = (int)fair_below(&s->seed, 3);
    e->queue = &s->queue;
}

static sim *sim_open(uint64_t seed)
{
    sim *s = hth_calloc(1, sizeof *s);
    s->seed = seed * 2654435761u + 88172645463325252u;
    s->device.props.budget_bytes = CAPACITY;
    s->site.device = &s->device;
    s->models.site = &s->site;
    s->queue.ms = &s->models;
    s->now_ns = S;
    s->n_tenants = 2 + (int)fair_below(&s->seed, TENANTS - 1);
    for (int t = 0; t < s->n_tenants; t++) {
        hth_tenant *x = &s->tenant[t].tenant;
        snprintf(x->name, sizeof x->name, "t%d", t);
        x->limits.weight = x->turns.item.weight = 1 + (double)fair_below(&s->seed, 4);
    }
    uint64_t at_ns = 2 * S, gap_ns = (20 + fair_below(&s->seed, 200)) * S;
    while (at_ns < 3600 * S && s->n < JOBS) {
        sim_make(s, &s->job[s->n++], at_ns);
        at_ns += fair_below(&s->seed, 2 * gap_ns);
    }
    hth_clock_inject(sim_clock, s);
    return s;
}

static void sim_close(sim *s)
{
    assert_null(s->queue.first);
    assert_null(s->site.shares);
    hth_train_fair_fini(&s->queue.fair);
    hth_clock_inject(NULL, NULL);
    hth_free(s);
}

static void sim_arrive(sim *s, sim_job *job)
{
    hth_train_entry **last = &s->queue.first;
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = &job->entry;
    job->entry.since_ns = s->now_ns;
    s->arrived++;
}

static void sim_begin(sim *s, sim_job *job)
{
    uint64_t budget_bytes, bytes = hth_train_fair_granted(&job->entry, &budget_bytes);
    assert_true(bytes >= job->least_bytes && bytes == budget_bytes);
    job->entry.work = &job->work;
    job->entry.opened_ns = fair_below(&s->seed, OPEN_NS);
    job->tenant_ns = job->entry.tenant->turns.ran_ns;
    job_hold(job, bytes);
    s->now_ns += job->entry.opened_ns;
    hth_train_fair_began(&s->queue, &job->entry);
    job->entry.favoured[0] = 0;
    seen.begun++;
}

static void sim_end(sim *s, sim_job *job)
{
    hth_train_entry **at = &s->queue.first;
    while (*at != &job->entry) {
        at = &(*at)->next;
    }
    *at = job->entry.next;
    hth_job_free(&job->work);
    job->entry.work = NULL;
    s->queue.freed++;
    hth_train_turn_leave(&s->queue, &job->entry);
    hth_train_fair_leave(&s->queue, &job->entry);
    s->ended++;
}

// Of its tenant's time a job at work has a share, whatever other jobs come: the first of them has
// HTH_TURNS_FIRST times what it has, each other one as much.
static void sim_turn(sim *s, sim_job *job)
{
    hth_tenant *t = job->entry.tenant;
    uint64_t without_ns = t->turns.ran_ns - job->tenant_ns;
    seen.longest_ns = without_ns > seen.longest_ns ? without_ns : seen.longest_ns;
    assert_true(without_ns <= (HTH_TURNS_FIRST + JOBS / 4) * 2 * STEP_NS);
}

static void sim_step(sim *s, sim_job *job)
{
    uint64_t took_ns = step_ns(job, job->bytes);
    sim_turn(s, job);
    job->entry.turn.item.slice_ns = took_ns;
    job->entry.turn.left_ns = took_ns * (uint64_t)job->left;
    s->now_ns += took_ns;
    s->stepped_ns += took_ns;
    hth_train_turn_ran(&s->queue, &job->entry, took_ns);
    job->tenant_ns = job->entry.tenant->turns.ran_ns;
    seen.steps++;
    if (--job->left == 0) {
        sim_end(s, job);
    }
}

// ---- what is promised

typedef struct sim_has {
    int waiting, working; // jobs; working: with steps to make
} sim_has;

static sim_has sim_jobs(const sim *s, const hth_tenant *tenant)
{
    sim_has has = {0};
    for (const hth_train_entry *e = s->queue.first; e != NULL; e = e->next) {
        bool works = e->work != NULL && e->leaving == HTH_TRAIN_STAYS;
        has.waiting += e->tenant == tenant && e->work == NULL;
        has.working += e->tenant == tenant && works;
    }
    return has;
}

static double sim_weights(const sim *s)
{
    double sum = 0;
    for (int t = 0; t < s->n_tenants; t++) {
        sum += s->tenant[t].tenant.limits.weight;
    }
    return sum;
}

// A tenant with steps to make has had the part of the time that its weight is of all weights, but
// for some steps (Goyal 1996: start-time fair queueing).
static void sim_time(const sim *s, const sim_tenant *t)
{
    double part = t->tenant.limits.weight / sim_weights(s);
    double had = (double)(t->tenant.turns.ran_ns - t->had_ns);
    double lag = (part * s->n_tenants + 1) * 2 * (double)STEP_NS;
    if (had + lag < part * (double)(s->stepped_ns - t->works_ns)) {
        fail_msg("%s: %.1f s of %.1f s, its part is %.3f", t->tenant.name, had / 1e9,
                 (double)(s->stepped_ns - t->works_ns) / 1e9, part);
    }
}

// A tenant that has nothing has a job at work when each other one has had a turn: of its patience
// or four times what its job took to be made ready, the step at work, a search and the writing.
static void sim_hungry(sim *s, sim_tenant *t)
{
    uint64_t turn_ns = 4 * OPEN_NS + STEP_NS * 2 + PLAN_NS + WRITE_NS + OPEN_NS;
    uint64_t for_ns = s->now_ns - t->hungry_ns;
    seen.hungriest_ns = for_ns > seen.hungriest_ns ? for_ns : seen.hungriest_ns;
    assert_true(for_ns <= (uint64_t)s->n_tenants * turn_ns);
}

static void sim_check(sim *s)
{
    for (int i = 0; i < s->n_tenants; i++) {
        sim_tenant *t = &s->tenant[i];
        sim_has has = sim_jobs(s, &t->tenant);
        if (has.working > 0 && !t->works) {
            t->works_ns = s->stepped_ns;
            t->had_ns = t->tenant.turns.ran_ns;
        }
        t->works = has.working > 0;
        if (t->works) {
            sim_time(s, t);
        }
        bool hungry = has.waiting > 0 && has.working == 0;
        t->hungry_ns = hungry && t->hungry_ns == 0 ? s->now_ns : t->hungry_ns;
        t->hungry_ns = hungry ? t->hungry_ns : 0;
        if (hungry) {
            sim_hungry(s, t);
        }
    }
}

// sim_next does what comes next: a job begins, makes a step, or arrives.
static void sim_next(sim *s)
{
    while (s->arrived < s->n && s->job[s->arrived].arrives_ns <= s->now_ns) {
        sim_arrive(s, &s->job[s->arrived]);
    }
    hth_train_entry *e = hth_train_fair_next(&s->queue);
    if (e != NULL) {
        sim_begin(s, job_of(e));
    } else if ((e = hth_train_turn_next(&s->queue)) != NULL) {
        sim_step(s, job_of(e));
    } else if (s->queue.first == NULL && s->arrived < s->n) {
        s->now_ns = s->job[s->arrived].arrives_ns;
    } else {
        s->now_ns += S / 20; // a state is written, or a plan searched for
    }
    sim_check(s);
}

static void hours(void **state)
{
    int jobs = 0;
    for (uint64_t seed = 1; seed <= HOURS; seed += TEST_STRIDE) {
        sim *s = sim_open(seed);
        uint64_t end_ns = 3600 * S;
        while (s->ended < s->n) {
            sim_next(s);
            assert_true(s->now_ns < 40 * end_ns);
        }
        jobs += s->n;
        sim_close(s);
    }
    print_message("# %d jobs: %llu begun, %llu paused, %llu with less memory, %llu with more, %llu "
                  "steps; hungry for %.1f s at most\n",
                  jobs, (unsigned long long)seen.begun, (unsigned long long)seen.paused,
                  (unsigned long long)seen.shrunk, (unsigned long long)seen.grown,
                  (unsigned long long)seen.steps, (double)seen.hungriest_ns / 1e9);
    assert_true(seen.paused > 100 / TEST_STRIDE && seen.shrunk > 100 / TEST_STRIDE &&
                seen.grown > 100 / TEST_STRIDE);
}

// A job that has just failed is noted, too: why it has failed stays what is told, also where it
// cannot be counted.
static void reasons_stay(void **state)
{
    sim *s = sim_open(1);
    sim_job *job = &s->job[0];
    sim_arrive(s, job);
    job->entry.work = &job->work;
    job->bytes = 2 * CAPACITY;
    assert_int_equal(hth_fail(HTH_EIO, "the reason"), HTH_EIO);
    hth_train_fair_began(&s->queue, &job->entry);
    assert_int_equal(job->entry.fair.state, HTH_FAIR_OUT);
    assert_string_equal(hth_err_detail(), "the reason");
    job->bytes = 0;
    s->queue.first = NULL;
    sim_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(reasons_stay), cmocka_unit_test(hours)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
