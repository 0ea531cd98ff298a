// SPDX-License-Identifier: Apache-2.0
// Uploads by content: in pieces, in any order that is allowed, interrupted, damaged, refused.
#include "modelstore/store_test.h"
#include "modelstore/upload_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define BIG_BYTES ((size_t)6 << 20)
#define MIB       ((size_t)1 << 20)
#define NEVER     UINT64_MAX

static uint8_t big_bytes[BIG_BYTES]; // too large to be cut off whole by a restart
static uint8_t small_bytes[1000], tiny_bytes[40];
enum { BIG, SMALL, TINY, N_OBJECTS };
static hth_manifest_tensor objects[N_OBJECTS];
static const uint8_t *const contents[N_OBJECTS] = {big_bytes, small_bytes, tiny_bytes};

static int make_objects(void **state)
{
    static const char *const names[N_OBJECTS] = {"big", "small", "tiny"};
    static const size_t bytes[N_OBJECTS] = {BIG_BYTES, sizeof small_bytes, sizeof tiny_bytes};
    for (size_t i = 0; i < BIG_BYTES; i++) {
        big_bytes[i] = (uint8_t)(i * 7 + i / 251);
    }
    for (size_t i = 0; i < sizeof small_bytes; i++) {
        small_bytes[i] = (uint8_t)(i * 3);
    }
    memset(tiny_bytes, 9, sizeof tiny_bytes);
    for (int i = 0; i < N_OBJECTS; i++) {
        hth_manifest_tensor *o = &objects[i];
        *o = (hth_manifest_tensor){.name = (char *)names[i],
                                   .dtype = HTH_DT_U8,
                                   .shape = {1, {(int64_t)bytes[i]}},
                                   .bytes = bytes[i]};
        o->id = hth_content_id(o->dtype, &o->shape, contents[i], bytes[i]);
    }
    return 0;
}

static hth_err put_piece(hth_store *store, const char *owner, int i, uint64_t at, size_t n,
                         uint64_t *there)
{
    return hth_upload_put(store, owner, NEVER, &objects[i], at, contents[i] + at, n, there);
}

// upload sends what the store lacks of an object, in pieces of `step`.
static hth_err upload(hth_store *store, const char *owner, int i, size_t step)
{
    uint64_t there;
    HTH_TRY(hth_upload_have(store, owner, NULL, NULL, &objects[i], 1, &there));
    while (there != HTH_UPLOAD_WHOLE) {
        uint64_t left = objects[i].bytes - there;
        HTH_TRY(put_piece(store, owner, i, there, left < step ? (size_t)left : step, &there));
    }
    return HTH_OK;
}

static uint64_t have(hth_store *store, const char *owner, int i)
{
    uint64_t there = 99;
    assert_ok(hth_upload_have(store, owner, NULL, NULL, &objects[i], 1, &there));
    return there;
}

static hth_err commit(hth_store *store, const char *owner, const char *name, hth_put_result *result)
{
    hth_put_tensor t[N_OBJECTS];
    for (int i = 0; i < N_OBJECTS; i++) {
        t[i] = (hth_put_tensor){.name = objects[i].name,
                                .dtype = objects[i].dtype,
                                .shape = objects[i].shape,
                                .bytes = objects[i].bytes,
                                .id = &objects[i].id,
                                .owner = owner};
    }
    return hth_store_put(store, name, "graph", 5, "{}", t, N_OBJECTS, NULL, NULL, result);
}

static hth_err upload_all(hth_store *store, const char *owner, hth_put_result *result)
{
    for (int i = 0; i < N_OBJECTS; i++) {
        HTH_TRY(upload(store, owner, i, MIB));
    }
    return commit(store, owner, "m", result);
}

static void check_content(hth_store *store)
{
    hth_manifest m;
    assert_ok(hth_store_get(store, "m", 0, &m));
    assert_int_equal(m.n_tensors, N_OBJECTS);
    for (int i = 0; i < N_OBJECTS; i++) {
        hth_const *c;
        const void *data;
        assert_ok(hth_store_view(store, &m.tensors[i], &c));
        assert_ok(hth_const_map(c, &data));
        assert_memory_equal(data, contents[i], objects[i].bytes);
        hth_const_unmap(c);
        hth_const_rele(c);
    }
    hth_manifest_fini(&m);
}

static void test_upload_and_commit(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    hth_upload_state all;
    uint64_t files, bytes;
    assert_ok(upload_all(s, "alice", &r));
    assert_int_equal(r.version, 1);
    assert_int_equal(r.tensors_new, N_OBJECTS);
    assert_int_equal(r.bytes_new, BIG_BYTES + sizeof small_bytes + sizeof tiny_bytes);
    assert_int_equal(test_count_files(state, "tmp"), 0);
    assert_int_equal(test_count_files(state, "tensors"), 2); // the tiny one is in the index
    assert_ok(hth_store_verify(s, "m", 1));
    check_content(s);
    assert_ok(hth_upload_state_get(s, &all));
    assert_int_equal(all.objects, 0);
    assert_ok(hth_store_gc(s, &files, &bytes));
    assert_int_equal(files, 0);
    // all is there now, for everybody who sees it, and a second version moves nothing
    assert_ok(upload_all(s, "bob", &r));
    assert_true(r.unchanged);
    assert_ok(commit(s, "bob", "other", &r));
    assert_int_equal(r.tensors_shared, N_OBJECTS);
    hth_store_close(s);
}

// What no upload and no version has is named, and nothing is put.
static void test_commit_of_what_is_missing(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    uint64_t there;
    bool any;
    assert_ok(upload(s, "alice", SMALL, MIB));
    assert_ok(upload(s, "alice", TINY, MIB));
    assert_err(commit(s, "alice", "m", &r), HTH_ENOENT, "tensor 'big' is neither in the store");
    assert_ok(put_piece(s, "alice", BIG, 0, MIB, &there));
    assert_err(commit(s, "alice", "m", &r), HTH_ENOENT,
               "tensor 'big': 1048576 of its 6291456 bytes were uploaded");
    // another's uploads are not there
    assert_ok(upload(s, "alice", BIG, MIB));
    assert_err(commit(s, "bob", "m", &r), HTH_ENOENT, "is neither in the store");
    assert_ok(hth_store_has(s, "m", 0, &any));
    assert_false(any);
    assert_ok(commit(s, "alice", "m", &r)); // what was uploaded has waited
    hth_store_close(s);
}

// begins_anew is called while a version is put, after its upload was found whole: it removes that
// one, and begins another with other bytes, whose file is as long at once.
static int begins_anew(void *ctx, uint64_t done, uint64_t total)
{
    const hth_manifest_tensor *o = &objects[SMALL];
    uint64_t there;
    if (done == total) {
        assert_ok(hth_upload_discard(ctx, "a", o, 1));
        assert_ok(hth_upload_put(ctx, "a", NEVER, o, 0, big_bytes + 5, 900, &there));
        assert_ok(hth_upload_put(ctx, "a", NEVER, o, 999, big_bytes, 1, &there));
    }
    return 0;
}

static void test_removed_in_commit(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    const hth_manifest_tensor *o = &objects[SMALL];
    const hth_put_tensor t = {.name = o->name,
                              .dtype = o->dtype,
                              .shape = o->shape,
                              .bytes = o->bytes,
                              .id = &o->id,
                              .owner = "a"};
    assert_ok(upload(s, "a", SMALL, MIB));
    assert_err(hth_store_put(s, "m", "graph", 5, "{}", &t, 1, begins_anew, s, &r), HTH_EBUSY,
               "tensor 'small': its upload was removed meanwhile");
    assert_int_equal(test_count_files(state, "tensors"), 0);
    hth_store_close(s);
}

static atomic_uint_fast64_t watched; // an inode
static atomic_bool watched_synced;

// fdatasync takes the place of the C library's.
int fdatasync(int fd)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && st.st_ino == atomic_load(&watched)) {
        atomic_store(&watched_synced, true);
    }
    return (int)syscall(SYS_fdatasync, fd);
}

// uploads_again is called after the upload's file was synced, and before it gets its name.
static hth_err uploads_again(void *ctx)
{
    hth_store *s = ctx;
    struct stat st;
    assert_ok(hth_upload_discard(s, "a", &objects[SMALL], 1));
    assert_ok(upload(s, "a", SMALL, MIB));
    hth_upload *u;
    assert_ok(hth_upload_find(s, "a", &objects[SMALL].id, &u));
    assert_int_equal(fstatat(s->dir, hth_upload_path(&u->key).text, &st, 0), 0);
    hth_upload_rele(s, u);
    atomic_store(&watched, st.st_ino);
    return HTH_OK;
}

// What is uploaded anew while a version is put is on the disk, too, before the version is.
static void test_renewed_in_commit(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    struct stat st;
    const hth_manifest_tensor *o = &objects[SMALL];
    const hth_put_tensor t = {.name = o->name,
                              .dtype = o->dtype,
                              .shape = o->shape,
                              .bytes = o->bytes,
                              .id = &o->id,
                              .owner = "a"};
    const hth_put_ask ask = {.may = uploads_again, .ctx = s};
    assert_ok(test_put(s, "m", 1, &r)); // there is a version to ask of
    assert_ok(upload(s, "a", SMALL, MIB));
    atomic_store(&watched_synced, false);
    assert_ok(hth_store_put_if(s, "m", "{}", &t, 1, &ask, NULL, NULL, &r));
    assert_int_equal(r.version, 2);
    assert_int_equal(fstatat(s->dir, hth_path_of_tensor(&o->id).text, &st, 0), 0);
    assert_true(st.st_ino == atomic_load(&watched));
    assert_true(atomic_load(&watched_synced));
    atomic_store(&watched, 0);
    hth_store_close(s);
}

// Whatever of a commit fails, what was uploaded for it waits for the next one, as a whole.
static void test_failed_commit_keeps_uploads(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    hth_err err = HTH_EIO;
    uint64_t nth = 0;
    for (int i = 0; i < N_OBJECTS; i++) {
        assert_ok(upload(s, "a", i, MIB));
    }
    while (err != HTH_OK) {
        hth_store_file_fault(++nth, ENOSPC);
        err = commit(s, "a", "m", &r);
        hth_store_file_fault(0, 0);
        if (err != HTH_OK) {
            assert_err(err, HTH_EIO, "No space left on device");
            assert_int_equal(test_count_files(state, "tmp"), N_OBJECTS);
            assert_int_equal(test_count_files(state, "tensors"), 0);
            assert_true(have(s, "a", BIG) == HTH_UPLOAD_WHOLE);
            assert_true(have(s, "a", SMALL) == HTH_UPLOAD_WHOLE);
        }
    }
    assert_true(nth > 6);
    check_content(s);
    hth_store_close(s);
}

static void test_pieces_in_another_order(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    uint64_t there;
    assert_ok(put_piece(s, "a", BIG, MIB, MIB / 2, &there));
    assert_int_equal(there, 0);
    assert_ok(put_piece(s, "a", BIG, MIB + MIB / 2, MIB / 2, &there));
    assert_err(put_piece(s, "a", BIG, 2 * MIB, MIB, &there), HTH_EINVAL,
               "bytes from 2097152 on leave a gap: 0 are there");
    assert_ok(put_piece(s, "a", BIG, 0, MIB / 2, &there));
    assert_int_equal(there, MIB / 2);
    assert_ok(put_piece(s, "a", BIG, MIB / 4, MIB * 3 / 4, &there)); // one part again, and more
    assert_int_equal(there, 2 * MIB);
    assert_ok(put_piece(s, "a", BIG, 0, MIB, &there)); // again
    assert_int_equal(there, 2 * MIB);
    assert_ok(put_piece(s, "a", BIG, 2 * MIB, 4 * MIB, &there));
    assert_true(there == HTH_UPLOAD_WHOLE);
    assert_ok(put_piece(s, "a", BIG, 5 * MIB, MIB, &there));
    assert_true(there == HTH_UPLOAD_WHOLE);
    assert_ok(upload_all(s, "a", &r));
    check_content(s);
    hth_store_close(s);
}

static void test_bad_pieces(void **state)
{
    hth_store *s = test_open(state);
    uint64_t there;
    hth_manifest_tensor lie = objects[SMALL];
    lie.bytes++;
    assert_err(hth_upload_put(s, "a", NEVER, &lie, 0, small_bytes, 10, &there), HTH_EINVAL,
               "an object of 1001 bytes, whose type and shape make 1000");
    assert_err(hth_upload_have(s, "a", NULL, NULL, &lie, 1, &there), HTH_EINVAL, "object 0: an");
    lie.dtype = 77;
    assert_err(hth_upload_put(s, "a", NEVER, &lie, 0, small_bytes, 10, &there), HTH_EINVAL,
               "without an element type");
    assert_err(put_piece(s, "a", SMALL, 999, 2, &there), HTH_EINVAL,
               "2 bytes from 999 on lie outside an object of 1000 bytes");
    assert_err(put_piece(s, "a", SMALL, 0, 0, &there), HTH_EINVAL, "not 0");
    assert_err(put_piece(s, "a", BIG, 0, HTH_UPLOAD_PIECE_BYTES + 1, &there), HTH_ETOOBIG,
               "has 1 to 8388608 bytes");
    assert_err(hth_upload_put(s, "a", NEVER, &objects[BIG], UINT64_MAX - 1, big_bytes, 2, &there),
               HTH_EINVAL, "outside");
    assert_err(put_piece(s, "a", BIG, 4 * MIB, 2 * MIB, &there), HTH_EINVAL, "leave a gap");
    assert_int_equal(test_count_files(state, "tmp"), 0);
    // content that is not what its id says
    lie = objects[SMALL];
    lie.id.byte[5] ^= 1;
    assert_ok(hth_upload_put(s, "a", NEVER, &lie, 0, small_bytes, 999, &there));
    assert_err(hth_upload_put(s, "a", NEVER, &lie, 999, small_bytes + 999, 1, &there), HTH_ECORRUPT,
               "is not what its id says");
    assert_int_equal(test_count_files(state, "tmp"), 0);
    // .. as two different objects
    lie = objects[SMALL];
    lie.dtype = HTH_DT_I8;
    assert_ok(put_piece(s, "a", SMALL, 0, 10, &there));
    assert_err(hth_upload_put(s, "a", NEVER, &lie, 10, small_bytes + 10, 10, &there), HTH_EINVAL,
               "another element type or shape");
    assert_ok(hth_upload_discard(s, "a", objects, N_OBJECTS));
    assert_int_equal(test_count_files(state, "tmp"), 0);
    hth_store_close(s);
}

// What a later process finds it hashes, but for what may have holes, and goes on there.
static void test_restart(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    uint64_t there;
    assert_ok(upload(s, "a", SMALL, MIB));
    for (size_t at = 0; at < 5 * MIB; at += MIB) {
        assert_ok(put_piece(s, "a", BIG, at, MIB, &there));
    }
    hth_store_close(s);
    s = test_open(state);
    assert_int_equal(have(s, "a", BIG), 5 * MIB - HTH_UPLOAD_AHEAD);
    assert_true(have(s, "a", SMALL) == HTH_UPLOAD_WHOLE);
    assert_int_equal(have(s, "b", BIG), 0);
    assert_ok(upload_all(s, "a", &r));
    check_content(s);
    assert_int_equal(test_count_files(state, "tmp"), 0);
    hth_store_close(s);
}

static void damage(void **state, int i, const char *owner, off_t at)
{
    char path[200];
    hth_id name = hth_id_of(&(hth_chunk){owner, strlen(owner)}, 1);
    hth_upload_key key = {.id = objects[i].id};
    memcpy(&key.owner, name.byte, sizeof key.owner);
    snprintf(path, sizeof path, "%s/%s", ((test_dir *)*state)->path, hth_upload_path(&key).text);
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0 && pwrite(fd, "x", 1, at) == 1);
    close(fd);
}

static void test_damaged_partial(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    uint64_t there;
    for (size_t at = 0; at < 5 * MIB; at += MIB) {
        assert_ok(put_piece(s, "a", BIG, at, MIB, &there));
    }
    hth_store_close(s);
    damage(state, BIG, "a", 1000);
    s = test_open(state);
    assert_err(upload(s, "a", BIG, MIB), HTH_ECORRUPT, "is not what its id says");
    assert_int_equal(test_count_files(state, "tmp"), 0);
    assert_ok(upload(s, "a", BIG, MIB));
    // a whole one that changes is one no more, in this process and in the next
    damage(state, BIG, "a", 3 * MIB);
    assert_int_equal(have(s, "a", BIG), 6 * MIB - HTH_UPLOAD_AHEAD);
    // .. and what is damaged before that is found at the end
    assert_err(upload(s, "a", BIG, MIB), HTH_ECORRUPT, "is not what its id says");
    assert_ok(upload(s, "a", BIG, MIB));
    assert_ok(upload_all(s, "a", &r));
    check_content(s);
    hth_store_close(s);
}

static void test_two_owners(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    uint64_t there;
    assert_ok(put_piece(s, "alice", BIG, 0, 2 * MIB, &there));
    assert_ok(put_piece(s, "bob", BIG, 0, MIB, &there));
    assert_int_equal(there, MIB);
    assert_int_equal(have(s, "alice", BIG), 2 * MIB);
    // a second writer of the same owner is told where it stands
    assert_ok(put_piece(s, "alice", BIG, 0, MIB, &there));
    assert_int_equal(there, 2 * MIB);
    assert_ok(upload(s, "alice", BIG, MIB));
    assert_int_equal(have(s, "bob", BIG), MIB);
    assert_ok(upload_all(s, "bob", &r)); // does not disturb alice's
    assert_int_equal(test_count_files(state, "tmp"), 1);
    assert_ok(upload_all(s, "alice", &r)); // .. who needs it no more
    assert_int_equal(test_count_files(state, "tmp"), 0);
    hth_store_close(s);
}

static bool sees_other(void *ctx, const char *name, const char *meta)
{
    return strcmp(name, ctx) == 0;
}

// An id is worth nothing to who may not read a version that has it, nor with another type.
static void test_have_asks_who_sees(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    uint64_t there[3];
    assert_ok(upload_all(s, "alice", &r));
    hth_manifest_tensor o[3] = {objects[BIG], objects[BIG], objects[TINY]};
    o[1].dtype = HTH_DT_I8;
    assert_ok(hth_upload_have(s, "bob", sees_other, "m", o, 3, there));
    assert_true(there[0] == HTH_UPLOAD_WHOLE && there[1] == 0 && there[2] == HTH_UPLOAD_WHOLE);
    assert_ok(hth_upload_have(s, "bob", sees_other, "x", o, 3, there));
    assert_true(there[0] == 0 && there[1] == 0 && there[2] == 0);
    o[1] = o[2] = o[0];
    assert_ok(hth_upload_have(s, "bob", sees_other, "m", o, 3, there));
    assert_true(there[0] == HTH_UPLOAD_WHOLE && there[1] == there[0] && there[2] == there[0]);
    hth_store_close(s);
}

static bool looks(void *ctx, const char *name, const char *meta)
{
    ++*(int *)ctx;
    return true;
}

static int looks_at(hth_store *store, int first, int n)
{
    uint64_t there[N_OBJECTS];
    int looked = 0;
    assert_ok(hth_upload_have(store, "bob", looks, &looked, &objects[first], n, there));
    return looked;
}

// With thousands of versions a look at each of them would take longer than what is sent.
static void test_have_looks_at_few(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    for (int i = 0; i < 9; i++) {
        char name[8];
        snprintf(name, sizeof name, "a%d", i);
        assert_ok(test_put(s, name, i, &r));
    }
    assert_int_equal(looks_at(s, 0, N_OBJECTS), 0); // all are new
    assert_ok(upload_all(s, "alice", &r));          // "m", after the others
    assert_ok(test_put(s, "z", 100, &r));
    assert_int_equal(looks_at(s, 0, N_OBJECTS), 10); // not at "z"
    hth_store_close(s);
}

// What is damaged in the store counts as not there, and is repaired by what is uploaded again.
static void test_damaged_in_store(void **state)
{
    char command[300];
    hth_store *s = test_open(state);
    hth_put_result r;
    assert_ok(upload_all(s, "a", &r));
    snprintf(command, sizeof command, "find %s/tensors -size +1000k -delete",
             ((test_dir *)*state)->path);
    assert_int_equal(system(command), 0);
    assert_int_equal(have(s, "a", BIG), 0);
    assert_ok(upload_all(s, "a", &r));
    assert_true(r.unchanged && r.tensors_repaired == 1);
    assert_ok(hth_store_verify(s, "m", 1));
    hth_store_close(s);
}

static hth_err flip_tiny(hth_txn *txn, void *ctx)
{
    const hth_id *id = &objects[TINY].id;
    MDB_val v;
    uint8_t copy[sizeof tiny_bytes];
    HTH_TRY(hth_txn_get(txn, HTH_TABLE_INLINES, id, sizeof *id, &v));
    memcpy(copy, v.mv_data, sizeof copy);
    copy[0] ^= 1;
    return hth_txn_put(txn, HTH_TABLE_INLINES, id, sizeof *id, copy, sizeof copy);
}

// .. and so are bytes in the index.
static void test_damaged_in_index(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    assert_ok(upload_all(s, "a", &r));
    assert_ok(hth_index_write(&s->index, flip_tiny, NULL));
    assert_int_equal(have(s, "a", TINY), 0);
    assert_err(commit(s, "a", "m", &r), HTH_ENOENT, "tensor 'tiny' is neither in the store");
    assert_ok(upload_all(s, "a", &r));
    assert_true(r.unchanged && r.tensors_repaired == 1);
    assert_ok(hth_store_verify(s, "m", 1));
    check_content(s);
    hth_store_close(s);
}

static void test_expiry(void **state)
{
    hth_store *s = test_open(state);
    uint64_t there, files, bytes, now = hth_store_wall_ns();
    assert_ok(put_piece(s, "a", BIG, 0, MIB, &there));
    assert_ok(upload(s, "a", SMALL, MIB));
    hth_store_wall_set(now + 3500000000000u);
    assert_ok(hth_store_gc(s, &files, &bytes));
    assert_int_equal(files, 0);
    assert_true(have(s, "a", SMALL) == HTH_UPLOAD_WHOLE); // it is asked for
    hth_store_wall_set(now + 3700000000000u);
    assert_ok(hth_store_gc(s, &files, &bytes));
    assert_int_equal(files, 1);
    assert_int_equal(bytes, MIB);
    assert_true(have(s, "a", SMALL) == HTH_UPLOAD_WHOLE);
    assert_int_equal(have(s, "a", BIG), 0);
    // the next upload removes what has expired, of other processes, too
    hth_store_close(s);
    hth_store_wall_set(now + 9000000000000u);
    s = test_open(state);
    assert_ok(put_piece(s, "a", BIG, 0, MIB, &there));
    assert_int_equal(test_count_files(state, "tmp"), 1);
    hth_store_wall_set(0);
    hth_store_close(s);
}

static void test_limits(void **state)
{
    hth_store *s = test_open(state);
    uint64_t there, most = 8 * MIB;
    hth_upload_state all;
    assert_ok(hth_upload_put(s, "a", most, &objects[BIG], 0, big_bytes, MIB, &there));
    hth_manifest_tensor other = objects[BIG];
    other.id.byte[0] ^= 1;
    assert_err(hth_upload_put(s, "a", most, &other, 0, big_bytes, MIB, &there), HTH_ETOOBIG,
               "an upload of 6.0 MiB: you have 6.0 MiB uploaded that no version uses yet, and may "
               "have 8.0 MiB");
    assert_ok(hth_upload_put(s, "b", most, &other, 0, big_bytes, MIB, &there));
    assert_ok(hth_upload_state_get(s, &all));
    assert_true(all.objects == 2 && all.bytes == 2 * MIB);
    assert_ok(hth_setting_set("store.upload_bytes", "12583000"));
    assert_err(put_piece(s, "c", SMALL, 0, 10, &there), HTH_ETOOBIG, "store.upload_bytes");
    // a small object costs a file
    assert_ok(hth_setting_set("store.upload_bytes", "1GiB"));
    assert_err(hth_upload_put(s, "d", 65535, &objects[SMALL], 0, small_bytes, 10, &there),
               HTH_ETOOBIG, "uploads=");
    assert_int_equal(test_count_files(state, "tmp"), 2);
    hth_store_close(s);
}

// What a restart finds counts for all that it is to have from the first piece on.
static void test_limits_after_restart(void **state)
{
    hth_store *s = test_open(state);
    uint64_t there;
    hth_upload_state all;
    hth_manifest_tensor other = objects[BIG];
    other.id.byte[0] ^= 1;
    for (size_t at = 0; at < 3 * MIB; at += MIB) {
        assert_ok(put_piece(s, "a", BIG, at, MIB, &there));
    }
    hth_store_close(s);
    s = test_open(state);
    assert_err(hth_upload_put(s, "a", 2 * MIB, &objects[BIG], 0, big_bytes, MIB, &there),
               HTH_ETOOBIG, "an upload of 6.0 MiB: you have 0 B");
    assert_int_equal(have(s, "a", BIG), MIB); // nor does asking where it stands raise the limit
    assert_err(hth_upload_put(s, "a", 2 * MIB, &objects[BIG], MIB, big_bytes, MIB, &there),
               HTH_ETOOBIG, "an upload of 6.0 MiB: you have 0 B");
    assert_ok(hth_upload_state_get(s, &all));
    assert_int_equal(all.objects, 1);
    // another one finds the room that is left, and then this one none
    assert_ok(hth_upload_put(s, "a", 9 * MIB, &other, 0, big_bytes, MIB, &there));
    assert_err(hth_upload_put(s, "a", 9 * MIB, &objects[BIG], MIB, big_bytes, MIB, &there),
               HTH_ETOOBIG, "an upload of 6.0 MiB: you have 6.0 MiB");
    assert_ok(hth_upload_put(s, "a", 12 * MIB, &objects[BIG], MIB, big_bytes + MIB, MIB, &there));
    assert_int_equal(there, 2 * MIB);
    hth_store_close(s);
}

// Whoever has found an upload before it was removed leaves its successor's file as it is.
static void test_look_after_removal(void **state)
{
    hth_store *s = test_open(state);
    hth_upload *u;
    struct stat st;
    uint64_t there;
    assert_ok(put_piece(s, "a", BIG, 0, MIB, &there));
    assert_ok(hth_upload_find(s, "a", &objects[BIG].id, &u));
    assert_ok(hth_upload_discard(s, "a", &objects[BIG], 1));
    for (size_t at = 0; at < 3 * MIB; at += MIB) {
        assert_ok(put_piece(s, "a", BIG, at, MIB, &there));
    }
    pthread_mutex_lock(&u->lock);
    assert_ok(hth_upload_look(s, u, &objects[BIG]));
    assert_true(u->there == 0 && !u->whole);
    pthread_mutex_unlock(&u->lock);
    assert_int_equal(fstatat(s->dir, hth_upload_path(&u->key).text, &st, 0), 0);
    hth_upload_rele(s, u);
    assert_int_equal(st.st_size, 3 * MIB);
    assert_int_equal(have(s, "a", BIG), 3 * MIB);
    assert_ok(upload(s, "a", BIG, MIB));
    hth_store_close(s);
}

// ---- failures

static hth_err one_life(const char *path)
{
    hth_store *s;
    hth_put_result r;
    HTH_TRY(hth_store_open(path, true, false, &s));
    hth_err err = upload_all(s, "a", &r);
    hth_store_close(s);
    return err;
}

// fresh makes an empty store.
static void fresh(void **state)
{
    const char *path = ((test_dir *)*state)->path;
    test_remove(path);
    assert_int_equal(mkdir(path, 0700), 0);
    hth_store_close(test_open(state));
}

// check_goes_on does the same again: the version is there, and nothing else.
static void check_goes_on(void **state)
{
    uint64_t files, bytes;
    assert_ok(one_life(((test_dir *)*state)->path));
    hth_store *s = test_open(state);
    assert_ok(hth_store_verify(s, "m", 0));
    check_content(s);
    assert_ok(hth_store_gc(s, &files, &bytes));
    assert_int_equal(files, 0);
    assert_int_equal(test_count_files(state, "tmp"), 0);
    hth_store_close(s);
}

static void test_killed_anywhere(void **state)
{
    // the points were really there
    assert_true(test_kill_anywhere(state, fresh, one_life, check_goes_on) > 30);
}

static void test_disk_full_anywhere(void **state)
{
    assert_true(test_fill_disk_anywhere(state, fresh, one_life, check_goes_on) > 30);
}

static void test_failed_upload_leaves_nothing(void **state)
{
    hth_store *s = test_open(state);
    hth_err err;
    for (uint64_t nth = 1;; nth++) {
        hth_store_file_fault(nth, ENOSPC);
        err = upload(s, "a", BIG, MIB);
        hth_store_file_fault(0, 0);
        if (err == HTH_OK) {
            break;
        }
        assert_err(err, HTH_EIO, "No space left on device");
        assert_int_equal(test_count_files(state, "tmp"), 0);
    }
    assert_int_equal(test_count_files(state, "tmp"), 1);
    hth_store_close(s);
}

static void begin_big(hth_store *store)
{
    uint64_t there;
    for (size_t at = 0; at < 5 * MIB; at += MIB) {
        assert_ok(put_piece(store, "a", BIG, at, MIB, &there));
    }
}

// Without a descriptor for its file an upload waits: the disk has not failed.
static void test_out_of_descriptors(void **state)
{
    hth_store *s = test_open(state);
    struct rlimit was, few;
    uint64_t there;
    begin_big(s);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    int lowest = dup(STDIN_FILENO);
    assert_true(lowest >= 0);
    close(lowest);
    few = (struct rlimit){.rlim_cur = (rlim_t)lowest + 1, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0); // one, for the store's lock
    hth_err err = put_piece(s, "a", BIG, 5 * MIB, 1000, &there);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    char sentence[256];
    snprintf(sentence, sizeof sentence, "%s", hth_err_detail());
    assert_int_equal(have(s, "a", BIG), 5 * MIB);
    assert_true(err == HTH_EBUSY && strstr(sentence, "Too many open files") != NULL);
    assert_ok(upload(s, "a", BIG, MIB));
    hth_store_close(s);
}

// .. nor does what a restart finds go, or become less, where there is no memory to hash it.
static void test_out_of_memory_after_restart(void **state)
{
    hth_err err = HTH_ENOMEM;
    for (uint64_t nth = 1; err != HTH_OK; nth++) {
        hth_upload_state all;
        uint64_t there;
        fresh(state);
        hth_store *s = test_open(state);
        begin_big(s);
        hth_store_close(s);
        s = test_open(state);
        hth_fault_alloc(nth);
        err = put_piece(s, "a", BIG, 5 * MIB - HTH_UPLOAD_AHEAD, MIB, &there);
        hth_fault_alloc(0);
        assert_ok(hth_upload_state_get(s, &all));
        assert_true(err == HTH_OK || err == HTH_ENOMEM);
        assert_int_equal(all.bytes, err == HTH_OK ? 4 * MIB : 5 * MIB);
        hth_store_close(s);
        assert_true(nth < 100);
    }
}

static hth_err in_memory(void **state)
{
    hth_put_result r;
    hth_store *s;
    HTH_TRY(hth_store_open(((test_dir *)*state)->path, true, false, &s));
    hth_err err;
    HTH_GOTO(put_piece(s, "a", SMALL, 500, 500, &(uint64_t){0}), done);
    HTH_GOTO(upload_all(s, "a", &r), done);
    err = hth_store_rm(s, "m", 0);
done:
    hth_store_close(s);
    return err;
}

static void test_out_of_memory(void **state)
{
    FAULT_LOOP(in_memory(state));
    check_goes_on(state);
}

// ---- several at once

typedef struct writer {
    pthread_t thread;
    hth_store *s;
    size_t step;
    hth_err err;
} writer;

// Of those that commit at once one has the uploads. The others find that out in whatever they do,
// and then what is stored.
static void *write_all(void *arg)
{
    writer *w = arg;
    hth_put_result r;
    for (int round = 0; round < 8; round++) {
        w->err = HTH_OK;
        for (int i = 0; i < N_OBJECTS && w->err == HTH_OK; i++) {
            w->err = upload(w->s, "a", i, w->step);
        }
        if (w->err == HTH_OK) {
            w->err = commit(w->s, "a", "m", &r);
        }
        if (w->err != HTH_ENOENT && w->err != HTH_EBUSY && w->err != HTH_EINVAL) {
            break;
        }
    }
    return NULL;
}

static void test_writers_at_once(void **state)
{
    hth_store *s = test_open(state);
    writer w[4];
    for (int i = 0; i < 4; i++) {
        w[i] = (writer){.s = s, .step = MIB / 4 * (size_t)(i + 1)};
        assert_int_equal(pthread_create(&w[i].thread, NULL, write_all, &w[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(w[i].thread, NULL);
        assert_int_equal(w[i].err, HTH_OK);
    }
    check_content(s);
    hth_store_close(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, test_setup, test_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_upload_and_commit),
        TEST(test_commit_of_what_is_missing),
        TEST(test_removed_in_commit),
        TEST(test_renewed_in_commit),
        TEST(test_failed_commit_keeps_uploads),
        TEST(test_pieces_in_another_order),
        TEST(test_bad_pieces),
        TEST(test_restart),
        TEST(test_damaged_partial),
        TEST(test_two_owners),
        TEST(test_have_asks_who_sees),
        TEST(test_have_looks_at_few),
        TEST(test_damaged_in_store),
        TEST(test_damaged_in_index),
        TEST(test_expiry),
        TEST(test_limits),
        TEST(test_limits_after_restart),
        TEST(test_look_after_removal),
        TEST(test_killed_anywhere),
        TEST(test_disk_full_anywhere),
        TEST(test_failed_upload_leaves_nothing),
        TEST(test_out_of_memory),
        TEST(test_out_of_descriptors),
        TEST(test_out_of_memory_after_restart),
        TEST(test_writers_at_once),
    };
    return cmocka_run_group_tests(tests, make_objects, NULL);
}
