// SPDX-License-Identifier: Apache-2.0
// Indexes that LMDB wrote are taken, whatever was done to them; those that were damaged end no
// process, and nothing that is read from one is wrong.
#include "modelstore/check.h"
#include "modelstore/scrub.h"
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

// harmed returns a copy with some harm done, of which only `*end` bytes are left. cut: may be.
static char *harmed(const char *whole, size_t size, bool cut, size_t *end)
{
    char *copy = hth_memdup(whole, size);
    uint64_t word = random_below(3) ? random_below(UINT64_C(1) << 31) : UINT64_MAX;
    uint64_t kind = random_below(6);
    *end = size;
    switch (kind == 0 && !cut ? 3 : kind) {
    case 0:
        *end = random_below(3) ? random_below(size) : random_below(size / 4096) * 4096;
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
    return copy;
}

static void write_index(const char *path, const char *bytes, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

#define INDEX_MOST ((size_t)8 << 20)

// whole_index fills a store, and reads the index that it has then.
static char *whole_index(void **state, char path[128], size_t *size)
{
    hth_store *s = test_open(state);
    for (int i = 0; i < MODELS; i++) {
        assert_ok(put_model(s, i));
    }
    for (int i = 0; i < 12; i++) { // pages come free
        assert_ok(hth_store_text_put(s, "timing", i % 2 ? "some" : "other"));
    }
    assert_ok(hth_store_rm(s, "model7", 0));
    hth_store_close(s);
    snprintf(path, 128, "%s/index/data.mdb", ((test_dir *)*state)->path);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    char *whole = hth_alloc(INDEX_MOST);
    *size = fread(whole, 1, INDEX_MOST, f);
    fclose(f);
    assert_true(*size > 40 * 4096 && *size < INDEX_MOST);
    return whole;
}

// ended_well waits for a process that had an index of that seed; returns its exit code.
static int ended_well(void **state, pid_t pid, uint64_t seed)
{
    char lock[128];
    int status;
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || (WEXITSTATUS(status) != FINE && WEXITSTATUS(status) != FOUND)) {
        fail_msg("harm of seed %llu: %s %d", (unsigned long long)seed,
                 WIFEXITED(status) ? "wrong content, exit" : "signal",
                 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    }
    snprintf(lock, sizeof lock, "%s/index/lock.mdb", ((test_dir *)*state)->path);
    (void)unlink(lock);
    return WEXITSTATUS(status);
}

static void test_damaged(void **state)
{
    char path[128];
    size_t size, end;
    assert_ok(hth_setting_set("store.inline_bytes", "1MiB")); // everything is in the index
    char *whole = whole_index(state, path, &size);
    int found = 0, fine = 0;
    random_state = 7;
    for (int i = 0; i < 150; i++) {
        uint64_t seed = random_state;
        char *copy = harmed(whole, size, true, &end);
        write_index(path, copy, end);
        hth_free(copy);
        pid_t pid = fork();
        if (pid == 0) {
            setrlimit(RLIMIT_CORE, &(struct rlimit){0});
            _exit(life(((test_dir *)*state)->path));
        }
        int code = ended_well(state, pid, seed);
        found += code == FOUND;
        fine += code == FINE;
    }
    assert_true(found > 80 && fine > 5); // what hits free pages is not seen
    hth_free(whole);
}

// ---- .. while they are in use

static hth_err wait_none(void *ctx, uint64_t ns)
{
    return HTH_OK;
}

// read_one has the process remember what the index does not know yet.
static bool read_one(hth_store *store)
{
    hth_manifest m;
    hth_object_seen seen;
    if (hth_store_get(store, "model0", 0, &m) != HTH_OK) {
        return false;
    }
    const hth_manifest_tensor *t = &m.tensors[0];
    const hth_object o = {t->id, t->dtype, t->shape, t->bytes};
    hth_err err = hth_check_read(store, &o, false, NULL, NULL, &seen);
    hth_manifest_fini(&m);
    return err == HTH_OK;
}

// file_is tells whether a file has these bytes.
static bool file_is(int fd, const char *bytes, size_t n)
{
    static char have[INDEX_MOST];
    return pread(fd, have, sizeof have, 0) == (ssize_t)n && memcmp(have, bytes, n) == 0;
}

// live harms the index of a store that is open, all but the first two pages, which LMDB believes
// before anybody can look. Nobody goes through pages that are damaged, or writes to them.
static int live(const char *dir, const char *path, const char *whole, size_t size)
{
    hth_store *s;
    hth_store_verified v;
    hth_scrub_result r;
    size_t end;
    int fd = open(path, O_RDWR);
    if (hth_store_open(dir, false, false, &s) != HTH_OK || !read_one(s)) {
        return WRONG;
    }
    char *copy = harmed(whole, size, false, &end);
    memcpy(copy, whole, 2 * 4096);
    if (pwrite(fd, copy, size, 0) != (ssize_t)size) {
        return WRONG;
    }
    bool pages = hth_index_pages(&s->index) == HTH_ECORRUPT;
    hth_err verified = hth_store_verify_all(s, NULL, 0, NULL, NULL, NULL, &v);
    if (pages && (verified != HTH_OK || v.damaged != 1 || v.versions != 0)) {
        return WRONG;
    }
    hth_err scrubbed = hth_scrub_pass(s, wait_none, NULL, &r);
    if (pages && (scrubbed != HTH_ECORRUPT || r.damaged != 1 || !file_is(fd, copy, size))) {
        return WRONG;
    }
    hth_store_close(s);
    hth_free(copy);
    close(fd);
    return pages ? FOUND : FINE;
}

static void test_damaged_live(void **state)
{
    char path[128];
    size_t size;
    char *whole = whole_index(state, path, &size);
    int found = 0;
    for (uint64_t seed = 1; seed <= 250; seed++) {
        random_state = seed;
        write_index(path, whole, size);
        pid_t pid = fork();
        if (pid == 0) {
            setrlimit(RLIMIT_CORE, &(struct rlimit){0});
            _exit(live(((test_dir *)*state)->path, path, whole, size));
        }
        found += ended_well(state, pid, seed) == FOUND;
    }
    assert_true(found > 20 && found < 200); // most harm is to what the nodes have, or to free pages
    hth_free(whole);
}

// A mark of LMDB's own, which it takes off before it writes a page, is no page's on the disk: a
// commit would write to one that "is written to already" where it is, in the map.
static void test_marks(void **state)
{
    static const uint16_t marks[] = {0x10, 0x4000, 0x8000}; // dirty, loose, to be kept
    char path[128];
    size_t size;
    char *whole = whole_index(state, path, &size);
    hth_store *s = test_open(state);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        int found = 0;
        for (size_t page = 2; page < size / 4096; page++) {
            uint16_t was, now;
            off_t at = (off_t)page * 4096 + 10;
            memcpy(&was, whole + at, sizeof was);
            now = was | marks[i];
            assert_int_equal(pwrite(fd, &now, sizeof now, at), sizeof now);
            found += hth_index_pages(&s->index) == HTH_ECORRUPT;
            assert_int_equal(pwrite(fd, &was, sizeof was, at), sizeof was);
        }
        assert_true(found > 10); // of those that are in use, and are not the rest of a large value
    }
    assert_ok(hth_index_pages(&s->index));
    close(fd);
    hth_store_close(s);
    hth_free(whole);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, test_setup, test_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_sound), TEST(test_damaged),
                                       TEST(test_damaged_live), TEST(test_marks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
