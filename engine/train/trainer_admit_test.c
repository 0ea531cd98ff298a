// SPDX-License-Identifier: Apache-2.0
// What a job has of the device, no other one is given: its block, and the weights that it does not
// train.
#include "runtime/ledger.h"
#include "tests/rig/trainer_rig.h"

#define SAMPLES 4

// What the step's frozen weights take that are packed; the others are the store's mapping.
static uint64_t frozen_bytes(const rig *r)
{
    const hth_program *p = hth_trainer_program(r->t);
    uint64_t bytes = 0;
    for (int i = 0; i < p->n_weights; i++) {
        bytes += p->weights[i].in_place ? 0 : hth_plan_round(p->weights[i].bytes);
    }
    return bytes;
}

// Another job asks for `bytes`.
static hth_err second_prepare(rig *r, uint64_t bytes)
{
    char budget[24];
    hth_train_spec spec = r->spec;
    hth_trainer *t;
    snprintf(budget, sizeof budget, "%llu", (unsigned long long)bytes);
    spec.budget = budget;
    assert_ok(hth_trainer_open(&r->models, &spec, NULL, &t));
    hth_err err = hth_trainer_prepare(t, &r->input, &r->target);
    if (err == HTH_OK) {
        float loss;
        assert_ok(hth_trainer_step(t, &r->input, &r->target, &loss));
        rig_step(r); // in turns
    }
    hth_trainer_close(t);
    return err;
}

// Between two steps nobody uses the weights, and they may leave the device; but another job is not
// given their room, with which the next step would fail.
static void test_frozen_weights(void **state)
{
    rig r;
    hth_ledger l;
    rig_make(&r, &encoder, SAMPLES, HTH_POLICY_HEARTH);
    r.spec.freeze[0] = "l.*";
    r.spec.options.freeze = r.spec.freeze;
    r.spec.options.n_freeze = 1;
    uint64_t all = r.site.device->props.budget_bytes;
    rig_prepare(&r);
    rig_step(&r);
    uint64_t frozen = frozen_bytes(&r), rest = all - r.t->memory_bytes;
    assert_true(frozen > 0);
    assert_err(second_prepare(&r, rest), HTH_ENODEVMEM, "other jobs leave");
    assert_ok(second_prepare(&r, rest - frozen));
    assert_int_equal(hth_job_memory_rest(&r.site, NULL), rest - frozen);
    assert_int_equal(hth_job_memory_models(&r.site), rest - frozen);
    assert_int_equal(hth_job_memory_rest(&r.site, &r.t->share), all); // its own plans have them
    assert_ok(hth_ledger_read(&r.site, &l));
    assert_int_equal(l.job_bytes, r.t->memory_bytes); // there they are weights, as they were
    assert_int_equal(l.difference, 0);
    hth_ledger_fini(&l);
    assert_ok(hth_trainer_replan(r.t)); // it is paused
    assert_int_equal(hth_job_memory_rest(&r.site, NULL), all);
    rig_close(&r);
}

// Two jobs on one frozen model have one copy of it: it is kept from a third one once.
static void test_frozen_once(void **state)
{
    rig r;
    hth_trainer *t;
    float loss;
    rig_make(&r, &encoder, SAMPLES, HTH_POLICY_HEARTH);
    r.spec.freeze[0] = "l.*";
    r.spec.options.freeze = r.spec.freeze;
    r.spec.options.n_freeze = 1;
    uint64_t all = r.site.device->props.budget_bytes;
    rig_prepare(&r);
    uint64_t frozen = frozen_bytes(&r);
    assert_ok(hth_trainer_open(&r.models, &r.spec, NULL, &t));
    assert_ok(hth_trainer_prepare(t, &r.input, &r.target));
    for (int i = 0; i < 2; i++) {
        rig_step(&r);
        assert_int_equal(hth_job_memory_rest(&r.site, NULL),
                         all - r.t->memory_bytes - t->memory_bytes - frozen);
        assert_ok(hth_trainer_step(t, &r.input, &r.target, &loss));
    }
    assert_int_equal(hth_job_memory_rest(&r.site, &t->share), all - r.t->memory_bytes - frozen);
    assert_int_equal(hth_job_memory_rest(&r.site, &r.t->share), all - t->memory_bytes - frozen);
    hth_trainer_close(t);
    assert_int_equal(hth_job_memory_rest(&r.site, NULL), all - r.t->memory_bytes - frozen);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frozen_weights),
        cmocka_unit_test(test_frozen_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
