// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"
#include "client/content/objects.h"

#define N 3

static hth_content_object objects[N] = {
    {.name = "weight", .dtype = HTH_DT_F32, .shape = {2, {3, 5}}, .bytes = 60, .here = true},
    {.name = "", .dtype = HTH_DT_I64, .shape = {0, {0}}, .bytes = 8},
    {.name = "none", .dtype = HTH_DT_BOOL, .shape = {1, {0}}, .bytes = 0},
};

// written makes a list of exactly the bytes that it has.
static uint8_t *written(uint64_t *bytes)
{
    for (int i = 0; i < N; i++) {
        objects[i].id.byte[0] = (uint8_t)(i + 1);
    }
    assert_ok(hth_content_list_bytes(objects, N, bytes));
    uint8_t *list = hth_alloc(*bytes);
    assert_non_null(list);
    hth_content_list_write(objects, N, list);
    return list;
}

static void test_round_trip(void **state)
{
    uint64_t bytes;
    hth_content_object *o;
    uint8_t *list = written(&bytes);
    assert_ok(hth_content_list_read(list, bytes, N, &o));
    for (int i = 0; i < N; i++) {
        assert_string_equal(o[i].name, objects[i].name);
        assert_true(hth_id_equal(&o[i].id, &objects[i].id));
        assert_int_equal(o[i].dtype, objects[i].dtype);
        assert_true(hth_shape_equal(&o[i].shape, &objects[i].shape));
        assert_int_equal(o[i].bytes, objects[i].bytes);
        assert_int_equal(o[i].here, objects[i].here);
    }
    hth_free(o);
    hth_free(list);
}

static void test_cut_anywhere(void **state)
{
    uint64_t bytes;
    hth_content_object *o;
    uint8_t *list = written(&bytes);
    for (uint64_t n = 0; n < bytes; n++) {
        uint8_t *part = hth_memdup(list, n);
        assert_int_equal(hth_content_list_read(part, n, N, &o), HTH_ECORRUPT);
        assert_null(o);
        hth_free(part);
    }
    assert_err(hth_content_list_read(list, bytes, N - 1, &o), HTH_ECORRUPT, "goes on after");
    assert_err(hth_content_list_read(list, bytes, UINT32_MAX, &o), HTH_ECORRUPT, "cannot have");
    hth_free(list);
}

// Any byte may be another one: what is taken then is possible in itself.
static void test_changed_anywhere(void **state)
{
    uint64_t bytes;
    hth_content_object *o;
    uint8_t *list = written(&bytes);
    for (uint64_t n = 0; n < bytes; n++) {
        for (int bit = 0; bit < 8; bit++) {
            list[n] ^= (uint8_t)(1 << bit);
            if (hth_content_list_read(list, bytes, N, &o) == HTH_OK) {
                for (int i = 0; i < N; i++) {
                    size_t size;
                    assert_ok(hth_tensor_bytes(o[i].dtype, &o[i].shape, HTH_LAYOUT_PLAIN, &size));
                    assert_int_equal(size, o[i].bytes);
                    assert_true(strlen(o[i].name) < bytes);
                }
                hth_free(o);
            }
            list[n] ^= (uint8_t)(1 << bit);
        }
    }
    hth_free(list);
}

static hth_err read_again(void)
{
    uint64_t bytes;
    uint8_t list[400];
    hth_content_object *o;
    HTH_TRY(hth_content_list_bytes(objects, N, &bytes));
    hth_content_list_write(objects, N, list);
    HTH_TRY(hth_content_list_read(list, bytes, N, &o));
    hth_free(o);
    return HTH_OK;
}

static void test_out_of_memory(void **state)
{
    FAULT_LOOP(read_again());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_cut_anywhere),
        cmocka_unit_test(test_changed_anywhere),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
