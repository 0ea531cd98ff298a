// SPDX-License-Identifier: Apache-2.0
// Which nodes a second thread gets a share of: not those of a graph that is small as a whole.
#include "kernels/cpu/fixture.h"

#include <dirent.h>
#include <pthread.h>

static int threads_of_process(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        n += e->d_name[0] != '.';
    }
    closedir(d);
    return n;
}

typedef struct products {
    int n;
    int started; // threads
} products;

// Runs the last of n products, one after the other, each about 11 us for one core. The thread is a
// new one: it has no team yet.
static void *run_products(void *arg)
{
    products *p = arg;
    fixture f;
    fixture_open(&f, 5);
    int x = fixture_value(&f, SHAPE(16, 128));
    for (int i = 0; i < p->n; i++) {
        int in[2] = {x, fixture_const(&f, SHAPE(128, 128))};
        x = fixture_value(&f, SHAPE(16, 128));
        fixture_node(&f, HTH_OP_MAT_MUL, in, 2, &x, 1);
    }
    int before = threads_of_process();
    fixture_check(&f, NULL, false, 1e-4);
    p->started = threads_of_process() - before;
    fixture_close(&f);
    return NULL;
}

static int threads_started(int n)
{
    pthread_t t;
    products p = {n, -1};
    assert_int_equal(pthread_create(&t, NULL, run_products, &p), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    return p.started;
}

static void a_small_graph_is_one_threads(void **state)
{
    (void)state;
    assert_int_equal(threads_started(2), 0);
    assert_int_equal(threads_started(4), 1);
    assert_int_equal(threads_started(1), 1); // a node alone is no graph: it counts for itself
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_graph_is_one_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
