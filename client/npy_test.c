// SPDX-License-Identifier: Apache-2.0
// .npy files against headers as numpy writes them, byte for byte, and every cut and many damages of
// one; and how files appear whole.
#include "client/npy.h"

#include "base/alloc.h"
#include "base/file.h"
#include "client/dtype.h"
#include "client/atomic_file.h"
#include "client/safetensors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

// numpy.save of numpy.arange(6, dtype='<i2').reshape(2, 3), numpy 1.26: 128 bytes of header.
#define NPY_TEXT "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }"
static char path[] = "/tmp/hearth-npy-XXXXXX";

static size_t npy_file(uint8_t *out, const char *text, size_t header, const void *data,
                       size_t bytes)
{
    memcpy(out, "\x93NUMPY\x01\x00", 8);
    out[8] = (uint8_t)(header - 10);
    out[9] = (uint8_t)((header - 10) >> 8);
    memset(out + 10, ' ', header - 11);
    memcpy(out + 10, text, strlen(text));
    out[header - 1] = '\n';
    memcpy(out + header, data, bytes);
    return header + bytes;
}

static hth_err parse(const char *text)
{
    uint8_t file[600];
    hearth_tensor t;
    bool fortran;
    size_t n = npy_file(file, text, 128, "0123456789abcdef", 16);
    return hth_npy_parse(file, n, &t, &fortran);
}

static void test_parse(void **state)
{
    uint8_t file[256];
    int16_t x[6] = {0, 1, 2, 3, 4, 5};
    size_t n = npy_file(file, NPY_TEXT, 128, x, 12);
    hearth_tensor t;
    bool fortran;
    assert_int_equal(hth_npy_parse(file, n, &t, &fortran), HTH_OK);
    assert_int_equal(t.dtype, HEARTH_I16);
    assert_int_equal(t.rank, 2);
    assert_int_equal(t.shape[0], 2);
    assert_int_equal(t.shape[1], 3);
    assert_int_equal(t.bytes, 12);
    assert_false(fortran);
    assert_memory_equal(t.data, x, 12);
    for (size_t cut = 0; cut < n; cut++) {
        assert_int_equal(hth_npy_parse(file, cut, &t, &fortran), HTH_ECORRUPT);
    }
}

static void test_headers(void **state)
{
    assert_int_equal(parse("{'descr': '<f4', 'fortran_order': False, 'shape': ()}"), HTH_OK);
    assert_int_equal(parse("{\"shape\":(4,),\"descr\":\"<f4\",\"fortran_order\":True,}"), HTH_OK);
    assert_int_equal(parse("{'descr': '|b1', 'fortran_order': False, 'shape': (2, 0, 3), }"),
                     HTH_OK);
    assert_int_equal(parse("{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }"),
                     HTH_ENOTSUP);
    assert_int_equal(parse("{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }"),
                     HTH_ENOTSUP);
    static const char *const bad[] = {
        "",
        "{",
        "{}",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2 3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (5,)}", // 20 bytes, 16 are there
        "{'descr': '<f4', 'fortran_order': False, 'more': 1, 'shape': (1,)}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(parse(bad[i]), HTH_ECORRUPT);
    }
    assert_int_equal(
        parse("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}"),
        HTH_ETOOBIG);
}

static void test_fortran(void **state)
{
    uint8_t file[512];
    // numpy.asfortranarray(numpy.arange(24, dtype='|u1').reshape(2, 3, 4)), bytes in memory order
    uint8_t f[24] = {0, 12, 4, 16, 8,  20, 1, 13, 5, 17, 9,  21,
                     2, 14, 6, 18, 10, 22, 3, 15, 7, 19, 11, 23};
    size_t n =
        npy_file(file, "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3, 4), }", 128, f, 24);
    hearth_tensor t;
    assert_int_equal(hth_atomic_file_write(path, &(hth_atomic_file_piece){file, n}, 1), HTH_OK);
    assert_int_equal(hth_npy_read(path, &t), HTH_OK);
    for (int i = 0; i < 24; i++) {
        assert_int_equal(((uint8_t *)t.data)[i], i);
    }
    hth_free(t.data);
}

static void test_write(void **state)
{
    int16_t x[6] = {0, 1, 2, 3, 4, 5};
    hearth_tensor t = {.dtype = HEARTH_I16, .rank = 2, .shape = {2, 3}, .data = x, .bytes = 12},
                  back;
    uint8_t want[256];
    void *got;
    size_t bytes;
    assert_int_equal(hth_npy_write(path, &t), HTH_OK);
    assert_int_equal(hth_file_load(path, 4096, &got, &bytes), HTH_OK);
    assert_int_equal(bytes, npy_file(want, NPY_TEXT, 128, x, 12));
    assert_memory_equal(got, want, bytes);
    hth_free(got);
    static const int all[] = {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        t = (hearth_tensor){.dtype = (hearth_dtype)all[i], .rank = 1, .shape = {1}, .data = x};
        t.bytes = hth_dtype_names_of(all[i])->bytes;
        assert_int_equal(hth_npy_write(path, &t), HTH_OK);
        assert_int_equal(hth_npy_read(path, &back), HTH_OK);
        assert_int_equal(back.dtype, all[i]);
        assert_int_equal(back.rank, 1);
        assert_memory_equal(back.data, x, t.bytes);
        assert_int_equal((uintptr_t)back.data % 64, 0);
        hth_free(back.data);
    }
    assert_int_equal(hth_npy_write("/nonexistent/x.npy", &t), HTH_ENOENT);
    assert_int_equal(hth_npy_read("/nonexistent/x.npy", &back), HTH_ENOENT);
}

static void test_values(void **state)
{
    static const uint16_t half[] = {0x3C00, 0xC500, 0x0001, 0x7BFF, 0x7C00}; // IEEE 754 binary16
    assert_float_equal(hth_dtype_value(HEARTH_F16, half, 0), 1, 0);
    assert_float_equal(hth_dtype_value(HEARTH_F16, half, 1), -5, 0);
    assert_float_equal(hth_dtype_value(HEARTH_F16, half, 2), 5.9604644775390625e-8, 0);
    assert_float_equal(hth_dtype_value(HEARTH_F16, half, 3), 65504, 0);
    assert_true(isinf(hth_dtype_value(HEARTH_F16, half, 4)));
    static const uint16_t bf16[] = {0x3F80, 0xC0A0};
    assert_float_equal(hth_dtype_value(HEARTH_BF16, bf16, 1), -5, 0);
    int64_t i64[] = {1, -9};
    assert_float_equal(hth_dtype_value(HEARTH_I64, i64, 1), -9, 0);
}

static void test_safetensors(void **state)
{
    float a[2] = {1, 2};
    uint8_t b[3] = {7, 8, 9};
    hearth_tensor t[2] = {
        {.name = "a.w", .dtype = HEARTH_F32, .rank = 2, .shape = {1, 2}, .data = a, .bytes = 8},
        {.name = "b\"", .dtype = HEARTH_U8, .rank = 1, .shape = {3}, .data = b, .bytes = 3}};
    static const char head[] =
        "{\"a.w\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
        "\"b\\\"\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]}}";
    size_t padded = (sizeof head - 1 + 7) / 8 * 8, bytes;
    uint8_t *got;
    assert_int_equal(hth_safetensors_write(path, t, 2), HTH_OK);
    assert_int_equal(hth_file_load(path, 4096, (void **)&got, &bytes), HTH_OK);
    assert_int_equal(bytes, 8 + padded + 11);
    assert_int_equal(got[0], padded);
    assert_memory_equal(got + 8, head, sizeof head - 1);
    assert_memory_equal(got + 8 + padded, a, 8);
    assert_memory_equal(got + 8 + padded + 8, b, 3);
    hth_free(got);
    t[1].name = "a.w";
    assert_int_equal(hth_safetensors_write(path, t, 2), HTH_EINVAL);
}

// What killed processes with this one's id have left is in nobody's way, and stays.
static void test_left_behind(void **state)
{
    enum { LEFT = 20 };
    hth_atomic_file first;
    char left[LEFT][80];
    void *got;
    size_t bytes;
    unsigned serial;
    assert_int_equal(hth_atomic_file_begin(path, &first), HTH_OK);
    assert_int_equal(sscanf(first.tmp + strlen(path), ".%*d.%u.tmp", &serial), 1);
    for (unsigned i = 0; i < LEFT; i++) {
        snprintf(left[i], sizeof left[i], "%s.%d.%u.tmp", path, (int)getpid(), serial + 1 + i);
        FILE *f = fopen(left[i], "wx");
        assert_non_null(f);
        fclose(f);
    }
    assert_int_equal(hth_atomic_file_write(path, &(hth_atomic_file_piece){"new", 3}, 1), HTH_OK);
    assert_int_equal(hth_file_load(path, 4096, &got, &bytes), HTH_OK);
    assert_int_equal(bytes, 3);
    assert_memory_equal(got, "new", 3);
    hth_free(got);
    for (int i = 0; i < LEFT; i++) {
        assert_int_equal(unlink(left[i]), 0);
    }
    assert_int_equal(hth_atomic_file_end(&first, false), HTH_OK);
}

static int setup(void **state)
{
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int teardown(void **state)
{
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),       cmocka_unit_test(test_headers),
        cmocka_unit_test(test_fortran),     cmocka_unit_test(test_write),
        cmocka_unit_test(test_values),      cmocka_unit_test(test_safetensors),
        cmocka_unit_test(test_left_behind),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
