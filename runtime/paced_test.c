// SPDX-License-Identifier: Apache-2.0
#include "runtime/paced.h"

#include "base/thread.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

typedef struct search {
    hth_plan_options *options;
    pthread_t thread;    // that it ran on
    atomic_int polls;    // preemption points meanwhile
    int open;            // .. of them with the gate open
    bool until_ended;    // it goes on until it is to end, ..
    int until_polls;     // .. or for so many points
    const char *refusal; // NULL: none
    bool alone;          // without an account of the thread
} search;

static hth_err search_run(void *arg)
{
    search *s = arg;
    s->thread = pthread_self();
    while (s->until_ended ? *s->options->cancel == 0 : s->polls < s->until_polls) {
    }
    return s->refusal != NULL ? hth_fail(HTH_ETOOBIG, "%s", s->refusal) : HTH_OK;
}

static void search_poll(void *ctx)
{
    search *s = ctx;
    s->open += !s->options->gate->shut;
    (void)hth_fail(HTH_EBUSY, "somebody else's");
    s->polls++;
}

// Runs `s` on a site with a queue, for a request, and checks that the options are as before.
static hth_err search_at(search *s, bool canceled)
{
    hth_plan_options options = {.seed = 5, .cancel = &s->polls};
    hth_work_queue queue = {.poll = search_poll, .ctx = s};
    hth_site site = {.queue = &queue};
    hth_request request = {.canceled = canceled};
    hth_paced paced;
    s->options = &options;
    if (!s->alone) {
        hth_paced_begin(&paced, &site, &request);
    }
    hth_err err = hth_paced_search(&site, s->alone ? &request : NULL, &options, search_run, s);
    assert_ptr_equal(hth_pace_now(), s->alone ? NULL : &paced.pace);
    hth_pace_leave(NULL);
    assert_true(options.seed == 5 && options.cancel == &s->polls && options.gate == NULL);
    assert_int_equal(s->open, 0);
    return err;
}

static void others_compute_meanwhile(void **state)
{
    search s = {.until_polls = 20};
    assert_int_equal(search_at(&s, false), HTH_OK);
    assert_true(s.polls >= 20);
    assert_false(pthread_equal(s.thread, pthread_self()));
}

static void its_refusal_is_passed_on(void **state)
{
    search s = {.refusal = "no plan fits"};
    assert_int_equal(search_at(&s, false), HTH_ETOOBIG);
    assert_string_equal(hth_err_detail(), "no plan fits");
}

static void nobody_wants_it_any_more(void **state)
{
    search s = {.until_ended = true};
    assert_int_equal(search_at(&s, true), HTH_ECANCELED);
    assert_non_null(strstr(hth_err_detail(), "canceled"));
    s.refusal = "no plan fits"; // because it was ended
    assert_int_equal(search_at(&s, true), HTH_ECANCELED);
    s.alone = true;
    assert_int_equal(search_at(&s, true), HTH_ECANCELED);
    assert_non_null(strstr(hth_err_detail(), "canceled"));
}

static void without_a_queue_it_runs_here(void **state)
{
    search s = {.refusal = "no plan fits"};
    hth_plan_options options = {.seed = 5};
    hth_site site = {.queue = NULL};
    s.options = &options;
    assert_int_equal(hth_paced_search(&site, NULL, &options, search_run, &s), HTH_ETOOBIG);
    assert_true(pthread_equal(s.thread, pthread_self()));
    assert_int_equal(hth_paced_search(NULL, NULL, &options, search_run, &s), HTH_ETOOBIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_compute_meanwhile),
        cmocka_unit_test(its_refusal_is_passed_on),
        cmocka_unit_test(nobody_wants_it_any_more),
        cmocka_unit_test(without_a_queue_it_runs_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
