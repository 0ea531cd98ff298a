// SPDX-License-Identifier: Apache-2.0
// Fibers: calls go on where they yielded, each with its own stack, sentence and account; a stack
// that is used up ends the process and overwrites nothing.
#include "sched/fiber.h"
#include "base/pace.h"
#include "base/test.h"
#include "base/thread.h"
#include "device/cpu/team.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK ((size_t)256 << 10)

typedef struct count {
    hth_fiber *f;
    int from, n, sum;
} count;

static void count_main(void *arg)
{
    count *c = arg;
    for (int i = 0; i < c->n; i++) {
        c->sum += c->from + i;
        hth_fiber_yield(c->f);
    }
}

static void test_turns(void **state)
{
    count a = {.from = 1, .n = 1000}, b = {.from = 5, .n = 700};
    assert_ok(hth_fiber_open(STACK, &a.f));
    assert_ok(hth_fiber_open(STACK, &b.f));
    for (int round = 0; round < 3; round++) { // as often as one likes
        a.sum = b.sum = 0;
        hth_fiber_begin(a.f, count_main, &a);
        hth_fiber_begin(b.f, count_main, &b);
        assert_int_equal(a.sum, 0); // nothing happens before it goes
        for (bool more_a = true, more_b = true; more_a || more_b;) {
            more_a = more_a && hth_fiber_go(a.f);
            more_b = more_b && hth_fiber_go(b.f);
        }
        assert_int_equal(a.sum, 1000 + 999 * 1000 / 2);
        assert_int_equal(b.sum, 5 * 700 + 699 * 700 / 2);
    }
    hth_fiber_close(a.f);
    hth_fiber_close(b.f);
    hth_fiber_close(NULL);
}

#define OFTEN 100000

// No run leaves anything, of what a sanitizer keeps either: the thread sanitizer has room for
// 65,536 calls in each other.
static void test_often(void **state)
{
    count c = {.from = 1, .n = 0};
    assert_ok(hth_fiber_open(STACK, &c.f));
    for (int i = 0; i < OFTEN; i++) {
        hth_fiber_begin(c.f, count_main, &c);
        assert_false(hth_fiber_go(c.f));
    }
    hth_fiber_close(c.f);
}

// deep calls itself, each time with a kilobyte of its own, and yields at the deepest.
static int deep(hth_fiber *fiber, int levels)
{
    volatile char own[1024];
    memset((char *)own, levels, sizeof own);
    if (levels == 0) {
        hth_fiber_yield(fiber);
        return 0;
    }
    int below = deep(fiber, levels - 1);
    for (size_t i = 0; i < sizeof own; i++) {
        below += own[i] != (char)levels;
    }
    return below;
}

static void deep_main(void *arg)
{
    count *c = arg;
    c->sum = deep(c->f, c->n);
}

static void test_deep(void **state)
{
    count a = {.n = 100}, b = {.n = 60};
    assert_ok(hth_fiber_open(STACK, &a.f));
    assert_ok(hth_fiber_open(STACK, &b.f));
    a.sum = b.sum = -1;
    hth_fiber_begin(a.f, deep_main, &a);
    hth_fiber_begin(b.f, deep_main, &b);
    assert_true(hth_fiber_go(a.f));
    assert_true(hth_fiber_go(b.f));
    assert_false(hth_fiber_go(a.f));
    assert_false(hth_fiber_go(b.f));
    assert_int_equal(a.sum + b.sum, 0); // what was on the stacks is there still
    hth_fiber_close(a.f);
    hth_fiber_close(b.f);
}

// What is the thread's in the middle of calls is each side's own.
static void own_main(void *arg)
{
    hth_fiber *f = arg;
    hth_pace pace = {.most_work = 10, .most_bytes = 10};
    hth_pace *before = hth_pace_enter(&pace);
    assert_null(before);
    assert_string_equal(hth_err_detail(), "");
    hth_fail(HTH_EIO, "inside");
    hth_fiber_yield(f);
    assert_string_equal(hth_err_detail(), "inside");
    assert_ptr_equal(hth_pace_now(), &pace);
    assert_ok(hth_pace_step(10));
    hth_pace_leave(before);
}

static void test_own(void **state)
{
    hth_fiber *f;
    hth_pace pace = {.most_work = 5, .most_bytes = 5};
    hth_pace *before = hth_pace_enter(&pace);
    assert_ok(hth_fiber_open(STACK, &f));
    hth_fail(HTH_EINVAL, "outside");
    hth_fiber_begin(f, own_main, f);
    assert_true(hth_fiber_go(f));
    assert_string_equal(hth_err_detail(), "outside");
    assert_ptr_equal(hth_pace_now(), &pace);
    assert_ok(hth_pace_step(5));
    hth_fail(HTH_EINVAL, "outside again");
    assert_false(hth_fiber_go(f));
    assert_string_equal(hth_err_detail(), "outside again");
    assert_ptr_equal(hth_pace_now(), &pace);
    hth_pace_leave(before);
    hth_fiber_close(f);
}

// A team computes on what lies on a fiber's stack.
typedef struct sum {
    hth_fiber *f;
    long total;
} sum;

static void sum_share(void *arg, int i, int n)
{
    long *part = arg;
    for (int k = i; k < 1000; k += n) {
        part[i] += k;
    }
}

static void sum_main(void *arg)
{
    sum *s = arg;
    for (int round = 0; round < 10; round++) {
        long part[8] = {0};
        hth_team_run(sum_share, part);
        hth_fiber_yield(s->f);
        for (int i = 0; i < 8; i++) {
            s->total += part[i];
        }
    }
}

static void sum_thread(void *arg)
{
    sum *s = arg;
    hth_team_set(3);
    assert_ok(hth_fiber_open(STACK, &s->f));
    hth_fiber_begin(s->f, sum_main, s);
    while (hth_fiber_go(s->f)) {
        long part[8] = {0};
        hth_team_run(sum_share, part); // the thread's own, in between
        s->total += part[0] + part[1] + part[2];
    }
    hth_fiber_close(s->f);
}

static void test_team(void **state)
{
    sum s[2] = {{.total = 0}};
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) {
        assert_ok(hth_thread_start("fiber", sum_thread, &s[i], &thread[i]));
    }
    for (int i = 0; i < 2; i++) {
        hth_thread_join(thread[i]);
        assert_int_equal(s[i].total, 20L * 499500);
    }
}

static void overflow_main(void *arg)
{
    count *c = arg;
    c->sum = deep(c->f, 1 << 20);
}

// The page below the stack ends the process.
static void test_overflow(void **state)
{
    count c = {.n = 1};
    assert_ok(hth_fiber_open(STACK, &c.f));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        (void)close(2);
        (void)signal(SIGSEGV, SIG_DFL);
        hth_fiber_begin(c.f, overflow_main, &c);
        (void)hth_fiber_go(c.f);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_true(!WIFSIGNALED(status) || WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGABRT);
    hth_fiber_close(c.f);
}

static void test_no_memory(void **state)
{
    hth_fiber *f;
    assert_err(hth_fiber_open(SIZE_MAX / 4, &f), HTH_ENOMEM, "out of memory for a stack");
    assert_null(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns),     cmocka_unit_test(test_often),
        cmocka_unit_test(test_deep),      cmocka_unit_test(test_own),
        cmocka_unit_test(test_team),      cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
