// SPDX-License-Identifier: Apache-2.0
// Paths: which are in the mixture, what their weights come to, and which are missing. New ones are
// the longest under the average of the minimisers so far, which tends to a solution of the
// relaxation (Anstreicher and Wolsey 2009): copies out up to a stage, then copies in; and, of small
// problems, the longest of all.
#include "planner/bound/plan_bound_impl.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PATH_STAGES 64 // at which a path may turn
#define PATH_NEW    2  // at a time
#define PATH_SEEN   1e-3
#define PATH_WORTH  0.002 // of the step: shorter arcs are left out

void hth_bound_path_begin(hth_bound *bound)
{
    int n = bound->m->n_stages;
    bound->path[0] = (hth_bound_path){.n_arcs = 0}; // compute; all copies in; all copies out
    bound->path[1] = (hth_bound_path){.n_arcs = 1, .arc = {{0, n - 1, true, 0}}};
    bound->path[2] = (hth_bound_path){.n_arcs = 1, .arc = {{-1, n, false, 0}}};
    bound->n_paths = 3;
    bound->weight[0] = 1;
}

static int path_in_cmp(const void *a, const void *b)
{
    const hth_arc *x = a, *y = b;
    return x->from != y->from ? y->from - x->from : x->to - y->to;
}
static int path_out_cmp(const void *a, const void *b)
{
    const hth_arc *x = a, *y = b;
    return x->to != y->to ? x->to - y->to : x->from - y->from;
}

void hth_bound_arcs(hth_bound *bound)
{
    int n = bound->m->n_stages;
    double all = bound->weight[BOUND_BUSY];
    memset(bound->share, 0, ((size_t)n + 2) * sizeof *bound->share);
    memset(bound->in_at, 0, ((size_t)n + 2) * sizeof *bound->in_at);
    bound->n_in = bound->n_out = bound->n_dips = 0;
    for (int k = 0; k < bound->n_paths; k++) {
        double w = bound->weight[k];
        all += w;
        for (int i = 0; w > 0 && i < bound->path[k].n_arcs; i++) {
            hth_arc a = bound->path[k].arc[i];
            a.weight = w;
            if (hth_arc_first(&a) < a.to) {
                bound->share[hth_arc_first(&a)] -= w;
                bound->share[a.to] += w;
            }
            if (a.in) {
                bound->in_at[a.from] += w;
                bound->in_at[a.to + 1] -= w;
                bound->in[bound->n_in++] = a;
            } else {
                bound->out[bound->n_out++] = a;
            }
        }
    }
    double in = 0;
    for (int s = 0; s < n; s++) {
        all += bound->share[s];
        in += bound->in_at[s];
        bound->share[s] = fmax(all, 0);
        bound->in_at[s] = fmax(in, 0);
        if (s > 0 && bound->share[s] > bound->share[s - 1]) {
            bound->dip[bound->n_dips++] = s - 1;
        }
    }
    qsort(bound->in, (size_t)bound->n_in, sizeof *bound->in, path_in_cmp);
    qsort(bound->out, (size_t)bound->n_out, sizeof *bound->out, path_out_cmp);
}

void hth_bound_average(hth_bound *bound, double by)
{
    const hth_step *m = bound->m;
    for (int g = 0; g < m->n_intervals; g++) {
        bool moves = bound->choice[g].mode == HTH_INTERVAL_OFFLOAD;
        bound->mean_in[g] += by * (moves - bound->mean_in[g]);
        bound->mean_again[g] +=
            by * ((bound->choice[g].mode == HTH_INTERVAL_RECOMPUTE) - bound->mean_again[g]);
        bound->mean_out[g] += by * ((moves && bound->choice[g].saved) - bound->mean_out[g]);
    }
    for (int i = 0; i < bound->n_dead; i++) {
        bound->dead[i].mean += by * (bound->dead[i].moved - bound->dead[i].mean);
    }
    for (int s = 0; s < m->n_stages; s++) {
        bound->mean_us[s] += by * (bound->us[s] - bound->mean_us[s]);
    }
}

// A copy under the averages: out, `key` is the stage that made it and `limit` when it is away; in,
// `key` is the stage that needs it and `limit` until when it is away.
typedef struct path_copy {
    int key, limit;
    double us;
} path_copy;

typedef struct path_turn {
    double us;   // length of the path
    int p, s, q; // out (p, s), in (s + 1, q); -2: none
} path_turn;

static int path_copy_cmp(const void *a, const void *b)
{
    const path_copy *x = a, *y = b;
    return x->key - y->key;
}

static int path_limit_cmp(const void *a, const void *b)
{
    const path_copy *x = a, *y = b;
    return x->limit - y->limit;
}

static void path_copies(const hth_bound *bound, path_copy *out, int *n_out, path_copy *in,
                        int *n_in)
{
    const hth_step *m = bound->m;
    *n_out = *n_in = 0;
    for (int g = 0; g < m->n_intervals; g++) {
        const hth_interval *interval = &m->interval[g];
        const hth_choice_of_interval *c = &bound->choice[g];
        int t = interval->tensor, made = interval->cyclic ? interval->p : m->p->tensors[t].producer;
        if (bound->mean_in[g] > PATH_SEEN) {
            int back = c->mode == HTH_INTERVAL_OFFLOAD ? c->back : interval->q;
            in[(*n_in)++] = (path_copy){interval->q, back, bound->mean_in[g] * m->h2d_us[t]};
        }
        if (bound->mean_out[g] > PATH_SEEN) {
            int away = c->mode == HTH_INTERVAL_OFFLOAD ? c->away : interval->p + 1;
            out[(*n_out)++] = (path_copy){made, away, bound->mean_out[g] * m->d2h_us[t]};
        }
    }
    for (int i = 0; i < bound->n_dead; i++) {
        const hth_dead *x = &bound->dead[i];
        if (x->mean > PATH_SEEN) {
            int u = x->tensor, made = m->p->tensors[u].producer;
            in[(*n_in)++] = (path_copy){x->at, x->back, x->mean * x->share * m->h2d_us[u]};
            out[(*n_out)++] = (path_copy){made, x->away, x->mean * x->save * m->d2h_us[u]};
        }
    }
    qsort(out, (size_t)*n_out, sizeof *out, path_copy_cmp);
    qsort(in, (size_t)*n_in, sizeof *in, path_copy_cmp);
}

// The longest path that turns at stage s. begin[s]: compute before stage s.
static path_turn path_longest(int s, int n, const double *begin, const path_copy *out, int n_out,
                              const path_copy *in, int n_in)
{
    path_turn best = {begin[n], -2, s, -2};
    double sum = 0, before = begin[s], after = begin[n] - begin[s];
    for (int k = n_out - 1; k >= 0; k--) {
        if (out[k].limit <= s && out[k].key < s) {
            sum += out[k].us;
            int p = out[k].key;
            double us = begin[p + 1] + sum;
            if (us > before) {
                before = us;
                best.p = p;
            }
        }
    }
    sum = begin[s + 1] - begin[s];
    for (int k = 0; k < n_in; k++) {
        if (in[k].limit > s && in[k].key > s) {
            sum += in[k].us;
            double us = sum + begin[n] - begin[in[k].key];
            if (us > after) {
                after = us;
                best.q = in[k].key;
            }
        }
    }
    best.us = before + after;
    return best;
}

static bool path_same(const hth_bound_path *x, const hth_bound_path *y)
{
    bool same = x->n_arcs == y->n_arcs;
    for (int i = 0; same && i < x->n_arcs; i++) {
        same = x->arc[i].in == y->arc[i].in && x->arc[i].from == y->arc[i].from &&
               x->arc[i].to == y->arc[i].to;
    }
    return same;
}

// Adds a path, in place of the oldest without weight if there is no room.
static void path_insert(hth_bound *bound, const hth_bound_path *path)
{
    int at = bound->n_paths;
    for (int k = 0; k < bound->n_paths; k++) {
        if (path_same(&bound->path[k], path)) {
            return;
        }
    }
    if (at == BOUND_PATHS) {
        for (int k = 3; k < BOUND_PATHS; k++) {
            if (bound->weight[k] <= 0 &&
                (at == BOUND_PATHS || bound->path[k].age < bound->path[at].age)) {
                at = k;
            }
        }
        if (at == BOUND_PATHS) {
            return;
        }
    } else {
        bound->n_paths++;
    }
    bound->path[at] = *path;
    bound->weight[at] = 0;
}

static void path_choose(hth_bound *bound, path_turn *turn, int n_turns, int iteration)
{
    for (int k = 0; k < PATH_NEW; k++) {
        path_turn best = {.us = 0};
        for (int i = 0; i < n_turns; i++) {
            best = turn[i].us > best.us ? turn[i] : best;
        }
        for (int i = 0; i < n_turns; i++) { // the next one elsewhere
            turn[i].us = abs(turn[i].s - best.s) < bound->m->n_stages / 16 ? 0 : turn[i].us;
        }
        hth_bound_path x = {.age = iteration};
        if (best.us > 0 && best.p > -2) {
            x.arc[x.n_arcs++] = (hth_arc){best.p, best.s, false, 0};
        }
        if (best.us > 0 && best.q > -2) {
            x.arc[x.n_arcs++] = (hth_arc){best.s + 1, best.q, true, 0};
        }
        if (x.n_arcs > 0) {
            path_insert(bound, &x);
        }
    }
}

// The longest way to the beginning of a stage (W) or to its compute (S), and how it got there.
typedef struct path_way {
    double us;
    int from;
    bool copies; // by an arc from E_from, W_from; else by compute
} path_way;

static void path_reach(path_way *at, double us, int from, bool copies)
{
    if (us > at->us) {
        *at = (path_way){us, from, copies};
    }
}

// path_leave follows the arcs from E_s, which is at `us`, over the copies out of what is made in
// stage s or later; out[] by `limit`.
static void path_leave(int s, int n, const path_copy *out, int n_out, path_way *start, double us)
{
    for (int k = 0; k < n_out; k++) {
        int to = out[k].limit > s + 1 ? out[k].limit : s + 1;
        if (out[k].key >= s && to <= n) {
            us += out[k].us;
            path_reach(&start[to], us, s, true);
        }
    }
}

// path_enter follows those from W_s, over the copies in of what is away until stage s or later;
// in[] by `key`.
static void path_enter(int s, const path_copy *in, int n_in, path_way *ready, double us)
{
    for (int k = 0; k < n_in; k++) {
        if (in[k].limit >= s && in[k].key >= s) {
            us += in[k].us;
            path_reach(&ready[in[k].key], us, s, true);
        }
    }
}

// The longest of all paths; of one with too many arcs, the last ones. begin[s]: compute before
// stage s. Arcs are worth a look from where a copy was made, or comes back.
static hth_err path_best(const double *begin, int n, path_copy *out, int n_out, const path_copy *in,
                         int n_in, hth_bound_path *path)
{
    size_t count = (size_t)n + 2;
    path_way *start = hth_alloc(count * sizeof *start), *ready = hth_alloc(count * sizeof *ready);
    bool *made = hth_calloc(count, sizeof *made), *back = hth_calloc(count, sizeof *back);
    bool good = start != NULL && ready != NULL && made != NULL && back != NULL;
    double worth = PATH_WORTH * begin[n];
    qsort(out, (size_t)n_out, sizeof *out, path_limit_cmp);
    for (int k = 0; good && k < n_out; k++) {
        made[out[k].key > 0 ? out[k].key : 0] = true; // what no node made is there from the start
    }
    for (int k = 0; good && k < n_in; k++) {
        back[in[k].limit] = true;
    }
    for (int s = 0; good && s <= n; s++) {
        start[s] = ready[s] = (path_way){s == 0 ? 0 : -INFINITY, 0, false};
    }
    for (int s = 0; good && s < n; s++) {
        path_reach(&ready[s], start[s].us, s, false);
        path_enter(s, in, back[s] ? n_in : 0, ready, start[s].us - worth);
        double end = ready[s].us + begin[s + 1] - begin[s];
        path_reach(&start[s + 1], end, s, false);
        path_leave(s, n, out, made[s] ? n_out : 0, start, end - worth);
    }
    for (int s = n; good && s > 0 && path->n_arcs < BOUND_ARCS;) {
        int from = start[s].from;
        if (start[s].copies) {
            path->arc[path->n_arcs++] = (hth_arc){from, s, false, 0};
        }
        if (ready[from].copies && path->n_arcs < BOUND_ARCS) {
            path->arc[path->n_arcs++] = (hth_arc){ready[from].from, from, true, 0};
        }
        s = ready[from].from;
    }
    hth_free(start);
    hth_free(ready);
    hth_free(made);
    hth_free(back);
    return good ? HTH_OK : hth_no_memory("a path of %d nodes", n);
}

hth_err hth_bound_path_add(hth_bound *bound, int iteration)
{
    int n = bound->m->n_stages, n_out, n_in, n_turns = 0;
    size_t ng = (size_t)bound->m->n_intervals + (size_t)bound->n_dead + 1;
    path_copy *out = hth_alloc(ng * sizeof *out), *in = hth_alloc(ng * sizeof *in);
    path_turn turn[PATH_STAGES] = {{0}};
    hth_bound_path longest = {.age = iteration};
    hth_err err = HTH_OK;
    if (out != NULL && in != NULL) {
        path_copies(bound, out, &n_out, in, &n_in);
        bound->us_sum[0] = 0;
        for (int s = 0; s < n; s++) {
            bound->us_sum[s + 1] = bound->us_sum[s] + bound->mean_us[s];
        }
        for (int k = 0; k < PATH_STAGES; k++) {
            int s = (int)((int64_t)(k + 1) * n / (PATH_STAGES + 1));
            if (n_turns == 0 || s > turn[n_turns - 1].s) {
                turn[n_turns++] = path_longest(s, n, bound->us_sum, out, n_out, in, n_in);
            }
        }
        path_choose(bound, turn, n_turns, iteration);
        if (n <= BOUND_SMALL) {
            err = path_best(bound->us_sum, n, out, n_out, in, n_in, &longest);
        }
        if (longest.n_arcs > 0) {
            path_insert(bound, &longest);
        }
    } else {
        err = hth_no_memory("bounding a step of %d nodes", n);
    }
    hth_free(out);
    hth_free(in);
    return err;
}
