// SPDX-License-Identifier: Apache-2.0
// Programs at work: found by their inputs, made active (weights and arena in device memory), run,
// made inactive.
//
// Room is made in this order: idle weights that no program holds (residency's own LRU), then the
// arena when it is larger than needed, then the least recently used other active programs, except
// pinned ones and those that run. A program's own plan fits what jobs and pinned programs leave, so
// when everything else is gone it fits; where the pool is in pieces pinned weights move, too.
#include "server/program.h"

#include "base/alloc.h"
#include "server/quota.h"

#include <string.h>

static bool key_equal(const hth_program *p, const hth_tensor *inputs, int n)
{
    for (int i = 0; i < n; i++) {
        const hth_tensor *k = &p->key[i];
        if (k->dtype != inputs[i].dtype || !hth_shape_equal(&k->shape, &inputs[i].shape)) {
            return false;
        }
        if (k->data != NULL &&
            (inputs[i].data == NULL || memcmp(k->data, inputs[i].data, k->bytes) != 0)) {
            return false;
        }
    }
    return true;
}

hth_program *hth_source_match(hth_source *s, const hth_tensor *inputs)
{
    for (hth_program **at = &s->programs; *at != NULL; at = &(*at)->next) {
        hth_program *p = *at;
        if (p->graph->precision == s->graph->precision &&
            key_equal(p, inputs, s->graph->n_inputs)) {
            *at = p->next; // to the front
            p->next = s->programs;
            s->programs = p;
            return p;
        }
    }
    return NULL;
}

static hth_err weight_write(const hth_weight *w, void *dst)
{
    const void *plain;
    HTH_TRY(hth_const_map(w->content, &plain));
    hth_err err = HTH_OK;
    if (w->packing != NULL) {
        err = w->packing->pack(w->kernel, w->packing, plain, dst);
    } else {
        memcpy(dst, plain, w->bytes);
    }
    hth_const_unmap(w->content);
    return err;
}

typedef struct weight_filling {
    hth_device *device;
    const hth_weight *weight;
} weight_filling;

// Where the host does not see the device's memory the form is made aside.
static hth_err weight_fill(void *ctx, void *dst, size_t bytes)
{
    const weight_filling *f = ctx;
    if (f->device->props.host_visible) {
        return weight_write(f->weight, dst);
    }
    void *form = hth_alloc_aligned(bytes, HTH_DEVICE_ALIGN);
    hth_err err = form == NULL ? hth_fail(HTH_ENOMEM, "no memory for a weight")
                               : weight_write(f->weight, form);
    err = err == HTH_OK ? hth_device_put(f->device, dst, form, bytes) : err;
    hth_free(form);
    return err;
}

static void active_unlink(hth_site *site, hth_program *p)
{
    hth_program **at = &site->active;
    while (*at != NULL && *at != p) {
        at = &(*at)->active_next;
    }
    if (*at == p) {
        *at = p->active_next;
    }
}

// Gives the weights up. Those of a hold that did not come about leave the device, too.
static void weights_drop(hth_site *site, hth_program *p, bool failed)
{
    for (int i = 0; i < p->n_weights; i++) {
        hth_weight *w = &p->weights[i];
        hth_residency_rele(site->residency, w->entry);
        if (failed && w->entry != NULL && w->fresh) {
            hth_residency_drop(site->residency, &w->content->id, w->form);
        }
        w->entry = NULL;
        w->fresh = false;
    }
}

void hth_program_deactivate(hth_site *site, hth_program *p)
{
    active_unlink(site, p);
    weights_drop(site, p, false);
    p->active = false;
}

void hth_program_evict(hth_site *site, hth_program *p)
{
    hth_program_deactivate(site, p);
    for (int w = 0; site->residency != NULL && w < p->n_weights; w++) {
        if (!p->weights[w].in_place) {
            hth_residency_drop(site->residency, &p->weights[w].content->id, p->weights[w].form);
        }
    }
}

// room_make deactivates the least recently used other program; false when there is none left.
// pinned: those, too.
static bool room_make(hth_site *site, const hth_program *keep, bool pinned)
{
    hth_program *victim = NULL;
    for (hth_program *p = site->active; p != NULL; p = p->active_next) {
        bool free = p != keep && !p->running && (pinned || !p->pinned);
        if (free && (victim == NULL || p->used_at < victim->used_at)) {
            victim = p;
        }
    }
    if (victim == NULL) {
        return false;
    }
    hth_program_deactivate(site, victim);
    return true;
}

static void arena_drop(hth_site *site)
{
    hth_pool_free(site->pool, site->arena);
    site->arena = NULL;
    site->arena_owner = NULL;
    site->arena_owned = 0;
    site->arena_bytes = 0;
}

// Drops an arena of more than `need` bytes; false: there is none.
static bool arena_give(hth_site *site, size_t need)
{
    bool more = site->arena_bytes > need;
    if (more) {
        arena_drop(site);
    }
    return more;
}

hth_err hth_site_alloc(hth_site *site, size_t bytes, hth_pool_use use, void **out)
{
    hth_err err;
    do {
        err = hth_residency_alloc(site->residency, bytes, use, out);
    } while (err == HTH_ENODEVMEM && (arena_give(site, 0) || room_make(site, NULL, false)));
    if (err == HTH_OK && site->arena_cleared) { // it may have been another tenant's
        err = hth_device_zero(site->device, *out, bytes);
        if (err != HTH_OK) {
            hth_pool_free(site->pool, *out);
            *out = NULL;
        }
    }
    return err;
}

// A larger arena takes the other's place: beside it, where there is room, so that a failure leaves
// what was there.
static hth_err arena_ensure(hth_site *site, const hth_program *p)
{
    size_t need = p->plan->arena_bytes;
    void *larger;
    if (p->arena != NULL || site->arena_bytes >= need) {
        return HTH_OK;
    }
    hth_err err = hth_pool_alloc(site->pool, need, HTH_POOL_ARENA, &larger);
    if (err == HTH_ENODEVMEM) {
        arena_drop(site);
        do {
            err = hth_residency_alloc(site->residency, need, HTH_POOL_ARENA, &larger);
        } while (err == HTH_ENODEVMEM && room_make(site, p, false));
    }
    if (err == HTH_OK) {
        arena_drop(site);
        site->arena = larger;
        site->arena_bytes = need;
    }
    return err;
}

void hth_site_trim(hth_site *site)
{
    size_t need = 0;
    for (const hth_program *p = site->programs; p != NULL; p = p->site_next) {
        bool mine = p->train == NULL && p->arena == NULL && p->run != NULL;
        if (mine && p->running) { // in the arena: between two of its operators, a model was let go
            site->trim = true;
            return;
        }
        if (mine && p->plan->arena_bytes > need) {
            need = p->plan->arena_bytes;
        }
    }
    site->trim = false;
    if (arena_give(site, need) && need > 0 &&
        hth_pool_alloc(site->pool, need, HTH_POOL_ARENA, &site->arena) == HTH_OK) {
        site->arena_bytes = need;
    }
}

static hth_err weight_hold(hth_site *site, hth_program *p, hth_weight *w)
{
    hth_residency_stats before, after;
    weight_filling filling = {site->device, w};
    hth_err err;
    hth_residency_stats_get(site->residency, &before);
    do {
        err = hth_residency_hold(site->residency, &w->content->id, w->form, w->bytes, weight_fill,
                                 &filling, &w->entry);
    } while (err == HTH_ENODEVMEM &&
             (arena_give(site, p->plan->arena_bytes) || room_make(site, p, false)));
    hth_residency_stats_get(site->residency, &after);
    w->fresh = after.fills > before.fills;
    return err;
}

static hth_err weights_hold(hth_site *site, hth_program *p)
{
    for (int i = 0; i < p->n_weights; i++) {
        hth_weight *w = &p->weights[i];
        int t = p->weight_tensor[i];
        if (w->in_place) {
            p->fixed[t] = (void *)w->content->data;
        } else if (!w->streamed) {
            HTH_TRY(weight_hold(site, p, w));
            p->fixed[t] = hth_resident_data(w->entry);
        }
    }
    return HTH_OK;
}

static hth_err stream_fill(const hth_weight *w)
{
    if (w->far.memory != NULL) {
        return weight_write(w, w->far.memory);
    }
    void *form = hth_alloc_aligned(w->bytes, HTH_DEVICE_ALIGN);
    hth_err err =
        form == NULL ? hth_fail(HTH_ENOMEM, "no memory for a weight") : weight_write(w, form);
    err = err == HTH_OK ? hth_spill_write(w->far.file, w->far.at, form, w->bytes) : err;
    hth_free(form);
    return err;
}

static hth_err streams_fill(hth_program *p)
{
    for (int i = 0; i < p->n_weights && !p->filled; i++) {
        if (p->weights[i].streamed) {
            HTH_TRY(stream_fill(&p->weights[i]));
        }
    }
    p->filled = true;
    return HTH_OK;
}

static void active_link(hth_site *site, hth_program *p)
{
    p->active = true;
    p->active_next = site->active;
    site->active = p;
}

// The pool is in pieces: all that can move leaves it, and comes back in one.
static hth_err activate_again(hth_site *site, hth_program *p)
{
    weights_drop(site, p, true);
    arena_drop(site);
    while (room_make(site, p, true)) {
    }
    hth_residency_evict(site->residency, UINT64_MAX);
    for (hth_program *q = site->programs; q != NULL; q = q->site_next) {
        if (q->pinned && !q->active && q != p) { // first, and so at the low end
            HTH_TRY(weights_hold(site, q));
            active_link(site, q);
        }
    }
    HTH_TRY(weights_hold(site, p));
    return arena_ensure(site, p);
}

hth_err hth_program_activate(hth_site *site, hth_program *p)
{
    p->used_at = ++site->clock;
    if (p->active) {
        return arena_ensure(site, p);
    }
    HTH_TRY(hth_quota_room(site, p)); // before anything of anybody's moves
    hth_err err = weights_hold(site, p);
    err = err == HTH_OK ? streams_fill(p) : err;
    err = err == HTH_OK ? arena_ensure(site, p) : err;
    if (err == HTH_ENODEVMEM) {
        err = activate_again(site, p);
        err = err == HTH_OK ? streams_fill(p) : err;
    }
    if (err != HTH_OK) {
        weights_drop(site, p, true);
        return err;
    }
    active_link(site, p);
    err = p->train == NULL ? hth_quota_holds(site, p->account, p) : HTH_OK;
    if (err != HTH_OK) {
        hth_program_evict(site, p);
    }
    return err;
}

// What pinned programs keep: each copy once.
static void pinned_count(hth_site *site)
{
    site->pinned_bytes = site->pinned_arena = 0;
    for (const hth_program *p = site->programs; p != NULL; p = p->site_next) {
        for (int i = 0; p->pinned && i < p->n_weights; i++) {
            const hth_weight *w = &p->weights[i];
            bool first = !w->in_place && !w->streamed;
            for (const hth_program *q = site->programs; first && q != p; q = q->site_next) {
                for (int k = 0; q->pinned && k < q->n_weights && first; k++) {
                    first = q->weights[k].entry == NULL || q->weights[k].entry != w->entry;
                }
            }
            site->pinned_bytes += first ? hth_plan_round(w->bytes) : 0;
        }
        if (p->pinned && p->plan->arena_bytes > site->pinned_arena) {
            site->pinned_arena = p->plan->arena_bytes;
        }
    }
}

void hth_program_pin(hth_site *site, hth_program *p, bool on)
{
    if (p->pinned != on) {
        p->pinned = on;
        site->freed += !on;
        pinned_count(site);
    }
}

hth_tensor hth_program_output(const hth_program *p, int i)
{
    const hth_value *v = &p->graph->values[p->graph->outputs[i]];
    hth_tensor t = {.dtype = v->dtype, .shape = v->shape};
    (void)hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN,
                           &t.bytes); // was computed when compiling
    return t;
}

// output_copy serves outputs that no node writes: constants, inputs passed through, a value given
// twice.
static hth_err output_copy(const hth_program *p, int i, const hth_tensor *inputs,
                           const hth_tensor *out)
{
    const hth_graph *g = p->graph;
    const hth_value *v = &g->values[g->outputs[i]];
    if (v->constant != NULL) {
        const void *data;
        HTH_TRY(hth_const_map(v->constant, &data));
        memcpy(out[i].data, data, out[i].bytes);
        hth_const_unmap(v->constant);
        return HTH_OK;
    }
    for (int k = 0; k < g->n_inputs; k++) {
        if (g->inputs[k] == g->outputs[i] && inputs[k].data != out[i].data) {
            memcpy(out[i].data, inputs[k].data, out[i].bytes);
            return HTH_OK;
        }
    }
    for (int k = 0; k < i; k++) {
        if (g->outputs[k] == g->outputs[i]) {
            memcpy(out[i].data, out[k].data, out[i].bytes);
            return HTH_OK;
        }
    }
    return HTH_OK;
}

// arena_hand_over leaves nothing of other models' runs where this one could read it. No operator
// lets what was there into a result, so that clearing is a second wall; debug builds fill the
// host's arena with NaNs instead, and all tests would show an operator that does.
static hth_err arena_hand_over(hth_site *site, const hth_program *p)
{
    size_t need = p->plan->arena_bytes;
    if (site->arena == NULL) {
        return HTH_OK;
    }
#ifdef HTH_DEBUG
    if (site->device->props.host_visible) {
        memset(site->arena, 0xff, need);
        return HTH_OK;
    }
#endif
    if (site->arena_cleared && (p->account == NULL || p->account != site->arena_owner)) {
        site->arena_owner = p->account;
        site->arena_owned = 0;
    }
    if (site->arena_cleared && need > site->arena_owned) {
        HTH_TRY(hth_device_zero(site->device, (char *)site->arena + site->arena_owned,
                                need - site->arena_owned));
        site->arena_owned = need;
    }
    return HTH_OK;
}

// Memory that kernels cannot reach: its tensor lives in the arena, and is copied.
static bool program_far(const hth_site *site, const void *memory)
{
    return !site->device->props.host_visible && !hth_pool_holds(site->pool, memory);
}

static hth_err program_upload(hth_site *site, const hth_program *p, const hth_tensor *inputs)
{
    const hth_graph *g = p->graph;
    for (int i = 0; i < g->n_inputs; i++) {
        int t = inputs[i].data == NULL ? -1 : p->value_tensor[g->inputs[i]];
        void *to = t >= 0 && p->fixed[t] == NULL ? hth_run_filled(p->run, t) : NULL;
        if (to != NULL) {
            HTH_TRY(hth_device_put(site->device, to, inputs[i].data, p->problem.tensors[t].bytes));
        }
    }
    return HTH_OK;
}

static hth_err program_download(hth_site *site, const hth_program *p, const hth_tensor *out)
{
    const hth_graph *g = p->graph;
    for (int i = 0; i < g->n_outputs; i++) {
        int t = out[i].data == NULL ? -1 : p->value_tensor[g->outputs[i]];
        bool written = t >= 0 && p->fixed[t] == NULL && !g->values[g->outputs[i]].is_input;
        const void *from = written ? hth_run_left(p->run, t) : NULL;
        if (from != NULL) {
            HTH_TRY(hth_device_get(site->device, out[i].data, from, out[i].bytes));
        }
    }
    return HTH_OK;
}

hth_err hth_site_beside(hth_site *site, hth_err (*work)(void *arg), void *arg)
{
    return site->beside != NULL ? site->beside(site->beside_ctx, work, arg) : work(arg);
}

typedef struct execution {
    hth_run *run;
    const atomic_int *canceled;
} execution;

static hth_err execute(void *arg)
{
    const execution *x = arg;
    return hth_run_execute(x->run, x->canceled);
}

hth_err hth_program_begin(hth_site *site, hth_program *p, const hth_tensor *inputs,
                          const hth_tensor *out)
{
    const hth_graph *g = p->graph;
    HTH_TRY(hth_program_activate(site, p));
    for (int i = 0; i < g->n_inputs; i++) {
        int t = p->value_tensor[g->inputs[i]];
        if (t >= 0) { // not constant: its value was not what made the program
            p->fixed[t] = program_far(site, inputs[i].data) ? NULL : inputs[i].data;
        }
    }
    for (int i = g->n_outputs - 1; i >= 0;
         i--) { // the first of several outputs with one value is the one written
        int t = p->value_tensor[g->outputs[i]];
        if (t >= 0 && !g->values[g->outputs[i]].is_input) {
            p->fixed[t] = program_far(site, out[i].data) ? NULL : out[i].data;
        }
    }
    HTH_TRY(hth_run_bind(p->run, p->arena != NULL ? p->arena : site->arena, p->fixed));
    if (p->arena == NULL) {
        HTH_TRY(arena_hand_over(site, p));
    }
    if (p->arena == NULL && p->threads == 0) {
        hth_run_between(p->run, site->in_run, site->in_ctx);
    }
    return program_upload(site, p, inputs);
}

hth_err hth_program_end(hth_site *site, hth_program *p, const hth_tensor *inputs,
                        const hth_tensor *out)
{
    HTH_TRY(program_download(site, p, out));
    p->runs++;
    for (int i = 0; i < p->graph->n_outputs; i++) {
        HTH_TRY(output_copy(p, i, inputs, out));
    }
    return HTH_OK;
}

static hth_err program_run(hth_site *site, hth_program *p, const hth_tensor *inputs,
                           const hth_tensor *out, const atomic_int *canceled)
{
    execution x = {p->run, canceled};
    HTH_TRY(hth_program_begin(site, p, inputs, out));
    p->running = true;
    hth_err err = p->arena != NULL ? hth_site_beside(site, execute, &x) : execute(&x);
    p->running = false;
    site->freed++;
    HTH_TRY(err);
    return hth_program_end(site, p, inputs, out);
}

hth_err hth_program_run(hth_site *site, hth_program *p, const hth_tensor *inputs,
                        const hth_tensor *out, const atomic_int *canceled)
{
    hth_err err = program_run(site, p, inputs, out, canceled);
    if (site->trim) {
        hth_site_trim(site);
    }
    return err;
}

void hth_program_ledger(const hth_program *p, uint64_t *weight_bytes, uint64_t *arena_bytes)
{
    *weight_bytes = 0;
    *arena_bytes = p->plan->arena_bytes;
    for (int w = 0; w < p->n_weights; w++) {
        *weight_bytes += p->weights[w].streamed || p->weights[w].in_place ? 0 : p->weights[w].bytes;
    }
}
