// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/infer_request.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "runtime/host.h"
#include "runtime/query_latency.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define WORK_LONGEST_NS (UINT64_MAX / 2) // of timeouts: the time at which one ends is a number, too

// What has no bytes may claim any number of samples: it counts as one at most.
static int64_t work_samples(const hth_model *model, const hth_tensor *input)
{
    bool many = model->source.batched && input->shape.rank > 0;
    return many && (input->bytes > 0 || input->shape.dim[0] < 1) ? input->shape.dim[0] : 1;
}

hth_err hth_infer_request_open(hth_models *ms, hth_model *model, hth_request *request,
                               hth_infer_request **out)
{
    size_t n = (size_t)model->source.graph->n_inputs;
    hth_infer_request *w = hth_calloc(1, sizeof *w + 2 * n * sizeof w->inputs[0]);
    *out = NULL;
    request->version = model->version;
    request->batched = model->source.batched;
    request->started_ns = request->submitted_ns;
    hth_err err = w == NULL ? hth_no_memory("a request")
                            : hth_model_bind(model, request->inputs, request->n_inputs, w->inputs);
    if (err != HTH_OK) {
        hth_free(w);
        hth_infer_request_count(ms, model, request, &(hth_infer_request_times){0}, err);
        return err;
    }
    w->r = request;
    w->model = model;
    w->probe = w->inputs + n;
    w->item.samples = n > 0 ? work_samples(model, w->inputs) : 1;
    w->item.joins = model->source.batched && !model->alone &&
                    hth_independence_covers(w->inputs, (int)n, w->item.samples);
    w->item.priority = request->priority;
    w->item.timeout_ns = request->timeout_us < WORK_LONGEST_NS / 1000u ? request->timeout_us * 1000u
                                                                       : WORK_LONGEST_NS;
    w->item.canceled = &request->canceled;
    hth_model_hold(model);
    *out = w;
    return HTH_OK;
}

void hth_infer_request_close(hth_models *ms, hth_infer_request *infer)
{
    hth_host_give(ms->site, HTH_HOST_OUTPUTS, infer->host_bytes);
    hth_model_rele(ms, infer->model);
    hth_free(infer);
}

const hth_tensor *hth_infer_request_key(const hth_infer_request *infer, int64_t samples)
{
    int n = infer->model->source.graph->n_inputs;
    if (samples == infer->item.samples) {
        return infer->inputs;
    }
    for (int i = 0; i < n; i++) {
        hth_tensor *k = &infer->probe[i];
        *k = infer->inputs[i];
        k->data = NULL;
        k->bytes = k->bytes / (size_t)k->shape.dim[0] * (size_t)samples;
        k->shape.dim[0] = samples;
    }
    return infer->probe;
}

bool hth_infer_request_alike(const hth_infer_request *left, const hth_infer_request *right)
{
    int n = left->model->source.graph->n_inputs;
    bool alike = true;
    for (int i = 0; i < n && alike; i++) {
        const hth_shape *s = &left->inputs[i].shape, *t = &right->inputs[i].shape;
        alike = s->rank == t->rank && s->rank > 0 &&
                memcmp(s->dim + 1, t->dim + 1, (size_t)(s->rank - 1) * sizeof s->dim[0]) == 0;
    }
    return alike;
}

hth_err hth_infer_request_outputs(hth_infer_request *infer)
{
    const hth_graph *g = infer->model->source.graph;
    if (infer->r->outputs != NULL) {
        return HTH_OK;
    }
    infer->r->outputs =
        hth_calloc((size_t)g->n_outputs, sizeof *infer->r->outputs); // freed by the engine
    if (infer->r->outputs == NULL) {
        return hth_no_memory("a request");
    }
    for (int i = 0; i < g->n_outputs; i++) {
        infer->r->outputs[i].name = g->values[g->outputs[i]].name;
    }
    return HTH_OK;
}

hth_err hth_infer_request_describe(hth_infer_request *infer, int at, const hth_tensor *tensor)
{
    hth_request_tensor *o = &infer->r->outputs[at];
    if (!infer->placed) {
        o->t = *tensor;
        o->t.data = NULL; // the submitter's, and it has not been asked
        return HTH_OK;
    }
    bool same = o->t.dtype == tensor->dtype && o->t.bytes == tensor->bytes &&
                hth_shape_equal(&o->t.shape, &tensor->shape);
    return same ? HTH_OK
                : hth_fail(HTH_EINVAL,
                           "output '%s' took %zu bytes, and %zu when its request was run again: "
                           "its inputs in shared memory were changed meanwhile",
                           o->name, o->t.bytes, tensor->bytes);
}

// work_check_capacity counts the outputs' bytes, which must fit in an answer and in the host's
// memory.
static hth_err work_check_capacity(hth_models *ms, hth_infer_request *request)
{
    hth_request *r = request->r;
    uint64_t bytes;
    HTH_TRY(hth_host_answers(r, r->outputs, r->n_outputs, &bytes));
    hth_err err = hth_host_take(ms->site, HTH_HOST_OUTPUTS, bytes, "an answer of model '%.60s'",
                                request->model->name);
    request->host_bytes = err == HTH_OK ? bytes : 0;
    r->n_outputs = err == HTH_OK ? r->n_outputs : 0; // nobody was asked: another device may be
    return err;
}

hth_err hth_infer_request_place(hth_models *ms, hth_infer_request *infer,
                                const hth_program *program, const int *map, int64_t samples)
{
    hth_request *r = infer->r;
    for (int i = 0; i < program->n_final; i++) {
        int at = program->final_index[i];
        hth_tensor t = hth_program_output(program, i);
        if (samples >= 0) {
            t.bytes = t.bytes / (size_t)t.shape.dim[0] * (size_t)samples;
            t.shape.dim[0] = samples;
        }
        HTH_TRY(hth_infer_request_describe(infer, map != NULL ? map[at] : at, &t));
    }
    if (infer->placed) {
        return HTH_OK;
    }
    r->n_outputs = infer->model->source.graph->n_outputs;
    hth_err err = work_check_capacity(ms, infer);
    if (err == HTH_OK) {
        err = r->place(r, r->outputs, r->n_outputs);
    }
    infer->placed = err == HTH_OK;
    return err;
}

void hth_infer_request_result(hth_infer_request *infer, hth_err err)
{
    infer->r->err = err;
    if (err != HTH_OK) {
        snprintf(infer->r->detail, sizeof infer->r->detail, "%s", hth_err_detail());
    }
}

// ---- counts

static uint64_t wall_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static hth_failure failure_of(hth_err err)
{
    switch (err) {
    case HTH_EBUSY:
    case HTH_ETIMEDOUT:
        return HTH_FAILURE_REJECTED;
    case HTH_ECANCELED:
        return HTH_FAILURE_CANCELED;
    case HTH_ENOMEM:
    case HTH_ENODEVMEM:
    case HTH_EDEVLOST:
    case HTH_EIO:
    case HTH_ECORRUPT:
        return HTH_FAILURE_BACKEND;
    default:
        return HTH_FAILURE_OTHER;
    }
}

static void count_answer(hth_model *model, uint64_t took_ns)
{
    static const uint64_t bound_ms[] = {HTH_ANSWER_BOUNDS};
    for (int i = 0; i < HTH_N_ANSWER_BOUNDS; i++) {
        model->answered[i] += took_ns <= bound_ms[i] * 1000000u;
    }
}

void hth_infer_request_count(hth_models *ms, hth_model *model, const hth_request *request,
                             const hth_infer_request_times *times, hth_err err)
{
    uint64_t now_ns = err == HTH_OK ? times->output_ns : hth_now_ns();
    model->requests++;
    model->last_wall_ns = wall_ns();
    hth_latency_count(ms, model, now_ns, now_ns - request->submitted_ns, err == HTH_OK);
    if (err != HTH_OK) {
        model->failures++;
        model->failed[failure_of(err)]++;
        model->failure_ns += now_ns - request->submitted_ns;
        return;
    }
    model->samples +=
        request->n_inputs > 0 ? (uint64_t)work_samples(model, &request->inputs[0].t) : 1;
    count_answer(model, times->output_ns - request->submitted_ns);
    model->success_ns += times->output_ns - request->submitted_ns;
    model->queue_ns += times->start_ns - request->submitted_ns;
    model->input_ns += times->input_ns - times->start_ns;
    model->infer_ns += times->infer_ns - times->input_ns;
    model->output_ns += times->output_ns - times->infer_ns;
}

// ran_size finds the counts of a batch size; NULL: the table is full.
static hth_batch_count *ran_size(hth_model *model, int64_t samples)
{
    int i = 0;
    while (i < model->n_sizes && model->sizes[i].samples < samples) {
        i++;
    }
    if (i < model->n_sizes && model->sizes[i].samples == samples) {
        return &model->sizes[i];
    }
    if (model->n_sizes == HTH_BATCH_SIZES) {
        return NULL;
    }
    memmove(model->sizes + i + 1, model->sizes + i,
            (size_t)(model->n_sizes++ - i) * sizeof model->sizes[0]);
    model->sizes[i] = (hth_batch_count){.samples = samples};
    return &model->sizes[i];
}

void hth_infer_request_ran(hth_model *model, int64_t samples, const hth_infer_request_times *times)
{
    model->executions++;
    model->busy_ns += times->output_ns - times->start_ns;
    hth_batch_count *c = ran_size(model, samples);
    if (c != NULL) {
        c->runs++;
        c->input_ns += times->input_ns - times->start_ns;
        c->infer_ns += times->infer_ns - times->input_ns;
        c->output_ns += times->output_ns - times->infer_ns;
    }
}
