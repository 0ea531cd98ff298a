// SPDX-License-Identifier: Apache-2.0
#include "modelstore/store_test.h"

#include "base/thread.h"

static void put_and_get(void **state, hth_store **s, hth_manifest *manifest)
{
    hth_put_result r;
    *s = test_open(state);
    assert_ok(test_put(*s, "m", 1, &r));
    assert_ok(hth_store_get(*s, "m", 0, manifest));
}

static void test_one_mapping(void **state)
{
    hth_store *s;
    hth_manifest m;
    hth_const *a, *b;
    test_model want;
    test_make(&want, 1);
    put_and_get(state, &s, &m);
    for (int i = 0; i < m.n_tensors; i++) { // files and inlined ones alike
        assert_ok(hth_store_view(s, &m.tensors[i], &a));
        assert_ok(hth_store_view(s, &m.tensors[i], &b));
        assert_ptr_equal(a, b);
        assert_true(a->bytes == want.t[i].bytes && a->dtype == HTH_DT_F32 &&
                    a->shape.dim[0] == want.t[i].shape.dim[0]);
        assert_memory_equal(a->data, want.t[i].data, a->bytes);
        assert_int_equal((uintptr_t)a->data % 64, 0);
        assert_true(hth_id_equal(&a->id, &m.tensors[i].id));
        hth_const_rele(a);
        assert_memory_equal(b->data, want.t[i].data, b->bytes); // the second reference still holds
        hth_const_rele(b);
    }
    hth_manifest_fini(&m);
    hth_store_close(s);
}

// In pieces, from a file and from the index; what is open stays, whatever becomes of the version.
static void test_bytes(void **state)
{
    hth_store *s;
    hth_manifest m;
    hth_store_bytes b[2], gone;
    uint64_t files, bytes;
    char got[3000];
    test_model want;
    test_make(&want, 1);
    put_and_get(state, &s, &m);
    for (int i = 0; i < 2; i++) {
        assert_ok(hth_store_bytes_open(s, &m.tensors[i], &b[i]));
        assert_int_equal(b[i].bytes, want.t[i].bytes);
    }
    assert_true(b[0].fd >= 0 && b[0].view == NULL && b[1].fd < 0 && b[1].view != NULL);
    assert_ok(hth_store_rm(s, "m", 0));
    assert_ok(hth_store_gc(s, &files, &bytes));
    for (int i = 0; i < 2; i++) {
        const char *all = want.t[i].data;
        for (uint64_t at = 0; at < b[i].bytes; at += sizeof got) {
            uint64_t left = b[i].bytes - at;
            size_t n = left < sizeof got ? (size_t)left : sizeof got;
            assert_ok(hth_store_bytes_read(&b[i], at, got, n));
            assert_memory_equal(got, all + at, n);
        }
        assert_err(hth_store_bytes_read(&b[i], b[i].bytes, got, 1), HTH_EINVAL, "bytes");
        hth_store_bytes_close(&b[i]);
        hth_store_bytes_close(&b[i]);
    }
    assert_err(hth_store_bytes_open(s, &m.tensors[2], &gone), HTH_ENOENT, "big1");
    hth_store_bytes_close(&gone);
    hth_manifest_fini(&m);
    hth_store_close(s);
}

static void test_outlives_store_and_file(void **state)
{
    hth_store *s;
    hth_manifest m;
    hth_const *big, *small;
    uint64_t files, bytes;
    test_model want;
    test_make(&want, 1);
    put_and_get(state, &s, &m);
    assert_ok(hth_store_view(s, &m.tensors[0], &big));
    assert_ok(hth_store_view(s, &m.tensors[1], &small));
    assert_ok(hth_store_rm(s, "m", 0));
    assert_ok(hth_store_gc(s, &files, &bytes));
    assert_int_equal(files, 4);
    hth_const *gone;
    assert_err(hth_store_view(s, &m.tensors[2], &gone), HTH_ENOENT, "big1");
    hth_store_close(s);
    assert_memory_equal(big->data, want.big0, big->bytes);
    assert_memory_equal(small->data, want.small0, small->bytes);
    hth_const_rele(big);
    hth_const_rele(small);
    hth_manifest_fini(&m);
}

static void test_damage(void **state)
{
    hth_store *s;
    hth_manifest m;
    hth_const *c;
    char path[192];
    put_and_get(state, &s, &m);
    hth_path file = hth_path_of_tensor(&m.tensors[0].id);
    snprintf(path, sizeof path, "%s/%s", ((test_dir *)*state)->path, file.text);
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    fputs("X", f);
    fclose(f);
    assert_err(hth_store_verify(s, "m", 0), HTH_ECORRUPT, "tensor 'big0' of 'm:1'");
    assert_int_equal(truncate(path, 4095), 0);
    assert_err(hth_store_view(s, &m.tensors[0], &c), HTH_ECORRUPT, "4096 bytes");
    assert_null(c);
    assert_int_equal(unlink(path), 0);
    assert_err(hth_store_view(s, &m.tensors[0], &c), HTH_ECORRUPT, "missing");
    hth_manifest_fini(&m);
    hth_store_close(s);
}

static void test_large_alignment(void **state)
{
    enum { BYTES = (5 << 20) + 3 };
    hth_store *s = test_open(state);
    uint8_t *data = hth_calloc(1, BYTES);
    hth_put_tensor t = {
        .name = "w", .dtype = HTH_DT_U8, .shape = {1, {BYTES}}, .data = data, .bytes = BYTES};
    hth_put_result r;
    hth_manifest m;
    hth_const *c;
    data[BYTES - 1] = 9;
    assert_ok(hth_store_put(s, "m", "g", 1, NULL, &t, 1, NULL, NULL, &r));
    assert_ok(hth_store_get(s, "m", 0, &m));
    assert_ok(hth_store_view(s, &m.tensors[0], &c));
    assert_int_equal((uintptr_t)c->data % (2 << 20), 0);
    assert_memory_equal(c->data, data, BYTES);
    hth_const_rele(c);
    hth_manifest_fini(&m);
    hth_free(data);
    hth_store_close(s);
}

typedef struct viewer {
    hth_store *s;
    const hth_manifest *m;
    int bad;
} viewer;

static void view_often(void *ctx)
{
    viewer *v = ctx;
    for (int i = 0; i < 5000; i++) {
        const hth_manifest_tensor *t = &v->m->tensors[i % v->m->n_tensors];
        hth_const *c;
        if (hth_store_view(v->s, t, &c) != HTH_OK || !hth_id_equal(&c->id, &t->id) ||
            ((const float *)c->data)[1] - ((const float *)c->data)[0] != 0.125f) {
            v->bad++;
            continue;
        }
        hth_const_rele(c);
    }
}

// Threads take and drop the last reference at once: nobody may see a view that is going away.
static void test_threads(void **state)
{
    hth_store *s;
    hth_manifest m;
    pthread_t thread[4];
    viewer v[4];
    put_and_get(state, &s, &m);
    int64_t live = hth_alloc_live();
    for (int i = 0; i < 4; i++) {
        v[i] = (viewer){s, &m, 0};
        assert_ok(hth_thread_start("viewer", view_often, &v[i], &thread[i]));
    }
    for (int i = 0; i < 4; i++) {
        hth_thread_join(thread[i]);
        assert_int_equal(v[i].bad, 0);
    }
    assert_int_equal(hth_alloc_live(), live);
    hth_manifest_fini(&m);
    hth_store_close(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, test_setup, test_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_one_mapping), TEST(test_bytes),           TEST(test_outlives_store_and_file),
        TEST(test_damage),      TEST(test_large_alignment), TEST(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
