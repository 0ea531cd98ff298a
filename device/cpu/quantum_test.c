// SPDX-License-Identifier: Apache-2.0
// Turns: a thread that keeps its processor has a high priority only where the process allows it and
// the system permits it, and never beyond.
#include "device/cpu/quantum.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static int nice_now(void)
{
    return getpriority(PRIO_PROCESS, (id_t)gettid());
}

static void *nice_here(void *arg)
{
    *(int *)arg = nice_now();
    return NULL;
}

// Of a thread that the calling one starts.
static int nice_of_new(void)
{
    pthread_t t;
    int n = 99;
    assert_int_equal(pthread_create(&t, NULL, nice_here, &n), 0);
    pthread_join(t, NULL);
    return n;
}

// What a thread saw: kept, in a thread that it started, let go of, kept and let go of again.
typedef struct seen {
    int policy, before, nice[5];
} seen;

static void *see(void *arg)
{
    seen *s = arg;
    if (s->before != 0) {
        (void)setpriority(PRIO_PROCESS, (id_t)gettid(), s->before);
    }
    (void)sched_setscheduler(0, s->policy, &(struct sched_param){0});
    hth_quantum_keep(true);
    s->nice[0] = nice_now();
    s->nice[1] = nice_of_new();
    hth_quantum_keep(false);
    s->nice[2] = nice_now();
    hth_quantum_keep(true);
    s->nice[3] = nice_now();
    hth_quantum_keep(false);
    s->nice[4] = nice_now();
    return NULL;
}

static seen seen_by_a_thread(int policy, int before, bool allowed)
{
    seen s = {.policy = policy, .before = before};
    pthread_t t;
    hth_quantum_raise(allowed);
    assert_int_equal(pthread_create(&t, NULL, see, &s), 0);
    pthread_join(t, NULL);
    hth_quantum_raise(false);
    return s;
}

static bool is(seen s, int kept, int usual)
{
    return s.nice[0] == kept && s.nice[1] == usual && s.nice[2] == usual && s.nice[3] == kept &&
           s.nice[4] == usual;
}

static void *may_thread(void *arg)
{
    *(bool *)arg = setpriority(PRIO_PROCESS, (id_t)gettid(), -20) == 0;
    return NULL;
}

static bool may(void)
{
    pthread_t t;
    bool ok = false;
    assert_int_equal(pthread_create(&t, NULL, may_thread, &ok), 0);
    pthread_join(t, NULL);
    return ok;
}

static void turns_rise_where_allowed(void **state)
{
    (void)state;
    assert_true(is(seen_by_a_thread(SCHED_OTHER, 0, false), nice_now(), nice_now()));
    if (nice_now() != 0 || !may()) {
        print_message("# no nice value of -20 here\n");
        skip();
    }
    assert_true(is(seen_by_a_thread(SCHED_OTHER, 0, true), -20, 0));
    assert_true(is(seen_by_a_thread(SCHED_BATCH, 0, true), -20, 0));
}

static void turns_leave_what_was_chosen(void **state)
{
    (void)state;
    assert_true(is(seen_by_a_thread(SCHED_OTHER, 19, true), 19, 19));
    assert_true(is(seen_by_a_thread(SCHED_IDLE, 0, true), nice_now(), nice_now()));
}

// A process without the privilege has no error and no priority.
static void turns_without_permission(void **state)
{
    (void)state;
    if (nice_now() != 0) {
        skip();
    }
    pid_t child = fork();
    if (child == 0) {
        struct rlimit none = {0, 0};
        bool dropped = getuid() != 0 || setresuid(65534, 65534, 65534) == 0;
        bool held = setrlimit(RLIMIT_NICE, &none) == 0;
        hth_quantum_raise(true);
        hth_quantum_keep(true);
        int kept = nice_now();
        hth_quantum_keep(false);
        _exit(dropped && held && kept == 0 && nice_now() == 0 ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_rise_where_allowed),
        cmocka_unit_test(turns_leave_what_was_chosen),
        cmocka_unit_test(turns_without_permission),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
