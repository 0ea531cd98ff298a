// SPDX-License-Identifier: Apache-2.0
// Who serves beside a training step sees the step's end, whenever it comes.
#include "engine/serve/serve.h"
#include "base/test.h"

#include <unistd.h>

typedef struct late {
    hth_device device;
    hth_site site;
    hth_models models;
    hth_serve serve;
    atomic_bool go, woken;
    int slept, steps;
} late;

static void late_wake(void *ctx)
{
    ((late *)ctx)->woken = true;
}

// A message comes, the step ends, and taking the message takes the wake-up with it. It was refused
// at once: there is nothing to run.
static hth_request *late_mail(void *ctx)
{
    late *l = ctx;
    bool away = l->serve.work[HTH_SERVE_JOBS].work.away;
    l->go = away;
    while (away && !l->woken) {
        usleep(100);
    }
    l->woken = false;
    return NULL;
}

static hth_err late_step(void *arg)
{
    late *l = arg;
    while (!l->go) {
        usleep(100);
    }
    return HTH_OK;
}

static bool late_due(void *ctx)
{
    return ((late *)ctx)->steps < 5;
}

static bool late_job(void *ctx)
{
    late *l = ctx;
    l->go = l->woken = false;
    assert_ok(hth_work_elsewhere(l->site.queue, late_step, l));
    l->steps++;
    return true;
}

static void test_end_in_a_look(void **state)
{
    late l = {.device.props = {.inline_compute = true, .n_threads = 1}};
    uint64_t wake_ns;
    l.site.device = &l.device;
    l.models.site = &l.site;
    l.serve = (hth_serve){.ms = &l.models,
                          .mail = late_mail,
                          .wake = late_wake,
                          .due = late_due,
                          .job = late_job,
                          .ctx = &l};
    hth_serve_init(&l.serve);
    while (l.steps < 5) {
        bool away = l.serve.work[HTH_SERVE_JOBS].work.away;
        l.slept += !hth_serve_iterate(&l.serve, false, &wake_ns) && away;
    }
    assert_int_equal(l.slept, 0);
    hth_serve_fini(&l.serve);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_end_in_a_look)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
