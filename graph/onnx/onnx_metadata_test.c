// SPDX-License-Identifier: Apache-2.0
// The model's metadata: kept by the walk, read from the skeleton, written by the export.
#include "base/test.h"
#include "graph/onnx/onnx.h"
#include "graph/onnx/onnx_wire.h"

typedef struct seen {
    char text[300];
    size_t bytes; // of all values
    int n;
} seen;

static void see(void *ctx, hth_onnx_text key, hth_onnx_text value)
{
    seen *s = ctx;
    size_t at = strlen(s->text);
    snprintf(s->text + at, sizeof s->text - at, "%.*s=%.*s;", (int)key.bytes, key.text,
             value.bytes > 20 ? 20 : (int)value.bytes, value.text);
    s->bytes += value.bytes;
    s->n++;
}

static hth_span span(const char *text)
{
    return (hth_span){(const uint8_t *)text, strlen(text)};
}

static void put_entry(hth_wire_buffer *model, hth_span key, hth_span value)
{
    hth_wire_buffer entry = {0};
    hth_wire_put_bytes(&entry, 1, key);
    hth_wire_put_bytes(&entry, 2, value);
    hth_wire_put_bytes(model, 14, (hth_span){entry.data, entry.bytes});
    hth_free(entry.data);
}

static hth_wire_buffer begin(void)
{
    hth_wire_buffer model = {0};
    hth_wire_put_varint(&model, 1, 8);
    put_entry(&model, span("before"), span("the graph"));
    hth_wire_put_bytes(&model, 7, (hth_span){(const uint8_t *)"", 0});
    return model;
}

static seen look(const hth_wire_buffer *model, size_t *skeleton_bytes)
{
    seen s = {.n = 0};
    hth_onnx_file *f;
    assert_ok(hth_onnx_open_bytes(model->data, model->bytes, NULL, &f));
    const void *skeleton = hth_onnx_skeleton(f, skeleton_bytes);
    hth_onnx_metadata(skeleton, *skeleton_bytes, see, &s);
    hth_onnx_close(f);
    return s;
}

static void test_entries(void **state)
{
    hth_wire_buffer m = begin();
    size_t bytes;
    put_entry(&m, span("names"), span("{0: 'cat'}"));
    put_entry(&m, span("names"), span("again"));
    put_entry(&m, span(""), span(""));
    hth_wire_put_bytes(&m, 6, span("a documentation that is left out"));
    seen s = look(&m, &bytes);
    assert_string_equal(s.text, "before=the graph;names={0: 'cat'};names=again;=;");
    assert_int_equal(s.n, 4);
    assert_true(bytes < m.bytes);
    hth_free(m.data);
}

// Entries that are none are passed by, and so is a skeleton's damaged end.
static void test_damaged(void **state)
{
    hth_wire_buffer m = begin();
    size_t bytes;
    hth_wire_put_varint(&m, 14, 5);
    hth_wire_put_bytes(&m, 14, span("\x0a\x05"));          // a key that is cut
    hth_wire_put_bytes(&m, 14, span("\x0a\x01k\x12\x05")); // a value that is cut
    hth_wire_put_bytes(&m, 14, span("\x12\x01v"));         // no key
    hth_wire_put_bytes(&m, 14, span("\x0a\x01k"));         // no value: an empty one
    hth_wire_put_bytes(&m, 14, span("\x08\x07"));          // a key that is a number
    seen s = look(&m, &bytes);
    assert_string_equal(s.text, "before=the graph;k=;");
    for (size_t n = 0; n <= m.bytes; n++) {
        uint8_t *cut = hth_memdup(m.data, n);
        seen some = {.n = 0};
        hth_onnx_metadata(cut, n, see, &some);
        assert_true(some.n <= 2);
        hth_free(cut);
    }
    hth_free(m.data);
}

// What has no room is left out; what comes later and has, is not.
static void test_limit(void **state)
{
    hth_wire_buffer m = begin();
    size_t bytes, half = HTH_ONNX_METADATA / 2;
    char *large = malloc(2 * half);
    memset(large, 'x', 2 * half);
    put_entry(&m, span("half"), (hth_span){(uint8_t *)large, half});
    put_entry(&m, span("more"), (hth_span){(uint8_t *)large, half});
    put_entry(&m, span("all"), (hth_span){(uint8_t *)large, 2 * half});
    put_entry(&m, span("last"), span("has room"));
    seen s = look(&m, &bytes);
    assert_int_equal(s.n, 3);
    assert_non_null(strstr(s.text, "half=xxx"));
    assert_non_null(strstr(s.text, "last=has room;"));
    assert_true(bytes > half && bytes < HTH_ONNX_METADATA);
    free(large);
    hth_free(m.data);
}

// ---- and out again

typedef struct written {
    uint8_t data[400];
    size_t n;
} written;

static hth_err no_read(void *ctx, int i, uint64_t at, void *dst, size_t n)
{
    return hth_fail(HTH_EIO, "there are no tensors");
}

static hth_err write_it(void *ctx, const void *data, size_t n)
{
    written *w = ctx;
    assert_true(n <= sizeof w->data - w->n);
    memcpy(w->data + w->n, data, n);
    w->n += n;
    return HTH_OK;
}

static void test_export(void **state)
{
    hth_wire_buffer m = begin();
    hth_onnx_file *f, *again;
    size_t n, k;
    put_entry(&m, span("names"), span("a,b"));
    assert_ok(hth_onnx_open_bytes(m.data, m.bytes, NULL, &f));
    const void *a = hth_onnx_skeleton(f, &n);
    for (int inference = 0; inference < 2; inference++) {
        written w = {.n = 0};
        assert_ok(hth_onnx_export_write(&(hth_onnx_export){.skeleton = a,
                                                           .skeleton_bytes = n,
                                                           .inference = inference,
                                                           .read = no_read,
                                                           .write = write_it,
                                                           .ctx = &w}));
        assert_ok(hth_onnx_open_bytes(w.data, w.n, NULL, &again));
        const void *b = hth_onnx_skeleton(again, &k);
        assert_int_equal(n, k);
        assert_memory_equal(a, b, n);
        hth_onnx_close(again);
    }
    hth_onnx_close(f);
    hth_free(m.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_entries),
                                       cmocka_unit_test(test_damaged), cmocka_unit_test(test_limit),
                                       cmocka_unit_test(test_export)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
