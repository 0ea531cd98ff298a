// SPDX-License-Identifier: Apache-2.0
#include "planner/plan_test.h"

#define ADDRESS_FOLDER "tests/data/addresses"
#define ADDRESS_MAX    2048

static void assert_disjoint(const hth_rect *rect, int n, uint64_t height)
{
    for (int i = 0; i < n; i++) {
        assert_int_equal(rect[i].offset % HTH_PLAN_ALIGN, 0);
        assert_true(rect[i].offset + rect[i].bytes <= height);
        for (int j = 0; j < i; j++) {
            bool time = rect[i].first <= rect[j].last && rect[j].first <= rect[i].last;
            bool space = rect[i].offset < rect[j].offset + rect[j].bytes &&
                         rect[j].offset < rect[i].offset + rect[i].bytes;
            assert_false(time && space);
        }
    }
}

// The largest sum of bytes over the stages: no placement is lower.
static uint64_t peak_of(const hth_rect *rect, int n)
{
    uint64_t most = 0;
    for (int i = 0; i < n; i++) { // a peak begins where a rectangle does
        uint64_t sum = 0;
        for (int j = 0; j < n; j++) {
            bool there = rect[j].first <= rect[i].first && rect[i].first <= rect[j].last;
            sum += there ? rect[j].bytes : 0;
        }
        most = sum > most ? sum : most;
    }
    return most;
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
        assert_ok(hth_address_assign(r, n, 0, 1, &height));
        assert_disjoint(r, n, height);
        double ratio = (double)height / (64 * 256);
        exact += height == 64 * 256;
        worst = ratio > worst ? ratio : worst;
    }
    print_message("# 60 perfect packings: %d found exactly, worst %.3f\n", exact, worst);
    assert_true(exact >= 55 && worst < 1.02);
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
        peak = peak_of(r, 120);
        assert_ok(hth_address_assign(r, 120, 0, 1, &height));
        assert_disjoint(r, 120, height);
        assert_true(height >= peak && height <= peak + peak / 5);
        uint64_t loose;
        assert_ok(hth_address_assign(r, 120, 2 * peak, 1, &loose)); // enough is enough
        assert_disjoint(r, 120, loose);
        assert_true(loose <= 2 * peak);
    }
}

// Buffers of training steps near their floors, as plans had them: one line per rectangle.
static int address_read(const char *name, hth_rect *rect)
{
    char path[256], line[128];
    snprintf(path, sizeof path, "%s/%s.txt", ADDRESS_FOLDER, name);
    FILE *f = fopen(path, "r");
    int n = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        unsigned long long bytes;
        assert_true(n < ADDRESS_MAX);
        if (sscanf(line, "%d %d %llu", &rect[n].first, &rect[n].last, &bytes) == 3) {
            rect[n++].bytes = bytes;
        }
    }
    fclose(f);
    return n;
}

static void test_training_steps(void **state)
{
    static const char *const names[] = {"vgg19-0.4", "vgg19-0.5",    "vgg19-0.6",
                                        "unet-0.4",  "unet-0.6",     "unet-0.7",
                                        "unet-0.8",  "resnet50-0.4", "mobilenetv2-0.3"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        static hth_rect r[ADDRESS_MAX];
        uint64_t height, peak;
        int n = address_read(names[k], r);
        peak = peak_of(r, n);
        assert_ok(hth_address_assign(r, n, peak, 4, &height));
        assert_disjoint(r, n, height);
        print_message("# %s: %d buffers, height / peak %.4f\n", names[k], n,
                      (double)height / (double)peak);
        assert_true(height <= peak + peak / 50);
    }
}

static hth_rect *many(int n, int stages, int longest)
{
    hth_rect *r = hth_calloc((size_t)n, sizeof *r);
    assert_non_null(r);
    for (int i = 0; i < n; i++) {
        int first = (int)pt_random((uint32_t)stages);
        int last = first + (int)pt_random((uint32_t)longest);
        r[i] =
            (hth_rect){first, last < stages ? last : stages - 1, 64 * (uint64_t)pt_random(500), 0};
    }
    return r;
}

// So many at the same time that lists of neighbours would have thousands of millions of entries:
// placed in one go, not much higher than the peak.
static void test_many(void **state)
{
    uint64_t height;
    pt_state = 7;
    hth_rect *r = many(9000, 9000, 9000);
    assert_ok(hth_address_assign(r, 9000, 0, 1, &height));
    assert_disjoint(r, 9000, height);
    uint64_t peak = peak_of(r, 9000);
    print_message("# 9000 buffers, height / peak %.4f\n", (double)height / (double)peak);
    assert_true(height <= peak + peak / 4);
    hth_free(r);
    r = many(300000, 300000, 300000);
    assert_ok(hth_address_assign(r, 300000, 0, 4, &height));
    hth_free(r);
    r = many(9000, 1, 1); // all at once: no interval is lost
    assert_ok(hth_address_assign(r, 9000, 0, 1, &height));
    assert_disjoint(r, 9000, height);
    assert_int_equal(height, peak_of(r, 9000));
    FAULT_LOOP(hth_address_assign(r, 9000, 0, 1, &height));
    hth_free(r);
}

static void test_edges(void **state)
{
    uint64_t height = 1;
    assert_ok(hth_address_assign(NULL, 0, 0, 1, &height));
    assert_int_equal(height, 0);
    hth_rect r[] = {{3, 3, 0, 7}, {3, 3, 64, 7}};
    assert_ok(hth_address_assign(r, 2, 0, 1, &height));
    assert_int_equal(height, 64);
    assert_int_equal(r[1].offset, 0);
    FAULT_LOOP(hth_address_assign(r, 2, 0, 1, &height));
}

// What sticks out finds its place or shrinks; nothing overlaps, nothing is above the room.
static void workspaces_give_way(void **state)
{
    int fitted = 0, shrunk = 0;
    pt_state = 5;
    for (int round = 0; round < 300; round++) {
        hth_rect r[60];
        bool soft[60], fits;
        uint64_t was[60], peak, height;
        for (int i = 0; i < 60; i++) {
            int first = i < 20 ? i : (int)pt_random(20);
            soft[i] = i < 20;
            r[i] = (hth_rect){first, soft[i] ? first : first + (int)pt_random(20 - (uint32_t)first),
                              HTH_PLAN_ALIGN * (1 + pt_random(soft[i] ? 400 : 100)), 0};
            was[i] = r[i].bytes;
        }
        peak = peak_of(r, 60);
        assert_ok(hth_address_assign(r, 60, peak, 1, &height));
        uint64_t room = peak / 100 * (85 + pt_random(20)) / HTH_PLAN_ALIGN * HTH_PLAN_ALIGN;
        assert_ok(hth_address_squeeze(r, soft, 60, room, &fits));
        for (int i = 0; fits && i < 60; i++) {
            assert_true(soft[i] ? r[i].bytes <= was[i] : r[i].bytes == was[i]);
            shrunk += r[i].bytes < was[i];
        }
        if (fits) {
            assert_disjoint(r, 60, room);
        }
        fitted += fits;
    }
    assert_true(fitted > 100 && shrunk > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_optimum),  cmocka_unit_test(test_random_rectangles),
        cmocka_unit_test(test_training_steps), cmocka_unit_test(test_many),
        cmocka_unit_test(test_edges),          cmocka_unit_test(workspaces_give_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
