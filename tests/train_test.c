// SPDX-License-Identifier: Apache-2.0
// tests/train_test.c - whole training steps against PyTorch (tests/tools/make_train_models.py), and
// what hth_train_build refuses, leaves out and promises.
#include "graph/onnx/onnx.h"
#include "graph/passes/pass.h"
#include "tests/rig/train_run.h"

#include <math.h>
#include <stdio.h>

#define FOLDER "tests/data/train/"

// The script's formulas. Label 3 of every `ignored` counts for nothing.
static void fill_target(hth_tensor *tensor, int64_t seed, int64_t classes, int ignored)
{
    for (int64_t i = 0; i < hth_shape_elements(&tensor->shape); i++) {
        if (tensor->dtype == HTH_DT_I64 && ignored > 0 && i % ignored == 3) {
            ((int64_t *)tensor->data)[i] = -100;
        } else if (tensor->dtype == HTH_DT_I64) {
            ((int64_t *)tensor->data)[i] = (i * 7 + seed * 5 + i / 3) % classes;
        } else {
            ((float *)tensor->data)[i] = (float)((i * 37 + seed * 101 + i / 7 * 13) % 67 - 33) / 32;
        }
    }
}

static void fill(hth_tensor *tensor, int64_t seed, int64_t classes)
{
    fill_target(tensor, seed, classes, 0);
}

// .. of a target that is true or false
static void threshold(hth_tensor *tensor)
{
    for (int64_t i = 0; i < hth_shape_elements(&tensor->shape); i++) {
        ((float *)tensor->data)[i] = ((float *)tensor->data)[i] > 0;
    }
}

static hth_graph *load(const char *name)
{
    char path[128];
    hth_graph *g;
    snprintf(path, sizeof path, FOLDER "%s.onnx", name);
    if (hth_onnx_load_file(path, &g) != HTH_OK) {
        fail_msg("%s", hth_err_detail());
    }
    return g;
}

// The model's only input for a batch of 4.
static hth_tensor batch_of_4(const hth_graph *graph)
{
    const hth_value *v = &graph->values[graph->inputs[0]];
    hth_tensor t = {.dtype = v->dtype, .shape = v->shape};
    assert_int_equal(graph->n_inputs, 1);
    t.shape.dim[0] = 4;
    return t;
}

typedef struct recipe {
    char loss[16], optimizer[16];
    float lr, beta1, decay, clip, nesterov;
    int steps;
    float smoothing, weights[64];
    int ignored, axis, n_weights;
} recipe;

static recipe recipe_read(FILE *file)
{
    recipe r = {.axis = 0};
    assert_int_equal(fscanf(file, "%15s %15s %f %f %f %f %f %d", r.loss, r.optimizer, &r.lr,
                            &r.beta1, &r.decay, &r.clip, &r.nesterov, &r.steps),
                     8);
    if (fscanf(file, " options %f %d %d %d", &r.smoothing, &r.ignored, &r.axis, &r.n_weights) ==
        4) {
        assert_in_range(r.n_weights, 0, 64);
        for (int i = 0; i < r.n_weights; i++) {
            assert_int_equal(fscanf(file, "%f", &r.weights[i]), 1);
        }
    }
    return r;
}

static hth_train_options options_of(const recipe *r)
{
    static const char *const name[] = {"sgd", "momentum", "adam", "adamw"};
    hth_train_options o = {.clip_norm = r->clip,
                           .nesterov = r->nesterov != 0,
                           .class_axis = r->axis,
                           .label_smoothing = r->smoothing,
                           .weights = r->n_weights > 0 ? r->weights : NULL,
                           .n_weights = r->n_weights};
    o.loss = strcmp(r->loss, "mse") == 0   ? HTH_LOSS_MSE
             : strcmp(r->loss, "bce") == 0 ? HTH_LOSS_BCE
                                           : HTH_LOSS_SOFTMAX_XENT;
    for (int i = 0; i < 4; i++) {
        o.optimizer = strcmp(name[i], r->optimizer) == 0 ? (hth_train_optimizer)i : o.optimizer;
    }
    return o;
}

static void set_hyper(float *h, const recipe *r, int step)
{
    bool adam = r->optimizer[0] == 'a';
    h[HTH_HYPER_LR] = r->lr;
    h[HTH_HYPER_BETA1] = adam ? 0.9f : r->beta1;
    h[HTH_HYPER_BETA2] = 0.999f;
    h[HTH_HYPER_EPS] = 1e-8f;
    h[HTH_HYPER_DECAY] = r->decay;
    h[HTH_HYPER_GRAD_SCALE] = 1;
    h[HTH_HYPER_CORRECT1] = (float)(1 - pow(h[HTH_HYPER_BETA1], step + 1));
    h[HTH_HYPER_CORRECT2] = (float)(1 - pow(h[HTH_HYPER_BETA2], step + 1));
}

static double norm_of(const hth_tensor *tensor)
{
    double sum = 0;
    for (int64_t i = 0; i < hth_shape_elements(&tensor->shape); i++) {
        sum += (double)((float *)tensor->data)[i] * (double)((float *)tensor->data)[i];
    }
    return sqrt(sum);
}

static int find_slot(const hth_train_graph *graph, const char *name)
{
    for (int s = 0; s < graph->n_slots; s++) {
        if (strcmp(graph->slots[s].name, name) == 0) {
            return s;
        }
    }
    return -1;
}

static void near_to(const char *name, const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * (0.1 + fabs(want)))) {
        fail_msg("%s: %s is %.8g, PyTorch has %.8g", name, what, got, want);
    }
}

// A device that fuses much, and blocks what is made of channels. Buffers stay plain here: what is
// tested is that the graph means the same.
static bool fuses(void *ctx, const hth_graph *graph, const hth_node *node, const hth_post_op *post,
                  int operand)
{
    return node->op == HTH_OP_CONV || node->op == HTH_OP_GEMM || node->op == HTH_OP_MAT_MUL ||
           node->op == HTH_OP_BATCH_NORM_TRAIN;
}

static hth_layout blocks(void *ctx, const hth_graph *graph, const hth_node *node, bool *any)
{
    bool conv = node->op == HTH_OP_CONV || node->op == HTH_OP_CONV_TRANSPOSE ||
                node->op == HTH_OP_CONV_GRAD_DATA || node->op == HTH_OP_CONV_GRAD_FILTER;
    *any = node->op == HTH_OP_ADD || node->op == HTH_OP_RELU || node->op == HTH_OP_RELU_GRAD ||
           node->op == HTH_OP_BATCH_NORM_TRAIN || node->op == HTH_OP_BATCH_NORM_GRAD ||
           node->op == HTH_OP_MAX_POOL_TRAIN || node->op == HTH_OP_MAX_POOL_GRAD;
    return conv ? HTH_LAYOUT_C8 : HTH_LAYOUT_PLAIN;
}

static bool reads_plain(void *ctx, const hth_graph *graph, const hth_node *node)
{
    return (node->op == HTH_OP_CONV || node->op == HTH_OP_CONV_GRAD_FILTER) &&
           graph->values[node->inputs[0]].shape.dim[1] <= 3;
}

static void run_passes(hth_graph *graph)
{
    static const hth_fuse_oracle oracle = {fuses, blocks, reads_plain, NULL};
    assert_int_equal(hth_pass_simplify(graph), HTH_OK);
    assert_int_equal(hth_pass_fuse(graph, &oracle), HTH_OK);
    assert_int_equal(hth_pass_layout(graph, &oracle), HTH_OK);
    if (hth_graph_check(graph) != HTH_OK) {
        fail_msg("%s", hth_err_detail());
    }
    for (int i = 0; i < graph->n_outputs; i++) {
        assert_int_equal(graph->values[graph->outputs[i]].layout, HTH_LAYOUT_PLAIN);
    }
}

// same_changes checks that what is foreseen to change is what the step has slots for.
static void same_changes(const char *name, const hth_graph *model, const hth_train_options *options,
                         const hth_train_graph *graph)
{
    bool changed[200], slot[200] = {false};
    int n = 0;
    for (int v = 0; v < model->n_values; v++) {
        n = model->values[v].initializer > n ? model->values[v].initializer : n;
    }
    assert_true(n <= 200);
    assert_int_equal(hth_train_changes(model, options, changed, n), HTH_OK);
    for (int s = 0; s < graph->n_slots; s++) {
        if (hth_slot_of_model(graph->slots[s].kind)) {
            slot[graph->slots[s].initializer] = true;
        }
    }
    for (int i = 0; i < n; i++) {
        if (changed[i] != slot[i]) {
            fail_msg("%s: initializer %d: foreseen %d, trained %d", name, i, changed[i], slot[i]);
        }
    }
}

static void train_with(const char *name, int64_t classes_in, int64_t classes, bool passes)
{
    char path[128], what[256];
    double want;
    hth_train_graph t;
    snprintf(path, sizeof path, FOLDER "%s.txt", name);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    const recipe r = recipe_read(f);
    hth_graph *g = load(name);
    hth_tensor in = batch_of_4(g);
    hth_train_options o = options_of(&r);
    if (hth_train_build(g, &in, &o, hth_ref_eval, NULL, &t) != HTH_OK) {
        fail_msg("%s: %s", name, hth_err_detail());
    }
    same_changes(name, g, &o, &t);
    if (passes) {
        run_passes(t.graph);
    }
    train_run run = run_open(&t);
    for (int i = 0; i < r.steps; i++) {
        fill(run_input(&run, 0), i, classes_in);
        bool floats = o.loss != HTH_LOSS_SOFTMAX_XENT, next = o.class_axis < 0;
        fill_target(run_input(&run, t.target), floats ? i + 9 : i + next, classes, r.ignored);
        if (o.loss == HTH_LOSS_BCE) {
            threshold(run_input(&run, t.target));
        }
        set_hyper(run_input(&run, t.hyper)->data, &r, i);
        assert_int_equal(fscanf(f, " loss %lf", &want), 1);
        snprintf(what, sizeof what, "loss %d", i + 1);
        near_to(name, what, run_step(&run), want, 2e-4);
        run_commit(&run);
    }
    while (fscanf(f, " norm %200s %lf", what, &want) == 2) {
        int s = find_slot(&t, what);
        if (s < 0) {
            fail_msg("%s: no slot '%s'", name, what);
        }
        near_to(name, what, norm_of(run_input(&run, t.slots[s].input)), want, 1e-3);
    }
    fclose(f);
    run_close(&run);
    hth_train_graph_fini(&t);
    hth_graph_free(g);
}

// As hth_train_build made it, and after a device's passes.
static void train(const char *name, int64_t classes_in, int64_t classes)
{
    train_with(name, classes_in, classes, false);
    train_with(name, classes_in, classes, true);
}

static void test_convolutional(void **state)
{
    train("net_sgd", 0, 4);
    train("net_momentum", 0, 4);
    train("net_clip", 0, 4);
    train("unet_adam", 0, 3);
    train("mobile_adam", 0, 4);
}

// 50 steps of a small ResNet, a UNet and a transformer.
static void test_long_runs(void **state)
{
    train("net_long", 0, 4);
    train("unet_long", 0, 3);
    train("encoder_long", 30, 5);
}

static void test_others(void **state)
{
    train("encoder_adamw", 30, 5);
    train("lstm_adam", 0, 3);
    train("gru_sgd", 0, 3);
    train("rnn_sgd", 0, 3);
    train("mlp_sgd", 0, 0);
    train("mlp_inference", 0, 0);
}

// Classes in axis 1 and in the last, weights, label smoothing, labels that are ignored; BCE.
static void test_losses(void **state)
{
    train("tokens_adamw", 30, 30);
    train("unet_weighted", 0, 3);
    train("net_smooth", 0, 4);
    train("net_bce", 0, 0);
    train("mlp_bce", 0, 0);
}

// Which axis the labels leave out. Where they could leave out either the caller has to say.
static void test_class_axis(void **state)
{
    hth_graph *g = load("tokens_adamw");
    hth_train_options o = {.loss = HTH_LOSS_SOFTMAX_XENT};
    hth_train_graph t;
    int axis;
    hth_tensor in = batch_of_4(g);
    assert_int_equal(hth_train_build(g, &in, &o, hth_ref_eval, NULL, &t), HTH_OK);
    assert_int_equal(hth_train_class_axis(&t, &(hth_shape){2, {4, 7}}, &axis), HTH_OK);
    assert_int_equal(axis, -1);
    assert_int_equal(hth_train_class_axis(&t, &(hth_shape){2, {4, 30}}, &axis), HTH_OK);
    assert_int_equal(axis, 1);
    assert_int_equal(hth_train_class_axis(&t, &(hth_shape){2, {4, 8}}, &axis), HTH_EINVAL);
    assert_non_null(
        strstr(hth_err_detail(), "labels are [4,8], but output 'y' [4,7,30] needs one"));
    const hth_value *loss = &t.graph->values[t.graph->outputs[0]];
    t.graph->values[t.graph->nodes[loss->producer].inputs[0]].shape.dim[1] = 30;
    assert_int_equal(hth_train_class_axis(&t, &(hth_shape){2, {4, 30}}, &axis), HTH_EINVAL);
    assert_non_null(strstr(hth_err_detail(), "--class-axis 1 or -1 chooses"));
    hth_train_graph_fini(&t);
    hth_graph_free(g);
    g = load("net_sgd"); // there is one axis only
    in = batch_of_4(g);
    assert_int_equal(hth_train_build(g, &in, &o, hth_ref_eval, NULL, &t), HTH_OK);
    assert_int_equal(hth_train_class_axis(&t, &(hth_shape){1, {4}}, &axis), HTH_OK);
    assert_int_equal(axis, 1);
    hth_train_graph_fini(&t);
    hth_graph_free(g);
}

static int count_op(const hth_graph *graph, hth_op op)
{
    int n = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        n += graph->nodes[i].op == op;
    }
    return n;
}

static hth_err build(hth_graph *graph, const hth_train_options *options, hth_train_graph *t)
{
    hth_tensor in = batch_of_4(graph);
    return hth_train_build(graph, &in, options, hth_ref_eval, NULL, t);
}

// Relu is part of batch norm; the first convolution gets no data gradient; each slot's pair is an
// input and an output; an optimizer node stands behind every reader of its parameter.
static void test_shape_of_the_graph(void **state)
{
    hth_graph *g = load("net_momentum");
    hth_train_options o = {.optimizer = HTH_OPTIMIZER_MOMENTUM, .keep_outputs = true};
    hth_train_graph t;
    assert_int_equal(build(g, &o, &t), HTH_OK);
    const hth_graph *s = t.graph;
    assert_int_equal(count_op(s, HTH_OP_BATCH_NORM_TRAIN), 7);
    assert_int_equal(count_op(s, HTH_OP_RELU), 3); // behind the sums and the pool
    assert_int_equal(count_op(s, HTH_OP_RELU_GRAD), 3);
    assert_int_equal(count_op(s, HTH_OP_ADD), 2); // forward; ReluGrad sums gradients
    assert_int_equal(count_op(s, HTH_OP_CONV_GRAD_FILTER), count_op(s, HTH_OP_CONV));
    assert_int_equal(count_op(s, HTH_OP_CONV_GRAD_DATA), count_op(s, HTH_OP_CONV) - 1);
    assert_int_equal(s->n_inputs, t.n_data + 3 + t.n_slots);
    assert_int_equal(s->n_outputs, 1 + t.n_slots + 1);
    assert_int_equal(t.first_output, 1 + t.n_slots);
    assert_string_equal(s->values[s->outputs[t.first_output]].name, "y");
    for (int i = 0; i < t.n_slots; i++) {
        int value = s->inputs[t.slots[i].input], next = s->outputs[t.slots[i].output];
        assert_true(hth_shape_equal(&s->values[value].shape, &s->values[next].shape));
        for (int n = 0; n < s->n_nodes && t.slots[i].kind == HTH_SLOT_PARAM; n++) {
            for (int k = 0; k < s->nodes[n].n_inputs; k++) {
                assert_true(s->nodes[n].inputs[k] != value || n <= s->values[next].producer);
            }
        }
    }
    hth_train_graph_fini(&t);
    hth_graph_free(g);
}

// In bf16 products and convolutions read a parameter's copy, which its optimizer writes in the same
// node; everybody else, the optimizer too, reads the parameter.
static void test_copies(void **state)
{
    static const hth_train_phase phases[] = {HTH_TRAIN_WHOLE, HTH_TRAIN_ACCUMULATE,
                                             HTH_TRAIN_APPLY};
    for (int i = 0; i < 6; i++) {
        hth_graph *g = load(i < 3 ? "net_momentum" : "net_clip");
        hth_train_options o = {.optimizer = i < 3 ? HTH_OPTIMIZER_MOMENTUM : HTH_OPTIMIZER_ADAM,
                               .clip_norm = i < 3 ? 0 : 1,
                               .phase = phases[i % 3],
                               .precision = HTH_PRECISION_BF16};
        hth_train_graph t;
        int copies = 0;
        assert_int_equal(build(g, &o, &t), HTH_OK);
        const hth_graph *s = t.graph;
        for (int k = 0; k < t.n_slots; k++) {
            const hth_train_slot *c = &t.slots[k];
            int param = -1, reads = 0, value = s->inputs[c->input];
            for (int q = 0; q < t.n_slots && c->kind == HTH_SLOT_COPY; q++) {
                bool of =
                    t.slots[q].kind == HTH_SLOT_PARAM && t.slots[q].initializer == c->initializer;
                param = of ? q : param;
            }
            if (param < 0) {
                assert_int_not_equal(c->kind, HTH_SLOT_COPY);
                continue;
            }
            copies++;
            assert_int_equal(s->values[value].dtype, HTH_DT_BF16);
            assert_ptr_equal(c->content, t.slots[param].content);
            int from = s->inputs[t.slots[param].input], step = s->n_nodes;
            if (phases[i % 3] != HTH_TRAIN_ACCUMULATE) {
                int next = s->outputs[c->output];
                step = s->values[next].producer;
                assert_int_equal(s->values[next].dtype, HTH_DT_BF16);
                assert_int_equal(s->values[s->outputs[t.slots[param].output]].producer, step);
            } else {
                assert_int_equal(c->output, -1);
            }
            for (int n = 0; n < s->n_nodes; n++) {
                hth_op op = s->nodes[n].op;
                for (int q = 0; q < s->nodes[n].n_inputs; q++) {
                    bool copy = s->nodes[n].inputs[q] == value;
                    assert_true(!copy || n <= step);
                    assert_true(s->nodes[n].inputs[q] != from ||
                                (op != HTH_OP_CONV && op != HTH_OP_CONV_GRAD_DATA &&
                                 op != HTH_OP_MAT_MUL && (op != HTH_OP_GEMM || q == 2)));
                    reads += copy;
                }
            }
            assert_true(reads >= (step < s->n_nodes ? 2 : 1));
        }
        assert_true(copies >= 7);
        hth_train_graph_fini(&t);
        hth_graph_free(g);
    }
}

// What is no share of a step has no place in the list, however large.
static void no_such_share(hth_train_graph *t)
{
    const int64_t share[] = {2 * (int64_t)t->graph->n_nodes, INT32_MAX, INT64_MAX};
    size_t *list;
    int n, at = 0;
    while (t->graph->nodes[at].op != HTH_OP_BATCH_NORM_TRAIN) {
        at++;
    }
    for (size_t i = 0; i < sizeof share / sizeof share[0]; i++) {
        assert_int_equal(hth_node_set_int(&t->graph->nodes[at], "share", share[i]), HTH_OK);
        assert_int_equal(hth_train_shard_sums(t, &list, &n), HTH_ECORRUPT);
        assert_non_null(strstr(hth_err_detail(), "(BatchNormTrain): there is no sum "));
    }
}

// Of a shard each batch norm has two names for its sums, of two rows of channels and a number; of a
// whole batch there are none.
static void test_shares(void **state)
{
    hth_graph *g = load("net_momentum");
    for (int sync = 0; sync < 2; sync++) {
        hth_train_options o = {.phase = HTH_TRAIN_ACCUMULATE, .sync_bn = sync != 0};
        hth_train_graph t;
        size_t *list;
        int n, norms = 0;
        assert_int_equal(build(g, &o, &t), HTH_OK);
        assert_int_equal(hth_train_shard_sums(&t, &list, &n), HTH_OK);
        for (int i = 0; i < t.graph->n_nodes; i++) {
            const hth_node *node = &t.graph->nodes[i];
            bool back = node->op == HTH_OP_BATCH_NORM_GRAD;
            if (back || node->op == HTH_OP_BATCH_NORM_TRAIN) {
                int64_t share = hth_node_int(node, "share", -1);
                const hth_value *scale = &t.graph->values[node->inputs[back ? 2 : 1]];
                assert_true(sync ? share >= 0 && share % 2 == back : share < 0);
                assert_true(!sync || list[share] == (size_t)(2 * scale->shape.dim[0] + 1));
                norms++;
            }
        }
        assert_true(norms > 2);
        assert_int_equal(n, sync ? norms : 0);
        hth_free(list);
        no_such_share(&t);
        hth_train_graph_fini(&t);
    }
    hth_graph_free(g);
}

static void test_freeze(void **state)
{
    hth_graph *g = load("net_sgd");
    const char *const all_but_head[] = {"f.[0-6].*"}, *const all[] = {"*"};
    hth_train_options o = {.freeze = all_but_head, .n_freeze = 1};
    hth_train_graph t;
    assert_int_equal(build(g, &o, &t), HTH_OK);
    same_changes("net_sgd", g, &o, &t);
    int stats = 0;
    for (int i = 0; i < t.n_slots; i++) {
        stats += t.slots[i].kind == HTH_SLOT_STAT;
    }
    assert_int_equal(t.n_slots - stats, 2); // weight and bias of the last layer
    assert_int_equal(stats, 14);
    assert_int_equal(count_op(t.graph, HTH_OP_CONV_GRAD_FILTER), 0);
    assert_int_equal(count_op(t.graph, HTH_OP_BATCH_NORM_GRAD), 0);
    hth_train_graph_fini(&t);
    o.freeze = all;
    assert_int_equal(build(g, &o, &t), HTH_ENOTSUP);
    assert_non_null(strstr(hth_err_detail(), "nothing to train"));
    hth_graph_free(g);
}

// Behind a parameter, in the way of the gradient: an operator without one.
static void test_refusals(void **state)
{
    hth_graph *g = load("mlp_sgd");
    hth_train_options o = {.loss = HTH_LOSS_MSE, .output = "nothing"};
    hth_train_graph t;
    assert_int_equal(build(g, &o, &t), HTH_EINVAL);
    assert_non_null(strstr(hth_err_detail(), "'nothing'"));
    o.output = "y";
    for (int i = 0; i < g->n_nodes; i++) {
        g->nodes[i].op = g->nodes[i].op == HTH_OP_TANH ? HTH_OP_BITWISE_NOT : g->nodes[i].op;
    }
    assert_int_equal(build(g, &o, &t), HTH_ENOTSUP);
    assert_non_null(strstr(hth_err_detail(), "(BitwiseNot): the operator has no gradient"));
    o.loss = HTH_LOSS_SOFTMAX_XENT;
    o.freeze = (const char *const[]){"0.*"}; // what lies before the refused operator is not needed
    o.n_freeze = 1;
    assert_int_equal(build(g, &o, &t), HTH_OK);
    hth_train_graph_fini(&t);
    hth_graph_free(g);
}

// Every allocation fails once: an error, and nothing is left behind.
static void test_out_of_memory(void **state)
{
    static const char *const name[] = {"net_clip", "encoder_adamw"};
    for (int m = 0; m < 2; m++) {
        hth_graph *g = load(name[m]);
        hth_train_options o = {.optimizer = HTH_OPTIMIZER_ADAM, .clip_norm = m == 0};
        hth_err err = HTH_ENOMEM;
        for (uint64_t n = 1; err != HTH_OK; n++) {
            int64_t live = hth_alloc_live();
            hth_train_graph t;
            hth_fault_alloc(n);
            err = build(g, &o, &t);
            hth_fault_alloc(0);
            if (err == HTH_OK) {
                hth_train_graph_fini(&t);
            } else {
                assert_int_equal(err, HTH_ENOMEM);
            }
            assert_int_equal(hth_alloc_live(), live);
        }
        hth_graph_free(g);
    }
}

// Two batches added up are one of both: the same parameters come out (the model has no batch norm).
static void test_accumulation(void **state)
{
    hth_graph *g = load("mlp_sgd");
    hth_train_graph t[3];
    train_run run[3];
    recipe r = {.optimizer = "adam", .lr = 0.1f, .decay = 0.01f};
    hth_train_options o = {
        .loss = HTH_LOSS_MSE, .optimizer = HTH_OPTIMIZER_ADAM, .clip_norm = 0.01f};
    hth_tensor in = batch_of_4(g);
    for (int i = 0; i < 3; i++) {
        o.phase = (hth_train_phase)i;
        in.shape.dim[0] = i == HTH_TRAIN_WHOLE ? 8 : 4;
        assert_int_equal(hth_train_build(g, &in, &o, hth_ref_eval, NULL, &t[i]), HTH_OK);
        run[i] = run_open(&t[i]);
        set_hyper(run_input(&run[i], t[i].hyper)->data, &r, 0);
        ((float *)run_input(&run[i], t[i].hyper)->data)[HTH_HYPER_GRAD_SCALE] = i == 0 ? 1 : 0.5f;
    }
    assert_int_equal(t[1].n_slots, t[2].n_slots);
    fill(run_input(&run[0], 0), 1, 0);
    fill(run_input(&run[0], t[0].target), 2, 0);
    for (int i = 1; i < 3; i++) { // the halves
        for (int k = 0; k < 2; k++) {
            hth_tensor *to = run_input(&run[i], k), *from = run_input(&run[0], k);
            memcpy(to->data, (char *)from->data + (size_t)(i - 1) * to->bytes, to->bytes);
        }
    }
    for (int step = 0; step < 2; step++) {
        double loss = run_step(&run[0]), half = run_step(&run[1]);
        run_commit(&run[0]);
        run_commit(&run[1]);
        for (int s = 0; s < t[1].n_slots; s++) {
            assert_string_equal(t[1].slots[s].name, t[2].slots[s].name);
            hth_tensor *to = run_input(&run[2], t[2].slots[s].input);
            memcpy(to->data, run_input(&run[1], t[1].slots[s].input)->data, to->bytes);
        }
        near_to("accumulated", "loss", (half + run_step(&run[2])) / 2, loss, 1e-6);
        run_commit(&run[2]);
        for (int s = 0; s < t[2].n_slots; s++) {
            hth_tensor *back = run_input(&run[1], t[1].slots[s].input),
                       *from = run_input(&run[2], t[2].slots[s].input);
            memcpy(back->data, from->data, from->bytes);
            int whole = find_slot(&t[0], t[2].slots[s].name);
            near_to("accumulated", t[2].slots[s].name, norm_of(from),
                    whole < 0 ? 0 : norm_of(run_input(&run[0], t[0].slots[whole].input)), 1e-5);
        }
    }
    for (int i = 0; i < 3; i++) {
        run_close(&run[i]);
        hth_train_graph_fini(&t[i]);
    }
    hth_graph_free(g);
}

// Gradients that were summed elsewhere update alone: nothing of the model is left in that graph,
// the same parameters come out as of a whole step, and the sums are cleared.
static void test_update(void **state)
{
    hth_graph *g = load("mlp_sgd");
    hth_train_graph t[2];
    train_run run[3];
    recipe r = {.optimizer = "adam", .lr = 0.1f, .decay = 0.01f};
    hth_train_options o = {
        .loss = HTH_LOSS_MSE, .optimizer = HTH_OPTIMIZER_ADAM, .clip_norm = 0.01f};
    hth_train_graph whole;
    hth_tensor in = batch_of_4(g);
    assert_int_equal(hth_train_build(g, &in, &o, hth_ref_eval, NULL, &whole), HTH_OK);
    run[2] = run_open(&whole);
    set_hyper(run_input(&run[2], whole.hyper)->data, &r, 0);
    for (int i = 0; i < 2; i++) {
        o.phase = i == 0 ? HTH_TRAIN_ACCUMULATE : HTH_TRAIN_UPDATE;
        assert_int_equal(hth_train_build(g, &in, &o, hth_ref_eval, NULL, &t[i]), HTH_OK);
        run[i] = run_open(&t[i]);
        set_hyper(run_input(&run[i], t[i].hyper)->data, &r, 0);
    }
    for (int i = 0; i < 3; i += 2) {
        fill(run_input(&run[i], 0), 1, 0);
        fill(run_input(&run[i], whole.target), 2, 0);
    }
    assert_int_equal(count_op(t[1].graph, HTH_OP_MAT_MUL), 0);
    assert_int_equal(count_op(t[1].graph, HTH_OP_GEMM), 0);
    double loss = run_step(&run[2]);
    near_to("update", "loss", run_step(&run[0]), loss, 1e-6);
    run_commit(&run[2]);
    run_commit(&run[0]);
    for (int s = 0; s < t[1].n_slots; s++) {
        assert_string_equal(t[0].slots[s].name, t[1].slots[s].name);
        hth_tensor *to = run_input(&run[1], t[1].slots[s].input);
        memcpy(to->data, run_input(&run[0], t[0].slots[s].input)->data, to->bytes);
    }
    (void)run_step(&run[1]);
    run_commit(&run[1]);
    for (int s = 0; s < t[1].n_slots; s++) {
        int of = find_slot(&whole, t[1].slots[s].name);
        near_to("update", t[1].slots[s].name, norm_of(run_input(&run[1], t[1].slots[s].input)),
                of < 0 ? 0 : norm_of(run_input(&run[2], whole.slots[of].input)), 1e-6);
    }
    for (int i = 0; i < 3; i++) {
        run_close(&run[i]);
        hth_train_graph_fini(i < 2 ? &t[i] : &whole);
    }
    hth_graph_free(g);
}

// Running statistics are what adding has made of them; in bf16 the copies are written; sums are
// cleared, or read only.
static void test_update_slots(void **state)
{
    hth_graph *g = load("net_momentum");
    hth_train_options o = {.optimizer = HTH_OPTIMIZER_MOMENTUM,
                           .phase = HTH_TRAIN_UPDATE,
                           .precision = HTH_PRECISION_BF16};
    for (int keep = 0; keep < 2; keep++) {
        hth_train_graph t;
        int kinds[4] = {0};
        o.keep_sums = keep > 0;
        assert_int_equal(build(g, &o, &t), HTH_OK);
        assert_int_equal(count_op(t.graph, HTH_OP_CONV), 0);
        for (int s = 0; s < t.n_slots; s++) {
            bool sum = strstr(t.slots[s].name, "/gradient") != NULL;
            kinds[t.slots[s].kind]++;
            assert_int_equal(t.slots[s].output < 0,
                             t.slots[s].kind == HTH_SLOT_STAT || (sum && keep > 0));
        }
        for (int k = 0; k < 4; k++) {
            assert_true(kinds[k] > 0);
        }
        hth_train_graph_fini(&t);
    }
    hth_graph_free(g);
}

// A model exported for training becomes one for inference.
static void test_off(void **state)
{
    hth_graph *g = load("net_sgd");
    hth_stage s;
    hth_tensor in = batch_of_4(g);
    assert_true(g->training);
    assert_int_equal(hth_train_off(g), HTH_OK);
    assert_false(g->training);
    assert_int_equal(hth_graph_check(g), HTH_OK);
    assert_int_equal(hth_specialize(g, &in, hth_ref_eval, NULL, &s), HTH_OK);
    assert_int_equal(hth_pass_simplify(s.graph), HTH_OK);
    assert_int_equal(hth_pass_fold_norm(s.graph), HTH_OK);
    assert_int_equal(count_op(s.graph, HTH_OP_BATCH_NORMALIZATION), 0);
    assert_int_equal(count_op(s.graph, HTH_OP_DROPOUT), 0);
    hth_stage_fini(&s);
    hth_graph_free(g);
}

// Masks depend on step, node and position, and on nothing else; about the right share is dropped.
static void test_dropout(void **state)
{
    hth_graph *g = load("net_sgd");
    hth_train_graph t;
    hth_train_options o = {.loss = HTH_LOSS_SOFTMAX_XENT};
    float ratio = 0.5f;
    int value, dropouts = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i].op == HTH_OP_DROPOUT) {
            hth_const *c;
            assert_int_equal(hth_const_new(HTH_DT_F32, &(hth_shape){0}, &ratio, &c), HTH_OK);
            assert_int_equal(hth_graph_add_const(g, NULL, c, &value), HTH_OK);
            g->nodes[i].inputs[1] = value;
        }
    }
    assert_int_equal(build(g, &o, &t), HTH_OK);
    train_run run = run_open(&t);
    float *hyper = run_input(&run, t.hyper)->data, loss[3];
    hyper[HTH_HYPER_GRAD_SCALE] = 1;
    fill(run_input(&run, 0), 1, 0);
    fill(run_input(&run, t.target), 1, 4);
    for (int i = 0; i < 3; i++) {
        *(uint64_t *)run_input(&run, t.step)->data = (uint64_t)(i == 2 ? 0 : i);
        loss[i] = (float)run_step(&run);
        for (int n = 0; n < t.graph->n_nodes; n++) {
            const hth_node *d = &t.graph->nodes[n];
            if (d->op == HTH_OP_DROPOUT_TRAIN && i == 0) {
                const hth_tensor *y = &run.value[d->outputs[0]];
                int64_t kept = 0, all = hth_shape_elements(&y->shape);
                for (int64_t k = 0; k < all; k++) {
                    kept += ((float *)y->data)[k] != 0;
                }
                assert_true(kept > all / 4 && kept < all * 3 / 4);
                dropouts++;
            }
        }
    }
    assert_int_equal(dropouts, 2); // forward and backward
    assert_true(loss[0] == loss[2] && loss[0] != loss[1]);
    run_close(&run);
    hth_train_graph_fini(&t);
    hth_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convolutional), cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_class_axis),    cmocka_unit_test(test_others),
        cmocka_unit_test(test_losses),        cmocka_unit_test(test_shape_of_the_graph),
        cmocka_unit_test(test_copies),        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_freeze),        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_out_of_memory), cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_accumulation),  cmocka_unit_test(test_update),
        cmocka_unit_test(test_update_slots),  cmocka_unit_test(test_off),
    };
    return cmocka_run_group_tests_name("train", tests, NULL, NULL);
}
