// SPDX-License-Identifier: Apache-2.0
// A rank's exchange as its caller sees it; the engine's end is this test's.
#include "client/jobs/job_exchange.h"

#include "base/clock.h"
#include "base/ipc/memfd.h"
#include "base/ipc/sum_link.h"
#include "base/test.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#define BYTES 4096

typedef struct engine {
    hearth_exchange *exchange;
    int link, fd;
    float *memory;
} engine;

// The job got its end of the socket, whose number the argument says.
static void engine_open(engine *e)
{
    int rank, ranks, fd;
    void *memory;
    assert_int_equal(hearth_exchange_open(1, 3, &e->exchange), HEARTH_OK);
    const char *text = hearth_exchange_argument(e->exchange);
    assert_int_equal(sscanf(text, "{\"rank\":%d,\"ranks\":%d,\"fd\":%d}", &rank, &ranks, &fd), 3);
    assert_int_equal(rank, 1);
    assert_int_equal(ranks, 3);
    assert_true(hth_exchange_follows(e->exchange));
    e->link = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    assert_true(e->link >= 0);
    assert_ok(hth_memfd_make("test", BYTES, &e->fd, &memory));
    e->memory = memory;
}

static void engine_says(const engine *e, hth_sum_message m)
{
    assert_ok(hth_sum_link_send(e->link, &m, m.what == HTH_SUM_HELLO ? e->fd : -1));
}

static void engine_hello(const engine *e)
{
    engine_says(e, (hth_sum_message){.what = HTH_SUM_HELLO, .count = BYTES});
}

static void engine_close(engine *e)
{
    hearth_exchange_close(e->exchange);
    if (e->link >= 0) {
        close(e->link);
    }
    hth_memfd_drop(e->fd, e->memory, BYTES);
}

static void parts_are_the_job_s_memory(void **state)
{
    engine e;
    hearth_exchange_part part;
    hth_sum_message m;
    engine_open(&e);
    assert_int_equal(hearth_exchange_next(e.exchange, 1, &part), HEARTH_ETIMEDOUT);
    engine_hello(&e);
    e.memory[3] = 42;
    engine_says(&e, (hth_sum_message){.what = HTH_SUM_F32, .id = 7, .offset = 12, .count = 2});
    engine_says(&e, (hth_sum_message){.what = HTH_SUM_F64, .id = 8, .offset = 16, .count = 510});
    engine_says(&e,
                (hth_sum_message){.what = HTH_SUM_BROADCAST, .id = 9, .count = BYTES, .root = 2});
    assert_int_equal(hearth_exchange_next(e.exchange, 0, &part), HEARTH_OK);
    assert_int_equal(part.kind, HEARTH_EXCHANGE_SUM_F32);
    assert_int_equal(part.count, 2);
    assert_float_equal(*(float *)part.data, 42, 0);
    *(float *)part.data = 43;
    assert_float_equal(e.memory[3], 43, 0);
    assert_int_equal(hearth_exchange_done(e.exchange, &part), HEARTH_OK);
    assert_ok(hth_sum_link_receive(e.link, 1000000000, &m, NULL));
    assert_int_equal(m.what, HTH_SUM_DONE);
    assert_int_equal(m.id, 7);
    assert_int_equal(hearth_exchange_next(e.exchange, 0, &part), HEARTH_OK);
    assert_int_equal(part.kind, HEARTH_EXCHANGE_SUM_F64);
    assert_int_equal(part.count, 510);
    assert_int_equal(hearth_exchange_next(e.exchange, 0, &part), HEARTH_OK);
    assert_int_equal(part.kind, HEARTH_EXCHANGE_BROADCAST);
    assert_int_equal(part.root, 2);
    engine_close(&e);
    (void)state;
}

static void parts_outside_the_memory_are_refused(void **state)
{
    static const hth_sum_message bad[] = {
        {.what = HTH_SUM_F32, .offset = BYTES - 4, .count = 2},
        {.what = HTH_SUM_F32, .offset = 2, .count = 1},
        {.what = HTH_SUM_F64, .offset = 4, .count = 1},
        {.what = HTH_SUM_F64, .offset = 0, .count = UINT64_MAX / 8 + 2},
        {.what = HTH_SUM_BROADCAST, .offset = BYTES + 1, .count = 0},
        {.what = HTH_SUM_DONE, .count = 1},
        {.what = 99, .count = 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        engine e;
        hearth_exchange_part part;
        engine_open(&e);
        engine_hello(&e);
        engine_says(&e, bad[i]);
        assert_int_equal(hearth_exchange_next(e.exchange, 0, &part), HEARTH_ECORRUPT);
        engine_close(&e);
    }
    (void)state;
}

static void the_end_says_whether_all_have_ended(void **state)
{
    for (int all = 0; all < 2; all++) {
        engine e;
        hearth_exchange_part part;
        engine_open(&e);
        engine_hello(&e);
        engine_says(&e, (hth_sum_message){.what = HTH_SUM_BYE, .count = (uint64_t)all});
        hearth_status want = all ? HEARTH_ENOENT : HEARTH_ECANCELED;
        assert_int_equal(hearth_exchange_next(e.exchange, 0, &part), want);
        assert_int_equal(hearth_exchange_next(e.exchange, 0, &part), want);
        assert_int_equal(hearth_exchange_done(e.exchange, &part), HEARTH_OK);
        engine_close(&e);
    }
    (void)state;
}

static void on_alarm(int signal)
{
    (void)signal;
}

// Signals that the program handles do not end a wait before its time.
static void signals_end_no_wait(void **state)
{
    const struct sigaction act = {.sa_handler = on_alarm};
    const struct itimerval often = {{0, 50000}, {0, 50000}}, never = {{0, 0}, {0, 0}};
    struct sigaction old;
    engine e;
    hearth_exchange_part part;
    engine_open(&e);
    assert_int_equal(sigaction(SIGALRM, &act, &old), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    uint64_t begun_ns = hth_now_ns();
    hearth_status got = hearth_exchange_next(e.exchange, 2000, &part);
    uint64_t took_ns = hth_now_ns() - begun_ns;
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    assert_int_equal(sigaction(SIGALRM, &old, NULL), 0);
    assert_int_equal(got, HEARTH_ETIMEDOUT);
    assert_string_equal(hearth_error(), "nothing to sum for 2000 ms");
    assert_true(took_ns >= 2000000000u);
    engine_close(&e);
    (void)state;
}

// A job that ends does not read its last answer: what it said before counts all the same.
static void what_was_said_before_the_end_is_heard(void **state)
{
    engine e;
    hearth_exchange_part part;
    engine_open(&e);
    engine_hello(&e);
    engine_says(&e, (hth_sum_message){.what = HTH_SUM_BROADCAST, .id = 1, .count = 8});
    assert_int_equal(hearth_exchange_next(e.exchange, 0, &part), HEARTH_OK);
    assert_int_equal(hearth_exchange_done(e.exchange, &part), HEARTH_OK);
    engine_says(&e, (hth_sum_message){.what = HTH_SUM_BYE, .count = 1});
    close(e.link);
    e.link = -1;
    assert_int_equal(hearth_exchange_next(e.exchange, 0, &part), HEARTH_ENOENT);
    engine_close(&e);
    (void)state;
}

static void a_job_that_goes_says_so(void **state)
{
    engine e;
    hearth_exchange_part part;
    engine_open(&e);
    assert_int_equal(hearth_exchange_next(e.exchange, 1, &part), HEARTH_ETIMEDOUT);
    close(e.link); // it was refused
    e.link = -1;
    assert_int_equal(hearth_exchange_next(e.exchange, 0, &part), HEARTH_ECANCELED);
    assert_non_null(strstr(hearth_error(), "before its first step"));
    engine_close(&e);
    (void)state;
}

// An engine process that was started again has other memory, and the others' sums are lost.
static void a_job_that_begins_again_is_refused(void **state)
{
    engine e;
    hearth_exchange_part part;
    engine_open(&e);
    engine_hello(&e);
    engine_hello(&e);
    assert_int_equal(hearth_exchange_next(e.exchange, 0, &part), HEARTH_ECANCELED);
    engine_close(&e);
    (void)state;
}

static void failing_tells_the_job(void **state)
{
    engine e;
    hth_sum_message m;
    engine_open(&e);
    hearth_exchange_fail(e.exchange, "node 3 is down");
    assert_ok(hth_sum_link_receive(e.link, 1000000000, &m, NULL));
    assert_int_equal(m.what, HTH_SUM_FAILED);
    assert_string_equal(m.text, "node 3 is down");
    engine_close(&e);
    (void)state;
}

#define ANSWERS 2000 // more than a socket holds

// Reads nothing before there is no room left.
static void *reads_late(void *arg)
{
    const engine *e = arg;
    hth_sum_message m;
    struct pollfd p = {.fd = hearth_exchange_fd(e->exchange), .events = POLLOUT};
    while (poll(&p, 1, 0) > 0) {
        sched_yield();
    }
    for (uint64_t i = 0; i < ANSWERS; i++) {
        while (hth_sum_link_receive(e->link, 1000000000, &m, NULL) == HTH_ETIMEDOUT) {
        }
        assert_int_equal(m.id, i);
    }
    return NULL;
}

static void no_answer_is_lost_to_a_job_that_computes(void **state)
{
    engine e;
    pthread_t thread;
    engine_open(&e);
    assert_int_equal(pthread_create(&thread, NULL, reads_late, &e), 0);
    for (uint64_t i = 0; i < ANSWERS; i++) {
        const hearth_exchange_part part = {.id = i};
        assert_int_equal(hearth_exchange_done(e.exchange, &part), HEARTH_OK);
    }
    pthread_join(thread, NULL);
    engine_close(&e);
    (void)state;
}

static hth_err open_once(void)
{
    hearth_exchange *exchange;
    hearth_status s = hearth_exchange_open(0, 1, &exchange);
    hearth_exchange_close(exchange);
    return (hth_err)s;
}

static void no_memory_is_an_error(void **state)
{
    FAULT_LOOP(open_once());
    hearth_exchange *exchange;
    assert_int_equal(hearth_exchange_open(0, 17, &exchange), HEARTH_EINVAL);
    assert_null(exchange);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_the_job_s_memory),
        cmocka_unit_test(parts_outside_the_memory_are_refused),
        cmocka_unit_test(the_end_says_whether_all_have_ended),
        cmocka_unit_test(signals_end_no_wait),
        cmocka_unit_test(what_was_said_before_the_end_is_heard),
        cmocka_unit_test(a_job_that_goes_says_so),
        cmocka_unit_test(a_job_that_begins_again_is_refused),
        cmocka_unit_test(failing_tells_the_job),
        cmocka_unit_test(no_answer_is_lost_to_a_job_that_computes),
        cmocka_unit_test(no_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
