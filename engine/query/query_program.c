// SPDX-License-Identifier: Apache-2.0
// Arguments of questions, and the program that a question is about: the one that requests use, or
// one of its own under another budget or in another precision.
#include "engine/query/query_impl.h"

#include "base/alloc.h"
#include "base/settings.h"
#include "base/size.h"
#include "engine/serve/infer.h"
#include "runtime/compile/compile.h"
#include "runtime/precision.h"

#include <assert.h>
#include <string.h>

const char *query_text(const query *call, const char *name)
{
    return json_string_value(json_object_get(call->args, name));
}

double query_number(const query *call, const char *name, double dflt)
{
    json_t *v = json_object_get(call->args, name);
    return json_is_number(v) ? json_number_value(v) : dflt;
}

hth_err query_find_model(const query *call, hth_model **out)
{
    const char *name = query_text(call, "model");
    return name == NULL ? hth_fail(HTH_EINVAL, "the argument 'model' is missing")
                        : hth_model_find(call->ms, name, out);
}

hth_err query_spec(const query *call, json_t *args, hth_train_spec *out)
{
    hth_precision_fill(call->ms->store, args);
    return hth_train_spec_read(args, true, out);
}

void query_tensors_free(hth_tensor *tensor, int count)
{
    for (int i = 0; tensor != NULL && i < count; i++) {
        hth_free(tensor[i].data);
    }
    hth_free(tensor);
}

// query_source is the model's source, or one of its own for the precision that was asked for.
static hth_err query_source(query *q, hth_model *model, hth_source **out)
{
    const char *name = query_text(q, "precision");
    hth_precision p = model->source.graph->precision;
    HTH_TRY(name != NULL ? hth_precision_find(name, &p) : HTH_OK);
    *out = &model->source;
    if (p == model->source.graph->precision) {
        return HTH_OK;
    }
    q->other = (hth_source){.batched = model->source.batched, .account = model->source.account};
    HTH_TRY(hth_graph_clone(model->source.graph, &q->other.graph));
    q->other.graph->precision = p;
    *out = &q->other;
    return HTH_OK;
}

// query_make makes the program, and *out is set, also on errors, to what query_program_done drops.
static hth_err query_make(query *q, query_subject *out)
{
    hth_site *site = q->ms->site;
    *out = (query_subject){.model = NULL};
    HTH_TRY(query_find_model(q, &out->model));
    hth_model *m = out->model;
    out->inputs = hth_calloc((size_t)m->source.graph->n_inputs, sizeof *out->inputs);
    if (out->inputs == NULL) {
        return hth_no_memory("a query");
    }
    double batch = query_number(q, "batch", 1);
    if (!(batch >= 1 && batch <= INT32_MAX)) {
        return hth_fail(HTH_EINVAL, "a batch is at least 1 and at most %d", INT32_MAX);
    }
    hth_source *source;
    HTH_TRY(hth_model_synthetic(m, (int64_t)batch, true, out->inputs));
    HTH_TRY(query_source(q, m, &source));
    uint64_t budget = site->device->props.budget_bytes, whole = budget;
    const char *text = query_text(q, "budget");
    if (text != NULL &&
        strchr(text, '%') != NULL) { // of what the model takes when nothing is short
        uint64_t weights, arena;
        HTH_TRY(hth_infer_program(q->ms, source, out->inputs, true, q->r, &out->program));
        hth_program_ledger(out->program, &weights, &arena);
        HTH_TRY(hth_err_prefix(hth_parse_size(text, weights + arena, &budget), "budget"));
        out->program = NULL;
    } else if (text != NULL) {
        HTH_TRY(hth_err_prefix(hth_parse_size(text, whole, &budget), "budget"));
    }
    if (budget > whole) {
        hth_size asked, there;
        hth_size_pair(budget, whole, &asked, &there);
        return hth_fail(HTH_ETOOBIG, "a budget of %s is more than the device's %s", asked.text,
                        there.text);
    }
    if (budget == whole) {
        return hth_infer_program(q->ms, source, out->inputs, true, q->r, &out->program);
    }
    out->own = true;
    return hth_program_compile(site, source, out->inputs, budget, true, q->r, &out->program);
}

hth_err query_program(query *call, query_subject *out)
{
    hth_err err = query_make(call, out);
    if (err != HTH_OK) {
        out->program = NULL;
        return err;
    }
    out->program->held++; // the question is about it to its end
    return HTH_OK;
}

void query_program_done(query *call, query_subject *subject)
{
    hth_program *p = subject->program;
    if (p != NULL) {
        assert(p->held > 0);
        p->held--;
    }
    if (p != NULL && subject->own) {
        hth_program_free(call->ms->site, p);
    }
    if (call->other.graph != NULL) {
        hth_source_fini(call->ms->site, &call->other);
    }
    if (subject->inputs != NULL) {
        query_tensors_free(subject->inputs, subject->model->source.graph->n_inputs);
    }
}
