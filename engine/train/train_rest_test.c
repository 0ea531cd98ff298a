// SPDX-License-Identifier: Apache-2.0
// Jobs that are brought to a whole step: a group's lead while one is certain, two members on this
// thread, so that the test says who is how far; and jobs that get another budget, between two
// epochs or when memory is short.
#include "engine/train/train_group_impl.h"
#include "tests/rig/trainer_rig.h"

#include "base/clock.h"

#define LIMIT_NS 60000000000u

typedef struct pair {
    rig r; // what both have of an engine
    int fd;
    char *args;
    hth_request request[2];
    hth_train_job *job[2]; // the lead's first
} pair;

// A dataset of STEPS batches; lost: whose third has a target that is not a number.
static void write_data(const training *t, char *path, const char *dir, bool lost)
{
    writer w = {NULL, NULL, 0};
    add_batches(&w, "x", t->x, t->x_rank, t->x_classes, 0);
    size_t before = w.bytes;
    add_batches(&w, "y", t->y, t->y_rank, t->y_classes, t->y_seed);
    float *y = (float *)(void *)(w.data + before);
    if (lost) {
        y[2 * (w.bytes - before) / sizeof *y / STEPS] = NAN;
    }
    sprintf(path, "%s/data.safetensors", dir);
    writer_close(&w, path);
}

static void pair_open(pair *p, const char *more, bool lost)
{
    char data[200];
    double want[STEPS];
    rig_make(&p->r, &mlp, BATCH, HTH_POLICY_HEARTH);
    write_data(&mlp, data, p->r.dir, lost);
    json_t *args = arguments_of(&mlp, data, more, want);
    p->args = json_dumps(args, JSON_COMPACT);
    json_decref(args);
    assert_ok(hth_group_make(2, &p->fd));
    for (int i = 0; i < 2; i++) {
        p->request[i] = (hth_request){.command = HTH_COMMAND_TRAIN,
                                      .arguments = p->args,
                                      .member = 1 + i,
                                      .files = {p->fd},
                                      .n_files = 1};
        assert_ok(
            hth_train_job_open(&p->r.models, &p->request[i], (hth_train_events){0}, &p->job[i]));
    }
}

static void pair_close(pair *p)
{
    for (int i = 0; i < 2; i++) {
        hth_train_job_free(p->job[i]);
    }
    close(p->fd);
    free(p->args);
    rig_close(&p->r);
}

static void slice(pair *p, int i)
{
    bool done;
    if (hth_train_job_slice(p->job[i], &done) != HTH_OK) {
        fail_msg("member %d: %s", i, hth_err_detail());
    }
    assert_false(done);
}

static bool passed(const pair *p, int i, int64_t step)
{
    const hth_train_group *group = p->job[i]->group;
    return group->at_work && group->passed && group->round.step == step;
}

// Until both have made their parts of the round of that step, and neither has looked since.
static void until_passed(pair *p, int64_t step)
{
    uint64_t until = hth_real_after(LIMIT_NS);
    while (!passed(p, 0, step) || !passed(p, 1, step)) {
        assert_true(hth_real_ns() < until);
        for (int i = 0; i < 2; i++) {
            if (!passed(p, i, step)) {
                slice(p, i);
            }
        }
    }
}

// The checkpoint of step 2 leads to parameters that are not finite, which the other member has
// found out. The lead neither takes that step for a proof of the checkpoint nor saves what comes of
// it: it ends, with the checkpoint before.
static void a_lost_step_is_not_saved(void **state)
{
    static const char why[] = "step 3: '4.weight' gets elements that are not finite: training "
                              "stops, the checkpoint of step 1 is kept";
    pair p;
    bool done;
    pair_open(&p, "{\"model\": \"net\", \"members\": 2, \"on\": \"all\", \"checkpoint-every\": 1}",
              true);
    until_passed(&p, 2);
    slice(&p, 0); // its part of the sums is there
    assert_true(passed(&p, 0, 2));
    assert_int_equal(hth_train_job_slice(p.job[1], &done), HTH_EINVAL); // and all the others
    assert_int_equal(hth_train_job_saved(p.job[0]), 2);
    for (int i = 0; i < 2; i++) { // however often
        assert_int_equal(hth_train_job_save(p.job[0]), HTH_EINVAL);
        assert_string_equal(hth_err_detail(), why);
    }
    assert_int_equal(hth_train_job_slice(p.job[0], &done), HTH_EINVAL);
    assert_string_equal(hth_err_detail(), why);
    assert_int_equal(hth_train_job_saved(p.job[0]), 1);
    pair_close(&p);
}

static void until_made(pair *p, int64_t step)
{
    uint64_t until = hth_real_after(LIMIT_NS);
    while (p->job[0]->step < step || p->job[1]->step < step) {
        assert_true(hth_real_ns() < until);
        for (int i = 0; i < 2; i++) {
            if (p->job[i]->step < step) {
                slice(p, i);
            }
        }
    }
}

// A budget that comes after an epoch's last batch, which was shorter, is for the whole ones.
static void a_budget_is_for_whole_batches(void **state)
{
    pair p;
    pair_open(&p,
              "{\"model\": \"net\", \"members\": 2, \"on\": \"all\", \"epochs\": 3, "
              "\"batch\": 20, \"shards\": [[0, 13, 7]]}",
              false);
    until_made(&p, 2);
    assert_true(p.job[0]->group->round.n < 13 && p.job[1]->group->round.n < 7);
    double peak = json_number_value(json_object_get(p.job[0]->memory, "unconstrained_bytes"));
    assert_true(peak > 0);
    for (int i = 0; i < 2; i++) {
        assert_ok(hth_train_job_budget(p.job[i], "100%"));
        assert_int_equal(p.job[i]->planned, i == 0 ? 13 : 7);
    }
    double now = json_number_value(json_object_get(p.job[0]->memory, "unconstrained_bytes"));
    assert_true(now == peak);
    until_made(&p, 4);
    pair_close(&p);
}

typedef struct alone {
    rig r;
    char *args;
    hth_request request;
    hth_train_job *job;
    void *taken[64]; // by others
    int n_taken;
} alone;

static void alone_open(alone *a)
{
    char data[200];
    double want[STEPS];
    bool done;
    memset(a, 0, sizeof *a);
    rig_make(&a->r, &mlp, BATCH, HTH_POLICY_HEARTH);
    write_data(&mlp, data, a->r.dir, false);
    json_t *args = arguments_of(&mlp, data, "{\"model\": \"net\", \"budget\": \"100%\"}", want);
    a->args = json_dumps(args, JSON_COMPACT);
    json_decref(args);
    a->request = (hth_request){.command = HTH_COMMAND_TRAIN, .arguments = a->args};
    assert_ok(hth_train_job_open(&a->r.models, &a->request, (hth_train_events){0}, &a->job));
    assert_ok(hth_train_job_slice(a->job, &done));
}

static void alone_close(alone *a)
{
    hth_train_job_free(a->job);
    for (int i = 0; i < a->n_taken; i++) {
        hth_pool_free(a->r.site.pool, a->taken[i]);
    }
    free(a->args);
    rig_close(&a->r);
}

// take_rest takes all of the device's memory while the job has none.
static void take_rest(void *ctx)
{
    alone *a = ctx;
    hth_pool_ledger l;
    if (a->job->trainer->memory != NULL) {
        return;
    }
    hth_pool_ledger_get(a->r.site.pool, &l);
    while (l.largest_free_bytes > 0) {
        assert_true(a->n_taken < 64);
        assert_ok(hth_pool_alloc(a->r.site.pool, l.largest_free_bytes, HTH_POOL_WEIGHT,
                                 &a->taken[a->n_taken++]));
        hth_pool_ledger_get(a->r.site.pool, &l);
    }
}

// While a job is planned for another budget somebody else gets its memory. It has ended: whatever
// is asked of it is answered with that.
static void the_memory_is_gone(void **state)
{
    bool taken = false;
    for (uint64_t nth = 1; !taken; nth += 3) {
        alone a;
        bool done;
        alone_open(&a);
        hth_fault_call(nth, take_rest, &a);
        hth_err err = hth_train_job_budget(a.job, "90%");
        hth_fault_call(0, NULL, NULL);
        taken = a.n_taken > 0;
        if (taken) {
            assert_int_not_equal(err, HTH_OK);
            assert_non_null(strstr(hth_err_detail(), "is not free any more"));
            assert_err(hth_train_job_save(a.job), err, "another budget was refused");
            assert_err(hth_train_job_slice(a.job, &done), err, "another budget was refused");
        }
        alone_close(&a);
    }
}

// A budget that is refused for want of the host's memory is not the job's, whenever that happens.
static void a_refused_budget_is_not_kept(void **state)
{
    alone a;
    bool done;
    hth_err err = HTH_ENOMEM;
    int refused = 0;
    alone_open(&a);
    for (uint64_t nth = 1; err != HTH_OK; nth++) {
        hth_fault_alloc(nth);
        err = hth_train_job_budget(a.job, "90%");
        hth_fault_alloc(0);
        const char *now = json_string_value(json_object_get(a.job->args, "budget"));
        assert_string_equal(now, err == HTH_OK ? "90%" : "100%");
        assert_string_equal(a.job->spec.budget, now);
        assert_true(a.job->trainer->current >= 0);
        refused += err != HTH_OK;
    }
    assert_true(refused > 10);
    assert_ok(hth_train_job_slice(a.job, &done));
    alone_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_step_is_not_saved),
        cmocka_unit_test(a_budget_is_for_whole_batches),
        cmocka_unit_test(the_memory_is_gone),
        cmocka_unit_test(a_refused_budget_is_not_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
