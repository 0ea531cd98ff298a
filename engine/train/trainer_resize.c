// SPDX-License-Identifier: Apache-2.0
// More or less memory for a job that runs: another plan for the same step, with the algorithms that
// it has, hence the same bits. What the job was planned for (budget_bytes) stays: with that it is
// planned again if it is paused.
//
// A thread searches while steps go on (replan.h). When it is done the job changes over between two
// steps: slots go to host memory, and come back in a block of the new size. More memory takes the
// place of the old block where there is no room next to it; where even that fails, the old block is
// taken again, since nobody else allocates in between. Less is cut from the old block: the rest of
// it stays in one piece. Only the step that is watched is planned anew, so what the other steps of
// the job take (the last batch of an epoch, the update of a batch in parts) is the least it needs.
#include "engine/train/replan_impl.h"

#include "base/size.h"
#include "runtime/compile/compile.h"

#include <stdio.h>

#define RESIZE_WORTH   2    // times what changing over costs, that a larger plan has to gain
#define RESIZE_GAIN    0.02 // .. and of each step
#define RESIZE_MORE    1.05 // times the memory that it has
#define RESIZE_SLOWER  2    // times as long a step: being paused is no worse
#define RESIZE_OPEN_US 1e3  // besides the copies; searching has the lowest priority

static uint64_t resize_phase_bytes(const hth_trainer_phase *phase)
{
    return phase->program != NULL ? phase->slots_bytes + phase->program->plan->arena_bytes : 0;
}

// What the steps take that are not planned anew.
static uint64_t resize_others(const hth_trainer *trainer)
{
    uint64_t most = HTH_PLAN_ALIGN;
    for (int i = 0; i < trainer->n_shapes; i++) {
        const hth_trainer_phase *phase[2] = {&trainer->shapes[i].add, &trainer->shapes[i].apply};
        for (int k = 0; k < 2; k++) {
            uint64_t bytes = resize_phase_bytes(phase[k]);
            bool other = phase[k] != hth_replan_phase(trainer);
            most = other && bytes > most ? bytes : most;
        }
    }
    return most;
}

static bool resize_keeps(const hth_trainer *trainer, const hth_plan *plan, int slot)
{
    int t = hth_program_slot(hth_replan_program(trainer), slot);
    return (t >= 0 && !plan->streamed[t]) ||
           (trainer->shapes[0].parts > 1 && trainer->retained[slot]);
}

// What the job takes with a plan.
static uint64_t resize_need(const hth_trainer *trainer, const hth_plan *plan)
{
    uint64_t bytes = plan->arena_bytes, others = resize_others(trainer);
    for (int i = 0; i < trainer->slots.n; i++) {
        bytes += resize_keeps(trainer, plan, i) ? hth_plan_round(trainer->slots.bytes[i]) : 0;
    }
    return bytes > others ? bytes : others;
}

// The copies of `bytes` out and in again.
static double resize_copy_us(const hth_trainer *trainer, double bytes)
{
    const hth_problem *p = &hth_replan_program(trainer)->problem;
    double us = p->h2d_bytes_per_s > 0 ? bytes / p->h2d_bytes_per_s * 1e6 : 0;
    return us + (p->d2h_bytes_per_s > 0 ? bytes / p->d2h_bytes_per_s * 1e6 : 0);
}

// What the runs of the step that is watched take in an update with a plan, as `us` each: of a batch
// in parts, with the slots that move when the step that updates is entered, and after it.
static double resize_update_us(const hth_trainer *trainer, const hth_plan *plan, double us)
{
    const hth_trainer_shape *s = &trainer->shapes[0];
    double bytes = 0;
    for (int i = 0; i < trainer->slots.n && s->parts > 1; i++) {
        bool there = s->apply.place[i] != HTH_SLOT_OFF_DEVICE;
        bytes += resize_keeps(trainer, plan, i) != there ? (double)trainer->slots.bytes[i] : 0;
    }
    return us * (double)(s->parts > 1 ? s->parts - 1 : 1) + resize_copy_us(trainer, bytes);
}

// What an update cannot be faster than with these algorithms: its kernels, once each.
static double resize_best_us(const hth_trainer *trainer)
{
    const hth_plan *plan = hth_replan_program(trainer)->plan;
    double us = 0, runs = trainer->shapes[0].parts > 1 ? (double)trainer->shapes[0].parts - 1 : 1;
    for (int i = 0; i < plan->n_instrs; i++) {
        const hth_instr *in = &plan->instrs[i];
        bool once = in->kind == HTH_INSTR_COMPUTE && !in->recompute;
        us += once ? in->end_us - in->start_us : 0;
    }
    return us * runs;
}

double hth_replan_cost_us(const hth_trainer *trainer)
{
    double bytes = 0;
    for (int i = 0; i < trainer->slots.n; i++) {
        bytes += (double)trainer->slots.bytes[i];
    }
    return RESIZE_OPEN_US + resize_copy_us(trainer, bytes);
}

// resize_gains: updates of which the step that is watched takes `us` are worth more memory.
static bool resize_gains(const hth_trainer *trainer, double us, int64_t steps)
{
    const hth_plan *now = hth_replan_program(trainer)->plan;
    double now_us = resize_update_us(trainer, now, now->predicted_us);
    return us < now_us * (1 - RESIZE_GAIN) &&
           (now_us - us) * (double)steps > RESIZE_WORTH * hth_replan_cost_us(trainer);
}

static hth_err resize_search(hth_trainer *trainer, uint64_t bytes, int64_t steps)
{
    HTH_TRY(hth_replan_search(trainer, bytes));
    trainer->replan.resizes = true;
    trainer->replan.steps_left = steps;
    return HTH_OK;
}

// resize_may says whether a search can begin now: requests that wait come first.
static hth_err resize_may(const hth_trainer *trainer)
{
    const hth_replan *w = &trainer->replan;
    const hth_work_queue *queue = trainer->ms->site->queue;
    bool wanted = queue != NULL && queue->wanted != NULL && queue->wanted(queue->ctx);
    if (!w->on || trainer->n_shapes == 0) {
        return hth_fail(HTH_ENOTSUP, "the job keeps its plan (--replan off)");
    }
    return w->searching || w->n_samples >= 0 || wanted
               ? hth_fail(HTH_EBUSY, "the job is being measured or planned, or requests wait")
               : HTH_OK;
}

hth_err hth_trainer_more(hth_trainer *trainer, int64_t steps)
{
    hth_replan *w = &trainer->replan;
    uint64_t bytes = hth_job_memory_spare(trainer->ms->site, &trainer->share);
    bool more = w->on && trainer->n_shapes > 0 &&
                (double)bytes >= RESIZE_MORE * (double)trainer->memory_bytes;
    if (!more || !resize_gains(trainer, resize_best_us(trainer), steps)) {
        return hth_fail(HTH_ENOTSUP, "more memory would not make the job faster");
    }
    w->stop = w->stop || !w->resizes; // no search in the memory that it has goes on
    HTH_TRY(resize_may(trainer));
    return resize_search(trainer, bytes, steps);
}

hth_err hth_trainer_less(hth_trainer *trainer, uint64_t bytes)
{
    HTH_TRY(resize_may(trainer));
    uint64_t others = resize_others(trainer);
    if (bytes < others || bytes >= trainer->memory_bytes) {
        hth_size least, asked;
        hth_size_pair(others, bytes, &least, &asked);
        return hth_fail(HTH_ENOTSUP, "the job's other steps need %s, it would have %s", least.text,
                        asked.text);
    }
    return resize_search(trainer, bytes, 0);
}

// resize_lost: the new block was not there, so that the job has its old one again.
static hth_err resize_lost(hth_trainer *trainer, hth_err err)
{
    char why[HTH_TRAINER_WHY];
    snprintf(why, sizeof why, "%s", hth_err_detail());
    uint64_t bytes = trainer->memory_bytes;
    trainer->memory_bytes = 0;
    HTH_TRY(hth_site_alloc(trainer->ms->site, bytes, HTH_POOL_ARENA, &trainer->memory));
    trainer->memory_bytes = bytes;
    return hth_fail(err, "%s", why);
}

static hth_err resize_memory(hth_trainer *trainer, uint64_t bytes)
{
    hth_site *site = trainer->ms->site;
    void *memory = NULL;
    bool more = bytes > trainer->memory_bytes;
    HTH_TRY(hth_trainer_slots_leave(&trainer->slots));
    hth_err err = more ? hth_site_alloc_spare(site, bytes, HTH_POOL_ARENA, &memory) : HTH_ENODEVMEM;
    if (err != HTH_OK && err != HTH_ENODEVMEM) {
        return err;
    }
    hth_pool_free(site->pool, trainer->memory);
    trainer->memory = memory;
    if (memory == NULL) {
        err = hth_site_alloc_spare(site, bytes, HTH_POOL_ARENA, &trainer->memory);
    }
    if (err == HTH_OK) {
        trainer->memory_bytes = bytes;
    } else {
        err = resize_lost(trainer, err);
    }
    hth_trainer_share(trainer);
    return err;
}

static hth_err resize_take(hth_trainer *trainer)
{
    const hth_replan *w = &trainer->replan;
    double now_us = hth_replan_program(trainer)->plan->predicted_us;
    if (w->refine.best == NULL) {
        return hth_fail(HTH_ETOOBIG, "no plan was found");
    }
    uint64_t bytes = resize_need(trainer, w->refine.best);
    double found_us = resize_update_us(trainer, w->refine.best, w->refine.best->predicted_us);
    bool more = w->steps_left > 0;
    if (more && !resize_gains(trainer, found_us, w->steps_left)) {
        return hth_fail(HTH_ENOTSUP, "the plan that was found is not worth changing over");
    }
    if (!more &&
        (bytes >= trainer->memory_bytes || w->refine.best->predicted_us > now_us * RESIZE_SLOWER)) {
        return hth_fail(HTH_ENOTSUP, "steps would take %.3g ms in place of %.3g ms",
                        w->refine.best->predicted_us / 1e3, now_us / 1e3);
    }
    if (!hth_replan_evaluates(trainer, w->refine.best, bytes)) {
        return hth_fail(HTH_ENOTSUP, "the plan that was found leaves too little for evaluations");
    }
    if (bytes > trainer->memory_bytes) { // the present plan needs no more than that
        HTH_TRY(resize_memory(trainer, bytes));
        return hth_replan_take(trainer);
    }
    HTH_TRY(hth_replan_take(trainer));
    return bytes < trainer->memory_bytes ? resize_memory(trainer, bytes) : HTH_OK;
}

void hth_trainer_keep_size(hth_trainer *trainer)
{
    if (trainer->replan.resizes) { // a search in the memory that it has may be told to end, too
        trainer->replan.unwanted = true;
        trainer->replan.stop = 1;
    }
}

bool hth_trainer_resized(hth_trainer *trainer, hth_err *err)
{
    char why[HTH_TRAINER_WHY];
    *err = HTH_ENOTSUP;
    if (!trainer->replan.resizes || trainer->replan.unwanted) {
        return true;
    }
    if (!trainer->replan.done) {
        return false;
    }
    *err = resize_take(trainer);
    snprintf(why, sizeof why, "%s", hth_err_detail());
    hth_replan_end(trainer);
    // what moved to host memory need not stay there; a slot that cannot come back now does so, or
    // says why not, when the next step begins
    if (hth_trainer_enter(trainer, (hth_trainer_phase *)hth_replan_phase(trainer)) == HTH_OK) {
        hth_trainer_slots_trim(&trainer->slots);
    }
    (void)hth_err_restore(*err, why);
    return true;
}
