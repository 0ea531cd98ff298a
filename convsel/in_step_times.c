// SPDX-License-Identifier: Apache-2.0
// A node alone, however its caches are prepared, is not the node in its step: others' memory
// traffic is still under way, pages and code are elsewhere, buffers lie where the plan puts them.
// So what a step's nodes really take is kept, too, one line per algorithm, under the key of the
// measurement that it corrects and apart from it: what was measured alone never changes, and is
// what a first time in a step is held against. Algorithms that no step ran with are scaled like the
// ones that one did; otherwise those that look slower in a step would lose to those that nobody
// tried.
//
// What is planned from these times decides what is seen next. That cannot run away: a value moves
// by a bounded part of itself towards what is seen, and nothing is derived from it but plans.
#include "convsel/in_step_times.h"

#include "base/alloc.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IN_STEP_VALUE 2048
#define IN_STEP_ALONE 4.0   // a first time is within this factor of the one measured alone
#define IN_STEP_STEP  1.5   // later ones, of the one before
#define IN_STEP_N     4     // steps that count; later ones weigh as much as the last of them
#define IN_STEP_SAME  0.002 // of the value: a smaller change is not written

typedef struct in_step_line {
    char name[48];
    double us;
    int n;
} in_step_line;

typedef struct in_step_table {
    in_step_line line[HTH_MAX_CHOICES];
    int n;
} in_step_table;

static double clamp(double x, double around, double factor)
{
    return fmin(fmax(x, around / factor), around * factor);
}

double hth_in_step_times_blend(double old, int n, double now)
{
    double weight = 1.0 / (n + 1 < IN_STEP_N ? n + 1 : IN_STEP_N);
    return old + weight * (clamp(now, old, IN_STEP_STEP) - old);
}

// "in-situ4 .." of "convsel4 ..", and no longer than that: what older kernels took in a step counts
// no more than what they take alone.
static void in_step_key(const char *key, char out[HTH_CONVSEL_KEY])
{
    snprintf(out, HTH_CONVSEL_KEY, "in-situ%s", key + strlen("convsel"));
}

hth_err hth_in_step_times_forget(const hth_timing_cache *cache, const char *key)
{
    char at[HTH_CONVSEL_KEY];
    in_step_key(key, at);
    return cache->put(cache->ctx, at, HTH_CONVSEL_NOTHING);
}

// A value that is not as table_put makes it is as good as none.
static void table_get(const hth_timing_cache *cache, const char *key, in_step_table *table)
{
    char value[IN_STEP_VALUE], at[HTH_CONVSEL_KEY];
    const char *in = value;
    table->n = 0;
    in_step_key(key, at);
    if (cache == NULL || cache->get(cache->ctx, at, value, sizeof value) != HTH_OK) {
        return;
    }
    while (*in != '\0' && table->n < HTH_MAX_CHOICES) {
        in_step_line *l = &table->line[table->n];
        int used = 0;
        if (sscanf(in, "%47s %lf %d\n%n", l->name, &l->us, &l->n, &used) != 3 || used == 0 ||
            !(l->us > 0 && l->us <= HTH_CONVSEL_MOST_US) || l->n < 1 || l->n > IN_STEP_N) {
            table->n = 0;
            return;
        }
        in += used;
        table->n++;
    }
}

// What the cache does not take is learnt again by a later step.
static void table_put(const hth_timing_cache *cache, const char *key, const in_step_table *table)
{
    char value[IN_STEP_VALUE], at[HTH_CONVSEL_KEY];
    size_t used = 0;
    in_step_key(key, at);
    for (int i = 0; i < table->n; i++) {
        const in_step_line *l = &table->line[i];
        int n = snprintf(value + used, sizeof value - used, "%s %.3f %d\n", l->name, l->us, l->n);
        if (n < 0 || used + (size_t)n >= sizeof value) {
            break;
        }
        used += (size_t)n;
    }
    value[used] = '\0';
    (void)cache->put(cache->ctx, at, value);
}

static in_step_line *table_find(in_step_table *table, const char *name)
{
    for (int i = 0; i < table->n; i++) {
        if (strcmp(table->line[i].name, name) == 0) {
            return &table->line[i];
        }
    }
    return NULL;
}

void hth_in_step_times_apply(const hth_timing_cache *cache, const char *key, hth_choice *list,
                             int n)
{
    in_step_table t;
    double sum = 0;
    int seen = 0;
    table_get(cache, key, &t);
    for (int i = 0; i < n && t.n > 0; i++) {
        const in_step_line *l = table_find(&t, list[i].name);
        if (l != NULL && list[i].time_us > 0) {
            sum += log(clamp(l->us / list[i].time_us, 1, IN_STEP_ALONE));
            seen++;
        }
    }
    for (int i = 0; i < n && seen > 0; i++) {
        const in_step_line *l = table_find(&t, list[i].name);
        list[i].time_us = l != NULL ? l->us : list[i].time_us * exp(sum / seen);
    }
}

// What one algorithm took, of nodes with one key.
typedef struct in_step_row {
    char key[HTH_CONVSEL_KEY];
    const char *name;
    double us;
} in_step_row;

static int row_order(const void *a, const void *b)
{
    const in_step_row *x = a, *y = b;
    int by_key = strcmp(x->key, y->key);
    return by_key != 0 ? by_key : strcmp(x->name, y->name);
}

static bool table_see(in_step_table *table, const hth_choice *alone, double us)
{
    in_step_line *l = table_find(table, alone->name);
    if (l == NULL && table->n < HTH_MAX_CHOICES) {
        l = &table->line[table->n++];
        *l = (in_step_line){.us = clamp(us, alone->time_us, IN_STEP_ALONE), .n = 1};
        memcpy(l->name, alone->name, sizeof l->name);
        return true;
    }
    if (l == NULL) {
        return false;
    }
    double was = l->us;
    bool settled = l->n >= IN_STEP_N;
    l->us = hth_in_step_times_blend(l->us, l->n, us);
    l->n += !settled;
    return !settled || fabs(l->us - was) > IN_STEP_SAME * was;
}

// Rows of one key.
static void in_step_update(const hth_timing_cache *cache, const in_step_row *row, int n)
{
    hth_choice alone[HTH_MAX_CHOICES];
    in_step_table t;
    bool changed = false;
    int n_alone = hth_convsel_alone(cache, row->key, alone, HTH_MAX_CHOICES);
    table_get(cache, row->key, &t);
    for (int first = 0, end; first < n; first = end) {
        double sum = 0;
        for (end = first; end < n && strcmp(row[end].name, row[first].name) == 0; end++) {
            sum += row[end].us;
        }
        for (int k = 0; k < n_alone; k++) {
            if (strcmp(alone[k].name, row[first].name) == 0 && alone[k].time_us > 0) {
                changed |= table_see(&t, &alone[k], sum / (end - first));
            }
        }
    }
    if (changed) {
        table_put(cache, row->key, &t);
    }
}

hth_err hth_in_step_times_learn(hth_device *device, const hth_graph *graph,
                                const hth_cache_model *cache_state, const hth_timing_cache *cache,
                                const hth_in_step_times *seen)
{
    in_step_row *rows = hth_calloc((size_t)graph->n_nodes + 1, sizeof *rows);
    hth_err err = rows == NULL ? hth_no_memory("the measured times of nodes") : HTH_OK;
    int n = 0;
    for (int i = 0; err == HTH_OK && i < graph->n_nodes; i++) {
        if (seen[i].name != NULL && seen[i].time_us > 0) {
            hth_convsel_key(device, graph, &graph->nodes[i], cache_state, rows[n].key,
                            sizeof rows[n].key);
            rows[n].name = seen[i].name;
            rows[n++].us = seen[i].time_us;
        }
    }
    if (n > 0) {
        qsort(rows, (size_t)n, sizeof *rows, row_order);
    }
    for (int first = 0, end; err == HTH_OK && cache != NULL && first < n; first = end) {
        for (end = first; end < n && strcmp(rows[end].key, rows[first].key) == 0; end++) {
        }
        in_step_update(cache, &rows[first], end - first);
    }
    hth_free(rows);
    return err;
}
