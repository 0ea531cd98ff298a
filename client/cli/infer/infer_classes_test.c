// SPDX-License-Identifier: Apache-2.0
// The best classes of scores, against a sort of all; what counts as scores, and as probabilities.
// tests/infer/pictures_test.py runs the command.
#include "base/test.h"
#include "client/cli/infer/infer_classes.h"

#include <math.h>

#define MOST 40

static hearth_tensor floats(float *data, int64_t rows, int64_t n)
{
    return (hearth_tensor){.name = "scores",
                           .dtype = HEARTH_F32,
                           .rank = 2,
                           .shape = {rows, n},
                           .data = data,
                           .bytes = (size_t)(rows * n) * sizeof *data};
}

// All values but NaN by size, those that are equal by place: the first five.
static int sorted(const float *v, size_t n, size_t best[HTH_INFER_BEST])
{
    bool used[MOST] = {false};
    int have = 0;
    for (; have < HTH_INFER_BEST; have++) {
        size_t k = n;
        for (size_t i = 0; i < n; i++) {
            if (!isnan(v[i]) && !used[i] && (k == n || v[i] > v[k])) {
                k = i;
            }
        }
        if (k == n) {
            break;
        }
        used[k] = true;
        best[have] = k;
    }
    return have;
}

static void test_best(void **state)
{
    float data[3 * MOST];
    size_t got[HTH_INFER_BEST], want[HTH_INFER_BEST];
    srand(7);
    for (int round = 0; round < 3000; round++) {
        size_t n = (size_t)rand() % MOST, from = (size_t)rand() % (2 * MOST);
        for (int i = 0; i < 3 * MOST; i++) {
            data[i] = rand() % 8 == 0 ? NAN : (float)(rand() % 12 - 6);
        }
        data[from] = round % 5 == 0 ? INFINITY : data[from];
        hearth_tensor t = floats(data, 3, MOST);
        int have = sorted(data + from, n, want);
        assert_int_equal(hth_infer_best(&t, from, n, got), have);
        assert_memory_equal(got, want, (size_t)have * sizeof *got);
    }
}

static void test_scores(void **state)
{
    float data[6];
    hearth_tensor t = floats(data, 2, 3);
    assert_true(hth_infer_scores(&t, 0) && hth_infer_scores(&t, 3) && !hth_infer_scores(&t, 2));
    t.dtype = HEARTH_I32;
    assert_false(hth_infer_scores(&t, 3));
    t = floats(data, 6, 1);
    assert_false(hth_infer_scores(&t, 0));
    t.rank = 1;
    assert_false(hth_infer_scores(&t, 0));
}

static void test_classes(void **state)
{
    char *name[] = {"a", "b", "c"};
    hth_class_names names = {name, 3};
    hth_infer_inputs in = {.n = 1};
    float logits[] = {0, 1, 2, 0.2f, 0.3f, 0.5f}, shares[] = {0.2f, 0.3f, 0.5f, 1, 0, 0};
    hearth_tensor t = floats(logits, 2, 3), p = floats(shares, 2, 3);
    json_t *doc = hth_infer_ranking(&t, &names, &in);
    const json_t *row = json_array_get(json_object_get(doc, "samples"), 0), *best;
    assert_string_equal(json_string_value(json_object_get(doc, "probabilities")), "softmax");
    assert_int_equal(json_array_size(json_object_get(doc, "samples")), 2);
    assert_int_equal(json_integer_value(json_object_get(row, "sample")), 0);
    best = json_array_get(json_object_get(row, "best"), 0);
    assert_string_equal(json_string_value(json_object_get(best, "name")), "c");
    double want = exp(2) / (1 + exp(1) + exp(2));
    assert_true(fabs(json_number_value(json_object_get(best, "probability")) - want) < 1e-15);
    json_decref(doc);
    hth_infer_picture pictures[] = {{0, "x.png", NULL, 0}, {0, "y.png", NULL, 0}};
    in.picture = pictures;
    in.n_pictures = 2;
    doc = hth_infer_ranking(&p, &names, &in);
    row = json_array_get(json_object_get(doc, "samples"), 1);
    assert_string_equal(json_string_value(json_object_get(doc, "probabilities")), "values");
    assert_string_equal(json_string_value(json_object_get(row, "sample")), "y.png");
    best = json_array_get(json_object_get(row, "best"), 0);
    assert_true(json_number_value(json_object_get(best, "probability")) == 1);
    json_decref(doc);
    shares[0] = -0.3f; // the sum is still 1
    shares[1] = 0.8f;
    doc = hth_infer_ranking(&p, &names, &in);
    assert_string_equal(json_string_value(json_object_get(doc, "probabilities")), "softmax");
    json_decref(doc);
}

static void test_model_names(void **state)
{
    static const struct {
        const char *metadata;
        int n;
    } cases[] = {{"{}", 0},
                 {"{\"names\":\"{0: 'a', 1: 'b'}\"}", 2},
                 {"{\"NAMES\":\"['a']\", \"classes\":\"a,b\"}", 1},
                 {"{\"names\":\"{broken\", \"labels\":\"a,b,c\"}", 3},
                 {"{\"id2label\":\"{\\\"0\\\": \\\"a\\\"}\"}", 1},
                 {"{\"title\":\"a,b\"}", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *model = json_pack("{s:o}", "metadata", json_loads(cases[i].metadata, 0, NULL));
        hth_class_names names = {NULL, 0};
        hth_infer_model_names(model, &names);
        assert_int_equal(names.n, cases[i].n);
        hth_class_names_fini(&names);
        json_decref(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_best), cmocka_unit_test(test_scores),
                                       cmocka_unit_test(test_classes),
                                       cmocka_unit_test(test_model_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
