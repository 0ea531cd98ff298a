// SPDX-License-Identifier: Apache-2.0
// Indexes that LMDB wrote are taken, whatever was done to them; those that were damaged end no
// process, and nothing that is read from one is wrong.
#include "modelstore/check.h"
#include "modelstore/store_test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

static uint64_t random_state;

static uint64_t random_below(uint64_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % n;
}

// ---- sound ones

static hth_err random_commit(hth_txn *txn, void *ctx)
{
    static char value[70000];
    char key[500];
    uint64_t rows = 1 + random_below(40);
    for (uint64_t i = 0; i < rows; i++) {
        hth_table table = random_below(2) ? HTH_TABLE_TEXTS : HTH_TABLE_INLINES;
        size_t n = 1 + random_below(random_below(3) ? 12 : 400);
        memset(key, 'a' + (int)random_below(3), n);
        snprintf(key, sizeof key, "%05d", (int)random_below(3000));
        if (random_below(3) == 0) {
            HTH_TRY(hth_txn_del(txn, table, key, n));
        } else {
            size_t bytes = random_below(random_below(4) ? 300 : sizeof value);
            HTH_TRY(hth_txn_put(txn, table, key, n, value, bytes));
        }
    }
    return random_below(10) ? HTH_OK : HTH_ECANCELED; // one that is given up
}

static void test_sound(void **state)
{
    hth_store *s = test_open(state);
    random_state = 1;
    for (int i = 0; i < 150; i++) {
        hth_err err = hth_index_write(&s->index, random_commit, NULL);
        assert_true(err == HTH_OK || err == HTH_ECANCELED);
        assert_ok(hth_index_pages(&s->index));
        if (i % 60 == 0) {
            hth_store_close(s);
            s = test_open(state);
        }
    }
    hth_store_close(s);
}

// ---- damaged ones

#define MODELS 40

static hth_err put_model(hth_store *store, int i)
{
    static char graph[20000];
    char name[16];
    test_model m;
    hth_put_result r;
    snprintf(name, sizeof name, "model%d", i);
    memset(graph, 'a' + i % 20, sizeof graph);
    return hth_store_put(store, name, graph, (size_t)(i % 4 == 0 ? 20000 : 300 + i), "{}",
                         test_make(&m, i), TEST_N_TENSORS, NULL, NULL, &r);
}

// right tells whether what is read of a model is what was put, as far as anything is.
static bool right(hth_store *store, int i)
{
    char name[16];
    test_model want;
    hth_manifest m;
    bool same = true;
    snprintf(name, sizeof name, "model%d", i);
    if (hth_store_get(store, name, 0, &m) != HTH_OK) {
        return true;
    }
    test_make(&want, i);
    same = m.skeleton_bytes == (size_t)(i % 4 == 0 ? 20000 : 300 + i) && m.n_tensors == 4 &&
           ((char *)m.skeleton)[m.skeleton_bytes - 1] == 'a' + i % 20;
    for (int k = 0; same && k < m.n_tensors; k++) {
        hth_const *c;
        if (hth_store_view(store, &m.tensors[k], &c) == HTH_OK) {
            same = c->bytes == want.t[k].bytes && memcmp(c->data, want.t[k].data, c->bytes) == 0;
            hth_const_rele(c);
        }
    }
    hth_manifest_fini(&m);
    return same;
}

enum { FINE = 10, FOUND, WRONG }; // none of which a sanitizer ends with

// life uses a store in all ways. What it returns is the process's exit code.
static int life(const char *path)
{
    hth_store *s;
    hth_store_entry *e;
    hth_store_verified v = {.damaged = 0};
    uint64_t files, bytes;
    int n;
    if (hth_store_open(path, false, false, &s) != HTH_OK) {
        return FOUND;
    }
    hth_err err = hth_store_verify_all(s, NULL, 0, NULL, NULL, NULL, &v);
    bool found = err != HTH_OK || v.damaged > 0;
    for (int i = 0; i < MODELS; i++) {
        if (!right(s, i)) {
            return WRONG;
        }
    }
    if (hth_store_list(s, &e, &n) == HTH_OK) {
        hth_free(e);
    }
    (void)put_model(s, 3);
    (void)put_model(s, MODELS);
    (void)hth_store_text_put(s, "timing", "other");
    (void)hth_store_rm(s, "model5", 0);
    (void)hth_store_gc(s, &files, &bytes);
    for (int i = 0; i <= MODELS; i++) {
        if (!right(s, i)) {
            return WRONG;
        }
    }
    hth_store_close(s);
    return found ? FOUND : FINE;
}

static void harm(const char *path, const char *whole, size_t size)
{
    char *copy = hth_memdup(whole, size);
    size_t end = size;
    uint64_t word = random_below(3) ? random_below(UINT64_C(1) << 31) : UINT64_MAX;
    switch (random_below(6)) {
    case 0:
        end = random_below(3) ? random_below(size) : random_below(size / 4096) * 4096;
        break;
    case 1:
        memset(copy + random_below(size / 4096) * 4096, 0, 4096);
        break;
    case 2:
        memcpy(copy + random_below(size / 8) * 8, &word, 8);
        break;
    case 3: // in a page's head or its table of nodes
        copy[random_below(size / 4096) * 4096 + random_below(40)] ^= (char)(1u << random_below(8));
        break;
    default:
        for (uint64_t i = 1 + random_below(16); i > 0; i--) {
            copy[random_below(size)] ^= (char)(1u << random_below(8));
        }
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(copy, 1, end, f), end);
    fclose(f);
    hth_free(copy);
}

static void test_damaged(void **state)
{
    char path[128], lock[128];
    const char *dir = ((test_dir *)*state)->path;
    assert_ok(hth_setting_set("store.inline_bytes", "1MiB")); // everything is in the index
    hth_store *s = test_open(state);
    int found = 0, fine = 0;
    for (int i = 0; i < MODELS; i++) {
        assert_ok(put_model(s, i));
    }
    for (int i = 0; i < 12; i++) { // pages come free
        assert_ok(hth_store_text_put(s, "timing", i % 2 ? "some" : "other"));
    }
    assert_ok(hth_store_rm(s, "model7", 0));
    hth_store_close(s);
    snprintf(path, sizeof path, "%s/index/data.mdb", dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    char *whole = hth_alloc(8 << 20);
    size_t size = fread(whole, 1, 8 << 20, f);
    fclose(f);
    assert_true(size > 40 * 4096 && size < 8 << 20);
    snprintf(lock, sizeof lock, "%s/index/lock.mdb", dir);
    random_state = 7;
    for (int i = 0; i < 150; i++) {
        int status;
        uint64_t seed = random_state;
        harm(path, whole, size);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            setrlimit(RLIMIT_CORE, &(struct rlimit){0});
            _exit(life(dir));
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (!WIFEXITED(status) || (WEXITSTATUS(status) != FINE && WEXITSTATUS(status) != FOUND)) {
            fail_msg("harm %d of seed %llu: %s %d", i, (unsigned long long)seed,
                     WIFEXITED(status) ? "wrong content, exit" : "signal",
                     WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
        }
        found += WEXITSTATUS(status) == FOUND;
        fine += WEXITSTATUS(status) == FINE;
        (void)unlink(lock);
    }
    assert_true(found > 80 && fine > 5); // what hits free pages is not seen
    hth_free(whole);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, test_setup, test_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_sound), TEST(test_damaged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
