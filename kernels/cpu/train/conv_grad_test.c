// SPDX-License-Identifier: Apache-2.0
// Gradients of convolutions, and convolutions whose filter is computed, against the reference:
// shapes, groups, strides, dilations, odd channels, all algorithms, chunks along the batch.
#include "kernels/cpu/fixture.h"

typedef struct grad_case {
    int rank;
    int64_t batch, in, out, groups, size, kernel, stride, dilation, pad;
    bool bias;
} grad_case;

static const grad_case cases[] = {
    // rank, batch, in, out, groups, size, kernel, stride, dilation, pad, bias
    {4, 2, 3, 32, 1, 20, 3, 2, 1, 1, true},    {4, 2, 16, 32, 1, 14, 3, 1, 1, 1, false},
    {4, 4, 64, 64, 1, 28, 3, 1, 1, 1, true},   {4, 1, 20, 33, 1, 9, 3, 1, 1, 1, true},
    {4, 2, 64, 16, 1, 10, 1, 1, 1, 0, false},  {4, 2, 32, 48, 1, 12, 1, 2, 1, 0, false},
    {4, 2, 32, 32, 32, 15, 3, 1, 1, 1, false}, {4, 1, 24, 24, 24, 15, 5, 2, 1, 2, true},
    {4, 1, 32, 64, 2, 11, 3, 1, 1, 1, false},  {4, 1, 16, 16, 1, 17, 3, 1, 2, 2, false},
    {4, 2, 1, 8, 1, 13, 5, 1, 1, 0, true},     {3, 2, 16, 32, 1, 40, 3, 1, 1, 1, false},
    {5, 1, 16, 16, 1, 7, 3, 1, 1, 1, false},   {4, 2, 3, 32, 1, 30, 7, 2, 1, 3, false},
    {4, 3, 17, 16, 1, 5, 3, 1, 1, 2, false},   {4, 2, 16, 40, 1, 9, 3, 1, 1, 0, true},
    {4, 2, 64, 40, 1, 50, 3, 1, 1, 1, false},  {4, 2, 48, 24, 1, 13, 3, 1, 1, 1, false},
};
#define N_CASES (sizeof cases / sizeof cases[0])

static void case_attrs(hth_node *node, const grad_case *c)
{
    int64_t v[3] = {c->stride, c->stride, c->stride}, p[6],
            k[3] = {c->kernel, c->kernel, c->kernel};
    for (int i = 0; i < 6; i++) {
        p[i] = c->pad;
    }
    int sp = c->rank - 2;
    assert_int_equal(hth_node_set_int(node, "group", c->groups), HTH_OK);
    assert_int_equal(hth_node_set_ints(node, "strides", v, sp), HTH_OK);
    assert_int_equal(hth_node_set_ints(node, "pads", p, 2 * sp), HTH_OK);
    assert_int_equal(hth_node_set_ints(node, "kernel_shape", k, sp), HTH_OK);
    for (int i = 0; i < 3; i++) {
        v[i] = c->dilation;
    }
    assert_int_equal(hth_node_set_ints(node, "dilations", v, sp), HTH_OK);
}

// Conv or one of its gradients, with everything computed.
static void case_open(fixture *f, const grad_case *c, hth_op op, uint64_t seed)
{
    hth_shape x = SHAPE(c->batch, c->in, c->size, c->size, c->size), y = x, w = x;
    x.rank = y.rank = w.rank = c->rank;
    y.dim[1] = w.dim[0] = c->out;
    w.dim[1] = c->in / c->groups;
    for (int i = 2; i < c->rank; i++) {
        y.dim[i] = (c->size + 2 * c->pad - (c->kernel - 1) * c->dilation - 1) / c->stride + 1;
        w.dim[i] = c->kernel;
    }
    fixture_open(f, seed);
    int vx = fixture_value(f, x), vy = fixture_value(f, y), vw = fixture_value(f, w);
    int vb = c->bias ? fixture_value(f, SHAPE(c->out)) : -1;
    int n_out = op == HTH_OP_CONV_GRAD_FILTER && c->bias ? 2 : 1;
    int in[3] = {vx, vw, vb}, out[2] = {vy, vb};
    if (op == HTH_OP_CONV_GRAD_DATA) {
        in[0] = vy;
        out[0] = vx;
    } else if (op == HTH_OP_CONV_GRAD_FILTER) {
        in[1] = vy;
        out[0] = vw;
    }
    hth_node *n = fixture_node(f, op, in, op == HTH_OP_CONV ? 3 : 2, out, n_out);
    case_attrs(n, c);
    const hth_fuse_oracle *o = hth_kernel_oracle(&f->device);
    bool any;
    hth_layout l = o->layout(o->ctx, f->graph, n, &any);
    f->graph->values[vx].layout = f->graph->values[vy].layout = l;
    if (o->reads_plain(o->ctx, f->graph, n)) {
        f->graph->values[vx].layout = HTH_LAYOUT_PLAIN;
    }
}

static int check_all(fixture *f, int *chunks)
{
    hth_choice list[32];
    int count;
    const hth_node *n = &f->graph->nodes[f->node];
    assert_int_equal(hth_kernel_algorithms(&f->device, f->graph, n, list, 32, &count), HTH_OK);
    assert_true(count >= 1);
    for (int i = 0; i < count; i++) {
        bool winograd = strstr(list[i].name, "wino") != NULL;
        *chunks += list[i].split > 1;
        fixture_check(f, list[i].name, false, winograd ? 2e-3 : 2e-4);
    }
    fixture_check(f, NULL, false, 2e-4);
    return count;
}

static void check_op(hth_op op)
{
    int chunks = 0, choices = 0;
    for (size_t i = 0; i < N_CASES; i++) {
        fixture f;
        case_open(&f, &cases[i], op, 300 + i);
        choices += check_all(&f, &chunks);
        for (int v = 0; v < f.graph->n_values; v++) {
            f.graph->values[v].layout = HTH_LAYOUT_PLAIN;
        }
        choices += check_all(&f, &chunks);
        fixture_close(&f);
    }
    // In blocks oneDNN has no gradients for SSE.
    assert_true(choices >= 2 * (int)N_CASES + (hth_isa_bytes() > 16 ? 8 : 0));
}

static void forward_with_computed_filters(void **state)
{
    (void)state;
    check_op(HTH_OP_CONV);
}

static void data_gradients(void **state)
{
    (void)state;
    check_op(HTH_OP_CONV_GRAD_DATA);
}

// With a ReluGrad after, whole and in chunks.
static void masked_data_gradients(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) {
        fixture f;
        int chunks = 0;
        case_open(&f, &cases[i], HTH_OP_CONV_GRAD_DATA, 500 + i);
        hth_node *n = &f.graph->nodes[f.node];
        const hth_value *dx = &f.graph->values[n->outputs[0]];
        int y = fixture_value(&f, dx->shape);
        f.graph->values[y].layout = f.graph->values[n->outputs[0]].layout;
        assert_int_equal(hth_node_add_input(n, y), HTH_OK);
        n->post[n->n_post++] = (hth_post_op){HTH_OP_RELU_GRAD, 2, -0.1F, 0.8F};
        check_all(&f, &chunks);
        fixture_close(&f);
    }
}

static void filter_gradients(void **state)
{
    (void)state;
    check_op(HTH_OP_CONV_GRAD_FILTER);
}

// Chunks give the same numbers; asked for by name, whatever their workspace.
static void chunks_of_the_batch(void **state)
{
    (void)state;
    fixture_needs_onednn();
    static const hth_op ops[] = {HTH_OP_CONV, HTH_OP_CONV_GRAD_DATA, HTH_OP_CONV_GRAD_FILTER};
    for (int k = 0; k < 3; k++) {
        fixture f;
        hth_choice list[32];
        char name[64];
        int count;
        case_open(&f, &cases[2], ops[k], 7);
        assert_int_equal(
            hth_kernel_algorithms(&f.device, f.graph, &f.graph->nodes[f.node], list, 32, &count),
            HTH_OK);
        for (int split = 2; split <= 4; split *= 2) {
            snprintf(name, sizeof name, "%s/%d", list[0].name, split);
            fixture_check(&f, name, false, 1e-4);
        }
        hth_kernel *kernel;
        snprintf(name, sizeof name, "%s/3", list[0].name);
        assert_int_equal(
            hth_kernel_prepare(&f.device, f.graph, &f.graph->nodes[f.node], name, &kernel),
            HTH_ENOTSUP);
        fixture_close(&f);
    }
}

static void failed_allocations_leave_nothing(void **state)
{
    (void)state;
    static const hth_op ops[] = {HTH_OP_CONV, HTH_OP_CONV_GRAD_DATA, HTH_OP_CONV_GRAD_FILTER};
    for (int k = 0; k < 6; k++) {
        fixture f;
        case_open(&f, &cases[2], ops[k % 3], 9);
        hth_choice list[32];
        int count;
        assert_int_equal(
            hth_kernel_algorithms(&f.device, f.graph, &f.graph->nodes[f.node], list, 32, &count),
            HTH_OK);
        fixture_faults(&f, list[k < 3 ? 0 : count - 1].name);
        fixture_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_with_computed_filters),
        cmocka_unit_test(data_gradients),
        cmocka_unit_test(masked_data_gradients),
        cmocka_unit_test(filter_gradients),
        cmocka_unit_test(chunks_of_the_batch),
        cmocka_unit_test(failed_allocations_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
