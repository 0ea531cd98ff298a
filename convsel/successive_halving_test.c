// SPDX-License-Identifier: Apache-2.0
// Races of choices whose times are made up, with the noise of a shared machine on top: the front
// that comes out must be the true one as nearly as the noise allows, for a fraction of the runs.
#include "convsel/successive_halving.h"

#include "base/err.h"
#include "convsel/convsel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct track {
    double us[HTH_MAX_CHOICES]; // the truth
    char name[HTH_MAX_CHOICES][48];
    int runs[HTH_MAX_CHOICES], n, checks;
    double spent_us, noise, bursts; // noise: of a run, upwards; bursts: how often it takes twice
    int fails, wrong;               // choices that cannot be run, or compute something else
    uint64_t seed;
} track;

static double draw(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (double)(*seed >> 40) / (double)(1 << 24);
}

static int find(const track *t, const char *name)
{
    for (int i = 0; i < t->n; i++) {
        if (strcmp(t->name[i], name) == 0) {
            return i;
        }
    }
    fail_msg("no choice '%s'", name);
    return -1;
}

static hth_err turn(void *ctx, hth_choice *choice, hth_samples *samples)
{
    track *t = ctx;
    int i = find(t, choice->name);
    if (i == t->fails) {
        return hth_fail(HTH_ENOMEM, "no room for '%s'", choice->name);
    }
    double us = t->us[i] * (1 + t->noise * draw(&t->seed));
    bool burst = draw(&t->seed) < t->bursts;
    us *= burst ? 1.3 + 0.9 * draw(&t->seed) : 1;
    t->runs[i]++;
    t->spent_us += us;
    hth_samples_add(samples, us, !burst || draw(&t->seed) < 0.5); // half of the bursts go unseen
    return HTH_OK;
}

static hth_err check(void *ctx, hth_choice *choice)
{
    track *t = ctx;
    t->checks++;
    choice->error = find(t, choice->name) == t->wrong ? 0.5 : 1e-6;
    return HTH_OK;
}

static void offer(track *t, hth_choice *list, const char *name, double us, double mib, int split)
{
    hth_choice c = {.time_us = -1, .error = -1, .split = split, .deterministic = true};
    snprintf(c.name, sizeof c.name, "%s", name);
    snprintf(t->name[t->n], sizeof t->name[0], "%s", name);
    c.workspace_bytes = (uint64_t)(mib * 1048576);
    t->us[t->n] = us;
    list[t->n++] = c;
}

// The menu of a large layer as libraries offer it, times and gains drawn anew for each seed.
static void menu(track *t, hth_choice *list, uint64_t seed)
{
    static const char *const dial[] = {"", ":16M", ":4M", ":2M", ":1M"};
    static const double mib[] = {8, 16, 4, 2, 1};
    *t = (track){.noise = 0.04, .bursts = 0.1, .fails = -1, .wrong = -1, .seed = seed};
    double unit = 1000 + 60000 * draw(&t->seed), chunk = unit * (1.1 + draw(&t->seed));
    char name[64];
    offer(t, list, "direct", unit * (2 + draw(&t->seed)), 0.1, 1);
    offer(t, list, "wino", chunk, 160, 1);
    for (int k = 2; k <= 16; k *= 2) {
        chunk *= 0.98 + 0.15 * draw(&t->seed);
        snprintf(name, sizeof name, "wino/%d", k);
        offer(t, list, name, chunk, 30 + 130.0 / k, k);
    }
    for (int size = 2; size <= 6; size += 2) {
        double us = unit * (size == 2 ? 1.5 : 0.9 + 0.4 * draw(&t->seed));
        for (int d = 0; d < 5; d++) {
            double less = d == 1 ? 0.8 + 0.3 * draw(&t->seed) : 0.98 + 0.5 * draw(&t->seed);
            us *= d < 2 ? 1 : less;
            snprintf(name, sizeof name, "tiles_%d%s", size, dial[d]);
            offer(t, list, name, d == 1 ? us * less : us, mib[d] + 0.01 * size, 1);
        }
    }
}

// The least time that a plan gets with so much workspace: the truth, or by what the front says.
static double least(const track *t, const hth_choice *list, int n, uint64_t bytes)
{
    double best = INFINITY, told = INFINITY;
    for (int i = 0; i < n; i++) {
        bool fits = list[i].workspace_bytes <= bytes;
        if (t == NULL || !fits || !list[i].front || list[i].time_us >= told) {
            continue;
        }
        told = list[i].time_us;
        best = t->us[find(t, list[i].name)];
    }
    return best;
}

static int by_time(const void *a, const void *b)
{
    double x = ((const hth_choice *)a)->time_us, y = ((const hth_choice *)b)->time_us;
    return (x > y) - (x < y);
}

static void race(track *t, hth_choice *list, int *n, uint64_t slack, bool *whole)
{
    hth_racer r = {.turn = turn,
                   .check = check,
                   .ctx = t,
                   .tolerance = 1e-3,
                   .slack_bytes = slack,
                   .step = true};
    assert_int_equal(hth_race(&r, list, n, whole), HTH_OK);
    qsort(list, (size_t)*n, sizeof *list, by_time);
    hth_convsel_front(list, *n, 1e-3);
}

static void noise_keeps_the_front(void **state)
{
    (void)state;
    enum { RACES = 500, SIZES = 8 };
    static const double mib[SIZES] = {0.1, 1.1, 2.1, 4.1, 8.1, 16.1, 64, 256};
    double lost = 0, worst = 0, spent = 0, all = 0, off = 0;
    int bad = 0;
    for (uint64_t seed = 1; seed <= RACES; seed++) {
        track t;
        hth_choice list[HTH_MAX_CHOICES], every[HTH_MAX_CHOICES];
        bool whole;
        menu(&t, list, seed);
        int n = t.n;
        memcpy(every, list, sizeof every);
        for (int i = 0; i < n; i++) {
            every[i].time_us = t.us[i];
            every[i].front = true;
            all += 5 * t.us[i];
        }
        race(&t, list, &n, 0, &whole);
        assert_true(whole);
        for (int k = 0; k < SIZES; k++) {
            uint64_t bytes = (uint64_t)(mib[k] * 1048576);
            double more = least(&t, list, n, bytes) / least(&t, every, t.n, bytes) - 1;
            lost += more / SIZES / RACES;
            worst = fmax(worst, more);
            bad += more > 0.06;
        }
        off += fabs(list[0].time_us / t.us[find(&t, list[0].name)] - 1) / RACES;
        spent += t.spent_us;
    }
    print_message(
        "  lost %.2f %% of time, %.1f %% at most, over 6 %%: %d of %d; fastest off by %.1f "
        "%%; %.0f %% of five runs of each\n",
        100 * lost, 100 * worst, bad, RACES * SIZES, 100 * off, 100 * spent / all);
    assert_true(lost < 0.01);
    assert_true(bad < RACES * SIZES / 50);
    assert_true(off < 0.05);
    assert_true(spent < 0.5 * all);
}

static void without_noise_the_front_is_exact(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        track t;
        hth_choice list[HTH_MAX_CHOICES], every[HTH_MAX_CHOICES];
        bool whole;
        menu(&t, list, seed);
        int n = t.n, kept;
        memcpy(every, list, sizeof every);
        for (int i = 0; i < n; i++) {
            every[i].time_us = t.us[i];
        }
        t.noise = t.bursts = 0;
        race(&t, list, &n, 0, &whole);
        qsort(every, (size_t)t.n, sizeof *every, by_time);
        hth_convsel_front(every, t.n, 1e-3);
        for (int i = kept = 0; i < n; i++) {
            if (list[i].front) { // a choice that is faster by less than nothing is one more
                assert_true(fabs(list[i].time_us / t.us[find(&t, list[i].name)] - 1) < 1e-9);
                kept++;
            }
        }
        assert_true(kept >= 2);
        assert_string_equal(list[0].name, every[0].name);
    }
}

static void what_is_beaten_is_hardly_run(void **state)
{
    (void)state;
    track t = {.fails = -1, .wrong = -1};
    hth_choice list[HTH_MAX_CHOICES];
    bool whole;
    int n;
    offer(&t, list, "fast", 100, 1, 1);
    offer(&t, list, "slow", 1000, 2, 1);
    offer(&t, list, "slow/2", 900, 1.5, 2);
    offer(&t, list, "small", 500, 0, 1);
    n = t.n;
    race(&t, list, &n, 0, &whole);
    assert_int_equal(t.runs[1], 1); // no doubt
    assert_int_equal(t.runs[2], 0); // as slow as what it varies, and still larger than "fast"
    assert_true(t.runs[0] >= 3 && t.runs[3] >= 3);
    assert_int_equal(n, 3);
    assert_true(list[0].front && list[1].front && !list[2].front);
}

static void workspaces_within_the_slack_are_equal(void **state)
{
    (void)state;
    for (int slack = 0; slack < 2; slack++) {
        track t = {.fails = -1, .wrong = -1};
        hth_choice list[HTH_MAX_CHOICES];
        bool whole;
        offer(&t, list, "fast", 30000, 1, 1);
        offer(&t, list, "small", 90000, 0, 1);
        int n = t.n;
        race(&t, list, &n, slack != 0 ? 1 << 20 : 0, &whole);
        assert_int_equal(t.runs[1], slack != 0 ? 1 : 2);
        assert_int_equal(n, 2); // it is there, and on the front, all the same
        assert_true(list[1].front && list[1].time_us == 90000);
    }
}

static void wrong_and_failing_choices(void **state)
{
    (void)state;
    track t;
    hth_choice list[HTH_MAX_CHOICES];
    bool whole;
    menu(&t, list, 3);
    int n = 0;
    for (int i = 1; i < t.n; i++) { // the fastest of all computes something else
        t.wrong = t.wrong < 0 || t.us[i] < t.us[t.wrong] ? i : t.wrong;
    }
    n = t.n;
    t.fails = 0;
    race(&t, list, &n, 0, &whole);
    assert_false(whole);
    for (int i = 0; i < n; i++) {
        assert_string_not_equal(list[i].name, t.name[0]);
        assert_false(list[i].front && strcmp(list[i].name, t.name[t.wrong]) == 0);
    }
    assert_true(list[0].front || list[1].front); // it put nothing out
    t = (track){.fails = 0, .wrong = -1};
    offer(&t, list, "only", 100, 1, 1);
    n = 1;
    hth_racer r = {.turn = turn, .check = check, .ctx = &t, .tolerance = 1e-3};
    assert_int_equal(hth_race(&r, list, &n, &whole), HTH_ENOMEM);
    assert_int_equal(n, 0);
    assert_false(whole);
}

static void times_of_samples(void **state)
{
    (void)state;
    hth_samples s = {.n = 0};
    static const double us[] = {10, 11, 12, 13, 30};
    for (int i = 0; i < 5; i++) {
        hth_samples_add(&s, us[i], true);
    }
    assert_true(hth_samples_time(&s, true) == 12);
    assert_true(hth_samples_time(&s, false) == 11);
    s = (hth_samples){.n = 0};
    for (int i = 0; i < 5; i++) {
        hth_samples_add(&s, us[i], i == 2 || i == 4);
    }
    assert_true(hth_samples_time(&s, true) == 12);
    s = (hth_samples){.n = 0};
    for (int i = 0; i < 2 * HTH_RACE_SAMPLES; i++) {
        hth_samples_add(&s, 5, i % 2 == 0);
    }
    assert_int_equal(s.n, HTH_RACE_SAMPLES);
    assert_true(hth_samples_time(&s, true) == 5);
}

// A winner whose runs do not repeat, as on a machine that others use: its time is marked, and is
// not that of all whom it beat.
static hth_err turn_disturbed(void *ctx, hth_choice *choice, hth_samples *samples)
{
    track *t = ctx;
    int i = find(t, choice->name);
    static const double noise[] = {1, 1.45, 1.45, 1.45, 1.45};
    if (i < 0) {
        return HTH_ENOENT;
    }
    double us = t->us[i] * (i == 0 ? noise[t->runs[i] % 5] : 1);
    t->runs[i]++;
    hth_samples_add(samples, us, t->seed == 0);
    return HTH_OK;
}

static void disturbed_winner(void **state)
{
    (void)state;
    track t = {.fails = -1, .wrong = -1};
    hth_choice list[HTH_MAX_CHOICES];
    hth_racer r = {turn_disturbed, check, &t, 1e-3, 0, true};
    bool whole;
    char name[40];
    offer(&t, list, "fast", 1000, 0, 1);
    for (int k = 1; k <= 5; k++) {
        snprintf(name, sizeof name, "slow_%d", k);
        offer(&t, list, name, 1300 + 10 * k, 1, 1);
    }
    int n = t.n;
    assert_int_equal(hth_race(&r, list, &n, &whole), HTH_OK);
    assert_int_equal(n, 6);
    assert_true(list[0].disturbed && list[0].time_us == 1450);
    for (int k = 1; k < n; k++) {
        assert_false(list[k].disturbed);
        assert_true(list[k].time_us > list[0].time_us);
        assert_true(k == 1 || list[k].time_us > list[k - 1].time_us);
    }
    t = (track){.fails = -1, .wrong = -1, .seed = 1}; // every run was interrupted
    offer(&t, list, "slow", 1000, 0, 1);
    offer(&t, list, "only", 1000, 0, 1);
    n = 1;
    list[0] = list[1];
    assert_int_equal(hth_race(&r, list, &n, &whole), HTH_OK);
    assert_true(list[0].disturbed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(noise_keeps_the_front),
        cmocka_unit_test(without_noise_the_front_is_exact),
        cmocka_unit_test(what_is_beaten_is_hardly_run),
        cmocka_unit_test(workspaces_within_the_slack_are_equal),
        cmocka_unit_test(wrong_and_failing_choices),
        cmocka_unit_test(times_of_samples),
        cmocka_unit_test(disturbed_winner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
