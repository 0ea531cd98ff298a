// SPDX-License-Identifier: Apache-2.0
// What a job may have of the device when it begins. A budget that was asked for is had or waited
// for; a job without one gets what is spare, or, where that is too little, also what idle models
// occupy; with other jobs the point of its curve that the rest of the device can give.
#include "engine/train/trainer_impl.h"

#include "base/alloc.h"
#include "base/size.h"
#include "runtime/tenants/quota.h"

// What an update is planned for when it is asked what it could have. A group's shard is added up,
// then only updates: that needs no more than a batch of twice the size in two parts.
static hth_err admit_inputs(const hth_trainer *trainer, const hth_tensor *inputs, hth_tensor **out)
{
    int n = trainer->model->n_inputs;
    *out = hth_memdup(inputs, (size_t)n * sizeof *inputs);
    for (int i = 0; *out != NULL && trainer->group && i < n; i++) {
        (*out)[i].shape.dim[0] *= 2;
        (*out)[i].bytes *= 2;
    }
    return *out != NULL ? HTH_OK : hth_no_memory("a training job");
}

// With other jobs. HTH_ENODEVMEM: not now.
static hth_err admit_beside(hth_trainer *trainer, const hth_tensor *inputs)
{
    const hth_train_admission *admission = &trainer->admission;
    hth_site *site = trainer->ms->site;
    hth_curve curve;
    hth_curve_point point = {.budget_bytes = 0};
    hth_train_spec quick = *trainer->spec;
    quick.accumulate = trainer->parts;
    hth_tensor *planned;
    HTH_TRY(admit_inputs(trainer, inputs, &planned));
    hth_err err = hth_trainer_demands(trainer->ms, &quick, trainer->progress, planned,
                                      admission->steps, &curve);
    hth_free(planned);
    HTH_TRY(err);
    if (curve.n == 0 || curve.point[0].device_bytes > site->device->props.budget_bytes) {
        return HTH_OK; // never: which planning it finds out, and says
    }
    if (admission->ask != NULL) {
        HTH_TRY(admission->ask(admission->ctx, &curve, admission->steps, &point.budget_bytes));
    } else {
        HTH_TRY(hth_job_memory_admit(site, &curve, &point));
    }
    uint64_t rest = hth_job_memory_rest(site, &trainer->share);
    trainer->budget_bytes = point.budget_bytes < rest ? point.budget_bytes : rest;
    return HTH_OK;
}

// What it was given before, which may not be there any more.
static hth_err admit_granted(hth_trainer *trainer)
{
    const hth_train_admission *admission = &trainer->admission;
    uint64_t rest = trainer->available_bytes;
    if (rest < admission->need_bytes) {
        hth_size needs, left;
        hth_size_pair(admission->need_bytes, rest, &needs, &left);
        return hth_fail(HTH_ENODEVMEM, "waits for %s of device memory, of which %s are free",
                        needs.text, left.text);
    }
    trainer->budget_bytes = admission->budget_bytes < rest ? admission->budget_bytes : rest;
    return HTH_OK;
}

hth_err hth_trainer_admit(hth_trainer *trainer, const hth_tensor *inputs)
{
    hth_site *site = trainer->ms->site;
    bool alone = hth_job_memory_alone(site, &trainer->share);
    bool asks = trainer->admission.ask != NULL && !alone;
    trainer->available_bytes = hth_job_memory_rest(site, &trainer->share);
    if (trainer->admission.budget_bytes > 0 && trainer->budget_bytes == 0) {
        return admit_granted(trainer);
    }
    if ((trainer->spec->budget != NULL && !asks) || trainer->budget_bytes > 0) {
        return HTH_OK;
    }
    hth_program_evict_stale(site, NULL); // they are made again after the job only
    trainer->available_bytes =
        alone ? hth_job_memory_spare(site, &trainer->share) : trainer->available_bytes;
    return alone ? HTH_OK : admit_beside(trainer, inputs);
}

bool hth_trainer_admit_more(hth_trainer *trainer)
{
    uint64_t rest = hth_job_memory_rest(trainer->ms->site, &trainer->share);
    if (trainer->spec->budget != NULL || trainer->admission.exact ||
        rest <= trainer->available_bytes) {
        return false;
    }
    trainer->available_bytes = trainer->budget_bytes = rest;
    return true;
}

// What an update takes, for those who come later.
static void admit_point(const hth_trainer_phase *phase, double times, hth_curve_point *out)
{
    const hth_plan *plan = phase->program->plan;
    for (int i = 0; i < plan->n_instrs; i++) {
        double us = (plan->instrs[i].end_us - plan->instrs[i].start_us) * times;
        out->h2d_us += plan->instrs[i].kind == HTH_INSTR_PREFETCH ? us : 0;
        out->d2h_us += plan->instrs[i].kind == HTH_INSTR_OFFLOAD ? us : 0;
    }
}

// One step runs at a time: the program with the most frozen weights on the device; NULL: none has
// any.
static const hth_program *admit_frozen(const hth_trainer *trainer)
{
    const hth_program *frozen = NULL;
    uint64_t most = 0;
    for (int i = 0; i < 2 * trainer->n_shapes; i++) {
        const hth_trainer_shape *s = &trainer->shapes[i / 2];
        const hth_program *p = i % 2 == 0 ? s->add.program : s->apply.program;
        uint64_t bytes = p != NULL ? hth_job_memory_weights(p) : 0;
        frozen = bytes > most ? p : frozen;
        most = bytes > most ? bytes : most;
    }
    return frozen;
}

void hth_trainer_share(hth_trainer *trainer)
{
    hth_curve_point point = {.device_bytes = trainer->memory_bytes};
    if (trainer->memory_bytes > 0 && trainer->current >= 0) {
        const hth_trainer_shape *s = hth_trainer_current(trainer);
        point.time_us = hth_trainer_shape_us(trainer, s);
        admit_point(&s->apply, 1, &point);
        if (s->parts > 1) {
            admit_point(&s->add, (double)(s->parts - 1), &point);
        }
    }
    point.time_us = point.time_us > 0 ? point.time_us : 1;
    trainer->share.frozen = admit_frozen(trainer);
    hth_job_memory_set(trainer->ms->site, &trainer->share, &point);
    // what was admitted is within the limit with what stays: idle programs go for it
    (void)hth_quota_holds(trainer->ms->site, &trainer->account, NULL);
}
