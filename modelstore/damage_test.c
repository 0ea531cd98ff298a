// SPDX-License-Identifier: Apache-2.0
// Bytes of a store that are not what they were: found before they are used, named, and repaired by
// an import of the same content, whole or not at all.
#include "base/stats.h"
#include "modelstore/check.h"
#include "modelstore/store_test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define DAY_NS ((uint64_t)86400 * 1000000000u)

typedef struct fixture {
    void **state;
    hth_store *s;
    hth_manifest m; // of m:1
    char file[192]; // of its tensor big0
} fixture;

static void open_fixture(void **state, fixture *f)
{
    hth_put_result r;
    *f = (fixture){.state = state, .s = test_open(state)};
    assert_ok(test_put(f->s, "m", 1, &r));
    assert_ok(hth_store_get(f->s, "m", 0, &f->m));
    hth_path path = hth_path_of_tensor(&f->m.tensors[0].id);
    snprintf(f->file, sizeof f->file, "%s/%s", ((test_dir *)*state)->path, path.text);
}

static void close_fixture(fixture *f)
{
    hth_manifest_fini(&f->m);
    hth_store_close(f->s);
    hth_store_wall_set(0);
}

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    fputc(c ^ 0x40, f);
    fclose(f);
}

// ---- a tensor's file

typedef enum harm { FLIP, FLIP_LAST, CUT, EMPTY, LONGER, MISSING, LINK, FOLDER, FIFO, SOME } harm;

static void harm_file(const char *path, harm h)
{
    char copy[200];
    if (h == FLIP || h == FLIP_LAST) {
        flip(path, h == FLIP ? 0 : 4095);
    } else if (h == CUT || h == EMPTY || h == LONGER) {
        off_t rest = h == EMPTY ? 0 : 4097;
        assert_int_equal(truncate(path, h == CUT ? 4095 : rest), 0);
    } else if (h == LINK) { // .. to the very bytes
        snprintf(copy, sizeof copy, "%s.x", path);
        assert_int_equal(rename(path, copy), 0);
        assert_int_equal(symlink(copy, path), 0);
    } else {
        assert_int_equal(unlink(path), 0);
        int rc = h == FIFO ? mkfifo(path, 0600) : 0;
        assert_int_equal(h == FOLDER ? mkdir(path, 0700) : rc, 0);
    }
}

static const char *const harm_says[SOME] = {[FLIP] = "does not have the bytes that were stored",
                                            [FLIP_LAST] =
                                                "does not have the bytes that were stored",
                                            [CUT] = "has 4095 bytes, not 4096",
                                            [EMPTY] = "has 0 bytes, not 4096",
                                            [LONGER] = "has 4097 bytes, not 4096",
                                            [MISSING] = "is missing",
                                            [LINK] = "is not a regular file",
                                            [FOLDER] = "is not a regular file",
                                            [FIFO] = "is not a regular file"};

static void count_damage(void *ctx, const hth_store_damage *damage)
{
    assert_string_equal(damage->model, "m");
    assert_string_equal(damage->tensor, "big0");
    assert_int_equal(strncmp(damage->file, "tensors/", 8), 0);
    (*(int *)ctx)++;
}

// Whatever has become of a file: it is not used, it is reported once for each version that uses it,
// and an import of the same content repairs it.
static void test_files(void **state)
{
    for (int h = 0; h < SOME; h++) {
        fixture f;
        hth_const *c;
        hth_put_result r;
        hth_store_verified v;
        hth_store_entry *e;
        int reported = 0, n;
        test_model want;
        open_fixture(state, &f);
        harm_file(f.file, (harm)h);
        assert_err(hth_store_check(f.s, &f.m), HTH_ECORRUPT, "tensor 'big0': its file 'tensors/");
        assert_err(hth_store_view(f.s, &f.m.tensors[0], &c), HTH_ECORRUPT, harm_says[h]);
        assert_null(c);
        assert_err(hth_store_verify(f.s, "m", 0), HTH_ECORRUPT,
                   "tensor 'big0' of 'm:1': its file ");
        assert_ok(hth_store_verify_all(f.s, NULL, 0, NULL, count_damage, &reported, &v));
        assert_true(reported == 1 && v.damaged == 1 && v.versions == 1 && v.tensors == 4);
        assert_ok(hth_store_list(f.s, &e, &n));
        assert_true(n == 1 && e[0].damaged);
        hth_free(e);

        assert_ok(test_put(f.s, "m", 1, &r));
        assert_true(r.unchanged && r.version == 1 && r.tensors_repaired == 1 &&
                    r.bytes_repaired == 4096 && r.tensors_new == 0 && !r.record_repaired);
        assert_ok(hth_store_verify_all(f.s, NULL, 0, NULL, count_damage, &reported, &v));
        assert_int_equal(v.damaged, 0);
        assert_ok(hth_store_list(f.s, &e, &n));
        assert_true(n == 1 && !e[0].damaged);
        hth_free(e);
        assert_ok(hth_store_view(f.s, &f.m.tensors[0], &c));
        test_make(&want, 1);
        assert_memory_equal(c->data, want.big0, 4096);
        hth_const_rele(c);
        assert_ok(test_put(f.s, "m", 1, &r)); // nothing is left to do
        assert_true(r.unchanged && r.tensors_repaired == 0);
        assert_int_equal(test_count_files(state, "tmp"), 0);
        assert_ok(hth_store_rm(f.s, "m", 0));
        close_fixture(&f);
        assert_int_equal(test_remove(((test_dir *)*state)->path), 0);
        assert_int_equal(mkdir(((test_dir *)*state)->path, 0700), 0);
    }
}

// Another model's import repairs what they share, and its own version is a new one.
static void test_shared(void **state)
{
    fixture f;
    hth_put_result r;
    char shared[192];
    open_fixture(state, &f);
    hth_path path = hth_path_of_tensor(&f.m.tensors[2].id); // big1
    snprintf(shared, sizeof shared, "%s/%s", ((test_dir *)*state)->path, path.text);
    flip(shared, 100);
    assert_ok(test_put(f.s, "other", 2, &r));
    assert_true(!r.unchanged && r.version == 1 && r.tensors_repaired == 1 && r.tensors_shared == 2);
    assert_ok(hth_store_verify(f.s, "m", 0));
    assert_ok(hth_store_verify(f.s, "other", 0));
    close_fixture(&f);
}

// Who has the damaged file mapped keeps it; who asks behind the repair gets the right bytes.
static void test_mapped(void **state)
{
    fixture f;
    hth_const *old, *again;
    hth_put_result r;
    test_model want;
    open_fixture(state, &f);
    test_make(&want, 1);
    assert_ok(hth_store_view(f.s, &f.m.tensors[0], &old));
    uint64_t health = hth_store_health_count(f.s), changes = hth_store_change_count(f.s);
    assert_ok(hth_store_sound(f.s, &f.m));
    flip(f.file, 8); // in the mapping, too: it is the same file
    assert_memory_not_equal(old->data, want.big0, 4096);
    assert_err(hth_store_verify(f.s, "m", 0), HTH_ECORRUPT, "big0");
    assert_true(hth_store_health_count(f.s) > health && hth_store_change_count(f.s) > changes);
    assert_err(hth_store_sound(f.s, &f.m), HTH_ECORRUPT, "big0");
    assert_err(hth_store_view(f.s, &f.m.tensors[0], &again), HTH_ECORRUPT, "big0");
    health = hth_store_health_count(f.s);
    assert_ok(test_put(f.s, "m", 1, &r));
    assert_true(hth_store_health_count(f.s) > health);
    assert_err(hth_store_sound(f.s, &f.m), HTH_EBUSY, "repaired");
    assert_ok(hth_store_view(f.s, &f.m.tensors[0], &again));
    assert_ptr_not_equal(old, again);
    assert_memory_equal(again->data, want.big0, 4096);
    assert_ok(hth_store_sound(f.s, &f.m));
    hth_const_rele(old);
    hth_const_rele(again);
    close_fixture(&f);
}

// ---- when files are read

// rot changes a bit and leaves the file the same: the index is told that it was read since.
static hth_err rot_row(hth_txn *txn, void *ctx)
{
    const fixture *f = ctx;
    hth_check_row row = {.checked_ns = hth_store_wall_ns()};
    HTH_TRY(hth_object_look(f->s, &f->m.tensors[0].id, 4096, &row.seen));
    return hth_check_put(txn, &f->m.tensors[0].id, &row);
}

static void test_when(void **state)
{
    fixture f;
    hth_const *c;
    hth_store_wall_set(100 * DAY_NS);
    open_fixture(state, &f);
    flip(f.file, 0);
    assert_ok(hth_index_write(&f.s->index, rot_row, &f));
    assert_ok(hth_store_view(f.s, &f.m.tensors[0], &c)); // auto: it was read today
    hth_const_rele(c);
    assert_ok(hth_store_check(f.s, &f.m));
    hth_store_wall_set(100 * DAY_NS + 7 * DAY_NS);
    assert_ok(hth_store_check(f.s, &f.m));
    hth_store_wall_set(100 * DAY_NS + 7 * DAY_NS + 1);
    assert_ok(hth_setting_set("store.check_on_load", "never"));
    assert_ok(hth_store_check(f.s, &f.m));
    assert_ok(hth_setting_set("store.check_on_load", "auto"));
    assert_err(hth_store_check(f.s, &f.m), HTH_ECORRUPT, "big0");
    assert_ok(hth_setting_set("store.check_on_load", "never")); // what is known is known
    assert_err(hth_store_check(f.s, &f.m), HTH_ECORRUPT, "big0");
    assert_err(hth_store_view(f.s, &f.m.tensors[0], &c), HTH_ECORRUPT, "big0");
    hth_store_close(f.s); // .. by another process, too
    f.s = test_open(state);
    assert_err(hth_store_view(f.s, &f.m.tensors[0], &c), HTH_ECORRUPT, "big0");
    flip(f.file, 0); // somebody puts the file right
    assert_ok(hth_setting_set("store.check_on_load", "auto"));
    assert_ok(hth_store_check(f.s, &f.m));
    assert_ok(hth_store_sound(f.s, &f.m));
    close_fixture(&f);
}

// mark_row is the mark of another process, which has read the file as it is now.
static hth_err mark_row(hth_txn *txn, void *ctx)
{
    const fixture *f = ctx;
    hth_check_row row = {.checked_ns = hth_store_wall_ns(), .damaged = 1};
    HTH_TRY(hth_object_look(f->s, &f->m.tensors[0].id, 4096, &row.seen));
    return hth_check_put(txn, &f->m.tensors[0].id, &row);
}

// What a process has read before another one wrote to the file, or repaired it, is no news.
static void test_outdated(void **state)
{
    fixture f;
    hth_object_seen right, wrong;
    hth_store_health h;
    hth_put_result r;
    open_fixture(state, &f);
    const hth_id *id = &f.m.tensors[0].id;
    assert_ok(hth_object_look(f.s, id, 4096, &right));
    hth_check_found(f.s, id, &right, false);
    flip(f.file, 5);
    assert_ok(hth_object_look(f.s, id, 4096, &wrong));
    assert_ok(hth_index_write(&f.s->index, mark_row, &f));
    hth_check_flush(f.s);
    assert_ok(hth_store_health_get(f.s, &h));
    assert_int_equal(h.damaged, 1);
    assert_err(hth_store_check(f.s, &f.m), HTH_ECORRUPT, "big0");

    assert_ok(test_put(f.s, "m", 1, &r));
    assert_int_equal(r.tensors_repaired, 1);
    uint64_t events = hth_store_health_count(f.s);
    hth_check_found(f.s, id, &wrong, true);
    assert_ok(hth_store_health_get(f.s, &h));
    assert_int_equal(h.damaged, 0);
    assert_true(hth_store_health_count(f.s) == events);
    assert_ok(hth_store_check(f.s, &f.m));
    close_fixture(&f);
}

static uint64_t marked(const fixture *f)
{
    hth_store_health h;
    assert_ok(hth_store_health_get(f->s, &h));
    return h.damaged;
}

// That a file was right when it was read is written late, perhaps after another process has found
// it damaged: the mark stays until it is read, and right, again.
static void test_late_flush(void **state)
{
    fixture f;
    hth_object_seen seen;
    hth_store_wall_set(100 * DAY_NS);
    open_fixture(state, &f);
    const hth_id *id = &f.m.tensors[0].id;
    assert_ok(hth_object_look(f.s, id, 4096, &seen));
    hth_check_found(f.s, id, &seen, false);
    hth_store_wall_set(101 * DAY_NS);
    assert_ok(hth_index_write(&f.s->index, mark_row, &f));
    hth_check_flush(f.s);
    assert_int_equal(marked(&f), 1);
    hth_store_wall_set(102 * DAY_NS);
    hth_check_found(f.s, id, &seen, false);
    hth_check_flush(f.s);
    assert_int_equal(marked(&f), 0);
    close_fixture(&f);
}

// A mark that could not be kept is, when the damage is found again.
static void test_mark_again(void **state)
{
    fixture f;
    hth_object_seen seen;
    open_fixture(state, &f);
    const hth_id *id = &f.m.tensors[0].id;
    assert_ok(hth_object_look(f.s, id, 4096, &seen));
    hth_store_file_full(true);
    hth_check_found(f.s, id, &seen, true);
    hth_store_file_full(false);
    assert_int_equal(marked(&f), 0);
    hth_check_found(f.s, id, &seen, true);
    assert_int_equal(marked(&f), 1);
    uint64_t events = hth_store_health_count(f.s);
    hth_check_found(f.s, id, &seen, true);
    assert_true(hth_store_health_count(f.s) == events);
    close_fixture(&f);
}

static void test_always(void **state)
{
    fixture f;
    open_fixture(state, &f);
    flip(f.file, 0);
    assert_ok(hth_index_write(&f.s->index, rot_row, &f));
    assert_ok(hth_store_check(f.s, &f.m));
    assert_ok(hth_setting_set("store.check_on_load", "always"));
    assert_err(hth_store_check(f.s, &f.m), HTH_ECORRUPT, "big0");
    flip(f.file, 0);
    assert_ok(hth_store_check(f.s, &f.m));
    flip(f.file, 0);
    assert_ok(hth_index_write(&f.s->index, rot_row, &f));
    assert_err(hth_store_check(f.s, &f.m), HTH_ECORRUPT,
               "big0"); // it is another file to this process
    close_fixture(&f);
}

// ---- the index

typedef struct edit {
    hth_table table;
    const void *key;
    size_t key_bytes;
    long at;            // the byte that changes, -1: the row goes
    unsigned char mask; // of its bits that do
    size_t bytes;       // of the row
} edit;

static hth_err edit_row(hth_txn *txn, void *ctx)
{
    edit *e = ctx;
    MDB_val v;
    HTH_TRY(hth_txn_get(txn, e->table, e->key, e->key_bytes, &v));
    e->bytes = v.mv_size;
    if (e->at < 0) {
        return hth_txn_del(txn, e->table, e->key, e->key_bytes);
    }
    char *copy = hth_memdup(v.mv_data, v.mv_size);
    copy[(size_t)e->at] ^= (char)e->mask;
    hth_err err = hth_txn_put(txn, e->table, e->key, e->key_bytes, copy, v.mv_size);
    hth_free(copy);
    return err;
}

static size_t edit_index(fixture *f, hth_table table, const void *key, size_t key_bytes, long at)
{
    edit e = {table, key, key_bytes, at, 0x10, 0};
    assert_ok(hth_index_write(&f->s->index, edit_row, &e));
    return e.bytes;
}

static void note_damage(void *ctx, const hth_store_damage *damage)
{
    snprintf(ctx, 300, "%s:%d %s %s %s", damage->model, damage->version, damage->tensor,
             damage->file, damage->what);
}

// repaired: an import makes everything as it was, without a new version.
static void assert_repaired(fixture *f, bool record, uint64_t tensors)
{
    hth_put_result r;
    hth_store_verified v;
    hth_manifest m;
    char what[300] = "";
    assert_ok(test_put(f->s, "m", 1, &r));
    assert_true(r.unchanged && r.version == 1);
    assert_int_equal(r.tensors_repaired, tensors);
    assert_int_equal(r.record_repaired, record);
    assert_ok(hth_store_verify_all(f->s, NULL, 0, NULL, note_damage, what, &v));
    assert_string_equal(what, "");
    assert_ok(hth_store_get(f->s, "m", 1, &m));
    assert_true(m.created_ns == f->m.created_ns && m.n_tensors == f->m.n_tensors);
    hth_manifest_fini(&m);
}

static void test_small_tensor(void **state)
{
    fixture f;
    hth_const *c;
    hth_store_verified v;
    char what[300] = "";
    open_fixture(state, &f);
    const hth_manifest_tensor *t = &f.m.tensors[1]; // small0
    for (long at = -1; at < 40; at++) {
        edit_index(&f, HTH_TABLE_INLINES, &t->id, sizeof t->id, at);
        assert_err(hth_store_view(f.s, t, &c), HTH_ECORRUPT,
                   at < 0 ? "'small0': its bytes in the store's index are missing"
                          : "'small0': its bytes in the store's index are not");
        assert_ok(hth_store_verify_all(f.s, "m", 0, NULL, note_damage, what, &v));
        assert_int_equal(v.damaged, 1);
        assert_int_equal(strncmp(what, "m:1 small0 tensors/", 19), 0);
        assert_repaired(&f, false, 1);
        assert_ok(hth_store_view(f.s, t, &c));
        hth_const_rele(c);
    }
    close_fixture(&f);
}

// A row of the list of tensors: lost, or with any byte changed.
static void test_tensor_row(void **state)
{
    fixture f;
    hth_store_verified v;
    hth_put_result r;
    char what[300];
    open_fixture(state, &f);
    for (int i = 0; i < 2; i++) { // one with a file, one without
        const hth_manifest_tensor *t = &f.m.tensors[i];
        for (long at = -1; at < (long)sizeof(hth_tensor_row); at++) {
            what[0] = 0;
            edit_index(&f, HTH_TABLE_TENSORS, &t->id, sizeof t->id, at);
            assert_ok(hth_store_verify_all(f.s, NULL, 0, NULL, note_damage, what, &v));
            assert_true(v.damaged > 0 && what[0] != 0);
            assert_ok(test_put(f.s, "m", 1, &r));
            assert_true(r.unchanged);
            if (at >= 0 && at < 4) { // a count that is wrong harms nothing, and gc corrects it
                uint64_t files, bytes;
                assert_ok(hth_store_gc(f.s, &files, &bytes));
                assert_int_equal(files, 0);
            }
            assert_repaired(&f, false, 0);
        }
    }
    close_fixture(&f);
}

static hth_err no_references(hth_txn *txn, void *ctx)
{
    const hth_manifest *m = ctx;
    for (int i = 0; i < m->n_tensors; i++) {
        hth_tensor_row row;
        HTH_TRY(hth_store_row(txn, &m->tensors[i].id, &row));
        row.refs = 0;
        HTH_TRY(hth_txn_put(txn, HTH_TABLE_TENSORS, &m->tensors[i].id, sizeof m->tensors[i].id,
                            &row, sizeof row));
    }
    return HTH_OK;
}

// Nothing goes that a version needs, whatever the index says of it.
static void test_gc(void **state)
{
    fixture f;
    uint64_t files, bytes;
    hth_put_result r;
    open_fixture(state, &f);
    assert_ok(hth_index_write(&f.s->index, no_references, &f.m));
    assert_ok(hth_store_gc(f.s, &files, &bytes));
    assert_int_equal(files, 0);
    assert_repaired(&f, false, 0);
    edit_index(&f, HTH_TABLE_TENSORS, &f.m.tensors[0].id, sizeof(hth_id), -1);
    assert_ok(hth_store_gc(f.s, &files, &bytes)); // the file is one that no row names now
    assert_int_equal(files, 0);
    assert_int_equal(test_count_files(state, "tensors"), 2);
    assert_ok(test_put(f.s, "m", 1, &r));
    assert_repaired(&f, false, 0);
    assert_ok(hth_store_rm(f.s, "m", 0));
    assert_ok(hth_store_gc(f.s, &files, &bytes));
    assert_int_equal(files, 4);
    close_fixture(&f);
}

// A table whose name has a changed bit is lost. An empty one in its place would have gc remove all.
static void test_table_name(void **state)
{
    const char *dir = ((test_dir *)*state)->path;
    hth_put_result r;
    char path[128], *data;
    hth_store *s = test_open(state);
    assert_ok(test_put(s, "m", 1, &r));
    hth_store_close(s);
    snprintf(path, sizeof path, "%s/" HTH_STORE_INDEX_FILE, dir);
    int fd = open(path, O_RDWR);
    struct stat st;
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    data = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(data, MAP_FAILED);
    int found = 0;
    for (char *p = data, *end = data + st.st_size;
         (p = memmem(p, (size_t)(end - p), "versions", 8)) != NULL; found++) {
        *p ^= 1; // "wersions"
    }
    assert_true(found > 0);
    munmap(data, (size_t)st.st_size);
    close(fd);
    assert_err(hth_store_open(dir, true, false, &s), HTH_ECORRUPT, "has no table 'versions'");
    assert_err(hth_store_open(dir, false, true, &s), HTH_ECORRUPT, "has no table 'versions'");
    assert_int_equal(test_count_files(state, "tensors"), 2);
}

// What gc removes while somebody is about to use it is gone, not damaged.
static void test_gone(void **state)
{
    fixture f;
    uint64_t files, bytes, damaged = hth_stat_get(HTH_STAT_STORE_DAMAGED);
    hth_object_seen seen;
    bool needed;
    open_fixture(state, &f);
    const hth_manifest_tensor *t = &f.m.tensors[0];
    const hth_object o = {t->id, t->dtype, t->shape, t->bytes};
    assert_ok(hth_store_rm(f.s, "m", 0));
    assert_ok(hth_store_gc(f.s, &files, &bytes));
    assert_err(hth_check_look(f.s, &o, &seen, &needed), HTH_ENOENT, "no longer in the store");
    assert_ok(hth_check_read(f.s, &o, false, NULL, NULL, &seen));
    assert_int_equal(hth_stat_get(HTH_STAT_STORE_DAMAGED), damaged);
    close_fixture(&f);
}

// A version's record with any byte changed: not used, listed, repaired; and nothing is collected.
static void test_record(void **state)
{
    fixture f;
    hth_manifest m;
    hth_store_entry *e;
    hth_store_verified v;
    uint64_t files, bytes;
    int n;
    char what[300];
    open_fixture(state, &f);
    hth_version_key key = hth_version_key_of("m", 1);
    size_t size = 1;
    for (size_t at = 0; at < size; at++) {
        size = edit_index(&f, HTH_TABLE_VERSIONS, key.text, key.bytes, (long)at);
        assert_err(hth_store_get(f.s, "m", 0, &m), HTH_ECORRUPT, "'m:1': its record");
        assert_ok(hth_store_list(f.s, &e, &n));
        assert_true(n == 1 && strcmp(e[0].name, "m") == 0);
        hth_free(e);
        assert_ok(hth_store_verify_all(f.s, NULL, 0, NULL, note_damage, what, &v));
        assert_true(v.damaged > 0 && strstr(what, "m:1  index/data.mdb 'm:1': its record") != NULL);
        assert_err(hth_store_gc(f.s, &files, &bytes), HTH_ECORRUPT, "the record of m:1 is damaged");
        assert_repaired(&f, true, 0);
    }
    assert_true(size > 200);
    // one that nobody has any more can still be removed
    edit_index(&f, HTH_TABLE_VERSIONS, key.text, key.bytes, 12);
    assert_ok(hth_store_rm(f.s, "m", 1));
    assert_ok(hth_store_gc(f.s, &files, &bytes));
    assert_ok(hth_store_gc(f.s, &files, &bytes));
    assert_int_equal(test_count_files(state, "tensors"), 0);
    close_fixture(&f);
}

// An older version's record is repaired by an import of what it was, which makes a new one.
static void test_older_record(void **state)
{
    fixture f;
    hth_put_result r;
    hth_manifest m;
    open_fixture(state, &f);
    assert_ok(test_put(f.s, "m", 2, &r));
    hth_version_key key = hth_version_key_of("m", 1);
    edit_index(&f, HTH_TABLE_VERSIONS, key.text, key.bytes, 33);
    assert_err(hth_store_get(f.s, "m", 1, &m), HTH_ECORRUPT, "'m:1': its record");
    assert_ok(test_put(f.s, "m", 1, &r));
    assert_true(!r.unchanged && r.version == 3 && r.record_repaired && r.tensors_repaired == 0);
    assert_ok(hth_store_get(f.s, "m", 1, &m));
    assert_true(m.created_ns == f.m.created_ns);
    hth_manifest_fini(&m);
    assert_ok(hth_store_get(f.s, "m", 3, &m));
    assert_true(m.created_ns > f.m.created_ns);
    hth_manifest_fini(&m);
    assert_ok(hth_store_verify(f.s, "m", 1));
    close_fixture(&f);
}

// The store of version 0.1.0 has no sums: it is used as it is.
static hth_err no_checks_row(hth_txn *txn, void *ctx, const MDB_val *key, const MDB_val *value)
{
    MDB_val *first = ctx;
    *first = *key;
    return HTH_ECANCELED;
}

static hth_err no_checks(hth_txn *txn, void *ctx)
{
    for (;;) {
        char copy[600];
        MDB_val key = {0, NULL};
        hth_err err = hth_txn_each(txn, HTH_TABLE_CHECKS, NULL, 0, no_checks_row, &key);
        if (err != HTH_ECANCELED) {
            return err;
        }
        memcpy(copy, key.mv_data, key.mv_size);
        HTH_TRY(hth_txn_del(txn, HTH_TABLE_CHECKS, copy, key.mv_size));
    }
}

static void test_older_store(void **state)
{
    fixture f;
    hth_const *c;
    open_fixture(state, &f);
    assert_ok(hth_index_write(&f.s->index, no_checks, NULL));
    assert_repaired(&f, false, 0);
    flip(f.file, 5);
    assert_err(hth_store_view(f.s, &f.m.tensors[0], &c), HTH_ECORRUPT, "big0");
    close_fixture(&f);
}

// ---- accidents while it is repaired

static void harm_all(fixture *f)
{
    hth_version_key key = hth_version_key_of("m", 1);
    flip(f->file, 0);
    edit_index(f, HTH_TABLE_INLINES, &f->m.tensors[1].id, sizeof(hth_id), 3);
    edit_index(f, HTH_TABLE_VERSIONS, key.text, key.bytes, 33);
}

// With the disk full at any point the store is as damaged as it was, and repaired by the next
// import.
static void test_disk_full(void **state)
{
    fixture f;
    hth_put_result r;
    hth_err err = HTH_EIO;
    open_fixture(state, &f);
    for (uint64_t nth = 1; err != HTH_OK; nth++) {
        hth_const *c;
        harm_all(&f);
        hth_store_file_fault(nth, ENOSPC);
        err = test_put(f.s, "m", 1, &r);
        hth_store_file_fault(0, 0);
        assert_int_equal(test_count_files(state, "tmp"), 0);
        assert_int_equal(test_count_files(state, "tensors"), 2);
        if (err == HTH_OK) {
            assert_true(nth > 8 && r.tensors_repaired == 2 && r.record_repaired);
            break;
        }
        assert_err(err, HTH_EIO, "No space left on device");
        assert_err(hth_store_view(f.s, &f.m.tensors[1], &c), HTH_ECORRUPT, "small0");
        assert_ok(test_put(f.s, "m", 1, &r));
        assert_true(r.unchanged && r.record_repaired && r.tensors_repaired > 0);
        assert_repaired(&f, false, 0);
    }
    assert_repaired(&f, false, 0);
    close_fixture(&f);
}

static void test_killed(void **state)
{
    fixture f;
    hth_put_result r;
    int status = -1;
    open_fixture(state, &f);
    for (int nth = 1; status != 0; nth++) {
        harm_all(&f);
        hth_manifest_fini(&f.m);
        hth_store_close(f.s); // a store must not be open across a fork
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            hth_store *s;
            hth_store_file_fault((uint64_t)nth, HTH_STORE_FILE_KILL);
            _exit(hth_store_open(((test_dir *)*state)->path, false, false, &s) == HTH_OK &&
                          test_put(s, "m", 1, &r) == HTH_OK
                      ? 0
                      : 1);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
        f.s = test_open(state);
        assert_ok(test_put(f.s, "m", 1, &r));
        assert_ok(hth_store_get(f.s, "m", 0, &f.m));
        assert_true(r.unchanged && f.m.version == 1);
        assert_repaired(&f, false, 0);
    }
    close_fixture(&f);
}

static hth_err whole_repair(fixture *f)
{
    hth_put_result r;
    hth_store_verified v;
    HTH_TRY(hth_store_verify_all(f->s, NULL, 0, NULL, NULL, NULL, &v));
    HTH_TRY(test_put(f->s, "m", 1, &r));
    HTH_TRY(hth_store_check(f->s, &f->m));
    return hth_store_sound(f->s, &f->m);
}

static void test_out_of_memory(void **state)
{
    fixture f;
    open_fixture(state, &f);
    harm_all(&f);
    hth_check_flush(f.s);
    for (uint64_t nth = 1;; nth++) {
        hth_fault_alloc(nth);
        hth_err err = whole_repair(&f);
        hth_fault_alloc(0);
        if (err == HTH_OK) {
            break;
        }
        assert_int_equal(err, HTH_ENOMEM);
        assert_true(nth < 10000);
    }
    assert_repaired(&f, false, 0);
    close_fixture(&f);
}

// ---- verify

static int cancel_second(void *ctx, uint64_t done, uint64_t total)
{
    assert_true(done <= total && total == 4096 + 8192 + 40 + 12);
    return ++*(int *)ctx == 2;
}

static void test_cancel(void **state)
{
    fixture f;
    hth_store_verified v;
    int calls = 0;
    open_fixture(state, &f);
    assert_err(hth_store_verify_all(f.s, NULL, 0, cancel_second, NULL, &calls, &v), HTH_ECANCELED,
               "canceled");
    assert_int_equal(calls, 2);
    assert_err(hth_store_verify_all(f.s, "n", 0, NULL, NULL, NULL, &v), HTH_ENOENT,
               "no model 'n'; there are: m:1");
    assert_err(hth_store_verify_all(f.s, "m", 3, NULL, NULL, NULL, &v), HTH_ENOENT,
               "no version 3; there are: m:1");
    assert_err(hth_store_verify_all(f.s, "m/", 0, NULL, NULL, NULL, &v), HTH_EINVAL, "name");
    close_fixture(&f);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, test_setup, test_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_files),        TEST(test_shared),
        TEST(test_mapped),       TEST(test_when),
        TEST(test_outdated),     TEST(test_late_flush),
        TEST(test_mark_again),   TEST(test_always),
        TEST(test_small_tensor), TEST(test_tensor_row),
        TEST(test_gc),           TEST(test_table_name),
        TEST(test_gone),         TEST(test_record),
        TEST(test_older_store),  TEST(test_older_record),
        TEST(test_disk_full),    TEST(test_killed),
        TEST(test_cancel),       TEST(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
