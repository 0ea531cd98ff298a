// SPDX-License-Identifier: Apache-2.0
// Operators on blocked and plain tensors against the reference: pooling, activations, broadcasts,
// scale and shift, concatenation, splitting, resizing, normalization, softmax, layout changes.
// Channel counts that do not fill a block are everywhere, so that padding is tested with every
// operator.
#include "kernels/cpu/fixture.h"

static const hth_layout layouts[] = {HTH_LAYOUT_PLAIN, HTH_LAYOUT_C16, HTH_LAYOUT_C8};
#define N_LAYOUTS 3

static void place(fixture *f, hth_layout layout)
{
    const hth_node *n = &f->graph->nodes[f->node];
    for (int i = 0; i < n->n_inputs + n->n_outputs; i++) {
        int v = i < n->n_inputs ? n->inputs[i] : n->outputs[i - n->n_inputs];
        if (v >= 0 && f->graph->values[v].constant == NULL && f->graph->values[v].shape.rank > 2) {
            f->graph->values[v].layout = layout;
        }
    }
}

// is_own tells whether the CPU's own convolutions have this layout: others are nobody's here, and
// may be left to the reference.
static bool is_own(hth_layout layout)
{
    return layout != HTH_LAYOUT_C16 || __builtin_cpu_supports("avx512f");
}

static const char *implementation(fixture *f)
{
    static char name[64];
    hth_kernel *k;
    assert_int_equal(hth_kernel_prepare(&f->device, f->graph, &f->graph->nodes[f->node], NULL, &k),
                     HTH_OK);
    snprintf(name, sizeof name, "%s", k->implementation);
    hth_kernel_close(k);
    return name;
}

// A node of one input, in all layouts; `fast`: the fall-back would be a mistake.
static void check_unary(hth_op op, hth_shape x, hth_shape y, void (*attrs)(hth_node *node),
                        bool fast, double tolerance)
{
    for (int l = 0; l < N_LAYOUTS; l++) {
        fixture f;
        fixture_open(&f, 5 + (uint64_t)l);
        int in = fixture_value(&f, x), out = fixture_value(&f, y);
        hth_node *n = fixture_node(&f, op, &in, 1, &out, 1);
        if (attrs != NULL) {
            attrs(n);
        }
        place(&f, layouts[l]);
        if (fast && is_own(layouts[l]) && strcmp(implementation(&f), "ref") == 0) {
            fail_msg("%s in %s is left to the reference", hth_op_name(op),
                     hth_layout_name(layouts[l]));
        }
        fixture_check(&f, NULL, false, tolerance);
        fixture_close(&f);
    }
}

static void pool_3x3_s2(hth_node *node)
{
    hth_node_set_ints(node, "kernel_shape", (int64_t[]){3, 3}, 2);
    hth_node_set_ints(node, "strides", (int64_t[]){2, 2}, 2);
    hth_node_set_ints(node, "pads", (int64_t[]){1, 1, 1, 1}, 4);
}

static void pool_ceil(hth_node *node)
{
    hth_node_set_ints(node, "kernel_shape", (int64_t[]){3, 3}, 2);
    hth_node_set_ints(node, "strides", (int64_t[]){2, 2}, 2);
    hth_node_set_int(node, "ceil_mode", 1);
}

static void pool_counted(hth_node *node)
{
    pool_3x3_s2(node);
    hth_node_set_int(node, "count_include_pad", 1);
}

static void pooling(void **state)
{
    (void)state;
    fixture_needs_onednn();
    hth_shape x = SHAPE(2, 19, 12, 12), y = SHAPE(2, 19, 6, 6), one = SHAPE(2, 19, 1, 1);
    check_unary(HTH_OP_MAX_POOL, x, y, pool_3x3_s2, true, 0);
    check_unary(HTH_OP_MAX_POOL, x, y, pool_ceil, true, 0);
    check_unary(HTH_OP_AVERAGE_POOL, x, y, pool_3x3_s2, true, 1e-5);
    check_unary(HTH_OP_AVERAGE_POOL, x, y, pool_counted, true, 1e-5);
    check_unary(HTH_OP_AVERAGE_POOL, x, y, pool_ceil, true, 1e-5);
    check_unary(HTH_OP_GLOBAL_AVERAGE_POOL, x, one, NULL, true, 1e-5);
    check_unary(HTH_OP_GLOBAL_MAX_POOL, x, one, NULL, true, 0);
}

static void reduce_mean_is_a_pool(void **state)
{
    (void)state;
    fixture_needs_onednn();
    for (int l = 0; l < 3; l++) {
        fixture f;
        bool keep = l < 2; // without, the result is a matrix
        fixture_open(&f, 3);
        int in[2] = {fixture_value(&f, SHAPE(2, 21, 7, 5)), -1},
            out = fixture_value(&f, keep ? SHAPE(2, 21, 1, 1) : SHAPE(2, 21));
        in[1] = fixture_const_of(&f, HTH_DT_I64, SHAPE(2), (int64_t[]){-1, 2});
        hth_node_set_int(fixture_node(&f, HTH_OP_REDUCE_MEAN, in, 2, &out, 1), "keepdims", keep);
        place(&f, keep ? layouts[l] : HTH_LAYOUT_PLAIN);
        assert_true(!is_own(keep ? layouts[l] : HTH_LAYOUT_PLAIN) ||
                    strcmp(implementation(&f), "ref") != 0);
        fixture_check(&f, NULL, false, 1e-5);
        fixture_close(&f);
    }
}

static void activations(void **state)
{
    (void)state;
    fixture_needs_onednn();
    static const hth_op op[] = {
        HTH_OP_RELU,         HTH_OP_LEAKY_RELU, HTH_OP_SIGMOID, HTH_OP_SWISH, HTH_OP_HARD_SWISH,
        HTH_OP_HARD_SIGMOID, HTH_OP_GELU,       HTH_OP_TANH,    HTH_OP_ELU,   HTH_OP_ABS,
        HTH_OP_NEG,          HTH_OP_EXP,        HTH_OP_MISH};
    for (size_t i = 0; i < sizeof op / sizeof op[0]; i++) {
        hth_shape s = SHAPE(2, 19, 5, 7);
        check_unary(op[i], s, s, NULL, true, 2e-5);
    }
    fixture f;
    fixture_open(&f, 3);
    float low = -0.25F, high = 0.5F;
    int in[3] = {fixture_value(&f, SHAPE(1, 19, 5, 5)),
                 fixture_const_of(&f, HTH_DT_F32, SHAPE(), &low),
                 fixture_const_of(&f, HTH_DT_F32, SHAPE(), &high)};
    int out = fixture_value(&f, SHAPE(1, 19, 5, 5));
    fixture_node(&f, HTH_OP_CLIP, in, 3, &out, 1);
    place(&f, HTH_LAYOUT_C16);
    fixture_check(&f, NULL, true, 0);
    fixture_close(&f);
}

static void binary_case(hth_op op, hth_shape a, hth_shape b, bool constant, bool swap,
                        hth_layout layout)
{
    fixture f;
    hth_shape y;
    fixture_open(&f, 11);
    assert_int_equal(hth_shape_broadcast(&a, &b, &y), HTH_OK);
    int in[2] = {fixture_value(&f, a), constant ? fixture_const(&f, b) : fixture_value(&f, b)};
    int turned[2] = {in[1], in[0]}, out = fixture_value(&f, y);
    fixture_node(&f, op, swap ? turned : in, 2, &out, 1);
    place(&f, layout);
    fixture_check(&f, NULL, false, 1e-5);
    fixture_check(&f, NULL, true, 1e-5);
    fixture_close(&f);
}

static void broadcasts(void **state)
{
    (void)state;
    static const hth_op op[] = {HTH_OP_ADD, HTH_OP_SUB, HTH_OP_MUL,
                                HTH_OP_DIV, HTH_OP_MIN, HTH_OP_MAX};
    for (size_t i = 0; i < sizeof op / sizeof op[0]; i++) {
        for (int l = 0; l < N_LAYOUTS; l++) {
            for (int c = 0; c < 2; c++) {
                int64_t C = c == 0 ? 19 : 32;
                hth_shape full = SHAPE(2, C, 4, 5);
                binary_case(op[i], full, full, false, false, layouts[l]);
                for (int swap = 0; swap < 2; swap++) {
                    binary_case(op[i], full, SHAPE(2, C, 1, 1), false, swap,
                                layouts[l]); // squeeze-and-excite
                    binary_case(op[i], full, SHAPE(1, C, 1, 1), true, swap, layouts[l]);
                    binary_case(op[i], full, SHAPE(C, 1, 1), true, swap, layouts[l]);
                    binary_case(op[i], full, SHAPE(2, 1, 4, 5), false, swap, layouts[l]);
                    binary_case(op[i], full, SHAPE(), true, swap, layouts[l]);
                    binary_case(op[i], full, SHAPE(1, C, 4, 1), false, swap,
                                layouts[l]); // left to the fall-back
                    binary_case(op[i], full, SHAPE(2, C, 4, 5), true, swap, layouts[l]);
                }
            }
        }
    }
}

static void scale_and_norm(void **state)
{
    (void)state;
    for (int l = 0; l < N_LAYOUTS; l++) {
        for (int norm = 0; norm < 2; norm++) {
            fixture f;
            fixture_open(&f, 17);
            hth_shape x = SHAPE(2, 21, 3, 5), c = SHAPE(21);
            int in[5] = {fixture_value(&f, x)}, out = fixture_value(&f, x), n_in = norm ? 5 : 3;
            float var[21];
            for (int i = 0; i < 21; i++) {
                var[i] = 0.5F + (float)i;
            }
            for (int i = 1; i < n_in; i++) {
                in[i] = i == 4 ? fixture_const_of(&f, HTH_DT_F32, c, var) : fixture_const(&f, c);
            }
            hth_node *n = fixture_node(&f, norm ? HTH_OP_BATCH_NORMALIZATION : HTH_OP_SCALE_SHIFT,
                                       in, n_in, &out, 1);
            place(&f, layouts[l]);
            assert_string_equal(implementation(&f), "scale");
            fixture_check(&f, NULL, true, 1e-5);
            n->post[n->n_post++] = (hth_post_op){HTH_OP_RELU, -1, 0, 0};
            fixture_check(&f, NULL, false, 1e-5);
            fixture_close(&f);
        }
    }
}

static void concatenation(void **state)
{
    (void)state;
    static const int64_t channels[][3] = {{16, 32, 5}, {3, 17, 16}, {8, 8, 8}};
    for (int l = 0; l < N_LAYOUTS; l++) {
        for (int c = 0; c < 3; c++) {
            for (int axis = 0; axis < 4; axis++) {
                for (int split = 0; split < 2; split++) {
                    fixture f;
                    hth_shape s = SHAPE(2, 21, 4, 5);
                    int part[3], whole;
                    int64_t total = 0, sizes[3];
                    fixture_open(&f, 23);
                    for (int i = 0; i < 3; i++) {
                        s.dim[axis] = sizes[i] = axis == 1 ? channels[c][i] : i + 1;
                        total += s.dim[axis];
                        part[i] = fixture_value(&f, s);
                    }
                    s.dim[axis] = total;
                    whole = fixture_value(&f, s);
                    int in[2] = {whole, fixture_const_of(&f, HTH_DT_I64, SHAPE(3), sizes)};
                    hth_node *n = split ? fixture_node(&f, HTH_OP_SPLIT, in, 2, part, 3)
                                        : fixture_node(&f, HTH_OP_CONCAT, part, 3, &whole, 1);
                    hth_node_set_int(n, "axis", axis == 1 ? -3 : axis);
                    place(&f, layouts[l]);
                    assert_string_equal(implementation(&f), "copy");
                    fixture_check(&f, NULL, false, 0);
                    fixture_close(&f);
                }
            }
        }
    }
}

// A Split takes blocks over where its parts begin at a block's edge, and no part is left out.
static void split_layouts(void **state)
{
    (void)state;
    static const struct {
        int64_t first, axis;
        bool left_out, any;
    } cases[] = {{16, 1, false, true},
                 {32, -3, false, true},
                 {17, 1, false, false},
                 {17, 2, false, true},
                 {16, 1, true, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture f;
        fixture_open(&f, 37);
        int64_t axis = cases[i].axis < 0 ? cases[i].axis + 4 : cases[i].axis;
        hth_shape first = SHAPE(2, 48, 40, 5), second = first, whole = first;
        first.dim[axis] = cases[i].first;
        second.dim[axis] = 3;
        whole.dim[axis] = cases[i].first + 3;
        const int64_t sizes[2] = {cases[i].first, 3};
        int in[2] = {fixture_value(&f, whole), fixture_const_of(&f, HTH_DT_I64, SHAPE(2), sizes)};
        int out[2] = {cases[i].left_out ? -1 : fixture_value(&f, first), fixture_value(&f, second)};
        hth_node *n = fixture_node(&f, HTH_OP_SPLIT, in, 2, out, 2);
        hth_node_set_int(n, "axis", cases[i].axis);
        const hth_fuse_oracle *o = hth_kernel_oracle(&f.device);
        bool any;
        assert_int_equal(o->layout(o->ctx, f.graph, n, &any), HTH_LAYOUT_PLAIN);
        assert_int_equal(any, cases[i].any);
        fixture_close(&f);
    }
}

static void resize_case(const char *mode, const char *coordinates, const char *nearest,
                        hth_shape shape, hth_layout layout)
{
    fixture f;
    fixture_open(&f, 29);
    hth_shape x = SHAPE(2, 19, 5, 6);
    int in[4] = {fixture_value(&f, x), -1, -1,
                 fixture_const_of(&f, HTH_DT_I64, SHAPE(4), shape.dim)};
    int out = fixture_value(&f, shape);
    hth_node *n = fixture_node(&f, HTH_OP_RESIZE, in, 4, &out, 1);
    hth_node_set_str(n, "mode", mode);
    hth_node_set_str(n, "coordinate_transformation_mode", coordinates);
    hth_node_set_str(n, "nearest_mode", nearest);
    place(&f, layout);
    assert_string_equal(implementation(&f), "resize");
    fixture_check(&f, NULL, false, 1e-5);
    fixture_close(&f);
}

static void resizing(void **state)
{
    (void)state;
    static const char *const coordinates[] = {"half_pixel", "pytorch_half_pixel", "asymmetric",
                                              "align_corners"};
    static const char *const nearest[] = {"floor", "ceil", "round_prefer_floor",
                                          "round_prefer_ceil"};
    for (int l = 0; l < N_LAYOUTS; l++) {
        for (int c = 0; c < 4; c++) {
            resize_case("linear", coordinates[c], "floor", SHAPE(2, 19, 10, 12), layouts[l]);
            resize_case("linear", coordinates[c], "floor", SHAPE(2, 19, 7, 4), layouts[l]);
            for (int k = 0; k < 4; k++) {
                resize_case("nearest", coordinates[c], nearest[k], SHAPE(2, 19, 10, 12),
                            layouts[l]);
            }
        }
    }
}

// A model says how long a side becomes, for as many nodes as it likes: what a kernel needs for that
// is planned memory, no table of its own that grows with the side.
static void resizing_to_any_length(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, 31);
    hth_shape y = SHAPE(1, 1, 1, 1 << 20);
    int in[4] = {fixture_value(&f, SHAPE(1, 1, 1, 1 << 18)), -1, -1,
                 fixture_const_of(&f, HTH_DT_I64, SHAPE(4), y.dim)};
    int out = fixture_value(&f, y);
    hth_node_set_str(fixture_node(&f, HTH_OP_RESIZE, in, 4, &out, 1), "mode", "linear");
    int64_t live = hth_alloc_live();
    hth_kernel *k;
    assert_int_equal(hth_kernel_prepare(&f.device, f.graph, &f.graph->nodes[f.node], NULL, &k),
                     HTH_OK);
    assert_string_equal(k->implementation, "resize");
    assert_int_equal(hth_alloc_live(), live + 1);
    assert_true(k->workspace_bytes > 1 << 20);
    hth_kernel_close(k);
    fixture_check(&f, NULL, false, 1e-5);
    fixture_close(&f);
}

static void lrn_5(hth_node *node)
{
    hth_node_set_int(node, "size", 5);
    hth_node_set_float(node, "alpha", 0.01F);
}

static void softmax_axis_1(hth_node *node)
{
    hth_node_set_int(node, "axis", 1);
}

static void normalizing(void **state)
{
    (void)state;
    fixture_needs_onednn();
    hth_shape s = SHAPE(2, 19, 5, 4);
    check_unary(HTH_OP_LRN, s, s, lrn_5, true, 1e-5);
    check_unary(HTH_OP_SOFTMAX, s, s, NULL, false, 1e-5);
    check_unary(HTH_OP_SOFTMAX, s, s, softmax_axis_1, false, 1e-5);
    check_unary(HTH_OP_LOG_SOFTMAX, s, s, NULL, false, 1e-5);
}

// A Reorder in all pairs of layouts; as bits: the reference's is the identity on plain tensors.
static void check_reorder(hth_shape s, bool in_place)
{
    static const hth_layout all[] = {HTH_LAYOUT_PLAIN, HTH_LAYOUT_C8, HTH_LAYOUT_C16,
                                     HTH_LAYOUT_NHWC};
    for (int i = 0; i < 16; i++) {
        fixture f;
        fixture_open(&f, 31);
        int given = fixture_value(&f, s), in = fixture_value(&f, s), out = fixture_value(&f, s);
        fixture_node(&f, HTH_OP_RELU, &given, 1, &in, 1); // a caller's tensor is not overwritten
        fixture_node(&f, HTH_OP_REORDER, &in, 1, &out, 1);
        f.graph->values[in].layout = all[i / 4];
        f.graph->values[out].layout = all[i % 4];
        fixture_check(&f, NULL, in_place, 0);
        fixture_close(&f);
    }
}

static int inplace_input(fixture *f)
{
    hth_kernel *k;
    assert_int_equal(HTH_OK,
                     hth_kernel_prepare(&f->device, f->graph, &f->graph->nodes[f->node], NULL, &k));
    int input = k->inplace_input;
    assert_true(input == 0 || k->workspace_bytes < 1000);
    hth_kernel_close(k);
    return input;
}

static void reordering(void **state)
{
    (void)state;
    for (int rank = 3; rank <= 5; rank++) {
        hth_shape s = SHAPE(2, 21, 3, 4, 2);
        s.rank = rank;
        check_reorder(s, false);
    }
    check_reorder(SHAPE(5, 48, 90), true); // of one size in all layouts
    check_reorder(SHAPE(5, 48, 10, 9), true);
    check_reorder(SHAPE(5, 48, 5, 9, 2), true);
}

// Only who reads a tensor last takes its place, and only where that gives memory and is quick.
static void reordering_in_place(void **state)
{
    static const struct {
        int64_t samples, width;
        int expect;
    } c[] = {{5, 90, 0}, {3, 90, -1}, {2000, 90, -1}, {5, 80, -1}};
    (void)state;
    fixture_needs_onednn();
    for (int i = 0; i < 6; i++) {
        int k = i < 4 ? i : 0;
        fixture f;
        fixture_open(&f, 31);
        hth_shape s = SHAPE(c[k].samples, 48, c[k].width);
        int given = fixture_value(&f, s), in = fixture_value(&f, s), out = fixture_value(&f, s);
        int other = fixture_value(&f, s);
        fixture_node(&f, HTH_OP_RELU, &given, 1, &in, 1);
        int *from = i == 5 ? &given : &in;
        fixture_node(&f, HTH_OP_REORDER, from, 1, &out, 1);
        int node = f.node;
        if (i == 4) {
            fixture_node(&f, HTH_OP_RELU, &in, 1, &other, 1);
        }
        f.node = node;
        f.graph->values[*from].layout = HTH_LAYOUT_C16;
        f.graph->values[out].layout = HTH_LAYOUT_PLAIN;
        assert_int_equal(inplace_input(&f), i < 4 ? c[k].expect : -1);
        fixture_close(&f);
    }
}

// A message about a request's index says which node read it.
static void index_outside(void **state)
{
    fixture f;
    fixture_open(&f, 3);
    int in[] = {fixture_value(&f, SHAPE(3, 4)),
                fixture_const_of(&f, HTH_DT_I64, SHAPE(2), (int64_t[]){0, 3})};
    int out[] = {fixture_value(&f, SHAPE(2, 4))};
    const hth_node *n = fixture_node(&f, HTH_OP_GATHER, in, 2, out, 1);
    float x[12] = {0}, y[8];
    hth_kernel *k;
    assert_int_equal(hth_kernel_prepare(&f.device, f.graph, n, NULL, &k), HTH_OK);
    assert_string_equal(k->implementation, "gather");
    hth_kernel_args a = {.in = (void *[]){x, (int64_t[]){0, 3}}, .out = (void *[]){y}};
    assert_int_equal(k->run(k, &a), HTH_EINVAL);
    assert_string_equal(hth_err_detail(), "node 'node' (Gather): an index is out of range");
    hth_kernel_close(k);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pooling),
        cmocka_unit_test(reduce_mean_is_a_pool),
        cmocka_unit_test(activations),
        cmocka_unit_test(broadcasts),
        cmocka_unit_test(scale_and_norm),
        cmocka_unit_test(concatenation),
        cmocka_unit_test(split_layouts),
        cmocka_unit_test(resizing),
        cmocka_unit_test(resizing_to_any_length),
        cmocka_unit_test(normalizing),
        cmocka_unit_test(reordering),
        cmocka_unit_test(reordering_in_place),
        cmocka_unit_test(index_outside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
