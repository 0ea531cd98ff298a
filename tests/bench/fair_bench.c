// SPDX-License-Identifier: Apache-2.0
// The shares of a cluster, simulated: no device, node or network is touched. First what a decision
// costs against the number of tenants and jobs; then 100,000 jobs of 20 tenants on 10,000 nodes
// under three schedulers. Jobs are training steps with recorded memory/time curves
// (tests/data/curves.txt, made by tests/tools/record_curves.py).
//
// A node has 48 GiB and runs at most twelve jobs, which take turns: with n on a node each is n
// times slower, or, where a job alone keeps a device busy for a quarter of the time, n / 4 times. A
// job goes to the node with the fewest jobs that has the memory, of these to the one with the
// least. It takes a minute to two hours alone with its fastest plan (log-uniform). Nine in ten are
// those of four tenants, who submit in bursts; sixteen submit one now and then. All of them come
// within three tenths of the time that the nodes need for them.
//
// usage, from the root: fair_bench [--nodes N] [--jobs N]
// Costs of decisions are measured here, everything else is simulated time.
#include "base/alloc.h"
#include "base/compare.h"
#include "tests/bench/cluster.h"

static int bench_weight(int tenant)
{
    return 1 + tenant % 3;
}

static void sim_decide(sim *s)
{
    hth_fair_decision d;
    do {
        const hth_fair_amounts hole = node_hole(s);
        uint64_t from_ns = hth_now_ns();
        hth_fair_queue_hole(s->q, &hole);
        hth_fair_queue_next(s->q, s->now_ns, &d);
        if (d.action == HTH_FAIR_START) {
            hth_fair_queue_start(s->q, d.job, d.with, s->now_ns);
        }
        s->spent_ns += hth_now_ns() - from_ns;
        s->decisions++;
        if (d.action == HTH_FAIR_START) {
            sim_start(s, (bench_job *)d.job);
        }
    } while (d.action == HTH_FAIR_START);
}

// How far the dominant shares by weight of the tenants that wait are from their mean.
static void sim_sample(sim *s)
{
    double memory[TENANTS] = {0}, slots[TENANTS] = {0}, level[TENANTS], mean = 0, off = 0;
    bool waits[TENANTS] = {false};
    int n = 0;
    for (int i = 0; i < s->arrived; i++) {
        const bench_job *j = &s->jobs[i];
        bool runs = j->job.state == HTH_FAIR_RUNS;
        waits[j->tenant] = waits[j->tenant] || j->job.state == HTH_FAIR_WAITS;
        memory[j->tenant] += runs ? j->job.demand[j->with].of[MEMORY] / NODE_MEMORY : 0;
        slots[j->tenant] += runs ? 1.0 / NODE_JOBS : 0;
    }
    for (int t = 0; t < TENANTS; t++) {
        level[t] = fmax(memory[t], slots[t]) / bench_weight(t);
        mean += waits[t] ? level[t] : 0;
        n += waits[t];
    }
    for (int t = 0; t < TENANTS && n > 1; t++) {
        off += waits[t] ? fabs(level[t] * n / mean - 1) / n : 0;
    }
    s->samples += n > 1;
    s->error += off;
}

static void sim_run(sim *s)
{
    while (s->ended < s->n_jobs) {
        bench_job *ends = hth_fair_heap_first(&s->ends);
        bench_job *next = s->arrived < s->n_jobs ? &s->jobs[s->arrived] : NULL;
        if (next != NULL && (ends == NULL || next->arrives_ns <= ends->ended_ns)) {
            s->now_ns = next->arrives_ns;
            s->arrived++;
            uint64_t from_ns = hth_now_ns();
            sim_need(hth_fair_queue_add(s->q, &next->job), "a job");
            s->spent_ns += hth_now_ns() - from_ns;
        } else {
            s->now_ns = ends->ended_ns;
            sim_end(s, ends);
        }
        sim_decide(s);
        if (s->now_ns - s->sampled_ns > s->sample_ns) {
            s->sampled_ns = s->now_ns;
            sim_sample(s);
        }
    }
}

static int bench_arrival(const void *a, const void *b)
{
    const bench_job *x = a, *y = b;
    return (x->arrives_ns > y->arrives_ns) - (x->arrives_ns < y->arrives_ns);
}

// The same jobs for every scheduler: work for ten ninths of what the nodes can do while they come.
static void bench_jobs(bench_job *jobs, int n, int nodes, const curve *curves, int n_curves)
{
    double work_ns = 0;
    sim_seed = 88172645463325252u;
    for (int i = 0; i < n; i++) {
        jobs[i] = (bench_job){.curve = &curves[(int)(sim_uniform() * n_curves)],
                              .alone_ns = 60 * S * exp(sim_uniform() * log(120))};
        work_ns += jobs[i].alone_ns;
    }
    double for_ns = work_ns / nodes * 0.3;
    for (int i = 0; i < n; i++) {
        bool heavy = sim_uniform() < 0.9;
        jobs[i].tenant =
            (int)(heavy ? sim_uniform() * HEAVY : HEAVY + sim_uniform() * (TENANTS - HEAVY));
        double at = heavy ? floor(sim_uniform() * 10) / 10 + sim_uniform() / 100 : sim_uniform();
        jobs[i].arrives_ns = 1 + (uint64_t)(at * for_ns);
    }
    qsort(jobs, (size_t)n, sizeof *jobs, bench_arrival);
}

static void sim_open(sim *s, const bench_job *jobs)
{
    hth_fair_queue_options o = {
        .n_resources = RESOURCES,
        .capacity = {{s->n_nodes * NODE_MEMORY, (double)s->n_nodes * NODE_JOBS}},
        .patience_ns = HTH_FAIR_NEVER,
        .no_backfill = !s->how->shares};
    int t;
    sim_need(hth_fair_queue_open(&o, &s->q), "the queue");
    for (int i = 0; i < TENANTS; i++) {
        sim_need(hth_fair_queue_tenant(s->q, bench_weight(i), &t), "a tenant");
    }
    s->ends = (hth_fair_heap){.before = job_before, .place = offsetof(bench_job, place)};
    s->jobs = hth_memdup(jobs, (size_t)s->n_jobs * sizeof *jobs);
    s->nodes = hth_calloc((size_t)s->n_nodes, sizeof *s->nodes);
    sim_need(s->jobs && s->nodes ? HTH_OK : hth_fail(HTH_ENOMEM, "no memory"), "the cluster");
    memset(s->first, -1, sizeof s->first);
    for (int i = 0; i < s->n_nodes; i++) {
        s->nodes[i].free = NODE_MEMORY;
        node_in(s, i);
    }
    for (int i = 0; i < s->n_jobs; i++) {
        bench_job *j = &s->jobs[i];
        j->job = (hth_fair_job){.tenant = s->how->shares ? j->tenant : 0,
                                .submitted_ns = j->arrives_ns,
                                .demand = j->curve->demand,
                                .run_ns = j->run_ns,
                                .n_demands = s->how->elastic ? j->curve->n : 1};
        for (int k = 0; k < j->curve->n; k++) {
            j->run_ns[k] =
                (uint64_t)(j->alone_ns * j->curve->step_us[k] / j->curve->step_us[0]) * NODE_JOBS;
        }
    }
}

static void sim_close(sim *s)
{
    hth_fair_queue_close(s->q);
    hth_fair_heap_fini(&s->ends);
    hth_free(s->jobs);
    hth_free(s->nodes);
}

// One scheduler's row: times in minutes.
static double bench_row(const scheduler *how, const bench_job *jobs, int n_jobs, int n_nodes,
                        double busy)
{
    sim s = {.how = how, .n_jobs = n_jobs, .n_nodes = n_nodes, .busy = busy};
    s.sample_ns = (jobs[n_jobs - 1].arrives_ns - jobs[0].arrives_ns) / 300;
    double wait[2] = {0}, longest[2] = {0}, completion = 0;
    int n[2] = {0};
    sim_open(&s, jobs);
    sim_run(&s);
    for (int i = 0; i < n_jobs; i++) {
        const bench_job *j = &s.jobs[i];
        double waited = (double)(j->starts_ns - j->arrives_ns) / S / 60;
        int light = j->tenant >= HEAVY;
        wait[light] += waited;
        longest[light] = fmax(longest[light], waited);
        n[light]++;
        completion += (double)(j->ended_ns - j->arrives_ns) / S / 60 / n_jobs;
    }
    printf("| %s | %.2f | %.1f | %.1f, %.1f | %.1f, %.1f | %.1f %% | %.0f | %.0f |\n", how->name,
           busy, completion, wait[0] / n[0], longest[0], wait[1] / n[1], longest[1],
           s.error / s.samples * 100, (double)s.spent_ns / (double)s.decisions,
           (double)s.decisions * S / (double)s.spent_ns);
    (void)fflush(stdout);
    sim_close(&s);
    return completion;
}

// What a task costs where n tenants, each with ten tasks, are given theirs.
static double bench_fill(int n)
{
    hth_fair_problem p = {.n_resources = 5, .n_tenants = n, .scale = {1, 1, 1, 1, 1}};
    hth_fair_amounts *demand = hth_calloc((size_t)n, sizeof *demand);
    hth_fair_shares shares;
    uint64_t tasks = 0;
    p.tenants = hth_calloc((size_t)n, sizeof *p.tenants);
    for (int r = 0; r < 5; r++) {
        p.capacity.of[r] = 6.0 * n;
    }
    for (int i = 0; i < n && p.tenants && demand; i++) {
        for (int r = 0; r < 5; r++) {
            demand[i].of[r] = sim_uniform() + 0.01;
        }
        p.tenants[i] = (hth_fair_tenant){
            .weight = 1 + i % 3, .tasks = HTH_FAIR_UNLIMITED, .demand = &demand[i], .n_demands = 1};
    }
    uint64_t from_ns = hth_now_ns();
    sim_need(hth_fair_fill(&p, HTH_FAIR_TASKS, &shares), "shares");
    uint64_t took_ns = hth_now_ns() - from_ns;
    for (int i = 0; i < n; i++) {
        tasks += shares.of[i].tasks;
    }
    hth_fair_shares_fini(&shares);
    hth_free(p.tenants);
    hth_free(demand);
    return (double)took_ns / (double)tasks;
}

// What it costs to end a job, decide who is next of n that wait, and start that one.
static double bench_queue(int n)
{
    hth_fair_queue_options o = {
        .n_resources = 2, .capacity = {{1000, 1000}}, .patience_ns = HTH_FAIR_NEVER};
    hth_fair_job *jobs = hth_calloc((size_t)n, sizeof *jobs);
    hth_fair_amounts *demand = hth_calloc((size_t)n, sizeof *demand);
    hth_fair_job *runs[64] = {NULL};
    hth_fair_queue *q;
    hth_fair_decision d;
    int t, turns = 200000;
    sim_need(hth_fair_queue_open(&o, &q), "the queue");
    for (int i = 0; i < TENANTS; i++) {
        sim_need(hth_fair_queue_tenant(q, bench_weight(i), &t), "a tenant");
    }
    for (int i = 0; i < n && jobs && demand; i++) {
        demand[i] = (hth_fair_amounts){{sim_uniform() * 10 + 1, sim_uniform() * 10 + 1}};
        jobs[i] = (hth_fair_job){.tenant = i % TENANTS,
                                 .submitted_ns = (uint64_t)(sim_uniform() * S),
                                 .demand = &demand[i],
                                 .n_demands = 1};
        sim_need(hth_fair_queue_add(q, &jobs[i]), "a job");
    }
    uint64_t from_ns = hth_now_ns();
    for (int i = 0; i < turns; i++) {
        hth_fair_job *ends = runs[i % 64];
        if (ends != NULL) {
            hth_fair_queue_remove(q, ends);
            sim_need(hth_fair_queue_add(q, ends), "a job");
        }
        hth_fair_queue_next(q, 1, &d);
        hth_fair_queue_start(q, d.job, d.with, 1);
        runs[i % 64] = d.job;
    }
    double ns = (double)(hth_now_ns() - from_ns) / turns;
    hth_fair_queue_close(q);
    hth_free(jobs);
    hth_free(demand);
    return ns;
}

static void bench_costs(void)
{
    printf("| n | ns a task, n tenants | by log2 n | ns a job, n waiting | by log2 n |\n"
           "|---:|---:|---:|---:|---:|\n");
    for (int n = 100; n <= 100000; n *= 10) {
        double fill[5], queue[5];
        for (int i = 0; i < 5; i++) {
            fill[i] = bench_fill(n);
            queue[i] = bench_queue(n);
        }
        qsort(fill, 5, sizeof *fill, hth_compare_double);
        qsort(queue, 5, sizeof *queue, hth_compare_double);
        printf("| %d | %.0f | %.1f | %.0f | %.1f |\n", n, fill[2], fill[2] / log2(n), queue[2],
               queue[2] / log2(n));
        (void)fflush(stdout);
    }
}

static int bench_option(int argc, char **argv, const char *name, int dflt)
{
    int n = dflt;
    for (int i = 1; i + 1 < argc; i++) {
        n = strcmp(argv[i], name) == 0 ? atoi(argv[i + 1]) : n;
    }
    return n;
}

int main(int argc, char **argv)
{
    static const scheduler how[] = {{"FIFO, rigid budgets", false, false},
                                    {"shares, rigid budgets", true, false},
                                    {"shares, elastic", true, true}};
    static curve curves[CURVES];
    int n_nodes = bench_option(argc, argv, "--nodes", 10000);
    int n_jobs = bench_option(argc, argv, "--jobs", 100000), n_curves = curves_read(curves);
    bench_job *jobs = hth_calloc((size_t)n_jobs, sizeof *jobs);
    double completion[6];
    sim_seed = 88172645463325252u;
    sim_need(jobs != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "no memory"), "jobs");
    bench_costs();
    bench_jobs(jobs, n_jobs, n_nodes, curves, n_curves);
    printf("\n%d nodes, %d jobs, %d tenants (simulated minutes; decisions measured)\n"
           "| scheduler | busy alone | mean completion | heavy tenants wait: mean, max | light "
           "tenants wait: mean, max | share error | ns a decision | decisions/s |\n"
           "|---|---:|---:|---:|---:|---:|---:|---:|\n",
           n_nodes, n_jobs, TENANTS);
    for (int i = 0; i < 6; i++) {
        completion[i] = bench_row(&how[i % 3], jobs, n_jobs, n_nodes, i < 3 ? 1 : 0.25);
    }
    for (int i = 0; i < 6; i += 3) {
        printf(
            "\n%s: with shares and elastic budgets jobs are complete after %.2f of the time that "
            "FIFO with rigid budgets takes in the mean",
            i == 0 ? "busy alone" : "busy a quarter", completion[i + 2] / completion[i]);
    }
    printf("\n");
    hth_free(jobs);
    return 0;
}
