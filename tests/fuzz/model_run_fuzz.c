// SPDX-License-Identifier: Apache-2.0
// Fuzzes the whole way of a model: bytes are imported, what is imported is loaded, what is loaded
// is run, with values at the ends of their types; of some, a step that trains them is made, and run
// likewise. Whatever a file says is computed or refused; nothing leaks, and no memory stays taken.
// Models are changed as models (onnx_mutate.h). Seeds: one or two of each operator
// (tests/tools/make_run_seeds.py). Limits are tight, so that each one is short.
#include "base/settings.h"
#include "graph/passes/fold.h"
#include "graph/onnx/onnx.h"
#include "graph/autodiff/train.h"
#include "runtime/host.h"
#include "engine/serve/infer.h"
#include "engine/serve/version_swap.h"
#include "engine/serve/load.h"
#include "runtime/paced.h"
#include "tests/fuzz/onnx_mutate.h"

#include <stdio.h>

#define FUZZ_RUNS    4                  // of a model
#define FUZZ_INPUTS  ((size_t)64 << 10) // bytes of an input
#define FUZZ_TRAINED 4                  // one of so many models
#define FUZZ_TURNS   40                 // of a run, about a million operations each
#define FUZZ_WEIGHTS 16                 // of a loss

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerInitialize(int *argc, char ***argv);
size_t LLVMFuzzerMutate(uint8_t *data, size_t bytes, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t most, unsigned seed);

static hth_site site;
static hth_models models = {.site = &site, .changed = hth_version_swap_check};
static hth_request request;
static int turns, trained; // steps of training that were made

static void must(hth_err err)
{
    if (err != HTH_OK) {
        fprintf(stderr, "%s\n", hth_err_detail());
        abort();
    }
}

// What takes long is canceled, as by a client that hangs up.
static void fuzz_turn(void *ctx)
{
    if (++turns > FUZZ_TURNS) {
        request.canceled = 1;
    }
}

static hth_work_queue queue = {.poll = fuzz_turn};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const settings[][2] = {
        {"kernels.onednn", "false"},       {"limits.message_bytes", "1MiB"},
        {"limits.elements", "65536"},      {"limits.nodes", "60"},
        {"limits.inputs_outputs", "40"},   {"limits.fold_bytes", "1MiB"},
        {"limits.fold_operations", "1e6"}, {"limits.folded_bytes", "4MiB"},
        {"limits.model_bytes", "64KiB"},   {"memory.host_bytes", "4MiB"}};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        must(hth_setting_set(settings[i][0], settings[i][1]));
    }
    must(hth_device_open("cpu:mem=8MiB,threads=1", &site.device));
    must(hth_pool_open(site.device, site.device->props.budget_bytes, &site.pool));
    must(hth_residency_open(site.pool, &site.residency));
    site.tolerance = 1e-3;
    site.link_bytes_per_s = site.link_back_bytes_per_s = 2e9;
    site.queue = &queue;
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t most, unsigned seed)
{
    size_t made = seed % 16 > 0 ? mut_onnx(data, bytes, most, seed) : 0;
    return made > 0 ? made : LLVMFuzzerMutate(data, bytes, most);
}

// ---- requests

static hth_err fuzz_place(hth_request *request, hth_request_tensor *out, int n)
{
    for (int i = 0; i < n; i++) {
        out[i].t.data = hth_alloc_aligned(out[i].t.bytes, 64);
        if (out[i].t.data == NULL) {
            abort(); // limits.message_bytes bounds it
        }
    }
    return HTH_OK;
}

static int onnx_type_of(hth_dtype dt)
{
    return (int)dt; // hth_dtype has ONNX's numbers
}

// Inputs as the model's signature has them, open dimensions small; false: too large.
static bool fuzz_inputs(const hth_graph *graph, hth_request_tensor *in)
{
    int64_t symbol[16];
    for (int i = 0; i < 16; i++) {
        symbol[i] = (int64_t)mut_below(6);
    }
    for (int i = 0; i < graph->n_inputs; i++) {
        const hth_value *v = &graph->values[graph->inputs[i]];
        hth_tensor *t = &in[i].t;
        in[i].name = v->name;
        *t = (hth_tensor){.dtype = v->dtype, .shape = v->shape};
        t->shape.rank = t->shape.rank < 0 ? (int)mut_below(5) : t->shape.rank;
        for (int d = 0; d < t->shape.rank; d++) {
            int64_t dim = v->shape.rank < 0 ? -1 : v->shape.dim[d];
            if (dim <= -2) {
                dim = symbol[HTH_DIM_TO_SYMBOL(dim) % 16];
            } else if (dim == -1) {
                dim = (int64_t)mut_below(6);
            }
            t->shape.dim[d] = dim;
        }
        if (hth_tensor_bytes(t->dtype, &t->shape, HTH_LAYOUT_PLAIN, &t->bytes) != HTH_OK ||
            t->bytes > FUZZ_INPUTS) {
            return false;
        }
        t->data = hth_alloc_aligned(t->bytes, 64);
        mut_elements(onnx_type_of(t->dtype), t->data, t->bytes / hth_dtype_bytes(t->dtype));
    }
    return true;
}

static void fuzz_request(hth_model *model)
{
    const hth_graph *g = model->source.graph;
    hth_request_tensor *in = hth_calloc((size_t)g->n_inputs + 1, sizeof *in);
    hth_infer_request *w;
    request = (hth_request){
        .model = "m", .inputs = in, .n_inputs = g->n_inputs, .place = fuzz_place, .at_once = true};
    turns = 0;
    if (fuzz_inputs(g, in) && hth_infer_request_open(&models, model, &request, &w) == HTH_OK) {
        hth_infer_request_result(w, hth_infer(&models, w));
        hth_infer_request_close(&models, w);
    }
    for (int i = 0; i < request.n_outputs; i++) {
        hth_free(request.outputs[i].t.data);
    }
    hth_free(request.outputs);
    for (int i = 0; i < g->n_inputs; i++) {
        hth_free(in[i].t.data);
    }
    hth_free(in);
}

// ---- models

static hth_err fuzz_import(const uint8_t *data, size_t bytes, hth_graph **out)
{
    hth_onnx_limits limits = {.max_model_bytes = 64 << 10,
                              .max_tensor_elements = 1 << 16,
                              .max_nodes = 60,
                              .max_rank = HTH_MAX_RANK,
                              .max_signature = 40};
    hth_onnx_file *f;
    size_t skeleton_bytes;
    HTH_TRY(hth_onnx_open_bytes(data, bytes, &limits, &f));
    int n = hth_onnx_n_tensors(f);
    const void *skeleton = hth_onnx_skeleton(f, &skeleton_bytes);
    hth_const **c = hth_calloc((size_t)n + 1, sizeof(hth_const *));
    for (int i = 0; i < n; i++) {
        const hth_onnx_tensor *t = hth_onnx_tensor_at(f, i);
        must(hth_const_new(t->dtype, &t->shape, t->data, &c[i]));
    }
    hth_err err = hth_onnx_load(skeleton, skeleton_bytes, c, n, &limits, out);
    if (err == HTH_OK) {
        must(hth_graph_check(*out));
    }
    for (int i = 0; i < n; i++) {
        hth_const_rele(c[i]);
    }
    hth_free(c);
    hth_onnx_close(f);
    return err;
}

static void fuzz_model(hth_graph *graph)
{
    hth_model *m = hth_calloc(1, sizeof *m);
    hth_program *p;
    bool made;
    *m = (hth_model){.name = "m", .version = 1, .max_batch = -1, .source = {.graph = graph}};
    strcpy(m->account.name, "m");
    m->source.account = &m->account;
    must(hth_independence_prove(graph, &m->independence));
    m->source.batched = m->independence.proven;
    m->next = models.list;
    models.list = m;
    request = (hth_request){.canceled = 0};
    turns = 0;
    hth_err err = hth_load_program(&models, m, &request, &p, &made);
    if (err == HTH_OK) {
        err = hth_program_activate(&site, p);
    }
    for (int k = 0; k < FUZZ_RUNS; k++) {
        fuzz_request(m);
    }
    hth_model_drop(&models, m);
}

// A new request, that may be canceled while others would be served.
static void fuzz_begin(hth_paced *paced)
{
    turns = 0;
    request = (hth_request){.canceled = 0};
    hth_paced_begin(paced, &site, &request);
}

// Weights of a loss: of as many classes as the first output seems to have, or of another number.
static int fuzz_weights(const hth_graph *graph, int axis, float weights[FUZZ_WEIGHTS])
{
    const hth_shape *shape =
        graph->n_outputs > 0 ? &graph->values[graph->outputs[0]].shape : &HTH_SHAPE_UNKNOWN;
    int at = axis < 0 ? shape->rank - 1 : 1, n = 1 + (int)mut_below(FUZZ_WEIGHTS);
    if (at >= 0 && at < shape->rank && shape->dim[at] > 0 && shape->dim[at] <= FUZZ_WEIGHTS &&
        mut_below(4) > 0) {
        n = (int)shape->dim[at];
    }
    for (int i = 0; i < n; i++) {
        weights[i] = (float)mut_below(5) / 2;
    }
    return n;
}

// The graph of a training step is a model like another: its parameters are inputs.
static void fuzz_train(const hth_graph *graph)
{
    static const hth_train_loss losses[] = {HTH_LOSS_MSE, HTH_LOSS_MSE, HTH_LOSS_SOFTMAX_XENT,
                                            HTH_LOSS_BCE};
    float weights[FUZZ_WEIGHTS];
    hth_train_options o = {.loss = MUT_PICK(losses),
                           .phase = (hth_train_phase)mut_below(3),
                           .optimizer = (hth_train_optimizer)mut_below(4),
                           .nesterov = mut_below(2) > 0,
                           .clip_norm = mut_below(2) > 0 ? 1 : 0,
                           .class_axis = (int)mut_below(3) - 1,
                           .label_dtype = mut_below(3) > 0 ? HTH_DT_I64 : HTH_DT_I32,
                           .label_smoothing = mut_below(2) > 0 ? (float)mut_below(11) / 10 : 0,
                           .keep_outputs = mut_below(2) > 0};
    if (mut_below(2) > 0) {
        o.weights = weights;
        o.n_weights = fuzz_weights(graph, o.class_axis, weights);
    }
    hth_request_tensor *in = hth_calloc((size_t)graph->n_inputs + 1, sizeof *in);
    hth_tensor *t = hth_calloc((size_t)graph->n_inputs + 1, sizeof *t);
    hth_train_graph step;
    bool fits = fuzz_inputs(graph, in);
    for (int i = 0; i < graph->n_inputs; i++) {
        t[i] = in[i].t;
        t[i].data = NULL;
        hth_free(in[i].t.data);
    }
    hth_paced paced;
    fuzz_begin(&paced);
    bool built = fits && hth_train_build(graph, t, &o, hth_ref_eval, NULL, &step) == HTH_OK;
    hth_paced_end(&paced);
    trained += built;
    if (built) {
        hth_graph *made = step.graph;
        step.graph = NULL;
        hth_train_graph_fini(&step);
        must(hth_graph_check(made));
        fuzz_model(made);
    }
    hth_free(t);
    hth_free(in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    int64_t live = hth_alloc_live();
    hth_graph *g = NULL;
    mut_state = bytes; // values follow from the bytes, so that a finding repeats
    for (size_t i = 0; i < bytes; i++) {
        mut_state = mut_state * 1099511628211u ^ data[i];
    }
    if (fuzz_import(data, bytes, &g) == HTH_OK) {
        hth_paced paced;
        if (mut_below(FUZZ_TRAINED) == 0) {
            fuzz_train(g);
        }
        fuzz_begin(&paced);
        hth_err err = hth_fold_model(g, hth_ref_eval, NULL);
        hth_paced_end(&paced);
        if (err == HTH_OK) {
            fuzz_model(g);
        } else {
            hth_graph_free(g);
        }
    }
    hth_latency_close(models.latency);
    models.latency = NULL;
    hth_site_trim(&site);
    if (hth_alloc_live() != live || hth_host_used(&site) != 0 || hth_fold_live() != 0) {
        fprintf(stderr, "%lld allocations are left, %llu bytes of the host's memory\n",
                (long long)(hth_alloc_live() - live), (unsigned long long)hth_host_used(&site));
        abort();
    }
    return 0;
}
