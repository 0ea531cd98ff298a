// SPDX-License-Identifier: Apache-2.0
// What is held is read off the ledger, and only for tenants that have a limit.
#include "runtime/tenants/quota.h"

#include "runtime/ledger.h"
#include "runtime/job_memory.h"
#include "runtime/program.h"
#include "runtime/tenants/tenant.h"

#include <stdio.h>
#include <string.h>

static bool quota_same(const hth_account *a, const hth_account *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a->tenant, b->tenant) == 0);
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

uint64_t hth_quota_limit(const hth_site *site, const hth_account *account)
{
    const hth_tenant *t = account != NULL && site->tenants != NULL && site->tenants->by_memory
                              ? hth_tenant_of(site->tenants, account->tenant)
                              : NULL;
    return t != NULL && t->limits.memory_bytes != HTH_TENANT_NEVER
               ? (uint64_t)t->limits.memory_bytes
               : UINT64_MAX;
}

void hth_quota_owner(const hth_site *site, hth_account *account, const char *tenant)
{
    hth_account other = *account;
    snprintf(other.tenant, sizeof other.tenant, "%s", tenant != NULL ? tenant : HTH_TENANT_OWN);
    if (hth_quota_limit(site, &other) > hth_quota_limit(site, account)) {
        *account = other;
    }
}

// What of a tenant does not go: its jobs' memory but `mine`, and what its pinned programs hold.
static uint64_t quota_fixed(const hth_site *site, const hth_account *account,
                            const hth_job_memory *mine)
{
    uint64_t bytes = 0, arena = 0;
    for (const hth_job_memory *s = site->shares; s != NULL; s = s->next) {
        bytes += s != mine && quota_same(s->account, account) ? hth_job_memory_bytes(s) : 0;
    }
    for (const hth_program *p = site->programs; p != NULL; p = p->site_next) {
        if (p->pinned && quota_same(p->account, account)) {
            uint64_t weights, own;
            hth_program_ledger(p, &weights, &own);
            bytes += weights;
            arena = own > arena ? own : arena;
        }
    }
    return bytes + arena;
}

uint64_t hth_quota_models(const hth_site *site, const hth_account *account)
{
    uint64_t all = hth_job_memory_models(site), limit = hth_quota_limit(site, account);
    if (limit == UINT64_MAX) {
        return all;
    }
    uint64_t own = less(limit, quota_fixed(site, account, NULL));
    return own < all ? own : all;
}

uint64_t hth_quota_rest(const hth_site *site, const hth_job_memory *mine)
{
    const hth_account *a = mine != NULL ? mine->account : NULL;
    uint64_t limit = hth_quota_limit(site, a);
    return limit == UINT64_MAX ? limit : less(limit, quota_fixed(site, a, mine));
}

hth_err hth_quota_job(const hth_site *site, const hth_job_memory *mine, hth_err err)
{
    char why[400];
    uint64_t limit = hth_quota_limit(site, mine->account), left = hth_quota_rest(site, mine);
    if ((err != HTH_ETOOBIG && err != HTH_ENODEVMEM) || limit == UINT64_MAX ||
        left > hth_job_memory_rest(site, mine)) {
        return err;
    }
    snprintf(why, sizeof why, "%s", hth_err_detail());
    return left < limit
               ? hth_fail(HTH_ENODEVMEM,
                          "%s; it does not fit now: tenant '%s' may hold %llu bytes of device "
                          "memory, and its "
                          "other jobs and pinned models leave %llu",
                          why, mine->account->tenant, (unsigned long long)limit,
                          (unsigned long long)left)
               : hth_fail(HTH_ETOOBIG, "%s; tenant '%s' may hold %llu bytes of device memory", why,
                          mine->account->tenant, (unsigned long long)limit);
}

// What the tenant of `account` holds; *arena: of that its programs'.
static hth_err quota_used(const hth_site *site, const hth_account *account, uint64_t *used,
                          uint64_t *arena)
{
    hth_ledger l;
    *used = *arena = 0;
    HTH_TRY(hth_ledger_read(site, &l));
    for (int i = 0; i < l.n_tenants; i++) {
        if (strcmp(l.tenants[i].name, account->tenant) == 0) {
            *arena = l.tenants[i].arena_bytes;
            *used = l.tenants[i].private_bytes + l.tenants[i].job_bytes + *arena;
        }
    }
    hth_ledger_fini(&l);
    return HTH_OK;
}

// Whether letting go of program frees anything: it is active, or has a weight on the device that no
// other one holds.
static bool quota_resident(const hth_site *site, const hth_program *program)
{
    bool there = program->active;
    for (int i = 0; i < program->n_weights && !there; i++) {
        const hth_weight *w = &program->weights[i];
        const hth_resident *entry =
            w->in_place || w->streamed
                ? NULL
                : hth_residency_find(site->residency, &w->content->id, w->form);
        there = entry != NULL && hth_resident_holders(entry) == 0;
    }
    return there;
}

// Lets go of the tenant's least recently used program; false: there is none that may go.
static bool quota_evict(hth_site *site, const hth_account *account, const hth_program *keep)
{
    hth_program *victim = NULL;
    for (hth_program *p = site->programs; p != NULL; p = p->site_next) {
        if (p != keep && p->train == NULL && !p->pinned && !p->running &&
            quota_same(p->account, account) && (victim == NULL || p->used_at < victim->used_at) &&
            quota_resident(site, p)) {
            victim = p;
        }
    }
    if (victim != NULL) {
        hth_program_evict(site, victim);
    }
    return victim != NULL;
}

// The first n weights of program have the copy that weight is of.
static bool quota_has(const hth_program *program, int n, const hth_weight *weight)
{
    bool has = false;
    for (int i = 0; i < n && !has; i++) {
        const hth_weight *x = &program->weights[i];
        has = !x->in_place && !x->streamed && strcmp(x->form, weight->form) == 0 &&
              hth_id_equal(&x->content->id, &weight->content->id);
    }
    return has;
}

// Weight i of program is no bytes of its tenant's: it stays away or is there, or is counted
// already, or its copy is another tenant's, too.
static bool quota_free(const hth_site *site, const hth_program *program, int i)
{
    const hth_weight *w = &program->weights[i];
    bool free = w->in_place || w->streamed || quota_has(program, i, w) ||
                hth_residency_find(site->residency, &w->content->id, w->form) != NULL;
    for (const hth_program *q = site->programs; q != NULL && !free; q = q->site_next) {
        free = q->account != NULL && !quota_same(q->account, program->account) &&
               quota_has(q, q->n_weights, w);
    }
    return free;
}

// What program would add: its weights, and of its arena what is more than others'.
static uint64_t quota_missing(const hth_site *site, const hth_program *program, uint64_t arena)
{
    uint64_t bytes = less(program->plan->arena_bytes, arena);
    for (int i = 0; i < program->n_weights; i++) {
        bytes += quota_free(site, program, i) ? 0 : hth_plan_round(program->weights[i].bytes);
    }
    return bytes;
}

// What the tenant has now is in the way. It is worth another try when more is left for its models;
// or when a run has ended, if one of its programs runs.
static hth_err quota_refuse(hth_site *site, const hth_account *account, uint64_t bytes)
{
    uint64_t left = hth_quota_models(site, account);
    site->refused_over = left > 0 ? left : 1;
    site->refused_bytes = 0;
    for (const hth_program *p = site->programs; p != NULL; p = p->site_next) {
        if (p->running && !p->pinned && p->train == NULL && quota_same(p->account, account)) {
            site->refused_over = 0;
        }
    }
    return hth_fail(HTH_ENODEVMEM,
                    "it does not fit now: tenant '%s' would hold %llu bytes of device memory, and "
                    "its limit is %llu; retry when its jobs end or its models are unpinned",
                    account->tenant, (unsigned long long)bytes,
                    (unsigned long long)hth_quota_limit(site, account));
}

hth_err hth_quota_room(hth_site *site, const hth_program *program)
{
    uint64_t limit = program->train == NULL ? hth_quota_limit(site, program->account) : UINT64_MAX;
    uint64_t used, arena, bytes;
    if (limit == UINT64_MAX) {
        return HTH_OK;
    }
    do {
        HTH_TRY(quota_used(site, program->account, &used, &arena));
        bytes = used + quota_missing(site, program, arena);
    } while (bytes > limit && quota_evict(site, program->account, program));
    return bytes <= limit ? HTH_OK : quota_refuse(site, program->account, bytes);
}

hth_err hth_quota_holds(hth_site *site, const hth_account *account, const hth_program *keep)
{
    uint64_t limit = hth_quota_limit(site, account), used, arena;
    if (limit == UINT64_MAX) {
        return HTH_OK;
    }
    HTH_TRY(quota_used(site, account, &used, &arena));
    while (used > limit && quota_evict(site, account, keep)) {
        HTH_TRY(quota_used(site, account, &used, &arena));
    }
    return used <= limit ? HTH_OK : quota_refuse(site, account, used);
}
