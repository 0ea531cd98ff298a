// SPDX-License-Identifier: Apache-2.0
#include "server/http_work.h"

#include "base/test.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct work_item {
    hth_http_task task;
    pthread_mutex_t *gate; // held until it may end; may be NULL
    int number;
} work_item;

static atomic_int n_order;
static int order[64];

static void item_run(hth_http_task *t)
{
    work_item *w = (work_item *)t;
    if (w->gate != NULL) {
        pthread_mutex_lock(w->gate);
        pthread_mutex_unlock(w->gate);
        return;
    }
    order[atomic_fetch_add(&n_order, 1)] = w->number;
}

// submit_held has every thread of the pool wait at `gate`.
static void submit_held(hth_http_work *w, work_item *gates, pthread_mutex_t *gate, int n)
{
    for (int i = 0; i < n; i++) {
        gates[i] = (work_item){.task = {.run = item_run}, .gate = gate};
        hth_http_work_submit(w, &gates[i].task, &gates[i], 1);
    }
}

// Many large tasks wait; a small one of another owner comes next, then one by one those whose
// owners had least; of one owner in order; and nobody is passed for ever.
static void test_order(void **state)
{
    enum { LARGE = 8, N = LARGE + 4 };
    static const char owner[4];
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    hth_http_work *w;
    work_item gates[2], item[N];
    atomic_store(&n_order, 0);
    assert_ok(hth_http_work_open(&w));
    pthread_mutex_lock(&gate);
    submit_held(w, gates, &gate, 2); // as many as there are threads, or more
    for (int i = 0; i < LARGE; i++) {
        item[i] = (work_item){.task = {.run = item_run}, .number = i};
        hth_http_work_submit(w, &item[i].task, &owner[0], 1000);
    }
    static const int of[] = {1, 2, 2, 3}, cost[] = {10, 1500, 1500, 999};
    for (int i = 0; i < 4; i++) {
        item[LARGE + i] = (work_item){.task = {.run = item_run}, .number = LARGE + i};
        hth_http_work_submit(w, &item[LARGE + i].task, &owner[of[i]], (uint64_t)cost[i]);
    }
    pthread_mutex_unlock(&gate);
    hth_http_work_close(w); // runs all
    static const int want[N] = {8, 11, 0, 9, 1, 2, 10, 3, 4, 5, 6, 7};
    assert_int_equal(n_order, N);
    // two threads may take neighbours in either order
    for (int i = 0; i < N; i++) {
        int at = 0;
        while (order[at] != want[i]) {
            at++;
        }
        assert_true(at >= i - 2 && at <= i + 2);
    }
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
        cmocka_unit_test(test_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
