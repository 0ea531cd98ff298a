// SPDX-License-Identifier: Apache-2.0
// A group's lead that is brought to a whole step while one is certain: two members on this thread,
// so that the test says who is how far.
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

// A dataset of STEPS batches whose third has a target that is not a number.
static void lost_data(const training *t, char *path, const char *dir)
{
    writer w = {NULL, NULL, 0};
    add_batches(&w, "x", t->x, t->x_rank, t->x_classes, 0);
    size_t before = w.bytes;
    add_batches(&w, "y", t->y, t->y_rank, t->y_classes, t->y_seed);
    float *y = (float *)(void *)(w.data + before);
    y[2 * (w.bytes - before) / sizeof *y / STEPS] = NAN;
    sprintf(path, "%s/lost.safetensors", dir);
    writer_close(&w, path);
}

static void pair_open(pair *p)
{
    char data[200];
    double want[STEPS];
    rig_make(&p->r, &mlp, BATCH, HTH_POLICY_HEARTH);
    lost_data(&mlp, data, p->r.dir);
    json_t *args = arguments_of(&mlp, data,
                                "{\"model\": \"net\", \"members\": 2, \"on\": \"all\", "
                                "\"checkpoint-every\": 1}",
                                want);
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
    pair_open(&p);
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_lost_step_is_not_saved)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
