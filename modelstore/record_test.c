// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"

#include "modelstore/record.h"

static hth_err build(hth_buffer *buffer)
{
    const hth_put_tensor t[2] = {
        {.name = "conv.weight", .dtype = HTH_DT_F32, .shape = {4, {64, 3, 7, 7}}, .bytes = 37632},
        {.name = "step", .dtype = HTH_DT_I64, .bytes = 8}};
    hth_id id = {{1, 2, 3}};
    *buffer = (hth_buffer){0};
    hth_err err = hth_record_head(buffer, 123456789, "{\"a\":1}", "skeleton", 8, 2);
    if (err == HTH_OK) {
        err = hth_record_add(buffer, &t[0], &id, false);
    }
    if (err == HTH_OK) {
        err = hth_record_add(buffer, &t[1], &id, true);
    }
    if (err != HTH_OK) {
        hth_free(buffer->data);
    }
    return err;
}

static hth_err read_all(const void *data, size_t bytes)
{
    hth_record r;
    hth_record_tensor t;
    HTH_TRY(hth_record_open(&r, data, bytes));
    for (int i = 0; i < r.n_tensors; i++) {
        HTH_TRY(hth_record_next(&r, &t));
    }
    return HTH_OK;
}

static void test_round_trip(void **state)
{
    hth_buffer b;
    hth_record r;
    hth_record_tensor t;
    FAULT_LOOP(build(&b));
    assert_ok(hth_record_open(&r, b.data, b.n));
    assert_int_equal(r.created_ns, 123456789);
    assert_int_equal(r.n_tensors, 2);
    assert_true(r.meta_bytes == 7 && memcmp(r.meta, "{\"a\":1}", 7) == 0);
    assert_true(r.skeleton_bytes == 8 && memcmp(r.skeleton, "skeleton", 8) == 0);
    assert_ok(hth_record_next(&r, &t));
    assert_true(t.name_bytes == 11 && memcmp(t.name, "conv.weight", 11) == 0);
    assert_true(t.dtype == HTH_DT_F32 && t.bytes == 37632 && t.shape.rank == 4 &&
                t.shape.dim[3] == 7);
    assert_true(t.id.byte[2] == 3 && !t.repeated);
    assert_ok(hth_record_next(&r, &t));
    assert_true(t.dtype == HTH_DT_I64 && t.shape.rank == 0 && t.repeated);
    assert_int_equal(hth_record_next(&r, &t), HTH_ECORRUPT); // no third
    hth_free(b.data);
}

static void test_damage(void **state)
{
    hth_buffer b;
    assert_ok(build(&b));
    for (size_t n = 0; n < b.n;
         n++) { // cut anywhere; exact blocks, so that a sanitizer sees reads beyond
        void *cut = hth_memdup(b.data, n);
        assert_int_equal(read_all(cut, n), HTH_ECORRUPT);
        hth_free(cut);
    }
    for (size_t i = 0; i < b.n; i++) { // any byte wrong: an answer, but no read outside
        uint8_t old = b.data[i];
        for (int v = 0; v < 256; v += 51) {
            b.data[i] = (uint8_t)v;
            hth_err err = read_all(b.data, b.n);
            assert_true(err == HTH_OK || err == HTH_ECORRUPT);
        }
        b.data[i] = old;
    }
    assert_ok(read_all(b.data, b.n));
    hth_free(b.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trip),
                                       cmocka_unit_test(test_damage)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
