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

static int64_t work_samples(const hth_model *m, const hth_tensor *inputs)
{
    return m->source.batched && inputs[0].shape.rank > 0 ? inputs[0].shape.dim[0] : 1;
}

hth_err hth_infer_request_open(hth_models *ms, hth_model *m, hth_request *r,
                               hth_infer_request **out)
{
    size_t n = (size_t)m->source.graph->n_inputs;
    hth_infer_request *w = hth_calloc(1, sizeof *w + 2 * n * sizeof w->inputs[0]);
    *out = NULL;
    r->version = m->version;
    r->batched = m->source.batched;
    r->started_ns = r->submitted_ns;
    hth_err err = w == NULL ? hth_fail(HTH_ENOMEM, "no memory for a request")
                            : hth_model_bind(m, r->inputs, r->n_inputs, w->inputs);
    if (err != HTH_OK) {
        hth_free(w);
        hth_infer_request_count(ms, m, r, &(hth_infer_request_times){0}, err);
        return err;
    }
    w->r = r;
    w->model = m;
    w->probe = w->inputs + n;
    w->item.samples = n > 0 ? work_samples(m, w->inputs) : 1;
    w->item.joins = m->source.batched && !m->alone && w->item.samples > 0;
    w->item.priority = r->priority;
    w->item.timeout_ns =
        r->timeout_us < WORK_LONGEST_NS / 1000u ? r->timeout_us * 1000u : WORK_LONGEST_NS;
    w->item.canceled = &r->canceled;
    hth_model_hold(m);
    *out = w;
    return HTH_OK;
}

void hth_infer_request_close(hth_models *ms, hth_infer_request *w)
{
    hth_host_give(ms->site, HTH_HOST_OUTPUTS, w->host_bytes);
    hth_model_rele(ms, w->model);
    hth_free(w);
}

const hth_tensor *hth_infer_request_key(const hth_infer_request *w, int64_t samples)
{
    int n = w->model->source.graph->n_inputs;
    if (samples == w->item.samples) {
        return w->inputs;
    }
    for (int i = 0; i < n; i++) {
        hth_tensor *k = &w->probe[i];
        *k = w->inputs[i];
        k->data = NULL;
        k->bytes = k->bytes / (size_t)k->shape.dim[0] * (size_t)samples;
        k->shape.dim[0] = samples;
    }
    return w->probe;
}

bool hth_infer_request_alike(const hth_infer_request *a, const hth_infer_request *b)
{
    int n = a->model->source.graph->n_inputs;
    bool alike = true;
    for (int i = 0; i < n && alike; i++) {
        const hth_shape *s = &a->inputs[i].shape, *t = &b->inputs[i].shape;
        alike = s->rank == t->rank && s->rank > 0 &&
                memcmp(s->dim + 1, t->dim + 1, (size_t)(s->rank - 1) * sizeof s->dim[0]) == 0;
    }
    return alike;
}

hth_err hth_infer_request_outputs(hth_infer_request *w)
{
    const hth_graph *g = w->model->source.graph;
    if (w->r->outputs != NULL) {
        return HTH_OK;
    }
    w->r->outputs = hth_calloc((size_t)g->n_outputs, sizeof *w->r->outputs); // freed by the engine
    if (w->r->outputs == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for a request");
    }
    for (int i = 0; i < g->n_outputs; i++) {
        w->r->outputs[i].name = g->values[g->outputs[i]].name;
    }
    return HTH_OK;
}

hth_err hth_infer_request_describe(hth_infer_request *w, int at, const hth_tensor *t)
{
    hth_request_tensor *o = &w->r->outputs[at];
    if (!w->placed) {
        o->t = *t;
        o->t.data = NULL; // the submitter's, and it has not been asked
        return HTH_OK;
    }
    bool same =
        o->t.dtype == t->dtype && o->t.bytes == t->bytes && hth_shape_equal(&o->t.shape, &t->shape);
    return same ? HTH_OK
                : hth_fail(HTH_EINVAL,
                           "output '%s' took %zu bytes, and %zu when its request was run again: "
                           "its inputs in shared memory were changed meanwhile",
                           o->name, o->t.bytes, t->bytes);
}

// work_room counts the outputs' bytes, which must fit in an answer and in the host's memory.
static hth_err work_room(hth_models *ms, hth_infer_request *w)
{
    hth_request *r = w->r;
    uint64_t bytes;
    char what[128];
    HTH_TRY(hth_host_answers(r, r->outputs, r->n_outputs, &bytes));
    snprintf(what, sizeof what, "an answer of model '%.60s'", w->model->name);
    hth_err err = hth_host_take(ms->site, HTH_HOST_OUTPUTS, bytes, what);
    w->host_bytes = err == HTH_OK ? bytes : 0;
    r->n_outputs = err == HTH_OK ? r->n_outputs : 0; // nobody was asked: another device may be
    return err;
}

hth_err hth_infer_request_place(hth_models *ms, hth_infer_request *w, const hth_program *p,
                                const int *map, int64_t samples)
{
    hth_request *r = w->r;
    for (int i = 0; i < p->n_final; i++) {
        int at = p->final_index[i];
        hth_tensor t = hth_program_output(p, i);
        if (samples >= 0) {
            t.bytes = t.bytes / (size_t)t.shape.dim[0] * (size_t)samples;
            t.shape.dim[0] = samples;
        }
        HTH_TRY(hth_infer_request_describe(w, map != NULL ? map[at] : at, &t));
    }
    if (w->placed) {
        return HTH_OK;
    }
    r->n_outputs = w->model->source.graph->n_outputs;
    hth_err err = work_room(ms, w);
    err = err == HTH_OK ? r->place(r, r->outputs, r->n_outputs) : err;
    w->placed = err == HTH_OK;
    return err;
}

void hth_infer_request_result(hth_infer_request *w, hth_err err)
{
    w->r->err = err;
    if (err != HTH_OK) {
        snprintf(w->r->detail, sizeof w->r->detail, "%s", hth_err_detail());
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

static void count_answer(hth_model *m, uint64_t took_ns)
{
    static const uint64_t bound_ms[] = {HTH_ANSWER_BOUNDS};
    for (int i = 0; i < HTH_N_ANSWER_BOUNDS; i++) {
        m->answered[i] += took_ns <= bound_ms[i] * 1000000u;
    }
}

void hth_infer_request_count(hth_models *ms, hth_model *m, const hth_request *r,
                             const hth_infer_request_times *t, hth_err err)
{
    uint64_t now_ns = err == HTH_OK ? t->output_ns : hth_now_ns();
    m->requests++;
    m->last_wall_ns = wall_ns();
    hth_latency_count(ms, m, now_ns, now_ns - r->submitted_ns, err == HTH_OK);
    if (err != HTH_OK) {
        m->failures++;
        m->failed[failure_of(err)]++;
        m->failure_ns += now_ns - r->submitted_ns;
        return;
    }
    const hth_shape *s = r->n_inputs > 0 ? &r->inputs[0].t.shape : NULL;
    m->samples += m->source.batched && s != NULL && s->rank > 0 ? (uint64_t)s->dim[0] : 1;
    count_answer(m, t->output_ns - r->submitted_ns);
    m->success_ns += t->output_ns - r->submitted_ns;
    m->queue_ns += t->start_ns - r->submitted_ns;
    m->input_ns += t->input_ns - t->start_ns;
    m->infer_ns += t->infer_ns - t->input_ns;
    m->output_ns += t->output_ns - t->infer_ns;
}

// ran_size finds the counts of a batch size; NULL: the table is full.
static hth_batch_count *ran_size(hth_model *m, int64_t samples)
{
    int i = 0;
    while (i < m->n_sizes && m->sizes[i].samples < samples) {
        i++;
    }
    if (i < m->n_sizes && m->sizes[i].samples == samples) {
        return &m->sizes[i];
    }
    if (m->n_sizes == HTH_BATCH_SIZES) {
        return NULL;
    }
    memmove(m->sizes + i + 1, m->sizes + i, (size_t)(m->n_sizes++ - i) * sizeof m->sizes[0]);
    m->sizes[i] = (hth_batch_count){.samples = samples};
    return &m->sizes[i];
}

void hth_infer_request_ran(hth_model *m, int64_t samples, const hth_infer_request_times *t)
{
    m->executions++;
    m->busy_ns += t->output_ns - t->start_ns;
    hth_batch_count *c = ran_size(m, samples);
    if (c != NULL) {
        c->runs++;
        c->input_ns += t->input_ns - t->start_ns;
        c->infer_ns += t->infer_ns - t->input_ns;
        c->output_ns += t->output_ns - t->infer_ns;
    }
}
