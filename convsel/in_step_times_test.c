// SPDX-License-Identifier: Apache-2.0
// What steps took, beside what nodes take alone: kept apart, moved in bounded steps, shared by
// equal nodes, scaled to the algorithms that no step ran with.
#include "convsel/in_step_times.h"

#include "convsel/cache_model.h"
#include "kernels/cpu/fixture.h"

#define NOWHERE 0.001

typedef struct texts {
    char key[8][HTH_CONVSEL_KEY], value[8][512];
    int n, puts;
} texts;

static hth_err texts_get(void *ctx, const char *key, char *value, size_t cap)
{
    const texts *t = ctx;
    for (int i = 0; i < t->n; i++) {
        if (strcmp(t->key[i], key) == 0) {
            snprintf(value, cap, "%s", t->value[i]);
            return HTH_OK;
        }
    }
    return HTH_ENOENT;
}

static hth_err texts_put(void *ctx, const char *key, const char *value)
{
    texts *t = ctx;
    int i = 0;
    while (i < t->n && strcmp(t->key[i], key) != 0) {
        i++;
    }
    assert_true(i < 8);
    t->n += i == t->n;
    snprintf(t->key[i], sizeof t->key[i], "%s", key);
    snprintf(t->value[i], sizeof t->value[i], "%s", value);
    t->puts++;
    return HTH_OK;
}

// Two equal nodes and one of another size, "a" and "b" measured alone in 100 and 110 us.
typedef struct step {
    fixture f;
    hth_cache_model cache_state;
    texts t;
    hth_timing_cache cache;
} step;

static void step_open(step *s)
{
    char key[HTH_CONVSEL_KEY];
    int v[4];
    memset(s, 0, sizeof *s);
    fixture_open(&s->f, 3);
    for (int i = 0; i < 4; i++) {
        v[i] = fixture_value(&s->f, SHAPE(i < 2 ? 64 : 32, 16));
    }
    fixture_node(&s->f, HTH_OP_RELU, &v[0], 1, &v[1], 1);
    fixture_node(&s->f, HTH_OP_RELU, &v[1], 1, &v[0], 1);
    fixture_node(&s->f, HTH_OP_RELU, &v[2], 1, &v[3], 1);
    s->cache = (hth_timing_cache){.get = texts_get, .put = texts_put, .ctx = &s->t};
    for (int i = 1; i < 3; i++) {
        hth_convsel_key(&s->f.device, s->f.graph, &s->f.graph->nodes[i], &s->cache_state, key,
                        sizeof key);
        texts_put(&s->t, key, "a 0 0 100.0 -1 -1 1 0 1\nb 64 0 110.0 -1 -1 1 0 1\n");
    }
    s->t.puts = 0;
}

static double us_of(step *s, int node, const char *name, const hth_cache_model *cache_state)
{
    hth_choice list[HTH_MAX_CHOICES];
    int n;
    assert_int_equal(hth_convsel_measure(&s->f.device, s->f.graph, &s->f.graph->nodes[node],
                                         cache_state, &s->cache, list, HTH_MAX_CHOICES, &n),
                     HTH_OK);
    assert_int_equal(n, 2);
    assert_true(list[0].time_us <= list[1].time_us);
    return strcmp(list[0].name, name) == 0 ? list[0].time_us : list[1].time_us;
}

static void learn(step *s, const char *name, double first, double second, double third)
{
    const hth_in_step_times seen[3] = {
        {first > 0 ? name : NULL, first}, {name, second}, {name, third}};
    assert_int_equal(
        hth_in_step_times_learn(&s->f.device, s->f.graph, &s->cache_state, &s->cache, seen),
        HTH_OK);
}

#define NEAR(x, want) assert_true(fabs((x) - (want)) < NOWHERE * (want))

static void seen_times_win_and_scale_the_others(void **state)
{
    (void)state;
    step s;
    step_open(&s);
    NEAR(us_of(&s, 0, "a", &s.cache_state), 100);
    learn(&s, "a", 120, 130, 80); // the first two are the same node
    NEAR(us_of(&s, 0, "a", &s.cache_state), 125);
    NEAR(us_of(&s, 1, "b", &s.cache_state), 110 * 1.25);
    NEAR(us_of(&s, 2, "b", &s.cache_state), 110 * 0.8);
    NEAR(us_of(&s, 0, "a", NULL), 100); // not of a step
    learn(&s, "b", 115, 115, 88);
    NEAR(us_of(&s, 1, "b", &s.cache_state), 115); // now it is the faster one
    NEAR(us_of(&s, 1, "a", &s.cache_state), 125);
    hth_choice third[3] = {{.name = "a", .time_us = 100},
                           {.name = "b", .time_us = 110},
                           {.name = "c", .time_us = 200}};
    char key[HTH_CONVSEL_KEY];
    hth_convsel_key(&s.f.device, s.f.graph, &s.f.graph->nodes[0], &s.cache_state, key, sizeof key);
    hth_in_step_times_apply(&s.cache, key, third, 3);
    NEAR(third[2].time_us, 200 * sqrt(1.25 * 115 / 110));
    fixture_close(&s.f);
}

static void changes_are_bounded(void **state)
{
    (void)state;
    step s;
    step_open(&s);
    learn(&s, "a", 1e6, 1e6, 1);
    NEAR(us_of(&s, 0, "a", &s.cache_state), 400);
    NEAR(us_of(&s, 2, "a", &s.cache_state), 25);
    learn(&s, "a", 100, 100, 100); // half of the way down, by a third at most; up as a mean of two
    NEAR(us_of(&s, 0, "a", &s.cache_state), 400 - 0.5 * 400 / 3);
    NEAR(us_of(&s, 2, "a", &s.cache_state), 25 + 0.5 * 12.5);
    for (int i = 0; i < 40; i++) {
        learn(&s, "a", 90, 110, 100);
    }
    double first = us_of(&s, 0, "a", &s.cache_state), third = us_of(&s, 2, "a", &s.cache_state);
    assert_true(fabs(first - 100) < 2 && fabs(third - 100) < 2);
    int puts = s.t.puts;
    learn(&s, "a", first, first, third); // settled: nothing is written
    assert_int_equal(s.t.puts, puts);
    learn(&s, "a", 2 * first, 2 * first, third / 2);
    NEAR(us_of(&s, 0, "a", &s.cache_state), 1.125 * first);
    NEAR(us_of(&s, 2, "a", &s.cache_state), third - third / 12);
    fixture_close(&s.f);
}

// What kernels of before took in a step says nothing of today's.
static void older_kernels_times_do_not_count(void **state)
{
    (void)state;
    static const char *const old[] = {"in-situ1", "in-situ3"};
    step s;
    char key[HTH_CONVSEL_KEY], at[HTH_CONVSEL_KEY];
    step_open(&s);
    hth_convsel_key(&s.f.device, s.f.graph, &s.f.graph->nodes[0], &s.cache_state, key, sizeof key);
    for (int i = 0; i < 2; i++) {
        snprintf(at, sizeof at, "%s%s", old[i], strchr(key, ' '));
        texts_put(&s.t, at, "a 50.000 4\n");
    }
    NEAR(us_of(&s, 0, "a", &s.cache_state), 100);
    learn(&s, "a", 120, 120, 120);
    NEAR(us_of(&s, 0, "a", &s.cache_state), 120);
    fixture_close(&s.f);
}

static void damaged_and_unknown(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "a",         "a 1.5",      "a -1 1\n",         "a 50 0\n", "a 50 1\nb x 1\n",
        "a inf 1\n", "a 2e12 1\n", "a 50 2147483647\n"};
    step s;
    step_open(&s);
    learn(&s, "nobody", 50, 50, 50);
    assert_int_equal(s.t.puts, 0);
    learn(&s, "a", 0, 50, 50);
    NEAR(us_of(&s, 0, "a", &s.cache_state), 50);
    for (int k = 0; k < (int)(sizeof bad / sizeof *bad); k++) {
        for (int i = 0; i < s.t.n; i++) {
            if (strncmp(s.t.key[i], "in-situ", 7) == 0) {
                snprintf(s.t.value[i], sizeof s.t.value[i], "%s", bad[k]);
            }
        }
        NEAR(us_of(&s, 0, "a", &s.cache_state), 100);
    }
    assert_int_equal(hth_in_step_times_learn(&s.f.device, s.f.graph, &s.cache_state, NULL,
                                             (hth_in_step_times[3]){{"a", 1}, {"a", 1}, {"a", 1}}),
                     HTH_OK);
    fixture_close(&s.f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seen_times_win_and_scale_the_others),
        cmocka_unit_test(changes_are_bounded),
        cmocka_unit_test(older_kernels_times_do_not_count),
        cmocka_unit_test(damaged_and_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
