// SPDX-License-Identifier: Apache-2.0
// Operators of a training step against the reference, in every layout, at sizes around those of
// blocks and vectors, in place and not, with one thread and with several.
#include "graph/autodiff/train_hyper.h"
#include "kernels/cpu/fixture.h"

static const hth_layout layouts[] = {HTH_LAYOUT_PLAIN, HTH_LAYOUT_C16, HTH_LAYOUT_C8};
static const hth_shape images[] = {{4, {2, 32, 9, 7}}, {4, {3, 19, 6, 6}},    {4, {1, 8, 33, 5}},
                                   {4, {4, 48, 1, 1}}, {5, {2, 20, 3, 5, 4}}, {4, {2, 16, 40, 40}},
                                   {3, {2, 5, 17}}};
#define N_IMAGES (sizeof images / sizeof images[0])

static int channels(fixture *f, const hth_shape *shape)
{
    return fixture_value(f, SHAPE(shape->dim[1]));
}

// inv and scale are anything: the reference reads the same.
static void batch_norm_train(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_IMAGES * 24; i++) {
        fixture f;
        hth_shape s = images[i / 24];
        fixture_open(&f, 11 + i);
        int in[6], out[5];
        in[0] = fixture_value(&f, s);
        out[0] = fixture_value(&f, s);
        for (int k = 1; k < 5; k++) {
            in[k] = channels(&f, &s);
            out[k] = k > 2 && i % 3 == 1 ? -1 : channels(&f, &s);
        }
        in[5] = fixture_value(&f, s);
        int add = i / 3 % 2;
        hth_node *n = fixture_node(&f, HTH_OP_BATCH_NORM_TRAIN, in, 5 + add, out, 5);
        hth_node_set_float(n, "momentum", 0.8F);
        if (i / 12 % 2) {
            hth_node_set_int(n, "share", 3); // a shard that is all there is
        }
        if (add) {
            n->post[n->n_post++] = (hth_post_op){HTH_OP_ADD, 5, 1, 0};
        }
        if (i / 6 % 2) {
            n->post[n->n_post++] = add ? (hth_post_op){HTH_OP_RELU, -1, 0, 0}
                                       : (hth_post_op){HTH_OP_CLIP, -1, 0.1F, 0.9F};
        }
        fixture_check_own(&f, layouts[i % 3], 5e-5);
    }
}

static void batch_norm_grad(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_IMAGES * 24; i++) {
        fixture f;
        hth_shape s = images[i / 24];
        fixture_open(&f, 77 + i);
        int in[6], out[3], masked = i / 3 % 2;
        for (int k = 0; k < 6; k++) {
            in[k] = k < 2 ? fixture_value(&f, s) : channels(&f, &s);
        }
        for (int k = 0; k < 3; k++) {
            bool absent = i / 6 % 2 && k == (int)(i % 3);
            out[k] = -1;
            if (!absent) {
                out[k] = k == 0 ? fixture_value(&f, s) : channels(&f, &s);
            }
        }
        hth_node *n = fixture_node(&f, HTH_OP_BATCH_NORM_GRAD, in, 5 + masked, out, 3);
        if (i / 12 % 2) {
            hth_node_set_int(n, "share", 3);
        }
        // What the norm made of x is exact on this grid, and never at a bound of the mask.
        f.grid = masked ? 0x1p-4F : 0;
        hth_node_set_float(n, "low", 0x1p-14F);
        hth_node_set_float(n, "high", 0.5F + 0x1p-14F);
        fixture_check_own(&f, layouts[i % 3], 3e-5);
    }
}

static void window(hth_node *node, int rank, int64_t kernel, int64_t stride, int64_t pad)
{
    int64_t k[3] = {kernel, kernel, kernel}, s[3] = {stride, stride, stride},
            p[6] = {pad, pad, pad, pad, pad, pad};
    hth_node_set_ints(node, "kernel_shape", k, rank);
    hth_node_set_ints(node, "strides", s, rank);
    hth_node_set_ints(node, "pads", p, 2 * rank);
}

static const int64_t windows[][3] = {{2, 2, 0}, {3, 2, 1}, {3, 1, 1}, {2, 1, 0}};

// `op` from tensors like the image to tensors like its windows, or back.
static void check_pool(hth_op op, size_t i, bool mask)
{
    fixture f;
    hth_shape x = images[i % 2 ? 5 : 4], y;
    const int64_t *w = windows[i % 4];
    fixture_open(&f, 5 + i);
    f.limit = 1;
    y = x;
    for (int d = 2; d < x.rank; d++) {
        y.dim[d] = (x.dim[d] + 2 * w[2] - w[0]) / w[1] + 1;
        f.limit *= w[0];
    }
    int big = fixture_value(&f, x), small = fixture_value(&f, y), index = fixture_value(&f, y);
    f.graph->values[index].dtype = HTH_DT_U8;
    bool forward = op == HTH_OP_MAX_POOL_TRAIN, max = op != HTH_OP_AVERAGE_POOL_GRAD;
    int in[3] = {forward ? big : small, index, fixture_value(&f, x)},
        out[2] = {forward ? small : big, index};
    if (!max) {
        in[1] = in[2];
    }
    hth_node *n = fixture_node(&f, op, in, (forward ? 1 : 1 + max) + mask, out, forward ? 2 : 1);
    window(n, x.rank - 2, w[0], w[1], w[2]);
    hth_node_set_int(n, "count_include_pad", (int64_t)(i / 3 % 2));
    if (mask) {
        n->post[n->n_post++] = (hth_post_op){HTH_OP_RELU_GRAD, 1 + max, 0, INFINITY};
    }
    fixture_check_own(&f, layouts[i % 3], 1e-6);
}

static void pools(void **state)
{
    (void)state;
    for (size_t i = 0; i < 24; i++) {
        check_pool(HTH_OP_MAX_POOL_TRAIN, i, false);
        check_pool(HTH_OP_MAX_POOL_GRAD, i, i % 2 == 0);
        check_pool(HTH_OP_AVERAGE_POOL_GRAD, i, i % 5 == 0);
    }
}

static void relu_grad(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_IMAGES * 3; i++) {
        fixture f;
        fixture_open(&f, 3 + i);
        int in[3], out = fixture_value(&f, images[i / 3]);
        for (int k = 0; k < 3; k++) {
            in[k] = fixture_value(&f, images[i / 3]);
        }
        hth_node *n = fixture_node(&f, HTH_OP_RELU_GRAD, in, 2 + (i / 2) % 2, &out, 1);
        if (i % 2) {
            hth_node_set_float(n, "low", -0.25F);
            hth_node_set_float(n, "high", 0.5F);
        }
        fixture_check_own(&f, layouts[i % 3], 0);
    }
}

static void optimizer_steps(void **state)
{
    (void)state;
    for (size_t i = 0; i < 24; i++) {
        fixture f;
        bool adam = i % 2, clip = i / 2 % 2, other = i / 4 % 2;
        static const hth_shape shapes[] = {{1, {7}}, {4, {40, 33, 3, 3}}, {2, {64, 1000}}};
        hth_shape s = shapes[i / 8];
        fixture_open(&f, 21 + i);
        int in[6], out[3], h = adam ? 4 : 3;
        for (int k = 0; k < h; k++) {
            in[k] = fixture_value(&f, s);
            out[k % 3] = fixture_value(&f, s);
        }
        in[2] = !adam && i / 8 == 0 ? -1 : in[2];
        if (adam) { // its second moment is never negative
            size_t count = (size_t)hth_shape_elements(&s);
            float *v = hth_calloc(count, sizeof *v);
            for (size_t k = 0; k < count; k++) {
                v[k] = fabsf(fixture_random(&f));
            }
            in[3] = fixture_const_of(&f, HTH_DT_F32, s, v);
            hth_free(v);
        }
        const float hyper[HTH_N_HYPER] = {0.01F, 0.9F, 0.999F, 1e-8F, 0.02F, 0.5F, 0.1F, 0.001F};
        in[h] = fixture_const_of(&f, HTH_DT_F32, SHAPE(HTH_N_HYPER), hyper);
        in[h + 1] = fixture_value(&f, SHAPE(1));
        int n_out = in[2] < 0 ? 1 : 2;
        n_out = adam ? 3 : n_out;
        hth_node *n = fixture_node(&f, adam ? HTH_OP_ADAM_STEP : HTH_OP_SGD_STEP, in, h + 1 + clip,
                                   out, n_out);
        hth_node_set_int(n, adam ? "decoupled" : "nesterov", other);
        fixture_check_own(&f, HTH_LAYOUT_PLAIN, 2e-6);
    }
}

static void clip_scale(void **state)
{
    (void)state;
    for (size_t i = 0; i < 6; i++) { // in the last two the factor is given
        fixture f;
        fixture_open(&f, 51 + i);
        float hyper[HTH_N_HYPER] = {0.01F, 0.9F, 0.999F, 1e-8F, 0.02F, 0.5F, 0.1F, 0.001F};
        hyper[HTH_HYPER_CLIP] = i < 4 ? 0 : 0.25F;
        int in[4] = {fixture_const_of(&f, HTH_DT_F32, SHAPE(HTH_N_HYPER), hyper),
                     fixture_value(&f, SHAPE(33, 17)), fixture_value(&f, SHAPE(5)),
                     fixture_value(&f, SHAPE(100, 1000))};
        int out = fixture_value(&f, SHAPE(1));
        hth_node *n = fixture_node(&f, HTH_OP_CLIP_SCALE, in, 4, &out, 1);
        hth_node_set_float(n, "max_norm", i % 2 ? 1000 : 0.5F);
        fixture_check_own(&f, HTH_LAYOUT_PLAIN, 1e-5);
    }
}

static void cross_entropy(void **state)
{
    (void)state;
    static const hth_shape shapes[] = {
        {2, {16, 10}}, {2, {3, 1000}}, {4, {2, 3, 20, 21}}, {3, {2, 21, 600}}};
    for (size_t i = 0; i < 16; i++) {
        fixture f;
        hth_shape x = shapes[i / 4], y = x;
        fixture_open(&f, 31 + i);
        y.rank--;
        memmove(y.dim + 1, y.dim + 2, 3 * sizeof y.dim[0]);
        f.limit = x.dim[1];
        int in[2] = {fixture_value(&f, x), fixture_value(&f, y)};
        f.graph->values[in[1]].dtype = i % 2 ? HTH_DT_I64 : HTH_DT_I32;
        bool grad = i / 2 % 2;
        int out = fixture_value(&f, grad ? x : (hth_shape){.rank = 0});
        hth_node *n =
            fixture_node(&f, grad ? HTH_OP_SOFTMAX_XENT_GRAD : HTH_OP_SOFTMAX_XENT, in, 2, &out, 1);
        hth_node_set_int(n, "ignore_index", 1);
        fixture_check_own(&f, HTH_LAYOUT_PLAIN, 2e-5);
    }
}

// Classes in the last axis, weights of classes, label smoothing, and the divisor of a batch that is
// taken in parts, all together and each alone.
static void cross_entropy_options(void **state)
{
    (void)state;
    static const hth_shape shapes[] = {
        {3, {3, 4, 9}}, {3, {2, 5, 1000}}, {2, {6, 33}}, {4, {2, 7, 20, 21}}};
    for (size_t i = 0; i < 4 * 2 * 2 * 8; i++) {
        fixture f;
        hth_shape x = shapes[i / 32], y = x;
        bool grad = i / 8 % 2, last = i / 16 % 2, weighted = i % 2, part = i / 4 % 2;
        int axis = last ? x.rank - 1 : 1;
        fixture_open(&f, 131 + i);
        y.rank--;
        memmove(y.dim + axis, y.dim + axis + 1, (size_t)(y.rank - axis) * sizeof y.dim[0]);
        f.limit = x.dim[axis];
        int in[4] = {fixture_value(&f, x), fixture_value(&f, y), -1, -1};
        float weights[1000], hyper[HTH_N_HYPER] = {[HTH_HYPER_LOSS_NORM] = 3.25F};
        for (int k = 0; k < 1000; k++) {
            weights[k] = k % 7 == 3 ? 0 : fabsf(fixture_random(&f)) + 0.1F;
        }
        f.graph->values[in[1]].dtype = HTH_DT_I64;
        if (weighted) {
            in[2] = fixture_const_of(&f, HTH_DT_F32, SHAPE(x.dim[axis]), weights);
        }
        if (part) {
            in[3] = fixture_const_of(&f, HTH_DT_F32, SHAPE(HTH_N_HYPER), hyper);
        }
        int out = fixture_value(&f, grad ? x : (hth_shape){.rank = 0});
        hth_node *n =
            fixture_node(&f, grad ? HTH_OP_SOFTMAX_XENT_GRAD : HTH_OP_SOFTMAX_XENT, in, 4, &out, 1);
        hth_node_set_int(n, "axis", last ? -1 : 1);
        hth_node_set_float(n, "smoothing", i / 2 % 2 ? 0.3F : 0);
        hth_node_set_int(n, "ignore_index", 1);
        fixture_check_own(&f, HTH_LAYOUT_PLAIN, 2e-5);
    }
}

// A batch of labels that are all ignored, or of classes without a weight, has a loss and gradients
// of 0: as a whole, and as a part of such a batch.
static void cross_entropy_of_nothing(void **state)
{
    (void)state;
    const float weights[3] = {0, 2, 1}, hyper[HTH_N_HYPER] = {0};
    for (size_t i = 0; i < 32; i++) {
        fixture f;
        bool grad = i % 2, weighted = i / 2 % 2, part = i / 4 % 2;
        hth_shape x = i / 16 ? SHAPE(2, 3, 5) : SHAPE(10, 3);
        int64_t labels[10];
        float logits[30], got[30], ws[64];
        fixture_open(&f, i);
        for (int k = 0; k < 30; k++) {
            logits[k] = fixture_random(&f);
            got[k] = NAN;
            labels[k % 10] = weighted ? 0 : -100;
        }
        int in[4] = {fixture_value(&f, x), -1, -1, -1};
        in[1] = fixture_value(&f, i / 16 ? SHAPE(2, 5) : SHAPE(10));
        f.graph->values[in[1]].dtype = HTH_DT_I64;
        in[2] = weighted ? fixture_const_of(&f, HTH_DT_F32, SHAPE(3), weights) : -1;
        in[3] = part ? fixture_const_of(&f, HTH_DT_F32, SHAPE(HTH_N_HYPER), hyper) : -1;
        int out = fixture_value(&f, grad ? x : (hth_shape){.rank = 0});
        hth_node *n =
            fixture_node(&f, grad ? HTH_OP_SOFTMAX_XENT_GRAD : HTH_OP_SOFTMAX_XENT, in, 4, &out, 1);
        hth_node_set_float(n, "smoothing", i / 8 % 2 ? 0.3F : 0);
        void *args_in[] = {logits, labels, (void *)weights, (void *)hyper}, *args_out[] = {got};
        hth_kernel *k;
        assert_int_equal(hth_kernel_prepare(&f.device, f.graph, n, NULL, &k), HTH_OK);
        assert_int_equal(k->run(k, &(hth_kernel_args){args_in, args_out, ws, NULL}), HTH_OK);
        for (int e = 0; e < (grad ? 30 : 1); e++) {
            assert_true(got[e] == 0);
        }
        hth_kernel_close(k);
        if (weighted) { // all labels are 0
            f.limit = 1;
            fixture_check_own(&f, HTH_LAYOUT_PLAIN, 0);
        } else {
            fixture_close(&f);
        }
    }
}

// One weight for all, one per class in axis 1 and in the last; logits so large that exp would
// overflow.
static void binary_cross_entropy(void **state)
{
    (void)state;
    static const hth_shape shapes[] = {
        {1, {7}}, {2, {17, 1003}}, {4, {2, 3, 64, 65}}, {3, {5, 6, 4}}};
    for (size_t i = 0; i < 4 * 2 * 4; i++) {
        fixture f;
        hth_shape s = shapes[i / 8];
        bool grad = i / 4 % 2;
        int how = (int)(i % 4), axis = how == 3 ? s.rank - 1 : 1;
        fixture_open(&f, 17 + i);
        f.spike = i % 2 ? 200 : -200;
        int64_t count = how == 1 || s.rank == 1 ? 1 : s.dim[axis];
        int in[3] = {fixture_value(&f, s), fixture_value(&f, s), -1};
        in[2] = how > 0 ? fixture_const(&f, SHAPE(count)) : -1;
        int out = fixture_value(&f, grad ? s : (hth_shape){.rank = 0});
        hth_node *n = fixture_node(&f, grad ? HTH_OP_BCE_GRAD : HTH_OP_BCE, in, 3, &out, 1);
        hth_node_set_int(n, "axis", how == 3 ? -1 : 1);
        fixture_check_own(&f, HTH_LAYOUT_PLAIN, 3e-6);
    }
}

static void labels_outside_are_refused(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, 1);
    int in[2] = {fixture_value(&f, SHAPE(2, 3)), fixture_value(&f, SHAPE(2))};
    f.graph->values[in[1]].dtype = HTH_DT_I64;
    int out = fixture_value(&f, (hth_shape){.rank = 0});
    const hth_node *n = fixture_node(&f, HTH_OP_SOFTMAX_XENT, in, 2, &out, 1);
    hth_kernel *k;
    float logits[6] = {0}, loss = 0, ws[64];
    int64_t labels[2] = {2, 3};
    void *args_in[] = {logits, labels}, *args_out[] = {&loss};
    assert_int_equal(hth_kernel_prepare(&f.device, f.graph, n, NULL, &k), HTH_OK);
    assert_int_equal(k->run(k, &(hth_kernel_args){args_in, args_out, ws, NULL}), FIXTURE_BAD_LABEL);
    assert_true(FIXTURE_BAD_LABEL != HTH_OK || isnan(loss));
    labels[1] = 0;
    assert_int_equal(k->run(k, &(hth_kernel_args){args_in, args_out, ws, NULL}), HTH_OK);
    assert_true(fabsf(loss - logf(3)) < 1e-6F);
    hth_kernel_close(k);
    fixture_close(&f);
}

static void dropout(void **state)
{
    (void)state;
    for (size_t i = 0; i < 6; i++) {
        fixture f;
        fixture_open(&f, 61 + i);
        f.limit = 1000000;
        hth_shape s = i % 2 ? SHAPE(3, 1000) : SHAPE(70, 1003);
        int in[2] = {fixture_value(&f, s), fixture_value(&f, SHAPE(1))}, out = fixture_value(&f, s);
        f.graph->values[in[1]].dtype = HTH_DT_U64;
        hth_node *n = fixture_node(&f, HTH_OP_DROPOUT_TRAIN, in, 2, &out, 1);
        hth_node_set_int(n, "salt", (int64_t)i * 1000003);
        float rest = i == 4 ? 0 : 1;
        hth_node_set_float(n, "ratio", i < 4 ? 0.3F : rest);
        fixture_check_own(&f, HTH_LAYOUT_PLAIN, 1e-6);
    }
}

static void layer_norm_grad(void **state)
{
    (void)state;
    static const hth_shape shapes[] = {{3, {4, 9, 33}}, {2, {70, 768}}, {3, {2, 3, 5}}};
    for (size_t i = 0; i < 9; i++) {
        fixture f;
        hth_shape x = shapes[i / 3], p = x, r = x;
        fixture_open(&f, 41 + i);
        r.rank = x.rank - 1;
        p = SHAPE(x.dim[x.rank - 1]);
        int in[5] = {fixture_value(&f, x), fixture_value(&f, x), fixture_value(&f, p),
                     fixture_value(&f, r), fixture_value(&f, r)};
        int out[3] = {i % 3 == 1 ? -1 : fixture_value(&f, x),
                      i % 3 == 2 ? -1 : fixture_value(&f, p), fixture_value(&f, p)};
        hth_node *n = fixture_node(&f, HTH_OP_LAYER_NORM_GRAD, in, 5, out, 3);
        hth_node_set_int(n, "axis", -1);
        fixture_check_own(&f, HTH_LAYOUT_PLAIN, 2e-5);
    }
}

static void softmax_grad(void **state)
{
    (void)state;
    for (size_t i = 0; i < 8; i++) {
        fixture f;
        hth_shape x = i / 2 % 2 ? SHAPE(3, 5, 37) : SHAPE(40, 1000);
        fixture_open(&f, 91 + i);
        int in[2] = {fixture_value(&f, x), fixture_value(&f, x)}, out = fixture_value(&f, x);
        hth_node *n =
            fixture_node(&f, i % 2 ? HTH_OP_SOFTMAX_GRAD : HTH_OP_LOG_SOFTMAX_GRAD, in, 2, &out, 1);
        hth_node_set_int(n, "axis", i / 4 ? 1 : x.rank - 1);
        hth_node_set_int(n, "flatten", (int64_t)(i / 4));
        fixture_check_own(&f, HTH_LAYOUT_PLAIN, 2e-5);
    }
}

static void gather_grad(void **state)
{
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        fixture f;
        fixture_open(&f, 15 + i);
        f.limit = 11;
        int in[2] = {fixture_value(&f, SHAPE(4, 30, 64 + (int64_t)i)),
                     fixture_value(&f, SHAPE(4, 30))},
            out = fixture_value(&f, SHAPE(11, 64 + (int64_t)i));
        f.graph->values[in[1]].dtype = i % 2 ? HTH_DT_I64 : HTH_DT_I32;
        fixture_node(&f, HTH_OP_GATHER_GRAD, in, 2, &out, 1);
        fixture_check_own(&f, HTH_LAYOUT_PLAIN, 1e-6);
    }
}

static void channel_sums(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_IMAGES * 3; i++) {
        fixture f;
        hth_shape s = images[i / 3];
        const int64_t axes[4] = {0, 2, 3, 4};
        fixture_open(&f, 71 + i);
        int in[2] = {fixture_value(&f, s),
                     fixture_const_of(&f, HTH_DT_I64, SHAPE(s.rank - 1), axes)},
            out = channels(&f, &s);
        hth_node *n = fixture_node(&f, HTH_OP_REDUCE_SUM, in, 2, &out, 1);
        hth_node_set_int(n, "keepdims", 0);
        fixture_check_own(&f, layouts[i % 3], 2e-5);
    }
}

static void element_grad(void **state)
{
    (void)state;
    static const char *const of[] = {"Sigmoid",  "Tanh",        "Exp",       "Gelu",
                                     "Swish",    "HardSwish",   "LeakyRelu", "Elu",
                                     "Softplus", "HardSigmoid", "Abs",       "Erf"};
    for (size_t i = 0; i < 3 * sizeof of / sizeof of[0]; i++) {
        fixture f;
        hth_shape s = images[i % N_IMAGES];
        fixture_open(&f, 81 + i);
        int in[2] = {fixture_value(&f, s), fixture_value(&f, s)}, out = fixture_value(&f, s);
        hth_node *n = fixture_node(&f, HTH_OP_ELEMENT_GRAD, in, 2, &out, 1);
        hth_node_set_str(n, "of", of[i / 3]);
        if (strcmp(of[i / 3], "Gelu") == 0 && i % 2) {
            hth_node_set_str(n, "approximate", "tanh");
        }
        fixture_check_own(&f, layouts[i % 3], 2e-6);
    }
}

// Up and down, by factors that are whole and not, as all coordinate rules read the image.
static void resize_grad(void **state)
{
    (void)state;
    static const char *const rules[] = {"half_pixel", "pytorch_half_pixel", "asymmetric",
                                        "align_corners"};
    static const int64_t sizes[][2] = {{12, 14}, {4, 3}, {1, 1}, {17, 9}};
    for (size_t i = 0; i < 4 * 4 * 2 * 3; i++) {
        fixture f;
        fixture_open(&f, 101 + i);
        hth_shape x = SHAPE(2, 19, 6, 7), y = x;
        memcpy(y.dim + 2, sizes[i / 6 % 4], sizeof sizes[0]);
        const int64_t whole[4] = {y.dim[0], y.dim[1], y.dim[2], y.dim[3]};
        int in[4] = {fixture_value(&f, y), -1, -1,
                     fixture_const_of(&f, HTH_DT_I64, SHAPE(4), whole)};
        int out = fixture_value(&f, x);
        hth_node *n = fixture_node(&f, HTH_OP_RESIZE_GRAD, in, 4, &out, 1);
        hth_node_set_str(n, "mode", i / 3 % 2 ? "linear" : "nearest");
        hth_node_set_str(n, "coordinate_transformation_mode", rules[i / 24]);
        hth_node_set_str(n, "nearest_mode", i % 2 ? "floor" : "round_prefer_ceil");
        hth_node_set_ints(n, "shape", x.dim, x.rank);
        fixture_check_own(&f, layouts[i % 3], 1e-5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_norm_train),
        cmocka_unit_test(batch_norm_grad),
        cmocka_unit_test(pools),
        cmocka_unit_test(relu_grad),
        cmocka_unit_test(optimizer_steps),
        cmocka_unit_test(clip_scale),
        cmocka_unit_test(cross_entropy),
        cmocka_unit_test(cross_entropy_options),
        cmocka_unit_test(cross_entropy_of_nothing),
        cmocka_unit_test(binary_cross_entropy),
        cmocka_unit_test(labels_outside_are_refused),
        cmocka_unit_test(dropout),
        cmocka_unit_test(layer_norm_grad),
        cmocka_unit_test(softmax_grad),
        cmocka_unit_test(gather_grad),
        cmocka_unit_test(channel_sums),
        cmocka_unit_test(element_grad),
        cmocka_unit_test(resize_grad),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
