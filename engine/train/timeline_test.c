// SPDX-License-Identifier: Apache-2.0
// Timelines of plans made by hand: every bar as it was, and of steps with more instructions than
// bars what does not depend on how they are joined.
#include "engine/train/timeline.h"

#include "base/alloc.h"
#include "base/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SECOND 1000000000ull

static hth_plan_node nodes[] = {{.name = "conv"}, {.name = "r\xc3\xa9lu"}};
static hth_plan_tensor tensors[] = {{.name = "t", .bytes = 4096}};
static const hth_problem problem = {
    .n_tensors = 1, .n_nodes = 2, .tensors = tensors, .nodes = nodes};
static hth_instr instrs[] = {
    {.kind = HTH_INSTR_ALLOC},
    {.kind = HTH_INSTR_COMPUTE, .node = 0},
    {.kind = HTH_INSTR_OFFLOAD},
    {.kind = HTH_INSTR_COMPUTE, .node = 1},
    {.kind = HTH_INSTR_FREE},
    {.kind = HTH_INSTR_PREFETCH},
    {.kind = HTH_INSTR_COMPUTE, .node = 0, .recompute = true},
};
static const hth_plan plan = {.n_instrs = 7, .instrs = instrs};
static const double times[][2] = {{0, 0}, {1, 3.5}, {3.5, 5}, {3.5, 6}, {6, 6}, {6, 8}, {8, 9.25}};

static void expect_bar(const json_t *bars, size_t i, int lane, int from_ns, int ns,
                       const char *name, int bytes, bool again)
{
    json_t *want = json_pack("[i, i, i, s, i, i, b]", lane, from_ns, ns, name, 1, bytes, again);
    if (!json_equal(json_array_get(bars, i), want)) {
        fail_msg("bar %zu: %s", i, json_dumps(json_array_get(bars, i), JSON_ENCODE_ANY));
    }
    json_decref(want);
}

static void test_bars(void **state)
{
    hth_timeline *t;
    assert_ok(hth_timeline_open(&t));
    assert_int_equal(hth_timeline_ns(t), 0);
    json_t *doc = hth_timeline_json(t, SECOND);
    assert_int_equal(json_array_size(json_object_get(doc, "bars")), 0);
    json_decref(doc);
    assert_true(hth_timeline_begin(t, 5 * SECOND));
    hth_timeline_add(t, &problem, &plan, times, 5 * SECOND);
    hth_timeline_add(t, &problem, &plan, times, 5 * SECOND + 10000); // the second part of the batch
    hth_timeline_end(t, 7, 6 * SECOND);
    doc = hth_timeline_json(t, 8 * SECOND);
    json_t *bars = json_object_get(doc, "bars");
    assert_int_equal(json_array_size(bars), 10);
    expect_bar(bars, 0, 0, 1000, 2500, "conv", 0, false);
    expect_bar(bars, 1, 2, 3500, 1500, "t", 4096, false);
    expect_bar(bars, 2, 0, 3500, 2500, "r\xc3\xa9lu", 0, false);
    expect_bar(bars, 3, 1, 6000, 2000, "t", 4096, false);
    expect_bar(bars, 4, 0, 8000, 1250, "conv", 0, true);
    expect_bar(bars, 9, 0, 18000, 1250, "conv", 0, true);
    assert_int_equal(json_integer_value(json_object_get(doc, "step")), 7);
    assert_int_equal(json_integer_value(json_object_get(doc, "age_ms")), 2000);
    assert_int_equal(json_integer_value(json_object_get(doc, "wall_ns")), 19250);
    json_decref(doc);
    hth_timeline_close(t);
}

// The first ones, then one in a while; a step that does not end leaves the last one.
static void test_when(void **state)
{
    hth_timeline *t;
    const uint64_t begun = 10 * SECOND, later = begun + HTH_TIMELINE_PERIOD_NS;
    assert_false(hth_timeline_begin(NULL, SECOND));
    assert_ok(hth_timeline_open(&t));
    for (uint64_t i = 0; i < HTH_TIMELINE_FIRST; i++) {
        assert_true(hth_timeline_begin(t, begun));
        hth_timeline_add(t, &problem, &plan, times, begun);
        hth_timeline_end(t, i + 1, begun);
    }
    assert_false(hth_timeline_begin(t, later - 1));
    assert_true(hth_timeline_begin(t, later));
    hth_timeline_add(t, &problem, &plan, times, later); // fails
    assert_true(hth_timeline_begin(t, 2 * later));
    hth_timeline_add(t, &problem, &plan, times, 2 * later + 100000);
    json_t *doc = hth_timeline_json(t, 2 * later);
    assert_int_equal(json_integer_value(json_object_get(doc, "step")), HTH_TIMELINE_FIRST);
    json_decref(doc);
    hth_timeline_end(t, 30, 3 * later);
    doc = hth_timeline_json(t, 3 * later);
    assert_int_equal(json_integer_value(json_object_get(doc, "step")), 30);
    assert_int_equal(json_array_size(json_object_get(doc, "bars")), 5);
    assert_int_equal(json_integer_value(json_object_get(doc, "wall_ns")), 109250);
    json_decref(doc);
    hth_timeline_close(t);
}

// 20,000 instructions: a long one among short ones stays, no time and no byte is lost.
static void test_joined(void **state)
{
    enum { N = 20000, LONG = 12345 };
    hth_instr *many = hth_calloc(N, sizeof *many);
    double(*when)[2] = hth_calloc(N, sizeof *when), at = 0;
    char cut[100];
    memset(cut, 'x', sizeof cut);
    memcpy(cut + 54, "\xc3\xa9", 3); // in the middle of which a name is cut
    for (int i = 0; i < N; i++) {
        many[i].kind = i % 2 == 0 ? HTH_INSTR_COMPUTE : HTH_INSTR_PREFETCH;
        when[i][0] = at;
        at += i == LONG - 1 ? 50000 : 1 + i % 7;
        when[i][1] = at;
    }
    nodes[0].name = cut;
    hth_plan p = {.n_instrs = N, .instrs = many};
    hth_timeline *t;
    assert_ok(hth_timeline_open(&t));
    assert_true(hth_timeline_begin(t, 1));
    hth_timeline_add(t, &problem, &p, (const double(*)[2])when, 1);
    hth_timeline_end(t, 1, 2);
    json_t *doc = hth_timeline_json(t, 2), *bars = json_object_get(doc, "bars"), *b;
    json_int_t count = 0, bytes = 0, ends[3] = {0}, longest = 0;
    size_t i;
    assert_true(json_array_size(bars) <= HTH_TIMELINE_BARS && json_array_size(bars) > 100);
    json_array_foreach(bars, i, b)
    {
        json_int_t lane = json_integer_value(json_array_get(b, 0));
        json_int_t from = json_integer_value(json_array_get(b, 1));
        json_int_t ns = json_integer_value(json_array_get(b, 2));
        assert_true(from >= ends[lane]); // none over another
        ends[lane] = from + ns;
        longest = ns > longest ? ns : longest;
        count += json_integer_value(json_array_get(b, 4));
        bytes += json_integer_value(json_array_get(b, 5));
    }
    assert_int_equal(count, N);
    assert_int_equal(bytes, N / 2 * 4096);
    assert_int_equal(longest, 50000000);
    assert_int_equal(json_integer_value(json_object_get(doc, "wall_ns")), llround(at * 1e3));
    json_decref(doc);
    hth_timeline_close(t);
    hth_free(many);
    hth_free(when);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bars),
        cmocka_unit_test(test_when),
        cmocka_unit_test(test_joined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
