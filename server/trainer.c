// SPDX-License-Identifier: Apache-2.0
// A trainer owns what lives from step to step: the slots (parameters, optimizer state, running
// statistics) and one compiled step per batch shape. Slots of the current step are on the device in
// one slab, or, where its plan says so, far away and fetched in every step. Going to another shape
// takes all slots to their far places first and from there into the new slab.
#include "server/train.h"

#include "base/alloc.h"
#include "server/catalog.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRAINER_SHAPES 2 // the batch, and the last one of an epoch

typedef struct trainer_step {
    hth_train_graph graph;
    hth_program *program;
    hth_tensor *shape; // of the model's inputs, then the target
} trainer_step;

struct hth_trainer {
    hth_models *ms;
    const hth_train_spec *spec;
    hth_request *progress;
    hth_manifest manifest;
    hth_graph *model;
    trainer_step steps[TRAINER_SHAPES];
    int n_steps, current; // current -1: none
    int n_slots;
    void **far;            // per slot
    size_t *slot_bytes;    // per slot
    void *slab;            // on the device
    hth_tensor *in, *out;  // of the current program
    uint64_t counter;      // steps done
    uint64_t budget_bytes; // 0: not known yet
    uint64_t step_input;
    double lr;
    float hyper[HTH_N_HYPER];
};

static hth_err no_memory(void)
{
    return hth_fail(HTH_ENOMEM, "no memory to train");
}

static trainer_step *trainer_current(const hth_trainer *t)
{
    return (trainer_step *)&t->steps[t->current];
}

// Slots.

// The first step's graph says which slots there are; their contents start as the model's, or as 0.
static hth_err trainer_slots(hth_trainer *t, const hth_train_graph *g)
{
    t->n_slots = g->n_slots;
    t->far = hth_calloc((size_t)g->n_slots + 1, sizeof *t->far);
    t->slot_bytes = hth_calloc((size_t)g->n_slots + 1, sizeof *t->slot_bytes);
    if (t->far == NULL || t->slot_bytes == NULL) {
        return no_memory();
    }
    for (int i = 0; i < g->n_slots; i++) {
        const hth_train_slot *s = &g->slots[i];
        const hth_value *v = &g->graph->values[g->graph->inputs[s->input]];
        HTH_TRY(hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN, &t->slot_bytes[i]));
        t->far[i] = hth_alloc_aligned(t->slot_bytes[i], HTH_DEVICE_ALIGN);
        if (t->far[i] == NULL) {
            return no_memory();
        }
        if (s->content == NULL) {
            memset(t->far[i], 0, t->slot_bytes[i]);
            continue;
        }
        const void *data;
        HTH_TRY(hth_const_map(s->content, &data));
        memcpy(t->far[i], data, t->slot_bytes[i]);
        hth_const_unmap(s->content);
    }
    return HTH_OK;
}

static bool slot_is_near(const hth_program *p, int i)
{
    int tensor = hth_program_slot(p, i);
    return tensor >= 0 && !p->plan->streamed[tensor];
}

// Copies between the slab and the far places. On the CPU both are this process's memory.
static void trainer_move(hth_trainer *t, bool in)
{
    const trainer_step *s = trainer_current(t);
    for (int i = 0; i < t->n_slots; i++) {
        void *near = t->in[s->graph.slots[i].input].data;
        if (slot_is_near(s->program, i)) {
            memcpy(in ? near : t->far[i], in ? t->far[i] : near, t->slot_bytes[i]);
        }
    }
}

static void trainer_leave(hth_trainer *t)
{
    if (t->current >= 0) {
        trainer_move(t, false);
        hth_pool_free(t->ms->site->pool, t->slab);
        hth_free(t->in);
        hth_free(t->out);
        t->slab = NULL;
        t->in = t->out = NULL;
        t->current = -1;
    }
}

static hth_err trainer_enter(hth_trainer *t, int k)
{
    trainer_step *s = &t->steps[k];
    const hth_graph *g = s->program->graph;
    size_t bytes = 0;
    t->in = hth_calloc((size_t)g->n_inputs + 1, sizeof *t->in);
    t->out = hth_calloc((size_t)g->n_outputs + 1, sizeof *t->out);
    if (t->in == NULL || t->out == NULL) {
        return no_memory();
    }
    for (int i = 0; i < t->n_slots; i++) {
        bytes += slot_is_near(s->program, i) ? hth_plan_round(t->slot_bytes[i]) : 0;
    }
    HTH_TRY(
        hth_site_alloc(t->ms->site, bytes > 0 ? bytes : HTH_PLAN_ALIGN, HTH_POOL_WEIGHT, &t->slab));
    for (int i = 0; i < g->n_inputs; i++) {
        const hth_value *v = &g->values[g->inputs[i]];
        t->in[i] = (hth_tensor){.dtype = v->dtype, .shape = v->shape};
        HTH_TRY(hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN, &t->in[i].bytes));
    }
    for (int i = 0; i < g->n_outputs; i++) {
        t->out[i] = hth_program_output(s->program, i);
    }
    char *at = t->slab;
    for (int i = 0; i < t->n_slots; i++) {
        const hth_train_slot *slot = &s->graph.slots[i];
        void *data = NULL;
        if (slot_is_near(s->program, i)) {
            data = at;
            at += hth_plan_round(t->slot_bytes[i]);
        }
        t->in[slot->input].data = data;
        if (slot->output >= 0) {
            t->out[slot->output].data = data;
        }
    }
    t->in[s->graph.step].data = &t->step_input;
    t->in[s->graph.hyper].data = t->hyper;
    t->current = k;
    trainer_move(t, true);
    return HTH_OK;
}

// Steps.

static void step_free(hth_trainer *t, trainer_step *s)
{
    hth_program_free(t->ms->site, s->program);
    hth_train_graph_fini(&s->graph);
    hth_free(s->shape);
    *s = (trainer_step){0};
}

static hth_err step_make(hth_trainer *t, trainer_step *s, const hth_tensor *inputs,
                         const hth_tensor *target)
{
    size_t n = (size_t)t->model->n_inputs;
    HTH_TRY(hth_train_build(t->model, inputs, &t->spec->options, hth_ref_eval, NULL, &s->graph));
    s->shape = hth_memdup(inputs, n * sizeof *inputs);
    if (s->shape == NULL) {
        return no_memory();
    }
    const hth_value *want = &s->graph.graph->values[s->graph.graph->inputs[s->graph.target]];
    if (want->dtype != target->dtype || !hth_shape_equal(&want->shape, &target->shape)) {
        char a[160], b[160];
        return hth_fail(HTH_EINVAL, "targets are %s %s, but the model and this loss need %s %s",
                        hth_dtype_name(target->dtype), hth_shape_str(&target->shape, a, sizeof a),
                        hth_dtype_name(want->dtype), hth_shape_str(&want->shape, b, sizeof b));
    }
    if (t->far == NULL) {
        HTH_TRY(trainer_slots(t, &s->graph));
    }
    hth_step_spec spec = {
        .train = &s->graph, .budget = t->spec->budget, .options = t->spec->plan, .far = t->far};
    HTH_TRY(hth_program_compile_step(t->ms->site, &spec, true, t->progress, &s->program));
    t->budget_bytes = s->program->budget;
    return HTH_OK;
}

hth_err hth_trainer_prepare(hth_trainer *t, const hth_tensor *inputs, const hth_tensor *target)
{
    for (int k = 0; k < t->n_steps; k++) {
        bool same = true;
        for (int i = 0; i < t->model->n_inputs; i++) {
            same = same && hth_shape_equal(&t->steps[k].shape[i].shape, &inputs[i].shape);
        }
        if (same) {
            if (k == t->current) {
                return HTH_OK;
            }
            trainer_leave(t);
            return trainer_enter(t, k);
        }
    }
    trainer_leave(t);
    if (t->n_steps == TRAINER_SHAPES) {
        step_free(t, &t->steps[--t->n_steps]);
    }
    trainer_step *s = &t->steps[t->n_steps];
    hth_err err = step_make(t, s, inputs, target);
    if (err != HTH_OK) {
        step_free(t, s);
        return err;
    }
    return trainer_enter(t, t->n_steps++);
}

static void trainer_hyper(hth_trainer *t)
{
    const hth_train_spec *s = t->spec;
    bool adam =
        s->options.optimizer == HTH_OPTIMIZER_ADAM || s->options.optimizer == HTH_OPTIMIZER_ADAMW;
    double n = (double)(t->counter + 1);
    t->hyper[HTH_HYPER_LR] = (float)t->lr;
    t->hyper[HTH_HYPER_BETA1] = (float)(adam ? s->beta1 : s->momentum);
    t->hyper[HTH_HYPER_BETA2] = (float)s->beta2;
    t->hyper[HTH_HYPER_EPS] = (float)s->eps;
    t->hyper[HTH_HYPER_DECAY] = (float)s->weight_decay;
    t->hyper[HTH_HYPER_GRAD_SCALE] = 1;
    t->hyper[HTH_HYPER_CORRECT1] = (float)(1 - pow((float)s->beta1, n));
    t->hyper[HTH_HYPER_CORRECT2] = (float)(1 - pow((float)s->beta2, n));
}

hth_err hth_trainer_step(hth_trainer *t, const hth_tensor *inputs, const hth_tensor *target,
                         float *loss)
{
    const trainer_step *s = trainer_current(t);
    for (int i = 0; i < s->graph.n_data; i++) {
        t->in[i].data = inputs[i].data;
    }
    t->in[s->graph.target].data = target->data;
    t->step_input = (t->spec->seed << 32) + t->counter;
    trainer_hyper(t);
    t->out[0].data = loss;
    HTH_TRY(hth_program_run(t->ms->site, s->program, t->in, t->out,
                            t->progress != NULL ? &t->progress->canceled : NULL));
    t->counter++;
    return HTH_OK;
}

void hth_trainer_rate(hth_trainer *t, double lr)
{
    t->lr = lr;
}

const hth_program *hth_trainer_program(const hth_trainer *t)
{
    return t->current >= 0 ? trainer_current(t)->program : NULL;
}

int64_t hth_trainer_classes(const hth_trainer *t)
{
    const hth_graph *g = trainer_current(t)->graph.graph;
    for (int i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i].op == HTH_OP_SOFTMAX_XENT) {
            return g->values[g->nodes[i].inputs[0]].shape.dim[1];
        }
    }
    return 0;
}

hth_err hth_trainer_target(hth_trainer *t, const hth_tensor *inputs, hth_tensor *target)
{
    hth_train_graph g;
    HTH_TRY(hth_train_build(t->model, inputs, &t->spec->options, hth_ref_eval, NULL, &g));
    const hth_value *v = &g.graph->values[g.graph->inputs[g.target]];
    *target = (hth_tensor){.dtype = v->dtype, .shape = v->shape};
    hth_err err = hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN, &target->bytes);
    hth_train_graph_fini(&g);
    return err;
}

// State, for checkpoints.

hth_err hth_trainer_state(hth_trainer *t, hth_put_tensor **out, int *n)
{
    const hth_train_graph *g = &trainer_current(t)->graph;
    *n = t->n_slots;
    *out = hth_calloc((size_t)t->n_slots + 1, sizeof **out);
    if (*out == NULL) {
        return no_memory();
    }
    trainer_move(t, false);
    for (int i = 0; i < t->n_slots; i++) {
        const hth_value *v = &g->graph->values[g->graph->inputs[g->slots[i].input]];
        (*out)[i] =
            (hth_put_tensor){g->slots[i].name, v->dtype, v->shape, t->far[i], t->slot_bytes[i]};
    }
    return HTH_OK;
}

hth_err hth_trainer_restore(hth_trainer *t, hth_store *store, const hth_manifest *m, uint64_t steps)
{
    const hth_train_graph *g = &trainer_current(t)->graph;
    for (int i = 0; i < t->n_slots; i++) {
        int k = 0;
        hth_const *view;
        while (k < m->n_tensors && strcmp(m->tensors[k].name, g->slots[i].name) != 0) {
            k++;
        }
        if (k == m->n_tensors || m->tensors[k].bytes != t->slot_bytes[i]) {
            return hth_fail(HTH_EINVAL, "'%s' has no '%s' as this job needs it", m->name,
                            g->slots[i].name);
        }
        HTH_TRY(hth_store_view(store, &m->tensors[k], &view));
        memcpy(t->far[i], view->data, t->slot_bytes[i]);
        hth_const_rele(view);
    }
    trainer_move(t, true);
    t->counter = steps;
    return HTH_OK;
}

// Opening, publishing, closing.

hth_err hth_trainer_open(hth_models *ms, const hth_train_spec *spec, hth_request *progress,
                         hth_trainer **out)
{
    char name[208];
    int version;
    *out = NULL;
    HTH_TRY(hth_catalog_parse(spec->model, name, &version));
    hth_trainer *t = hth_calloc(1, sizeof *t);
    if (t == NULL) {
        return no_memory();
    }
    *t = (hth_trainer){.ms = ms, .spec = spec, .progress = progress, .current = -1, .lr = spec->lr};
    hth_err err = hth_store_get(ms->store, name, version, &t->manifest);
    if (err == HTH_OK) {
        err = hth_model_graph(ms->store, &t->manifest, &t->model);
    }
    if (err != HTH_OK) {
        hth_trainer_close(t);
        return err;
    }
    *out = t;
    return HTH_OK;
}

void hth_trainer_close(hth_trainer *t)
{
    if (t == NULL) {
        return;
    }
    if (t->current >= 0) {
        trainer_leave(t);
    } else {
        hth_pool_free(t->ms->site->pool, t->slab);
        hth_free(t->in);
        hth_free(t->out);
    }
    while (t->n_steps > 0) {
        step_free(t, &t->steps[--t->n_steps]);
    }
    for (int i = 0; t->far != NULL && i < t->n_slots; i++) {
        hth_free(t->far[i]);
    }
    hth_free(t->far);
    hth_free(t->slot_bytes);
    hth_graph_free(t->model);
    hth_manifest_fini(&t->manifest);
    hth_free(t);
}

// The version's meta, and that it was trained here. To be freed by free().
static char *trainer_meta(const char *meta)
{
    json_t *j = json_loads(meta, 0, NULL);
    j = json_is_object(j) ? j : json_object();
    json_object_set_new(j, HTH_META_TRAINED, json_true());
    char *text = json_dumps(j, JSON_COMPACT);
    json_decref(j);
    return text;
}

hth_err hth_trainer_publish(hth_trainer *t, int *version)
{
    const hth_manifest *m = &t->manifest;
    const hth_train_graph *g = &trainer_current(t)->graph;
    hth_put_tensor *put = hth_calloc((size_t)m->n_tensors + 1, sizeof *put);
    hth_const **view = hth_calloc((size_t)m->n_tensors + 1, sizeof *view);
    hth_err err = put != NULL && view != NULL ? HTH_OK : no_memory();
    hth_put_result result;
    trainer_move(t, false);
    for (int i = 0; err == HTH_OK && i < m->n_tensors; i++) {
        const hth_manifest_tensor *x = &m->tensors[i];
        put[i] = (hth_put_tensor){x->name, x->dtype, x->shape, NULL, x->bytes};
        for (int s = 0; s < t->n_slots; s++) {
            if (g->slots[s].kind != HTH_SLOT_STATE && g->slots[s].initializer == i) {
                put[i].data = t->far[s];
            }
        }
        if (put[i].data == NULL) { // not trained
            err = hth_store_view(t->ms->store, x, &view[i]);
            put[i].data = err == HTH_OK ? view[i]->data : NULL;
        }
    }
    char name[208];
    int ignored;
    err = err == HTH_OK
              ? hth_catalog_parse(t->spec->save_as != NULL ? t->spec->save_as : t->spec->model,
                                  name, &ignored)
              : err;
    char *meta = trainer_meta(m->meta);
    if (err == HTH_OK) {
        err = meta == NULL ? no_memory()
                           : hth_store_put(t->ms->store, name, m->skeleton, m->skeleton_bytes, meta,
                                           put, m->n_tensors, NULL, NULL, &result);
    }
    free(meta);
    *version = err == HTH_OK ? result.version : 0;
    for (int i = 0; view != NULL && i < m->n_tensors; i++) {
        hth_const_rele(view[i]);
    }
    hth_free(view);
    hth_free(put);
    return err;
}
