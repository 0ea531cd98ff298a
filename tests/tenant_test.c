// SPDX-License-Identifier: Apache-2.0
// What one model leaves in the device's memory is in no result of another. Each model of the tests'
// data is run in an engine whose memory nobody has used, and again behind a run that has filled the
// arena with enormous numbers (images of them through a network): the bits are the same.
#include "base/settings.h"
#include "base/test.h"
#include "client/dtype.h"
#include "client/hearth.h"
#include "graph/tensor.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>

#define MODELS 64
#define INPUTS 8
#define IMAGES 256

static char dir[] = "/tmp/hearth-tenant-XXXXXX";

typedef struct outputs {
    hearth_tensor *t; // NULL: the model does not run with made-up inputs
    int n;
} outputs;

static hearth *engine_open(const char *store)
{
    char path[96];
    hearth *h;
    snprintf(path, sizeof path, "%s/%s", dir, store);
    const hearth_options o = {.store = path, .device = "cpu:mem=64MiB,threads=1"};
    if (hearth_open("inproc://", &o, &h) != HEARTH_OK) {
        fail_msg("%s", hearth_error());
    }
    return h;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_model(const struct dirent *e)
{
    const char *dot = strrchr(e->d_name, '.');
    return dot != NULL && strcmp(dot, ".onnx") == 0;
}

// import imports all models of a folder; what cannot be is left out.
static int import(hearth *h, const char *folder, char (*name)[80], int n)
{
    struct dirent **list;
    int found = scandir(folder, &list, is_model, by_name);
    assert_true(found > 0);
    for (int i = 0; i < found; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", folder, list[i]->d_name);
        assert_true(n < MODELS);
        snprintf(name[n], sizeof name[n], "%.60s", list[i]->d_name);
        n += hearth_import(h, name[n], path, -1, NULL, NULL, NULL) == HEARTH_OK;
        free(list[i]);
    }
    free(list);
    return n;
}

static void fill(hearth_tensor *tensor)
{
    size_t size = tensor->bytes;
    for (int d = 0; d < tensor->rank; d++) {
        size /= tensor->shape[d] > 0 ? (size_t)tensor->shape[d] : 1;
    }
    for (size_t i = 0; i < tensor->bytes / (size > 0 ? size : 1); i++) {
        float f = (float)((i * 2654435761u) % 1000) / 500 - 1;
        if (tensor->dtype == HEARTH_F32) {
            memcpy((char *)tensor->data + 4 * i, &f, 4);
        } else { // of any other type a small number: of integers an index that exists
            memset((char *)tensor->data + size * i, 0, size);
        }
    }
}

static hearth_dtype dtype_of(const char *name)
{
    int d = HEARTH_F32;
    while (d < HEARTH_BF16 && strcmp(hth_dtype_name((hth_dtype)d), name) != 0) {
        d++;
    }
    return (hearth_dtype)d;
}

// inputs_of makes tensors for a model; an open dimension is 2. Their number, or -1.
static int inputs_of(hearth *h, const char *model, hearth_tensor *tensor, json_t **doc)
{
    char *json, what[100];
    size_t i, d;
    json_t *in, *v;
    snprintf(what, sizeof what, "model %s", model);
    if (hearth_query(h, what, NULL, NULL, NULL, &json) != HEARTH_OK) {
        return -1;
    }
    *doc = json_loads(json, 0, NULL);
    hearth_free(json);
    const json_t *list = json_object_get(*doc, "inputs");
    json_array_foreach(list, i, in)
    {
        assert_true(i < INPUTS);
        const char *type = json_string_value(json_object_get(in, "datatype"));
        uint64_t bytes;
        tensor[i] = (hearth_tensor){.name = json_string_value(json_object_get(in, "name")),
                                    .dtype = dtype_of(type),
                                    .rank = (int)json_array_size(json_object_get(in, "shape"))};
        json_array_foreach(json_object_get(in, "shape"), d, v)
        {
            tensor[i].shape[d] = json_integer_value(v) < 0 ? 2 : json_integer_value(v);
        }
        assert_ok(
            hth_dtype_bytes_of((int)tensor[i].dtype, tensor[i].rank, tensor[i].shape, &bytes));
        tensor[i].bytes = bytes;
        tensor[i].data = malloc(bytes + 1);
        fill(&tensor[i]);
    }
    return (int)json_array_size(list);
}

static outputs run(hearth *h, const char *model)
{
    hearth_tensor t[INPUTS];
    json_t *doc = NULL;
    outputs out = {NULL, 0};
    int n = inputs_of(h, model, t, &doc);
    if (n >= 0 && hearth_infer(h, model, t, n, &out.t, &out.n) != HEARTH_OK) {
        out.t = NULL;
    }
    for (int i = 0; i < n; i++) {
        free(t[i].data);
    }
    json_decref(doc);
    return out;
}

// haunt fills the arena with enormous numbers, by a model of its own: it is asked so often that its
// algorithms are measured, and other batches of it then compute other last bits.
static void haunt(hearth *h)
{
    size_t n = (size_t)IMAGES * 64;
    float *image = malloc(n * sizeof *image);
    for (size_t i = 0; i < n; i++) {
        image[i] = 1e30F;
    }
    hearth_tensor x = {.dtype = HEARTH_F32,
                       .rank = 4,
                       .shape = {IMAGES, 1, 8, 8},
                       .data = image,
                       .bytes = n * sizeof *image},
                  *y;
    int n_out;
    if (hearth_infer(h, "haunt", &x, 1, &y, &n_out) != HEARTH_OK) {
        fail_msg("%s", hearth_error());
    }
    assert_true(fabsf(((const float *)y[0].data)[0]) > 1e25F);
    hearth_tensors_free(y, n_out);
    free(image);
}

static int compare(const outputs *fresh, const outputs *again, const char *name)
{
    if (fresh->t == NULL) {
        assert_null(again->t);
        return 0;
    }
    assert_int_equal(fresh->n, again->n);
    for (int o = 0; o < fresh->n; o++) {
        assert_int_equal(fresh->t[o].bytes, again->t[o].bytes);
        if (memcmp(fresh->t[o].data, again->t[o].data, fresh->t[o].bytes) != 0) {
            fail_msg("%s: output '%s' depends on what was in memory before", name,
                     fresh->t[o].name);
        }
    }
    return 1;
}

static int imported(hearth *h, char (*name)[80])
{
    int n = import(h, "tests/data/onnx", name, 0);
    n = import(h, "tests/data/http", name, n);
    return import(h, "tests/data/digits", name, n);
}

static void test_memory(void **state)
{
    static char name[MODELS][80];
    static outputs fresh[MODELS];
    hearth *h = engine_open("store");
    int n = imported(h, name), compared = 0;
    hearth_close(h);
    for (int i = 0; i < n; i++) { // an engine each
        h = engine_open("store");
        fresh[i] = run(h, name[i]);
        hearth_close(h);
    }
    for (int cleared = 0; cleared < 2; cleared++) {
        assert_ok(hth_setting_set("memory.clear_arena", cleared ? "true" : "false"));
        h = engine_open(cleared ? "cleared" : "used"); // stores of their own: nothing was measured
        assert_int_equal(imported(h, name), n);
        assert_int_equal(
            hearth_import(h, "haunt", "tests/data/digits/digits.onnx", -1, NULL, NULL, NULL),
            HEARTH_OK);
        for (int i = 0; i < n; i++) {
            haunt(h);
            outputs again = run(h, name[i]);
            compared += compare(&fresh[i], &again, name[i]);
            hearth_tensors_free(again.t, again.n);
        }
        hearth_close(h);
    }
    for (int i = 0; i < n; i++) {
        hearth_tensors_free(fresh[i].t, fresh[i].n);
    }
    print_message("# %d of %d models run with made-up inputs\n", compared / 2, n);
    assert_true(compared / 2 >= 35);
}

static int setup(void **state)
{
    return mkdtemp(dir) == NULL;
}

static int teardown(void **state)
{
    return test_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
