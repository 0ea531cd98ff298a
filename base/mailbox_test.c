// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"

#include "base/mailbox.h"
#include "base/thread.h"

#include <sched.h>

#define N_SENDERS 4
#define N_EACH    5000

static void test_order_and_bound(void **state)
{
    hth_mailbox *m;
    int v[3];
    void *out;
    assert_err(hth_mailbox_open(0, 0, &m), HTH_EINVAL, "room");
    assert_null(m);
    FAULT_LOOP(hth_mailbox_open(2, 0, &m));
    assert_int_equal(hth_mailbox_receive(m, 0, &out), HTH_ETIMEDOUT);
    assert_int_equal(hth_mailbox_receive(m, 1000000, &out), HTH_ETIMEDOUT);
    for (int round = 0; round < 5; round++) { // round the ring's corner
        assert_ok(hth_mailbox_send(m, &v[0]));
        assert_ok(hth_mailbox_send(m, &v[1]));
        assert_err(hth_mailbox_send(m, &v[2]), HTH_EBUSY, "full");
        assert_int_equal(hth_mailbox_count(m), 2);
        assert_ok(hth_mailbox_receive(m, 0, &out));
        assert_ptr_equal(out, &v[0]);
        assert_ok(hth_mailbox_send(m, &v[2]));
        assert_ok(hth_mailbox_receive(m, HTH_FOREVER, &out));
        assert_ptr_equal(out, &v[1]);
        assert_ok(hth_mailbox_receive(m, 5, &out));
        assert_ptr_equal(out, &v[2]);
    }
    hth_mailbox_close(m);
    hth_mailbox_close(NULL);
}

static void test_stop(void **state)
{
    hth_mailbox *m;
    int v;
    void *out;
    assert_ok(hth_mailbox_open(4, 1000, &m));
    assert_ok(hth_mailbox_send(m, &v));
    hth_mailbox_stop(m);
    assert_err(hth_mailbox_send(m, &v), HTH_ECANCELED, "stopping");
    assert_ok(hth_mailbox_receive(m, HTH_FOREVER, &out)); // what was accepted is still delivered
    assert_ptr_equal(out, &v);
    assert_int_equal(hth_mailbox_receive(m, HTH_FOREVER, &out), HTH_ECANCELED);
    assert_null(out);
    hth_mailbox_close(m);
}

static void stopper(void *ctx)
{
    hth_mailbox_stop(ctx);
}

static void test_stop_wakes(void **state)
{
    for (uint64_t spin = 0; spin < 200000; spin += 50000) {
        hth_mailbox *m;
        pthread_t t;
        void *out;
        assert_ok(hth_mailbox_open(4, spin, &m));
        assert_ok(hth_thread_start("stopper", stopper, m, &t));
        assert_int_equal(hth_mailbox_receive(m, HTH_FOREVER, &out), HTH_ECANCELED);
        hth_thread_join(t);
        hth_mailbox_close(m);
    }
}

typedef struct sender {
    hth_mailbox *m;
    uintptr_t number;
} sender;

static void send_many(void *ctx)
{
    sender *s = ctx;
    for (uintptr_t i = 1; i <= N_EACH; i++) {
        while (hth_mailbox_send(s->m, (void *)(s->number << 32 | i)) == HTH_EBUSY) {
            sched_yield();
        }
    }
}

static void test_many_senders(void **state)
{
    hth_mailbox *m;
    pthread_t t[N_SENDERS];
    sender s[N_SENDERS];
    uintptr_t last[N_SENDERS] = {0};
    assert_ok(hth_mailbox_open(16, 2000, &m));
    for (uintptr_t i = 0; i < N_SENDERS; i++) {
        s[i] = (sender){m, i};
        assert_ok(hth_thread_start("sender", send_many, &s[i], &t[i]));
    }
    for (int i = 0; i < N_SENDERS * N_EACH; i++) {
        void *out;
        assert_ok(hth_mailbox_receive(m, HTH_FOREVER, &out));
        uintptr_t v = (uintptr_t)out, from = v >> 32;
        assert_true(from < N_SENDERS);
        assert_int_equal((uint32_t)v,
                         ++last[from]); // each sender's own order, nothing lost or doubled
    }
    for (int i = 0; i < N_SENDERS; i++) {
        hth_thread_join(t[i]);
    }
    assert_int_equal(hth_mailbox_count(m), 0);
    hth_mailbox_close(m);
}

static void wake_later(void *m)
{
    hth_mailbox_wake(m);
}

static void test_wake(void **state)
{
    hth_mailbox *m;
    pthread_t t;
    void *out;
    int one;
    assert_ok(hth_mailbox_open(4, 0, &m));
    hth_mailbox_wake(m); // before: the next wait ends
    assert_int_equal(hth_mailbox_receive(m, HTH_FOREVER, &out), HTH_ETIMEDOUT);
    assert_null(out);
    assert_ok(hth_thread_start("wake", wake_later, m, &t));
    assert_int_equal(hth_mailbox_receive(m, HTH_FOREVER, &out), HTH_ETIMEDOUT);
    hth_thread_join(t);
    hth_mailbox_wake(m); // a message comes first
    assert_ok(hth_mailbox_send(m, &one));
    assert_ok(hth_mailbox_receive(m, HTH_FOREVER, &out));
    assert_int_equal(hth_mailbox_receive(m, 0, &out), HTH_ETIMEDOUT);
    hth_mailbox_close(m);
}

// ---- another place that is looked into

typedef struct place {
    hth_mailbox *m;
    int looks, leaves, send_at; // on which look; 0: only when it is left
    int message;
} place;

static bool place_look(void *ctx)
{
    place *p = ctx;
    if (++p->looks == p->send_at) {
        assert_ok(hth_mailbox_send(p->m, &p->message));
    }
    return false;
}

static void place_leave(void *ctx)
{
    place *p = ctx;
    p->leaves++;
    if (p->send_at == 0) {
        assert_ok(hth_mailbox_send(p->m, &p->message));
    }
}

static void test_watch(void **state)
{
    place p = {.send_at = 3};
    hth_poll_hook w = {place_look, place_leave, &p};
    void *out;
    assert_ok(hth_mailbox_open(4, 10000000000u, &p.m)); // found long before that
    hth_mailbox_set_poll(p.m, &w);
    assert_int_equal(hth_mailbox_receive(p.m, 0, &out), HTH_ETIMEDOUT);
    assert_int_equal(p.looks, 1);
    assert_ok(hth_mailbox_receive(p.m, HTH_FOREVER, &out));
    assert_ptr_equal(out, &p.message);
    assert_int_equal(p.looks, 3);
    assert_int_equal(p.leaves, 0);
    p.send_at = 4;
    assert_int_equal(hth_mailbox_count(p.m), 1); // it looks, too
    assert_ok(hth_mailbox_receive(p.m, 0, &out));
    hth_mailbox_close(p.m);
    p = (place){.send_at = 0};
    assert_ok(hth_mailbox_open(4, 0, &p.m));
    hth_mailbox_set_poll(p.m, &w);
    assert_ok(hth_mailbox_receive(p.m, HTH_FOREVER, &out)); // sent in the last moment: no sleep
    assert_int_equal(p.leaves, 1);
    hth_mailbox_close(p.m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_bound), cmocka_unit_test(test_stop),
        cmocka_unit_test(test_stop_wakes),      cmocka_unit_test(test_many_senders),
        cmocka_unit_test(test_watch),           cmocka_unit_test(test_wake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
