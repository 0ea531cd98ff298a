// SPDX-License-Identifier: Apache-2.0
// modelstore/store_test.h - a store in a fresh directory, and tensors to put into it.
#ifndef HTH_MODELSTORE_STORE_TEST_H
#define HTH_MODELSTORE_STORE_TEST_H

#include "base/settings.h"
#include "base/test.h"
#include "modelstore/file.h"
#include "modelstore/store.h"

#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define TEST_N_TENSORS 4

typedef struct test_dir {
    char path[64];
} test_dir;

// test_setup gives each test a directory in memory where there is one: the logic is tested, not the
// disk.
static inline int test_setup(void **state)
{
    static test_dir dir;
    snprintf(dir.path, sizeof dir.path, "%s/hth-store-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    *state = &dir;
    hth_setting_reset();
    // small tensors are files, too
    return mkdtemp(dir.path) == NULL || hth_setting_set("store.inline_bytes", "256") != HTH_OK;
}

static inline int test_teardown(void **state)
{
    return test_remove(((test_dir *)*state)->path);
}

static inline hth_store *test_open(void **state)
{
    hth_store *s;
    assert_ok(hth_store_open(((test_dir *)*state)->path, true, false, &s));
    return s;
}

// A model of four tensors: "big0" (4 KB) is `seed`'s own, "big1" (8 KB) and "small1" are the same
// for all seeds, "small0" (40 bytes) is `seed`'s own.
typedef struct test_model {
    float big0[1024], big1[2048], small0[10], small1[3];
    hth_put_tensor t[TEST_N_TENSORS];
} test_model;

static inline void test_fill(float *v, int n, int seed)
{
    for (int i = 0; i < n; i++) {
        v[i] = (float)(seed * 1000 + i) / 8;
    }
}

#define TEST_TENSOR(array)                                                                         \
    {                                                                                              \
        .name = #array, .dtype = HTH_DT_F32, .shape = {1, {sizeof(m->array) / 4}},                 \
        .data = m->array, .bytes = sizeof(m->array)                                                \
    }

static inline const hth_put_tensor *test_make(test_model *m, int seed)
{
    const hth_put_tensor t[TEST_N_TENSORS] = {TEST_TENSOR(big0), TEST_TENSOR(small0),
                                              TEST_TENSOR(big1), TEST_TENSOR(small1)};
    test_fill(m->big0, 1024, seed);
    test_fill(m->small0, 10, seed);
    test_fill(m->big1, 2048, 77);
    test_fill(m->small1, 3, 77);
    memcpy(m->t, t, sizeof t);
    return m->t;
}

static inline hth_err test_put(hth_store *store, const char *name, int seed, hth_put_result *out)
{
    test_model m;
    return hth_store_put(store, name, "graph", 5, "{}", test_make(&m, seed), TEST_N_TENSORS, NULL,
                         NULL, out);
}

static int test_files_found;

static inline int test_count_entry(const char *path, const struct stat *st, int flag,
                                   struct FTW *ftw)
{
    test_files_found += flag == FTW_F;
    return 0;
}

// test_count_files counts the files in a folder of the store, subfolders included.
static inline int test_count_files(void **state, const char *folder)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", ((test_dir *)*state)->path, folder);
    test_files_found = 0;
    nftw(path, test_count_entry, 16, FTW_PHYS);
    return test_files_found;
}

// A life is what a process does with a store: it is killed, or has its disk full, at each point of
// it in turn. `before` empties the directory, `after` looks at the store. Returns how many points
// there were.
typedef hth_err (*test_life)(const char *path);
typedef void (*test_look)(void **state);

static inline int test_kill_anywhere(void **state, test_look before, test_life life,
                                     test_look after)
{
    const char *path = ((test_dir *)*state)->path;
    int nth = 1, status = 0;
    for (;; nth++) {
        before(state);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            hth_store_file_fault((uint64_t)nth, HTH_STORE_FILE_KILL);
            _exit(life(path) == HTH_OK ? 0 : 1);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (!WIFSIGNALED(status)) {
            break;
        }
        assert_int_equal(WTERMSIG(status), SIGKILL);
        after(state);
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return nth;
}

static inline int test_fill_disk_anywhere(void **state, test_look before, test_life life,
                                          test_look after)
{
    const char *path = ((test_dir *)*state)->path;
    int nth = 1;
    for (;; nth++) {
        before(state);
        int64_t live = hth_alloc_live();
        hth_store_file_fault((uint64_t)nth, ENOSPC);
        hth_err err = life(path);
        hth_store_file_fault(0, 0);
        assert_int_equal(hth_alloc_live(), live);
        if (err == HTH_OK) {
            return nth;
        }
        assert_err(err, HTH_EIO, "No space left on device");
        after(state);
    }
}

#endif
