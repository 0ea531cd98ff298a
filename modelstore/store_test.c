// SPDX-License-Identifier: Apache-2.0
// What a store says and keeps when nothing goes wrong, and how it refuses.
#include "modelstore/check.h"
#include "modelstore/store_impl.h"
#include "modelstore/store_test.h"

#include "base/alloc.h"

#include <time.h>

static void test_versions(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    uint64_t changes = hth_store_change_count(s);
    assert_ok(test_put(s, "vgg", 1, &r));
    assert_int_equal(r.version, 1);
    assert_int_equal(r.tensors_new, 4);
    assert_int_equal(r.bytes_new, 4096 + 8192 + 40 + 12);
    assert_int_equal(test_count_files(state, "tensors"), 2);
    assert_true(hth_store_change_count(s) > changes);

    changes = hth_store_change_count(s);
    assert_ok(test_put(s, "vgg", 1, &r)); // again: nothing new, no version
    assert_true(r.unchanged && r.version == 1 && r.tensors_new == 0 && r.tensors_shared == 4 &&
                r.bytes_new == 0);
    assert_int_equal(hth_store_change_count(s), changes);

    assert_ok(test_put(s, "vgg", 2, &r)); // fine-tuned: pays for what differs
    assert_true(!r.unchanged && r.version == 2 && r.tensors_new == 2 && r.bytes_new == 4096 + 40);
    assert_true(r.tensors_shared == 2 && r.bytes_shared == 8192 + 12);
    assert_ok(test_put(s, "other", 2, &r)); // another model of the same tensors
    assert_true(r.version == 1 && r.tensors_new == 0);
    assert_int_equal(test_count_files(state, "tensors"), 3);
    assert_int_equal(test_count_files(state, "tmp"), 0);
    hth_store_close(s);

    hth_manifest m;
    s = test_open(state);
    assert_ok(hth_store_get(s, "vgg", 0, &m));
    assert_int_equal(m.version, 2);
    assert_string_equal(m.name, "vgg");
    assert_string_equal(m.meta, "{}");
    assert_true(m.skeleton_bytes == 5 && memcmp(m.skeleton, "graph", 5) == 0 && m.created_ns > 0);
    assert_int_equal(m.n_tensors, 4);
    assert_string_equal(m.tensors[2].name, "big1");
    assert_true(m.tensors[2].bytes == 8192 && m.tensors[2].shape.dim[0] == 2048);
    hth_manifest_fini(&m);
    assert_err(hth_store_get(s, "vgg", 3, &m), HTH_ENOENT, "no version 3; there are: vgg:1, vgg:2");
    assert_ok(test_put(s, "vgh@bob.dataset", 1, &r)); // nobody is told of these
    assert_ok(test_put(s, "vgh.checkpoint", 1, &r));
    assert_int_equal(hth_store_get(s, "vgh", 0, &m), HTH_ENOENT);
    assert_string_equal(hth_err_detail(),
                        "no model 'vgh'; did you mean 'vgg'? There are: other:1, vgg:1, vgg:2");
    assert_err(hth_store_get(s, "vg", 0, &m), HTH_ENOENT,
               "no model 'vg'; did you mean 'vgg'? There are: other:1, vgg:1, vgg:2");
    assert_ok(hth_store_verify(s, "vgg", 1));
    assert_ok(hth_store_verify(s, "other", 0));
    hth_store_close(s);
    hth_store_close(NULL);
}

static void test_repeated_tensor(void **state)
{
    hth_store *s = test_open(state);
    test_model m;
    hth_put_result r;
    hth_store_entry *e;
    int n;
    uint64_t files, bytes;
    hth_put_tensor t[3] = {test_make(&m, 1)[0], m.t[0], m.t[0]};
    t[1].name = "tied";
    t[2].name = "tied too";
    assert_ok(hth_store_put(s, "tied", "g", 1, NULL, t, 3, NULL, NULL, &r));
    assert_true(r.tensors_new == 1 && r.tensors_shared == 2 && r.bytes_new == 4096);
    assert_ok(hth_store_list(s, &e, &n));
    assert_true(n == 1 && e[0].bytes == 4096 && e[0].own_bytes == 4096 && e[0].n_tensors == 3);
    hth_free(e);
    assert_ok(hth_store_put(s, "tied", "g", 1, NULL, t, 3, NULL, NULL, &r));
    assert_true(r.unchanged && r.tensors_new == 0 && r.tensors_shared == 3);
    assert_ok(hth_store_rm(s, "tied", 1)); // one reference per version, not per name
    assert_ok(hth_store_gc(s, &files, &bytes));
    assert_true(files == 1 && bytes == 4096);
    hth_store_close(s);
}

typedef struct seen {
    char text[200];
    int stop; // before so many more
} seen;

static hth_err see(void *ctx, const hth_manifest *manifest)
{
    seen *s = ctx;
    size_t n = strlen(s->text);
    assert_int_equal(manifest->skeleton_bytes, 5);
    assert_memory_equal(manifest->skeleton, "graph", 5);
    assert_true(manifest->created_ns > 0);
    snprintf(s->text + n, sizeof s->text - n, "%s:%d %s %d %s %d; ", manifest->name,
             manifest->version, manifest->meta, manifest->n_tensors, manifest->tensors[0].name,
             (int)manifest->tensors[0].bytes);
    return --s->stop == 0 ? hth_fail(HTH_EBUSY, "enough") : HTH_OK;
}

static void test_each(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    seen all = {"", 9}, some = {"", 2};
    assert_ok(test_put(s, "b", 1, &r));
    assert_ok(test_put(s, "b", 2, &r));
    assert_ok(test_put(s, "a", 1, &r));
    assert_ok(hth_store_each(s, see, &all));
    assert_string_equal(all.text, "a:1 {} 4 big0 4096; b:1 {} 4 big0 4096; b:2 {} 4 big0 4096; ");
    assert_err(hth_store_each(s, see, &some), HTH_EBUSY, "enough");
    assert_string_equal(some.text, "a:1 {} 4 big0 4096; b:1 {} 4 big0 4096; ");
    FAULT_LOOP(hth_store_each(s, see, &(seen){"", 9}));
    hth_store_close(s);
}

static void test_list_rm_gc(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    hth_store_entry *e;
    int n;
    uint64_t files, bytes;
    assert_ok(hth_store_list(s, &e, &n));
    assert_true(n == 0);
    hth_free(e);
    assert_ok(test_put(s, "b", 1, &r));
    assert_ok(test_put(s, "b", 2, &r));
    assert_ok(test_put(s, "a", 3, &r));
    assert_ok(hth_store_list(s, &e, &n));
    assert_int_equal(n, 3);
    assert_string_equal(e[0].name, "a");
    assert_true(e[1].version == 1 && e[2].version == 2 && e[2].bytes == 12340 &&
                e[2].own_bytes == 4136);
    hth_free(e);
    int *numbers;
    assert_ok(hth_store_versions(s, "b", &numbers, &n));
    assert_true(n == 2 && numbers[0] == 1 && numbers[1] == 2);
    hth_free(numbers);
    assert_ok(hth_store_versions(s, "aa", &numbers, &n)); // between two names
    assert_true(n == 0 && numbers == NULL);
    assert_err(hth_store_versions(s, "a/b", &numbers, &n), HTH_EINVAL, "name");

    assert_ok(hth_store_gc(s, &files, &bytes));
    assert_true(files == 0 && bytes == 0);
    assert_err(hth_store_rm(s, "b", 7), HTH_ENOENT, "there are: b:1, b:2");
    assert_ok(hth_store_rm(s, "b", 1));
    assert_ok(hth_store_gc(s, &files, &bytes));
    assert_true(files == 2 && bytes == 4136); // big0 and small0 of seed 1
    assert_ok(hth_store_verify(s, "b", 2));
    assert_ok(test_put(s, "b", 1, &r));
    assert_int_equal(r.version, 3); // a number is never given out twice
    assert_ok(hth_store_rm(s, "b", 0));
    assert_ok(hth_store_rm(s, "a", 0));
    assert_err(hth_store_rm(s, "a", 0), HTH_ENOENT, "the store is empty");
    assert_ok(hth_store_gc(s, &files, &bytes));
    assert_true(files == 8 && bytes == 3 * 4136 + 8192 + 12);
    assert_int_equal(test_count_files(state, "tensors"), 0);
    hth_store_close(s);
}

// After a removal nobody waits for an import: the files go the next time.
static void test_collect_does_not_wait(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    int lock;
    assert_ok(test_put(s, "m", 1, &r));
    assert_ok(hth_store_rm(s, "m", 0));
    assert_ok(hth_store_file_lock(s->dir, HTH_STORE_LOCK, false, &lock));
    hth_store_collect(s);
    assert_int_equal(test_count_files(state, "tensors"), 2);
    close(lock);
    hth_store_collect(s);
    assert_int_equal(test_count_files(state, "tensors"), 0);
    hth_store_close(s);
}

static void test_names(void **state)
{
    static const char *const good[] = {"a", "resnet50-v1.5", "org model", "\xc3\xa9t\xc3\xa9"};
    static const char *const bad[] = {"", ".", ".hidden", "a/b", "a:1", "a\nb", "a\x7f"};
    hth_store *s = test_open(state);
    hth_put_result r;
    hth_manifest m;
    char name[202];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(test_put(s, good[i], 1, &r));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_err(test_put(s, bad[i], 1, &r), HTH_EINVAL, "name");
        assert_err(hth_store_get(s, bad[i], 0, &m), HTH_EINVAL, "name");
        assert_err(hth_store_rm(s, bad[i], 0), HTH_EINVAL, "name");
    }
    memset(name, 'x', 201);
    name[201] = '\0';
    assert_err(test_put(s, name, 1, &r), HTH_EINVAL, "200 bytes");
    name[200] = '\0';
    assert_ok(test_put(s, name, 1, &r));
    assert_ok(hth_store_get(s, name, 0, &m));
    assert_string_equal(m.name, name);
    hth_manifest_fini(&m);
    hth_store_close(s);
}

// What is not seen in a name, and how the sentence calls it.
static void test_hidden_names(void **state)
{
    static const struct {
        const char *name, *words;
    } bad[] = {
        {"a\xc2\x9b"
         "31m",
         "'a??31m' cannot be a model's name: it has a character that is not seen (U+009B, at byte "
         "2)"},
        {"a\xc2\x80", "U+0080"},
        {"a\xe2\x80\xae"
         "gpj",
         "(U+202E, at byte 2)"},
        {"\xe2\x81\xa6"
         "a",
         "U+2066"},
        {"\xe2\x80\x8e"
         "a",
         "U+200E"},
        {"a\xe2\x80\x8b", "U+200B"},
        {"a\xe2\x80\x8d"
         "b",
         "U+200D"},
        {"a\xef\xbb\xbf", "U+FEFF"},
        {"a\xc2\xad"
         "b",
         "U+00AD"},
        {"a\xe2\x80\xa8"
         "b",
         "U+2028"},
        {"a\xf3\xa0\x81\x81", "U+E0041"},
        {"a\xe2\x81\xa0"
         "b",
         "U+2060"},
        {"a\xd8\x9c", "U+061C"},
        {"a\xff"
         "b",
         "byte 2 is not UTF-8"},
        {"a\xe2\x80", "byte 2 is not UTF-8"},
        {"\xc0\xaf", "byte 1 is not UTF-8"},
    };
    static const char *const good[] = {"\xe6\xa8\xa1\xe5\x9e\x8b", "\xd7\xa9\xd7\x9c",
                                       "na\xc3\xafve", "\xf0\x9f\x94\xa5", "e\xcc\x81"};
    hth_store *s = test_open(state);
    hth_put_result r;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_err(test_put(s, bad[i].name, 1, &r), HTH_EINVAL, bad[i].words);
        assert_ok(hth_store_check_name(bad[i].name));
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(test_put(s, good[i], 1, &r));
    }
    hth_store_close(s);
}

// another_name gives version 1 of model "a" another name, too, which could be had once.
#define OLD_NAME                                                                                   \
    "a\xe2\x80\xae"                                                                                \
    "gpj"
static hth_err another_name(hth_txn *txn, void *ctx)
{
    MDB_val v;
    uint32_t number = 1;
    hth_version_key from = hth_version_key_of("a", 1), to = hth_version_key_of(OLD_NAME, 1);
    HTH_TRY(hth_txn_get(txn, HTH_TABLE_VERSIONS, from.text, from.bytes, &v));
    size_t bytes = v.mv_size;
    void *copy = hth_memdup(v.mv_data, bytes);
    hth_err err = hth_txn_put(txn, HTH_TABLE_VERSIONS, to.text, to.bytes, copy, bytes);
    if (err == HTH_OK) {
        err = hth_check_sum_put(txn, &to, copy, bytes);
    }
    hth_free(copy);
    HTH_TRY(err);
    return hth_txn_put(txn, HTH_TABLE_MODELS, OLD_NAME, strlen(OLD_NAME), &number, sizeof number);
}

// Versions that have such a name are read, listed, told of, and removed; they get no newer one.
static void test_old_names(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    hth_manifest m;
    hth_store_entry *list;
    int n, version;
    bool has;
    assert_ok(test_put(s, "a", 1, &r));
    assert_ok(hth_index_write(&s->index, another_name, NULL));
    assert_ok(hth_store_get(s, OLD_NAME, 0, &m));
    assert_string_equal(m.name, OLD_NAME);
    hth_manifest_fini(&m);
    assert_ok(hth_store_list(s, &list, &n));
    assert_int_equal(n, 2);
    hth_free(list);
    assert_ok(hth_store_latest(s, OLD_NAME, &version));
    assert_int_equal(version, 1);
    assert_ok(hth_store_verify(s, OLD_NAME, 1));
    assert_err(test_put(s, OLD_NAME, 2, &r), HTH_EINVAL, "U+202E");
    assert_ok(hth_store_rm(s, OLD_NAME, 0));
    assert_ok(hth_store_has(s, OLD_NAME, 0, &has));
    assert_false(has);
    hth_store_close(s);
}

static void test_has(void **state)
{
    static const struct {
        const char *name;
        int version;
        bool has;
    } cases[] = {{"a", 0, true},   {"a", 1, false}, {"a", 2, true}, {"a", 3, false},
                 {"ab", 0, false}, {"b", 0, false}, {"", 1, false}};
    hth_store *s = test_open(state);
    hth_put_result r;
    assert_ok(test_put(s, "a", 1, &r));
    assert_ok(test_put(s, "a", 2, &r));
    assert_ok(hth_store_rm(s, "a", 1));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool has = !cases[i].has;
        if (cases[i].name[0] == 0) {
            assert_err(hth_store_has(s, "", 1, &has), HTH_EINVAL, "name");
            continue;
        }
        assert_ok(hth_store_has(s, cases[i].name, cases[i].version, &has));
        assert_int_equal(has, cases[i].has);
    }
    hth_store_close(s);
}

static void test_bad_tensors(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    test_model m;
    hth_put_tensor t = test_make(&m, 1)[0];
    t.bytes--;
    assert_err(hth_store_put(s, "m", "g", 1, NULL, &t, 1, NULL, NULL, &r), HTH_EINVAL,
               "4095 bytes");
    t.bytes++;
    t.dtype = HTH_DT_STRING;
    assert_err(hth_store_put(s, "m", "g", 1, NULL, &t, 1, NULL, NULL, &r), HTH_EINVAL, "big0");
    t.dtype = HTH_DT_F32;
    t.shape = HTH_SHAPE_UNKNOWN;
    assert_err(hth_store_put(s, "m", "g", 1, NULL, &t, 1, NULL, NULL, &r), HTH_EINVAL, "big0");
    t.shape = (hth_shape){2, {0, 5}}; // empty, and valid
    t.bytes = 0;
    assert_ok(hth_store_put(s, "m", "g", 1, NULL, &t, 1, NULL, NULL, &r));
    assert_ok(hth_store_verify(s, "m", 0));
    assert_ok(
        hth_store_put(s, "none", "g", 1, NULL, NULL, 0, NULL, NULL, &r)); // a model without weights
    assert_ok(hth_store_verify(s, "none", 0));
    hth_store_close(s);
}

static void test_texts(void **state)
{
    hth_store *s = test_open(state);
    char v[16], key[600];
    assert_err(hth_store_text_get(s, "timing/cpu", v, sizeof v), HTH_ENOENT, "timing/cpu");
    assert_ok(hth_store_text_put(s, "timing/cpu", "one"));
    assert_ok(hth_store_text_put(s, "timing/cpu", "two"));
    hth_store_close(s);
    s = test_open(state);
    assert_ok(hth_store_text_get(s, "timing/cpu", v, sizeof v));
    assert_string_equal(v, "two");
    assert_err(hth_store_text_get(s, "timing/cpu", v, 3), HTH_ETOOBIG, "3 bytes");
    assert_err(hth_store_text_swap(s, "timing/cpu", NULL, "x"), HTH_EEXIST, "has changed");
    assert_err(hth_store_text_swap(s, "timing/cpu", "tw", "x"), HTH_EEXIST, "has changed");
    assert_ok(hth_store_text_swap(s, "timing/cpu", "two", "three"));
    assert_err(hth_store_text_swap(s, "timing/gpu", "two", "x"), HTH_EEXIST, "has changed");
    assert_ok(hth_store_text_swap(s, "timing/gpu", NULL, "one"));
    assert_ok(hth_store_text_get(s, "timing/cpu", v, sizeof v));
    assert_string_equal(v, "three");
    assert_ok(hth_store_text_get(s, "timing/gpu", v, sizeof v));
    assert_string_equal(v, "one");
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = '\0';
    assert_err(hth_store_text_put(s, key, "x"), HTH_EINVAL, "511");
    assert_err(hth_store_text_put(s, "", "x"), HTH_EINVAL, "511");
    hth_store_close(s);
}

static void write_file(void **state, const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", ((test_dir *)*state)->path, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_refused_directories(void **state)
{
    const char *path = ((test_dir *)*state)->path;
    char sub[128];
    hth_store *s;
    snprintf(sub, sizeof sub, "%s/a/b", path);
    assert_err(hth_store_open(sub, false, false, &s), HTH_ENOENT, sub);
    assert_null(s);
    assert_err(hth_store_open(path, false, false, &s), HTH_ENOENT, "not a store");
    assert_err(hth_store_open(path, true, true, &s), HTH_ENOENT, "not a store");
    write_file(state, "letter.txt", "dear");
    assert_err(hth_store_open(path, true, false, &s), HTH_EINVAL, "letter.txt");
    assert_ok(hth_store_open(sub, true, false, &s)); // parents are made
    hth_store_close(s);
    write_file(state, "a/b/format", "hearth-store 2\n");
    assert_err(hth_store_open(sub, true, false, &s), HTH_ENOTSUP, "format 2");
    write_file(state, "a/b/format", "a poem\n");
    assert_err(hth_store_open(sub, true, false, &s), HTH_ECORRUPT, "format");
    write_file(state, "a/b/format", "hearth-store 1\n");
    write_file(state, "a/b/index/data.mdb",
               "this is no database, and it is longer than a page header, too, so that "
               "LMDB reads it and finds out; it wants some 150 bytes for its first look"
               " at the two meta pages.");
    assert_int_equal(hth_store_open(sub, true, false, &s), HTH_ECORRUPT);
    assert_null(s);
}

static void test_read_only(void **state)
{
    const char *path = ((test_dir *)*state)->path;
    hth_store *s = test_open(state), *again;
    hth_put_result r;
    uint64_t files, bytes;
    assert_ok(test_put(s, "m", 1, &r));
    hth_store_close(s);
    assert_ok(hth_store_open(path, false, true, &s));
    assert_ok(hth_store_verify(s, "m", 0));
    assert_err(test_put(s, "m", 2, &r), HTH_EDENIED, "read-only");
    assert_err(hth_store_rm(s, "m", 0), HTH_EDENIED, "read-only");
    assert_err(hth_store_gc(s, &files, &bytes), HTH_EDENIED, "read-only");
    assert_err(hth_store_text_put(s, "k", "v"), HTH_EDENIED, "read-only");
    assert_err(hth_store_open(path, false, false, &again), HTH_EBUSY, "read-only");
    hth_store_close(s);
    s = test_open(state); // twice in one process is one store
    assert_ok(hth_store_open(path, false, false, &again));
    assert_ok(test_put(again, "m", 2, &r));
    hth_store_close(again);
    assert_ok(hth_store_verify(s, "m", 2));
    hth_store_close(s);
}

// The promise: a daemon that starts on a hundred models is ready within a second, of processor time
// here: other tests run beside this one.
static void test_warm_start(void **state)
{
    hth_store *s = test_open(state);
    hth_put_result r;
    char name[16];
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "model%d", i);
        assert_ok(test_put(s, name, i, &r));
    }
    hth_store_close(s);
    clock_t start = clock();
    hth_store_entry *e;
    int n;
    s = test_open(state);
    assert_ok(hth_store_list(s, &e, &n));
    assert_int_equal(n, 100);
    for (int i = 0; i < n; i++) {
        hth_manifest m;
        assert_ok(hth_store_get(s, e[i].name, 0, &m));
        for (int k = 0; k < m.n_tensors; k++) {
            hth_const *c;
            assert_ok(hth_store_view(s, &m.tensors[k], &c));
            hth_const_rele(c);
        }
        hth_manifest_fini(&m);
    }
    assert_true(clock() - start < CLOCKS_PER_SEC);
    hth_free(e);
    hth_store_close(s);
}

static hth_err whole_life(const char *path)
{
    hth_store *s;
    hth_manifest m;
    hth_put_result r;
    hth_store_entry *e = NULL;
    int n;
    uint64_t files, bytes;
    HTH_TRY(hth_store_open(path, true, false, &s));
    hth_err err = test_put(s, "m", 5, &r);
    HTH_GOTO(err, done);
    HTH_GOTO(hth_store_verify(s, "m", 0), done);
    HTH_GOTO(hth_store_get(s, "m", 0, &m), done);
    hth_manifest_fini(&m);
    HTH_GOTO(hth_store_list(s, &e, &n), done);
    HTH_GOTO(hth_store_rm(s, "m", 0), done);
    HTH_GOTO(hth_store_gc(s, &files, &bytes), done);
done:
    hth_free(e);
    hth_store_close(s);
    return err;
}

static void test_out_of_memory(void **state)
{
    FAULT_LOOP(whole_life(((test_dir *)*state)->path));
    hth_store *s = test_open(state);
    uint64_t files, bytes;
    assert_ok(hth_store_gc(s, &files, &bytes));
    assert_int_equal(test_count_files(state, "tensors") + test_count_files(state, "tmp"), 0);
    hth_store_close(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, test_setup, test_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_versions),
        TEST(test_repeated_tensor),
        TEST(test_each),
        TEST(test_list_rm_gc),
        TEST(test_collect_does_not_wait),
        TEST(test_names),
        TEST(test_hidden_names),
        TEST(test_old_names),
        TEST(test_has),
        TEST(test_bad_tensors),
        TEST(test_texts),
        TEST(test_refused_directories),
        TEST(test_read_only),
        TEST(test_warm_start),
        TEST(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
