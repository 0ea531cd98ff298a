// SPDX-License-Identifier: Apache-2.0
// 50 training steps in which every convolution that Winograd takes, and both of its gradients, are
// computed by it: losses follow those of the reference kernels. All else is the reference in both.
#include "graph/onnx/onnx.h"
#include "kernels/cpu/fixture.h"
#include "kernels/cpu/winograd/winograd.h"
#include "tests/rig/train_run.h"

#define STEPS 50

// Runs node by Winograd with tiles of `size`; false: it is none of Winograd's.
static bool run_winograd(const train_run *run, hth_node *node, int size)
{
    hth_graph *g = run->t->graph;
    hth_device d = fixture_device();
    bool filter = node->op == HTH_OP_CONV_GRAD_FILTER;
    char name[HTH_WINO_NAME];
    hth_kernel *k;
    if (node->op != HTH_OP_CONV && node->op != HTH_OP_CONV_GRAD_DATA && !filter) {
        return false;
    }
    hth_value *x = &g->values[node->inputs[0]],
              *y = &g->values[filter ? node->inputs[1] : node->outputs[0]];
    int bytes = d.props.vector_bytes;
    const char *narrow = bytes == 32 ? "avx2" : "sse2";
    snprintf(name, sizeof name, "winograd_%dx%d:%s:1M", size, size,
             bytes == 64 ? "avx512" : narrow);
    x->layout = y->layout = bytes == 64 ? HTH_LAYOUT_C16 : HTH_LAYOUT_C8;
    bool takes = cpu_winograd_prepare(&d, g, node, name, &k) == HTH_OK;
    void *in[8] = {NULL}, *out[2] = {NULL};
    for (int i = 0; takes && i < node->n_inputs && i < 8; i++) {
        in[i] = node->inputs[i] < 0
                    ? NULL
                    : fixture_place(&g->values[node->inputs[i]], run->value[node->inputs[i]].data);
    }
    for (int i = 0; takes && i < node->n_outputs; i++) {
        size_t size_bytes;
        const hth_value *v = &g->values[node->outputs[i]];
        assert_int_equal(hth_tensor_bytes(v->dtype, &v->shape, v->layout, &size_bytes), HTH_OK);
        out[i] = fixture_buffer(size_bytes);
    }
    if (takes) {
        void *ws = fixture_buffer(k->workspace_bytes);
        assert_int_equal(k->run(k, &(hth_kernel_args){in, out, ws, NULL}), HTH_OK);
        hth_free(ws);
        hth_kernel_close(k);
    }
    for (int i = 0; takes && i < node->n_outputs; i++) {
        const hth_value *v = &g->values[node->outputs[i]];
        hth_cpu_relayout(4, &v->shape, v->layout, out[i], HTH_LAYOUT_PLAIN,
                         run->value[node->outputs[i]].data);
    }
    for (int i = 0; i < 8; i++) {
        hth_free(in[i]);
    }
    hth_free(out[0]);
    hth_free(out[1]);
    x->layout = y->layout = HTH_LAYOUT_PLAIN;
    return takes;
}

// Returns how many nodes Winograd took.
static int step(train_run *run, int size, double *loss)
{
    hth_graph *g = run->t->graph;
    int taken = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        if (size > 0 && run_winograd(run, &g->nodes[i], size)) {
            taken++;
        } else {
            run_node(run, &g->nodes[i]);
        }
    }
    *loss = (double)*(float *)run_output(run, 0)->data;
    return taken;
}

static void set_inputs(train_run *run, int i, int64_t classes)
{
    hth_tensor *x = run_input(run, 0), *y = run_input(run, run->t->target);
    float *h = run_input(run, run->t->hyper)->data;
    for (int64_t k = 0; k < hth_shape_elements(&x->shape); k++) {
        ((float *)x->data)[k] = (float)((k * 37 + i % 4 * 101 + k / 7 * 13) % 67 - 33) / 32;
    }
    for (int64_t k = 0; k < hth_shape_elements(&y->shape); k++) {
        ((int64_t *)y->data)[k] = (k * 7 + i % 4 * 5 + k / 3) % classes;
    }
    h[HTH_HYPER_LR] = 0.02F;
    h[HTH_HYPER_BETA1] = 0;
    h[HTH_HYPER_GRAD_SCALE] = 1;
}

static void follows(const char *path, int64_t classes, int size)
{
    hth_graph *g;
    hth_train_graph t;
    hth_train_options o = {.loss = HTH_LOSS_SOFTMAX_XENT, .optimizer = HTH_OPTIMIZER_SGD};
    assert_int_equal(hth_onnx_load_file(path, &g), HTH_OK);
    const hth_value *v = &g->values[g->inputs[0]];
    hth_tensor in = {.dtype = v->dtype, .shape = v->shape};
    in.shape.dim[0] = 4;
    if (hth_train_build(g, &in, &o, hth_ref_eval, NULL, &t) != HTH_OK) {
        fail_msg("%s", hth_err_detail());
    }
    train_run direct = run_open(&t), winograd = run_open(&t);
    double want = 0, got = 0, first = 0, worst = 0;
    for (int i = 0; i < STEPS; i++) {
        set_inputs(&direct, i, classes);
        set_inputs(&winograd, i, classes);
        step(&direct, 0, &want);
        assert_true(step(&winograd, size, &got) >= 3);
        worst = fmax(worst, fabs(got - want) / want);
        first = i == 0 ? want : first;
        run_commit(&direct);
        run_commit(&winograd);
    }
    print_message("%s: loss %.4f -> %.6f, by F(%dx%d) %.6f; apart at most %.1e\n", path, first,
                  want, size, size, got, worst);
    assert_true(want < first);
    assert_true(worst < 1e-3);
    run_close(&direct);
    run_close(&winograd);
    hth_train_graph_fini(&t);
    hth_graph_free(g);
}

static void fifty_steps_follow_the_direct_ones(void **state)
{
    (void)state;
    for (int size = 2; size <= 6; size += 2) {
        follows("tests/data/train/net_long.onnx", 4, size);
        follows("tests/data/train/unet_long.onnx", 3, size);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fifty_steps_follow_the_direct_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
