// SPDX-License-Identifier: Apache-2.0
// Shards against brute force, and their hysteresis.
#include "group/shards.h"

#include "base/test.h"

#include <math.h>

static uint32_t seed = 7;

static uint32_t draw(uint32_t below)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % below;
}

// The smallest difference, and the shortest step that has it, over all numbers there are.
static void brute(const hth_shard_member *member, int count, int i, int64_t left, int64_t *n,
                  double best[2])
{
    if (i == count - 1) {
        n[i] = left;
        if (left < member[i].least || left > member[i].most) {
            return;
        }
        double spread = hth_shards_spread(member, count, n);
        double step_us = hth_shards_step_us(member, count, n);
        if (spread < best[0] || (spread == best[0] && step_us < best[1])) {
            best[0] = spread;
            best[1] = step_us;
        }
        return;
    }
    for (n[i] = member[i].least; n[i] <= member[i].most && n[i] <= left; n[i]++) {
        brute(member, count, i + 1, left - n[i], n, best);
    }
}

static void test_brute(void **state)
{
    for (int round = 0; round < 3000; round++) {
        hth_shard_member m[4];
        int64_t n[4], sum = 0;
        int count = 1 + (int)draw(4);
        int64_t batch = (int64_t)draw(count < 4 ? 60 : 30);
        for (int i = 0; i < count; i++) {
            m[i] = (hth_shard_member){.sample_us = 1 + draw(40),
                                      .fixed_us = draw(2) * draw(50),
                                      .least = draw(3),
                                      .most = draw(3) == 0 ? 3 + draw(20) : 1000};
        }
        double best[2] = {INFINITY, INFINITY};
        brute(m, count, 0, batch, n, best);
        bool found = hth_shards_solve(m, count, batch, n);
        assert_int_equal(found, best[0] < INFINITY);
        if (!found) {
            continue;
        }
        for (int i = 0; i < count; i++) {
            assert_true(n[i] >= m[i].least && n[i] <= m[i].most);
            sum += n[i];
        }
        assert_int_equal(sum, batch);
        assert_true(hth_shards_spread(m, count, n) == best[0]);
        assert_true(hth_shards_step_us(m, count, n) == best[1]);
    }
}

static void test_large(void **state)
{
    hth_shard_member m[HTH_GROUP_MEMBERS];
    int64_t n[HTH_GROUP_MEMBERS], sum = 0;
    for (int i = 0; i < HTH_GROUP_MEMBERS; i++) {
        m[i] = (hth_shard_member){.sample_us = 10 + 7.3 * i, .least = 1, .most = 65536};
    }
    assert_true(hth_shards_solve(m, HTH_GROUP_MEMBERS, 65536, n));
    for (int i = 0; i < HTH_GROUP_MEMBERS; i++) {
        sum += n[i];
    }
    assert_int_equal(sum, 65536);
    assert_true(hth_shards_spread(m, HTH_GROUP_MEMBERS, n) <= m[HTH_GROUP_MEMBERS - 1].sample_us);
}

static void test_balance(void **state)
{
    hth_shard_member m[2] = {{.sample_us = 100, .least = 1, .most = 512},
                             {.sample_us = 100, .least = 1, .most = 512}};
    int64_t n[2] = {0, 0};
    assert_true(hth_shards_balance(m, 2, 512, n));
    assert_int_equal(n[0], 256);
    m[1].sample_us = 103; // not worth another size
    assert_false(hth_shards_balance(m, 2, 512, n));
    assert_int_equal(n[1], 256);
    m[1].sample_us = 400; // 410 and 102; in eights
    assert_true(hth_shards_balance(m, 2, 512, n));
    assert_int_equal(n[0], 408);
    assert_int_equal(n[1], 104);
    assert_false(hth_shards_balance(m, 2, 512, n));
    m[0].most = 300; // its memory
    assert_true(hth_shards_balance(m, 2, 512, n));
    assert_int_equal(n[0] + n[1], 512);
    assert_true(n[0] <= 300 && n[0] > 290);
    assert_true(hth_shards_balance(m, 2, 517, n)); // another batch
    assert_int_equal(n[0] + n[1], 517);
}

static void test_none(void **state)
{
    hth_shard_member m[2] = {{.sample_us = 1, .least = 1, .most = 5},
                             {.sample_us = 1, .least = 1, .most = 5}};
    int64_t n[2] = {0, 0};
    assert_false(hth_shards_balance(m, 2, 11, n)); // more than they can have
    assert_false(hth_shards_balance(m, 2, 1, n));  // fewer than one each
    assert_int_equal(n[0] + n[1], 0);
}

// Bounds belong to what fits.
static void test_fit(void **state)
{
    const hth_shard_member m[2] = {{.sample_us = 1, .least = 2, .most = 5},
                                   {.sample_us = 1, .least = 1, .most = 4}};
    assert_true(hth_shards_fit(m, 2, 6, (int64_t[]){2, 4}));
    assert_true(hth_shards_fit(m, 2, 6, (int64_t[]){5, 1}));
    assert_false(hth_shards_fit(m, 2, 6, (int64_t[]){1, 5}));
    assert_false(hth_shards_fit(m, 2, 5, (int64_t[]){1, 4}));
    assert_false(hth_shards_fit(m, 2, 7, (int64_t[]){6, 1}));
    assert_false(hth_shards_fit(m, 2, 7, (int64_t[]){2, 5}));
    assert_false(hth_shards_fit(m, 2, 7, (int64_t[]){2, 4})); // one is left
    assert_false(hth_shards_fit(m, 2, 5, (int64_t[]){2, 4}));
}

static void test_rest(void **state)
{
    int64_t n[3];
    hth_shards_rest((int64_t[]){20, 0, 12}, 3, 16, n);
    assert_int_equal(n[0], 10);
    assert_int_equal(n[1], 0);
    assert_int_equal(n[2], 6);
    hth_shards_rest((int64_t[]){16, 16, 32}, 3, 3, n); // 0.75, 0.75, 1.5
    assert_int_equal(n[0], 1);
    assert_int_equal(n[1], 1);
    assert_int_equal(n[2], 1);
    hth_shards_rest((int64_t[]){31, 1}, 2, 1, n);
    assert_int_equal(n[0], 1);
    assert_int_equal(n[1], 0);
}

// What a change takes is the average of the last ones; it is made for half as much, lost in a row.
static void test_pace(void **state)
{
    hth_shards_pace pace = {0};
    assert_false(hth_shards_pays(&pace, 0));
    assert_true(hth_shards_pays(&pace, 0.5)); // nobody knows what it takes
    hth_shards_paid(&pace, 200);
    for (int i = 0; i < 9; i++) {
        assert_false(hth_shards_pays(&pace, 10));
    }
    assert_true(hth_shards_pays(&pace, 10));
    assert_true(hth_shards_pays(&pace, 10)); // until one is made
    hth_shards_paid(&pace, 100);             // 150
    assert_false(hth_shards_pays(&pace, 74));
    assert_false(hth_shards_pays(&pace, 0)); // not in a row
    assert_false(hth_shards_pays(&pace, 74));
    assert_true(hth_shards_pays(&pace, 1));
    hth_shards_paid(&pace, -3); // a round in which it took less
    assert_true(pace.change_us == 75 && pace.lost_us == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pace),    cmocka_unit_test(test_brute), cmocka_unit_test(test_large),
        cmocka_unit_test(test_balance), cmocka_unit_test(test_none),  cmocka_unit_test(test_rest),
        cmocka_unit_test(test_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
