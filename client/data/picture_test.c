// SPDX-License-Identifier: Apache-2.0
// Pictures as samples, against what numpy makes of the pixels that Pillow has read
// (tests/tools/make_datasets.py). tests/infer/pictures_test.py has more of it, through the command.
#include "base/file.h"
#include "base/test.h"
#include "client/data/picture.h"
#include "client/dtype.h"
#include "client/npy.h"

#include <math.h>
#include <sys/stat.h>

#define DATA "tests/data/datasets/"

// ---- what an input is like

static void test_form(void **state)
{
    static const struct {
        int dtype, rank;
        int64_t shape[5];
        bool batched, last;
        int64_t batch;
        int channels, height, width;
    } cases[] = {
        {HEARTH_F32, 4, {-1, 3, 224, 200}, true, false, -1, 3, 224, 200},
        {HEARTH_F16, 4, {8, 1, 28, 28}, true, false, 8, 1, 28, 28},
        {HEARTH_U8, 4, {-1, 224, 200, 3}, true, true, -1, 3, 224, 200},
        {HEARTH_U8, 4, {-1, -1, -1, 1}, true, true, -1, 1, 0, 0},
        {HEARTH_F32, 4, {-1, 3, -1, 64}, true, false, -1, 3, 0, 64},
        {HEARTH_F32, 3, {3, 8, 9}, false, false, 1, 3, 8, 9},
        {HEARTH_F32, 3, {8, 9, 3}, false, true, 1, 3, 8, 9},
        {HEARTH_F32, 4, {2, 3, 9, 3}, true, false, 2, 3, 9, 3}, // either; ONNX's own order counts
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hth_picture_form f;
        assert_ok(hth_picture_form_of(cases[i].dtype, cases[i].rank, cases[i].shape, &f));
        assert_int_equal(f.dtype, cases[i].dtype);
        assert_int_equal(f.batched, cases[i].batched);
        assert_int_equal(f.channels_last, cases[i].last);
        assert_int_equal(f.batch, cases[i].batch);
        assert_int_equal(f.channels, cases[i].channels);
        assert_int_equal(f.height, cases[i].height);
        assert_int_equal(f.width, cases[i].width);
        assert_true(f.scale == 1 && f.mean[2] == 0 && f.std[2] == 1 && !f.bgr);
    }
}

static void test_no_form(void **state)
{
    static const struct {
        int dtype, rank;
        int64_t shape[5];
        const char *says;
    } cases[] = {
        {HEARTH_I32, 4, {1, 3, 8, 8}, "FP32, FP16 or UINT8"},
        {-1, 4, {1, 3, 8, 8}, "FP32, FP16 or UINT8"},
        {HEARTH_F32, 2, {1, 64}, "4 dimensions, or 3"},
        {HEARTH_F32, 5, {1, 3, 8, 8, 8}, "4 dimensions, or 3"},
        {HEARTH_F32, 4, {1, 4, 8, 8}, "1 or 3 channels"},
        {HEARTH_F32, 4, {-1, -1, -1, -1}, "1 or 3 channels"},
        {HEARTH_F32, 4, {1, 3, 32769, 8}, "from 1 to 32768 pixels"},
        {HEARTH_F32, 4, {1, 3, 8, 0}, "from 1 to 32768 pixels"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hth_picture_form f;
        assert_err(hth_picture_form_of(cases[i].dtype, cases[i].rank, cases[i].shape, &f),
                   HTH_EINVAL, cases[i].says);
    }
}

static void test_check(void **state)
{
    static const int64_t shape[] = {-1, 3, 10, 12};
    hth_picture_form f;
    size_t bytes;
    assert_ok(hth_picture_form_of(HEARTH_F16, 4, shape, &f));
    assert_ok(hth_picture_check(&f, &bytes));
    assert_int_equal(bytes, 3 * 10 * 12 * 2);
    f.scale = 257;
    assert_err(hth_picture_check(&f, &bytes), HTH_EINVAL, "values from 0 to 65535");
    f.dtype = HEARTH_F32;
    assert_ok(hth_picture_check(&f, &bytes));
    f.std[1] = 1e-300;
    assert_err(hth_picture_check(&f, &bytes), HTH_EINVAL, "make values");
    f.std[1] = 1;
    f.width = 1 << 20;
    assert_err(hth_picture_check(&f, &bytes), HTH_ETOOBIG, "pixels");
}

// Every binary16 comes back, and what is between two of them goes to the nearer, or the even one.
static void test_half(void **state)
{
    for (uint32_t h = 0; h < 0x7c00; h++) {
        uint16_t low = (uint16_t)h, high = (uint16_t)(h + 1);
        double a = hth_dtype_value(HEARTH_F16, &low, 0);
        double b = h + 1 < 0x7c00 ? hth_dtype_value(HEARTH_F16, &high, 0) : 65536;
        assert_int_equal(hth_dtype_half(a), h);
        assert_int_equal(hth_dtype_half(-a), h | 0x8000);
        assert_int_equal(hth_dtype_half((a + b) / 2), h % 2 == 0 ? h : h + 1);
        assert_int_equal(hth_dtype_half(nextafter((a + b) / 2, 0)), h);
        assert_int_equal(hth_dtype_half(nextafter((a + b) / 2, 1e9)), h + 1);
    }
    assert_int_equal(hth_dtype_half(INFINITY), 0x7c00);
    assert_int_equal(hth_dtype_half(-1e300), 0xfc00);
    assert_int_equal(hth_dtype_half(NAN), 0x7e00);
}

// ---- samples

typedef struct file {
    void *data;
    size_t bytes;
} file;

static file load(const char *path)
{
    file f;
    assert_ok(hth_file_load(path, 1 << 20, &f.data, &f.bytes));
    return f;
}

static void put(const hth_picture_form *form, const char *path, void *out)
{
    file f = load(path);
    assert_ok(hth_picture_put(form, f.data, f.bytes, out));
    hth_free(f.data);
}

// Sample k of images.x.npy, (3, 6, 9), in each type and layout.
static void check_values(const char *path, const uint8_t *pixels)
{
    static const int64_t first[] = {-1, 3, 6, 9}, last[] = {-1, 6, 9, 3};
    float single[162], single_last[162];
    uint8_t bytes[162];
    uint16_t half[162];
    hth_picture_form f, u, l, h;
    assert_ok(hth_picture_form_of(HEARTH_F32, 4, first, &f));
    f.scale = 1 / 255.0;
    f.mean[0] = 0.485;
    f.std[2] = 0.25;
    l = h = f;
    assert_ok(hth_picture_form_of(HEARTH_U8, 4, first, &u));
    u.bgr = true;
    l.channels_last = true;
    h.dtype = HEARTH_F16;
    put(&f, path, single);
    put(&l, path, single_last);
    put(&h, path, half);
    put(&u, path, bytes);
    assert_ok(hth_picture_form_of(HEARTH_F32, 4, last, &l));
    assert_true(l.channels_last);
    for (int c = 0; c < 3; c++) {
        for (int i = 0; i < 54; i++) {
            int at = c * 54 + i;
            double v = (pixels[at] * f.scale - f.mean[c]) / f.std[c];
            assert_true(single[at] == (float)v && single_last[3 * i + c] == (float)v);
            assert_int_equal(half[at], hth_dtype_half(v));
            assert_int_equal(bytes[(2 - c) * 54 + i], pixels[at]);
        }
    }
}

static void test_values(void **state)
{
    static const char *const files[] = {
        "cat/a-rgb.png",   "cat/b-palette.png",  "cat/c-gray.png",         "cat/d-bits.png",
        "dog/a-alpha.png", "dog/b-baseline.jpg", "dog/c-progressive.JPEG", "dog/d-gray.jpg"};
    hearth_tensor want;
    char path[200];
    assert_ok(hth_npy_read(DATA "images.x.npy", &want));
    for (int i = 0; i < 8; i++) {
        snprintf(path, sizeof path, DATA "images/%s", files[i]);
        check_values(path, (const uint8_t *)want.data + (size_t)i * 162);
    }
    hth_free(want.data);
}

static void test_gray(void **state)
{
    static const int64_t shape[] = {-1, 1, 6, 9};
    hth_picture_form f;
    hearth_tensor want;
    uint8_t got[54];
    assert_ok(hth_npy_read(DATA "images.x.npy", &want));
    const uint8_t *p = want.data;
    assert_ok(hth_picture_form_of(HEARTH_U8, 4, shape, &f));
    put(&f, DATA "images/cat/a-rgb.png", got);
    for (int i = 0; i < 54; i++) {
        double luma = 0.299 * p[i] + 0.587 * p[54 + i] + 0.114 * p[108 + i];
        assert_true(fabs(got[i] - luma) < 0.51); // weights of 16 bits
    }
    put(&f, DATA "images/cat/c-gray.png", got);
    assert_memory_equal(got, p + 2 * 162, 54);
    hth_free(want.data);
}

static void test_sizes(void **state)
{
    static const int64_t shape[] = {-1, 1, 10, 12};
    static const char *const files[] = {DATA "sizes/one/a.png", DATA "sizes/two/a.png"};
    hth_picture_form f;
    hearth_tensor want;
    uint8_t got[120];
    int height, width;
    assert_ok(hth_npy_read(DATA "sizes.x.npy", &want));
    assert_ok(hth_picture_form_of(HEARTH_U8, 4, shape, &f));
    for (int i = 0; i < 2; i++) {
        put(&f, files[i], got);
        assert_memory_equal(got, (const uint8_t *)want.data + i * 120, 120);
    }
    hth_free(want.data);
    file two = load(files[1]);
    assert_ok(hth_picture_look(two.data, two.bytes, &height, &width));
    assert_true(height == 23 && width == 31);
    hth_free(two.data);
}

// A file that is cut anywhere is refused, or has all its pixels.
static void test_damaged(void **state)
{
    static const char *const files[] = {DATA "images/cat/a-rgb.png",
                                        DATA "images/dog/b-baseline.jpg",
                                        DATA "images/dog/c-progressive.JPEG"};
    static const int64_t shape[] = {-1, 1, 4, 5};
    hth_picture_form f;
    assert_ok(hth_picture_form_of(HEARTH_F32, 4, shape, &f));
    for (int i = 0; i < 3; i++) {
        file whole = load(files[i]);
        float want[20], got[20];
        assert_ok(hth_picture_put(&f, whole.data, whole.bytes, want));
        for (size_t n = 0; n < whole.bytes; n++) {
            void *cut = hth_memdup(whole.data, n);
            int64_t live = hth_alloc_live();
            hth_err err = hth_picture_put(&f, cut, n, got);
            assert_true(err == HTH_ECORRUPT || err == HTH_EINVAL ||
                        (err == HTH_OK && memcmp(want, got, sizeof want) == 0));
            assert_int_equal(hth_alloc_live(), live);
            hth_free(cut);
        }
        FAULT_LOOP(hth_picture_put(&f, whole.data, whole.bytes, got));
        hth_free(whole.data);
    }
}

// ---- folders

static void test_folders(void **state)
{
    char dir[] = "/tmp/hearth-picture-XXXXXX";
    char **names;
    size_t n;
    assert_ok(hth_picture_files(DATA "images/dog", &names, &n));
    assert_int_equal(n, 4);
    assert_string_equal(names[0], "a-alpha.png");
    assert_string_equal(names[2], "c-progressive.JPEG");
    hth_picture_files_free(names, n);
    assert_err(hth_picture_files(DATA "images", &names, &n), HTH_EINVAL,
               "'" DATA "images/cat' is no picture");
    assert_err(hth_picture_files(DATA "nothing", &names, &n), HTH_ENOENT, DATA "nothing");
    assert_non_null(mkdtemp(dir));
    assert_err(hth_picture_files(dir, &names, &n), HTH_EINVAL, "is empty");
    assert_int_equal(n, 0);
    assert_int_equal(test_remove(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_form),    cmocka_unit_test(test_no_form),
        cmocka_unit_test(test_check),   cmocka_unit_test(test_half),
        cmocka_unit_test(test_values),  cmocka_unit_test(test_gray),
        cmocka_unit_test(test_sizes),   cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
