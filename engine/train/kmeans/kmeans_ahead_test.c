// SPDX-License-Identifier: Apache-2.0
#include "engine/train/kmeans/kmeans_ahead.h"

#include "base/test.h"

#include <pthread.h>

// Blocks that are fetched only as far as the test lets them.
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t open, begun, fails; // open: blocks below this one may come
} gate;

static hth_err gate_fetch(void *ctx, size_t block)
{
    gate *g = ctx;
    pthread_mutex_lock(&g->lock);
    assert_int_equal(block, g->begun);
    g->begun++;
    pthread_cond_broadcast(&g->changed);
    while (block >= g->open) {
        pthread_cond_wait(&g->changed, &g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return block != g->fails ? HTH_OK : hth_fail(HTH_EIO, "block %zu cannot be read", block);
}

static void gate_open(gate *g, size_t open)
{
    pthread_mutex_lock(&g->lock);
    g->open = open;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static size_t gate_begun(gate *g, size_t least)
{
    pthread_mutex_lock(&g->lock);
    while (g->begun < least) {
        pthread_cond_wait(&g->changed, &g->lock);
    }
    size_t begun = g->begun;
    pthread_mutex_unlock(&g->lock);
    return begun;
}

static hth_kmeans_ahead *gate_ahead(gate *g, size_t n, size_t most)
{
    hth_kmeans_ahead *ahead;
    *g = (gate){.open = SIZE_MAX, .fails = SIZE_MAX};
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    assert_ok(hth_kmeans_ahead_open(&(hth_kmeans_blocks){gate_fetch, g, n, most}, &ahead));
    return ahead;
}

static void blocks_come_in_their_order(void **state)
{
    gate g;
    hth_kmeans_ahead *ahead = gate_ahead(&g, 50, 4);
    assert_false(hth_kmeans_ahead_take(ahead, 0, true)); // it has not been started
    for (int pass = 0; pass < 3; pass++) {
        g.begun = 1;
        hth_kmeans_ahead_start(ahead, 0);
        for (size_t block = 1; block < 50; block++) {
            assert_true(hth_kmeans_ahead_take(ahead, block, true));
            assert_true(gate_begun(&g, block + 1) <= block + 4); // no place is taken twice
        }
        hth_kmeans_ahead_stop(ahead);
        assert_int_equal(gate_begun(&g, 0), 50);
    }
    hth_kmeans_ahead_close(ahead);
    hth_kmeans_ahead_close(NULL);
}

static void what_does_not_come_is_told(void **state)
{
    gate g;
    hth_kmeans_ahead *ahead = gate_ahead(&g, 50, 8);
    g.begun = 11;
    g.fails = g.open = 13;
    hth_kmeans_ahead_start(ahead, 10);
    assert_true(hth_kmeans_ahead_take(ahead, 11, true));
    assert_true(hth_kmeans_ahead_take(ahead, 12, true));
    gate_open(&g, SIZE_MAX);
    assert_false(hth_kmeans_ahead_take(ahead, 13, true));
    assert_false(hth_kmeans_ahead_take(ahead, 14, true));
    hth_kmeans_ahead_close(ahead);
}

// One that does not wait; and an end while a block comes.
static void nobody_need_wait(void **state)
{
    gate g;
    hth_kmeans_ahead *ahead = gate_ahead(&g, 50, 3);
    g.begun = 1;
    g.open = 2;
    hth_kmeans_ahead_start(ahead, 0);
    (void)gate_begun(&g, 3); // block 1 is there, 2 begins
    assert_true(hth_kmeans_ahead_take(ahead, 1, false));
    assert_false(hth_kmeans_ahead_take(ahead, 2, false));
    gate_open(&g, SIZE_MAX);
    assert_true(hth_kmeans_ahead_take(ahead, 2, true));
    hth_kmeans_ahead_close(ahead);
}

static hth_err open_once(void)
{
    hth_kmeans_ahead *ahead;
    HTH_TRY(hth_kmeans_ahead_open(&(hth_kmeans_blocks){.n = 1, .most = 1}, &ahead));
    hth_kmeans_ahead_close(ahead);
    return HTH_OK;
}

static void memory_that_runs_out_is_told_of(void **state)
{
    FAULT_LOOP(open_once());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_come_in_their_order),
        cmocka_unit_test(what_does_not_come_is_told),
        cmocka_unit_test(nobody_need_wait),
        cmocka_unit_test(memory_that_runs_out_is_told_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
