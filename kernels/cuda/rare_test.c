// SPDX-License-Identifier: Apache-2.0
// Operators that the CPU leaves to the reference, on CUDA's kernels, against that.
#include "kernels/cuda/fixture.h"

// Coordinates from within the image, on its pixels and border, and far outside.
static int sample_grid(fixture *f, hth_shape s, bool odd)
{
    static const float marks[] = {-1, 1, 0, 0.5F, -0.5F, 1.0625F, -2.5F, 1e7F};
    int64_t n = hth_shape_elements(&s);
    float *p = hth_alloc((size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++) {
        float x = 2.2F * fixture_random(f);
        p[i] = odd && i % 7 == 3 ? marks[i / 7 % 8] : x;
    }
    int v = fixture_const_of(f, HTH_DT_F32, s, p);
    hth_free(p);
    return v;
}

static const hth_shape sample_images[] = {
    {3, {2, 3, 9}}, {4, {2, 19, 7, 10}}, {4, {1, 2, 1, 5}}, {5, {1, 3, 4, 5, 3}}};

static void sample_open(fixture *f, size_t i, hth_shape *x, hth_shape *grid, hth_shape *y)
{
    fixture_open(f, 31 + i);
    *x = *grid = *y = sample_images[i % 4];
    int rank = x->rank - 2;
    for (int d = 0; d < rank; d++) {
        y->dim[2 + d] = grid->dim[1 + d] = 6 + d;
    }
    grid->dim[rank + 1] = rank;
}

static void sample_attributes(hth_node *n, size_t i)
{
    static const char *const modes[] = {"linear", "nearest", "cubic"};
    static const char *const paddings[] = {"zeros", "border", "reflection"};
    hth_node_set_str(n, "mode", modes[i / 4 % 3]);
    hth_node_set_str(n, "padding_mode", paddings[i / 12 % 3]);
    hth_node_set_int(n, "align_corners", i / 36 % 2);
}

// Modes, paddings, corners, one to three dimensions, more channels than a thread takes.
static void grid_sample(void **state)
{
    (void)state;
    for (size_t i = 0; i < 72; i++) {
        fixture f;
        hth_shape x, grid, y;
        sample_open(&f, i, &x, &grid, &y);
        int in[2] = {fixture_value(&f, x), sample_grid(&f, grid, true)}, out = fixture_value(&f, y);
        sample_attributes(fixture_node(&f, HTH_OP_GRID_SAMPLE, in, 2, &out, 1), i);
        fixture_check(&f, NULL, false, 1e-6);
        if (i % 9 == 0) {
            fixture_faults(&f, NULL);
        }
        fixture_close(&f);
    }
}

// Both gradients, and each alone. Coordinates between pixels: on one the slope jumps.
static void grid_sample_grad(void **state)
{
    (void)state;
    for (size_t i = 0; i < 72; i++) {
        fixture f;
        hth_shape x, grid, y;
        sample_open(&f, i, &x, &grid, &y);
        int in[3] = {fixture_value(&f, y), fixture_value(&f, x), sample_grid(&f, grid, i % 2 == 0)};
        int out[2] = {i % 5 == 3 ? -1 : fixture_value(&f, x),
                      i % 5 == 4 ? -1 : fixture_value(&f, grid)};
        sample_attributes(fixture_node(&f, HTH_OP_GRID_SAMPLE_GRAD, in, 3, out, 2), i);
        fixture_check(&f, NULL, false, 3e-6);
        if (i % 9 == 0) {
            fixture_faults(&f, NULL);
        }
        fixture_close(&f);
    }
}

static void refused_none(void **state)
{
    (void)state;
    assert_int_equal(cuda_test_refused, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grid_sample),
        cmocka_unit_test(grid_sample_grad),
        cmocka_unit_test(refused_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
