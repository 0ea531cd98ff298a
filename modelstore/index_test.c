// SPDX-License-Identifier: Apache-2.0
// Many at once: processes, threads, and an index that outgrows its map under them.
#include "modelstore/store_test.h"

#include "base/sanitized.h"
#include "base/thread.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define N_PUTS 25

// put_many puts N_PUTS versions of `name`, tensors partly shared with everybody else; returns the
// failures.
static int put_many(hth_store *store, const char *name, int seed)
{
    int bad = 0;
    for (int i = 0; i < N_PUTS; i++) {
        hth_put_result r;
        bad += test_put(store, name, seed + i % 7, &r) != HTH_OK ||
               (!r.unchanged && r.version != i + 1);
    }
    return bad;
}

static void check_all(hth_store *store, int n_models)
{
    hth_store_entry *e;
    int n;
    assert_ok(hth_store_list(store, &e, &n));
    assert_int_equal(n, n_models * N_PUTS);
    for (int i = 0; i < n; i++) {
        assert_ok(hth_store_verify(store, e[i].name, e[i].version));
    }
    hth_free(e);
}

// collect collects garbage between two puts of others, or after the last one.
static hth_err collect(hth_store *store)
{
    uint64_t files, bytes;
    hth_err err;
    while ((err = hth_store_gc(store, &files, &bytes)) == HTH_EBUSY) {
        sched_yield();
    }
    return err;
}

static void test_two_processes(void **state)
{
    const char *path = ((test_dir *)*state)->path;
    pid_t pid[3];
    for (int i = 0; i < 3;
         i++) { // all begin on an empty directory; the third collects garbage all the while
        pid[i] = fork();
        if (pid[i] == 0) {
            hth_store *s;
            int bad = hth_store_open(path, true, false, &s) != HTH_OK;
            bad += bad || i == 2 ? 0 : put_many(s, i ? "b" : "a", i * 3);
            for (int k = 0; i == 2 && !bad && k < 40; k++) {
                bad = collect(s) != HTH_OK;
            }
            hth_store_close(s);
            _exit(bad);
        }
    }
    for (int i = 0; i < 3; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    hth_store *s = test_open(state);
    check_all(s, 2);
    hth_store_close(s);
}

// Many processes find an empty directory at the same moment: each must get the store, whoever
// finishes making it first.
static void test_made_by_many(void **state)
{
    enum { N = 8, ROUNDS = 12 };
    for (int round = 0; round < ROUNDS; round++) {
        char path[128], byte;
        int go[2], failed = 0;
        snprintf(path, sizeof path, "%s/s%d", ((test_dir *)*state)->path, round);
        assert_int_equal(pipe(go), 0);
        pid_t pid[N];
        for (int i = 0; i < N; i++) {
            pid[i] = fork();
            if (pid[i] == 0) {
                hth_store *s;
                close(go[1]); // the parent's end closing is the start
                _exit(read(go[0], &byte, 1) != 0 ||
                      hth_store_open(path, true, false, &s) != HTH_OK);
            }
        }
        close(go[0]), close(go[1]);
        for (int i = 0; i < N; i++) {
            int status;
            assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
            failed += status != 0;
        }
        assert_int_equal(failed, 0);
    }
}

static void test_noticed(void **state)
{
    hth_store *s = test_open(state);
    uint64_t before = hth_store_change_count(s);
    hth_store_close(s); // no environment may be open across fork
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        hth_store *mine;
        hth_put_result r;
        int bad = hth_store_open(((test_dir *)*state)->path, false, false, &mine) ||
                  test_put(mine, "m", 1, &r);
        hth_store_close(mine);
        _exit(bad);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    s = test_open(state);
    assert_int_equal(hth_store_change_count(s), before + 1);
    hth_store_close(s);
}

typedef struct worker {
    hth_store *s;
    const char *name;
    int seed, bad;
} worker;

static void work(void *ctx)
{
    worker *w = ctx;
    w->bad = put_many(w->s, w->name, w->seed);
}

static void run_threads(hth_store *store)
{
    pthread_t t[2];
    worker w[2] = {{store, "a", 0, 0}, {store, "b", 3, 0}};
    for (int i = 0; i < 2; i++) {
        assert_ok(hth_thread_start("putter", work, &w[i], &t[i]));
    }
    for (int i = 0; i < 30; i++) {
        hth_store_entry *e;
        int n;
        assert_ok(hth_store_list(store, &e, &n));
        hth_free(e);
        assert_ok(collect(store));
    }
    for (int i = 0; i < 2; i++) {
        hth_thread_join(t[i]);
        assert_int_equal(w[i].bad, 0);
    }
}

static void test_threads(void **state)
{
    hth_store *s = test_open(state);
    run_threads(s);
    check_all(s, 2);
    hth_store_close(s);
}

static void check_grown(void **state)
{
    char path[128];
    struct stat st;
    snprintf(path, sizeof path, "%s/index/data.mdb", ((test_dir *)*state)->path);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > 2 * 65536);
}

// The map starts at 64 KiB and must double several times, while other threads read; the inlined
// bytes see to that.
static void test_growth(void **state)
{
    assert_ok(hth_setting_set("store.index_bytes", "64KiB"));
    assert_ok(hth_setting_set("store.inline_bytes", "64KiB"));
    hth_store *s = test_open(state);
    run_threads(s);
    check_all(s, 2);
    hth_store_close(s);
    check_grown(state);
    s = test_open(state); // the setting is smaller than the file now
    check_all(s, 2);
    hth_store_close(s);
}

// Another process makes the index grow beyond the map that this one has.
static void test_growth_elsewhere(void **state)
{
    int ready[2], go[2], status;
    char byte = 0;
    assert_ok(hth_setting_set("store.index_bytes", "64KiB"));
    assert_ok(hth_setting_set("store.inline_bytes", "64KiB"));
    assert_int_equal(pipe(ready) + pipe(go), 0);
    pid_t pid = fork();
    if (pid == 0) { // opens while the index is small, looks when it has grown
        hth_store *s;
        hth_store_entry *e;
        int n, bad = hth_store_open(((test_dir *)*state)->path, true, false, &s) != HTH_OK;
        bad += write(ready[1], &byte, 1) != 1 || read(go[0], &byte, 1) != 1;
        bad += hth_store_list(s, &e, &n) != HTH_OK || n != N_PUTS || put_many(s, "b", 1) != 0;
        hth_store_close(s);
        _exit(bad);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    hth_store *s = test_open(state);
    assert_int_equal(put_many(s, "a", 0), 0);
    assert_int_equal(write(go[1], &byte, 1), 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    check_all(s, 2);
    check_grown(state);
    hth_store_close(s);
    close(ready[0]), close(ready[1]), close(go[0]), close(go[1]);
}

// grow_narrowly puts texts until the index would outgrow the addresses that this process may have;
// returns the failures. The store is as it was then, and goes on once there are more.
static int grow_narrowly(hth_store *store)
{
    static char text[1 << 20], key[40];
    struct rlimit free_limit, narrow;
    unsigned long pages = 0;
    char *again = NULL;
    hth_err err = HTH_OK;
    FILE *f = fopen("/proc/self/statm", "r");
    int bad = f == NULL || fscanf(f, "%lu", &pages) != 1 || getrlimit(RLIMIT_AS, &free_limit) != 0;
    memset(text, 'x', sizeof text - 1);
    narrow = free_limit;
    narrow.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)24 << 20);
    bad += setrlimit(RLIMIT_AS, &narrow) != 0;
    int n = 0;
    for (; n < 64 && err == HTH_OK; n++) {
        snprintf(key, sizeof key, "text %d", n);
        err = hth_store_text_put(store, key, text);
    }
    bad += err != HTH_ENOMEM || strstr(hth_err_detail(), "from 16.0 MiB to 32.0 MiB") == NULL;
    bad += hth_store_text_load(store, "text 0", &again) != HTH_OK || strcmp(again, text) != 0;
    bad += hth_store_text_load(store, key, &again) != HTH_ENOENT;
    bad += hth_store_text_put(store, "small", "text") != HTH_OK;
    bad += setrlimit(RLIMIT_AS, &free_limit) != 0;
    bad += hth_store_text_put(store, key, text) != HTH_OK;
    return bad;
}

static void test_no_addresses(void **state)
{
    int status;
    if (HTH_SANITIZED) {
        skip(); // what they map is more than any limit
    }
    assert_ok(hth_setting_set("store.index_bytes", "16MiB"));
    pid_t pid = fork();
    if (pid == 0) {
        hth_store *s;
        int bad = hth_store_open(((test_dir *)*state)->path, true, false, &s) != HTH_OK;
        bad += bad != 0 || grow_narrowly(s) != 0;
        hth_store_close(s);
        _exit(bad);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, test_setup, test_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_two_processes), TEST(test_made_by_many), TEST(test_noticed),
        TEST(test_threads),       TEST(test_growth),       TEST(test_growth_elsewhere),
        TEST(test_no_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
