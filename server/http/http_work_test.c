// SPDX-License-Identifier: Apache-2.0
#include "server/http/http_work.h"

#include "base/test.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

typedef struct work_item {
    hth_http_task task;
    pthread_mutex_t *gate; // held until it may end; may be NULL
    int number;
} work_item;

static atomic_int n_order, n_done, n_waiting;
static int order[64];

static void item_run(hth_http_task *task)
{
    work_item *w = (work_item *)task;
    if (w->gate != NULL) {
        atomic_fetch_add(&n_waiting, 1);
        pthread_mutex_lock(w->gate);
        pthread_mutex_unlock(w->gate);
        return;
    }
    order[atomic_fetch_add(&n_order, 1)] = w->number;
    atomic_fetch_add(&n_done, 1);
}

static void wait_for(atomic_int *v, int least)
{
    while (atomic_load(v) < least) {
        sched_yield();
    }
}

static void submit(hth_http_work *work, work_item *item, uint64_t group, uint64_t one,
                   uint64_t cost)
{
    item->task = (hth_http_task){.run = item_run, .group = group, .one = one, .cost = cost};
    hth_http_work_submit(work, &item->task);
}

// open_held has both threads of the pool wait, each at a gate.
static hth_http_work *open_held(pthread_mutex_t gate[2], work_item gates[2])
{
    hth_http_work *w;
    atomic_store(&n_order, 0);
    atomic_store(&n_done, 0);
    atomic_store(&n_waiting, 0);
    assert_ok(hth_http_work_open(&w));
    for (int i = 0; i < 2; i++) {
        pthread_mutex_init(&gate[i], NULL);
        pthread_mutex_lock(&gate[i]);
        gates[i] = (work_item){.gate = &gate[i]};
        submit(w, &gates[i], 8 + (uint64_t)i, 8 + (uint64_t)i, 1);
        wait_for(&n_waiting, i + 1);
    }
    return w;
}

static void close_held(hth_http_work *work, pthread_mutex_t gate[2])
{
    hth_http_work_close(work);
    pthread_mutex_destroy(&gate[0]);
    pthread_mutex_destroy(&gate[1]);
}

// expect_order has one thread run all, in that order.
static void expect_order(hth_http_work *work, pthread_mutex_t gate[2], const int *want, int n)
{
    pthread_mutex_unlock(&gate[0]);
    wait_for(&n_done, n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(order[i], want[i]);
    }
    pthread_mutex_unlock(&gate[1]);
    close_held(work, gate);
}

// Connections of one group: many large tasks wait; a small one of another connection comes next,
// then one by one those whose connections had least; of one connection in order; and nobody is
// passed for ever.
static void test_order(void **state)
{
    enum { LARGE = 8, N = LARGE + 4 };
    static const int of[] = {2, 3, 3, 4}, cost[] = {10, 1500, 1500, 999};
    static const int want[N] = {8, 11, 0, 9, 1, 2, 10, 3, 4, 5, 6, 7};
    pthread_mutex_t gate[2];
    work_item gates[2], item[N];
    hth_http_work *w = open_held(gate, gates);
    for (int i = 0; i < N; i++) {
        item[i] = (work_item){.number = i};
        submit(w, &item[i], 7, i < LARGE ? 1 : (uint64_t)of[i - LARGE],
               i < LARGE ? 1000 : (uint64_t)cost[i - LARGE]);
    }
    expect_order(w, gate, want, N);
}

// Groups share alike, however many connections one has; in a group comes first what goes on.
static void test_groups(void **state)
{
    enum { MANY = 6, N = MANY + 4 };
    static const int want[N] = {9, 0, 6, 7, 1, 8, 2, 3, 4, 5};
    pthread_mutex_t gate[2];
    work_item gates[2], item[N];
    hth_http_work *w = open_held(gate, gates);
    for (int i = 0; i < N; i++) {
        item[i] = (work_item){.number = i};
    }
    for (int i = 0; i < MANY; i++) {
        submit(w, &item[i], 1, 100 + (uint64_t)i, 1000);
    }
    for (int i = 0; i < 3; i++) {
        submit(w, &item[MANY + i], 2, 200, 600);
    }
    item[9].task =
        (hth_http_task){.run = item_run, .group = 2, .one = 201, .cost = 300, .goes_on = true};
    hth_http_work_submit(w, &item[9].task);
    expect_order(w, gate, want, N);
}

// Of a group's long tasks one runs at a time: the other thread is for others, and for short ones.
static void test_long(void **state)
{
    enum { LONG = 64 << 20 };
    pthread_mutex_t gate[2], inside = PTHREAD_MUTEX_INITIALIZER;
    work_item gates[2], first = {.gate = &inside}, item[4];
    hth_http_work *w = open_held(gate, gates);
    pthread_mutex_lock(&inside);
    submit(w, &first, 1, 1, LONG);
    pthread_mutex_unlock(&gate[0]);
    wait_for(&n_waiting, 3);
    for (int i = 0; i < 4; i++) {
        item[i] = (work_item){.number = i};
    }
    submit(w, &item[0], 1, 2, LONG);
    submit(w, &item[1], 1, 3, 100);
    submit(w, &item[2], 2, 4, LONG);
    item[3].task = (hth_http_task){.run = item_run, .group = 1, .one = 5, .most = LONG};
    hth_http_work_submit(w, &item[3].task);
    pthread_mutex_unlock(&gate[1]); // the other thread goes on
    wait_for(&n_done, 2);
    assert_int_equal(order[0] + order[1], 3); // 1 and 2
    pthread_mutex_unlock(&inside);
    close_held(w, gate); // runs the rest
    assert_int_equal(n_done, 4);
}

static void test_empty(void **state)
{
    hth_http_work *w;
    assert_ok(hth_http_work_open(&w));
    hth_http_work_close(w);
    hth_http_work_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
