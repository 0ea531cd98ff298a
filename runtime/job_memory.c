// SPDX-License-Identifier: Apache-2.0
#include "runtime/job_memory.h"

#include "base/alloc.h"
#include "base/size.h"
#include "runtime/program.h"
#include "runtime/tenants/quota.h"

#include <string.h>

#define SHARE_MODELS 10 // the part of the device that jobs without a budget of their own leave

void hth_job_memory_set(hth_site *site, hth_job_memory *memory, const hth_curve_point *point)
{
    hth_job_memory **at = &site->shares;
    while (*at != NULL && *at != memory) {
        at = &(*at)->next;
    }
    if (*at == memory && point->device_bytes == 0) {
        *at = memory->next;
    } else if (*at == NULL && point->device_bytes > 0) {
        memory->next = NULL;
        *at = memory;
    }
    memory->point = *point;
    site->freed++;
}

void hth_job_memory_forget(hth_site *site, const hth_program *program)
{
    for (hth_job_memory *s = site->shares; s != NULL; s = s->next) {
        s->frozen = s->frozen == program ? NULL : s->frozen;
    }
}

static uint64_t share_weight(const hth_weight *weight)
{
    return weight->in_place || weight->streamed ? 0 : hth_plan_round(weight->bytes);
}

uint64_t hth_job_memory_weights(const hth_program *program)
{
    uint64_t bytes = 0;
    for (int i = 0; i < program->n_weights; i++) {
        bytes += share_weight(&program->weights[i]);
    }
    return bytes;
}

uint64_t hth_job_memory_bytes(const hth_job_memory *memory)
{
    return memory->point.device_bytes +
           (memory->frozen != NULL ? hth_job_memory_weights(memory->frozen) : 0);
}

static bool share_has(const hth_program *program, const hth_weight *weight)
{
    bool has = false;
    for (int i = 0; program != NULL && i < program->n_weights && !has; i++) {
        const hth_weight *w = &program->weights[i];
        has = share_weight(w) > 0 && hth_id_equal(&w->content->id, &weight->content->id) &&
              strcmp(w->form, weight->form) == 0;
    }
    return has;
}

// Whether a share before s, or a pinned program, counts that copy.
static bool share_counted(const hth_site *site, const hth_job_memory *s, const hth_job_memory *mine,
                          const hth_weight *weight)
{
    bool counted = false;
    for (const hth_job_memory *q = site->shares; q != s && !counted; q = q->next) {
        counted = q != mine && share_has(q->frozen, weight);
    }
    for (const hth_program *p = site->programs; p != NULL && !counted; p = p->site_next) {
        counted = p->pinned && share_has(p, weight);
    }
    return counted;
}

// What share s keeps from `mine`: copies that others keep as well count for the first of them.
static uint64_t share_bytes(const hth_site *site, const hth_job_memory *s,
                            const hth_job_memory *mine)
{
    uint64_t bytes = hth_job_memory_bytes(s);
    for (int i = 0; s->frozen != NULL && i < s->frozen->n_weights; i++) {
        const hth_weight *w = &s->frozen->weights[i];
        bytes -= share_weight(w) > 0 && share_counted(site, s, mine, w) ? share_weight(w) : 0;
    }
    return bytes;
}

static uint64_t share_beside(const hth_site *site, const hth_job_memory *mine)
{
    uint64_t rest = site->device->props.budget_bytes;
    for (const hth_job_memory *s = site->shares; s != NULL; s = s->next) {
        uint64_t bytes = s != mine ? share_bytes(site, s, mine) : 0;
        rest -= bytes < rest ? bytes : 0;
    }
    return rest;
}

static uint64_t share_less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

// What requests wait for is kept from new jobs; only alongside others, whose end they can wait for.
static bool share_others(const hth_site *site, const hth_job_memory *mine)
{
    return site->shares != NULL && (site->shares != mine || mine->next != NULL);
}

uint64_t hth_job_memory_models(const hth_site *site)
{
    return share_less(share_beside(site, NULL), site->pinned_bytes);
}

uint64_t hth_job_memory_rest(const hth_site *site, const hth_job_memory *mine)
{
    uint64_t awaited = share_others(site, mine) ? site->awaited_bytes : 0;
    uint64_t rest = share_less(share_beside(site, mine),
                               site->pinned_bytes + site->pinned_arena + awaited),
             quota = hth_quota_rest(site, mine);
    return rest < quota ? rest : quota;
}

bool hth_job_memory_alone(const hth_site *site, const hth_job_memory *mine)
{
    return hth_job_memory_rest(site, mine) == site->device->props.budget_bytes;
}

uint64_t hth_job_memory_spare(const hth_site *site, const hth_job_memory *mine)
{
    hth_residency_stats models;
    uint64_t rest = hth_job_memory_rest(site, mine);
    hth_residency_stats_get(site->residency, &models);
    uint64_t held = models.held_bytes + site->arena_bytes;
    held += site->device->props.budget_bytes / SHARE_MODELS;
    return rest > held ? rest - held : 0;
}

// `found`: the least memory that the job was planned for.
static hth_err share_refuse(const hth_site *site, uint64_t found)
{
    hth_size least = hth_size_up(found), left = hth_size_down(hth_job_memory_rest(site, NULL));
    if (strcmp(least.text, left.text) == 0) {
        least = hth_size_exact(found);
        left = hth_size_exact(hth_job_memory_rest(site, NULL));
    }
    return hth_fail(HTH_ENODEVMEM,
                    "no plan was found for the %s that other jobs leave of the device's %s; one "
                    "was found for %s",
                    left.text, hth_size_of(site->device->props.budget_bytes).text, least.text);
}

// Jobs make their steps in turns, and a step's copies end with it (memmgr/run.c). So each job has
// the link for the part of the time in which it has the device: n jobs for an n-th each. Whatever
// they copy, that is never more than there is; it is asked for nevertheless, so that jobs whose
// steps run at the same time would have their turns of 1 here.
hth_err hth_job_memory_admit(const hth_site *site, const hth_curve *curve, hth_curve_point *out)
{
    int n = 0;
    for (const hth_job_memory *s = site->shares; s != NULL; s = s->next) {
        n++;
    }
    hth_curve *fixed = hth_calloc((size_t)n + 1, sizeof *fixed);
    hth_admit_job *jobs = hth_calloc((size_t)n + 1, sizeof *jobs);
    int *chosen = hth_calloc((size_t)n + 1, sizeof *chosen);
    hth_err err = fixed && jobs && chosen ? HTH_OK : hth_no_memory("admitting a job");
    if (err == HTH_OK) {
        const hth_job_memory *s = site->shares;
        for (int i = 0; i < n; i++, s = s->next) {
            fixed[i] = (hth_curve){.n = 1, .point = {s->point}};
            fixed[i].point[0].device_bytes = share_bytes(site, s, NULL);
            jobs[i] = (hth_admit_job){&fixed[i], 1, 1.0 / (n + 1)};
        }
        jobs[n] = (hth_admit_job){curve, 1, 1.0 / (n + 1)};
        uint64_t all = share_less(site->device->props.budget_bytes,
                                  site->shares != NULL ? site->awaited_bytes : 0);
        err = hth_curve_admit(jobs, n + 1, all - all / SHARE_MODELS, chosen, NULL);
        err = err == HTH_ETOOBIG ? hth_curve_admit(jobs, n + 1, all, chosen, NULL) : err;
    }
    if (err == HTH_OK) {
        *out = curve->point[chosen[n]];
    } else if (err == HTH_ETOOBIG) {
        err = share_refuse(site, curve->point[0].device_bytes);
    }
    hth_free(fixed);
    hth_free(jobs);
    hth_free(chosen);
    return err;
}
