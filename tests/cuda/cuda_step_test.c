// SPDX-License-Identifier: Apache-2.0
// What a training step runs on a CUDA device (over the fake driver). In bf16 the copies of filters
// that optimizers write lie as convolutions read them, so that no kernel of the step turns or
// rounds one; with plain copies, of which the same is asked, kernels do. In each precision every
// convolution and every product, gradients and recurrences included, is computed in that, by what
// the libraries were asked for.
#include "convsel/convsel.h"
#include "graph/onnx/onnx.h"
#include "graph/passes/pass.h"
#include "graph/autodiff/train.h"
#include "kernels/cuda/fixture.h"
#include "kernels/cuda/handles.h"

#undef hth_kernel_prepare

static hth_graph *load(const char *name)
{
    char path[128];
    hth_graph *g;
    snprintf(path, sizeof path, "tests/data/train/%s.onnx", name);
    assert_int_equal(hth_onnx_load_file(path, &g), HTH_OK);
    return g;
}

static void build(hth_graph *model, hth_precision precision, hth_train_graph *graph)
{
    const hth_value *v = &model->values[model->inputs[0]];
    hth_tensor x = {.dtype = v->dtype, .shape = v->shape};
    hth_train_options o = {.optimizer = HTH_OPTIMIZER_ADAM, .precision = precision};
    x.shape.dim[0] = 4;
    assert_int_equal(hth_train_build(model, &x, &o, hth_ref_eval, NULL, graph), HTH_OK);
}

// As a program is compiled for the device.
static void passes(hth_graph *graph)
{
    const hth_fuse_oracle *o = hth_kernel_oracle(cuda_test_device);
    assert_int_equal(hth_pass_simplify(graph), HTH_OK);
    assert_int_equal(hth_pass_fuse(graph, o), HTH_OK);
    assert_int_equal(hth_pass_layout(graph, o), HTH_OK);
    assert_int_equal(hth_graph_compact(graph), HTH_OK);
    assert_int_equal(hth_kernel_half(cuda_test_device, graph), HTH_OK);
    assert_int_equal(hth_graph_check(graph), HTH_OK);
}

// A parameter's copy with more positions than one.
static bool filter_copy(const hth_value *value)
{
    return value->is_input && value->dtype == HTH_DT_BF16 && value->shape.rank > 2 &&
           hth_shape_elements(&value->shape) > value->shape.dim[0] * value->shape.dim[1];
}

// Steps of node's kernel that copy a filter's copy into the workspace.
static int node_turns(const hth_graph *graph, const hth_node *node)
{
    hth_kernel *k;
    int turns = 0;
    if (hth_kernel_prepare(cuda_test_device, graph, node, NULL, &k) != HTH_OK) {
        fail_msg("%s", hth_err_detail());
    }
    const hth_cuda_seq *s = (const hth_cuda_seq *)k;
    const hth_cuda_site *site = hth_cuda_site_of(s->d);
    for (int i = 0; i < s->n_steps; i++) {
        const hth_cuda_step *step = &s->steps[i];
        bool copies = step->run == NULL && (step->kernel == site->kernel[HTH_CUDA_hth_transpose] ||
                                            step->kernel == site->kernel[HTH_CUDA_hth_convert]);
        for (int b = 0; b < step->n_bound && copies; b++) {
            turns += step->bound[b].from == HTH_CUDA_IN &&
                     filter_copy(&graph->values[node->inputs[step->bound[b].index]]);
        }
    }
    hth_kernel_close(k);
    return turns;
}

static int step_turns(const hth_graph *graph, int *copies)
{
    int turns = 0;
    *copies = 0;
    for (int i = 0; i < graph->n_inputs; i++) {
        *copies += filter_copy(&graph->values[graph->inputs[i]]);
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        const hth_node *n = &graph->nodes[i];
        turns += n->op == HTH_OP_REORDER && filter_copy(&graph->values[n->inputs[0]]);
        turns += node_turns(graph, n);
    }
    return turns;
}

static void filters_lie_as_read(void **state)
{
    static const char *const models[] = {"net_momentum", "unet_adam", "mobile_adam"};
    for (int i = 0; i < 6; i++) {
        bool plain = i >= 3;
        hth_graph *model = load(models[i % 3]);
        hth_train_graph t;
        int copies, whole = 0;
        build(model, HTH_PRECISION_BF16, &t);
        for (int s = 0; s < t.n_slots; s++) {
            hth_value *in = &t.graph->values[t.graph->inputs[t.slots[s].input]];
            hth_value *out = &t.graph->values[t.graph->outputs[t.slots[s].output]];
            bool filter = t.slots[s].kind == HTH_SLOT_COPY && in->shape.rank > 2;
            assert_int_equal(in->layout, filter ? HTH_LAYOUT_NHWC : HTH_LAYOUT_PLAIN);
            assert_int_equal(out->layout, in->layout);
            in->layout = out->layout = plain ? HTH_LAYOUT_PLAIN : in->layout;
            whole += filter;
        }
        passes(t.graph);
        int turns = step_turns(t.graph, &copies);
        assert_true(copies > 1 && copies <= whole);
        if (plain ? turns < copies : turns != 0) {
            fail_msg("%s: %d turns of %d filters", models[i % 3], turns, copies);
        }
        hth_train_graph_fini(&t);
        hth_graph_free(model);
    }
}

// What node n is: a convolution, a product, a recurrence, or none of them.
typedef enum family { CONVOLUTION, PRODUCT, RECURRENCE, NEITHER } family;

static family family_of(hth_op op)
{
    switch (op) {
    case HTH_OP_CONV:
    case HTH_OP_CONV_TRANSPOSE:
    case HTH_OP_CONV_GRAD_DATA:
    case HTH_OP_CONV_GRAD_FILTER:
        return CONVOLUTION;
    case HTH_OP_MAT_MUL:
    case HTH_OP_GEMM:
        return PRODUCT;
    case HTH_OP_RNN:
    case HTH_OP_GRU:
    case HTH_OP_LSTM:
    case HTH_OP_RNN_GRAD:
        return RECURRENCE;
    default:
        return NEITHER;
    }
}

// Prepares node by its default and by every algorithm of its list.
static void node_honours(const hth_graph *graph, const hth_node *node)
{
    family is = family_of(node->op);
    bool strict = graph->precision == HTH_PRECISION_FP32;
    hth_choice list[HTH_MAX_CHOICES];
    int count = 0;
    unsigned before[3];
    memcpy(before, hth_cuda_fake_products, sizeof before);
    assert_int_equal(
        hth_kernel_algorithms(cuda_test_device, graph, node, list, HTH_MAX_CHOICES, &count),
        HTH_OK);
    for (int i = -1; i < count; i++) {
        hth_kernel *k;
        if (hth_kernel_prepare(cuda_test_device, graph, node, i < 0 ? NULL : list[i].name, &k) !=
            HTH_OK) {
            fail_msg("%s: %s", node->name, hth_err_detail());
        }
        // engine 2 of the fake cuDNN rounds, 0 and 1 do not; 3 and 4 must never be
        int engine = is == CONVOLUTION ? k->implementation[strlen("cudnn:e")] - '0' : 0;
        assert_true(engine >= 0 && engine <= (strict ? 1 : 2));
        assert_true(strict || is != CONVOLUTION || engine == 2 || i > 0);
        hth_kernel_close(k);
    }
    hth_precision in = is == RECURRENCE && !strict ? HTH_PRECISION_TF32 : graph->precision;
    for (int p = 0; p < 3; p++) { // in the order of hth_precision
        bool asked = hth_cuda_fake_products[p] > before[p];
        if (asked != (is != CONVOLUTION && p == (int)in)) {
            fail_msg("%s: products in %s: %d", node->name, hth_precision_name((hth_precision)p),
                     asked);
        }
    }
}

static void precision_is_honoured(void **state)
{
    static const char *const models[] = {"net_momentum",  "unet_adam", "mobile_adam",
                                         "encoder_adamw", "rnn_sgd",   "gru_sgd",
                                         "lstm_adam"};
    int seen[HTH_N_OPS] = {0};
    for (size_t i = 0; i < 3 * sizeof models / sizeof *models; i++) {
        hth_graph *model = load(models[i / 3]);
        hth_train_graph t;
        build(model, (hth_precision)(i % 3), &t);
        passes(t.graph);
        for (int n = 0; n < t.graph->n_nodes; n++) {
            if (family_of(t.graph->nodes[n].op) != NEITHER) {
                node_honours(t.graph, &t.graph->nodes[n]);
                seen[t.graph->nodes[n].op]++;
            }
        }
        hth_train_graph_fini(&t);
        hth_graph_free(model);
    }
    for (int op = 0; op < HTH_N_OPS; op++) {
        if (family_of((hth_op)op) != NEITHER && seen[op] == 0) {
            fail_msg("no step has %s", hth_op_name((hth_op)op));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(filters_lie_as_read),
                                       cmocka_unit_test(precision_is_honoured)};
    return cmocka_run_group_tests_name("cuda_step", tests, cuda_test_setup, cuda_test_teardown);
}
