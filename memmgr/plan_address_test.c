// SPDX-License-Identifier: Apache-2.0
#include "memmgr/plan_test.h"

static void assert_disjoint(const hth_rect *r, int n, uint64_t height)
{
    for (int i = 0; i < n; i++) {
        assert_int_equal(r[i].offset % HTH_PLAN_ALIGN, 0);
        assert_true(r[i].offset + r[i].bytes <= height);
        for (int j = 0; j < i; j++) {
            bool time = r[i].first <= r[j].last && r[j].first <= r[i].last;
            bool space =
                r[i].offset < r[j].offset + r[j].bytes && r[j].offset < r[i].offset + r[i].bytes;
            assert_false(time && space);
        }
    }
}

// Cuts a full rectangle at random into pieces: the best height is known to be the rectangle's.
static void test_known_optimum(void **state)
{
    int exact = 0;
    double worst = 1;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        hth_rect r[64] = {{0, 40, 64 * 256, 0}};
        int n = 1;
        uint64_t height;
        pt_state = seed;
        while (n < 24) {
            hth_rect *x = &r[pt_random((uint32_t)n)], *y = &r[n];
            *y = *x;
            if (pt_random(2) && x->last > x->first) {
                x->last = x->first + (int)pt_random((uint32_t)(x->last - x->first));
                y->first = x->last + 1;
                n++;
            } else if (x->bytes >= 128) {
                x->bytes = 64 * (1 + pt_random((uint32_t)(x->bytes / 64 - 1)));
                y->bytes -= x->bytes;
                n++;
            }
        }
        assert_ok(hth_address_assign(r, n, 0, &height));
        assert_disjoint(r, n, height);
        double ratio = (double)height / (64 * 256);
        exact += height == 64 * 256;
        worst = ratio > worst ? ratio : worst;
    }
    print_message("# 60 perfect packings: %d found exactly, worst %.3f\n", exact, worst);
    assert_true(exact >= 30 && worst < 1.15);
}

static void test_random_rectangles(void **state)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        hth_rect r[120];
        uint64_t height, peak;
        pt_state = seed;
        for (int i = 0; i < 120; i++) {
            int first = (int)pt_random(100);
            r[i] = (hth_rect){first, first + (int)pt_random(pt_random(5) ? 4 : 60),
                              64 * (uint64_t)pt_random(500), 0};
        }
        assert_ok(hth_rect_peak(r, 120, 160, &peak));
        assert_ok(hth_address_assign(r, 120, 0, &height));
        assert_disjoint(r, 120, height);
        assert_true(height >= peak && height <= peak + peak / 5);
        uint64_t loose;
        assert_ok(hth_address_assign(r, 120, 2 * peak, &loose)); // enough is enough
        assert_disjoint(r, 120, loose);
        assert_true(loose <= 2 * peak);
    }
}

static void test_edges(void **state)
{
    uint64_t height = 1;
    assert_ok(hth_address_assign(NULL, 0, 0, &height));
    assert_int_equal(height, 0);
    hth_rect r[] = {{3, 3, 0, 7}, {3, 3, 64, 7}};
    assert_ok(hth_address_assign(r, 2, 0, &height));
    assert_int_equal(height, 64);
    assert_int_equal(r[1].offset, 0);
    FAULT_LOOP(hth_address_assign(r, 2, 0, &height));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_optimum),
        cmocka_unit_test(test_random_rectangles),
        cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
