// SPDX-License-Identifier: Apache-2.0
// A job gets more memory, and gives it back, between two steps: no bit of a loss or of its state
// changes, and whatever fails leaves it as it was. No other job is given the memory that it has,
// its frozen weights included.
#include "runtime/ledger.h"
#include "tests/rig/trainer_rig.h"

#include <limits.h>

#define SAMPLES 16
#define MANY    INT64_C(1000000000) // steps that are left: any gain is worth it

static uint64_t most_bytes; // of a batch in one part, where memory is no matter

static void rig_open_within(rig *r, uint64_t budget_bytes, int64_t parts, bool replan)
{
    static char budget[24]; // of both trainers that are open
    snprintf(budget, sizeof budget, "%llu", (unsigned long long)budget_bytes);
    rig_make(r, &unet, SAMPLES, HTH_POLICY_HEARTH);
    r->t->parts = parts;
    r->spec.budget = budget_bytes > 0 ? budget : NULL;
    r->spec.replan = r->t->replan.on = replan;
    rig_prepare(r);
}

static int most_open(void **state)
{
    rig r;
    rig_open_within(&r, 0, 1, false);
    most_bytes = r.t->memory_bytes;
    rig_close(&r);
    return 0;
}

static void rig_open(rig *r, int64_t parts, bool replan)
{
    rig_open_within(r, most_bytes / 4 * 3, parts, replan);
}

// At which budget the faster plan needs more memory depends on this machine's algorithms: `check`
// gets less and less until it says that its plan does. Too little for any plan fails.
static void for_a_budget(bool (*check)(uint64_t budget_bytes, int64_t parts), int64_t parts)
{
    uint64_t bytes = most_bytes / (uint64_t)parts;
    while (!check(bytes, parts)) {
        bytes -= bytes / 16;
    }
}

// until_resized waits for the search and says what became of it.
static hth_err until_resized(rig *r)
{
    hth_err err;
    while (!hth_trainer_resized(r->t, &err)) {
        usleep(1000);
    }
    return err;
}

static uint64_t used_bytes(const rig *r)
{
    hth_pool_ledger ledger;
    hth_pool_ledger_get(r->site.pool, &ledger);
    return ledger.used_bytes[HTH_POOL_ARENA];
}

static void same_steps(rig *a, rig *b, int n)
{
    for (int i = 0; i < n; i++) {
        float x = rig_step(a), y = rig_step(b);
        assert_memory_equal(&x, &y, sizeof x);
    }
}

// No search for better plans stands in the way.
static void calm(rig *r)
{
    r->t->replan.refined = true;
    r->t->replan.corrections = INT_MAX;
}

// Its plan seems to be so slow that any plan for more memory is worth it, whatever this machine's
// speeds are.
static void seem_slow(rig *r)
{
    hth_trainer_shape *s = &r->t->shapes[0];
    (r->t->parts > 1 ? s->add.program : s->apply.program)->plan->predicted_us *= 2;
}

// check_resized returns false where the faster plan takes no more memory: what the other step of a
// batch in parts takes has room for it.
static bool check_resized(uint64_t budget_bytes, int64_t parts)
{
    rig a, b;
    rig_open_within(&a, budget_bytes, parts, false);
    rig_open_within(&b, budget_bytes, parts, true);
    calm(&b);
    same_steps(&a, &b, 2);
    seem_slow(&b);
    uint64_t had_bytes = b.t->memory_bytes;
    double had_us = hth_trainer_predicted_us(b.t);
    assert_ok(hth_trainer_more(b.t, MANY));
    assert_err(hth_trainer_more(b.t, MANY), HTH_EBUSY, "measured or planned");
    same_steps(&a, &b, 2); // while the search goes on
    assert_ok(until_resized(&b));
    assert_true(b.t->memory_bytes >= had_bytes && used_bytes(&b) == b.t->memory_bytes);
    assert_true(hth_trainer_predicted_us(b.t) < had_us);
    same_steps(&a, &b, 3);
    bool more = b.t->memory_bytes > had_bytes;
    if (parts == 1) { // its plan has no copies any more
        assert_err(hth_trainer_more(b.t, MANY), HTH_ENOTSUP, "would not make the job faster");
    }
    hth_err err = more ? HTH_ETOOBIG : HTH_OK;
    while (err == HTH_ETOOBIG) { // where processors are busy a search may find none in its time
        assert_ok(hth_trainer_less(b.t, had_bytes));
        err = until_resized(&b);
    }
    assert_ok(err);
    assert_true(b.t->memory_bytes <= had_bytes && used_bytes(&b) == b.t->memory_bytes);
    same_steps(&a, &b, 3);
    print_message("# %d parts: %.0f us in %llu bytes, then %llu\n", (int)parts, had_us,
                  (unsigned long long)had_bytes, (unsigned long long)b.t->memory_bytes);
    rig_same_state(&a, &b);
    rig_close(&a);
    rig_close(&b);
    return more;
}

static void same_bits(void **state)
{
    for_a_budget(check_resized, 1);
    for_a_budget(check_resized, 2);
}

static void refused(void **state)
{
    rig r;
    rig_open(&r, 1, false);
    assert_err(hth_trainer_less(r.t, 1), HTH_ENOTSUP, "--replan off");
    assert_err(hth_trainer_more(r.t, MANY), HTH_ENOTSUP, "would not make the job faster");
    rig_close(&r);
    rig_open(&r, 1, true);
    calm(&r);
    assert_err(hth_trainer_more(r.t, 1), HTH_ENOTSUP, "would not make the job faster");
    assert_err(hth_trainer_less(r.t, r.t->memory_bytes), HTH_ENOTSUP, "need");
    uint64_t had_bytes = r.t->memory_bytes;
    seem_slow(&r);
    assert_ok(hth_trainer_more(r.t, MANY));
    hth_trainer_keep_size(r.t);
    assert_int_equal(until_resized(&r), HTH_ENOTSUP);
    while (r.t->replan.searching) { // a step ends it
        rig_step(&r);
    }
    r.t->replan.stop = 1; // as hth_trainer_more ends a search in the memory that there is
    hth_trainer_keep_size(r.t);
    assert_int_equal(r.t->replan.stop, 1);
    hth_trainer_evaluates(r.t, 2 * most_bytes); // no plan leaves so much
    hth_err err = HTH_ETOOBIG;
    seem_slow(&r);
    while (err == HTH_ETOOBIG) { // as in check_resized
        assert_ok(hth_trainer_more(r.t, MANY));
        err = until_resized(&r);
    }
    assert_err(err, HTH_ENOTSUP, "too little for evaluations");
    r.t->eval_bytes = 0;
    assert_ok(hth_trainer_less(r.t, HTH_PLAN_ALIGN)); // there is no such plan
    assert_int_equal(until_resized(&r), HTH_ETOOBIG);
    assert_true(r.t->memory_bytes == had_bytes);
    rig_step(&r);
    rig_close(&r);
}

// check_gone returns false where the faster plan takes no more memory.
static bool check_gone(uint64_t budget_bytes, int64_t parts)
{
    rig a, b;
    void *other;
    hth_pool_ledger ledger;
    rig_open_within(&a, budget_bytes, parts, false);
    rig_open_within(&b, budget_bytes, parts, true);
    calm(&b);
    same_steps(&a, &b, 2);
    uint64_t had_bytes = b.t->memory_bytes;
    seem_slow(&b);
    assert_ok(hth_trainer_more(b.t, MANY));
    hth_pool_ledger_get(b.site.pool, &ledger);
    assert_ok(hth_pool_alloc(b.site.pool, ledger.largest_free_bytes, HTH_POOL_WEIGHT, &other));
    hth_err err = until_resized(&b);
    bool more = err != HTH_OK || b.t->memory_bytes > had_bytes;
    if (more) {
        assert_int_equal(err, HTH_ENODEVMEM);
        assert_true(b.t->memory_bytes == had_bytes && used_bytes(&b) == had_bytes);
        same_steps(&a, &b, 3);
    }
    hth_pool_free(b.site.pool, other);
    if (more) {
        assert_ok(hth_trainer_more(b.t, MANY));
        assert_ok(until_resized(&b));
        same_steps(&a, &b, 2);
    }
    rig_same_state(&a, &b);
    rig_close(&a);
    rig_close(&b);
    return more;
}

// Somebody else has taken the memory when the plan is found: the job has its old block again.
static void memory_is_gone(void **state)
{
    for_a_budget(check_gone, 1);
}

// Each allocation of changing over fails once: the job goes on with its bits.
static void no_host_memory(void **state)
{
    rig a, b;
    hth_err err = HTH_ENOMEM;
    rig_open(&a, 1, false);
    rig_open(&b, 1, true);
    calm(&b);
    seem_slow(&b);
    same_steps(&a, &b, 2);
    for (uint64_t nth = 1; err != HTH_OK; nth++) {
        assert_ok(hth_trainer_more(b.t, MANY));
        while (!b.t->replan.done) {
            usleep(1000);
        }
        hth_fault_alloc(nth);
        assert_true(hth_trainer_resized(b.t, &err));
        hth_fault_alloc(0);
        assert_true(err == HTH_OK || err == HTH_ENOMEM);
        same_steps(&a, &b, 1);
    }
    rig_same_state(&a, &b);
    rig_close(&a);
    rig_close(&b);
}

// A job that trains none of the encoder's layers.
static void rig_open_frozen(rig *r)
{
    rig_make(r, &encoder, SAMPLES, HTH_POLICY_HEARTH);
    r->spec.freeze[0] = "l.*";
    r->spec.options.freeze = r->spec.freeze;
    r->spec.options.n_freeze = 1;
    rig_prepare(r);
}

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
static void frozen_weights(void **state)
{
    rig r;
    hth_ledger l;
    rig_open_frozen(&r);
    uint64_t all = r.site.device->props.budget_bytes;
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

static bool has_form(const hth_program *p, const hth_weight *w)
{
    bool has = false;
    for (int i = 0; i < p->n_weights && !has; i++) {
        const hth_weight *v = &p->weights[i];
        has = !v->in_place && hth_id_equal(&v->content->id, &w->content->id) &&
              strcmp(v->form, w->form) == 0;
    }
    return has;
}

// What a step's packed weights take that another step does not have in the same form.
static uint64_t own_bytes(const hth_trainer *t, const hth_trainer *other)
{
    const hth_program *p = hth_trainer_program(t), *q = hth_trainer_program(other);
    uint64_t bytes = 0;
    for (int i = 0; i < p->n_weights; i++) {
        const hth_weight *w = &p->weights[i];
        bytes += !w->in_place && !has_form(q, w) ? hth_plan_round(w->bytes) : 0;
    }
    return bytes;
}

// Two jobs on one frozen model have one copy of it: it is kept from a third one once.
static void frozen_once(void **state)
{
    rig r;
    hth_trainer *t;
    float loss;
    rig_open_frozen(&r);
    uint64_t all = r.site.device->props.budget_bytes;
    uint64_t frozen = frozen_bytes(&r);
    assert_ok(hth_trainer_open(&r.models, &r.spec, NULL, &t));
    assert_ok(hth_trainer_prepare(t, &r.input, &r.target));
    uint64_t more = own_bytes(t, r.t); // forms may differ
    assert_true(own_bytes(r.t, t) < frozen);
    for (int i = 0; i < 2; i++) {
        rig_step(&r);
        assert_int_equal(hth_job_memory_rest(&r.site, NULL),
                         all - r.t->memory_bytes - t->memory_bytes - frozen - more);
        assert_ok(hth_trainer_step(t, &r.input, &r.target, &loss));
    }
    assert_int_equal(hth_job_memory_rest(&r.site, &t->share), all - r.t->memory_bytes - frozen);
    hth_trainer_close(t);
    assert_int_equal(hth_job_memory_rest(&r.site, NULL), all - r.t->memory_bytes - frozen);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),      cmocka_unit_test(refused),
        cmocka_unit_test(memory_is_gone), cmocka_unit_test(no_host_memory),
        cmocka_unit_test(frozen_weights), cmocka_unit_test(frozen_once),
    };
    return cmocka_run_group_tests(tests, most_open, NULL);
}
