// SPDX-License-Identifier: Apache-2.0
// Puts that end badly: killed, out of disk, canceled. Afterwards a version is whole or absent, and
// gc leaves nothing that the index does not name.
#include "modelstore/store_test.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/wait.h>

// one_life is what the killed process does: a first version, a second one, the first one's removal,
// collection.
static hth_err one_life(const char *path)
{
    hth_store *s;
    hth_put_result r;
    uint64_t files, bytes;
    HTH_TRY(hth_store_open(path, true, false, &s));
    hth_err err = test_put(s, "m", 1, &r);
    HTH_GOTO(err, done);
    HTH_GOTO(test_put(s, "m", 2, &r), done);
    HTH_GOTO(hth_store_rm(s, "m", 1), done);
    HTH_GOTO(hth_store_gc(s, &files, &bytes), done);
done:
    hth_store_close(s);
    return err;
}

// check_whole opens the store after an accident: every listed version must be whole; after gc there
// is exactly what the versions need; and life goes on.
static void check_whole(void **state)
{
    hth_store *s = test_open(state);
    hth_store_entry *e;
    hth_put_result r;
    int n;
    uint64_t files, bytes;
    assert_ok(hth_store_list(s, &e, &n));
    for (int i = 0; i < n; i++) {
        assert_ok(hth_store_verify(s, e[i].name, e[i].version));
    }
    hth_free(e);
    assert_ok(hth_store_gc(s, &files, &bytes));
    assert_int_equal(test_count_files(state, "tmp"), 0);
    assert_int_equal(test_count_files(state, "tensors"), n == 0 ? 0 : n + 1);
    assert_ok(hth_store_gc(s, &files, &bytes));
    assert_true(files == 0);
    assert_ok(test_put(s, "m", 9, &r));
    assert_ok(hth_store_verify(s, "m", 0));
    hth_store_close(s);
}

static void empty(void **state)
{
    const char *path = ((test_dir *)*state)->path;
    test_remove(path);
    assert_int_equal(mkdir(path, 0700), 0);
}

static void test_killed_anywhere(void **state)
{
    // the points were really there
    assert_true(test_kill_anywhere(state, empty, one_life, check_whole) > 60);
}

static void test_disk_full_anywhere(void **state)
{
    assert_true(test_fill_disk_anywhere(state, empty, one_life, check_whole) > 60);
}

// A failed put must itself give the space back, not wait for gc: a full disk would stay full.
static void test_failure_leaves_no_file(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    hth_err err;
    assert_ok(test_put(s, "m", 1, &r));
    for (uint64_t nth = 1;; nth++) {
        hth_store_file_fault(nth, ENOSPC);
        err = test_put(s, "m", 2, &r);
        hth_store_file_fault(0, 0);
        if (err == HTH_OK) {
            break;
        }
        assert_int_equal(test_count_files(state, "tmp"), 0);
        assert_int_equal(test_count_files(state, "tensors"), 2);
        assert_ok(hth_store_verify(s, "m", 0));
    }
    assert_int_equal(r.version, 2);
    hth_store_close(s);
}

static int cancel_at_once(void *ctx, uint64_t done, uint64_t total)
{
    assert_true(done <= total && total == 4096 + 8192 + 40 + 12);
    return --*(int *)ctx == 0;
}

static void test_cancel(void **state)
{
    hth_store *s = test_open(state);
    test_model m;
    hth_put_result r;
    int calls;
    for (int nth = 1; nth < 100; nth++) {
        calls = nth;
        hth_err err = hth_store_put(s, "m", "g", 1, NULL, test_make(&m, 1), TEST_N_TENSORS,
                                    cancel_at_once, &calls, &r);
        if (err == HTH_OK) {
            break;
        }
        assert_err(err, HTH_ECANCELED, "canceled");
        assert_int_equal(test_count_files(state, "tmp") + test_count_files(state, "tensors"), 0);
    }
    assert_true(calls > 0 && r.tensors_new == 4);
    hth_store_close(s);
}

static void test_two_threads_write(void **state)
{
    enum { MIB = 1 << 20 };
    hth_store *s = test_open(state);
    hth_put_tensor t[12];
    hth_put_result r;
    char name[12][8];
    char *data = hth_calloc(4, MIB);
    for (int i = 0; i < 12; i++) { // each content three times, under different names
        snprintf(name[i], sizeof name[i], "t%d", i);
        data[(i % 4) * MIB + 7] = (char)(i % 4 + 1);
        t[i] = (hth_put_tensor){.name = name[i],
                                .dtype = HTH_DT_U8,
                                .shape = {1, {MIB}},
                                .data = data + (i % 4) * MIB,
                                .bytes = MIB};
    }
    for (int round = 0; round < 20; round++) {
        assert_ok(hth_store_put(s, "m", &round, sizeof round, NULL, t, 12, NULL, NULL, &r));
        assert_int_equal(r.version, round + 1);
        assert_int_equal(r.tensors_new, round == 0 ? 4 : 0);
        assert_int_equal(r.tensors_new + r.tensors_shared, 12);
    }
    assert_ok(hth_store_verify(s, "m", 1));
    assert_int_equal(test_count_files(state, "tensors"), 4);
    assert_int_equal(test_count_files(state, "tmp"), 0);
    hth_free(data);
    hth_store_close(s);
}

// Large tensors of a size that the store does not have are written while they are hashed; equal
// sizes are not, and neither is what a second import brings.
static void test_large(void **state)
{
    enum { MIB = 1 << 20 };
    static const int mib[5] = {17, 18, 18, 18, 20};
    hth_store *s = test_open(state);
    hth_put_tensor t[5];
    hth_put_result r;
    uint8_t *data = hth_calloc(21, MIB);
    assert_non_null(data);
    data[17 * MIB] = 5;
    for (int i = 0; i < 5; i++) { // the last two of 18 MiB are the same
        t[i] = (hth_put_tensor){.name = "w",
                                .dtype = HTH_DT_U8,
                                .shape = {1, {mib[i] * MIB}},
                                .data = data + (i == 1 ? MIB : 0),
                                .bytes = (size_t)mib[i] * MIB};
    }
    assert_ok(hth_store_put(s, "m", "g", 1, NULL, t, 5, NULL, NULL, &r));
    assert_true(r.tensors_new == 4 && r.tensors_shared == 1);
    assert_int_equal(test_count_files(state, "tensors"), 4);
    assert_int_equal(test_count_files(state, "tmp"), 0);
    assert_ok(hth_store_verify(s, "m", 0));
    assert_ok(hth_store_put(s, "m", "g", 1, NULL, t, 5, NULL, NULL, &r));
    assert_true(r.unchanged && r.tensors_new == 0);
    data[3] = 1; // all but the second change; sizes are taken now
    assert_ok(hth_store_put(s, "m", "g", 1, NULL, t, 5, NULL, NULL, &r));
    assert_true(r.version == 2 && r.tensors_new == 3 && r.tensors_shared == 2);
    assert_ok(hth_store_verify(s, "m", 2));
    hth_free(data);
    hth_store_close(s);
}

// A content that is read: byte i is `first` + i / 4096, and with each read of its beginning, if it
// is `moving`, another one.
typedef struct source {
    uint8_t first;
    bool moving, fails;
    atomic_int reads;
} source;

static hth_err source_read(void *ctx, uint64_t at, void *dst, size_t n)
{
    source *s = ctx;
    uint8_t first = s->first;
    first += (uint8_t)(at == 0 ? atomic_fetch_add(&s->reads, s->moving) : atomic_load(&s->reads));
    for (size_t i = 0; i < n; i++) {
        ((uint8_t *)dst)[i] = (uint8_t)(first + (at + i) / 4096);
    }
    return s->fails && at > 0 ? hth_fail(HTH_EIO, "it is gone") : HTH_OK;
}

static hth_put_tensor source_tensor(const char *name, source *s, size_t bytes)
{
    return (hth_put_tensor){.name = name,
                            .dtype = HTH_DT_U8,
                            .shape = {1, {(int64_t)bytes}},
                            .bytes = bytes,
                            .read = source_read,
                            .read_ctx = s};
}

#define SOURCE_MIB ((size_t)1 << 20)

// Contents that are read, of every size: in the index, at once, in pieces; alone of their size,
// which are written as they are hashed, and in twos. The ids are those of the bytes.
static void test_read(void **state)
{
    static const size_t bytes[] = {100,
                                   5000,
                                   3 * SOURCE_MIB,
                                   20 * SOURCE_MIB,
                                   65 * SOURCE_MIB,
                                   66 * SOURCE_MIB,
                                   66 * SOURCE_MIB};
    enum { N = sizeof bytes / sizeof *bytes };
    hth_store *s = test_open(state);
    hth_put_tensor t[N], again[N];
    source from[N];
    hth_put_result r;
    void *content[N];
    for (int i = 0; i < N; i++) {
        from[i] = (source){.first = (uint8_t)(10 * i)};
        again[i] = t[i] = source_tensor("t", &from[i], bytes[i]);
        content[i] = hth_alloc(bytes[i]);
        assert_ok(source_read(&from[i], 0, content[i], bytes[i]));
        again[i].data = content[i];
        again[i].read = NULL;
    }
    assert_ok(hth_store_put(s, "m", "g", 1, NULL, t, N, NULL, NULL, &r));
    assert_true(r.tensors_new == N && r.tensors_shared == 0);
    assert_ok(hth_store_verify(s, "m", 1));
    assert_ok(hth_store_put(s, "m", "g", 1, NULL, again, N, NULL, NULL, &r));
    assert_true(r.unchanged); // the same contents in memory
    assert_ok(hth_store_put(s, "m", "g", 1, NULL, t, N, NULL, NULL, &r));
    assert_true(r.unchanged && r.tensors_shared == N);
    for (int i = 0; i < N; i++) {
        hth_free(content[i]);
    }
    hth_store_close(s);
}

// A content that is another one each time it is read is stored as what it was once, or not at all.
static void test_moving(void **state)
{
    static const size_t bytes[] = {100, 5000, 20 * SOURCE_MIB, 65 * SOURCE_MIB};
    hth_store *s = test_open(state);
    hth_put_result r;
    source from[2] = {{.moving = true}, {.moving = true}};
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        hth_put_tensor t = source_tensor("w", &from[0], bytes[i]);
        assert_ok(hth_store_put(s, "m", "g", 1, NULL, &t, 1, NULL, NULL, &r));
        assert_ok(hth_store_verify(s, "m", 0));
    }
    int files = test_count_files(state, "tensors");
    hth_put_tensor two[2] = {source_tensor("a", &from[0], 65 * SOURCE_MIB), // hashed, then written
                             source_tensor("b", &from[1], 67 * SOURCE_MIB)};
    assert_err(hth_store_put(s, "m", "g", 1, NULL, two, 2, NULL, NULL, &r), HTH_EIO,
               "tensor 'a': its bytes changed while they were read");
    from[1].fails = true;
    assert_err(hth_store_put(s, "m", "g", 1, NULL, two + 1, 1, NULL, NULL, &r), HTH_EIO,
               "tensor 'b': it is gone");
    assert_int_equal(test_count_files(state, "tensors"), files);
    assert_int_equal(test_count_files(state, "tmp"), 0);
    hth_store_close(s);
}

static hth_err put_read_once(hth_store *store)
{
    hth_put_result r;
    source from = {.first = 3};
    hth_put_tensor t[2] = {source_tensor("a", &from, 65 * SOURCE_MIB),
                           source_tensor("b", &from, 70000)};
    return hth_store_put(store, "m", "g", 1, NULL, t, 2, NULL, NULL, &r);
}

static void test_read_without_memory(void **state)
{
    hth_store *s = test_open(state);
    FAULT_LOOP(put_read_once(s));
    assert_ok(hth_store_verify(s, "m", 0));
    assert_int_equal(test_count_files(state, "tmp"), 0);
    hth_store_close(s);
}

// test_repair: a stored file that was cut short is written again by the next import of its bytes.
static void test_repair(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    hth_manifest m;
    char path[192];
    assert_ok(test_put(s, "m", 1, &r));
    assert_ok(hth_store_get(s, "m", 0, &m));
    hth_path file = hth_path_of_tensor(&m.tensors[0].id);
    snprintf(path, sizeof path, "%s/%s", ((test_dir *)*state)->path, file.text);
    assert_int_equal(truncate(path, 100), 0);
    assert_err(hth_store_verify(s, "m", 0), HTH_ECORRUPT, "has 100 bytes, not 4096 bytes");
    assert_ok(test_put(s, "m", 1, &r));
    assert_true(r.unchanged);
    assert_ok(hth_store_verify(s, "m", 0));
    hth_manifest_fini(&m);
    hth_store_close(s);
}

// full_disk runs in a child with a file system of its own: 1 MiB, then puts until it is full.
// Returns 0 when all is well.
static int full_disk(const char *path)
{
    hth_store *s;
    hth_put_result r;
    hth_err err = HTH_OK;
    int puts = 0, n = 0;
    hth_store_entry *e = NULL;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", path, "tmpfs", 0, "size=1m") != 0) {
        return 77;
    }
    if (hth_store_open(path, true, false, &s) != HTH_OK) {
        return 1;
    }
    for (; err == HTH_OK && puts < 1000; puts++) {
        err = test_put(s, "m", puts, &r);
    }
    bool said = err == HTH_EIO && strstr(hth_err_detail(), "No space left") != NULL;
    if (!said || hth_store_list(s, &e, &n) != HTH_OK || n != puts - 1 || n < 10) {
        return 2;
    }
    for (int i = 0; i < n; i++) {
        if (hth_store_verify(s, "m", e[i].version) != HTH_OK) {
            return 3;
        }
    }
    hth_free(e);
    hth_store_close(s);
    return 0;
}

static void test_disk_really_full(void **state)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        _exit(full_disk(((test_dir *)*state)->path));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        skip(); // mounting is not allowed here
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

typedef struct asked {
    hth_store *s;
    int times;
    bool refuse, other; // .. another put comes between
} asked;

static hth_err may(void *ctx)
{
    asked *a = ctx;
    hth_put_result r;
    a->times++;
    if (a->other) {
        assert_ok(test_put(a->s, "m", 7, &r));
    }
    return a->refuse ? hth_fail(HTH_EDENIED, "not now") : HTH_OK;
}

static hth_err put_if(asked *a, int seed, hth_put_result *out)
{
    test_model m;
    const hth_put_ask ask = {.may = may, .ctx = a};
    return hth_store_put_if(a->s, "m", "{}", test_make(&m, seed), TEST_N_TENSORS, &ask, NULL, NULL,
                            out);
}

// Who asks is asked of each content that follows on another one, before it is there.
static void test_asks(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    int latest;
    asked a = {.s = s};
    assert_ok(put_if(&a, 1, &r));
    assert_ok(put_if(&a, 1, &r));
    assert_true(r.unchanged && a.times == 0);
    assert_ok(put_if(&a, 2, &r));
    assert_true(r.version == 2 && a.times == 1);
    a.refuse = true;
    int files = test_count_files(state, "tensors");
    assert_err(put_if(&a, 3, &r), HTH_EDENIED, "not now");
    a = (asked){.s = s, .other = true};
    assert_err(put_if(&a, 4, &r), HTH_EBUSY, "replaced or removed meanwhile");
    assert_ok(hth_store_latest(s, "m", &latest));
    assert_int_equal(latest, 3); // the other's
    assert_int_equal(test_count_files(state, "tensors"), files + 1);
    assert_int_equal(test_count_files(state, "tmp"), 0);
    hth_store_close(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, test_setup, test_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_killed_anywhere),
        TEST(test_disk_full_anywhere),
        TEST(test_failure_leaves_no_file),
        TEST(test_cancel),
        TEST(test_asks),
        TEST(test_two_threads_write),
        TEST(test_repair),
        TEST(test_large),
        TEST(test_read),
        TEST(test_moving),
        TEST(test_read_without_memory),
        TEST(test_disk_really_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
