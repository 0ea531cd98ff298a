// SPDX-License-Identifier: Apache-2.0
// Convolutions against the reference: shapes, groups, strides, dilations, odd channels, post ops,
// layouts, and every algorithm that is offered. Winograd's transforms lose two to three digits, so
// it has a tolerance of its own.
#include "kernels/cpu/fixture.h"
#include "kernels/cpu/winograd/winograd.h"
#include "tests/rig/transposed_case.h"

#include "base/isa.h"

typedef struct conv_case {
    int rank;
    int64_t batch, in, out, groups, size, kernel, stride, dilation, pad;
    bool transposed, bias, dynamic; // dynamic: the filter is not a constant
} conv_case;

static int64_t case_out(const conv_case *c)
{
    int64_t span = (c->kernel - 1) * c->dilation + 1;
    return c->transposed ? (c->size - 1) * c->stride + span - 2 * c->pad
                         : (c->size + 2 * c->pad - span) / c->stride + 1;
}

static void case_attrs(hth_node *node, const conv_case *c)
{
    int64_t v[3] = {c->stride, c->stride, c->stride}, p[6];
    for (int i = 0; i < 6; i++) {
        p[i] = c->pad;
    }
    assert_int_equal(hth_node_set_int(node, "group", c->groups), HTH_OK);
    assert_int_equal(hth_node_set_ints(node, "strides", v, c->rank - 2), HTH_OK);
    assert_int_equal(hth_node_set_ints(node, "pads", p, 2 * (c->rank - 2)), HTH_OK);
    for (int i = 0; i < 3; i++) {
        v[i] = c->dilation;
    }
    assert_int_equal(hth_node_set_ints(node, "dilations", v, c->rank - 2), HTH_OK);
}

static hth_node *case_open(fixture *f, const conv_case *c, uint64_t seed)
{
    hth_shape x = SHAPE(c->batch, c->in, c->size, c->size, c->size), y = x, w = x,
              b = SHAPE(c->out);
    x.rank = y.rank = w.rank = c->rank;
    y.dim[1] = c->out;
    w.dim[0] = c->transposed ? c->in : c->out;
    w.dim[1] = (c->transposed ? c->out : c->in) / c->groups;
    for (int i = 2; i < c->rank; i++) {
        y.dim[i] = case_out(c);
        w.dim[i] = c->kernel;
    }
    fixture_open(f, seed);
    int in[3] = {fixture_value(f, x), c->dynamic ? fixture_value(f, w) : fixture_const(f, w), -1};
    in[2] = c->bias ? fixture_const(f, b) : -1;
    int out = fixture_value(f, y);
    hth_node *n =
        fixture_node(f, c->transposed ? HTH_OP_CONV_TRANSPOSE : HTH_OP_CONV, in, 3, &out, 1);
    case_attrs(n, c);
    return n;
}

// Lets the oracle choose the layouts, as the layout pass would.
static hth_layout case_place(fixture *f)
{
    const hth_fuse_oracle *o = hth_kernel_oracle(&f->device);
    hth_node *n = &f->graph->nodes[f->node];
    bool any;
    hth_layout l = o->layout(o->ctx, f->graph, n, &any);
    bool plain_in = o->reads_plain(o->ctx, f->graph, n);
    f->graph->values[n->inputs[0]].layout = plain_in ? HTH_LAYOUT_PLAIN : l;
    f->graph->values[n->outputs[0]].layout = l;
    for (int i = 0; i < n->n_post; i++) {
        if (n->post[i].input >= 0) {
            hth_value *v = &f->graph->values[n->inputs[n->post[i].input]];
            v->layout = v->constant == NULL && v->shape.rank > 2 ? l : HTH_LAYOUT_PLAIN;
        }
    }
    return l;
}

static int case_every_algorithm(fixture *f, bool in_place)
{
    hth_choice list[32];
    int count;
    const hth_node *n = &f->graph->nodes[f->node];
    assert_int_equal(hth_kernel_algorithms(&f->device, f->graph, n, list, 32, &count), HTH_OK);
    assert_true(count >= 1);
    for (int i = 0; i < count; i++) {
        bool winograd = strstr(list[i].name, "wino") != NULL;
        fixture_check(f, list[i].name, in_place, winograd ? 1e-3 : 1e-4);
    }
    fixture_check(f, NULL, in_place, 1e-4);
    return count;
}

static void conv_matches_the_reference(void **state)
{
    (void)state;
    static const conv_case list[] = {
        // rank, batch, in, out, groups, size, kernel, stride, dilation, pad, transposed, bias,
        // dynamic
        {4, 1, 3, 32, 1, 20, 3, 2, 1, 1, false, true, false},
        {4, 2, 16, 32, 1, 14, 3, 1, 1, 1, false, true, false},
        {4, 1, 64, 64, 1, 28, 3, 1, 1, 1, false, true, false},
        {4, 1, 20, 33, 1, 9, 3, 1, 1, 1, false, true, false},
        {4, 1, 64, 16, 1, 10, 1, 1, 1, 0, false, true, false},
        {4, 1, 32, 48, 1, 12, 1, 2, 1, 0, false, false, false},
        {4, 1, 32, 32, 32, 15, 3, 1, 1, 1, false, true, false},
        {4, 1, 24, 24, 24, 15, 5, 2, 1, 2, false, true, false},
        {4, 1, 32, 64, 2, 11, 3, 1, 1, 1, false, true, false},
        {4, 1, 32, 32, 8, 11, 3, 1, 1, 1, false, true, false},
        {4, 1, 16, 16, 1, 17, 3, 1, 2, 2, false, true, false},
        {4, 1, 1, 8, 1, 13, 5, 1, 1, 0, false, true, false},
        {3, 2, 16, 32, 1, 40, 3, 1, 1, 1, false, true, false},
        {5, 1, 16, 16, 1, 7, 3, 1, 1, 1, false, true, false},
        {4, 1, 32, 16, 1, 8, 2, 2, 1, 0, true, true, false},
        {4, 1, 16, 24, 1, 7, 3, 2, 1, 1, true, true, false},
        {4, 2, 64, 40, 1, 50, 3, 1, 1, 1, false, true, false}, // several chunks of Winograd tiles
        {4, 1, 16, 16, 1, 9, 3, 1, 1, 0, false, true, false},
        {4, 3, 17, 16, 1, 5, 3, 1, 1, 2, false, false, false},
        {4, 1, 16, 32, 1, 12, 3, 1, 1, 1, false, true, true},
        {4, 1, 5, 7, 1, 12, 3, 1, 1, 1, false, false, true},
        // lowered: several chunks, panels shared by threads, odd blocks, pads, taps apart
        {4, 1, 256, 32, 1, 30, 3, 2, 1, 1, false, true, false},
        {4, 1, 64, 256, 1, 7, 1, 1, 1, 0, false, true, false},
        {4, 3, 272, 48, 1, 9, 1, 1, 1, 0, false, true, false},
        {4, 2, 48, 80, 1, 8, 1, 2, 1, 1, false, true, false},
        {4, 2, 19, 70, 1, 13, 5, 2, 2, 3, false, false, false},
        {4, 5, 1600, 16, 1, 14, 1, 1, 1, 0, false, true, false},
    };
    for (size_t k = 0; k < 2 * (sizeof list / sizeof list[0]); k++) {
        size_t i = k / 2;
        fixture f;
        assert_int_equal(hth_isa_limit(k % 2 == 0 ? NULL : "avx2"), HTH_OK);
        case_open(&f, &list[i], 100 + i);
        f.device.props.n_threads = 1 + (int)i % 3;
        case_place(&f);
        case_every_algorithm(&f, false);
        const hth_node *n = &f.graph->nodes[f.node];
        f.graph->values[n->inputs[0]].layout = f.graph->values[n->outputs[0]].layout =
            HTH_LAYOUT_PLAIN;
        case_every_algorithm(&f, false);
        fixture_close(&f);
    }
    assert_int_equal(hth_isa_limit(NULL), HTH_OK);
}

static void transposed_of_a_length(void **state)
{
    (void)state;
    for (size_t i = 0; i < TRANSPOSED_CASES; i++) {
        fixture f;
        transposed_open(&f, i);
        fixture_check(&f, NULL, false, 1e-4);
        case_place(&f);
        fixture_check(&f, NULL, false, 1e-4);
        fixture_close(&f);
    }
}

// relu6(conv(x) * scale[c] + residual), and chains that Winograd cannot fuse.
static void conv_post_ops(void **state)
{
    (void)state;
    fixture_needs_onednn();
    static const hth_post_op unary[] = {
        {HTH_OP_RELU, -1, 0, 0},          {HTH_OP_CLIP, -1, 0, 6},
        {HTH_OP_SIGMOID, -1, 0, 0},       {HTH_OP_SWISH, -1, 1, 0},
        {HTH_OP_HARD_SWISH, -1, 0, 0},    {HTH_OP_HARD_SIGMOID, -1, 0.2F, 0.5F},
        {HTH_OP_GELU, -1, 0, 0},          {HTH_OP_GELU, -1, 1, 0},
        {HTH_OP_TANH, -1, 0, 0},          {HTH_OP_ELU, -1, 1, 0},
        {HTH_OP_LEAKY_RELU, -1, 0.1F, 0},
    };
    static const conv_case shape[] = {{4, 1, 32, 32, 1, 24, 3, 1, 1, 1, false, true, false},
                                      {4, 1, 19, 21, 1, 6, 3, 1, 1, 1, false, true, false}};
    const hth_fuse_oracle *o;
    for (size_t s = 0; s < 2; s++) {
        for (size_t i = 0; i < sizeof unary / sizeof unary[0]; i++) {
            for (int residual = 0; residual < 3; residual++) {
                fixture f;
                hth_node *n = case_open(&f, &shape[s], 7 * i + (size_t)residual);
                const hth_value *y = &f.graph->values[n->outputs[0]];
                if (residual > 0) {
                    int r = residual == 1 ? fixture_value(&f, y->shape)
                                          : fixture_const(&f, SHAPE(1, y->shape.dim[1], 1, 1));
                    hth_op op = residual == 1 ? HTH_OP_ADD : HTH_OP_MUL;
                    hth_post_op post = {op, -1, 1, 0};
                    o = hth_kernel_oracle(&f.device);
                    assert_true(o->can_fuse(o->ctx, f.graph, n, &post, r));
                    post.input = n->n_inputs;
                    assert_int_equal(hth_node_add_input(n, r), HTH_OK);
                    n->post[n->n_post++] = post;
                }
                o = hth_kernel_oracle(&f.device);
                assert_true(o->can_fuse(o->ctx, f.graph, n, &unary[i], -1));
                n->post[n->n_post++] = unary[i];
                case_place(&f);
                case_every_algorithm(&f, false);
                case_every_algorithm(&f, true);
                fixture_close(&f);
            }
        }
    }
}

static void winograd_is_offered(void **state)
{
    (void)state;
    conv_case c = {4, 1, 64, 64, 1, 56, 3, 1, 1, 1, false, true, false};
    fixture f;
    case_open(&f, &c, 1);
    assert_true(case_place(&f) != HTH_LAYOUT_PLAIN);
    hth_choice list[32];
    int count, found = 0;
    assert_int_equal(
        hth_kernel_algorithms(&f.device, f.graph, &f.graph->nodes[f.node], list, 32, &count),
        HTH_OK);
    for (int i = 0; i < count; i++) {
        found += strstr(list[i].name, "wino") != NULL;
        assert_true(list[i].workspace_bytes > 0 || strstr(list[i].name, "wino") == NULL);
    }
    assert_true(found >= 1);
    fixture_close(&f);
}

// Wherever blocks of channels are wide enough for it, for filters that are constant and of one
// group.
static void lowered_is_offered(void **state)
{
    (void)state;
    static const struct {
        conv_case c;
        bool offered;
    } list[] = {{{4, 1, 64, 64, 1, 14, 1, 1, 1, 0, false, true, false}, true},
                {{4, 1, 64, 64, 1, 14, 3, 2, 1, 1, false, true, false}, true},
                {{4, 1, 64, 64, 2, 14, 1, 1, 1, 0, false, true, false}, false},
                {{4, 1, 64, 64, 1, 14, 1, 1, 1, 0, false, true, true}, false}};
    for (size_t k = 0; k < sizeof list / sizeof list[0]; k++) {
        fixture f;
        case_open(&f, &list[k].c, 1);
        case_place(&f);
        hth_choice found[32];
        int count, plain = 0, amx = 0;
        assert_int_equal(
            hth_kernel_algorithms(&f.device, f.graph, &f.graph->nodes[f.node], found, 32, &count),
            HTH_OK);
        for (int i = 0; i < count; i++) {
            bool lowered = strncmp(found[i].name, "lowered:", 8) == 0;
            bool tiles = strcmp(found[i].name, "lowered:amx") == 0;
            plain += lowered && !tiles;
            amx += tiles;
            // the plain filter's bytes and the bias's, and nothing else where inputs are read in
            // place
            assert_true(!lowered || found[i].resident_bytes ==
                                        (64 * 64 * (k == 1 ? 9 : 1) + 64) * sizeof(float));
            assert_true(!lowered || tiles || k > 0 || found[i].workspace_bytes == 0);
        }
        assert_int_equal(plain, list[k].offered && hth_isa_bytes() >= 32);
        assert_int_equal(amx, list[k].offered && hth_isa_amx());
        fixture_close(&f);
    }
}

// What must not fall out of the blocked layout: images of three channels, and groups narrower than
// a block.
static void narrow_channels_stay_blocked(void **state)
{
    (void)state;
    fixture_needs_onednn();
    static const conv_case list[] = {{4, 1, 3, 64, 1, 30, 7, 2, 1, 3, false, true, false},
                                     {4, 2, 64, 64, 16, 9, 3, 1, 1, 1, false, true, false},
                                     {4, 1, 64, 128, 8, 9, 3, 2, 1, 1, false, true, false},
                                     {3, 1, 24, 48, 3, 9, 3, 1, 1, 1, false, true, false}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        fixture f;
        case_open(&f, &list[i], 50 + i);
        bool blocked = case_place(&f) != HTH_LAYOUT_PLAIN;
        assert_true(blocked || i == 3); // 3 groups of 8 do not merge into blocks of 16
        case_every_algorithm(&f, false);
        fixture_close(&f);
    }
}

static void equal_filters_have_equal_forms(void **state)
{
    (void)state;
    fixture_needs_onednn();
    conv_case c[3] = {{4, 1, 32, 32, 1, 14, 3, 1, 1, 1, false, true, false},
                      {4, 4, 32, 32, 1, 28, 3, 1, 1, 1, false, true, false},
                      {4, 1, 48, 32, 1, 14, 3, 1, 1, 1, false, true, false}};
    char form[3][96];
    for (int i = 0; i < 3; i++) {
        fixture f;
        hth_kernel *k;
        case_open(&f, &c[i], 1);
        case_place(&f);
        assert_int_equal(hth_kernel_prepare(&f.device, f.graph, &f.graph->nodes[f.node], NULL, &k),
                         HTH_OK);
        assert_int_equal(k->n_packings, 1);
        memcpy(form[i], k->packings[0].form, sizeof form[i]);
        hth_kernel_close(k);
        fixture_close(&f);
    }
    assert_string_equal(form[0], form[1]); // the batch and the image do not matter
    assert_string_not_equal(form[0], form[2]);
}

static void failed_allocations_leave_nothing(void **state)
{
    (void)state;
    fixture_needs_onednn();
    static const char *const algorithm[] = {NULL, "winograd_4x4:avx512", "lowered:avx512",
                                            "lowered:amx", "ref"};
    conv_case c = {4, 1, 32, 32, 1, 12, 3, 1, 1, 1, false, true, false};
    for (int i = 0; i < 5; i++) {
        fixture f;
        hth_node *n = case_open(&f, &c, 1);
        n->post[n->n_post++] = (hth_post_op){HTH_OP_SWISH, -1, 1, 0};
        bool wide = case_place(&f) == HTH_LAYOUT_C16;
        if ((!wide && i > 0 && i < 4) || (i == 3 && !hth_isa_amx())) {
            fixture_close(&f);
            continue; // no AVX-512 or AMX here
        }
        fixture_faults(&f, algorithm[i]);
        fixture_close(&f);
    }
}

static void unknown_algorithm_is_refused(void **state)
{
    (void)state;
    conv_case c = {4, 1, 16, 16, 1, 8, 3, 1, 1, 1, false, true, false};
    fixture f;
    hth_kernel *k = NULL;
    case_open(&f, &c, 1);
    assert_int_equal(hth_kernel_prepare(&f.device, f.graph, &f.graph->nodes[f.node], "fft", &k),
                     HTH_ENOTSUP);
    assert_null(k);
    assert_non_null(strstr(hth_err_detail(), "fft"));
    fixture_check(&f, "ref", false, 1e-6);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv_matches_the_reference),
        cmocka_unit_test(transposed_of_a_length),
        cmocka_unit_test(conv_post_ops),
        cmocka_unit_test(winograd_is_offered),
        cmocka_unit_test(lowered_is_offered),
        cmocka_unit_test(equal_filters_have_equal_forms),
        cmocka_unit_test(narrow_channels_stay_blocked),
        cmocka_unit_test(failed_allocations_leave_nothing),
        cmocka_unit_test(unknown_algorithm_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
