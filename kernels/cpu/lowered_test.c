// SPDX-License-Identifier: Apache-2.0
// Lowered convolutions beyond conv_test: numbers at the end of the range, and bits that depend
// neither on the batch nor on the number of threads.
#include "kernels/cpu/fixture.h"
#include "kernels/cpu/lowered.h"

#include <float.h>

// A filter of size x size, images of 9 x 9 in blocks of 16.
static void test_open(fixture *f, int64_t batch, int64_t size, int threads)
{
    fixture_open(f, 7);
    f->device.props.n_threads = threads;
    int in[3] = {0, fixture_const(f, SHAPE(48, 32, size, size)), fixture_const(f, SHAPE(48))};
    in[0] = fixture_value(f, SHAPE(batch, 32, 9, 9));
    int out = fixture_value(f, SHAPE(batch, 48, 10 - size, 10 - size));
    fixture_node(f, HTH_OP_CONV, in, 3, &out, 1);
    f->graph->values[in[0]].layout = f->graph->values[out].layout =
        hth_isa_bytes() >= 64 ? HTH_LAYOUT_C16 : HTH_LAYOUT_C8;
}

static int test_names(const fixture *f, char names[HTH_LOWERED_NAMES][HTH_LOWERED_NAME])
{
    return cpu_lowered_names(f->graph, &f->graph->nodes[f->node], names);
}

// As the reference has them, which sums in f32: an infinity reaches the results of its position,
// with its sign or the other one; no number's parts overflow.
static void large_inputs_stay_what_they_are(void **state)
{
    (void)state;
    static const float list[] = {INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 3.395e38F, 1e-40F};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        fixture f;
        char names[HTH_LOWERED_NAMES][HTH_LOWERED_NAME];
        test_open(&f, 1, 1, 2);
        f.spike = list[i];
        for (int k = test_names(&f, names) - 1; k >= 0; k--) {
            fixture_check(&f, names[k], false, 1e-4);
        }
        fixture_close(&f);
    }
}

// The last image's results of `batch` equal ones.
static void *test_run(int64_t batch, int64_t size, int threads, int which, size_t *bytes)
{
    fixture f;
    char names[HTH_LOWERED_NAMES][HTH_LOWERED_NAME];
    test_open(&f, batch, size, threads);
    *bytes = 0;
    if (which >= test_names(&f, names)) {
        fixture_close(&f);
        return NULL; // no AVX2, or no AMX
    }
    const hth_node *n = &f.graph->nodes[f.node];
    hth_shape one = SHAPE(1, 32, 9, 9);
    hth_kernel *k;
    assert_int_equal(hth_kernel_prepare(&f.device, f.graph, n, names[which], &k), HTH_OK);
    f.seed = 11;
    float *x = fixture_fill(&f, &one), *images = hth_alloc((size_t)batch * 32 * 81 * sizeof *x);
    void *in[3], *out, *ws = fixture_buffer(k->workspace_bytes);
    const hth_packing *p = fixture_packing(k, 1);
    for (int64_t b = 0; b < batch; b++) {
        memcpy(images + b * 32 * 81, x, 32 * 81 * sizeof *x);
    }
    in[0] = fixture_place(&f.graph->values[n->inputs[0]], images);
    in[1] = fixture_buffer(p->bytes);
    assert_int_equal(p->pack(k, p, f.graph->values[n->inputs[1]].constant->data, in[1]), HTH_OK);
    in[2] = fixture_buffer(48 * sizeof *x);
    memcpy(in[2], f.graph->values[n->inputs[2]].constant->data, 48 * sizeof *x);
    size_t all = (size_t)(batch * 48 * (10 - size) * (10 - size)) * sizeof *x;
    out = fixture_buffer(all);
    hth_kernel_args a = {in, &out, ws, NULL};
    assert_int_equal(k->run(k, &a), HTH_OK);
    *bytes = all / (size_t)batch;
    void *last = hth_memdup((char *)out + all - *bytes, *bytes);
    hth_kernel_close(k);
    void *const own[] = {x, images, in[0], in[1], in[2], out, ws};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        hth_free(own[i]);
    }
    fixture_close(&f);
    return last;
}

static void bits_depend_on_no_batch(void **state)
{
    (void)state;
    for (int which = 0; which < HTH_LOWERED_NAMES; which++) {
        for (int64_t size = 1; size <= 3; size += 2) {
            size_t bytes, same;
            void *alone = test_run(1, size, 1, which, &bytes);
            for (int threads = 1; alone != NULL && threads <= 3; threads++) {
                void *joined = test_run(7, size, threads, which, &same);
                assert_memory_equal(joined, alone, bytes);
                hth_free(joined);
            }
            hth_free(alone);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_inputs_stay_what_they_are),
        cmocka_unit_test(bits_depend_on_no_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
