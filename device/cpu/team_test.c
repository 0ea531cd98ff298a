// SPDX-License-Identifier: Apache-2.0
// The team: every index runs exactly once, ranges cover everything, the size is what was set.
#include "device/cpu/team.h"

#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

static atomic_int seen[64];
static atomic_int members;

static void mark(void *arg, int i, int n)
{
    (void)arg;
    atomic_store(&members, n);
    size_t begin, end;
    hth_team_range(64, i, n, &begin, &end);
    for (size_t k = begin; k < end; k++) {
        atomic_fetch_add(&seen[k], 1);
    }
}

static void team_covers_every_index_once(void **state)
{
    (void)state;
    for (int n = 1; n <= 3; n++) {
        hth_team_set(n);
        assert_int_equal(hth_team_size(), n);
        for (int k = 0; k < 64; k++) {
            atomic_store(&seen[k], 0);
        }
        hth_team_run(mark, NULL);
        assert_in_range(atomic_load(&members), 1, n);
        for (int k = 0; k < 64; k++) {
            assert_int_equal(atomic_load(&seen[k]), 1);
        }
    }
}

static void team_never_has_less_than_one(void **state)
{
    (void)state;
    hth_team_set(0);
    assert_int_equal(hth_team_size(), 1);
}

// A region with barriers, entered as oneDNN enters one: every share runs on a thread of its own and
// all meet twice.
static const hth_team_omp *const omp = &hth_team_openmp;
static atomic_int before, between;

static void meet(void *data)
{
    int n = omp->n();
    atomic_fetch_add(&before, 1);
    omp->barrier();
    if (atomic_load(&before) % n != 0) {
        atomic_fetch_add((atomic_int *)data, 1);
    }
    omp->barrier();
    atomic_fetch_add(&between, omp->share() + omp->inside());
    omp->barrier();
}

static void team_serves_openmp(void **state)
{
    (void)state;
    atomic_int wrong = 0;
    for (int round = 0; round < 2000; round++) {
        int n = 2 + round % 2;
        hth_team_set(n);
        atomic_store(&before, 0);
        atomic_store(&between, 0);
        omp->parallel(meet, &wrong, (unsigned)n);
        assert_int_equal(atomic_load(&before), n);
        assert_int_equal(atomic_load(&between), n * (n - 1) / 2 + n);
    }
    assert_int_equal(atomic_load(&wrong), 0);
    assert_int_equal(omp->inside(), 0);
}

static void meet_alone(void *data)
{
    omp->barrier();
    atomic_fetch_add((atomic_int *)data, 1);
}

// Two owners compute at once, each with a team of its own; their workers end with them.
static void *owner(void *arg)
{
    (void)arg;
    for (int round = 0; round < 300; round++) {
        hth_team_set(2);
        atomic_int wrong = 0;
        omp->parallel(meet_alone, &wrong, 2);
        if (atomic_load(&wrong) != 2) {
            return (void *)1;
        }
    }
    return NULL;
}

static void team_per_owner(void **state)
{
    (void)state;
    pthread_t t[2];
    void *result;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&t[i], NULL, owner, NULL), 0);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(t[i], &result), 0);
        assert_null(result);
    }
}

static void nested_inner(void *arg, int i, int n)
{
    atomic_fetch_add((atomic_int *)arg, n == 1 && i == 0 ? 1 : 100);
}

static void nested_outer(void *arg, int i, int n)
{
    (void)i;
    (void)n;
    hth_team_run(nested_inner, arg);
}

static void team_inside_a_share_is_one_thread(void **state)
{
    (void)state;
    atomic_int count = 0;
    hth_team_set(3);
    hth_team_run(nested_outer, &count);
    assert_int_equal(atomic_load(&count), 3);
}

// Counts instead of yielding: team.c calls this one.
static atomic_int yields;

int sched_yield(void)
{
    atomic_fetch_add(&yields, 1);
    return 0;
}

// The system's: {size, policy, flags, nice, priority, runtime, deadline, period}.
typedef struct turns {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
} turns;

static uint64_t turn_ns(void)
{
    turns t = {.size = 0};
    return syscall(SYS_sched_getattr, 0, &t, sizeof t, 0) == 0 ? t.runtime_ns : 0;
}

static uint64_t turn_of[2];

// The first share waits for the second, which takes longer than waiting threads look, and on until
// there were as many yields: the first one may have come late.
static void wait_long(void *data)
{
    int i = omp->share(), least = *(const int *)data;
    for (int k = 0; i == 1 && (k == 0 || (k < 40000 && atomic_load(&yields) < least)); k++) {
        nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    }
    turn_of[i] = turn_ns();
    omp->barrier();
}

static int yields_of_a_region(int least)
{
    atomic_store(&yields, 0);
    omp->parallel(wait_long, &least, 2);
    return atomic_load(&yields);
}

static void team_keeps_processors(void **state)
{
    (void)state;
    hth_team_set(2);
    uint64_t usual = turn_ns();
    assert_in_range(yields_of_a_region(1), 1, INT_MAX);
    hth_team_keep(true);
    (void)yields_of_a_region(0); // the worker may still have been waiting as before
    assert_int_equal(yields_of_a_region(0), 0);
    if (usual > 0 && turn_ns() != usual) { // a system that has such turns
        assert_true(turn_of[0] > usual && turn_of[1] > usual);
    } else {
        print_message("# this system has no turns to choose\n");
    }
    hth_team_keep(false);
    assert_in_range(yields_of_a_region(1), 1, INT_MAX);
    assert_true(turn_of[0] == usual && turn_of[1] == usual);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(team_covers_every_index_once),
        cmocka_unit_test(team_keeps_processors),
        cmocka_unit_test(team_never_has_less_than_one),
        cmocka_unit_test(team_serves_openmp),
        cmocka_unit_test(team_per_owner),
        cmocka_unit_test(team_inside_a_share_is_one_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
