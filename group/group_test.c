// SPDX-License-Identifier: Apache-2.0
// A group's exchange: sums and states between threads, and between processes that are killed at any
// moment. What the members learn is known from a formula, whatever their shards.
#include "group/group_impl.h"

#include "base/test.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BATCH   24
#define MEMBERS 3
#define SLOTS   4
#define LARGE   300000 // more than a bucket

static const size_t slot_floats[SLOTS] = {5, LARGE, 70, 3};
static const bool by_count[SLOTS] = {false, false, false, true};
#define FLOATS (5 + LARGE + 70 + 3)
#define SHARES 2
static const size_t shares[SHARES] = {3, 1};

typedef struct worker {
    int fd, member;
    int64_t steps;
    bool uneven;
    _Atomic uint64_t *points; // counts what it does, so that it can be killed anywhere
    float *learned;           // FLOATS
    int64_t done;
    hth_err end;
    pthread_t thread;
} worker;

// What sample `sample` adds to each element of its gradient in a step.
static double sample_value(int64_t step, int64_t sample)
{
    return (double)((sample * 37 + step * 11) % 101) / 100;
}

// A member's mean gradient: its first part by the losses' weights, which here are (sample % 3).
static double mean_value(int64_t step, int64_t from, int64_t n, bool count, double *weight)
{
    double sum = 0;
    *weight = 0;
    for (int64_t s = from; s < from + n; s++) {
        double w = count ? 1 : (double)(s % 3);
        sum += w * sample_value(step, s);
        *weight += w;
    }
    return *weight > 0 ? sum / *weight : 0;
}

// What samples [from, from + n) add to an element of a small vector: numbers whose sums are exact.
static double share_value(int64_t step, int64_t from, int64_t n, size_t k)
{
    double sum = 0;
    for (int64_t s = from; s < from + n; s++) {
        sum += (double)((s * 37 + step * 11) % 101) * (double)(k + 1);
    }
    return sum;
}

// worker_share sums a small vector with the others; false: the round is broken.
static bool worker_share(hth_group *group, const worker *w, const hth_group_round *round, int share)
{
    double values[3], sum[3];
    hth_group_result result = HTH_GROUP_SUMMING;
    for (size_t k = 0; k < shares[share]; k++) {
        values[k] = share_value(round->step, round->from, round->n, k);
    }
    hth_group_share(group, share, values);
    while ((result = hth_group_shared(group, share, sum)) == HTH_GROUP_SUMMING) {
        atomic_fetch_add(w->points, 1);
        hth_group_wait(group, 1000000);
    }
    for (size_t k = 0; k < shares[share] && result == HTH_GROUP_SUMMED; k++) {
        assert_true(sum[k] == share_value(round->step, 0, BATCH, k));
    }
    return result == HTH_GROUP_SUMMED;
}

static void worker_pass(hth_group *group, const worker *w, const hth_group_round *round)
{
    float *gradient = hth_alloc(LARGE * sizeof *gradient);
    double weight, count;
    assert_non_null(gradient);
    for (int i = SHARES - 1; i >= 0 && round->n > 0; i--) {
        if (!worker_share(group, w, round, i)) {
            hth_free(gradient);
            return;
        }
    }
    double mean = mean_value(round->step, round->from, round->n, false, &weight);
    double plain = mean_value(round->step, round->from, round->n, true, &count);
    hth_group_weigh(group, weight, weight);
    for (int i = SLOTS - 1; i >= 0 && round->n > 0; i--) { // whatever comes first
        for (size_t k = 0; k < slot_floats[i]; k++) {
            gradient[k] = (float)(by_count[i] ? plain : mean) + (float)(k % 7);
        }
        hth_group_ready(group, i, gradient);
        atomic_fetch_add(w->points, 1);
    }
    hth_group_passed(group, mean, 1, 0);
    hth_free(gradient);
}

static void worker_apply(hth_group *group, worker *w, int64_t step)
{
    size_t at = 0;
    for (int i = 0; i < SLOTS; i++) {
        const float *sum = hth_group_summed(group, i);
        for (size_t k = 0; k < slot_floats[i]; k++) {
            w->learned[at++] += sum[k];
        }
    }
    w->done = step + 1;
}

static void worker_start(hth_group *group, const worker *w, int64_t step)
{
    hth_group_seat seat[HTH_GROUP_MEMBERS];
    hth_shard_member m[HTH_GROUP_MEMBERS];
    int64_t n[HTH_GROUP_MEMBERS] = {0};
    int members = hth_group_seats(group, seat);
    for (int i = 0; i < members; i++) {
        m[i] = (hth_shard_member){.sample_us = w->uneven ? 1 + i + (double)(step % 3) : 1,
                                  .least = seat[i].joined,
                                  .most = seat[i].joined ? BATCH : 0};
    }
    assert_true(hth_shards_solve(m, members, BATCH, n));
    (void)hth_group_start(group, n);
}

// worker_round takes part in a round until it is certain or broken.
static void worker_round(hth_group *group, worker *w, const hth_group_round *round)
{
    worker_pass(group, w, round);
    for (;;) {
        hth_group_result result = hth_group_look(group);
        atomic_fetch_add(w->points, 1);
        if (result == HTH_GROUP_SUMMED) {
            if (w->member == HTH_GROUP_LEAD && round->step % 3 != 0 && round->step + 1 < w->steps) {
                worker_start(group, w, round->step + 1);
                atomic_fetch_add(w->points, 1);
            }
            worker_apply(group, w, round->step);
            return;
        }
        if (result == HTH_GROUP_BROKEN) {
            return;
        }
        hth_group_wait(group, 1000000);
    }
}

static void worker_run(worker *w)
{
    hth_group *group;
    hth_group_spec spec = {.member = w->member,
                           .batch = BATCH,
                           .steps = w->steps,
                           .at = 0,
                           .n_slots = SLOTS,
                           .floats = slot_floats,
                           .by_count = by_count,
                           .n_shares = SHARES,
                           .shares = shares,
                           .state_bytes = FLOATS * sizeof(float) + sizeof(int64_t),
                           .fingerprint = 42};
    assert_ok(hth_group_join(w->fd, &spec, &group));
    for (bool over = false; !over;) {
        hth_group_round round;
        atomic_fetch_add(w->points, 1);
        switch (hth_group_begin(group, &round)) {
        case HTH_GROUP_WAITS:
            hth_group_wait(group, 1000000);
            break;
        case HTH_GROUP_LEADS:
            if (w->done == w->steps) {
                hth_group_end(w->fd, HTH_OK, NULL);
            } else {
                worker_start(group, w, round.step);
            }
            break;
        case HTH_GROUP_ROUND:
            assert_int_equal(round.step, w->done);
            worker_round(group, w, &round);
            break;
        case HTH_GROUP_GIVES:
            memcpy(hth_group_state(group), w->learned, FLOATS * sizeof(float));
            atomic_fetch_add(w->points, 1);
            hth_group_gave(group);
            break;
        case HTH_GROUP_TAKES:
            memcpy(w->learned, hth_group_state(group), FLOATS * sizeof(float));
            w->done = round.step;
            atomic_fetch_add(w->points, 1);
            hth_group_took(group);
            break;
        case HTH_GROUP_OVER:
            w->end = hth_group_over(group);
            over = true;
            break;
        }
    }
    hth_group_leave(group);
}

static void *worker_main(void *arg)
{
    worker_run(arg);
    return NULL;
}

static void check_learned(const float *learned, int64_t steps)
{
    double weight, sum[2] = {0, 0};
    size_t at = 0;
    for (int64_t s = 0; s < steps; s++) {
        sum[0] += mean_value(s, 0, BATCH, false, &weight);
        sum[1] += mean_value(s, 0, BATCH, true, &weight);
    }
    for (int i = 0; i < SLOTS; i++) {
        for (size_t k = 0; k < slot_floats[i]; k++, at++) {
            double want = sum[by_count[i]] + (double)steps * (double)(k % 7);
            if (fabs(learned[at] - want) > 1e-5 * (1 + fabs(want))) {
                fail_msg("slot %d element %zu is %g, not %g", i, k, (double)learned[at], want);
            }
        }
    }
}

static void run_threads(int members, bool uneven, float *learned)
{
    worker w[MEMBERS];
    _Atomic uint64_t points = 0;
    int fd;
    assert_ok(hth_group_make(members, &fd));
    for (int i = 0; i < members; i++) {
        w[i] = (worker){.fd = fd,
                        .member = i,
                        .steps = 6,
                        .uneven = uneven,
                        .points = &points,
                        .learned = learned + (size_t)i * FLOATS};
        assert_int_equal(pthread_create(&w[i].thread, NULL, worker_main, &w[i]), 0);
    }
    for (int i = 0; i < members; i++) {
        pthread_join(w[i].thread, NULL);
        assert_ok(w[i].end);
        assert_int_equal(w[i].done, 6);
        assert_memory_equal(w[i].learned, learned, FLOATS * sizeof(float)); // the same bits
    }
    check_learned(learned, 6);
    close(fd);
}

static void test_threads(void **state)
{
    size_t bytes = MEMBERS * FLOATS * sizeof(float);
    for (int members = 1; members <= MEMBERS; members++) {
        for (int uneven = 0; uneven < 2; uneven++) {
            float *a = hth_calloc(1, bytes), *b = hth_calloc(1, bytes);
            run_threads(members, uneven != 0, a);
            run_threads(members, uneven != 0, b);
            assert_memory_equal(a, b, bytes); // and again, of the same shards
            hth_free(a);
            hth_free(b);
        }
    }
}

// ---- processes

typedef struct shared {
    _Atomic uint64_t points;
    _Atomic int64_t finished; // members that ran to the end
    int64_t done[MEMBERS];
    float learned[MEMBERS][FLOATS];
} shared;

static pid_t worker_fork(int fd, int member, int64_t steps, shared *all)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        worker w = {.fd = fd,
                    .member = member,
                    .steps = steps,
                    .uneven = true,
                    .points = &all->points,
                    .learned = all->learned[member]};
        memset(w.learned, 0, FLOATS * sizeof(float)); // it begins anew
        worker_run(&w);
        all->done[member] = w.done;
        atomic_fetch_add(&all->finished, 1);
        _exit(w.end == HTH_OK && w.done == steps ? 0 : 1);
    }
    return pid;
}

static uint32_t seed = 1;

static uint32_t draw(uint32_t below)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % below;
}

// Kills one of them after something it did, and has another one come in its place, until the job is
// done. What they learn is as if nobody had died.
static void run_killed(int kills, int64_t steps)
{
    shared *all =
        mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid[MEMBERS];
    int fd, status;
    assert_ptr_not_equal(all, MAP_FAILED);
    assert_ok(hth_group_make(MEMBERS, &fd));
    for (int i = 0; i < MEMBERS; i++) {
        pid[i] = worker_fork(fd, i, steps, all);
    }
    for (int k = 0; k < kills; k++) {
        uint64_t until = atomic_load(&all->points) + 1 + draw(90);
        int who = (int)draw(MEMBERS);
        while (atomic_load(&all->points) < until && atomic_load(&all->finished) == 0) {
            sched_yield();
        }
        if (atomic_load(&all->finished) > 0) {
            break;
        }
        kill(pid[who], SIGKILL);
        waitpid(pid[who], &status, 0);
        pid[who] = worker_fork(fd, who, steps, all);
    }
    for (int i = 0; i < MEMBERS; i++) {
        waitpid(pid[i], &status, 0);
        assert_true(WIFEXITED(status));
    }
    int whole = 0;
    for (int i = 0; i < MEMBERS; i++) { // who came after the end has learned nothing
        assert_true(all->done[i] == steps || all->done[i] == 0);
        if (all->done[i] == steps) {
            check_learned(all->learned[i], steps);
            whole++;
        }
    }
    assert_true(whole > 0);
    close(fd);
    munmap(all, sizeof *all);
}

static void test_killed(void **state)
{
    for (int round = 0; round < 8; round++) {
        run_killed(25, 150);
    }
}

// ---- one at a time

static hth_group_spec spec_of(int member)
{
    return (hth_group_spec){.member = member,
                            .batch = BATCH,
                            .steps = 10,
                            .n_slots = SLOTS,
                            .floats = slot_floats,
                            .by_count = by_count,
                            .n_shares = SHARES,
                            .shares = shares,
                            .state_bytes = 4096,
                            .fingerprint = 42};
}

// A lead that dies while it starts a round has written the steps before that one at most: those
// before the last round still count.
static void test_half_started(void **state)
{
    hth_group *lead;
    hth_group_round round;
    int fd;
    const int64_t shards[HTH_GROUP_MEMBERS] = {BATCH};
    assert_ok(hth_group_make(1, &fd));
    hth_group_spec spec = spec_of(HTH_GROUP_LEAD);
    assert_ok(hth_group_join(fd, &spec, &lead));
    for (int step = 0; step < 4; step++) {
        assert_int_equal(hth_group_begin(lead, &round), HTH_GROUP_LEADS);
        assert_int_equal(round.step, step);
        *group_before(lead->region, lead->region->round + 1) = step;
        assert_int_equal(hth_group_begin(lead, &round), HTH_GROUP_LEADS);
        assert_int_equal(round.step, step);
        assert_true(hth_group_start(lead, shards));
        assert_int_equal(hth_group_begin(lead, &round), HTH_GROUP_ROUND);
        assert_true(round.step == step && hth_group_alone(lead));
        hth_group_weigh(lead, BATCH, BATCH);
        hth_group_passed(lead, 1, 1, 0);
        assert_int_equal(hth_group_look(lead), HTH_GROUP_SUMMED);
    }
    hth_group_leave(lead);
    close(fd);
}

// Who notes a death may die before it has freed the seat: the next one that looks frees it, and it
// can be taken.
static void test_half_noticed(void **state)
{
    hth_group *a, *b;
    hth_group_round round;
    int fd;
    assert_ok(hth_group_make(2, &fd));
    hth_group_spec spec = spec_of(0);
    assert_ok(hth_group_join(fd, &spec, &a));
    a->region->seat[1].joined = 1; // and nobody holds its lock
    assert_int_equal(hth_group_begin(a, &round), HTH_GROUP_WAITS);
    assert_int_equal(a->region->seat[1].joined, 0);
    spec = spec_of(1);
    assert_ok(hth_group_join(fd, &spec, &b));
    hth_group_leave(a);
    hth_group_leave(b);
    close(fd);
}

static void test_refused(void **state)
{
    hth_group *a, *b;
    int fd;
    assert_ok(hth_group_make(2, &fd));
    hth_group_spec spec = spec_of(0);
    assert_ok(hth_group_join(fd, &spec, &a));
    spec = spec_of(1);
    spec.fingerprint = 43;
    assert_err(hth_group_join(fd, &spec, &b), HTH_EINVAL, "another model, data or options");
    spec = spec_of(1);
    spec.n_shares = 1;
    assert_err(hth_group_join(fd, &spec, &b), HTH_EINVAL, "another model, data or options");
    spec = spec_of(2);
    assert_err(hth_group_join(fd, &spec, &b), HTH_EINVAL, "no member 2 in this group of 2");
    spec.member = 1;
    for (int i = 0; i < 2; i++) {
        spec.steps = i == 0 ? INT32_MAX : INT64_MAX;
        assert_err(hth_group_join(fd, &spec, &b), HTH_EINVAL,
                   "a job of several devices makes at most 2147483646 steps, not");
    }
    assert_null(b);
    assert_false(hth_group_refuse(-1, HTH_ENOTSUP, "no group's"));
    assert_true(hth_group_refuse(fd, HTH_ENOTSUP, "device cpu:1 has no Frob"));
    hth_group_round round;
    assert_int_equal(hth_group_begin(a, &round), HTH_GROUP_OVER);
    assert_err(hth_group_over(a), HTH_ENOTSUP, "cpu:1 has no Frob");
    hth_group_leave(a);
    hth_group_leave(NULL);
    close(fd);
    assert_err(hth_group_join(0, &spec, &b), HTH_EDENIED, "memfd");
}

// Of a member whose device is lost the others' are not.
static void test_lost(void **state)
{
    hth_group *a;
    hth_group_round round;
    hth_group_spec spec = spec_of(0);
    int fd;
    assert_ok(hth_group_make(2, &fd));
    assert_ok(hth_group_join(fd, &spec, &a));
    assert_true(hth_group_refuse(fd, HTH_EDEVLOST, "device cpu:1: it fell off the bus"));
    assert_int_equal(hth_group_begin(a, &round), HTH_GROUP_OVER);
    assert_err(hth_group_over(a), HTH_EIO, "cpu:1: it fell off the bus");
    hth_group_leave(a);
    close(fd);
}

// Nobody begins before all are there; who leaves breaks the round, and the other goes on.
static void test_leaves(void **state)
{
    hth_group *a, *b;
    hth_group_round round;
    int fd, open_fds = test_open_fds();
    assert_ok(hth_group_make(2, &fd));
    hth_group_spec spec = spec_of(0);
    assert_ok(hth_group_join(fd, &spec, &a));
    assert_int_equal(hth_group_begin(a, &round), HTH_GROUP_WAITS);
    uint32_t event = atomic_load(&a->region->event); // two that wait do not wake each other forever
    assert_int_equal(hth_group_begin(a, &round), HTH_GROUP_WAITS);
    assert_int_equal(atomic_load(&a->region->event), event);
    spec = spec_of(1);
    assert_ok(hth_group_join(fd, &spec, &b));
    assert_int_equal(hth_group_begin(b, &round), HTH_GROUP_WAITS);
    assert_int_equal(hth_group_begin(a, &round), HTH_GROUP_LEADS);
    int64_t shards[HTH_GROUP_MEMBERS] = {20, 4};
    assert_true(hth_group_start(a, shards));
    assert_false(hth_group_start(a, shards)); // it is at work
    assert_int_equal(hth_group_begin(b, &round), HTH_GROUP_ROUND);
    assert_int_equal(round.from, 20);
    assert_int_equal(round.n, 4);
    assert_int_equal(hth_group_begin(a, &round), HTH_GROUP_ROUND);
    assert_int_equal(hth_group_look(a), HTH_GROUP_SUMMING);
    hth_group_most(b, 3);
    hth_group_seat seat[HTH_GROUP_MEMBERS];
    assert_int_equal(hth_group_seats(a, seat), 2);
    assert_int_equal(seat[1].most, 3);
    assert_int_equal(hth_group_look(a), HTH_GROUP_BROKEN); // b could not take its samples
    hth_group_leave(b);
    assert_int_equal(hth_group_look(a), HTH_GROUP_BROKEN);
    // before the first step nobody can be spared
    assert_int_equal(hth_group_begin(a, &round), HTH_GROUP_WAITS);
    assert_ok(hth_group_join(fd, &spec, &b));
    assert_int_equal(hth_group_begin(b, &round), HTH_GROUP_WAITS);
    assert_int_equal(hth_group_begin(a, &round), HTH_GROUP_LEADS);
    hth_group_seats(a, seat); // it may have more memory than before
    assert_true(seat[1].most == INT64_MAX);
    hth_group_leave(b);
    hth_group_leave(a);
    close(fd);
    assert_int_equal(test_open_fds(), open_fds);
}

// A round of two in which member 0 has all samples.
static void round_of(hth_group *a, hth_group *b)
{
    const int64_t all[HTH_GROUP_MEMBERS] = {BATCH};
    _Atomic uint64_t points = 0;
    const worker w = {.points = &points};
    hth_group_round round;
    assert_int_equal(hth_group_begin(b, &round), HTH_GROUP_WAITS);
    assert_int_equal(hth_group_begin(a, &round), HTH_GROUP_LEADS);
    assert_true(hth_group_start(a, all));
    assert_int_equal(hth_group_begin(a, &round), HTH_GROUP_ROUND);
    worker_pass(a, &w, &round);
    assert_int_equal(hth_group_begin(b, &round), HTH_GROUP_ROUND);
    hth_group_passed(b, 0, 0, 0);
    (void)hth_group_look(a);
    assert_int_equal(hth_group_look(b), HTH_GROUP_SUMMED);
    assert_int_equal(hth_group_look(a), HTH_GROUP_SUMMED);
}

// A round of three that each have samples.
static void round_of_three(hth_group *member[3])
{
    hth_group_round round;
    int64_t shards[HTH_GROUP_MEMBERS] = {8, 8, 8};
    float values[LARGE] = {0};
    assert_int_equal(hth_group_begin(member[0], &round), HTH_GROUP_LEADS);
    assert_true(hth_group_start(member[0], shards));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hth_group_begin(member[i], &round), HTH_GROUP_ROUND);
        hth_group_weigh(member[i], 8, 8);
        for (int k = 0; k < SLOTS; k++) {
            hth_group_ready(member[i], k, values);
        }
        hth_group_passed(member[i], 0, 1, 0);
    }
    for (int tries = 0; tries < 6; tries++) {
        (void)hth_group_look(member[tries % 3]);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hth_group_look(member[i]), HTH_GROUP_SUMMED);
    }
}

// A region has more seats than its group: whatever stands in the others, nobody looks there.
static void test_no_such_seat(void **state)
{
    hth_group *member[2];
    hth_group_round round;
    int fd;
    assert_ok(hth_group_make(2, &fd));
    for (int i = 0; i < 2; i++) {
        hth_group_spec spec = spec_of(i);
        assert_ok(hth_group_join(fd, &spec, &member[i]));
        group_seat *other = &member[0]->region->seat[2];
        other->joined = other->away = 1;
        other->holds = i == 0; // .. and nobody gives it the state
        (void)hth_group_begin(member[i], &round);
    }
    round_of(member[0], member[1]);
    round_of(member[0], member[1]);
    assert_int_equal(member[0]->region->seat[2].joined, 1);
    assert_int_equal(member[0]->region->seat[2].holds, 0);
    hth_group_leave(member[0]);
    hth_group_leave(member[1]);
    close(fd);
}

static void write_state(hth_group *member, int value)
{
    memset(hth_group_state(member), value, 4096);
}

static void check_state(hth_group *member, int value)
{
    const unsigned char *state = hth_group_state(member);
    for (int i = 0; i < 4096; i++) {
        assert_int_equal(state[i], value);
    }
}

// One of those that have the state gives it, once: nobody writes over what another one reads.
static void test_one_gives(void **state)
{
    hth_group *member[3];
    hth_group_round round;
    int fd;
    assert_ok(hth_group_make(3, &fd));
    for (int i = 0; i < 3; i++) {
        hth_group_spec spec = spec_of(i);
        assert_ok(hth_group_join(fd, &spec, &member[i]));
        assert_int_equal(hth_group_begin(member[i], &round), HTH_GROUP_WAITS);
    }
    round_of_three(member);
    hth_group_leave(member[2]);
    hth_group_spec spec = spec_of(2);
    assert_ok(hth_group_join(fd, &spec, &member[2]));
    assert_int_equal(hth_group_begin(member[2], &round), HTH_GROUP_WAITS);
    assert_int_equal(hth_group_begin(member[1], &round), HTH_GROUP_WAITS);
    assert_int_equal(hth_group_begin(member[0], &round), HTH_GROUP_GIVES);
    hth_group_gave(member[0]);
    assert_int_equal(hth_group_begin(member[0], &round), HTH_GROUP_WAITS);
    assert_int_equal(hth_group_begin(member[1], &round), HTH_GROUP_WAITS);
    assert_int_equal(hth_group_begin(member[2], &round), HTH_GROUP_TAKES);
    hth_group_took(member[2]);
    assert_int_equal(hth_group_begin(member[2], &round), HTH_GROUP_WAITS);
    round_of_three(member);
    for (int i = 0; i < 3; i++) {
        hth_group_leave(member[i]);
    }
    close(fd);
}

// A member that gives the state while the parameter server comes back has none to give any more:
// what counts is what the server comes with, whatever the member still writes.
static void test_server_returns(void **state)
{
    hth_group *member[3];
    hth_group_round round;
    hth_group_spec spec[3];
    int fd;
    assert_ok(hth_group_make(3, &fd));
    for (int i = 0; i < 3; i++) {
        spec[i] = spec_of(i);
        spec[i].server = true;
        assert_ok(hth_group_join(fd, &spec[i], &member[i]));
        (void)hth_group_begin(member[i], &round);
    }
    round_of_three(member);
    assert_int_equal(hth_group_begin(member[0], &round), HTH_GROUP_GIVES);
    write_state(member[0], 1);
    hth_group_gave(member[0]);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(hth_group_begin(member[i], &round), HTH_GROUP_TAKES);
        check_state(member[i], 1);
        hth_group_took(member[i]);
    }
    const int64_t shards[HTH_GROUP_MEMBERS] = {8, 8, 8};
    for (int i = 2; i >= 0; i--) {
        (void)hth_group_begin(member[i], &round);
    }
    assert_true(hth_group_start(member[0], shards));
    assert_int_equal(hth_group_begin(member[1], &round), HTH_GROUP_ROUND);
    hth_group_leave(member[0]);
    hth_group_leave(member[2]);
    assert_int_equal(hth_group_look(member[1]), HTH_GROUP_BROKEN);
    assert_ok(hth_group_join(fd, &spec[2], &member[2]));
    assert_int_equal(hth_group_begin(member[2], &round), HTH_GROUP_WAITS);
    assert_int_equal(hth_group_begin(member[1], &round), HTH_GROUP_GIVES);
    assert_ok(hth_group_join(fd, &spec[0], &member[0]));
    assert_int_equal(hth_group_begin(member[0], &round), HTH_GROUP_GIVES);
    write_state(member[0], 2);
    write_state(member[1], 3);
    hth_group_gave(member[1]);
    assert_int_equal(hth_group_begin(member[2], &round), HTH_GROUP_WAITS);
    hth_group_gave(member[0]);
    write_state(member[1], 4);
    assert_int_equal(hth_group_begin(member[2], &round), HTH_GROUP_TAKES);
    check_state(member[2], 2);
    for (int i = 0; i < 3; i++) {
        hth_group_leave(member[i]);
    }
    close(fd);
}

// What a parameter server gave before it died counts no more: its optimizer's state has gone, and
// it goes on from the checkpoint that it came with. Read by then, or half read, or not at all.
static void test_server_dies(void **state)
{
    for (int read = 0; read < 3; read++) {
        hth_group *a, *b;
        hth_group_round round;
        int fd;
        assert_ok(hth_group_make(2, &fd));
        hth_group_spec lead = spec_of(HTH_GROUP_LEAD), spec = spec_of(1);
        lead.server = spec.server = true;
        assert_ok(hth_group_join(fd, &lead, &a));
        assert_ok(hth_group_join(fd, &spec, &b));
        (void)hth_group_begin(a, &round);
        round_of(a, b);
        assert_int_equal(hth_group_begin(a, &round), HTH_GROUP_GIVES);
        hth_group_gave(a);
        if (read > 0) {
            assert_int_equal(hth_group_begin(b, &round), HTH_GROUP_TAKES);
            assert_int_equal(round.step, 1);
        }
        if (read > 1) {
            hth_group_took(b);
        }
        hth_group_leave(a);
        b->region->seat[2].holds = 1; // is no seat of this group
        assert_ok(hth_group_join(fd, &lead, &a));
        assert_int_equal(b->region->seat[2].holds, 1);
        if (read == 1) {
            hth_group_took(b);
        }
        assert_int_equal(hth_group_begin(b, &round), HTH_GROUP_WAITS);
        assert_int_equal(hth_group_begin(a, &round), HTH_GROUP_GIVES);
        hth_group_gave(a);
        assert_int_equal(hth_group_begin(b, &round), HTH_GROUP_TAKES);
        assert_int_equal(round.step, 0);
        hth_group_took(b);
        round_of(a, b);
        hth_group_leave(b);
        hth_group_leave(a);
        close(fd);
    }
}

// A small sum waits for all who have samples, and for nobody who has none; a member that dies, or
// leaves, breaks it for those who wait.
static void test_shares(void **state)
{
    hth_group *member[MEMBERS];
    hth_group_round round;
    double sum[3];
    int fd;
    const int64_t n[HTH_GROUP_MEMBERS] = {20, 4, 0};
    static const double value[2][3] = {{1e16, 1, 2}, {-1e16, 3, 4}};
    assert_ok(hth_group_make(MEMBERS, &fd));
    for (int i = 0; i < MEMBERS; i++) {
        hth_group_spec spec = spec_of(i);
        assert_ok(hth_group_join(fd, &spec, &member[i]));
        (void)hth_group_begin(member[i], &round);
    }
    for (int i = MEMBERS - 1; i >= 0; i--) {
        assert_int_equal(hth_group_begin(member[i], &round),
                         i == 0 ? HTH_GROUP_LEADS : HTH_GROUP_WAITS);
    }
    assert_true(hth_group_start(member[0], n));
    for (int i = 0; i < MEMBERS; i++) {
        assert_int_equal(hth_group_begin(member[i], &round), HTH_GROUP_ROUND);
    }
    hth_group_share(member[0], 0, value[0]);
    assert_int_equal(hth_group_shared(member[0], 0, sum), HTH_GROUP_SUMMING);
    hth_group_share(member[1], 0, value[1]);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hth_group_shared(member[i], 0, sum), HTH_GROUP_SUMMED);
        assert_true(sum[0] == 0 && sum[1] == 4 && sum[2] == 6);
    }
    hth_group_share(member[1], 0, value[0]); // once more: nothing changes
    assert_int_equal(hth_group_shared(member[2], 0, sum), HTH_GROUP_SUMMED);
    assert_true(sum[1] == 4);
    hth_group_share(member[0], 1, value[0]);
    assert_int_equal(hth_group_shared(member[0], 1, sum), HTH_GROUP_SUMMING);
    hth_group_leave(member[1]);
    assert_int_equal(hth_group_shared(member[0], 1, sum), HTH_GROUP_BROKEN);
    hth_group_leave(member[0]);
    hth_group_leave(member[2]);
    close(fd);
}

// Shards that change at every step are all noted; those of steps that come again are not.
static void test_notes(void **state)
{
    enum { STEPS = 1000 };
    hth_group *lead;
    const hth_group_note *notes;
    int fd;
    hth_group_spec spec = spec_of(HTH_GROUP_LEAD);
    spec.steps = STEPS;
    assert_ok(hth_group_make(2, &fd));
    assert_ok(hth_group_join(fd, &spec, &lead));
    for (int64_t step = 0; step < STEPS; step++) {
        const int64_t shards[HTH_GROUP_MEMBERS] = {1 + step % 2, BATCH - 1 - step % 2};
        hth_group_noted(lead, step, shards);
        hth_group_noted(lead, step, shards); // of a round that was broken
    }
    hth_group_leave(lead);
    assert_ok(hth_group_join(fd, &spec, &lead)); // who comes after it
    assert_int_equal(hth_group_notes(lead, STEPS, &notes), STEPS);
    for (int64_t step = 0; step < STEPS; step++) {
        assert_int_equal(notes[step].step, step);
        assert_int_equal(notes[step].shards[0], 1 + step % 2);
    }
    assert_int_equal(hth_group_notes(lead, 10, &notes), 10);
    hth_group_leave(lead);
    close(fd);
}

// Whatever another process writes as the number of notes, the lead reads and writes none but those
// that there is place for.
static void test_notes_overwritten(void **state)
{
    enum { STEPS = 10 };
    hth_group *lead;
    const hth_group_note *notes;
    const int64_t shards[HTH_GROUP_MEMBERS] = {BATCH};
    int fd;
    hth_group_spec spec = spec_of(HTH_GROUP_LEAD);
    spec.steps = STEPS;
    assert_ok(hth_group_make(2, &fd));
    assert_ok(hth_group_join(fd, &spec, &lead));
    for (int64_t step = 0; step < STEPS; step++) {
        hth_group_noted(lead, step, shards);
    }
    group_write(&lead->region->n_notes, UINT64_MAX);
    assert_int_equal(hth_group_notes(lead, STEPS, &notes), STEPS);
    group_write(&lead->region->n_notes, (uint64_t)1 << 40);
    hth_group_noted(lead, 4, shards);
    assert_int_equal(hth_group_notes(lead, STEPS, &notes), 5);
    hth_group_leave(lead);
    close(fd);
}

// start_two makes a group of two, and starts its first round.
static void start_two(hth_group *member[2], int *fd, const int64_t n[HTH_GROUP_MEMBERS])
{
    hth_group_round round;
    assert_ok(hth_group_make(2, fd));
    for (int i = 0; i < 2; i++) {
        hth_group_spec spec = spec_of(i);
        assert_ok(hth_group_join(*fd, &spec, &member[i]));
        (void)hth_group_begin(member[i], &round);
    }
    assert_int_equal(hth_group_begin(member[1], &round), HTH_GROUP_WAITS);
    assert_int_equal(hth_group_begin(member[0], &round), HTH_GROUP_LEADS);
    assert_true(hth_group_start(member[0], n));
}

// Sums go on while others still compute, a bucket at a time, and come out the same; but a round
// whose sums are all there is not certain before the last pass has ended.
static void test_advance(void **state)
{
    hth_group *member[2];
    hth_group_round round;
    int fd;
    const int64_t n[HTH_GROUP_MEMBERS] = {12, 12};
    float *other = hth_calloc(LARGE, sizeof *other);
    start_two(member, &fd, n);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hth_group_begin(member[i], &round), HTH_GROUP_ROUND);
        hth_group_weigh(member[i], 12, 12);
    }
    assert_int_equal(member[0]->n_left, 3);
    for (int k = 0; k < SLOTS; k++) {
        float *place = hth_group_place(member[0], k); // where it lies already
        for (size_t i = 0; i < slot_floats[k]; i++) {
            place[i] = 2;
            other[i] = (float)(i % 5);
        }
        hth_group_ready(member[0], k, place);
        hth_group_advance(member[0]);
        hth_group_ready(member[1], k, other);
    }
    assert_int_equal(member[0]->n_left, 1); // each bucket but the last, when the next slot came
    hth_group_advance(member[0]);
    hth_group_passed(member[1], 1, 1, 0);
    assert_int_equal(hth_group_look(member[1]), HTH_GROUP_SUMMING);
    assert_int_equal(hth_group_look(member[0]), HTH_GROUP_SUMMING);
    hth_group_passed(member[0], 1, 1, 0);
    assert_int_equal(hth_group_look(member[0]), HTH_GROUP_SUMMED);
    for (int k = 0; k < SLOTS; k++) {
        for (size_t i = 0; i < slot_floats[k]; i++) {
            assert_true(hth_group_summed(member[1], k)[i] == 1 + (float)(i % 5) / 2);
        }
    }
    hth_group_leave(member[1]);
    hth_group_leave(member[0]);
    hth_free(other);
    close(fd);
}

// hand_in makes a member's part of a round, in which each element of its gradients is `value`.
static void hand_in(hth_group *member, float value)
{
    hth_group_weigh(member, 12, 12);
    for (int k = 0; k < SLOTS; k++) {
        float *place = hth_group_place(member, k);
        for (size_t i = 0; i < slot_floats[k]; i++) {
            place[i] = value;
        }
        hth_group_ready(member, k, place);
    }
    hth_group_passed(member, value, 1, 0);
}

static void check_sums(const hth_group *member, float value)
{
    for (int k = 0; k < SLOTS; k++) {
        for (size_t i = 0; i < slot_floats[k]; i++) {
            assert_true(hth_group_summed(member, k)[i] == value);
        }
    }
}

// ahead_of begins a group of two, makes a round whose sums are 2, and starts the next one before
// anybody has made the update.
static void ahead_of(hth_group *member[2], int *fd)
{
    hth_group_round round;
    const int64_t n[HTH_GROUP_MEMBERS] = {12, 12}, none[HTH_GROUP_MEMBERS] = {24, 0};
    start_two(member, fd, n);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hth_group_begin(member[i], &round), HTH_GROUP_ROUND);
        hand_in(member[i], (float)(1 + 2 * i));
    }
    assert_int_equal(hth_group_look(member[0]), HTH_GROUP_SUMMING);
    assert_int_equal(hth_group_look(member[1]), HTH_GROUP_SUMMED);
    assert_int_equal(hth_group_look(member[0]), HTH_GROUP_SUMMED);
    assert_false(hth_group_start(member[0], none));
    assert_true(hth_group_start(member[0], n));
}

// The sums of a round stay where they are while others compute the next one, for who has not made
// its update yet; nor is it taken for having no part in that one.
static void test_ahead(void **state)
{
    hth_group *member[2];
    hth_group_round round;
    int fd;
    ahead_of(member, &fd);
    check_sums(member[0], 2);
    assert_int_equal(hth_group_begin(member[0], &round), HTH_GROUP_ROUND);
    assert_int_equal(round.step, 1);
    hand_in(member[0], 5);
    assert_int_equal(hth_group_look(member[0]), HTH_GROUP_SUMMING);
    assert_int_equal(hth_group_look(member[1]), HTH_GROUP_SUMMED);
    check_sums(member[1], 2);
    assert_int_equal(hth_group_begin(member[1], &round), HTH_GROUP_ROUND);
    assert_int_equal(round.step, 1);
    hand_in(member[1], 7);
    assert_int_equal(hth_group_look(member[1]), HTH_GROUP_SUMMING);
    assert_int_equal(hth_group_look(member[0]), HTH_GROUP_SUMMED);
    assert_int_equal(hth_group_look(member[1]), HTH_GROUP_SUMMED);
    check_sums(member[1], 6);
    hth_group_leave(member[1]);
    hth_group_leave(member[0]);
    close(fd);
}

// Who leaves breaks the round that was started ahead, and not the one before it: the other makes
// that update from all sums, and goes on alone.
static void test_ahead_leaves(void **state)
{
    for (int begun = 0; begun < 2; begun++) {
        hth_group *member[2];
        hth_group_round round;
        const int64_t all[HTH_GROUP_MEMBERS] = {24};
        int fd;
        ahead_of(member, &fd);
        if (begun > 0) {
            assert_int_equal(hth_group_begin(member[0], &round), HTH_GROUP_ROUND);
        }
        hth_group_leave(member[1]);
        if (begun > 0) {
            assert_int_equal(hth_group_look(member[0]), HTH_GROUP_BROKEN);
        } else {
            assert_false(hth_group_alone(member[0]));
            check_sums(member[0], 2);
        }
        assert_int_equal(hth_group_begin(member[0], &round), HTH_GROUP_LEADS);
        assert_int_equal(round.step, 1);
        assert_true(hth_group_start(member[0], all));
        assert_int_equal(hth_group_begin(member[0], &round), HTH_GROUP_ROUND);
        assert_true(hth_group_alone(member[0]));
        hth_group_passed(member[0], 1, 1, 0);
        assert_int_equal(hth_group_look(member[0]), HTH_GROUP_SUMMED);
        hth_group_leave(member[0]);
        close(fd);
    }
}

// What a member has checked once decides where it reads and writes, whatever others make of it.
static void test_spoiled(void **state)
{
    hth_group *member[2];
    hth_group_round round;
    int fd;
    double ms, loss;
    const int64_t n[HTH_GROUP_MEMBERS] = {12, 12};
    hth_group_seat *seat = hth_calloc(1000, sizeof *seat);
    assert_non_null(seat);
    start_two(member, &fd, n);
    group_region *region = member[0]->region;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hth_group_begin(member[i], &round), HTH_GROUP_ROUND);
        hand_in(member[i], (float)(1 + 2 * i));
    }
    region->members = 1000;
    *group_before(region, region->round) = INT64_MAX / 64;
    assert_int_equal(hth_group_seats(member[0], seat), 2);
    assert_int_equal(hth_group_look(member[0]), HTH_GROUP_SUMMING);
    assert_int_equal(hth_group_look(member[1]), HTH_GROUP_SUMMED);
    assert_int_equal(hth_group_look(member[0]), HTH_GROUP_SUMMED);
    check_sums(member[0], 2);
    loss = hth_group_loss(member[0], 0, &ms);
    assert_true(loss == 2);
    for (int i = 0; i < 2; i++) { // and nobody goes on at a step that there is not
        assert_int_equal(hth_group_begin(member[i], &round), HTH_GROUP_OVER);
        hth_group_leave(member[i]);
    }
    close(fd);
    hth_free(seat);
}

static hth_err join_once(int fd)
{
    hth_group *a;
    hth_group_spec spec = spec_of(0);
    HTH_TRY(hth_group_join(fd, &spec, &a));
    hth_group_leave(a);
    return HTH_OK;
}

static void test_faults(void **state)
{
    int fd;
    assert_ok(hth_group_make(1, &fd));
    FAULT_LOOP(join_once(fd));
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_half_started), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_leaves),       cmocka_unit_test(test_faults),
        cmocka_unit_test(test_server_dies),  cmocka_unit_test(test_server_returns),
        cmocka_unit_test(test_shares),       cmocka_unit_test(test_advance),
        cmocka_unit_test(test_notes),        cmocka_unit_test(test_notes_overwritten),
        cmocka_unit_test(test_ahead),        cmocka_unit_test(test_ahead_leaves),
        cmocka_unit_test(test_threads),      cmocka_unit_test(test_killed),
        cmocka_unit_test(test_spoiled),      cmocka_unit_test(test_lost),
        cmocka_unit_test(test_half_noticed), cmocka_unit_test(test_one_gives),
        cmocka_unit_test(test_no_such_seat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
