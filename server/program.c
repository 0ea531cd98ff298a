// SPDX-License-Identifier: Apache-2.0
// Programs at work: found by their inputs, made active (weights and arena in device memory), run,
// made inactive.
//
// Room is made in this order: idle weights that no program holds (residency's own LRU), then the
// least recently used other active programs, then the arena when it is larger than needed. A
// program's own plan fits the whole pool, so when everything else is gone it fits.
#include "server/program.h"

#include "base/alloc.h"

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
        if (key_equal(p, inputs, s->graph->n_inputs)) {
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

static hth_err weight_fill(void *ctx, void *dst, size_t bytes)
{
    return weight_write(ctx, dst);
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

static void weights_drop(hth_site *site, hth_program *p)
{
    for (int w = 0; w < p->n_weights; w++) {
        hth_residency_rele(site->residency, p->weights[w].entry);
        p->weights[w].entry = NULL;
    }
}

void hth_program_deactivate(hth_site *site, hth_program *p)
{
    active_unlink(site, p);
    weights_drop(site, p);
    p->active = false;
}

// room_make deactivates the least recently used other program; false when there is none left.
static bool room_make(hth_site *site, const hth_program *keep)
{
    hth_program *victim = NULL;
    for (hth_program *p = site->active; p != NULL; p = p->active_next) {
        if (p != keep && (victim == NULL || p->used_at < victim->used_at)) {
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
    site->arena_bytes = 0;
}

hth_err hth_site_alloc(hth_site *site, size_t bytes, hth_pool_use use, void **out)
{
    hth_err err;
    do {
        err = hth_residency_alloc(site->residency, bytes, use, out);
        if (err == HTH_ENODEVMEM && site->arena != NULL) {
            arena_drop(site);
            continue;
        }
    } while (err == HTH_ENODEVMEM && room_make(site, NULL));
    return err;
}

static hth_err arena_ensure(hth_site *site, const hth_program *p)
{
    size_t need = p->plan->arena_bytes;
    if (p->arena != NULL || site->arena_bytes >= need) {
        return HTH_OK;
    }
    arena_drop(site);
    hth_err err;
    do {
        err = hth_residency_alloc(site->residency, need, HTH_POOL_ARENA, &site->arena);
    } while (err == HTH_ENODEVMEM && room_make(site, p));
    site->arena_bytes = err == HTH_OK ? need : 0;
    return err;
}

static hth_err weights_hold(hth_site *site, hth_program *p)
{
    for (int i = 0; i < p->n_weights; i++) {
        hth_weight *w = &p->weights[i];
        int t = p->weight_tensor[i];
        if (w->in_place) {
            p->fixed[t] = (void *)w->content->data;
            continue;
        }
        if (w->streamed) {
            continue;
        }
        hth_err err;
        do {
            err = hth_residency_hold(site->residency, &w->content->id, w->form, w->bytes,
                                     weight_fill, w, &w->entry);
            if (err == HTH_ENODEVMEM && site->arena_bytes > p->plan->arena_bytes) {
                arena_drop(site);
                continue;
            }
        } while (err == HTH_ENODEVMEM && room_make(site, p));
        HTH_TRY(err);
        p->fixed[t] = hth_resident_data(w->entry);
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

// Makes weights and arena ready, making others inactive as needed.
static hth_err program_activate(hth_site *site, hth_program *p)
{
    p->used_at = ++site->clock;
    if (p->active) {
        return arena_ensure(site, p);
    }
    hth_err err = weights_hold(site, p);
    err = err == HTH_OK ? arena_ensure(site, p) : err;
    if (err == HTH_ENODEVMEM) { // the pool is in pieces: start again from an empty one
        weights_drop(site, p);
        arena_drop(site);
        while (room_make(site, p)) {
        }
        hth_residency_evict(site->residency, UINT64_MAX);
        err = arena_ensure(site, p);
        err = err == HTH_OK ? weights_hold(site, p) : err;
    }
    err = err == HTH_OK ? streams_fill(p) : err;
    if (err != HTH_OK) {
        weights_drop(site, p);
        return err;
    }
    p->active = true;
    p->active_next = site->active;
    site->active = p;
    return HTH_OK;
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

hth_err hth_program_run(hth_site *site, hth_program *p, const hth_tensor *inputs,
                        const hth_tensor *out, const atomic_int *canceled)
{
    const hth_graph *g = p->graph;
    HTH_TRY(program_activate(site, p));
    for (int i = 0; i < g->n_inputs; i++) {
        int t = p->value_tensor[g->inputs[i]];
        if (t >= 0) { // not constant: its value was not what made the program
            p->fixed[t] = inputs[i].data;
        }
    }
    for (int i = g->n_outputs - 1; i >= 0;
         i--) { // the first of several outputs with one value is the one written
        int t = p->value_tensor[g->outputs[i]];
        if (t >= 0 && !g->values[g->outputs[i]].is_input) {
            p->fixed[t] = out[i].data;
        }
    }
    HTH_TRY(hth_run_bind(p->run, p->arena != NULL ? p->arena : site->arena, p->fixed));
    HTH_TRY(hth_run_execute(p->run, canceled));
    p->runs++;
    for (int i = 0; i < g->n_outputs; i++) {
        HTH_TRY(output_copy(p, i, inputs, out));
    }
    return HTH_OK;
}

void hth_program_ledger(const hth_program *p, uint64_t *weight_bytes, uint64_t *arena_bytes)
{
    *weight_bytes = 0;
    *arena_bytes = p->plan->arena_bytes;
    for (int w = 0; w < p->n_weights; w++) {
        *weight_bytes += p->weights[w].streamed || p->weights[w].in_place ? 0 : p->weights[w].bytes;
    }
}
