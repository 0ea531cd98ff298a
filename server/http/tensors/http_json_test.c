// SPDX-License-Identifier: Apache-2.0
// Heads that came before: which are known again, and which are not kept. Tensors as text.
#include "server/http/tensors/http_json.h"

#include "base/alloc.h"
#include "base/test.h"

#include <stdio.h>
#include <string.h>

#define MAX 4

static json_t *ask(hth_json_cache *cache, const char *text, hth_json_span data[MAX])
{
    json_t *doc;
    memset(data, 0, MAX * sizeof data[0]);
    assert_ok(hth_json_cache_request(cache, text, strlen(text), data, MAX, NULL, &doc));
    return doc;
}

// same tells whether a text that comes twice is parsed once.
static bool same(const char *text)
{
    hth_json_cache s = {.next = 0};
    hth_json_span data[MAX];
    json_t *first = ask(&s, text, data), *second = ask(&s, text, data);
    bool one = first == second;
    assert_true(json_equal(first, second));
    json_decref(first);
    json_decref(second);
    hth_json_cache_fini(&s);
    return one;
}

static void keeps(void **state)
{
    (void)state;
    assert_true(same("{\"inputs\":[{\"name\":\"x\",\"shape\":[1],\"datatype\":\"FP32\","
                     "\"parameters\":{\"binary_data_size\":4}}]}"));
    assert_true(same("{\"id\":\"\",\"inputs\":[]}"));
    assert_false(same("{\"id\":\"7\",\"inputs\":[]}"));
    assert_false(same("{\"inputs\":[{\"name\":\"x\",\"data\":[1,2]}]}"));
    assert_false(same("[1]"));
    char longer[HTH_JSON_CACHE_BYTES + 20];
    snprintf(longer, sizeof longer, "{\"inputs\":[]%*s", HTH_JSON_CACHE_BYTES - 13, "}");
    assert_int_equal(strlen(longer), HTH_JSON_CACHE_BYTES - 1);
    assert_true(same(longer));
    snprintf(longer, sizeof longer, "{\"inputs\":[]%*s", HTH_JSON_CACHE_BYTES, "}");
    assert_false(same(longer));
}

// What differs in one byte is another one; data is found each time; what is wrong is not kept.
static void distinguishes(void **state)
{
    (void)state;
    hth_json_cache s = {.next = 0};
    hth_json_span data[MAX];
    json_t *a = ask(&s, "{\"inputs\":[{\"shape\":[1]}]}", data);
    json_t *b = ask(&s, "{\"inputs\":[{\"shape\":[2]}]}", data);
    assert_false(json_equal(a, b));
    json_decref(a);
    json_decref(b);
    for (int i = 0; i < 2; i++) {
        static const char text[] = "{\"inputs\":[{\"data\":[5]}]}";
        json_decref(ask(&s, text, data));
        assert_int_equal(data[0].n, 3);
        assert_memory_equal(data[0].p, "[5]", 3);
        json_t *doc;
        assert_int_equal(hth_json_cache_request(&s, "{\"inputs\"", 9, data, MAX, NULL, &doc),
                         HTH_EINVAL);
        assert_null(doc);
    }
    hth_json_cache_fini(&s);
}

// The oldest goes for a new one; who still has it keeps it. Nothing is left behind.
static void replaces(void **state)
{
    (void)state;
    hth_json_cache s = {.next = 0};
    hth_json_span data[MAX];
    int64_t live = hth_alloc_live();
    char text[40];
    json_t *first = NULL;
    for (int i = 0; i <= HTH_JSON_CACHE_HEADS; i++) {
        snprintf(text, sizeof text, "{\"inputs\":[],\"n\":%d}", i);
        json_t *doc = ask(&s, text, data);
        if (i == 0) {
            first = json_incref(doc);
        }
        json_decref(doc);
    }
    json_t *last = ask(&s, text, data);
    assert_int_equal(json_integer_value(json_object_get(last, "n")), HTH_JSON_CACHE_HEADS);
    json_t *again = ask(&s, "{\"inputs\":[],\"n\":0}", data);
    assert_ptr_not_equal(again, first);
    assert_true(json_equal(again, first));
    json_decref(first);
    json_decref(again);
    json_decref(last);
    hth_json_cache_fini(&s);
    assert_int_equal(hth_alloc_live(), live);
}

// Elements of every type are written as what they are, and nothing after the last one is read.
static void writes(void **state)
{
    const struct {
        hth_dtype dtype;
        size_t bytes;
        const void *data;
        const char *text;
    } row[] = {
        {HTH_DT_F32, 8, (const float[]){1, -0.1f}, "[1.0,-0.100000001]"},
        {HTH_DT_F64, 8, (const double[]){0.1}, "[0.10000000000000001]"},
        {HTH_DT_F16, 10, (const uint16_t[]){0x3c00, 0xc100, 0x7bff, 0x2e66, 0xfc00},
         "[1.0,-2.5,65504.0,0.099976,-Infinity]"},
        {HTH_DT_BF16, 8, (const uint16_t[]){0x3f80, 0xc020, 0x7f7f, 0x7fc0},
         "[1.0,-2.5,3.39e+38,NaN]"},
        {HTH_DT_BOOL, 2, (const uint8_t[]){0, 1}, "[false,true]"},
        {HTH_DT_I8, 1, (const int8_t[]){-128}, "[-128]"},
        {HTH_DT_U8, 1, (const uint8_t[]){255}, "[255]"},
        {HTH_DT_I16, 2, (const int16_t[]){-32768}, "[-32768]"},
        {HTH_DT_U16, 2, (const uint16_t[]){65535}, "[65535]"},
        {HTH_DT_I32, 4, (const int32_t[]){-7}, "[-7]"},
        {HTH_DT_U32, 4, (const uint32_t[]){UINT32_MAX}, "[4294967295]"},
        {HTH_DT_I64, 8, (const int64_t[]){-7}, "[-7]"},
        {HTH_DT_U64, 8, (const uint64_t[]){UINT64_MAX}, "[18446744073709551615]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        hth_text out = {.p = NULL};
        void *data = hth_memdup(row[i].data, row[i].bytes); // as long as it says
        hth_json_write(&out,
                       &(hth_tensor){.dtype = row[i].dtype, .data = data, .bytes = row[i].bytes});
        assert_false(out.failed);
        assert_int_equal(out.n, strlen(row[i].text));
        assert_memory_equal(out.p, row[i].text, out.n);
        hth_text_fini(&out);
        hth_free(data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(keeps), cmocka_unit_test(distinguishes),
                                       cmocka_unit_test(replaces), cmocka_unit_test(writes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
