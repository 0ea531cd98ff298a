// SPDX-License-Identifier: Apache-2.0
// Batch norm of a batch in shards, which add up what they have in the middle of the operator,
// against the reference on the whole batch.
#include "kernels/cpu/fixture.h"

#define IMAGES   6
#define CHANNELS 19
#define SIZE     35
#define SHARDS   3
#define SUMS     (2 * CHANNELS + 1)

static const int64_t shards[][SHARDS] = {{3, 3}, {1, 5}, {2, 1, 3}, {6}};
static const hth_layout layouts[] = {HTH_LAYOUT_PLAIN, HTH_LAYOUT_C16, HTH_LAYOUT_C8};

// The shards run one after the other: first to add up, then with the sums.
typedef struct meeting {
    double sum[SUMS];
    bool summed;
} meeting;

static hth_err meeting_sum(void *ctx, int share, double *values, size_t n)
{
    meeting *m = ctx;
    assert_int_equal(share, 5);
    assert_int_equal(n, SUMS);
    for (size_t i = 0; i < n && !m->summed; i++) {
        m->sum[i] += values[i];
    }
    memcpy(values, m->sum, n * sizeof *values);
    return m->summed ? HTH_OK : hth_fail(HTH_ECANCELED, "only added up");
}

// An operator on tensors of the image's size and on rows of channels; which is which is in `rank`.
typedef struct operation {
    hth_op op;
    int n_in, n_out, rank[8]; // inputs, then outputs
    double offset;            // of input 0 where it is an image
} operation;

static const operation forward = {HTH_OP_BATCH_NORM_TRAIN, 5, 5, {4, 1, 1, 1, 1, 4, 1, 1}, 50};
static const operation backward = {HTH_OP_BATCH_NORM_GRAD, 6, 3, {4, 4, 1, 1, 1, 1, 4, 1}, 0};

static int operation_rank(const operation *o, int i)
{
    return i < 8 ? o->rank[i] : 1;
}

static size_t floats(const operation *o, int i, int64_t images)
{
    return operation_rank(o, i) == 4 ? (size_t)images * CHANNELS * SIZE : CHANNELS;
}

static hth_node *operation_node(fixture *f, const operation *o, int64_t images)
{
    int value[11];
    for (int i = 0; i < o->n_in + o->n_out; i++) {
        bool image = operation_rank(o, i) == 4;
        value[i] = fixture_value(f, image ? SHAPE(images, CHANNELS, 5, SIZE / 5) : SHAPE(CHANNELS));
    }
    hth_node *n = fixture_node(f, o->op, value, o->n_in, value + o->n_in, o->n_out);
    hth_node_set_int(n, "share", 5);
    hth_node_set_float(n, "low", 0.25F);
    return n;
}

static void whole(const operation *o, float *const *data)
{
    fixture f;
    hth_tensor t[11];
    fixture_open(&f, 1);
    hth_node *n = operation_node(&f, o, IMAGES);
    for (int i = 0; i < o->n_in + o->n_out; i++) {
        int v = i < o->n_in ? n->inputs[i] : n->outputs[i - o->n_in];
        t[i] = (hth_tensor){HTH_DT_F32, HTH_LAYOUT_PLAIN, f.graph->values[v].shape, data[i],
                            floats(o, i, IMAGES) * sizeof(float)};
    }
    assert_int_equal(hth_ref_eval(NULL, f.graph, n, t, t + o->n_in), HTH_OK);
    fixture_close(&f);
}

typedef struct shard {
    fixture f;
    hth_kernel *kernel;
    void *in[6], *out[5], *workspace;
    hth_kernel_group group;
} shard;

static hth_err shard_run(shard *s)
{
    hth_kernel_args args = {
        .in = s->in, .out = s->out, .workspace = s->workspace, .group = &s->group};
    return s->kernel->run(s->kernel, &args);
}

// Opens a shard of n images from `from` on. What comes from the loss is the mean of the shard's
// samples, which count `weight`, not of all.
static void shard_open(shard *s, const operation *o, float *const *data, int64_t from, int64_t n,
                       hth_layout layout, double weight, meeting *m)
{
    *s = (shard){.group = {.sum = meeting_sum, .ctx = m, .weight = weight}};
    fixture_open(&s->f, 1);
    hth_node *node = operation_node(&s->f, o, n);
    for (int i = 0; i < o->n_in + o->n_out; i++) {
        hth_value *v =
            &s->f.graph->values[i < o->n_in ? node->inputs[i] : node->outputs[i - o->n_in]];
        bool image = operation_rank(o, i) == 4;
        v->layout = image ? layout : HTH_LAYOUT_PLAIN;
        float *plain = hth_memdup(data[i] + (image ? from * CHANNELS * SIZE : 0),
                                  floats(o, i, n) * sizeof(float));
        for (size_t k = 0; o == &backward && i == 0 && k < floats(o, i, n); k++) {
            plain[k] = (float)(plain[k] / weight);
        }
        *(i < o->n_in ? &s->in[i] : &s->out[i - o->n_in]) = fixture_place(v, plain);
        hth_free(plain);
    }
    assert_int_equal(hth_kernel_prepare(&s->f.device, s->f.graph, node, NULL, &s->kernel), HTH_OK);
    s->workspace = fixture_buffer(s->kernel->workspace_bytes);
    assert_int_equal(shard_run(s), HTH_ECANCELED);
}

static void shard_close(shard *s, const operation *o)
{
    for (int i = 0; i < o->n_in; i++) {
        hth_free(s->in[i]);
    }
    for (int i = 0; i < o->n_out; i++) {
        hth_free(s->out[i]);
    }
    hth_free(s->workspace);
    hth_kernel_close(s->kernel);
    fixture_close(&s->f);
}

// The shard's output i in the measure of the whole batch, and what the reference has there.
static void shard_compare(const shard *s, const operation *o, int i, const float *want,
                          double weight)
{
    const hth_node *node = &s->f.graph->nodes[s->f.node];
    const hth_value *v = &s->f.graph->values[node->outputs[i]];
    size_t n = (size_t)hth_shape_elements(&v->shape);
    float *scaled = hth_memdup(want, n * sizeof *want);
    for (size_t k = 0; k < n; k++) {
        scaled[k] = (float)(scaled[k] / weight);
    }
    double error = fixture_compare(v, s->out[i], scaled);
    if (!(error <= 2e-5)) {
        fail_msg("%s: output %d differs by %g", hth_op_name(o->op), i, error);
    }
    hth_free(scaled);
}

// Gradients of scale and bias are the shard's own, and are summed later.
static void check_own(const shard *s, int count, const double *weight, const float *want, int i)
{
    double largest = 0, worst = 0;
    for (int c = 0; c < CHANNELS; c++) {
        double sum = 0;
        for (int k = 0; k < count; k++) {
            sum += weight[k] * ((const float *)s[k].out[i])[c];
        }
        worst = fmax(worst, fabs(sum - want[c]));
        largest = fmax(largest, fabs(want[c]));
    }
    assert_true(worst <= 2e-5 * largest);
}

static void check_shards(const operation *o, const int64_t *n, hth_layout layout,
                         float *const *data)
{
    shard s[SHARDS];
    meeting m = {.summed = false};
    double weight[SHARDS], all = 0;
    int count = 0;
    int64_t from[SHARDS + 1] = {0};
    for (; count < SHARDS && n[count] > 0; count++) {
        from[count + 1] = from[count] + n[count];
        weight[count] = 1 + count; // labels may weigh anything
        all += weight[count];
    }
    for (int k = 0; k < count; k++) {
        weight[k] /= all;
        shard_open(&s[k], o, data, from[k], n[k], layout, weight[k], &m);
    }
    m.summed = true;
    for (int k = 0; k < count; k++) {
        assert_int_equal(shard_run(&s[k]), HTH_OK);
        bool back = o == &backward;
        shard_compare(&s[k], o, 0, data[o->n_in] + from[k] * CHANNELS * SIZE, back ? weight[k] : 1);
        for (int i = 1; i < o->n_out && !back; i++) {
            shard_compare(&s[k], o, i, data[o->n_in + i], 1);
            assert_memory_equal(s[k].out[i], s[0].out[i], CHANNELS * sizeof(float));
        }
    }
    for (int i = 1; i < 3 && o == &backward; i++) {
        check_own(s, count, weight, data[o->n_in + i], i);
    }
    for (int k = 0; k < count; k++) {
        shard_close(&s[k], o);
    }
}

static void check(const operation *o)
{
    fixture f;
    float *data[11];
    fixture_open(&f, 9);
    f.grid = 0x1p-6F; // never at a bound of the mask
    for (int i = 0; i < o->n_in + o->n_out; i++) {
        hth_shape flat = SHAPE((int64_t)floats(o, i, IMAGES));
        data[i] = fixture_fill(&f, &flat);
        for (int64_t k = 0; k < flat.dim[0] && i == 0; k++) {
            data[i][k] += (float)o->offset;
        }
        for (int64_t k = 0; k < flat.dim[0] && i >= 2 && o == &backward; k++) {
            data[i][k] += i == 4 ? 1.5F : 0; // inv is positive
        }
    }
    whole(o, data);
    for (size_t i = 0; i < 12; i++) {
        check_shards(o, shards[i / 3], layouts[i % 3], data);
    }
    for (int i = 0; i < o->n_in + o->n_out; i++) {
        hth_free(data[i]);
    }
    fixture_close(&f);
}

static void batch_norm_train(void **state)
{
    (void)state;
    check(&forward);
}

static void batch_norm_grad(void **state)
{
    (void)state;
    check(&backward);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(batch_norm_train),
                                       cmocka_unit_test(batch_norm_grad)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
