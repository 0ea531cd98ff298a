// SPDX-License-Identifier: Apache-2.0
#include "base/ipc/ipc_record.h"

#include "base/test.h"

static hth_ipc_record *make(void)
{
    static const char *const text[HTH_IPC_RECORD_TEXTS] = {
        [HTH_IPC_RECORD_MODEL] = "model:3", [HTH_IPC_RECORD_ARGUMENTS] = "{\"a\":1}"};
    const int64_t dim[] = {3, 5};
    size_t head = hth_ipc_record_room(text, 3, sizeof "x" + sizeof "z");
    hth_ipc_record *r = hth_alloc_aligned(head + 128, HTH_IPC_RECORD_ALIGN);
    memset(r, 0xEE, head + 128);
    hth_ipc_record_begin(r, text, 3);
    hth_ipc_record_add(r, "x", 1, 2, dim, 60);
    hth_ipc_record_add(r, NULL, 7, 0, NULL, 8);
    hth_ipc_record_tensor *t = hth_ipc_record_add(r, "z", 1, 1, dim, 1 << 20);
    t->region = 4;
    t->at = 12345;
    assert_ok(hth_ipc_record_end(r));
    assert_int_equal(r->head_bytes, head);
    assert_int_equal(r->bytes, head + 128); // of two tensors, each at a multiple of 64
    return r;
}

static void test_round_trip(void **state)
{
    hth_ipc_record *r = make();
    assert_ok(hth_ipc_record_check(r, r->bytes));
    assert_string_equal(hth_ipc_record_text(r, HTH_IPC_RECORD_MODEL), "model:3");
    assert_null(hth_ipc_record_text(r, HTH_IPC_RECORD_QUERY));
    assert_string_equal(hth_ipc_record_text(r, HTH_IPC_RECORD_ARGUMENTS), "{\"a\":1}");
    const hth_ipc_record_tensor *x = &r->tensor[0], *y = &r->tensor[1], *z = &r->tensor[2];
    assert_string_equal(hth_ipc_record_name(r, x), "x");
    assert_int_equal(x->dtype, 1);
    assert_int_equal(x->rank, 2);
    assert_int_equal(x->dim[1], 5);
    assert_int_equal(x->dim[2], 0);
    assert_int_equal(x->at, r->head_bytes);
    assert_null(hth_ipc_record_name(r, y));
    assert_int_equal(y->rank, 0);
    assert_int_equal(y->at, x->at + 64);
    assert_int_equal(z->region, 4);
    assert_int_equal(z->at, 12345);
    hth_free(r);
}

// A change of one number, and what is wrong then.
#define REFUSED(what, value, sentence)                                                             \
    do {                                                                                           \
        memcpy(r, good, n);                                                                        \
        r->what = (value);                                                                         \
        assert_err(hth_ipc_record_check(r, n), HTH_ECORRUPT, sentence);                            \
    } while (0)

static void test_refused(void **state)
{
    hth_ipc_record *r = make(), *good = make();
    uint64_t n = r->bytes;
    assert_err(hth_ipc_record_check(r, n - 1), HTH_ECORRUPT, "size");
    assert_err(hth_ipc_record_check(r, 4), HTH_ECORRUPT, "size");
    REFUSED(bytes, UINT64_MAX, "size");
    REFUSED(n_tensors, 60000, "size");
    REFUSED(n_tensors, UINT32_MAX, "size");
    REFUSED(n_tensors, 4, "size"); // reaches over the texts
    REFUSED(n_known, 4, "size");
    REFUSED(head_bytes, (uint32_t)n + 1, "size");
    REFUSED(head_bytes, 0, "size");
    REFUSED(text[HTH_IPC_RECORD_QUERY], r->head_bytes, "outside");
    REFUSED(text[HTH_IPC_RECORD_QUERY], 8, "outside"); // in the numbers
    REFUSED(tensor[1].name, UINT32_MAX, "outside");
    REFUSED(tensor[1].name, 60, "outside");
    REFUSED(tensor[0].rank, HTH_IPC_RECORD_RANK + 1, "dimensions");
    REFUSED(tensor[0].at, 0, "a tensor lies outside"); // over the numbers
    REFUSED(tensor[0].at, n, "a tensor lies outside");
    REFUSED(tensor[0].at, UINT64_MAX - 63, "a tensor lies outside");
    REFUSED(tensor[0].at, r->head_bytes + 8u, "multiple of 64");
    REFUSED(tensor[0].bytes, n, "a tensor lies outside");
    REFUSED(tensor[0].bytes, UINT64_MAX, "a tensor lies outside");
    REFUSED(tensor[2].region, HTH_IPC_RECORD_HERE, "multiple of 64");
    REFUSED(err, HTH_N_ERR, "error");
    memcpy(r, good, n);
    ((char *)r)[r->head_bytes - 1] = 'x';
    assert_err(hth_ipc_record_check(r, n), HTH_ECORRUPT, "no end");
    hth_free(good);
    hth_free(r);
}

static void test_too_large(void **state)
{
    static const char *const none[HTH_IPC_RECORD_TEXTS];
    _Alignas(64) uint8_t memory[1024] = {0};
    hth_ipc_record *r = (hth_ipc_record *)(void *)memory;
    assert_int_equal(hth_ipc_record_room(none, 1, UINT32_MAX), 0);
    hth_ipc_record_begin(r, none, 2);
    hth_ipc_record_add(r, NULL, 1, 0, NULL, UINT64_C(1) << 63);
    hth_ipc_record_add(r, NULL, 1, 0, NULL, UINT64_C(1) << 63);
    assert_err(hth_ipc_record_end(r), HTH_ETOOBIG, "64 bits");
}

// Whatever bytes are changed: what passes the check can be read.
static void test_garbage(void **state)
{
    uint32_t seed = 7;
    for (int i = 0; i < 20000; i++) {
        hth_ipc_record *r = make();
        uint64_t n = r->bytes;
        for (int k = 0; k < 3; k++) {
            seed = seed * 1664525u + 1013904223u;
            ((uint8_t *)r)[(seed >> 8) % n] = (uint8_t)(seed >> 24);
        }
        if (hth_ipc_record_check(r, n) == HTH_OK) {
            size_t seen = 0;
            for (int k = 0; k < HTH_IPC_RECORD_TEXTS; k++) {
                const char *text = hth_ipc_record_text(r, k);
                seen += text != NULL ? strlen(text) : 0;
            }
            for (uint32_t k = 0; k < r->n_tensors; k++) {
                const hth_ipc_record_tensor *t = &r->tensor[k];
                const char *name = hth_ipc_record_name(r, t);
                seen += name != NULL ? strlen(name) : 0;
                assert_true(t->rank <= HTH_IPC_RECORD_RANK);
                assert_true(t->region != HTH_IPC_RECORD_HERE || t->at + t->bytes <= n);
            }
            assert_true(seen < n * (HTH_IPC_RECORD_TEXTS + r->n_tensors));
        }
        hth_free(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_garbage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
