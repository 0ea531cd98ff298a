// SPDX-License-Identifier: Apache-2.0
// What the machine does is written here, in files as those in /proc, and so is the time.
#include "runtime/quiet.h"

#include "base/test.h"

#define SECOND 1000000000u

static char dir[] = "/tmp/hearth-quiet-XXXXXX";
static const double little = 0.1; // of the processors' time

static int setup(void **state)
{
    return mkdtemp(dir) != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    return test_remove(dir);
}

static void file_is(const char *name, const char *text)
{
    char path[100];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

// The kernel's line: ticks of work by others, idle, and taken by the machine's host, since it was
// started. Waiting for a disk is idle.
static void stat_is(int work, int idle, int stolen)
{
    char text[200];
    snprintf(text, sizeof text,
             "cpu  %d 5 10 %d %d 3 2 %d 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\nintr 12345\n", work,
             idle / 2, idle - idle / 2, stolen);
    file_is("stat", text);
}

static void test_machine(void **state)
{
    hth_machine m = {.proc = dir};
    file_is("meminfo",
            "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\n");
    stat_is(80, 900, 0);
    assert_true(hth_machine_read(&m)); // since the machine was started
    assert_float_equal(m.utilization, 0.1, 1e-9);
    assert_int_equal(m.total_bytes, 1000 * 1024);
    assert_int_equal(m.used_bytes, 600 * 1024);
    stat_is(105, 970, 5); // since then 25 and 5 of 100 ticks
    assert_true(hth_machine_read(&m));
    assert_float_equal(m.utilization, 0.3, 1e-9);
    assert_float_equal(m.stolen, 0.05, 1e-9);
    assert_false(hth_machine_read(&m)); // nothing has moved on
    assert_float_equal(m.utilization, 0.3, 1e-9);
    file_is("stat", "cpu  7\n");
    assert_false(hth_machine_read(&m));
    m.proc = "/nonexistent"; // what cannot be read stays as it was
    assert_false(hth_machine_read(&m));
    assert_int_equal(m.total_bytes, 1000 * 1024);
    assert_int_equal(m.used_bytes, 600 * 1024);
}

static void test_here(void **state)
{
    hth_machine m = {.proc = NULL};
    assert_true(hth_machine_read(&m));
    assert_true(m.utilization >= 0 && m.utilization <= 1);
    assert_true(m.total_bytes > m.used_bytes && m.used_bytes > 0);
}

// Two looks, a second apart, decide by the time between them.
static void test_two_looks(void **state)
{
    hth_quiet q = {.machine.proc = dir};
    uint64_t now = 100 * (uint64_t)SECOND;
    stat_is(1000, 1000, 0);
    assert_int_equal(hth_quiet_look(&q, little, now), HTH_QUIET_UNKNOWN); // one says nothing
    stat_is(1010, 1090, 0);                                               // a tenth
    assert_int_equal(hth_quiet_look(&q, little, now + SECOND - 1), HTH_QUIET_UNKNOWN); // too soon
    assert_int_equal(hth_quiet_look(&q, little, now + SECOND), HTH_QUIET_YES);
    stat_is(1021, 1179, 0); // 11 of 100
    assert_int_equal(hth_quiet_look(&q, little, now + 2 * (uint64_t)SECOND), HTH_QUIET_NO);
    stat_is(1021, 1268, 11); // the host's other machines
    assert_int_equal(hth_quiet_look(&q, little, now + 3 * (uint64_t)SECOND), HTH_QUIET_NO);
    stat_is(1021, 1368, 11);
    assert_int_equal(hth_quiet_look(&q, little, now + 4 * (uint64_t)SECOND), HTH_QUIET_YES);
}

// What was long ago says nothing about now.
static void test_old(void **state)
{
    hth_quiet q = {.machine.proc = dir};
    uint64_t now = SECOND;
    stat_is(1000, 1000, 0);
    (void)hth_quiet_look(&q, little, now);
    stat_is(1000, 2000, 0);
    now += HTH_QUIET_OLD_NS + 1;
    assert_int_equal(hth_quiet_look(&q, little, now), HTH_QUIET_UNKNOWN);
    stat_is(1000, 3000, 0);
    now += HTH_QUIET_OLD_NS;
    assert_int_equal(hth_quiet_look(&q, little, now), HTH_QUIET_YES);
}

// A machine that does not say is not quiet, however quiet it was; a share of 1 asks nobody.
static void test_unreadable(void **state)
{
    hth_quiet q = {.machine.proc = dir};
    uint64_t now = SECOND;
    stat_is(1000, 1000, 0);
    (void)hth_quiet_look(&q, little, now);
    stat_is(1000, 2000, 0);
    assert_int_equal(hth_quiet_look(&q, little, now += SECOND), HTH_QUIET_YES);
    q.machine.proc = "/nonexistent";
    assert_int_equal(hth_quiet_look(&q, little, now += SECOND), HTH_QUIET_UNKNOWN);
    assert_int_equal(hth_quiet_look(&q, 1, now), HTH_QUIET_YES);
    q.machine.proc = dir;
    stat_is(900, 1000, 0); // counters that went back
    assert_int_equal(hth_quiet_look(&q, little, now += SECOND), HTH_QUIET_UNKNOWN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_machine), cmocka_unit_test(test_here),
                                       cmocka_unit_test(test_two_looks), cmocka_unit_test(test_old),
                                       cmocka_unit_test(test_unreadable)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
