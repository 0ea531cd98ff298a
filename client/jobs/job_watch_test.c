// SPDX-License-Identifier: Apache-2.0
// How often a job is asked about: the server's answers and the pauses are this test's.
#include "client/query.h"

#include <time.h>

static hth_err answer(hearth *h, const char *what, json_t *args, json_t **doc);
static int pause_for(const struct timespec *time, struct timespec *left);

#define hth_query_document answer
#define nanosleep          pause_for
#include "client/jobs/job_watch.c"
#undef nanosleep

#include "base/test.h"

#define QUIET 20 // answers without an event, before the job ends

static int asked, held_ms;
static long paused_ms;

static hth_err answer(hearth *h, const char *what, json_t *args, json_t **doc)
{
    int n = asked++;
    assert_string_equal(what, "watch");
    held_ms += (int)json_integer_value(json_object_get(args, "wait_ms"));
    *doc = n > 0 && n <= QUIET
               ? json_pack("{s:i, s:[]}", "next", 1, "events")
               : json_pack("{s:i, s:[], s:{s:i, s:s, s:i}}", "next", 1, "events", "job", "id", 7,
                           "state", n == 0 ? "running" : "finished", "step", 3);
    assert_non_null(*doc);
    json_decref(args);
    return HTH_OK;
}

static int pause_for(const struct timespec *time, struct timespec *left)
{
    paused_ms += time->tv_sec * 1000 + time->tv_nsec / 1000000;
    return 0;
}

// However short a call may be, the server is not asked again at once.
static void test_rate(void **state)
{
    static const uint64_t timeout_ms[] = {1, 2, 100, 600, 60000};
    (void)state;
    for (size_t i = 0; i < sizeof timeout_ms / sizeof timeout_ms[0]; i++) {
        hearth h = {.timeout_ms = timeout_ms[i], .forks = hth_forks()};
        hearth_job_info *end;
        asked = held_ms = 0;
        paused_ms = 0;
        pthread_mutex_init(&h.lock, NULL);
        pthread_cond_init(&h.idle, NULL);
        assert_int_equal(hearth_job_wait(&h, (hearth_job){7}, 0, &end), HEARTH_OK);
        assert_int_equal(end->state, HEARTH_JOB_FINISHED);
        hearth_free(end);
        pthread_mutex_destroy(&h.lock);
        pthread_cond_destroy(&h.idle);
        assert_int_equal(asked, QUIET + 2);
        assert_true(held_ms + paused_ms >= QUIET * 100);
        assert_true((uint64_t)held_ms <= (QUIET + 1) * timeout_ms[i] / 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rate)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
