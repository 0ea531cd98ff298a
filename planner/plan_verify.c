// SPDX-License-Identifier: Apache-2.0
// Replays a plan without trusting the planner. Order is what the streams and the waits give,
// nothing else: every instruction has a vector clock, the number of instructions of each stream
// that are surely complete when it starts. The arena is a map from addresses to the last buffer
// that lay there; a new buffer may cover an older one only if that was freed earlier in issue order
// and if every access to it, copies in flight included, is surely complete before the new buffer's
// first byte is written. The host slab is a second such map. Reads must find a tensor whose
// producer (or fetch) surely came before. Budget, arena height, resident bytes and live peak are
// computed again.
#include "planner/plan_impl.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

typedef struct verify_clock {
    int at[HTH_N_LANES]; // instructions of each stream complete
} verify_clock;

typedef struct verify_buffer {
    int tensor; // -1: workspace
    bool live;
    verify_clock access; // last access per stream
} verify_buffer;

typedef struct verify_span { // addresses [lo, hi) last belonged to `buffer`
    uint64_t lo, hi;
    int buffer;
} verify_span;

typedef struct verify_map {
    int n, cap;
    verify_span *span; // sorted, disjoint
} verify_map;

typedef struct verify_tensor {
    int buffer; // in the arena, -1: none
    uint64_t offset;
    bool valid;         // content was asked for by then
    bool given;         // had its place before the first compute, so who binds the arena fills it
    verify_clock ready; // .. and is surely there after this
    int host_buffer;    // in the host slab, -1: none
    uint64_t host_offset;
    verify_clock host_ready;
    bool saved;   // resident: its next content goes to the host, and is there after host_ready
    int replaced; // 1 + the node that gave it its next content, which none may take for the old
    int heir;     // takes over the place in-place, -1: none
} verify_tensor;

typedef struct verify {
    const hth_problem *p;
    const hth_plan *plan;
    int i;                          // current instruction
    verify_clock lane[HTH_N_LANES]; // clock after the last instruction of each stream
    verify_clock *done;             // clock after each instruction
    verify_tensor *tensor;
    int *pair;     // hth_plan_pairs
    int *computed; // per node: 1 + the alternative of its first execution, 0: none yet
    bool begun;    // something was computed
    int n_buffers, cap_buffers;
    verify_buffer *buffer;
    verify_map arena, host;
} verify;

static const char *verify_name(const char *name)
{
    return name ? name : "?";
}

#define VERIFY_FAIL(v, ...)                                                                        \
    (hth_fail(HTH_ECORRUPT, __VA_ARGS__),                                                          \
     hth_err_prefix(HTH_ECORRUPT, "plan instruction %d", (v)->i))

static void clock_join(verify_clock *a, const verify_clock *b)
{
    for (int l = 0; l < HTH_N_LANES; l++) {
        a->at[l] = b->at[l] > a->at[l] ? b->at[l] : a->at[l];
    }
}

static bool clock_covers(const verify_clock *a, const verify_clock *b)
{
    for (int l = 0; l < HTH_N_LANES; l++) {
        if (a->at[l] < b->at[l]) {
            return false;
        }
    }
    return true;
}

// The clock of an instruction on `lane` as far as accesses are concerned: itself only.
static verify_clock clock_self(const verify *v, hth_lane lane)
{
    verify_clock c = {{0}};
    c.at[lane] = v->lane[lane].at[lane] + 1;
    return c;
}

// Maps.

static int map_find(const verify_map *map, uint64_t lo) // first span that ends above lo
{
    int a = 0, b = map->n;
    while (a < b) {
        int mid = (a + b) / 2;
        if (map->span[mid].hi > lo) {
            b = mid;
        } else {
            a = mid + 1;
        }
    }
    return a;
}

// Replaces what lay in [lo, hi) by `buffer`.
static hth_err map_put(verify_map *map, uint64_t lo, uint64_t hi, int buffer)
{
    verify_span piece[3];
    int n = 0, a = map_find(map, lo), b = a;
    while (b < map->n && map->span[b].lo < hi) {
        b++;
    }
    if (b > a && map->span[a].lo < lo) {
        piece[n++] = (verify_span){map->span[a].lo, lo, map->span[a].buffer};
    }
    piece[n++] = (verify_span){lo, hi, buffer};
    if (b > a && map->span[b - 1].hi > hi) {
        piece[n++] = (verify_span){hi, map->span[b - 1].hi, map->span[b - 1].buffer};
    }
    int grow = n - (b - a);
    while (map->n + grow > map->cap) {
        if (hth_grow_((void **)&map->span, &map->cap, sizeof *map->span) != 0) {
            return hth_no_memory("verifying a plan");
        }
    }
    if (b < map->n) {
        memmove(&map->span[b + grow], &map->span[b], (size_t)(map->n - b) * sizeof *map->span);
    }
    memcpy(&map->span[a], piece, (size_t)n * sizeof *piece);
    map->n += grow;
    return HTH_OK;
}

static hth_err verify_new_buffer(verify *v, int tensor, int *out)
{
    if (HTH_GROW(v->buffer, v->n_buffers, v->cap_buffers) != 0) {
        return hth_no_memory("verifying a plan");
    }
    *out = v->n_buffers++;
    v->buffer[*out] = (verify_buffer){.tensor = tensor, .live = true};
    return HTH_OK;
}

// Whether `tensor`, an output, may lie on live buffer `old` because it takes over its input's
// place.
static bool verify_inherits(const verify *v, int tensor, uint64_t offset, int old)
{
    int in = v->buffer[old].tensor;
    return in >= 0 && tensor >= 0 && v->pair[tensor] == in && v->tensor[in].buffer == old &&
           v->tensor[in].offset == offset &&
           hth_plan_round(v->p->tensors[tensor].bytes) <= hth_plan_round(v->p->tensors[in].bytes);
}

// A new buffer of `bytes` at `offset` of `map`, first touched by something that starts at `start`.
static hth_err verify_place(verify *v, verify_map *map, uint64_t limit, int tensor, uint64_t offset,
                            uint64_t bytes, const verify_clock *start, int *out)
{
    const char *name = tensor >= 0 ? verify_name(v->p->tensors[tensor].name) : "workspace";
    bytes = hth_plan_round(bytes);
    if (offset % HTH_PLAN_ALIGN != 0 || bytes > limit || offset > limit - bytes) {
        return VERIFY_FAIL(v, "'%s' at offset %llu is misaligned or ends after the arena", name,
                           (unsigned long long)offset);
    }
    for (int k = map_find(map, offset); k < map->n && map->span[k].lo < offset + bytes; k++) {
        const verify_buffer *old = &v->buffer[map->span[k].buffer];
        if (old->live && !verify_inherits(v, tensor, offset, map->span[k].buffer)) {
            return VERIFY_FAIL(v, "'%s' would overlap '%s', which is still alive", name,
                               old->tensor >= 0 ? verify_name(v->p->tensors[old->tensor].name)
                                                : "workspace");
        }
        if (old->live) {
            v->tensor[old->tensor].heir = tensor;
        } else if (!clock_covers(start, &old->access)) {
            return VERIFY_FAIL(
                v, "'%s' takes a place that '%s' may still be using: a wait is missing", name,
                old->tensor >= 0 ? verify_name(v->p->tensors[old->tensor].name) : "workspace");
        }
    }
    HTH_TRY(verify_new_buffer(v, tensor, out));
    return bytes > 0 ? map_put(map, offset, offset + bytes, *out) : HTH_OK;
}

// Reads and writes.

// Tensor t is read by an instruction on `lane` that starts at `start`; `node`: by which, -1: a
// copy.
static hth_err verify_read(verify *v, int t, int node, hth_lane lane, const verify_clock *start)
{
    verify_tensor *x = &v->tensor[t];
    const char *name = verify_name(v->p->tensors[t].name);
    hth_home home = hth_plan_home(&v->p->tensors[t]);
    if (x->replaced && node >= 0 && x->replaced != node + 1) {
        return VERIFY_FAIL(v, "reads '%s' after its update", name);
    }
    if (home == HTH_HOME_RESIDENT && !v->plan->streamed[t]) {
        return HTH_OK;
    }
    if (home != HTH_HOME_CALLER && x->buffer < 0) {
        return VERIFY_FAIL(v, "reads '%s', which is not in memory", name);
    }
    if (!x->valid || !clock_covers(start, &x->ready)) {
        return VERIFY_FAIL(v, "reads '%s' before its copy is known to be complete", name);
    }
    if (x->buffer >= 0) {
        verify_clock self = clock_self(v, lane);
        clock_join(&v->buffer[x->buffer].access, &self);
    }
    return HTH_OK;
}

static hth_err verify_write(verify *v, int t)
{
    verify_tensor *x = &v->tensor[t];
    int old = v->p->tensors[t].replaces - 1;
    if (old >= 0) { // the same buffer, whether it is the caller's or lies in the arena for now
        verify_tensor *from = &v->tensor[old];
        from->ready = clock_self(v, HTH_LANE_COMPUTE);
        from->replaced = v->p->tensors[t].producer + 1;
        from->saved = false; // what went to the host before is not it
        if (from->buffer >= 0) {
            clock_join(&v->buffer[from->buffer].access, &from->ready);
        }
    }
    if (hth_plan_home(&v->p->tensors[t]) == HTH_HOME_ARENA && x->buffer < 0) {
        return VERIFY_FAIL(v, "writes '%s', which has no place",
                           verify_name(v->p->tensors[t].name));
    }
    x->valid = true;
    x->ready = clock_self(v, HTH_LANE_COMPUTE);
    if (x->buffer >= 0) {
        clock_join(&v->buffer[x->buffer].access, &x->ready);
    }
    return HTH_OK;
}

static hth_err verify_inputs(verify *v, const hth_plan_node *node, const verify_clock *start)
{
    for (int j = 0; j < node->n_inputs; j++) {
        HTH_TRY(
            verify_read(v, node->inputs[j], (int)(node - v->p->nodes), HTH_LANE_COMPUTE, start));
    }
    for (int j = 0; j < node->n_inputs;
         j++) { // overwritten in place: nobody else may still be reading it
        verify_tensor *x = &v->tensor[node->inputs[j]];
        if (x->heir < 0 || v->p->tensors[x->heir].producer != (int)(node - v->p->nodes)) {
            continue;
        }
        verify_clock others = v->buffer[x->buffer].access;
        others.at[HTH_LANE_COMPUTE] = 0;
        if (!clock_covers(start, &others)) {
            return VERIFY_FAIL(v, "overwrites '%s' while it is being copied",
                               verify_name(v->p->tensors[node->inputs[j]].name));
        }
        x->valid = false;
    }
    return HTH_OK;
}

static hth_err verify_compute(verify *v, const hth_instr *in, const verify_clock *start)
{
    if (in->node < 0 || in->node >= v->p->n_nodes) {
        return VERIFY_FAIL(v, "no node %d", in->node);
    }
    const hth_plan_node *n = &v->p->nodes[in->node];
    if (in->alt < 0 || in->alt >= (n->n_alternatives ? n->n_alternatives : 1)) {
        return VERIFY_FAIL(v, "node '%s' has no alternative %d", verify_name(n->name), in->alt);
    }
    if ((v->computed[in->node] != 0) != in->recompute) {
        return VERIFY_FAIL(v, "node '%s' is computed %s", verify_name(n->name),
                           in->recompute ? "again first" : "twice");
    }
    if (in->recompute && v->computed[in->node] != 1 + in->alt) {
        return VERIFY_FAIL(v, "node '%s' is recomputed with another algorithm",
                           verify_name(n->name));
    }
    v->computed[in->node] = 1 + in->alt;
    v->begun = true;
    uint64_t workspace = hth_plan_workspace(n, in->alt);
    for (int j = 0; in->recompute && j < n->n_outputs; j++) {
        const verify_tensor *x = &v->tensor[n->outputs[j]];
        if (j == 0) {
            workspace = hth_plan_round(workspace);
        }
        if (x->buffer < 0 || x->valid) {
            workspace += hth_plan_round(v->p->tensors[n->outputs[j]].bytes);
        }
    }
    if (in->recompute && !n->recomputable) {
        return VERIFY_FAIL(v, "node '%s' must not be recomputed", verify_name(n->name));
    }
    if (workspace > 0) {
        int b;
        HTH_TRY(
            verify_place(v, &v->arena, v->plan->arena_bytes, -1, in->offset, workspace, start, &b));
        v->buffer[b].access = clock_self(v, HTH_LANE_COMPUTE);
        v->buffer[b].live = false;
    }
    HTH_TRY(verify_inputs(v, n, start));
    for (int j = 0; j < n->n_outputs; j++) {
        const verify_tensor *x = &v->tensor[n->outputs[j]];
        if (!in->recompute || (x->buffer >= 0 && !x->valid)) {
            HTH_TRY(verify_write(v, n->outputs[j]));
        }
    }
    return HTH_OK;
}

static hth_err verify_alloc(verify *v, const hth_instr *in, const verify_clock *start)
{
    verify_tensor *x = &v->tensor[in->tensor];
    const hth_plan_tensor *t = &v->p->tensors[in->tensor];
    bool fetch = in->kind == HTH_INSTR_PREFETCH;
    hth_home home = hth_plan_home(t);
    bool may = home == HTH_HOME_ARENA ||
               (home == HTH_HOME_RESIDENT && fetch && v->plan->streamed[in->tensor]);
    if (!may || x->buffer >= 0) {
        return VERIFY_FAIL(v, "'%s' has its place elsewhere, or already one", verify_name(t->name));
    }
    HTH_TRY(verify_place(v, &v->arena, v->plan->arena_bytes, in->tensor, in->offset, t->bytes,
                         start, &x->buffer));
    x->offset = in->offset;
    x->heir = -1;
    bool given = !fetch && t->producer < 0 && !v->begun && !x->given;
    x->given = x->given || given;
    x->valid = fetch || given;
    x->ready = fetch ? clock_self(v, HTH_LANE_H2D) : (verify_clock){{0}};
    if (!fetch) {
        return HTH_OK;
    }
    v->buffer[x->buffer].access = x->ready;
    if (home == HTH_HOME_RESIDENT) { // comes from the store's copy, which an update has to reach
        bool last = !x->replaced || (x->saved && clock_covers(start, &x->host_ready));
        return last ? HTH_OK
                    : VERIFY_FAIL(v, "fetches '%s' as it was before its update",
                                  verify_name(t->name));
    }
    if (x->host_buffer < 0 || !clock_covers(start, &x->host_ready)) {
        return VERIFY_FAIL(v, "fetches '%s', of which the host has no complete copy",
                           verify_name(t->name));
    }
    clock_join(&v->buffer[x->host_buffer].access, &x->ready);
    return HTH_OK;
}

static hth_err verify_free(verify *v, const hth_instr *in)
{
    verify_tensor *x = &v->tensor[in->tensor];
    if (x->buffer < 0) {
        return VERIFY_FAIL(v, "frees '%s', which has no place",
                           verify_name(v->p->tensors[in->tensor].name));
    }
    v->buffer[x->buffer].live = false;
    x->buffer = x->heir = -1;
    x->valid = false;
    return HTH_OK;
}

static hth_err verify_offload(verify *v, const hth_instr *in, const verify_clock *start)
{
    verify_tensor *x = &v->tensor[in->tensor];
    HTH_TRY(verify_read(v, in->tensor, -1, HTH_LANE_D2H, start));
    if (x->buffer < 0) {
        return VERIFY_FAIL(v, "offloads '%s', which is not in the arena",
                           verify_name(v->p->tensors[in->tensor].name));
    }
    if (hth_plan_home(&v->p->tensors[in->tensor]) == HTH_HOME_RESIDENT) { // its own host copy
        x->saved = true;
        x->host_ready = clock_self(v, HTH_LANE_D2H);
        return HTH_OK;
    }
    int b;
    HTH_TRY(verify_place(v, &v->host, v->plan->host_bytes, in->tensor, in->offset,
                         v->p->tensors[in->tensor].bytes, start, &b));
    for (int t = 0; t < v->p->n_tensors; t++) { // whose copy was overwritten has none any more
        verify_tensor *y = &v->tensor[t];
        if (y->host_buffer >= 0 && y->host_offset < in->offset + v->p->tensors[in->tensor].bytes &&
            in->offset < y->host_offset + v->p->tensors[t].bytes) {
            y->host_buffer = -1;
        }
    }
    v->buffer[b].live = false; // in the slab only the order of accesses counts
    v->buffer[b].access = clock_self(v, HTH_LANE_D2H);
    x->host_buffer = b;
    x->host_offset = in->offset;
    x->host_ready = v->buffer[b].access;
    return HTH_OK;
}

// The replay.

static hth_err verify_kind(verify *v, const hth_instr *in, verify_clock *start)
{
    switch (in->kind) {
    case HTH_INSTR_COMPUTE:
        return verify_compute(v, in, start);
    case HTH_INSTR_FREE:
        return verify_free(v, in);
    case HTH_INSTR_OFFLOAD:
        return verify_offload(v, in, start);
    default: // both give it a buffer
        return verify_alloc(v, in, start);
    }
}

static hth_err verify_instr(verify *v)
{
    const hth_instr *in = &v->plan->instrs[v->i];
    hth_lane lane = hth_instr_lane(in);
    verify_clock start = v->lane[lane];
    if ((unsigned)in->kind > HTH_INSTR_PREFETCH ||
        (in->kind != HTH_INSTR_COMPUTE && (in->tensor < 0 || in->tensor >= v->p->n_tensors))) {
        return VERIFY_FAIL(v, "kind %d or tensor %d does not exist", (int)in->kind, in->tensor);
    }
    for (int j = 0; j < in->n_waits; j++) {
        if (in->waits[j] < 0 || in->waits[j] >= v->i) {
            return VERIFY_FAIL(v, "waits for instruction %d, which is not before it", in->waits[j]);
        }
        clock_join(&start, &v->done[in->waits[j]]);
    }
    hth_err err = verify_kind(v, in, &start);
    start.at[lane] = v->lane[lane].at[lane] + 1;
    v->done[v->i] = v->lane[lane] = start;
    return err;
}

static hth_err verify_totals(verify *v)
{
    const hth_problem *p = v->p;
    const hth_plan *plan = v->plan;
    uint64_t resident = 0, peak;
    for (int t = 0; t < p->n_tensors; t++) {
        bool here = hth_plan_home(&p->tensors[t]) == HTH_HOME_RESIDENT;
        if (plan->streamed[t] && !here) {
            return hth_fail(HTH_ECORRUPT, "plan: '%s' is not resident, it cannot be streamed",
                            verify_name(p->tensors[t].name));
        }
        resident += here && !plan->streamed[t] ? hth_plan_round(p->tensors[t].bytes) : 0;
    }
    HTH_TRY(hth_plan_live_peak(p, plan, &peak));
    if (resident != plan->resident_bytes || peak != plan->live_peak_bytes ||
        plan->arena_bytes < peak) {
        return hth_fail(
            HTH_ECORRUPT,
            "plan: resident %llu, live peak %llu, arena %llu bytes; it says %llu and %llu",
            (unsigned long long)resident, (unsigned long long)peak,
            (unsigned long long)plan->arena_bytes, (unsigned long long)plan->resident_bytes,
            (unsigned long long)plan->live_peak_bytes);
    }
    if (resident > p->budget || plan->arena_bytes > p->budget - resident) {
        return hth_fail(HTH_ECORRUPT,
                        "plan: %llu resident and %llu arena bytes exceed the budget of %llu",
                        (unsigned long long)resident, (unsigned long long)plan->arena_bytes,
                        (unsigned long long)p->budget);
    }
    return HTH_OK;
}

static hth_err verify_end(verify *v)
{
    for (int i = 0; i < v->p->n_nodes; i++) {
        if (!v->computed[i]) {
            return hth_fail(HTH_ECORRUPT, "plan: node '%s' is never computed",
                            verify_name(v->p->nodes[i].name));
        }
    }
    for (int t = 0; t < v->p->n_tensors; t++) {
        const hth_plan_tensor *x = &v->p->tensors[t];
        if (v->plan->streamed[t] && v->tensor[t].replaced && !v->tensor[t].saved) {
            return hth_fail(HTH_ECORRUPT, "plan: the update of '%s' is lost", verify_name(x->name));
        }
        if (x->cls == HTH_MEM_OUTPUT && x->producer >= 0 && !v->tensor[t].valid) {
            return hth_fail(HTH_ECORRUPT, "plan: output '%s' is missing at the end",
                            verify_name(x->name));
        }
    }
    return HTH_OK;
}

static hth_err verify_replay(verify *v)
{
    hth_plan_pairs(v->p, v->pair);
    for (int t = 0; t < v->p->n_tensors; t++) {
        const hth_plan_tensor *x = &v->p->tensors[t];
        v->tensor[t] = (verify_tensor){
            .buffer = -1, .host_buffer = -1, .heir = -1, .valid = x->external && x->producer < 0};
    }
    for (v->i = 0; v->i < v->plan->n_instrs; v->i++) {
        HTH_TRY(verify_instr(v));
    }
    HTH_TRY(verify_end(v));
    return verify_totals(v);
}

hth_err hth_plan_verify(const hth_problem *problem, const hth_plan *plan)
{
    HTH_TRY(hth_problem_check(problem));
    verify v = {.p = problem,
                .plan = plan,
                .done = hth_calloc((size_t)plan->n_instrs, sizeof *v.done),
                .tensor = hth_calloc((size_t)problem->n_tensors, sizeof *v.tensor),
                .pair = hth_alloc((size_t)problem->n_tensors * sizeof *v.pair),
                .computed = hth_calloc((size_t)problem->n_nodes, sizeof *v.computed)};
    hth_err err = v.done && v.tensor && v.pair && v.computed ? verify_replay(&v)
                                                             : hth_no_memory("verifying a plan");
    hth_free(v.done);
    hth_free(v.tensor);
    hth_free(v.pair);
    hth_free(v.computed);
    hth_free(v.buffer);
    hth_free(v.arena.span);
    hth_free(v.host.span);
    return err;
}
