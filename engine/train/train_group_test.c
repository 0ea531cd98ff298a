// SPDX-License-Identifier: Apache-2.0
// The turns of groups with sync-bn, seen in the store's holds. The test stands for the router: a
// group of two members, each a request to an engine of its own.
#include "engine/local/local.h"
#include "engine/train/train_group_impl.h"
#include "modelstore/hold.h"
#include "tests/rig/train_job.h"

#include "base/clock.h"

#define LIMIT_NS 60000000000u

typedef struct rig {
    fixture f; // its engine is the lead's
    hth_engine *other;
    char *args;
    int group;
    call lead, member;
} rig;

// What others computed is no time of a pass, and neither are waits: where both are the same time, a
// pass has taken none that is known.
static void time_of_a_pass(void **state)
{
    hth_trainer t = {.run_ns = 10000000, .aside_ns = 15000000};
    assert_true(hth_trainer_pass_us(&t) == 0);
    t.aside_ns = 4000000;
    assert_true(hth_trainer_pass_us(&t) == 6000);
}

static void until_held(const rig *r, const char *what, bool held)
{
    uint64_t until = hth_real_after(LIMIT_NS);
    for (bool is = !held; is != held;) {
        int fd;
        hth_err err = hth_store_hold(r->f.store, what, true, &fd);
        assert_true(err == HTH_OK || err == HTH_EBUSY);
        hth_store_hold_end(r->f.store, what, fd);
        is = err == HTH_EBUSY;
        if (is != held && hth_real_ns() > until) {
            fail_msg("'%s' is %s", what, is ? "held" : "not held");
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static void engine_open(const char *device, hth_store *store, hth_engine **out)
{
    hth_engine_config config = {.device = device, .inner = true};
    assert_ok(hth_local_open(&config, store, out));
}

static void member_start(rig *r, hth_engine *engine, int member, call *c)
{
    *c = (call){.r = {.command = HTH_COMMAND_TRAIN,
                      .arguments = r->args,
                      .member = 1 + member,
                      .files = {r->group},
                      .n_files = 1}};
    call_start(engine, c);
}

static void rig_open(rig *r)
{
    char data[200];
    double want[STEPS];
    strcpy(r->f.dir, "/tmp/hearth-turn-XXXXXX");
    assert_non_null(mkdtemp(r->f.dir));
    assert_ok(hth_store_open(r->f.dir, true, false, &r->f.store));
    engine_open("cpu:0,mem=128MiB,threads=1", r->f.store, &r->f.engine);
    engine_open("cpu:1,mem=128MiB,threads=1", r->f.store, &r->other);
    prepare(&r->f, &image_net, data);
    json_t *args = arguments_of(&image_net, data,
                                "{\"sync-bn\": true, \"members\": 2, \"on\": \"all\", "
                                "\"epochs\": 100000}",
                                want);
    r->args = json_dumps(args, JSON_COMPACT);
    json_decref(args);
    assert_ok(hth_group_make(2, &r->group));
}

static void rig_close(rig *r)
{
    r->lead.r.canceled = 1;
    assert_int_equal(call_wait(&r->lead), HTH_ECANCELED);
    hth_group_end(r->group, HTH_ECANCELED, "the job has ended");
    close(r->group);
    hth_engine_close(r->other);
    fixture_close(&r->f);
    free(r->args);
}

static void hold(const rig *r, const char *what, int *fd)
{
    assert_ok(hth_store_hold(r->f.store, what, true, fd));
}

// While another group has its turn, a lead has the next one only as long as all its members are
// there: the other group may have the memory that a member waits for, and would wait in its turn.
static void next_turn(void **state)
{
    rig r;
    int turn;
    hth_err err;
    rig_open(&r);
    hold(&r, HTH_TRAIN_GROUP_TURN, &turn);
    member_start(&r, r.f.engine, 0, &r.lead);
    member_start(&r, r.other, 1, &r.member);
    for (int i = 0; i < 2; i++) {
        until_held(&r, HTH_TRAIN_GROUP_NEXT, true);
        r.member.r.canceled = 1;
        assert_int_equal(call_wait(&r.member), HTH_ECANCELED);
        until_held(&r, HTH_TRAIN_GROUP_NEXT, false);
        member_start(&r, r.other, 1, &r.member);
    }
    until_held(&r, HTH_TRAIN_GROUP_NEXT, true);
    hth_store_hold_end(r.f.store, HTH_TRAIN_GROUP_TURN, turn);
    for (json_int_t step = 0; step < 3;) {
        json_t *row = ask(&r.f, "job", "{\"job\": \"result\", \"points\": 1}", &err);
        assert_ok(err);
        step = json_integer_value(json_object_get(row, "step"));
        json_decref(row);
    }
    rig_close(&r);
}

// A round that breaks before its lead has begun it leaves the lead waiting, without the turn: the
// member that it waits for may wait for memory of a group that wants the turn.
static void turn_of_a_broken_round(void **state)
{
    rig r;
    hth_train_group_event event;
    const size_t floats = 1;
    const bool by_count = false;
    rig_open(&r);
    hth_train_group group = {
        .member = HTH_GROUP_LEAD, .members = 2, .store = r.f.store, .next = -1};
    hth_train_job job = {.group = &group};
    hth_group_spec spec = {.batch = 4,
                           .steps = 2,
                           .n_slots = 1,
                           .floats = &floats,
                           .by_count = &by_count,
                           .state_bytes = 8};
    assert_ok(hth_group_join(r.group, &spec, &group.exchange));
    hold(&r, HTH_TRAIN_GROUP_TURN, &group.turn);
    assert_ok(hth_train_group_slice(&job, &event)); // its member is not there
    assert_int_equal(event, HTH_TRAIN_GROUP_NOTHING);
    until_held(&r, HTH_TRAIN_GROUP_TURN, false);
    hth_group_leave(group.exchange);
    close(r.group);
    hth_engine_close(r.other);
    fixture_close(&r.f);
    free(r.args);
}

static uint64_t now_ns = 1;

static uint64_t clock_now(void *ctx)
{
    return now_ns;
}

// A step of two members, with the shards that the lead decides, whose samples take `us` each; the
// round takes `round_us`, and `change_us` more where they are others than before.
static void step_of_two(hth_train_job *job, hth_group *other, int64_t step, const double us[2],
                        double round_us, double change_us)
{
    hth_group *member[] = {job->group->exchange, other};
    hth_group_round round;
    bool started;
    double ms;
    const float gradient = 1;
    for (int i = 1; i >= 0; i--) {
        assert_int_equal(hth_group_begin(member[i], &round),
                         i == 0 ? HTH_GROUP_LEADS : HTH_GROUP_WAITS);
    }
    assert_ok(hth_train_shards_start(job, step, &started));
    assert_true(started);
    now_ns += (uint64_t)(1e3 * (round_us + (job->group->changed == step ? change_us : 0)));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hth_group_begin(member[i], &round), HTH_GROUP_ROUND);
        assert_int_equal(round.n, job->group->shards[i]);
        hth_group_weigh(member[i], (double)round.n, (double)round.n);
        hth_group_ready(member[i], 0, &gradient);
        hth_group_passed(member[i], 0, us[i], 0);
    }
    (void)hth_group_look(member[0]);
    assert_int_equal(hth_group_look(member[1]), HTH_GROUP_SUMMED);
    assert_int_equal(hth_group_look(member[0]), HTH_GROUP_SUMMED);
    (void)hth_group_loss(member[0], step, &ms);
    hth_train_shards_took(job, step, ms * 1e3);
}

typedef struct pair {
    hth_train_group group;
    hth_train_job job;
    hth_group *other;
    int fd;
} pair;

enum { PAIR_BATCH = 32, PAIR_STEPS = 80 };

static void pair_open(pair *p)
{
    static const size_t floats = 1;
    static const bool by_count = false;
    hth_group_round round;
    p->group = (hth_train_group){.member = HTH_GROUP_LEAD, .members = 2, .turn = -1, .next = -1};
    p->job = (hth_train_job){.group = &p->group,
                             .args = json_object(),
                             .shards = json_array(),
                             .spec = {.batch = PAIR_BATCH, .epochs = 1},
                             .data.n_samples = PAIR_STEPS * PAIR_BATCH,
                             .steps = PAIR_STEPS};
    hth_group_spec spec = {.batch = PAIR_BATCH,
                           .steps = PAIR_STEPS,
                           .n_slots = 1,
                           .floats = &floats,
                           .by_count = &by_count,
                           .state_bytes = 8};
    hth_clock_inject(clock_now, NULL);
    assert_ok(hth_group_make(2, &p->fd));
    assert_ok(hth_group_join(p->fd, &spec, &p->group.exchange));
    assert_int_equal(hth_group_begin(p->group.exchange, &round), HTH_GROUP_WAITS);
    spec.member = 1;
    assert_ok(hth_group_join(p->fd, &spec, &p->other));
}

static void pair_close(pair *p)
{
    hth_group_leave(p->group.exchange);
    hth_group_leave(p->other);
    json_decref(p->job.shards);
    json_decref((json_t *)p->job.args);
    close(p->fd);
    hth_clock_inject(NULL, NULL);
}

// Shards follow the times of the passes when these have settled: five steps after the last change,
// and all members' are known.
// A lead that comes after another one goes on with its shards, and its sequence.
static void shards_follow_times(void **state)
{
    enum { LAST = 22 };
    static const double us[][2] = {{1, 0}, {1, 3}, {3, 1}};
    static const int64_t want[][3] = {{0, 16, 16}, {8, 24, 8}, {13, 8, 24}, {20, 24, 8}};
    int k = 0;
    pair p;
    pair_open(&p);
    for (int64_t step = 0; step < LAST; step++) {
        if (step == 15) { // another lead: it knows what it reads in the group
            p.group.recalled = false;
            memset(p.group.shards, 0, sizeof p.group.shards);
            json_array_clear(p.job.shards);
        }
        k += k < 3 && step == want[k + 1][0];
        int now = step < 7 ? 0 : 1;
        now = step > 8 && step < 15 ? 2 : now;
        step_of_two(&p.job, p.other, step, us[now], 1, 0);
        assert_memory_equal(p.group.shards, want[k] + 1, 2 * sizeof *p.group.shards);
    }
    assert_int_equal(json_array_size(p.job.shards), 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *row = json_array_get(p.job.shards, i);
        for (size_t n = 0; n < 3; n++) {
            assert_int_equal(json_integer_value(json_array_get(row, n)), want[i][n]);
        }
    }
    pair_close(&p);
}

// A group with sync_bn tries again and again to begin a step while another one has its turn.
static void tried_in_vain(pair *p, hth_store *store, int64_t step)
{
    int fd;
    bool started;
    assert_ok(hth_store_hold(store, HTH_TRAIN_GROUP_TURN, true, &fd));
    p->group.store = store;
    p->job.spec.sync_bn = true;
    for (int i = 0; i < 3; i++) {
        assert_ok(hth_train_shards_start(&p->job, step, &started));
        assert_false(started);
    }
    hth_store_hold_end(store, HTH_TRAIN_GROUP_NEXT, p->group.next);
    hth_store_hold_end(store, HTH_TRAIN_GROUP_TURN, fd);
    p->group.next = -1;
    p->job.spec.sync_bn = false;
}

// A change of shards whose plans take as long as many steps is made again only when the steps since
// then have lost half as much, each once; the first one is free.
static void changes_pay(void **state)
{
    static const double us[][2] = {{1, 3}, {3, 1}};
    pair p;
    char dir[] = "/tmp/hearth-pays-XXXXXX";
    hth_store *store;
    assert_non_null(mkdtemp(dir));
    assert_ok(hth_store_open(dir, true, false, &store));
    pair_open(&p);
    int64_t changed[4] = {0};
    size_t changes = 0;
    for (int64_t step = 0; step < PAIR_STEPS; step++) {
        if (step > 10) {
            tried_in_vain(&p, store, step);
        }
        step_of_two(&p.job, p.other, step, us[step >= 10], 24, 1000);
        if (json_array_size(p.job.shards) > changes) {
            assert_in_range(changes, 0, 3);
            changed[changes++] = step;
        }
    }
    assert_int_equal(changes, 3); // at the beginning, for 1 to 3, for 3 to 1
    assert_int_equal(changed[1], 5);
    assert_int_equal(changed[2], 10 + 11); // 48 us a step make half of 1000 in 11

    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_of_a_pass), cmocka_unit_test(next_turn),
        cmocka_unit_test(turn_of_a_broken_round), cmocka_unit_test(shards_follow_times),
        cmocka_unit_test(changes_pay)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
