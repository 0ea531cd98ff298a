// SPDX-License-Identifier: Apache-2.0
// oneDNN computes on the team's threads: no thread is started for it. On a thread without a team it
// has libgomp's.
#include "device/cpu/onednn.h"
#include "kernels/cpu/dnnl.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#define SIDE 1024 // of a matrix: enough work for oneDNN to share it out

static float a[SIDE * SIDE], b[SIDE * SIDE], c[SIDE * SIDE];

static int threads(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        n += e->d_name[0] != '.';
    }
    closedir(d);
    return n;
}

// Multiplies matrices of ones; returns how many threads the process then has.
static int multiply(void)
{
    int64_t dims[2] = {SIDE, SIDE};
    hth_dn_md md = hth_dn_md_plain(HTH_DT_F32, 2, dims);
    hth_dn_op op = {.kind = HTH_DN_MATMUL, .src = md, .src1 = md, .dst = md};
    hth_dn_prim *p;
    for (int i = 0; i < SIDE * SIDE; i++) {
        a[i] = b[i] = 1;
        c[i] = 0;
    }
    assert_int_equal(hth_dn_prim_open(&op, 0, &p), HTH_OK);
    void *scratch = NULL;
    size_t bytes = hth_dn_prim_scratchpad(p);
    if (bytes > 0) {
        scratch = aligned_alloc(64, (bytes + 63) / 64 * 64);
        assert_non_null(scratch);
        assert_int_equal(hth_dn_prim_set(p, DNNL_ARG_SCRATCHPAD, scratch), HTH_OK);
    }
    assert_int_equal(hth_dn_prim_set(p, DNNL_ARG_SRC, a), HTH_OK);
    assert_int_equal(hth_dn_prim_set(p, DNNL_ARG_WEIGHTS, b), HTH_OK);
    assert_int_equal(hth_dn_prim_set(p, DNNL_ARG_DST, c), HTH_OK);
    assert_int_equal(hth_dn_prim_run(p), HTH_OK);
    int n = threads();
    hth_dn_prim_close(p);
    free(scratch);
    for (int i = 0; i < SIDE * SIDE; i++) {
        assert_true(c[i] == SIDE);
    }
    return n;
}

static void nothing(void *arg, int i, int n)
{
}

static void on_the_team(void **state)
{
    assert_non_null(hth_onednn_get());
    assert_true(hth_onednn_get()->our_threads);
    hth_team_set(1);
    int before = threads();
    assert_int_equal(multiply(), before);
    hth_team_set(2);
    hth_team_run(nothing, NULL); // a process's first thread starts the thread sanitizer's, too
    before = threads();
    assert_int_equal(multiply(), before);
    hth_team_set(3);
    assert_int_equal(multiply(), before + 1); // the new worker starts with the first region
    hth_team_run(nothing, NULL);
    assert_int_equal(threads(), before + 1);
}

static void *no_team(void *arg)
{
    return (void *)(intptr_t)multiply();
}

// libgomp is told to take three, whatever the machine has.
static void without_a_team(void **state)
{
    pthread_t t;
    void *after;
    int before = threads();
    assert_int_equal(pthread_create(&t, NULL, no_team, NULL), 0);
    assert_int_equal(pthread_join(t, &after), 0);
    assert_int_equal((int)(intptr_t)after, before + 1 + 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_the_team),
        cmocka_unit_test(without_a_team),
    };
    setenv("OMP_NUM_THREADS", "3", 1); // read when libgomp is loaded
    return cmocka_run_group_tests(tests, NULL, NULL);
}
