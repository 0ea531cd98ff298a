// SPDX-License-Identifier: Apache-2.0
// The memory that programs of a device share: their arena, and room that others make.
#include "runtime/site.h"

#include "base/alloc.h"
#include "runtime/paced.h"
#include "runtime/program.h"

bool hth_site_make_room(hth_site *site, const hth_program *keep, bool pinned)
{
    hth_program *victim = NULL;
    if (hth_program_evict_stale(site, keep)) {
        return true;
    }
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

void hth_site_drop_arena(hth_site *site)
{
    hth_pool_free(site->pool, site->arena);
    site->arena = NULL;
    site->arena_owner = NULL;
    site->arena_owned = 0;
    site->arena_bytes = 0;
}

bool hth_site_shrink_arena(hth_site *site, size_t need)
{
    bool more = site->arena_bytes > need;
    if (more) {
        hth_site_drop_arena(site);
    }
    return more;
}

// site_clear: what was taken may have been another tenant's. On error it is given back.
static hth_err site_clear(hth_site *site, size_t bytes, void **out)
{
    hth_paced paced;
    hth_paced_begin(&paced, site, NULL);
    hth_err err = site->arena_cleared ? hth_device_zero(site->device, *out, bytes) : HTH_OK;
    hth_paced_end(&paced);
    if (err != HTH_OK) {
        hth_pool_free(site->pool, *out);
        *out = NULL;
    }
    return err;
}

hth_err hth_site_alloc(hth_site *site, size_t bytes, hth_pool_use use, void **out)
{
    hth_err err;
    do {
        err = hth_residency_alloc(site->residency, bytes, use, out);
    } while (err == HTH_ENODEVMEM &&
             (hth_site_shrink_arena(site, 0) || hth_site_make_room(site, NULL, false)));
    HTH_TRY(err);
    return site_clear(site, bytes, out);
}

hth_err hth_site_alloc_spare(hth_site *site, size_t bytes, hth_pool_use use, void **out)
{
    HTH_TRY(hth_pool_alloc(site->pool, bytes, use, out));
    return site_clear(site, bytes, out);
}

void *hth_site_workspace_take(void *site, size_t bytes)
{
    void *p;
    const hth_site *s = site;
    if (hth_pool_alloc(s->pool, bytes, HTH_POOL_WORKSPACE, &p) == HTH_OK) {
        return p;
    }
    return s->device->props.host_visible ? hth_alloc_aligned(bytes, HTH_DEVICE_ALIGN) : NULL;
}

void hth_site_workspace_give(void *site, void *memory)
{
    hth_site *s = site;
    if (hth_pool_holds(s->pool, memory)) {
        hth_pool_free(s->pool, memory);
        s->freed++; // who waits for memory may look again
    } else {
        hth_free(memory);
    }
}

hth_err hth_site_ensure_arena(hth_site *site, const hth_program *program)
{
    size_t need = program->plan->arena_bytes;
    void *larger;
    if (program->arena != NULL || site->arena_bytes >= need) {
        return HTH_OK;
    }
    hth_err err = hth_pool_alloc(site->pool, need, HTH_POOL_ARENA, &larger);
    if (err == HTH_ENODEVMEM) {
        hth_site_drop_arena(site);
        do {
            err = hth_residency_alloc(site->residency, need, HTH_POOL_ARENA, &larger);
        } while (err == HTH_ENODEVMEM && hth_site_make_room(site, program, false));
    }
    if (err == HTH_OK) {
        hth_site_drop_arena(site);
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
    if (hth_site_shrink_arena(site, need) && need > 0 &&
        hth_pool_alloc(site->pool, need, HTH_POOL_ARENA, &site->arena) == HTH_OK) {
        site->arena_bytes = need;
    }
}
