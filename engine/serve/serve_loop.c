// SPDX-License-Identifier: Apache-2.0
// Who computes next on the device: the requests that wait, as one item of the run queue, and what
// is done on stacks of its own. The weights are shares of the time while all of them want it.
#include "engine/serve/serve_impl.h"

#include "base/clock.h"
#include "engine/serve/infer.h"
#include "engine/serve/tune.h"

#include <string.h>

// A training job keeps 0.7 of the time while requests of normal priority wait, and requests may be
// owed some of a step's time.
#define WEIGHT_JOBS 0.7
#define WEIGHT_RUNS 0.3
#define OWED_NS     100000000u
// What is loaded or compiled has the device for a quarter of the time that a run took before it.
#define WEIGHT_COMPILE (WEIGHT_RUNS / 4)
// Measuring has a twentieth of the time, and leaves the rest to nobody, once requests come; and as
// much as they while somebody waits for its end.
#define MEASURE_RESTS    19
#define WEIGHT_MEASURE   (WEIGHT_RUNS / MEASURE_RESTS)
#define MEASURE_LEAST_NS 1000000u
// How often it is looked for something to measure where there was nothing.
#define MEASURE_POLL_NS 1000000000u
// For how long requests with short timeouts can delay background work.
#define PATIENCE_NS 1000000000u
// After so long without a request the engine is idle: longer than the gap between two requests of a
// busy client.
#define IDLE_NS 200000000u
// While a step computes in its instance: how long the thread sleeps while nothing waits; while
// something does, which may expire.
#define STEP_IDLE_NS 200000000u
#define STEP_POLL_NS 2000000u

static hth_work *work_of(hth_serve *serve, hth_serve_kind kind)
{
    return &serve->work[kind].work;
}

static hth_serve_kind kind_of(const hth_serve *serve, const hth_work *work)
{
    return (hth_serve_kind)((const hth_serve_work *)work - serve->work);
}

// work_away is the one that computes elsewhere, or has; NULL: none.
static hth_work *work_away(hth_serve *serve)
{
    for (int k = 0; k < HTH_SERVE_WORKS; k++) {
        hth_work *w = work_of(serve, (hth_serve_kind)k);
        if (hth_work_busy(w) && w->away) {
            return w;
        }
    }
    return NULL;
}

// work_here is the one in progress on this thread; NULL: none.
static hth_work *work_here(hth_serve *serve)
{
    for (int k = 0; k < HTH_SERVE_WORKS; k++) {
        hth_work *w = work_of(serve, (hth_serve_kind)k);
        if (hth_work_busy(w) && !w->away) {
            return w;
        }
    }
    return NULL;
}

// somebody_waits for the end of what nobody waits for usually.
static bool somebody_waits(const hth_serve *serve)
{
    return serve->first != NULL || serve->memory_wait.n > 0 ||
           (serve->batcher.passed && serve->batcher.n > 0);
}

static bool is_idle(const hth_serve *serve, uint64_t now_ns)
{
    return hth_serve_empty(serve) && now_ns > serve->requested_ns &&
           now_ns - serve->requested_ns >= IDLE_NS;
}

bool hth_serve_tuning(const hth_serve *serve)
{
    return hth_work_busy(&serve->work[HTH_SERVE_MEASURE].work);
}

bool hth_serve_over(const hth_serve *serve)
{
    bool over = hth_serve_empty(serve) && serve->pick.n == 0;
    for (int k = 0; k < HTH_SERVE_WORKS; k++) {
        over = over && !hth_work_busy(&serve->work[k].work);
    }
    return over;
}

bool hth_serve_rests(const hth_serve *serve)
{
    bool rests = hth_serve_empty(serve) && serve->pick.n == 0 && serve->works.held == 0;
    for (int k = 0; k < HTH_SERVE_WORKS; k++) {
        const hth_work *w = &serve->work[k].work;
        rests = rests && !(hth_work_busy(w) && w->away);
    }
    return rests;
}

// ---- works

// requested_main answers what was requested until now; then a job is next.
static void requested_main(void *arg)
{
    hth_serve *s = arg;
    if (s->pick.n > 0) {
        hth_serve_picked(s);
        return;
    }
    if (s->before) {
        s->before = false;
        hth_serve_before(s);
    }
    int n = 0;
    for (const hth_request *r = s->first; r != NULL; r = r->next) {
        n++;
    }
    for (; n > 0 && hth_serve_accept(s, true); n--) {
    }
    s->answered = true;
}

static void guest_main(void *arg)
{
    hth_serve *s = arg;
    if (s->pick.n > 0) {
        hth_serve_picked(s);
    } else {
        (void)hth_serve_accept(s, false);
    }
}

static void jobs_main(void *arg)
{
    hth_serve *s = arg;
    s->answered = false;
    s->jobless = !s->job(s->ctx);
}

// first_demand is a model that demands a program; NULL: none does.
static hth_model *first_demand(const hth_serve *serve)
{
    hth_model *m = serve->ms->list;
    while (m != NULL && m->demand.key == NULL) {
        m = m->next;
    }
    return m;
}

// compile_main compiles the programs that were demanded often enough, or, when that is none, one.
static void compile_main(void *arg)
{
    hth_serve *s = arg;
    hth_model *m = s->demanded;
    bool requested = m != NULL || s->instances.demanded != NULL;
    s->demanded = NULL;
    if (m != NULL && !m->gone && m->demand.key != NULL) {
        hth_serve_compile(s, m);
    }
    if (m != NULL) {
        hth_model_rele(s->ms, m);
    }
    (void)hth_instances_compile(s);
    m = requested ? NULL : first_demand(s);
    if (m != NULL) {
        hth_serve_compile(s, m);
    }
}

static void measure_main(void *arg)
{
    hth_serve *s = arg;
    if (!hth_tune_step(s->ms)) {
        s->measured_ns = hth_now_ns() + MEASURE_POLL_NS;
    }
}

static void (*const work_main[HTH_SERVE_WORKS])(void *arg) = {
    [HTH_SERVE_REQUESTED] = requested_main, [HTH_SERVE_JOBS] = jobs_main,
    [HTH_SERVE_COMPILE] = compile_main,     [HTH_SERVE_MEASURE] = measure_main,
    [HTH_SERVE_GUEST] = guest_main,
};

// queue_slice sets what the slice of `work` that ends now counts, and how it goes on.
static void queue_slice(void *ctx, hth_work *work, uint64_t took_ns, uint64_t now_ns, bool over)
{
    hth_serve *s = ctx;
    switch (kind_of(s, work)) {
    case HTH_SERVE_JOBS: // what it compiles has its points; a slice of a job has none
        work->item.weight = over ? WEIGHT_JOBS : WEIGHT_COMPILE;
        break;
    case HTH_SERVE_COMPILE:
        hth_batcher_background(&s->batcher, took_ns, now_ns);
        break;
    case HTH_SERVE_MEASURE:
        hth_batcher_background(&s->batcher, took_ns, now_ns);
        work->item.weight = somebody_waits(s) || s->demanded != NULL ? WEIGHT_RUNS : WEIGHT_MEASURE;
        work->item.rests =
            work->item.weight == WEIGHT_RUNS || is_idle(s, now_ns) ? 0 : MEASURE_RESTS;
        break;
    case HTH_SERVE_GUEST: // at last, what it took of the step's time is what requests have had
        s->guest_ns += took_ns;
        if (over) {
            hth_run_queue_ran(&s->works.runs, &s->runs, s->guest_ns, now_ns);
            s->guest_ns = 0;
        }
        break;
    case HTH_SERVE_REQUESTED: // a question about training may have computed elsewhere
        work->item.weight = WEIGHT_COMPILE;
        break;
    default:
        break;
    }
}

static bool queue_wanted(void *ctx)
{
    const hth_serve *s = ctx;
    return s->batcher.n > 0 || s->arrived;
}

static void queue_poll(void *ctx)
{
    hth_serve_poll(ctx);
}

// queue_go has a work go on, or begin, for a slice, with what the models have of who asked for it.
static void queue_go(hth_serve *serve, hth_work *work)
{
    hth_serve_work *own = (hth_serve_work *)work;
    bool begins = !hth_work_busy(work);
    serve->ms->tenant = begins ? NULL : own->tenant;
    serve->ms->asks = begins ? NULL : own->asks;
    if (begins) {
        serve->arrived = serve->first != NULL; // what came with it is looked at, at its first point
        hth_work_begin(&serve->works, work, work_main[kind_of(serve, work)], serve);
    } else {
        hth_work_go(&serve->works, work);
    }
    own->tenant = serve->ms->tenant;
    own->asks = serve->ms->asks;
    serve->ms->tenant = NULL;
    serve->ms->asks = NULL;
}

// ---- who wants the device

static void queue_want(hth_serve *serve, hth_run_item *item, bool wants)
{
    if (wants) {
        hth_run_queue_add(&serve->works.runs, item);
    } else {
        hth_run_queue_remove(&serve->works.runs, item);
    }
}

static bool measure_wants(hth_serve *serve, uint64_t now_ns)
{
    if (!is_idle(serve, now_ns) &&
        (now_ns < serve->measured_ns || somebody_waits(serve) || serve->demanded != NULL)) {
        return false;
    }
    bool wants = hth_tune_pending(serve->ms);
    serve->measured_ns = wants ? serve->measured_ns : now_ns + MEASURE_POLL_NS;
    return wants;
}

// begin_wants returns which kinds of work are to begin, as bits, where none is in progress.
static unsigned begin_wants(hth_serve *serve, bool hurry, uint64_t now_ns)
{
    bool idle = is_idle(serve, now_ns);
    unsigned requested = (unsigned)(serve->first != NULL || serve->before) << HTH_SERVE_REQUESTED;
    if (hurry || serve->before) { // what waited for memory is run before a job is given that
        return requested;
    }
    bool job = !serve->jobless && serve->due != NULL && serve->due(serve->ctx);
    bool demanded = serve->demanded != NULL || serve->instances.demanded != NULL ||
                    (idle && !job && first_demand(serve) != NULL);
    bool measure = !job && !demanded && measure_wants(serve, now_ns);
    if (requested != 0 &&
        job) { // one after the other: all that was requested, and a slice of a job
        requested = serve->answered ? 0 : requested;
        job = requested == 0;
    }
    return requested | (unsigned)job << HTH_SERVE_JOBS | (unsigned)demanded << HTH_SERVE_COMPILE |
           (unsigned)measure << HTH_SERVE_MEASURE;
}

static bool guest_wants(const hth_serve *serve)
{
    const hth_request *r = serve->first;
    while (r != NULL && r->command != HTH_COMMAND_NONE) {
        r = r->next;
    }
    return r != NULL;
}

// queue_gather has everybody in the run queue who wants the device, and nobody else.
static void queue_gather(hth_serve *serve, const hth_work *here, const hth_work *away, bool hurry,
                         uint64_t now_ns)
{
    unsigned begin = 0;
    if (here == NULL) {
        begin = away == NULL ? begin_wants(serve, hurry, now_ns)
                             : (unsigned)guest_wants(serve) << HTH_SERVE_GUEST;
    }
    for (int k = 0; k < HTH_SERVE_WORKS; k++) {
        hth_work *w = work_of(serve, (hth_serve_kind)k);
        if (!w->item.queued && k != HTH_SERVE_JOBS) { // each is somebody else's
            hth_run_queue_renew(&w->item);
        }
        queue_want(serve, &w->item, w == here || w == away || (begin >> k & 1) != 0);
        if (hurry && w != away) {
            hth_run_queue_wake(&w->item);
        }
    }
    queue_want(serve, &serve->runs, serve->batcher.n > 0);
}

// queue_deadlines gives background work its place among the deadlines of those who wait.
static void queue_deadlines(hth_serve *serve, uint64_t now_ns)
{
    hth_run_item *make = &work_of(serve, HTH_SERVE_COMPILE)->item;
    hth_run_item *measure = &work_of(serve, HTH_SERVE_MEASURE)->item;
    serve->runs.deadline_ns = 0;
    if (!make->queued && !measure->queued) {
        return;
    }
    make->insists = somebody_waits(serve);
    measure->insists = make->insists || serve->demanded != NULL;
    if (measure->insists) {
        hth_run_queue_wake(measure);
    }
    make->slice_ns = measure->slice_ns = hth_batcher_slice_ns(&serve->batcher) + 1;
    uint64_t slack_ns =
        serve->batcher.n > 0 ? hth_batcher_slack_ns(&serve->batcher, now_ns) : HTH_RUN_NEVER;
    serve->runs.deadline_ns = slack_ns < HTH_RUN_NEVER - now_ns ? now_ns + slack_ns : 0;
}

// queue_note_stall notes that background work is delayed: admission leaves time for it.
static void queue_note_stall(hth_serve *serve, uint64_t now_ns)
{
    const hth_run_item *make = &work_of(serve, HTH_SERVE_COMPILE)->item;
    const hth_run_item *measure = &work_of(serve, HTH_SERVE_MEASURE)->item;
    if ((make->queued && make->held_since_ns != 0) ||
        (measure->queued && measure->held_since_ns != 0)) {
        hth_batcher_background(&serve->batcher, 0, now_ns);
    }
}

// ---- the loop

// loop_runs does a run for a request that waits. false: there is none before *wake_ns.
static bool loop_runs(hth_serve *serve, hth_batch_filter filter, uint64_t *wake_ns)
{
    uint64_t from_ns = hth_now_ns(), run_wake_ns;
    uint32_t priority;
    hth_work *away = work_away(serve);
    if (!hth_serve_batch(serve, filter, &run_wake_ns, &priority)) {
        *wake_ns = run_wake_ns < *wake_ns ? run_wake_ns : *wake_ns;
        return false;
    }
    uint64_t now_ns = hth_now_ns();
    serve->requested_ns = serve->overlap.requested_ns = now_ns;
    hth_work_ran(&serve->works, now_ns - from_ns);
    if (away == NULL || priority > 1) { // the first priority comes first during a step
        hth_run_queue_ran(&serve->works.runs, &serve->runs, now_ns - from_ns, now_ns);
    }
    if (serve->pick.n > 0) {
        queue_go(serve, work_of(serve, away != NULL ? HTH_SERVE_GUEST : HTH_SERVE_REQUESTED));
    }
    return true;
}

// loop_quick_queries answers queries that compute nothing, so that they do not wait for a model
// that takes long to be made ready. A measurement, which has some of the device's memory, is short,
// and hurries for them.
static void loop_quick_queries(hth_serve *serve, const hth_work *here)
{
    if (here == work_of(serve, HTH_SERVE_MEASURE)) {
        return;
    }
    for (hth_request **at = &serve->first; *at != NULL;) {
        hth_request *r = *at, *next = r->next;
        if (r->command == HTH_COMMAND_NONE || !serve->at_once(serve->ctx, r)) {
            at = &r->next;
            continue;
        }
        *at = next;
        serve->last = next == NULL ? at : serve->last;
        atomic_fetch_sub(&serve->waiting, 1);
    }
}

// loop_step leaves the device to the step that computes elsewhere; requests of the first priority
// still come. true: one was run, or the step has ended.
static bool loop_step(hth_serve *serve, hth_work *away, hth_batch_filter filter, bool hurry,
                      uint64_t *wake_ns)
{
    filter.priority = 1;
    if (serve->batcher.n > 0 && loop_runs(serve, filter, wake_ns)) {
        return true;
    }
    bool none = hth_serve_empty(serve) && serve->memory_wait.n == 0;
    uint64_t due_ns = hth_now_ns() + (none ? STEP_IDLE_NS : STEP_POLL_NS);
    *wake_ns = due_ns < *wake_ns ? due_ns : *wake_ns;
    if (hurry) { // nothing more arrives: the mailbox does not sleep
        (void)serve->works.other->wait(serve->works.other->ctx);
    }
    return !hth_work_computes(&serve->works, away);
}

// loop_next has whoever is next compute; `away`: whose step computes elsewhere, or NULL.
static bool loop_next(hth_serve *serve, hth_work *here, hth_work *away, bool hurry,
                      uint64_t *wake_ns)
{
    uint64_t now_ns = hth_now_ns(), rest_ns;
    hth_batch_filter filter = {.hurry = hurry || here != NULL || away != NULL,
                               .ready = here != NULL};
    filter.priority = away != NULL ? UINT32_MAX : 0;
    queue_gather(serve, here, away, hurry, now_ns);
    queue_deadlines(serve, now_ns);
    hth_run_item *next = hth_run_queue_next(&serve->works.runs, now_ns, &rest_ns);
    queue_note_stall(serve, now_ns);
    if (next == &serve->runs) {
        if (loop_runs(serve, filter, wake_ns)) {
            return true;
        }
        hth_run_queue_remove(&serve->works.runs, &serve->runs);
        next = hth_run_queue_next(&serve->works.runs, now_ns, &rest_ns);
    }
    *wake_ns = rest_ns < *wake_ns ? rest_ns : *wake_ns;
    if (next == NULL) {
        return false;
    }
    hth_work *w = (hth_work *)next;
    if (w == away) {
        return loop_step(serve, away, filter, hurry, wake_ns);
    }
    queue_go(serve, w);
    return true;
}

// loop_away counts the time of a step that computes elsewhere, alone but for `here`; true: it has
// ended, and is gone on with.
static bool loop_away(hth_serve *serve, const hth_work *here, hth_work *away)
{
    uint64_t now_ns = hth_now_ns();
    if (here == NULL && !hth_work_computes(&serve->works, away)) {
        serve->runs.credit_ns = 0;
        serve->alone_ns = 0;
        hth_run_queue_wake(&away->item);
        queue_go(serve, away);
        return true;
    }
    away->item.weight = WEIGHT_JOBS;
    serve->runs.credit_ns = OWED_NS;
    if (serve->alone_ns != 0 && here == NULL) {
        hth_run_queue_ran(&serve->works.runs, &away->item, now_ns - serve->alone_ns, now_ns);
    }
    // somebody waits for what is compiled during it
    away->item.rests_until_ns = here != NULL ? HTH_RUN_NEVER : 0;
    if (serve->overlap.low || serve->batcher.n > 0) {
        hth_train_overlap_lower(&serve->overlap);
    }
    return false;
}

bool hth_serve_iterate(hth_serve *serve, bool hurry, uint64_t *wake_ns)
{
    hth_work *here = work_here(serve), *away = work_away(serve);
    bool again, jobless = serve->jobless;
    hth_serve_poll(serve);
    serve->arrived = false;
    if (here != NULL) {
        loop_quick_queries(serve, here);
    } else {
        again = hth_serve_requeue(serve); // before a job is given that memory
        serve->before = serve->before || (again && away == NULL);
    }
    if (away != NULL && loop_away(serve, here, away)) {
        return true;
    }
    *wake_ns = hth_memory_wait_wake_ns(&serve->memory_wait);
    bool worked = loop_next(serve, here, away, hurry, wake_ns);
    serve->alone_ns = work_away(serve) != NULL ? hth_now_ns() : 0;
    serve->jobless = serve->jobless && !jobless; // once it is passed over
    if (!worked && is_idle(serve, hth_now_ns())) {
        hth_batch_run_fini(&serve->batch_run);
    }
    return worked;
}

void hth_serve_loop_init(hth_serve *serve)
{
    static const hth_serve_kind background[] = {HTH_SERVE_COMPILE, HTH_SERVE_MEASURE};
    const hth_device_props *device = &serve->ms->site->device->props;
    serve->runs.weight = WEIGHT_RUNS;
    for (int k = 0; k < HTH_SERVE_WORKS; k++) {
        serve->work[k].work = (hth_work){
            .item = {.weight = WEIGHT_COMPILE, .credit_ns = HTH_RUN_CREDIT_ALL, .insists = true}};
    }
    work_of(serve, HTH_SERVE_JOBS)->item.weight = WEIGHT_JOBS;
    work_of(serve, HTH_SERVE_GUEST)->item.weight = WEIGHT_RUNS;
    work_of(serve, HTH_SERVE_MEASURE)->item.weight = WEIGHT_MEASURE;
    work_of(serve, HTH_SERVE_MEASURE)->least_ns = MEASURE_LEAST_NS;
    for (size_t i = 0; i < sizeof background / sizeof background[0]; i++) {
        work_of(serve, background[i])->item.insists = false;
        work_of(serve, background[i])->item.patience_ns = PATIENCE_NS;
    }
    serve->overlap =
        (hth_train_overlap){.threads = device->n_threads, .wake = serve->wake, .ctx = serve->ctx};
    hth_train_overlap_init(&serve->overlap);
    serve->works = (hth_work_queue){
        .poll = queue_poll, .wanted = queue_wanted, .slice = queue_slice, .ctx = serve};
    serve->works.other = device->inline_compute ? &serve->overlap.other : NULL;
    serve->ms->site->queue = &serve->works;
}
