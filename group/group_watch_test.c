// SPDX-License-Identifier: Apache-2.0
// A group whose members give their memory back: who is waited for, whose state counts, and what
// their queues see of it.
#include "group/group_impl.h"

#include "base/test.h"

#include "base/clock.h"
#include "group/watch.h"

#include <unistd.h>

#define BATCH 8
#define SLOT  100

static const size_t slot_floats[2] = {SLOT};
static const bool by_count[2] = {false};

typedef struct two { // or three
    int fd, n;
    bool server;
    hth_group *member[3];
    hth_group_watch *watch[3];
} two;

static void two_join(two *t, int member, int64_t at)
{
    hth_group_spec spec = {.member = member,
                           .batch = BATCH,
                           .steps = 10,
                           .at = at,
                           .n_slots = 1,
                           .floats = slot_floats,
                           .by_count = by_count,
                           .state_bytes = sizeof(int),
                           .fingerprint = 42,
                           .server = t->server};
    assert_ok(hth_group_join(t->fd, &spec, &t->member[member]));
}

static void members_open(two *t, int n, bool server)
{
    *t = (two){.fd = -1, .n = n, .server = server};
    assert_ok(hth_group_make(n, &t->fd));
    for (int i = 0; i < n; i++) {
        two_join(t, i, 0);
        assert_ok(hth_group_watch_open(t->fd, i, &t->watch[i]));
    }
}

static void two_open(two *t, bool server)
{
    members_open(t, 2, server);
}

static void two_leave(two *t, int member)
{
    hth_group_leave(t->member[member]);
    t->member[member] = NULL;
}

static void two_close(two *t)
{
    for (int i = 0; i < t->n; i++) {
        two_leave(t, i);
        hth_group_watch_close(t->watch[i]);
    }
    close(t->fd);
}

static hth_group_turn turn(two *t, int member)
{
    hth_group_round round;
    return hth_group_begin(t->member[member], &round);
}

// A step of all, the lead having four samples.
static void two_step_of(two *t, int64_t step, const double weigh[][2])
{
    static const int64_t shards[2][HTH_GROUP_MEMBERS] = {{4, BATCH - 4}, {4, BATCH - 6, 2}};
    static const float gradient[SLOT] = {[SLOT - 1] = 3};
    hth_group_round round;
    (void)turn(t, 0);
    for (int i = 1; i < t->n; i++) {
        assert_int_equal(turn(t, i), HTH_GROUP_WAITS);
    }
    assert_int_equal(turn(t, 0), HTH_GROUP_LEADS);
    assert_true(hth_group_start(t->member[0], shards[t->n - 2]));
    for (int i = 0; i < t->n; i++) {
        assert_int_equal(hth_group_begin(t->member[i], &round), HTH_GROUP_ROUND);
        assert_int_equal(round.step, step);
        hth_group_weigh(t->member[i], weigh[i][0], weigh[i][1]);
        hth_group_ready(t->member[i], 0, gradient);
        hth_group_passed(t->member[i], 1, 1, 0);
    }
    for (int i = 0; i < t->n; i++) {
        hth_group_result result = i + 1 < t->n ? HTH_GROUP_SUMMING : HTH_GROUP_SUMMED;
        assert_int_equal(hth_group_look(t->member[i]), result);
    }
    for (int i = 0; i < t->n; i++) {
        assert_int_equal(hth_group_look(t->member[i]), HTH_GROUP_SUMMED);
    }
}

static void two_step(two *t, int64_t step)
{
    two_step_of(t, step, (const double[][2]){{4, 4}, {4, 4}, {4, 4}});
}

// A batch of which no sample weighs anything has a loss, and gradients, of 0.
static void test_nothing_weighs(void **state)
{
    two t;
    double ms;
    two_open(&t, false);
    two_step_of(&t, 0, (const double[][2]){{0, 1}, {0, 1}});
    for (int i = 0; i < 2; i++) {
        assert_true(hth_group_loss(t.member[i], 0, &ms) == 0);
        assert_true(hth_group_summed(t.member[i], 0)[SLOT - 1] == 0);
    }
    two_step(&t, 1);
    assert_true(hth_group_loss(t.member[0], 1, &ms) == 1);
    two_close(&t);
}

// Samples that weigh nothing add to the sums what they have, by what all others weigh.
static void test_one_weighs(void **state)
{
    two t;
    double ms;
    two_open(&t, false);
    two_step_of(&t, 0, (const double[][2]){{4, 4}, {0, 2}});
    for (int i = 0; i < 2; i++) {
        assert_true(hth_group_loss(t.member[i], 0, &ms) == 1.5);
        assert_true(hth_group_summed(t.member[i], 0)[SLOT - 1] == 4.5F);
    }
    two_close(&t);
}

// A member that only left is not waited for; one that gave its memory back is, until it is there,
// or gone for good.
static void test_away(void **state)
{
    two t;
    two_open(&t, false);
    assert_false(hth_group_watch_lacks(t.watch[0]));
    two_step(&t, 0);
    two_leave(&t, 1);
    assert_false(hth_group_watch_lacks(t.watch[0]));
    assert_int_equal(turn(&t, 0), HTH_GROUP_LEADS);
    hth_group_watch_away(t.watch[1]);
    assert_true(hth_group_watch_lacks(t.watch[0]));
    assert_int_equal(turn(&t, 0), HTH_GROUP_WAITS);
    hth_group_gone(t.fd, 1);
    assert_false(hth_group_watch_lacks(t.watch[0]));
    assert_int_equal(turn(&t, 0), HTH_GROUP_LEADS);
    hth_group_watch_away(t.watch[1]);
    two_join(&t, 1, 0);
    assert_int_equal(turn(&t, 1), HTH_GROUP_WAITS);
    assert_int_equal(turn(&t, 0), HTH_GROUP_GIVES);
    *(int *)hth_group_state(t.member[0]) = 7;
    hth_group_gave(t.member[0]);
    assert_int_equal(turn(&t, 1), HTH_GROUP_TAKES);
    assert_int_equal(*(int *)hth_group_state(t.member[1]), 7);
    hth_group_took(t.member[1]);
    two_step(&t, 1);
    two_leave(&t, 1);
    assert_false(hth_group_watch_lacks(t.watch[0])); // it came, and left otherwise
    two_close(&t);
}

// The lead writes `value`, which the other one takes.
static void two_take(two *t, int value)
{
    assert_int_equal(turn(t, 1), HTH_GROUP_WAITS);
    assert_int_equal(turn(t, 0), HTH_GROUP_GIVES);
    *(int *)hth_group_state(t->member[0]) = value;
    hth_group_gave(t->member[0]);
    assert_int_equal(turn(t, 1), HTH_GROUP_TAKES);
    assert_int_equal(*(int *)hth_group_state(t->member[1]), value);
    hth_group_took(t->member[1]);
}

// Whom a lead cannot go on without is waited for until it is there, or gone for good.
static void test_awaits(void **state)
{
    two t;
    two_open(&t, false);
    two_step(&t, 0);
    assert_false(hth_group_awaits(t.member[0])); // nobody has left
    for (int gone = 0; gone < 2; gone++) {
        two_leave(&t, 1);
        assert_int_equal(turn(&t, 0), HTH_GROUP_LEADS);
        assert_true(hth_group_awaits(t.member[0]));
        assert_true(hth_group_watch_lacks(t.watch[0]));
        assert_int_equal(turn(&t, 0), HTH_GROUP_WAITS);
        if (gone > 0) {
            hth_group_gone(t.fd, 1);
        } else {
            two_join(&t, 1, 0);
            two_take(&t, 3);
            assert_int_equal(turn(&t, 1), HTH_GROUP_WAITS);
        }
        assert_int_equal(turn(&t, 0), HTH_GROUP_LEADS);
        assert_false(hth_group_awaits(t.member[0]));
    }
    two_join(&t, 1, 0); // it was not, after all
    two_leave(&t, 1);
    assert_true(hth_group_awaits(t.member[0]));
    two_close(&t);
}

// Once somebody has come the lead looks again whether it can go on, and does not wait for the
// others that it awaited; for one that gave its memory back it does. Who is gone is not awaited;
// nor is anybody once it has memory for more itself.
static void test_awaits_anybody(void **state)
{
    for (int way = 0; way < 4; way++) {
        two t;
        members_open(&t, 3, false);
        hth_group_most(t.member[0], 2);
        two_step(&t, 0);
        two_leave(&t, 1);
        two_leave(&t, 2);
        assert_true(hth_group_awaits(t.member[0]));
        assert_int_equal(turn(&t, 0), HTH_GROUP_WAITS);
        if (way == 1) {
            hth_group_watch_away(t.watch[2]);
        } else if (way == 2) {
            hth_group_gone(t.fd, 2);
            assert_int_equal(turn(&t, 0), HTH_GROUP_WAITS);
        } else if (way == 3) {
            hth_group_most(t.member[0], 1);
            assert_int_equal(turn(&t, 0), HTH_GROUP_WAITS);
            hth_group_most(t.member[0], INT64_MAX);
            assert_int_equal(turn(&t, 0), HTH_GROUP_LEADS);
            two_close(&t);
            continue;
        }
        two_join(&t, 1, 0);
        two_take(&t, 3);
        assert_int_equal(turn(&t, 1), HTH_GROUP_WAITS);
        assert_int_equal(turn(&t, 0), way == 1 ? HTH_GROUP_WAITS : HTH_GROUP_LEADS);
        assert_int_equal(hth_group_watch_lacks(t.watch[0]), way == 1);
        assert_int_equal(hth_group_awaits(t.member[0]), way < 2); // it was not enough
        assert_int_equal(turn(&t, 0), way < 2 ? HTH_GROUP_WAITS : HTH_GROUP_LEADS);
        hth_group_gone(t.fd, 2);
        assert_int_equal(turn(&t, 0), HTH_GROUP_LEADS);
        two_close(&t);
    }
}

// The lead died, and the last who has the state leaves it there, which counts, and not the lead's.
static void test_parks(void **state)
{
    two t;
    two_open(&t, false);
    assert_false(hth_group_parks(t.member[0])); // nothing was learned yet
    two_step(&t, 0);
    two_step(&t, 1);
    assert_false(hth_group_parks(t.member[1])); // the lead has it, too
    two_leave(&t, 0);
    assert_int_equal(turn(&t, 1), HTH_GROUP_WAITS);
    assert_true(hth_group_parks(t.member[1]));
    *(int *)hth_group_state(t.member[1]) = 2;
    hth_group_gave(t.member[1]);
    hth_group_watch_away(t.watch[1]);
    two_leave(&t, 1);
    two_join(&t, 0, 1); // from a checkpoint of the first step
    assert_int_equal(turn(&t, 0), HTH_GROUP_TAKES);
    assert_int_equal(*(int *)hth_group_state(t.member[0]), 2);
    hth_group_took(t.member[0]);
    assert_int_equal(turn(&t, 0), HTH_GROUP_WAITS);
    two_join(&t, 1, 0);
    assert_int_equal(turn(&t, 1), HTH_GROUP_TAKES);
    hth_group_took(t.member[1]);
    two_step(&t, 2);
    two_close(&t);
}

// What a parameter server makes of a step the others take; when it dies, and comes again with what
// it had after the first step, that counts, whatever the other one has taken.
static void test_server(void **state)
{
    two t;
    hth_group_round round;
    two_open(&t, true);
    two_step(&t, 0);
    two_take(&t, 1);
    two_step(&t, 1);
    two_take(&t, 2);
    two_step(&t, 2);
    assert_false(hth_group_parks(t.member[1]));
    two_leave(&t, 0);
    assert_true(hth_group_watch_lacks(t.watch[1]));
    assert_int_equal(turn(&t, 1), HTH_GROUP_WAITS);
    two_join(&t, 0, 1);
    (void)hth_group_begin(t.member[0], &round);
    assert_int_equal(round.step, 1);
    two_take(&t, 1);
    two_step(&t, 1);
    two_take(&t, 2);
    // it dies when the other one has begun to take what it gave, and gives something else
    two_step(&t, 2);
    assert_int_equal(turn(&t, 1), HTH_GROUP_WAITS);
    assert_int_equal(turn(&t, 0), HTH_GROUP_GIVES);
    hth_group_gave(t.member[0]);
    assert_int_equal(turn(&t, 1), HTH_GROUP_TAKES);
    two_leave(&t, 0);
    two_join(&t, 0, 2);
    assert_int_equal(turn(&t, 0), HTH_GROUP_GIVES);
    hth_group_gave(t.member[0]);
    hth_group_took(t.member[1]); // of both, perhaps: that is none
    assert_int_equal(turn(&t, 1), HTH_GROUP_TAKES);
    hth_group_took(t.member[1]);
    two_step(&t, 2);
    two_close(&t);
}

// Members that share no server are of another job.
static void test_other(void **state)
{
    two t;
    hth_group *none = NULL;
    two_open(&t, true);
    two_leave(&t, 1);
    hth_group_spec spec = {.member = 1,
                           .batch = BATCH,
                           .steps = 10,
                           .n_slots = 1,
                           .floats = slot_floats,
                           .by_count = by_count,
                           .state_bytes = sizeof(int),
                           .fingerprint = 42};
    assert_err(hth_group_join(t.fd, &spec, &none), HTH_EINVAL, "options than the others");
    assert_null(none);
    two_close(&t);
}

// Older groups have smaller numbers, whatever the clock says.
static uint64_t stopped(void *ctx)
{
    return 5;
}

static void test_seen(void **state)
{
    two a, b;
    hth_group_watch *none;
    hth_clock_inject(stopped, NULL);
    two_open(&a, false);
    two_open(&b, false);
    hth_clock_inject(NULL, NULL);
    assert_true(hth_group_watch_order(a.watch[0]) < hth_group_watch_order(b.watch[0]));
    assert_int_equal(hth_group_watch_order(a.watch[0]), hth_group_watch_order(a.watch[1]));
    assert_false(hth_group_watch_paused(a.watch[1]));
    hth_group_watch_pause(a.watch[0], true);
    assert_true(hth_group_watch_paused(a.watch[1]));
    hth_group_watch_pause(a.watch[0], false);
    assert_false(hth_group_watch_paused(a.watch[1]) || hth_group_watch_over(a.watch[1]));
    hth_group_end(a.fd, HTH_OK, NULL);
    assert_true(hth_group_watch_over(a.watch[1]));
    assert_err(hth_group_watch_open(a.fd, 2, &none), HTH_EINVAL, "no member 2 in this group");
    assert_null(none);
    two_close(&a);
    two_close(&b);
}

static hth_err watch_once(int fd)
{
    hth_group_watch *watch;
    HTH_TRY(hth_group_watch_open(fd, 0, &watch));
    hth_group_watch_close(watch);
    hth_group_watch_close(NULL);
    return HTH_OK;
}

static void test_faults(void **state)
{
    int fd;
    assert_ok(hth_group_make(1, &fd));
    FAULT_LOOP(watch_once(fd));
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_weighs), cmocka_unit_test(test_one_weighs),
        cmocka_unit_test(test_away),           cmocka_unit_test(test_awaits),
        cmocka_unit_test(test_awaits_anybody), cmocka_unit_test(test_parks),
        cmocka_unit_test(test_server),         cmocka_unit_test(test_other),
        cmocka_unit_test(test_seen),           cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
