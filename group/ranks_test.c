// SPDX-License-Identifier: Apache-2.0
// Ranks that exchange through their clients, in one thread: each in turn does what it can, and a
// hub answers what all have asked, as clients on other machines would.
#include "group/group_impl.h"

#include "base/alloc.h"
#include "base/ipc/sum_link.h"
#include "base/spin.h"
#include "base/test.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RANKS 3
#define BATCH 24
#define STEPS 5
#define SLOTS 3
#define LARGE 300000 // more than a bucket
#define ASKED 64

static const size_t slot_floats[SLOTS + 1] = {5, LARGE, 3};
static const bool by_count[SLOTS + 1] = {false, false, true};
static const int64_t uneven[HTH_GROUP_MEMBERS] = {13, 3, 8};

// What a client has been asked and has not answered.
typedef struct client {
    int fd;
    char *memory;
    size_t bytes;
    hth_sum_message asked[ASKED];
    int n;
    bool bye, all;
} client;

typedef struct rank_state {
    hth_group *group;
    bool at_work, over;
    bool weightless; // its samples weigh nothing
    hth_group_round round;
    bool follows;             // a parameter server, whose state it takes
    int64_t at, made, broken; // whole steps of its state; steps made here
    int64_t taken;            // states
    int64_t led;              // plans
    float learned[SLOTS];     // the last sums: the first float of each slot
    hth_err end;
    char why[200];
} rank_state;

typedef struct net {
    int n;
    client client[RANKS];
    rank_state rank[RANKS];
    bool backwards; // the last question is answered first
} net;

// ---- clients

static void client_hear(client *c)
{
    hth_sum_message m;
    int fd;
    while (c->fd >= 0 && c->n < ASKED && hth_sum_link_receive(c->fd, 0, &m, &fd) == HTH_OK) {
        if (m.what == HTH_SUM_HELLO) {
            assert_true(fd >= 0);
            c->bytes = m.count;
            c->memory = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            assert_true(c->memory != MAP_FAILED);
            close(fd);
        } else if (m.what == HTH_SUM_BYE) {
            c->bye = true;
            c->all = m.count == 1;
        } else {
            static const size_t size[] = {
                [HTH_SUM_F32] = 4, [HTH_SUM_F64] = 8, [HTH_SUM_BROADCAST] = 1};
            assert_true(m.offset + m.count * size[m.what] <= c->bytes);
            c->asked[c->n++] = m;
        }
    }
}

static void client_close(client *c)
{
    if (c->memory != NULL) {
        munmap(c->memory, c->bytes);
    }
    if (c->fd >= 0) {
        close(c->fd);
    }
    *c = (client){.fd = -1};
}

static void hub_sum(net *net, const hth_sum_message *m)
{
    if (m->what == HTH_SUM_BROADCAST) {
        for (int i = 1; i < net->n; i++) {
            memcpy(net->client[i].memory + m->offset, net->client[0].memory + m->offset, m->count);
        }
        return;
    }
    for (size_t k = 0; k < m->count; k++) {
        double sum = 0;
        for (int i = 0; i < net->n; i++) {
            const void *at = net->client[i].memory + m->offset;
            sum +=
                m->what == HTH_SUM_F32 ? (double)((const float *)at)[k] : ((const double *)at)[k];
        }
        for (int i = 0; i < net->n; i++) {
            void *at = net->client[i].memory + m->offset;
            if (m->what == HTH_SUM_F32) {
                ((float *)at)[k] = (float)sum;
            } else {
                ((double *)at)[k] = sum;
            }
        }
    }
}

// hub_answer answers what all have asked; they all ask the same, in the same order.
static void hub_answer(net *net)
{
    int n = ASKED;
    for (int i = 0; i < net->n; i++) {
        client_hear(&net->client[i]);
        n = net->client[i].n < n ? net->client[i].n : n;
    }
    for (int k = 0; k < n; k++) {
        int at = net->backwards ? n - 1 - k : k;
        for (int i = 1; i < net->n; i++) {
            const hth_sum_message *a = &net->client[i].asked[at], *b = &net->client[0].asked[at];
            assert_true(a->what == b->what && a->offset == b->offset && a->count == b->count);
        }
        hub_sum(net, &net->client[0].asked[at]);
        for (int i = 0; i < net->n; i++) {
            hth_sum_message m = {.what = HTH_SUM_DONE, .id = net->client[i].asked[at].id};
            (void)hth_sum_link_send(net->client[i].fd, &m, -1);
        }
    }
    for (int i = 0; i < net->n; i++) {
        client *c = &net->client[i];
        c->n -= n;
        memmove(c->asked, c->asked + n, (size_t)c->n * sizeof *c->asked);
    }
}

// ---- ranks

static float sample_value(int64_t step, int64_t sample)
{
    return (float)((sample * 37 + step * 11) % 101) / 100;
}

static void rank_pass(rank_state *rank, bool full)
{
    const hth_group_round *r = &rank->round;
    float *content = hth_alloc(LARGE * sizeof *content);
    double sum[2] = {0, 0}, weight = 0;
    assert_non_null(content);
    for (int64_t s = r->from; s < r->from + r->n; s++) {
        double v = (double)sample_value(r->step, s), w = rank->weightless ? 0 : (double)(s % 3);
        sum[0] += w * v;
        sum[1] += v;
        weight += w;
    }
    if (r->n > 0) {
        hth_group_weigh(rank->group, weight, weight);
        for (int k = 0; k < SLOTS && full; k++) {
            double by = by_count[k] ? (double)r->n : weight;
            double mean = by > 0 ? sum[by_count[k]] / by : 0;
            for (size_t i = 0; i < slot_floats[k]; i++) {
                content[i] = (float)mean;
            }
            if (!hth_group_alone(rank->group)) {
                float *place = r->step % 2 == 1 ? hth_group_place(rank->group, k) : content;
                memmove(place, content, slot_floats[k] * sizeof *place);
                hth_group_ready(rank->group, k, place);
            }
            rank->learned[k] = (float)mean;
        }
    }
    if (full) {
        hth_group_passed(rank->group, weight > 0 ? sum[0] / weight : 0, 10 + (double)r->from,
                         (double)r->n);
    }
    rank->at_work = true;
    hth_free(content);
}

static void rank_look(rank_state *rank)
{
    hth_group_result result = hth_group_look(rank->group);
    rank->at_work = result == HTH_GROUP_SUMMING;
    rank->broken += result == HTH_GROUP_BROKEN;
    for (int k = 0; k < SLOTS && result == HTH_GROUP_SUMMED && !hth_group_alone(rank->group); k++) {
        double factor = by_count[k] ? 1 : hth_group_factor(rank->group);
        double sum = (double)hth_group_summed(rank->group, k)[slot_floats[k] - 1];
        rank->learned[k] = (float)(factor * sum);
    }
    rank->made += result == HTH_GROUP_SUMMED;
    rank->at += result == HTH_GROUP_SUMMED && !rank->follows;
}

// rank_move does what can be done now. `shards`: the lead's.
static void rank_move(rank_state *rank, const int64_t *shards, int64_t most)
{
    if (rank->over) {
        return;
    }
    if (rank->at_work) {
        rank_look(rank);
        return;
    }
    switch (hth_group_begin(rank->group, &rank->round)) {
    case HTH_GROUP_LEADS:
        rank->led++;
        if (rank->at < STEPS) {
            (void)hth_group_start(rank->group, shards);
        } else {
            rank->over = true;
        }
        break;
    case HTH_GROUP_ROUND:
        if (rank->round.n > most) {
            hth_group_most(rank->group, most);
            break;
        }
        rank_pass(rank, true);
        break;
    case HTH_GROUP_GIVES:
        memcpy(hth_group_state(rank->group), &rank->at, sizeof rank->at);
        hth_group_gave(rank->group);
        break;
    case HTH_GROUP_TAKES:
        memcpy(&rank->at, hth_group_state(rank->group), sizeof rank->at);
        assert_int_equal(rank->at, rank->round.step);
        hth_group_took(rank->group);
        rank->taken++;
        break;
    case HTH_GROUP_OVER:
        rank->over = true;
        rank->end = hth_group_over(rank->group);
        snprintf(rank->why, sizeof rank->why, "%s", hth_err_detail());
        break;
    default:
        break;
    }
}

static hth_group_spec spec_of(int member)
{
    return (hth_group_spec){.member = member,
                            .batch = BATCH,
                            .steps = STEPS,
                            .n_slots = SLOTS,
                            .floats = slot_floats,
                            .by_count = by_count,
                            .state_bytes = 64,
                            .fingerprint = 0x123456789abcdefu};
}

static hth_err net_join(net *net, int i, const hth_group_spec *spec)
{
    int engine;
    HTH_TRY(hth_sum_link_make(&engine, &net->client[i].fd));
    hth_err err = hth_group_join_ranks(engine, net->n, spec, &net->rank[i].group);
    net->rank[i].at = spec->at;
    net->rank[i].follows = spec->server && i > 0;
    if (err != HTH_OK) {
        close(engine);
    }
    return err;
}

static void net_open_as(net *net, int n, bool server)
{
    memset(net, 0, sizeof *net);
    net->n = n;
    for (int i = 0; i < RANKS; i++) {
        net->client[i].fd = -1;
    }
    for (int i = 0; i < n; i++) {
        hth_group_spec spec = spec_of(i);
        spec.server = server;
        assert_ok(net_join(net, i, &spec));
    }
}

static void net_open(net *net, int n)
{
    net_open_as(net, n, false);
}

static void net_close(net *net)
{
    for (int i = 0; i < net->n; i++) {
        hth_group_leave(net->rank[i].group);
        client_close(&net->client[i]);
    }
}

// A rank that is over leaves, as its job does.
static void net_turn(net *net, const int64_t *shards, const int64_t *most)
{
    for (int i = 0; i < net->n; i++) {
        rank_move(&net->rank[i], shards, most != NULL ? most[i] : BATCH);
        if (net->rank[i].over && net->rank[i].group != NULL) {
            hth_group_leave(net->rank[i].group);
            net->rank[i].group = NULL;
        }
    }
    hub_answer(net);
}

static void net_run(net *net, const int64_t *shards)
{
    for (int turn = 0; turn < 1000; turn++) {
        net_turn(net, shards, NULL);
    }
}

static double mean_of(int64_t step, bool count)
{
    double sum = 0, weight = 0;
    for (int64_t s = 0; s < BATCH; s++) {
        double w = count ? 1 : (double)(s % 3);
        sum += w * (double)sample_value(step, s);
        weight += w;
    }
    return sum / weight;
}

static void expect_whole(const net *net)
{
    for (int i = 0; i < net->n; i++) {
        const rank_state *rank = &net->rank[i];
        assert_true(rank->over);
        assert_int_equal(rank->end, HTH_OK);
        assert_int_equal(rank->at, STEPS);
        assert_float_equal(rank->learned[0], mean_of(STEPS - 1, false), 1e-5);
        assert_float_equal(rank->learned[1], mean_of(STEPS - 1, false), 1e-5);
        assert_float_equal(rank->learned[2], mean_of(STEPS - 1, true), 1e-5);
        assert_true(net->client[i].bye && net->client[i].all);
    }
}

// ---- tests

static void ranks_sum_what_they_weigh(void **state)
{
    net net;
    for (int n = 1; n <= RANKS; n++) {
        for (int i = 0; i < 4; i++) {
            int64_t shards[HTH_GROUP_MEMBERS] = {0};
            memcpy(shards, uneven, (size_t)n * sizeof *shards);
            shards[0] += n < 3 ? 8 : 0;
            shards[0] += n < 2 ? 3 : 0;
            if (i >= 2 && n == 3) { // one has nothing to do
                shards[0] += shards[1];
                shards[1] = 0;
            }
            net_open(&net, n);
            net.backwards = i % 2 == 1;
            net_run(&net, shards);
            expect_whole(&net);
            net_close(&net);
        }
    }
    (void)state;
}

static void the_loss_is_the_whole_batch_s(void **state)
{
    net net;
    double ms;
    net_open(&net, 2);
    while (net.rank[0].made < 2 || net.rank[1].made < 2) {
        net_turn(&net, (const int64_t[HTH_GROUP_MEMBERS]){20, 4}, NULL);
    }
    for (int i = 0; i < 2; i++) {
        assert_float_equal(hth_group_loss(net.rank[i].group, 1, &ms), mean_of(1, false), 1e-6);
        assert_true(ms >= 0);
        hth_group_seat seat[HTH_GROUP_MEMBERS];
        assert_int_equal(hth_group_seats(net.rank[i].group, seat), 2);
        assert_float_equal(seat[0].sample_us, 10, 0);
        assert_float_equal(seat[1].sample_us, 30, 0);
        assert_float_equal(seat[0].fixed_us, 20, 0);
        assert_float_equal(seat[1].fixed_us, 4, 0);
        assert_true(seat[0].joined && seat[1].joined);
    }
    net_close(&net);
    (void)state;
}

// A batch of which no sample weighs anything has a loss, and gradients, of 0.
static void nothing_weighs(void **state)
{
    net net;
    double ms;
    net_open(&net, 2);
    net.rank[0].weightless = net.rank[1].weightless = true;
    while (net.rank[0].made < 2 || net.rank[1].made < 2) {
        net_turn(&net, (const int64_t[HTH_GROUP_MEMBERS]){20, 4}, NULL);
    }
    for (int i = 0; i < 2; i++) {
        assert_true(hth_group_loss(net.rank[i].group, 1, &ms) == 0);
        assert_true(net.rank[i].learned[0] == 0);
    }
    net_close(&net);
    (void)state;
}

static void the_lead_s_state_counts(void **state)
{
    net net;
    memset(&net, 0, sizeof net);
    net.n = 3;
    for (int i = 0; i < 3; i++) {
        hth_group_spec spec = spec_of(i);
        spec.at = (const int64_t[]){3, 0, 4}[i];
        assert_ok(net_join(&net, i, &spec));
    }
    net_run(&net, uneven);
    expect_whole(&net);
    assert_int_equal(net.rank[1].made, 2);
    net_close(&net);
    (void)state;
}

// A parameter server's update goes to the others before the next round, but after the last one: who
// leaves then says so in their place.
static void a_server_s_state_goes_to_the_others(void **state)
{
    net net;
    for (int n = 1; n <= RANKS; n++) {
        net_open_as(&net, n, true);
        net.backwards = n == 3;
        net_run(&net, (const int64_t[HTH_GROUP_MEMBERS]){BATCH - n + 1, n > 1, n > 2});
        for (int i = 0; i < n; i++) {
            assert_true(net.rank[i].over);
            assert_int_equal(net.rank[i].end, HTH_OK);
            assert_int_equal(net.rank[i].made, STEPS);
            assert_int_equal(net.rank[i].taken, i > 0 ? STEPS - 1 : 0);
            // one a step, and the end: the plan that came before the state is not asked for again
            assert_int_equal(net.rank[i].led, i > 0 ? 0 : STEPS + 1);
            assert_int_equal(net.rank[i].at, i > 0 ? STEPS - 1 : STEPS);
            assert_true(net.client[i].bye && net.client[i].all);
        }
        net_close(&net);
    }
    net_open_as(&net, 2, true);
    while (net.rank[0].made < 2) {
        net_turn(&net, (const int64_t[HTH_GROUP_MEMBERS]){20, 4}, NULL);
    }
    hth_group_leave(net.rank[0].group);
    net.rank[0].group = NULL;
    net.rank[0].over = true;
    net_run(&net, NULL);
    assert_int_equal(net.rank[1].end, HTH_ECANCELED);
    assert_non_null(strstr(net.rank[1].why, "rank 0 has ended the job after step 2"));
    net_close(&net);
}

static void ranks_that_differ_are_refused(void **state)
{
    for (int what = 0; what < 5; what++) {
        net net;
        memset(&net, 0, sizeof net);
        net.n = 2;
        for (int i = 0; i < 2; i++) {
            hth_group_spec spec = spec_of(i);
            spec.fingerprint += i == 1 && what == 0;
            spec.fingerprint += i == 1 && what == 1 ? 1ull << 40 : 0;
            spec.batch += i == 1 && what == 2;
            spec.steps += i == 1 && what == 3;
            spec.n_slots -= i == 1 && what == 4;
            assert_ok(net_join(&net, i, &spec));
        }
        net_run(&net, uneven);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(net.rank[i].end, HTH_EINVAL);
            assert_non_null(strstr(net.rank[i].why, "rank 1 has another model, data or options"));
            assert_int_equal(net.rank[i].made, 0);
        }
        net_close(&net);
    }
    (void)state;
}

// Two clients that think they are the same rank: the row that both have filled says so.
static void a_rank_that_is_there_twice_is_refused(void **state)
{
    net net;
    memset(&net, 0, sizeof net);
    net.n = 2;
    for (int i = 0; i < 2; i++) {
        hth_group_spec spec = spec_of(0);
        assert_ok(net_join(&net, i, &spec));
    }
    net_run(&net, uneven);
    assert_int_equal(net.rank[0].end, HTH_EINVAL);
    assert_non_null(strstr(net.rank[0].why, "rank 0 of 2 is there 2 times"));
    net_close(&net);
    (void)state;
}

static void a_rank_that_has_no_room_breaks_the_round(void **state)
{
    net net;
    net_open(&net, 3);
    const int64_t most[] = {BATCH, 2, BATCH};
    while (net.rank[0].broken == 0 || net.rank[2].broken == 0) {
        net_turn(&net, uneven, most);
    }
    hth_group_seat seat[HTH_GROUP_MEMBERS];
    for (int i = 0; i < 3; i++) {
        (void)hth_group_seats(net.rank[i].group, seat);
        assert_int_equal(seat[1].most, 2);
        assert_true(seat[0].most == INT64_MAX && seat[2].most == INT64_MAX); // as they have said
        assert_int_equal(net.rank[i].made, 0);
    }
    net_run(&net, (const int64_t[HTH_GROUP_MEMBERS]){14, 2, 8});
    expect_whole(&net);
    net_close(&net);
    (void)state;
}

static void a_client_s_end_ends_its_rank(void **state)
{
    for (int turns = 0; turns < 40; turns += 3) {
        net net;
        net_open(&net, 2);
        for (int t = 0; t < turns && !net.rank[1].over; t++) {
            net_turn(&net, (const int64_t[HTH_GROUP_MEMBERS]){20, 4}, NULL);
        }
        if (net.rank[1].over) {
            net_close(&net);
            break;
        }
        client_close(&net.client[1]);
        for (int t = 0; t < 10; t++) {
            rank_move(&net.rank[1], NULL, BATCH);
        }
        assert_true(net.rank[1].over);
        assert_int_equal(net.rank[1].end, HTH_EIO);
        assert_non_null(strstr(net.rank[1].why, "rank 1 of 2 has lost the client"));
        net_close(&net);
    }
    (void)state;
}

static void a_client_says_why(void **state)
{
    net net;
    net_open(&net, 2);
    hth_sum_message m = {.what = HTH_SUM_FAILED, .text = "node 7 is down"};
    assert_ok(hth_sum_link_send(net.client[0].fd, &m, -1));
    rank_move(&net.rank[0], uneven, BATCH);
    assert_int_equal(net.rank[0].end, HTH_EIO);
    assert_string_equal(net.rank[0].why, "rank 0 of 2: node 7 is down");
    net_close(&net);
    (void)state;
}

static void an_answer_to_no_question_is_refused(void **state)
{
    for (int what = 0; what < 3; what++) {
        net net;
        net_open(&net, 1);
        hth_sum_message m = {.what = what == 0 ? HTH_SUM_HELLO : HTH_SUM_DONE,
                             .id = what == 2 ? UINT64_MAX : 77};
        assert_ok(hth_sum_link_send(net.client[0].fd, &m, -1));
        rank_move(&net.rank[0], uneven, BATCH);
        assert_int_equal(net.rank[0].end, HTH_ECORRUPT);
        net_close(&net);
    }
    (void)state;
}

// A client may write what it likes into the memory: shards that make no sense end the job.
static void shards_that_make_no_sense_are_refused(void **state)
{
    net net;
    net_open(&net, 2);
    while (net.client[1].n == 0 || net.client[1].asked[0].count < 100 ||
           net.client[1].asked[0].what != HTH_SUM_BROADCAST) {
        rank_move(&net.rank[0], uneven, BATCH);
        rank_move(&net.rank[1], uneven, BATCH);
        client_hear(&net.client[0]);
        client_hear(&net.client[1]);
        if (net.client[1].n > 0 && net.client[1].asked[0].what != HTH_SUM_BROADCAST) {
            hub_answer(&net);
        }
    }
    const hth_sum_message asked = net.client[1].asked[0];
    memset(net.client[1].memory + asked.offset, 0x7f, asked.count);
    int64_t *stops = (int64_t *)(void *)(net.client[1].memory + asked.offset) + 1;
    *stops = 0;
    hth_sum_message m = {.what = HTH_SUM_DONE, .id = asked.id};
    assert_ok(hth_sum_link_send(net.client[1].fd, &m, -1));
    rank_move(&net.rank[1], uneven, BATCH);
    assert_int_equal(net.rank[1].end, HTH_ECORRUPT);
    net_close(&net);
    (void)state;
}

// A round that this rank has not finished is undone; one that may be certain is waited for.
static void who_leaves_breaks_what_is_not_certain(void **state)
{
    net net;
    net_open(&net, 2);
    while (hth_group_begin(net.rank[1].group, &net.rank[1].round) != HTH_GROUP_ROUND) {
        rank_move(&net.rank[0], (const int64_t[HTH_GROUP_MEMBERS]){20, 4}, BATCH);
        hub_answer(&net);
    }
    rank_pass(&net.rank[1], false);
    hth_group_break(net.rank[1].group);
    assert_int_equal(hth_group_look(net.rank[1].group), HTH_GROUP_BROKEN);
    net_close(&net);
    (void)state;
}

// A rank that has handed in everything waits only for moments: its client need not answer, and this
// is its device's engine. If it does not leave after all, it has ended, for the others go on.
static void who_breaks_and_stays_has_ended(void **state)
{
    net net;
    net_open(&net, 2);
    while (hth_group_begin(net.rank[1].group, &net.rank[1].round) != HTH_GROUP_ROUND) {
        rank_move(&net.rank[0], (const int64_t[HTH_GROUP_MEMBERS]){20, 4}, BATCH);
        hub_answer(&net);
    }
    rank_pass(&net.rank[1], true);
    uint64_t before_ns = hth_real_ns();
    hth_group_break(net.rank[1].group);
    assert_true(hth_real_ns() - before_ns < 1000000000u);
    assert_int_equal(hth_group_look(net.rank[1].group), HTH_GROUP_BROKEN);
    assert_int_equal(hth_group_begin(net.rank[1].group, &net.rank[1].round), HTH_GROUP_OVER);
    assert_err(hth_group_over(net.rank[1].group), HTH_EIO,
               "rank 1 of 2 has left a step that the others make");
    net_close(&net);
    (void)state;
}

static hth_err join_once(void)
{
    int engine, end;
    hth_group *group;
    hth_group_spec spec = spec_of(1);
    HTH_TRY(hth_sum_link_make(&engine, &end));
    hth_err err = hth_group_join_ranks(engine, 2, &spec, &group);
    if (err == HTH_OK) {
        hth_group_leave(group);
    } else {
        assert_int_equal(close(engine), 0); // is the caller's still
    }
    close(end);
    return err;
}

static void no_memory_is_an_error(void **state)
{
    FAULT_LOOP(join_once());
    (void)state;
}

static void numbers_are_checked(void **state)
{
    hth_group *group;
    hth_group_spec spec = spec_of(2);
    assert_int_equal(hth_group_join_ranks(-1, 2, &spec, &group), HTH_EINVAL);
    assert_int_equal(hth_group_join_ranks(-1, HTH_GROUP_MEMBERS + 1, &spec, &group), HTH_EINVAL);
    spec = spec_of(1);
    spec.steps = INT32_MAX;
    assert_err(hth_group_join_ranks(-1, 2, &spec, &group), HTH_EINVAL,
               "at most 2147483646 steps, not 2147483647");
    assert_int_equal(hth_sum_link_check(0), HTH_EINVAL);
    int a, b;
    assert_ok(hth_sum_link_make(&a, &b));
    assert_ok(hth_sum_link_check(a));
    close(a);
    close(b);
    (void)state;
}

static void begin_round(net *net, const int64_t *shards)
{
    int begun = 0;
    for (int turn = 0; turn < 1000 && begun < net->n; turn++) {
        for (int i = 0; i < net->n; i++) {
            rank_state *rank = &net->rank[i];
            hth_group_turn now =
                rank->at_work ? HTH_GROUP_WAITS : hth_group_begin(rank->group, &rank->round);
            if (now == HTH_GROUP_LEADS) {
                (void)hth_group_start(rank->group, shards);
            }
            rank->at_work = rank->at_work || now == HTH_GROUP_ROUND;
            begun += now == HTH_GROUP_ROUND;
        }
        hub_answer(net);
    }
    assert_int_equal(begun, net->n);
}

// Slots come in the order in which a pass writes them; their sums are under way while it goes on.
static void sums_begin_before_the_pass_has_ended(void **state)
{
    static const size_t floats[SLOTS + 1] = {EXCHANGE_BUCKET, EXCHANGE_BUCKET, 3};
    (void)state;
    net net;
    memset(&net, 0, sizeof net);
    net.n = RANKS;
    float *content = hth_calloc(EXCHANGE_BUCKET, sizeof *content);
    assert_non_null(content);
    for (int i = 0; i < RANKS; i++) {
        hth_group_spec spec = spec_of(i);
        spec.floats = floats;
        assert_ok(net_join(&net, i, &spec));
    }
    begin_round(&net, uneven);
    for (int k = 0; k < SLOTS; k++) {
        client *c = &net.client[1];
        hth_group_weigh(net.rank[1].group, 1, 1);
        hth_group_ready(net.rank[1].group, k, content);
        client_hear(c);
        assert_int_equal(c->n, k + 1);
        assert_int_equal(c->asked[k].what, HTH_SUM_F32);
        assert_int_equal(c->asked[k].count, floats[k] < 16 ? 16 : floats[k]);
    }
    hth_group_passed(net.rank[1].group, 1, 10, 0);
    client_hear(&net.client[1]);
    assert_int_equal(net.client[1].n, SLOTS + 1);
    for (int k = 0; k <= SLOTS; k++) { // the step is made with the last answer, not before
        hth_sum_message m = {.what = HTH_SUM_DONE, .id = net.client[1].asked[k].id};
        assert_int_equal(hth_group_look(net.rank[1].group), HTH_GROUP_SUMMING);
        assert_ok(hth_sum_link_send(net.client[1].fd, &m, -1));
    }
    assert_int_equal(hth_group_look(net.rank[1].group), HTH_GROUP_SUMMED);
    hth_free(content);
    net_close(&net);
}

// What a pass has written in its place is sent from there: as it is, where ranks weigh the same.
static void gradients_are_sent_from_their_place(void **state)
{
    static const int64_t cut[][HTH_GROUP_MEMBERS] = {{12, 12}, {16, 8}, {0, 24}};
    static const float sent[][2] = {{0.3f, 0.3f}, {0.3f, 0.3f / 2}, {0, 24 * 0.3f}};
    for (size_t c = 0; c < sizeof cut / sizeof *cut; c++) {
        net net;
        net_open(&net, 2);
        begin_round(&net, cut[c]);
        for (int i = 0; i < 2; i++) {
            rank_state *rank = &net.rank[i];
            for (int k = 0; k < SLOTS && rank->round.n > 0; k++) {
                float *place = hth_group_place(rank->group, k);
                assert_int_equal((uintptr_t)place % 64, 0);
                for (size_t f = 0; f < slot_floats[k]; f++) {
                    place[f] = 0.3f;
                }
                hth_group_weigh(rank->group, (double)rank->round.n, (double)rank->round.n);
                hth_group_ready(rank->group, k, place);
            }
            hth_group_passed(rank->group, 1, 10, 0);
            for (int k = 0; k < SLOTS; k++) {
                const float *place = hth_group_place(rank->group, k);
                assert_float_equal(place[slot_floats[k] - 1], sent[c][i], 0);
            }
        }
        hub_answer(&net);
        for (int i = 0; i < 2; i++) {
            rank_look(&net.rank[i]);
            assert_int_equal(net.rank[i].made, 1);
            for (int k = 0; k < SLOTS; k++) {
                assert_float_equal(net.rank[i].learned[k], 0.3, 1e-7);
            }
        }
        net_close(&net);
    }
    (void)state;
}

// Samples that weigh nothing add to the sums what they have, by what all others weigh.
static void one_weighs(void **state)
{
    static const double weigh[][2] = {{0, 5}, {20, 20}};
    net net;
    double ms;
    net_open(&net, 2);
    begin_round(&net, (const int64_t[HTH_GROUP_MEMBERS]){12, 12});
    for (int i = 0; i < 2; i++) {
        rank_state *rank = &net.rank[i];
        hth_group_weigh(rank->group, weigh[i][0], weigh[i][1]);
        for (int k = 0; k < SLOTS; k++) {
            float *place = hth_group_place(rank->group, k);
            for (size_t f = 0; f < slot_floats[k]; f++) {
                place[f] = 0.5F;
            }
            hth_group_ready(rank->group, k, place);
        }
        hth_group_passed(rank->group, 1, 10, 0);
    }
    hub_answer(&net);
    for (int i = 0; i < 2; i++) {
        rank_look(&net.rank[i]);
        for (int k = 0; k < SLOTS; k++) {
            assert_float_equal(net.rank[i].learned[k], by_count[k] ? 0.5 : 0.625, 1e-7);
        }
        assert_float_equal(hth_group_loss(net.rank[i].group, 0, &ms), 1.25, 1e-9);
    }
    net_close(&net);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_sum_what_they_weigh),
        cmocka_unit_test(sums_begin_before_the_pass_has_ended),
        cmocka_unit_test(gradients_are_sent_from_their_place),
        cmocka_unit_test(the_loss_is_the_whole_batch_s),
        cmocka_unit_test(nothing_weighs),
        cmocka_unit_test(one_weighs),
        cmocka_unit_test(the_lead_s_state_counts),
        cmocka_unit_test(a_server_s_state_goes_to_the_others),
        cmocka_unit_test(ranks_that_differ_are_refused),
        cmocka_unit_test(a_rank_that_is_there_twice_is_refused),
        cmocka_unit_test(a_rank_that_has_no_room_breaks_the_round),
        cmocka_unit_test(a_client_s_end_ends_its_rank),
        cmocka_unit_test(a_client_says_why),
        cmocka_unit_test(an_answer_to_no_question_is_refused),
        cmocka_unit_test(shards_that_make_no_sense_are_refused),
        cmocka_unit_test(who_leaves_breaks_what_is_not_certain),
        cmocka_unit_test(who_breaks_and_stays_has_ended),
        cmocka_unit_test(no_memory_is_an_error),
        cmocka_unit_test(numbers_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
