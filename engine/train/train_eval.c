// SPDX-License-Identifier: Apache-2.0
#include "engine/train/train_eval.h"
#include "engine/train/train_score.h"

#include "base/alloc.h"
#include "runtime/compile/compile.h"
#include "runtime/host.h"

#include <string.h>

struct hth_evaluator {
    hth_models *ms;
    const hth_train_spec *spec;
    hth_trainer *trainer;
    hth_request *r;
    hth_train_data data;
    hth_source source;        // of the forward graph; a program per batch shape
    void *arena;              // of the trainer, as is its size
    uint64_t budget, planned; // planned: what the programs take of it
    int64_t batch, at;        // at: first sample of the next batch
    hth_tensor *in;           // of the forward graph
    float *result;            // its output
    uint64_t result_bytes;    // .. that are counted for it
    uint64_t most_bytes;      // the largest output of a program, which may be gone by now
    hth_put_tensor *slots;    // the trainer's, as they are now
    hth_train_options o;      // the loss, with its weights
    hth_score score;          // of what was seen
};

// The trainer's parameters and statistics become inputs after the model's.
static hth_err eval_bind(hth_evaluator *evaluator)
{
    const hth_train_graph *g = hth_trainer_graph(evaluator->trainer);
    int n, at = evaluator->data.n_inputs, k = 0;
    HTH_TRY(hth_trainer_arena(evaluator->trainer, &evaluator->arena, &evaluator->budget));
    hth_free(evaluator->slots);
    evaluator->slots = NULL;
    HTH_TRY(hth_trainer_state(evaluator->trainer, &evaluator->slots, &n));
    for (int s = 0; s < g->n_slots; s++) {
        if (hth_slot_of_model(g->slots[s].kind)) {
            evaluator->in[at++] = (hth_tensor){.dtype = evaluator->slots[k].dtype,
                                               .shape = evaluator->slots[k].shape,
                                               .data = (void *)evaluator->slots[k].data,
                                               .bytes = evaluator->slots[k].bytes};
        }
        k += g->slots[s].kind != HTH_SLOT_COPY;
    }
    return HTH_OK;
}

static hth_err eval_program_any(hth_evaluator *evaluator, hth_program **out)
{
    for (int i = 0; i < evaluator->data.n_inputs; i++) {
        evaluator->in[i] = evaluator->data.input[i];
    }
    *out = hth_source_match(&evaluator->source, evaluator->in);
    if (*out != NULL) {
        (*out)->arena = evaluator->arena;
        return HTH_OK;
    }
    HTH_TRY(hth_program_compile(evaluator->ms->site, &evaluator->source, evaluator->in,
                                evaluator->budget, true, evaluator->r, out));
    (*out)->arena = evaluator->arena;
    return (*out)->rest.graph == NULL
               ? HTH_OK
               : hth_fail(HTH_ENOTSUP, "the model's shapes depend on its values");
}

// A program that this one was made in the place of may be made again for its batch.
static hth_err eval_program(hth_evaluator *evaluator, hth_program **out)
{
    HTH_TRY(eval_program_any(evaluator, out));
    size_t bytes = hth_program_output(*out, 0).bytes;
    uint64_t arena = (*out)->plan->arena_bytes;
    evaluator->most_bytes = bytes > evaluator->most_bytes ? bytes : evaluator->most_bytes;
    evaluator->planned = arena > evaluator->planned ? arena : evaluator->planned;
    return HTH_OK;
}

static void eval_forget(hth_evaluator *evaluator)
{
    while (evaluator->source.programs != NULL) {
        hth_program_free(evaluator->ms->site, evaluator->source.programs);
    }
}

static void eval_result_free(hth_evaluator *evaluator)
{
    hth_host_give(evaluator->ms->site, HTH_HOST_BATCHES, evaluator->result_bytes);
    hth_free(evaluator->result);
    evaluator->result = NULL;
    evaluator->result_bytes = 0;
}

static hth_err eval_result_alloc(hth_evaluator *evaluator)
{
    uint64_t most = evaluator->most_bytes;
    eval_result_free(evaluator);
    HTH_TRY(
        hth_host_take(evaluator->ms->site, HTH_HOST_BATCHES, most, "the outputs of an evaluation"));
    evaluator->result_bytes = most;
    evaluator->result = hth_alloc_aligned(most, HTH_DEVICE_ALIGN);
    return evaluator->result != NULL ? HTH_OK : hth_no_memory("an evaluation");
}

static hth_err eval_programs(hth_evaluator *evaluator)
{
    hth_program *p;
    hth_train_data *d = &evaluator->data;
    evaluator->most_bytes = evaluator->planned = 0;
    hth_train_data_shape(d, evaluator->batch);
    HTH_TRY(eval_program(evaluator, &p));
    if (d->n_samples % evaluator->batch == 0) {
        return HTH_OK;
    }
    hth_train_data_shape(d, d->n_samples % evaluator->batch);
    return eval_program(evaluator, &p);
}

// Programs for whole batches and the last one. Where the budget is short batches are smaller, if
// samples do not depend on each other: else another batch would have another loss.
static hth_err eval_prepare(hth_evaluator *evaluator)
{
    const hth_train_data *d = &evaluator->data;
    evaluator->batch =
        evaluator->spec->batch < d->n_samples ? evaluator->spec->batch : d->n_samples;
    hth_err err = eval_programs(evaluator);
    if (err == HTH_ETOOBIG && hth_trainer_whole(evaluator->trainer)) {
        return hth_err_prefix(err,
                              "a batch of %lld samples, which depend on each other, is evaluated "
                              "as a whole like it is trained",
                              (long long)evaluator->batch);
    }
    while (err == HTH_ETOOBIG && evaluator->batch > 1) {
        eval_forget(evaluator);
        evaluator->batch /= 2;
        err = eval_programs(evaluator);
    }
    HTH_TRY(err);
    hth_trainer_evaluates(evaluator->trainer, evaluator->planned);
    return eval_result_alloc(evaluator);
}

hth_err hth_evaluator_refit(hth_evaluator *evaluator)
{
    HTH_TRY(eval_bind(evaluator));
    if (evaluator->budget >= evaluator->planned) {
        hth_trainer_evaluates(evaluator->trainer, evaluator->planned);
        return HTH_OK;
    }
    eval_forget(evaluator);
    evaluator->at = 0;
    hth_err err = eval_prepare(evaluator);
    if (err != HTH_OK) {
        eval_forget(evaluator);
        evaluator->planned = UINT64_MAX; // the next try makes them again, whatever there is then
    }
    return err;
}

static hth_err eval_open(hth_evaluator *evaluator)
{
    const hth_train_graph *g = hth_trainer_graph(evaluator->trainer);
    if (evaluator->spec->options.loss == HTH_LOSS_SOFTMAX_XENT) {
        HTH_TRY(
            hth_train_data_check_labels(&evaluator->data, hth_trainer_classes(evaluator->trainer)));
    }
    hth_train_data_order(&evaluator->data, false, 0, 0);
    HTH_TRY(hth_train_forward(hth_trainer_model(evaluator->trainer), g, &evaluator->source.graph));
    evaluator->in =
        hth_calloc((size_t)evaluator->source.graph->n_inputs + 1, sizeof *evaluator->in);
    HTH_TRY(evaluator->in == NULL ? hth_no_memory("an evaluation") : eval_bind(evaluator));
    return eval_prepare(evaluator);
}

hth_err hth_evaluator_open(hth_models *ms, const hth_train_spec *spec, hth_trainer *trainer,
                           hth_train_data *data, hth_request *request, hth_evaluator **out)
{
    *out = NULL;
    hth_evaluator *e = hth_calloc(1, sizeof *e);
    if (e == NULL) {
        hth_train_data_close(data);
        return hth_no_memory("an evaluation");
    }
    *e = (hth_evaluator){.ms = ms,
                         .spec = spec,
                         .trainer = trainer,
                         .r = request,
                         .o = hth_trainer_options(trainer),
                         .data = *data,
                         .source = {.account = hth_trainer_account(trainer)}};
    hth_err err = eval_open(e);
    if (err != HTH_OK) {
        hth_evaluator_close(e);
        return hth_err_prefix(err, "held-out data");
    }
    *out = e;
    return HTH_OK;
}

void hth_evaluator_close(hth_evaluator *evaluator)
{
    if (evaluator == NULL) {
        return;
    }
    hth_source_fini(evaluator->ms->site, &evaluator->source);
    hth_train_data_close(&evaluator->data);
    hth_free(evaluator->in);
    eval_result_free(evaluator);
    hth_free(evaluator->slots);
    hth_free(evaluator);
}

hth_err hth_evaluator_slice(hth_evaluator *evaluator, bool *done, json_t **result)
{
    hth_program *p;
    *done = false;
    HTH_TRY(hth_evaluator_refit(evaluator)); // slots may have moved since the last turn
    if (evaluator->at == 0) {
        evaluator->score = (hth_score){.loss = 0};
    }
    HTH_TRY(hth_train_data_batch(&evaluator->data, evaluator->at, evaluator->batch));
    HTH_TRY(eval_program(evaluator, &p));
    hth_tensor out = hth_program_output(p, 0);
    out.data = evaluator->result;
    HTH_TRY(hth_program_run(evaluator->ms->site, p, evaluator->in, &out, &evaluator->r->canceled));
    hth_score_add(&evaluator->score, &evaluator->o, evaluator->result, &out.shape,
                  &evaluator->data.target);
    evaluator->at += evaluator->batch;
    if (evaluator->at >= evaluator->data.n_samples) {
        evaluator->at = 0;
        *done = true;
        *result = hth_score_result(&evaluator->score, &evaluator->o);
        return *result != NULL ? HTH_OK : hth_no_memory("an evaluation");
    }
    return HTH_OK;
}

const json_t *hth_train_held_out(const json_t *list)
{
    const json_t *set = json_object_get(json_array_get(list, 0), "set"), *last = NULL;
    json_t *v;
    size_t i;
    json_array_foreach(list, i, v)
    {
        last = json_equal(json_object_get(v, "set"), set) ? v : last;
    }
    return last;
}

void hth_train_details(const json_t *state, json_t *doc)
{
    // K-means', and a group's
    static const char *const same[] = {"inertia", "iterations", "ms",
                                       "seconds", "converged",  "shards"};
    static const char *const asked[] = {"flip", "crop", "normalize"};
    const json_t *history = json_object_get(state, "history"), *job = json_object_get(state, "job");
    const json_t *last = json_array_get(history, json_array_size(history) - 1);
    const json_t *held = hth_train_held_out(json_object_get(state, "held_out"));
    json_int_t epochs = json_integer_value(json_object_get(job, "epochs"));
    json_int_t steps = json_integer_value(json_object_get(state, "steps"));
    json_object_set_new(doc, "steps_per_epoch", json_integer(steps / (epochs > 0 ? epochs : 1)));
    json_object_set(doc, "lr", json_array_get(last, 2));
    json_object_set(doc, "held_out_step", json_object_get(held, "step"));
    json_object_set(doc, "top5", json_object_get(held, "top5"));
    json_object_set(doc, "perplexity", json_object_get(held, "perplexity"));
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        json_object_set(doc, same[i], json_object_get(state, same[i]));
    }
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        json_object_set(doc, asked[i], json_object_get(job, asked[i]));
    }
}
