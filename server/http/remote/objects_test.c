// SPDX-License-Identifier: Apache-2.0
// Tensors as documents and URLs name them: what is read, what is refused, and the list that the
// dispatcher gets.
#include "base/test.h"
#include "server/http/remote/objects.h"
#include "server/http/tensors/http_base64.h"

#define ID "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static void test_id(void **state)
{
    char hex[HTH_ID_HEX];
    hth_id id;
    assert_true(hth_objects_id(ID, &id));
    assert_string_equal(hth_id_hex(&id, hex), ID);
    assert_false(hth_objects_id("", &id));
    assert_false(hth_objects_id(ID "0", &id));
    assert_false(hth_objects_id(ID + 1, &id));
    assert_false(hth_objects_id("G" ID, &id));
    assert_false(
        hth_objects_id("A0112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", &id));
}

static void test_shaped(void **state)
{
    hth_content_object o;
    assert_ok(hth_objects_shaped("FP32", "64,3", &o));
    assert_true(o.dtype == HTH_DT_F32 && o.shape.rank == 2 && o.shape.dim[1] == 3);
    assert_int_equal(o.bytes, 64 * 3 * 4);
    assert_ok(hth_objects_shaped("INT64", "", &o));
    assert_true(o.shape.rank == 0 && o.bytes == 8);
    assert_ok(hth_objects_shaped("BOOL", "1,2,3,4,5,6,7,0", &o));
    assert_true(o.shape.rank == 8 && o.bytes == 0);
    assert_err(hth_objects_shaped("FP32", "1,1,1,1,1,1,1,1,1", &o), HTH_EINVAL, "8 dimensions");
    assert_err(hth_objects_shaped("BYTES", "1", &o), HTH_EINVAL, "'BYTES' is no datatype");
    assert_err(hth_objects_shaped("", "1", &o), HTH_EINVAL, "no datatype");
    static const char *const wrong[] = {
        ",", "1,", ",1", "1,,2", "-1", "1 ", "x", "1.5", "9999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_err(hth_objects_shaped("FP32", wrong[i], &o), HTH_EINVAL, "is no shape");
    }
    assert_err(hth_objects_shaped("FP32", "999999999999999999,99", &o), HTH_ETOOBIG, "too large");
}

static json_t *sound(void)
{
    return json_pack("{s:[{s:s, s:s, s:s, s:[i,i]}, {s:s, s:s, s:s, s:[i]}]}", "tensors", "name",
                     "w", "id", ID, "datatype", "FP32", "shape", 64, 3, "name", "none", "id", ID,
                     "datatype", "UINT8", "shape", 0);
}

static void test_read(void **state)
{
    hth_objects objects;
    hth_content_object *again;
    uint64_t bytes;
    struct evbuffer *out = evbuffer_new();
    json_t *doc = sound();
    assert_ok(hth_objects_read(doc, true, &objects));
    json_decref(doc); // it is held
    assert_int_equal(objects.n, 2);
    assert_string_equal(objects.list[0].name, "w");
    assert_true(!objects.list[0].here && objects.list[1].here);
    assert_ok(hth_objects_write(&objects, out, &bytes));
    assert_int_equal(bytes, evbuffer_get_length(out));
    assert_ok(hth_content_list_read(evbuffer_pullup(out, -1), bytes, 2, &again));
    assert_string_equal(again[1].name, "none");
    assert_int_equal(again[0].bytes, 768);
    hth_free(again);
    hth_objects_fini(&objects);
    evbuffer_free(out);
}

static void refused(const char *text, const char *words)
{
    hth_objects objects;
    json_t *doc = json_loads(text, 0, NULL);
    assert_non_null(doc);
    assert_err(hth_objects_read(doc, true, &objects), HTH_EINVAL, words);
    assert_true(objects.list == NULL && objects.doc == NULL);
    json_decref(doc);
}

static void test_refused(void **state)
{
    hth_objects objects;
    assert_err(hth_objects_read(NULL, true, &objects), HTH_EINVAL, "not a JSON object");
    refused("[]", "not a JSON object");
    refused("{}", "'tensors'");
    refused("{\"tensors\":{}}", "'tensors'");
    refused("{\"tensors\":[7]}", "tensors[0]: an element is not an object");
    refused("{\"tensors\":[{\"id\":7}]}", "'id'");
    refused("{\"tensors\":[{\"id\":\"7\",\"datatype\":\"FP32\",\"shape\":[],\"name\":\"x\"}]}",
            "tensors[0]: '7' is no id");
    refused("{\"tensors\":[{\"id\":\"" ID "\",\"datatype\":\"FP32\",\"shape\":[]}]}", "'name'");
    refused("{\"tensors\":[{\"id\":\"" ID
            "\",\"datatype\":\"FP32\",\"shape\":[1.5],\"name\":\"x\"}]}",
            "'shape' has numbers from 0");
    refused("{\"tensors\":[{\"id\":\"" ID
            "\",\"datatype\":\"FP32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"name\":\"x\"}]}",
            "8 dimensions");
}

static hth_err read_once(void)
{
    hth_objects objects;
    struct evbuffer *out = evbuffer_new();
    uint64_t bytes;
    json_t *doc = sound();
    hth_err err = hth_objects_read(doc, true, &objects);
    if (err == HTH_OK) {
        err = hth_objects_write(&objects, out, &bytes);
        hth_objects_fini(&objects);
    }
    json_decref(doc);
    evbuffer_free(out);
    return err;
}

static void test_memory(void **state)
{
    FAULT_LOOP(read_once());
}

static void test_base64(void **state)
{
    static const char *const wrong[] = {
        "=", "A", "AA", "AAA", "A===", "AA=A", "AAA!", "AB==", "====A"};
    char data[5000], back[8000];
    size_t n;
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (char)(i * 7);
    }
    for (size_t bytes = 0; bytes <= sizeof data; bytes += bytes < 10 ? 1 : 499) {
        hth_text text = {.p = NULL};
        hth_base64_encode(&text, data, bytes);
        assert_true(hth_base64_decode(bytes > 0 ? text.p : "", text.n, back, &n));
        assert_int_equal(n, bytes);
        assert_memory_equal(back, data, bytes);
        hth_text_fini(&text);
    }
    assert_true(hth_base64_decode("aGVh\r\ncnRo", 10, back, &n));
    assert_true(n == 6 && memcmp(back, "hearth", 6) == 0);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        bool is = hth_base64_decode(wrong[i], strlen(wrong[i]), back, &n);
        assert_true(!is || strcmp(wrong[i], "AB==") == 0); // bits that are left over do not count
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_id),     cmocka_unit_test(test_shaped),
        cmocka_unit_test(test_read),   cmocka_unit_test(test_refused),
        cmocka_unit_test(test_memory), cmocka_unit_test(test_base64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
