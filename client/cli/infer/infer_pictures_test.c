// SPDX-License-Identifier: Apache-2.0
// What options and a model's metadata say of pictures: which of them counts, and what is wrong with
// them. tests/infer/pictures_test.py runs the command.
#include "base/test.h"
#include "client/cli/infer/infer_pictures.h"

#include <math.h>

static hth_err form(const char *options, const char *metadata, const char *input,
                    hth_picture_form *out)
{
    json_t *o = json_loads(options, 0, NULL), *m = json_loads(metadata, 0, NULL);
    json_t *i = json_loads(input, 0, NULL);
    assert_true(o != NULL && m != NULL && i != NULL);
    json_t *model = json_pack("{s:o}", "metadata", m);
    hth_err err = hth_infer_form(o, model, i, out);
    json_decref(o);
    json_decref(model);
    json_decref(i);
    return err;
}

#define FIXED "{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[-1,3,8,9]}"
#define OPEN  "{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[-1,-1,-1,3]}"
#define BYTES "{\"name\":\"x\",\"datatype\":\"UINT8\",\"shape\":[-1,1,-1,9]}"

static void test_values(void **state)
{
    static const struct {
        const char *options, *metadata;
        double scale, mean[3], std[3];
    } cases[] = {
        {"{}", "{}", 1 / 255.0, {0, 0, 0}, {1, 1, 1}},
        {"{}", "{\"IMAGE.nominalpixelrange\":\"NORMALIZED_1_1\"}", 2 / 255.0, {1, 1, 1}, {1, 1, 1}},
        {"{}",
         "{\"Image.NominalPixelRange\":\"NominalRange_16_235\"}",
         219 / 255.0,
         {-16, -16, -16},
         {1, 1, 1}},
        {"{\"scale\":\"0.5\"}",
         "{\"Image.NominalPixelRange\":\"Normalized_1_1\",\"hearth.scale\":\"3\"}",
         0.5,
         {1, 1, 1},
         {1, 1, 1}},
        {"{\"mean\":\"1,2,3\",\"std\":\"4\"}",
         "{\"hearth.scale\":\"1/128\",\"hearth.mean\":\"9\",\"hearth.std\":\"9\"}",
         1 / 128.0,
         {1, 2, 3},
         {4, 4, 4}},
        {"{}",
         "{\"hearth.mean\":\" [0.5, .25 1e0]\",\"hearth.std\":\"(2, 4, 8)\",\"mean\":\"7\"}",
         1 / 255.0,
         {0.5, 0.25, 1},
         {2, 4, 8}},
        {"{\"scale\":\" 1 / 128 \",\"mean\":\"[1,2,3,]\"}", "{}", 1 / 128.0, {1, 2, 3}, {1, 1, 1}},
        {"{\"scale\":\"1\",\"mean\":\"0\"}",
         "{\"Image.NominalPixelRange\":\"wide\"}",
         1,
         {0, 0, 0},
         {1, 1, 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hth_picture_form f;
        assert_ok(form(cases[i].options, cases[i].metadata, FIXED, &f));
        assert_true(f.scale == cases[i].scale);
        assert_memory_equal(f.mean, cases[i].mean, sizeof f.mean);
        assert_memory_equal(f.std, cases[i].std, sizeof f.std);
    }
}

static void test_sizes(void **state)
{
    static const struct {
        const char *options, *metadata, *input;
        int height, width;
    } cases[] = {
        {"{}", "{\"hearth.size\":\"4x5\",\"imgsz\":\"[6, 7]\"}", FIXED, 8, 9},
        {"{\"size\":\"8x9\"}", "{}", FIXED, 8, 9},
        {"{}", "{}", OPEN, 0, 0},
        {"{}", "{\"hearth.size\":\"4x5\",\"imgsz\":\"[6, 7]\"}", OPEN, 4, 5},
        {"{}", "{\"imgsz\":\"[6, 7]\"}", OPEN, 6, 7},
        {"{}", "{\"ImgSz\":\"640\"}", OPEN, 640, 640},
        {"{}", "{\"imgsz\":\"large\"}", OPEN, 0, 0},
        {"{}", "{\"imgsz\":\"[0, 7]\"}", OPEN, 0, 0},
        {"{\"size\":\"2x3\"}", "{\"imgsz\":\"[6, 7]\"}", OPEN, 2, 3},
        {"{\"size\":\"2x9\"}", "{}", BYTES, 2, 9},
        {"{}", "{}", BYTES, 0, 9},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hth_picture_form f;
        assert_ok(form(cases[i].options, cases[i].metadata, cases[i].input, &f));
        assert_int_equal(f.height, cases[i].height);
        assert_int_equal(f.width, cases[i].width);
    }
}

static void test_colours(void **state)
{
    hth_picture_form f;
    assert_ok(form("{}", "{\"image.bitmappixelformat\":\"BGRA8\"}", FIXED, &f));
    assert_true(f.bgr);
    assert_ok(form("{\"bgr\":\"off\"}", "{\"image.bitmappixelformat\":\"BGRA8\"}", FIXED, &f));
    assert_false(f.bgr);
    assert_ok(form("{\"bgr\":\"on\"}", "{\"Image.BitmapPixelFormat\":\"Rgb8\"}", FIXED, &f));
    assert_true(f.bgr);
    assert_ok(form("{\"bgr\":\"on\"}", "{}", BYTES, &f)); // gray
    assert_false(f.bgr);
    assert_ok(form("{}", "{\"Image.ColorSpaceGamma\":\"SRGB\"}", FIXED, &f));
}

static void test_wrong(void **state)
{
    static const struct {
        const char *options, *metadata, *input, *says;
    } cases[] = {
        {"{\"scale\":\"0\"}", "{}", FIXED, "--scale '0' is no number like 1/255"},
        {"{\"scale\":\"1/\"}", "{}", FIXED, "--scale '1/' is no number"},
        {"{\"scale\":\"1/0\"}", "{}", FIXED, "--scale '1/0' is no number"},
        {"{\"scale\":\"1e999\"}", "{}", FIXED, "is no number"},
        {"{}", "{\"hearth.scale\":\"big\"}", FIXED, "the model's hearth.scale 'big' is no number"},
        {"{\"mean\":\"1,2\"}", "{}", FIXED, "--mean has 2 values, but the input has 3 channels"},
        {"{\"mean\":\"nan\"}", "{}", FIXED, "--mean 'nan' is not a list"},
        {"{\"mean\":\"1,2,3,4\"}", "{}", FIXED, "a list of up to 3 numbers"},
        {"{\"mean\":\"1,,3\"}", "{}", FIXED, "--mean '1,,3' is not a list"},
        {"{\"std\":\"1,0,1\"}", "{}", FIXED, "--std has a 0"},
        {"{}", "{\"hearth.std\":\"0\"}", FIXED, "the model's hearth.std has a 0"},
        {"{}", "{\"hearth.std\":\"[]\"}", FIXED, "the model's hearth.std has no values"},
        {"{}", "{\"Image.NominalPixelRange\":\"x\"}", FIXED, "NominalPixelRange 'x' is unknown"},
        {"{\"scale\":\"1\"}", "{\"Image.NominalPixelRange\":\"x\"}", FIXED, "is unknown"},
        {"{\"scale\":\"1\"}", "{}", BYTES, "--scale is for floats"},
        {"{\"std\":\"1\"}", "{}", BYTES, "--std is for floats"},
        {"{\"size\":\"8\"}", "{}", OPEN, "--size: '8' is not a size"},
        {"{}", "{\"hearth.size\":\"a\"}", OPEN, "the model's hearth.size: 'a' is not a size"},
        {"{\"size\":\"8x8\"}", "{}", FIXED, "cannot have 8x8 pixels (--size)"},
        {"{\"bgr\":\"maybe\"}", "{}", FIXED, "--bgr is on or off, not 'maybe'"},
        {"{}", "{}", "{\"datatype\":\"BYTES\",\"shape\":[-1,3,8,8]}", "FP32, FP16 or UINT8"},
        {"{}", "{}", "{\"datatype\":\"FP32\",\"shape\":[1,1,1,1,1,1,1,1,1]}", "4 dimensions"},
        {"{}", "{}", "{}", "FP32, FP16 or UINT8"},
    };
    hth_picture_form f;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_err(form(cases[i].options, cases[i].metadata, cases[i].input, &f), HTH_EINVAL,
                   cases[i].says);
    }
    assert_err(form("{}", "{\"image.colorspacegamma\":\"LINEAR\"}", FIXED, &f), HTH_ENOTSUP,
               "linear colours");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_sizes),
                                       cmocka_unit_test(test_colours),
                                       cmocka_unit_test(test_wrong)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
