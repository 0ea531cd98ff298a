// SPDX-License-Identifier: Apache-2.0
// tests/bench/cluster.h - a simulated cluster for fair_bench.c: nodes whose jobs take turns, and a
// queue that says which job starts. Every number but spent_ns is simulated.
#ifndef HTH_TESTS_BENCH_CLUSTER_H
#define HTH_TESTS_BENCH_CLUSTER_H

#include "base/clock.h"
#include "fair/fair_heap.h"
#include "fair/fair_queue.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define S           1000000000.0
#define NODE_MEMORY (48.0 * (1 << 30))
#define NODE_JOBS   12
#define NODE_GIB    48
#define TENANTS     20
#define HEAVY       4 // of them
#define CURVES      16
#define POINTS      16

enum { MEMORY, SLOTS, RESOURCES };

typedef struct curve {
    char name[40];
    int n;
    hth_fair_amounts demand[POINTS];
    double step_us[POINTS];
} curve;

typedef struct bench_job {
    hth_fair_job job; // its tenant is 0 where shares are not asked for
    int tenant;
    const curve *curve;
    double alone_ns; // with the fastest plan
    uint64_t arrives_ns, starts_ns, ended_ns, since_ns;
    double left_ns; // alone, with its plan
    uint64_t run_ns[POINTS];
    int with; // its demand now
    int node, place;
} bench_job;

typedef struct bench_node {
    bench_job *job[NODE_JOBS];
    int n, next, last; // in the list of its kind
    double free;
} bench_node;

typedef struct scheduler {
    const char *name;
    bool shares, elastic; // one tenant's queue without backfill, rigid budgets: else
} scheduler;

typedef struct sim {
    const scheduler *how;
    hth_fair_queue *q;
    bench_job *jobs;
    bench_node *nodes;
    int n_jobs, n_nodes, arrived, started, ended;
    int first[NODE_JOBS + 1][NODE_GIB + 1]; // nodes by jobs and free memory; -1: none
    hth_fair_heap ends;
    uint64_t now_ns;
    uint64_t decisions, spent_ns;
    double busy;                    // the part of the device's time that a job alone uses
    uint64_t sample_ns, sampled_ns; // how often shares are looked at
    double error;
    int samples;
} sim;

static uint64_t sim_seed;

static double sim_uniform(void)
{
    sim_seed ^= sim_seed << 13;
    sim_seed ^= sim_seed >> 7;
    sim_seed ^= sim_seed << 17;
    return (double)(sim_seed >> 11) / 9007199254740992.0;
}

static void sim_need(hth_err err, const char *what)
{
    if (err != HTH_OK) {
        fprintf(stderr, "%s: %s\n", what, hth_err_detail());
        exit(1);
    }
}

static int curves_read(curve *c)
{
    FILE *f = fopen("tests/data/curves.txt", "r");
    char name[40];
    double bytes, us;
    int n = 0;
    while (f != NULL && fscanf(f, "%39s %lf %lf", name, &bytes, &us) == 3) {
        n += n == 0 || strcmp(c[n - 1].name, name) != 0;
        if (n > CURVES || c[n - 1].n == POINTS) {
            break;
        }
        curve *x = &c[n - 1];
        memcpy(x->name, name, sizeof name);
        x->demand[x->n] = (hth_fair_amounts){{bytes, 1}};
        x->step_us[x->n++] = us;
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    sim_need(n > 0 ? HTH_OK : hth_fail(HTH_ENOENT, "no curves"), "tests/data/curves.txt");
    return n;
}

// Nodes: lists by the number of jobs and by whole GiB that are free.

static int *node_list(sim *s, const bench_node *node)
{
    return &s->first[node->n][(int)(node->free / (1 << 30))];
}

static void node_in(sim *s, int i)
{
    bench_node *n = &s->nodes[i];
    int *first = node_list(s, n);
    n->next = *first;
    n->last = -1;
    if (*first >= 0) {
        s->nodes[*first].last = i;
    }
    *first = i;
}

static void node_out(sim *s, int i)
{
    bench_node *n = &s->nodes[i];
    if (n->last >= 0) {
        s->nodes[n->last].next = n->next;
    } else {
        *node_list(s, n) = n->next;
    }
    if (n->next >= 0) {
        s->nodes[n->next].last = n->last;
    }
}

// node_find is where a job of so many bytes goes; -1: nowhere.
static int node_find(const sim *s, double bytes)
{
    for (int n = 0; n < NODE_JOBS; n++) {
        for (int gib = (int)(bytes / (1 << 30)); gib <= NODE_GIB; gib++) {
            int i = s->first[n][gib];
            while (i >= 0 && s->nodes[i].free < bytes) {
                i = s->nodes[i].next;
            }
            if (i >= 0) {
                return i;
            }
        }
    }
    return -1;
}

// node_hole is the most memory that a job can get now.
static hth_fair_amounts node_hole(const sim *s)
{
    double most = 0;
    for (int n = 0; n < NODE_JOBS; n++) {
        for (int gib = NODE_GIB; gib >= 0; gib--) {
            int i = s->first[n][gib];
            if (i >= 0) {
                most = fmax(most, s->nodes[i].free);
                break;
            }
        }
    }
    return (hth_fair_amounts){{most, most > 0}};
}

static bool job_before(const void *a, const void *b)
{
    const bench_job *x = a, *y = b;
    return x->ended_ns != y->ended_ns ? x->ended_ns < y->ended_ns : x < y;
}

// How many times slower n jobs on a node are than one.
static double node_slows(const sim *s, int n)
{
    return fmax(1, n * s->busy);
}

// node_turns sets when the jobs of a node end, from its number of jobs on now, `before` until now.
static void node_turns(sim *s, bench_node *node, int before)
{
    for (int i = 0; i < node->n; i++) {
        bench_job *j = node->job[i];
        j->left_ns =
            fmax(0, j->left_ns - (double)(s->now_ns - j->since_ns) / node_slows(s, before));
        j->since_ns = s->now_ns;
        j->ended_ns = s->now_ns + (uint64_t)(j->left_ns * node_slows(s, node->n)) + 1;
        if (j->place == 0) {
            sim_need(hth_fair_heap_push(&s->ends, j), "events");
        } else {
            hth_fair_heap_moved(&s->ends, j);
        }
        hth_fair_queue_ends(s->q, &j->job, j->ended_ns);
    }
}

static void sim_start(sim *s, bench_job *job)
{
    job->with = job->job.with;
    double bytes = job->job.demand[job->with].of[MEMORY];
    int i = node_find(s, bytes);
    if (i < 0) {
        fprintf(stderr, "a job of %.0f bytes has no node\n", bytes);
        exit(1);
    }
    bench_node *n = &s->nodes[i];
    node_out(s, i);
    job->node = i;
    job->starts_ns = job->since_ns = s->now_ns;
    job->left_ns = job->alone_ns * job->curve->step_us[job->with] / job->curve->step_us[0];
    s->started++;
    n->job[n->n++] = job;
    n->free -= bytes;
    node_in(s, i);
    node_turns(s, n, n->n - 1);
}

// sim_grow gives the jobs of a node what is free there, if nobody waits for it.
static void sim_grow(sim *s, bench_node *node)
{
    for (int i = 0; i < node->n && s->started == s->arrived; i++) {
        bench_job *j = node->job[i];
        const hth_fair_amounts *demand = j->job.demand;
        double room = node->free + demand[j->with].of[MEMORY];
        int with = 0;
        while (with < j->with && demand[with].of[MEMORY] > room) {
            with++;
        }
        node->free = room - demand[with].of[MEMORY];
        j->left_ns *= j->curve->step_us[with] / j->curve->step_us[j->with];
        hth_fair_queue_holds(s->q, &j->job, &demand[with]);
        j->with = with;
    }
}

static void sim_end(sim *s, bench_job *job)
{
    bench_node *n = &s->nodes[job->node];
    double bytes = job->job.demand[job->with].of[MEMORY];
    int k = 0;
    hth_fair_heap_remove(&s->ends, job);
    uint64_t from_ns = hth_now_ns();
    hth_fair_queue_remove(s->q, &job->job);
    s->spent_ns += hth_now_ns() - from_ns;
    node_out(s, job->node);
    while (n->job[k] != job) {
        k++;
    }
    n->job[k] = n->job[--n->n];
    n->free += bytes;
    node_turns(s, n, n->n + 1);
    sim_grow(s, n);
    node_in(s, job->node);
    node_turns(s, n, n->n);
    s->ended++;
}

#endif
