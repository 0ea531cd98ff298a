// SPDX-License-Identifier: Apache-2.0
// Who serves beside a training step sees the step's end, whenever it comes.
#include "engine/serve/train_overlap.h"
#include "base/test.h"

#include <unistd.h>

typedef struct late {
    hth_device device;
    hth_site site;
    hth_models models;
    hth_serve serve;
    hth_train_overlap beside;
    atomic_bool go, woken;
    int slept;
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
    l->go = true;
    while (!l->woken) {
        usleep(100);
    }
    l->woken = false;
    return NULL;
}

static bool late_wait(void *ctx, uint64_t ns)
{
    late *l = ctx;
    l->slept += !l->woken;
    return true;
}

static hth_err late_step(void *arg)
{
    late *l = arg;
    while (!l->go) {
        usleep(100);
    }
    return HTH_OK;
}

static void test_end_in_a_look(void **state)
{
    late l = {.device.props = {.inline_compute = true, .n_threads = 1}};
    l.site.device = &l.device;
    l.models.site = &l.site;
    l.serve = (hth_serve){
        .ms = &l.models, .mail = late_mail, .wait = late_wait, .wake = late_wake, .ctx = &l};
    l.serve.await.ms = &l.models;
    l.beside.serve = &l.serve;
    hth_train_overlap_init(&l.beside);
    for (int i = 0; i < 5; i++) {
        l.go = l.woken = false;
        assert_ok(hth_site_beside(&l.site, late_step, &l));
    }
    assert_int_equal(l.slept, 0);
    hth_train_overlap_fini(&l.beside);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_end_in_a_look)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
