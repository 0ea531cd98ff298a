// SPDX-License-Identifier: Apache-2.0
// Programs at work: found by their inputs, made active (weights and arena in device memory), made
// inactive, freed. What an active one does with a request: program_run.c.
//
// Room is made in this order: idle weights that no program holds (residency's own LRU), then the
// arena when it is larger than needed, then the least recently used other active programs, except
// pinned ones and those that run. A program's own plan fits what jobs and pinned programs leave, so
// when everything else is gone it fits; where the pool is in pieces pinned weights move, too.
#include "runtime/program.h"

#include "base/alloc.h"
#include "runtime/host.h"
#include "runtime/job_memory.h"
#include "runtime/tenants/quota.h"

#include <string.h>

bool hth_program_takes(const hth_program *program, const hth_tensor *inputs, int n)
{
    for (int i = 0; i < n; i++) {
        const hth_tensor *k = &program->key[i];
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

hth_program *hth_source_match(hth_source *source, const hth_tensor *inputs)
{
    for (hth_program **at = &source->programs; *at != NULL; at = &(*at)->next) {
        hth_program *p = *at;
        if (p->graph->precision == source->graph->precision &&
            hth_program_takes(p, inputs, source->graph->n_inputs)) {
            *at = p->next; // to the front
            p->next = source->programs;
            source->programs = p;
            return p;
        }
    }
    return NULL;
}

static hth_err weight_write(const hth_weight *weight, void *dst)
{
    const void *plain;
    HTH_TRY(hth_const_map(weight->content, &plain));
    hth_err err = HTH_OK;
    if (weight->packing != NULL) {
        err = weight->packing->pack(weight->kernel, weight->packing, plain, dst);
    } else {
        memcpy(dst, plain, weight->bytes);
    }
    hth_const_unmap(weight->content);
    return err;
}

typedef struct weight_filling {
    hth_device *device;
    const hth_weight *weight;
} weight_filling;

// Where the host does not see the device's memory, or has a link to it, the form is made aside.
static hth_err weight_fill(void *ctx, void *dst, size_t bytes)
{
    const weight_filling *f = ctx;
    if (f->device->props.host_visible && !hth_device_paced(f->device)) {
        return weight_write(f->weight, dst);
    }
    void *form = hth_alloc_aligned(bytes, HTH_DEVICE_ALIGN);
    hth_err err = form == NULL ? hth_no_memory("a weight") : weight_write(f->weight, form);
    if (err == HTH_OK) {
        err = hth_device_put(f->device, dst, form, bytes);
    }
    hth_free(form);
    return err;
}

static void active_unlink(hth_site *site, hth_program *program)
{
    hth_program **at = &site->active;
    while (*at != NULL && *at != program) {
        at = &(*at)->active_next;
    }
    if (*at == program) {
        *at = program->active_next;
    }
}

// Gives the weights up. Those of a hold that did not come about leave the device, too.
static void weights_drop(hth_site *site, hth_program *program, bool failed)
{
    for (int i = 0; i < program->n_weights; i++) {
        hth_weight *w = &program->weights[i];
        hth_residency_rele(site->residency, w->entry);
        if (failed && w->entry != NULL && w->fresh) {
            hth_residency_drop(site->residency, &w->content->id, w->form);
        }
        w->entry = NULL;
        w->fresh = false;
    }
}

void hth_program_deactivate(hth_site *site, hth_program *program)
{
    active_unlink(site, program);
    weights_drop(site, program, false);
    program->active = false;
}

void hth_program_evict(hth_site *site, hth_program *program)
{
    hth_program_deactivate(site, program);
    for (int w = 0; site->residency != NULL && w < program->n_weights; w++) {
        if (!program->weights[w].in_place) {
            hth_residency_drop(site->residency, &program->weights[w].content->id,
                               program->weights[w].form);
        }
    }
}

bool hth_program_evict_stale(hth_site *site, const hth_program *keep)
{
    bool any = false;
    for (hth_program *p = site->programs; p != NULL; p = p->site_next) {
        if (p != keep && p->stale && p->active && !p->running && !p->pinned && p->held == 0) {
            hth_program_evict(site, p);
            any = true;
        }
    }
    return any;
}

static hth_err weight_hold(hth_site *site, hth_program *program, hth_weight *weight)
{
    hth_residency_stats before, after;
    weight_filling filling = {site->device, weight};
    hth_err err;
    hth_residency_stats_get(site->residency, &before);
    do {
        err = hth_residency_hold(site->residency, &weight->content->id, weight->form, weight->bytes,
                                 weight_fill, &filling, &weight->entry);
    } while (err == HTH_ENODEVMEM && (hth_site_shrink_arena(site, program->plan->arena_bytes) ||
                                      hth_site_make_room(site, program, false)));
    hth_residency_stats_get(site->residency, &after);
    weight->fresh = after.fills > before.fills;
    return err;
}

static hth_err weights_hold(hth_site *site, hth_program *program)
{
    for (int i = 0; i < program->n_weights; i++) {
        hth_weight *w = &program->weights[i];
        int t = program->weight_tensor[i];
        if (w->in_place) {
            program->fixed[t] = (void *)w->content->data;
        } else if (!w->streamed) {
            HTH_TRY(weight_hold(site, program, w));
            program->fixed[t] = hth_resident_data(w->entry);
        }
    }
    return HTH_OK;
}

static hth_err stream_fill(const hth_weight *weight)
{
    if (weight->far.memory != NULL) {
        return weight_write(weight, weight->far.memory);
    }
    void *form = hth_alloc_aligned(weight->bytes, HTH_DEVICE_ALIGN);
    hth_err err = form == NULL ? hth_no_memory("a weight") : weight_write(weight, form);
    if (err == HTH_OK) {
        err = hth_spill_write(weight->far.file, weight->far.at, form, weight->bytes);
    }
    hth_free(form);
    return err;
}

static hth_err streams_fill(hth_program *program)
{
    for (int i = 0; i < program->n_weights && !program->filled; i++) {
        if (program->weights[i].streamed) {
            HTH_TRY(stream_fill(&program->weights[i]));
        }
    }
    program->filled = true;
    return HTH_OK;
}

static void active_link(hth_site *site, hth_program *program)
{
    program->active = true;
    program->active_next = site->active;
    site->active = program;
}

// The pool is in pieces: all that can move leaves it, and comes back in one. On error the pinned
// programs that have not come back are not active: their next run fetches their weights.
static hth_err activate_again(hth_site *site, hth_program *program)
{
    weights_drop(site, program, true);
    hth_site_drop_arena(site);
    while (hth_site_make_room(site, program, true)) {
    }
    hth_residency_evict(site->residency, UINT64_MAX);
    for (hth_program *q = site->programs; q != NULL; q = q->site_next) {
        if (q->pinned && !q->active && q != program) { // first, and so at the low end
            hth_err err = weights_hold(site, q);
            if (err != HTH_OK) {
                weights_drop(site, q, true);
                return err;
            }
            active_link(site, q);
        }
    }
    HTH_TRY(weights_hold(site, program));
    return hth_site_ensure_arena(site, program);
}

// An active program's arena went to somebody else. Where all that is free would do for one, and is
// in pieces, the program's weights move, too.
static hth_err active_arena(hth_site *site, hth_program *program)
{
    hth_pool_ledger l;
    hth_err err = hth_site_ensure_arena(site, program);
    hth_pool_ledger_get(site->pool, &l);
    if (err != HTH_ENODEVMEM || l.free_bytes < program->plan->arena_bytes) {
        return err;
    }
    active_unlink(site, program);
    program->active = false;
    err = activate_again(site, program);
    if (err == HTH_OK) {
        active_link(site, program);
    } else {
        weights_drop(site, program, true);
    }
    return err;
}

hth_err hth_program_activate(hth_site *site, hth_program *program)
{
    program->used_at = ++site->clock;
    if (program->active) {
        return active_arena(site, program);
    }
    HTH_TRY(hth_quota_room(site, program)); // before anything of anybody's moves
    hth_err err;
    HTH_GOTO(weights_hold(site, program), done);
    HTH_GOTO(streams_fill(program), done);
    err = hth_site_ensure_arena(site, program);
done:
    if (err == HTH_ENODEVMEM) {
        err = activate_again(site, program);
        if (err == HTH_OK) {
            err = streams_fill(program);
        }
    }
    if (err != HTH_OK) {
        weights_drop(site, program, true);
        return err;
    }
    active_link(site, program);
    err = program->train == NULL ? hth_quota_holds(site, program->account, program) : HTH_OK;
    if (err != HTH_OK) {
        hth_program_evict(site, program);
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

void hth_program_pin(hth_site *site, hth_program *program, bool on)
{
    program->pinned_ahead = false;
    if (program->pinned != on) {
        program->pinned = on;
        site->freed += !on;
        pinned_count(site);
    }
}

uint64_t hth_program_instead(hth_site *site, hth_program *program)
{
    bool pinned = program->pinned;
    program->pinned = false;
    pinned_count(site);
    uint64_t budget = hth_quota_models(site, program->account);
    program->pinned = pinned;
    pinned_count(site);
    return budget;
}

bool hth_program_squeezed(const hth_program *program)
{
    bool squeezed = false;
    for (int w = 0; w < program->n_weights; w++) {
        squeezed = squeezed || program->weights[w].streamed;
    }
    return squeezed;
}

void hth_source_unpin_ahead(hth_site *site, hth_source *source)
{
    for (hth_program *p = source->programs; p != NULL; p = p->next) {
        if (p->pinned_ahead) {
            hth_program_pin(site, p, false);
        }
    }
}

// The device has room for program when all that can go is gone. Less is refused before anything
// moves: what lay between others' memory may not fit in there again.
static bool pin_fits(const hth_site *site, const hth_program *program)
{
    hth_pool_ledger l;
    uint64_t weights, arena;
    hth_pool_ledger_get(site->pool, &l);
    hth_program_ledger(program, &weights, &arena);
    uint64_t room = l.free_bytes + l.used_bytes[HTH_POOL_WEIGHT] + site->arena_bytes;
    return weights + arena <= room;
}

hth_err hth_program_pin_move(hth_site *site, hth_program *from, hth_program *to)
{
    bool ahead = from->pinned_ahead;
    from->held++; // others are served at the points of what is loaded
    to->held++;
    hth_program_pin(site, from, false);
    bool fits = pin_fits(site, to);
    hth_err err = fits ? HTH_OK : hth_fail(HTH_ENODEVMEM, "too little is left for a pinned model");
    if (fits) {
        hth_program_deactivate(site, from);
        err = hth_program_activate(site, to);
    }
    if (err != HTH_OK) {
        (void)hth_program_activate(site, from); // as it was; else its next run fetches its weights
    }
    hth_program *pinned = err == HTH_OK ? to : from;
    hth_program_pin(site, pinned, true);
    pinned->pinned_ahead = ahead;
    from->held--;
    to->held--;
    return err;
}

void hth_program_ledger(const hth_program *program, uint64_t *weight_bytes, uint64_t *arena_bytes)
{
    *weight_bytes = 0;
    *arena_bytes = program->plan->arena_bytes;
    for (int w = 0; w < program->n_weights; w++) {
        *weight_bytes += program->weights[w].streamed || program->weights[w].in_place
                             ? 0
                             : program->weights[w].bytes;
    }
}

// ---- the end

void hth_program_drop_problem(hth_program *program)
{
    hth_problem_fini(&program->problem);
    hth_free(program->weights);
    hth_free(program->weight_tensor);
    program->weights = NULL;
    program->weight_tensor = NULL;
    program->n_weights = 0;
    for (int i = 0; program->node_in != NULL && i < program->graph->n_nodes; i++) {
        hth_free(program->node_in[i]);
        program->node_in[i] = NULL;
    }
    for (int i = 0; program->node_out != NULL && i < program->graph->n_nodes; i++) {
        hth_free(program->node_out[i]);
        program->node_out[i] = NULL;
    }
}

// Leaves the site: its list, and the device, where nobody else holds what it brought there.
static void program_leave(hth_site *site, hth_program *program)
{
    hth_program **at = &site->programs;
    hth_program_pin(site, program, false);
    hth_program_evict(site, program);
    while (*at != NULL && *at != program) {
        at = &(*at)->site_next;
    }
    if (*at == program) {
        *at = program->site_next;
    }
}

void hth_program_free(hth_site *site, hth_program *program)
{
    if (program == NULL) {
        return;
    }
    hth_program_free(site, program->narrow);
    while (program->n_instances > 0) {
        hth_program_free(site, program->instance[--program->n_instances]);
    }
    program_leave(site, program);
    hth_job_memory_forget(site, program);
    site->arena_owner = site->arena_owner == program->account ? NULL : site->arena_owner;
    if (program->source != NULL) {
        hth_program **at = &program->source->programs;
        while (*at != program) {
            at = &(*at)->next;
        }
        *at = program->next;
        program->source->n_programs--;
    }
    hth_source_fini(site, &program->rest);
    hth_run_close(program->run);
    for (int i = 0;
         program->graph != NULL && program->kernels != NULL && i < program->graph->n_nodes; i++) {
        hth_kernel_close(program->kernels[i]);
    }
    for (int i = 0; i < program->n_contents; i++) {
        hth_const_rele(program->contents[i]);
    }
    hth_free(program->contents);
    hth_host_give(site, HTH_HOST_CONTENTS, program->content_bytes);
    for (int w = 0; w < program->n_weights; w++) {
        hth_device_release_host(site->device, program->weights[w].far.memory,
                                program->weights[w].bytes);
    }
    hth_spill_close(program->spill_weights);
    hth_free(program->far_of);
    if (program->graph != NULL) {
        hth_program_drop_problem(program);
    }
    hth_plan_free(program->plan);
    hth_free(program->key);
    hth_free(program->final_index);
    hth_free(program->same_output);
    hth_free(program->kernels);
    hth_free(program->node_in);
    hth_free(program->node_out);
    hth_free(program->n_in);
    hth_free(program->n_out);
    hth_free(program->value_tensor);
    hth_cache_model_fini(&program->heat);
    hth_free(program->fixed);
    hth_graph_free(program->graph);
    hth_free(program);
}

void hth_source_fini(hth_site *site, hth_source *source)
{
    while (source->programs != NULL) {
        hth_program_free(site, source->programs);
    }
    hth_graph_free(source->graph);
    source->graph = NULL;
}
