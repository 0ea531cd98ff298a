// SPDX-License-Identifier: Apache-2.0
// Reading in the background: what is due, in which order, how fast, and what is left of a pass that
// was interrupted. Both clocks stand still but for what the test has them do.
#include "modelstore/scrub.h"

#include "base/clock.h"
#include "modelstore/check.h"
#include "modelstore/store_test.h"

#include <errno.h>
#include <stdlib.h>

#define DAY_NS   ((uint64_t)86400 * 1000000000u)
#define START_NS (1000 * DAY_NS)

typedef struct clocks {
    uint64_t now_ns, wall_ns, waited_ns;
    int waits, end_at; // the pass is ended at this wait; 0: never
} clocks;

static clocks at;

static uint64_t clock_now(void *ctx)
{
    return at.now_ns;
}

static void forward(uint64_t ns)
{
    at.now_ns += ns;
    at.wall_ns += ns;
    hth_store_wall_set(at.wall_ns);
}

static hth_err wait_all(void *ctx, uint64_t ns)
{
    at.waited_ns += ns;
    forward(ns);
    return ++at.waits == at.end_at ? hth_fail(HTH_ECANCELED, "ended") : HTH_OK;
}

static int setup(void **state)
{
    at = (clocks){.now_ns = 1, .wall_ns = START_NS};
    hth_clock_inject(clock_now, NULL);
    hth_store_wall_set(at.wall_ns);
    return test_setup(state);
}

static int teardown(void **state)
{
    hth_clock_inject(NULL, NULL);
    hth_store_wall_set(0);
    return test_teardown(state);
}

static hth_scrub_result pass(hth_store *store)
{
    hth_scrub_result r;
    assert_ok(hth_scrub_pass(store, wait_all, NULL, &r));
    return r;
}

static void file_of(void **state, hth_store *store, const char *name, int tensor, char path[192])
{
    hth_manifest m;
    assert_ok(hth_store_get(store, name, 0, &m));
    hth_path p = hth_path_of_tensor(&m.tensors[tensor].id);
    snprintf(path, 192, "%s/%s", ((test_dir *)*state)->path, p.text);
    hth_manifest_fini(&m);
}

static void flip(const char *path)
{
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    int c = fgetc(f);
    rewind(f);
    fputc(c ^ 1, f);
    fclose(f);
}

static void test_due(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    hth_store_health h;
    assert_ok(
        test_put(s, "m", 1, &r)); // two files, 4096 and 8192 bytes, read when they were written
    hth_scrub_result x = pass(s);
    assert_true(x.tensors == 0 && x.damaged == 0);
    assert_true(x.next_ns == START_NS + DAY_NS); // the index's
    forward(4 * DAY_NS);
    assert_ok(test_put(s, "n", 2, &r)); // one more file, of 4096 bytes
    x = pass(s);
    assert_true(x.tensors == 0);
    forward(5 * DAY_NS / 4); // three quarters of a week after the first ones
    x = pass(s);
    assert_true(x.tensors == 2 && x.bytes == 4096 + 8192 && x.damaged == 0);
    assert_ok(hth_store_health_get(s, &h));
    assert_true(h.tensors == 3 && h.bytes == 2 * 4096 + 8192 && h.damaged == 0);
    assert_true(h.oldest_ns == START_NS + 4 * DAY_NS && h.scrubbed_ns == at.wall_ns);
    x = pass(s);
    assert_true(x.tensors == 0);
    forward(30 * DAY_NS);
    assert_true(pass(s).tensors == 3);
    assert_ok(hth_setting_set("store.scrub_days", "0"));
    forward(300 * DAY_NS);
    x = pass(s);
    assert_true(x.tensors == 0 && x.next_ns == UINT64_MAX);
    hth_store_close(s);
}

// A pass that is ended goes on where it was, in whatever process, and begins with what was read
// longest ago.
static void test_interrupted(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    hth_scrub_result x;
    for (int i = 0; i < 6; i++) {
        char name[8];
        snprintf(name, sizeof name, "m%d", i);
        assert_ok(test_put(s, name, i, &r));
        forward(DAY_NS / 24);
    }
    forward(30 * DAY_NS); // seven files are due
    at.waits = 0;
    at.end_at = 3;
    assert_err(hth_scrub_pass(s, wait_all, NULL, &x), HTH_ECANCELED, "ended");
    assert_int_equal(x.tensors, 2);
    hth_store_close(s);
    s = test_open(state);
    at.end_at = 0;
    x = pass(s);
    assert_int_equal(x.tensors, 5);
    assert_int_equal(pass(s).tensors, 0);
    hth_store_close(s);
}

static uint64_t index_seen_ns(hth_store *store)
{
    hth_store_health h;
    assert_ok(hth_store_health_get(store, &h));
    return h.index_ns;
}

// The reading of files takes days. Until it ends, and however, the index has had its turn.
static void test_interrupted_copy(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    hth_scrub_result x;
    char copy[128];
    snprintf(copy, sizeof copy, "%s/" HTH_INDEX_COPY, ((test_dir *)*state)->path);
    assert_ok(test_put(s, "m", 1, &r));
    forward(30 * DAY_NS);
    uint64_t now = at.wall_ns;
    at.end_at = at.waits + 1;
    assert_err(hth_scrub_pass(s, wait_all, NULL, &x), HTH_ECANCELED, "ended");
    assert_int_equal(access(copy, F_OK), 0);
    assert_true(index_seen_ns(s) == now);
    hth_store_close(s);
}

// refuse has this process not be able to open a file. Root becomes another user, who owns the store
// but for that, until admit.
static void refuse(void **state, const char *file)
{
    char command[200];
    assert_int_equal(chmod(file, 0), 0);
    if (geteuid() == 0) {
        snprintf(command, sizeof command, "chown -R 65534 %s", ((test_dir *)*state)->path);
        assert_int_equal(system(command), 0);
        assert_int_equal(seteuid(65534), 0);
    }
}

static void admit(void)
{
    assert_int_equal(seteuid(getuid()), 0);
}

// A file that may not be read does not keep others from being read, nor the index from its copy.
static void test_unreadable(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    hth_scrub_result x;
    hth_store_health h;
    char copy[128], path[192];
    snprintf(copy, sizeof copy, "%s/" HTH_INDEX_COPY, ((test_dir *)*state)->path);
    assert_ok(test_put(s, "m", 1, &r));
    forward(30 * DAY_NS);
    file_of(state, s, "m", 0, path);
    uint64_t now = at.wall_ns;
    refuse(state, path); // it is due first: its state is another one
    hth_err err = hth_scrub_pass(s, wait_all, NULL, &x);
    admit();
    assert_err(err, HTH_EDENIED, "opening 'tensors/");
    assert_true(x.tensors == 1 && x.bytes == 8192 && x.damaged == 0);
    assert_int_equal(access(copy, F_OK), 0);
    assert_true(index_seen_ns(s) == now);
    assert_ok(hth_store_health_get(s, &h));
    assert_true(h.scrubbed_ns == 0); // not all that was due is read
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(pass(s).tensors, 1);
    hth_store_close(s);
}

static void test_rate(void **state)
{
    enum { MIB = 1 << 20 };
    hth_store *s = test_open(state);
    hth_put_result r;
    uint8_t *data = hth_calloc(1, 5 * MIB);
    const hth_put_tensor t = {
        .name = "w", .dtype = HTH_DT_U8, .shape = {1, {5 * MIB}}, .data = data, .bytes = 5 * MIB};
    assert_ok(hth_store_put(s, "m", "g", 1, NULL, &t, 1, NULL, NULL, &r));
    assert_ok(hth_setting_set("store.scrub_rate", "2MiB"));
    forward(30 * DAY_NS);
    at.waits = 0;
    assert_int_equal(pass(s).bytes, 5 * MIB);
    assert_int_equal(at.waits, 5); // a piece at a time
    assert_true(at.waited_ns == 2500000000u);
    hth_free(data);
    hth_store_close(s);
}

// A file that was written to is due at once. What is found damaged is marked, and counted.
static void test_damage(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    hth_store_health h;
    hth_manifest m;
    hth_const *c;
    char path[192];
    assert_ok(test_put(s, "m", 1, &r));
    (void)pass(s);
    uint64_t health = hth_store_health_count(s);
    file_of(state, s, "m", 0, path);
    flip(path);
    hth_scrub_result x = pass(s);
    assert_true(x.tensors == 1 && x.damaged == 1);
    assert_true(hth_store_health_count(s) > health);
    assert_ok(hth_store_health_get(s, &h));
    assert_int_equal(h.damaged, 1);
    assert_ok(hth_store_get(s, "m", 0, &m));
    assert_err(hth_store_view(s, &m.tensors[0], &c), HTH_ECORRUPT, "big0");
    assert_int_equal(pass(s).tensors, 0); // the same file is not read again
    assert_ok(test_put(s, "m", 1, &r));
    assert_int_equal(r.tensors_repaired, 1);
    assert_ok(hth_store_health_get(s, &h));
    assert_int_equal(h.damaged, 0);
    file_of(state, s, "m", 2, path);
    assert_int_equal(unlink(path), 0);
    x = pass(s);
    assert_true(x.tensors == 1 && x.damaged == 1);
    assert_ok(hth_store_rm(s, "m", 0));
    uint64_t files, bytes;
    assert_ok(hth_store_gc(s, &files, &bytes));
    assert_ok(hth_store_health_get(s, &h));
    assert_int_equal(h.damaged, 0); // with its tensors a store has lost their damage
    hth_manifest_fini(&m);
    hth_store_close(s);
}

static hth_err forget_row(hth_txn *txn, void *ctx)
{
    const hth_manifest_tensor *x = ctx;
    hth_version_key key = hth_version_key_of("m", 1);
    HTH_TRY(hth_check_sum_del(txn, &key));
    return hth_txn_del(txn, HTH_TABLE_TENSORS, &x->id, sizeof x->id);
}

static hth_err flip_small(hth_txn *txn, void *ctx)
{
    const hth_manifest_tensor *x = ctx;
    MDB_val v;
    char copy[64];
    HTH_TRY(hth_txn_get(txn, HTH_TABLE_INLINES, &x->id, sizeof x->id, &v));
    memcpy(copy, v.mv_data, v.mv_size);
    copy[0] ^= 1;
    return hth_txn_put(txn, HTH_TABLE_INLINES, &x->id, sizeof x->id, copy, v.mv_size);
}

// The index is compared with itself once a day; records that have no sum get one.
static void test_index(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    hth_store_health h;
    hth_manifest m;
    assert_ok(test_put(s, "m", 1, &r));
    assert_ok(hth_store_get(s, "m", 0, &m));
    (void)pass(s);
    assert_ok(hth_index_write(&s->index, forget_row, &m.tensors[0]));
    assert_ok(hth_index_write(&s->index, flip_small, &m.tensors[1]));
    assert_int_equal(pass(s).damaged, 0); // not its turn
    forward(DAY_NS);
    hth_scrub_result x = pass(s);
    assert_true(x.damaged >= 2);
    assert_ok(hth_store_health_get(s, &h));
    assert_true(h.index_damages == x.damaged && h.index_ns == at.wall_ns);
    assert_ok(test_put(s, "m", 1, &r));
    forward(DAY_NS);
    assert_int_equal(pass(s).damaged, 0);
    assert_ok(hth_store_health_get(s, &h));
    assert_int_equal(h.index_damages, 0);
    // the sum that was missing is there: a changed record is noticed
    hth_record_sum sum;
    hth_version_key key = hth_version_key_of("m", 1);
    hth_txn t = {.ix = &s->index};
    assert_int_equal(mdb_txn_begin(s->index.env, NULL, MDB_RDONLY, &t.txn), 0);
    assert_ok(hth_check_sum_get(&t, &key, &sum));
    mdb_txn_abort(t.txn);
    hth_manifest_fini(&m);
    hth_store_close(s);
}

// The copy of an index takes the place of one that is damaged.
static void test_copy(void **state)
{
    const char *dir = ((test_dir *)*state)->path;
    hth_store *s = test_open(state);
    hth_put_result r;
    char index[128], copy[128];
    struct stat first, again;
    snprintf(index, sizeof index, "%s/index/data.mdb", dir);
    snprintf(copy, sizeof copy, "%s/" HTH_INDEX_COPY, dir);
    assert_ok(test_put(s, "m", 1, &r));
    (void)pass(s);
    assert_int_equal(stat(copy, &first), 0);
    forward(DAY_NS);
    (void)pass(s); // nothing has changed
    assert_int_equal(stat(copy, &again), 0);
    assert_int_equal(first.st_ino, again.st_ino);
    assert_ok(test_put(s, "n", 2, &r));
    forward(DAY_NS);
    (void)pass(s);
    assert_int_equal(stat(copy, &again), 0);
    assert_int_not_equal(first.st_ino, again.st_ino);
    hth_store_close(s);
    for (int cut = 0; cut < 2; cut++) { // pages that are zero; nothing
        FILE *f = fopen(index, cut ? "w" : "r+");
        assert_non_null(f);
        static const char zero[4096];
        for (int page = 2; page < 12 && !cut; page++) {
            assert_int_equal(fseek(f, page * 4096L, SEEK_SET), 0);
            assert_int_equal(fwrite(zero, 1, sizeof zero, f), sizeof zero);
        }
        fclose(f);
        assert_err(hth_store_open(dir, false, false, &s), HTH_ECORRUPT,
                   "the store's index is damaged");
        assert_non_null(strstr(hth_err_detail(), "index/data.copy, can replace"));
        char command[300];
        snprintf(command, sizeof command, "cp %s %s", copy, index);
        assert_int_equal(system(command), 0);
        s = test_open(state);
        assert_ok(hth_store_verify(s, "m", 0));
        assert_ok(hth_store_verify(s, "n", 0));
        hth_store_close(s);
    }
    // with the disk full at any point there is a copy, the last one or a new one
    s = test_open(state);
    for (uint64_t nth = 1; nth <= 12; nth++) {
        hth_scrub_result x;
        assert_ok(test_put(s, "o", (int)nth, &r));
        forward(DAY_NS);
        hth_store_file_fault(nth, ENOSPC);
        (void)hth_scrub_pass(s, wait_all, NULL, &x);
        hth_store_file_fault(0, 0);
        assert_int_equal(test_count_files(state, "index"), 3); // data, lock, copy
    }
    assert_int_equal(stat(copy, &again), 0);
    hth_store_close(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_due),        TEST(test_interrupted), TEST(test_interrupted_copy),
        TEST(test_unreadable), TEST(test_rate),        TEST(test_damage),
        TEST(test_index),      TEST(test_copy)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
