// SPDX-License-Identifier: Apache-2.0
// Loss and metrics against their definitions, and which of some evaluations is the best.
#include "base/test.h"
#include "engine/train/train_score.h"

#include <math.h>

static double number(const json_t *doc, const char *key)
{
    const json_t *v = json_object_get(doc, key);
    return v != NULL ? json_number_value(v) : NAN;
}

static void near_to(const json_t *doc, const char *key, double want)
{
    if (!(fabs(number(doc, key) - want) <= 1e-9 * (1 + fabs(want)))) {
        fail_msg("%s is %.12g, not %.12g", key, number(doc, key), want);
    }
}

#define ROWS    6
#define CLASSES 7

// -log p of class k, by definition.
static double minus_log(const float *row, int64_t stride, int k)
{
    double sum = 0;
    for (int c = 0; c < CLASSES; c++) {
        sum += exp((double)row[c * stride]);
    }
    return log(sum) - (double)row[k * stride];
}

// Six positions in the last axis, and as two samples of three positions in axis 1; with weights and
// smoothing and without; in one piece and in two.
static void cross_entropy(void **state)
{
    static const float weights[CLASSES] = {1, 2, 0.5F, 0, 3, 1, 0.25F};
    float front[ROWS * CLASSES], back[ROWS * CLASSES];
    int64_t labels[ROWS] = {0, 6, -100, 3, 4, 2};
    for (int i = 0; i < ROWS; i++) {
        for (int c = 0; c < CLASSES; c++) {
            back[i * CLASSES + c] = (float)((i * 31 + c * 17) % 23) / 7 - 1;
            front[(i / 3 * CLASSES + c) * 3 + i % 3] = back[i * CLASSES + c];
        }
    }
    for (int how = 0; how < 4; how++) {
        bool last = how % 2, rich = how / 2;
        hth_train_options o = {.class_axis = last ? -1 : 1,
                               .label_smoothing = rich ? 0.25F : 0,
                               .weights = rich ? weights : NULL,
                               .n_weights = rich ? CLASSES : 0};
        double loss = 0, norm = 0, plain = 0, right = 0, top5 = 0;
        for (int i = 0; i < ROWS; i++) {
            const float *row = back + i * CLASSES;
            int before = 0;
            if (labels[i] < 0) {
                continue;
            }
            for (int c = 0; c < CLASSES; c++) {
                double w = rich ? (double)weights[c] : 1, own = c == labels[i];
                loss += w * (rich ? 0.75 * own + 0.25 / CLASSES : own) * minus_log(row, 1, c);
                before += row[c] > row[labels[i]];
            }
            norm += rich ? (double)weights[labels[i]] : 1;
            plain += minus_log(row, 1, (int)labels[i]);
            right += before == 0;
            top5 += before < 5;
        }
        hth_score s = {.loss = 0};
        const hth_shape whole = {3, {last ? 2 : 2, last ? 3 : CLASSES, last ? CLASSES : 3}};
        hth_shape half = whole;
        half.dim[0] = 1;
        for (int i = 0; i < 2; i++) {
            const hth_tensor y = {
                .dtype = HTH_DT_I64, .shape = {2, {1, 3}}, .data = labels + (ptrdiff_t)i * 3};
            hth_score_add(&s, &o, (last ? back : front) + (ptrdiff_t)i * 3 * CLASSES, &half, &y);
        }
        json_t *doc = hth_score_result(&s, &o);
        near_to(doc, "loss", loss / norm);
        near_to(doc, "perplexity", exp(plain / 5));
        near_to(doc, "accuracy", right / 5);
        near_to(doc, "top5", top5 / 5);
        json_decref(doc);
    }
}

// A logit that is no number is no right answer, and the loss is left out.
static void not_a_number(void **state)
{
    float y[2] = {NAN, 1};
    int64_t label = 0;
    hth_train_options o = {.class_axis = 1};
    hth_score s = {.loss = 0};
    const hth_tensor t = {.dtype = HTH_DT_I64, .shape = {1, {1}}, .data = &label};
    hth_score_add(&s, &o, y, &(hth_shape){2, {1, 2}}, &t);
    json_t *doc = hth_score_result(&s, &o);
    assert_null(json_object_get(doc, "loss"));
    assert_null(json_object_get(doc, "perplexity"));
    near_to(doc, "accuracy", 0);
    json_decref(doc);
    s = (hth_score){.loss = 0};
    label = -100;
    hth_score_add(&s, &o, y, &(hth_shape){2, {1, 2}}, &t);
    doc = hth_score_result(&s, &o);
    assert_int_equal(json_object_size(doc), 0);
    json_decref(doc);
}

static void binary(void **state)
{
    float y[6] = {2, -1, 0.5F, -3, 0, 4}, want[6] = {1, 0, 0, 1, 0, 1}, w[3] = {2, 1, 5};
    double loss = 0;
    hth_train_options o = {.loss = HTH_LOSS_BCE, .weights = w, .n_weights = 3};
    hth_score s = {.loss = 0};
    const hth_tensor t = {.dtype = HTH_DT_F32, .shape = {2, {2, 3}}, .data = want};
    for (int i = 0; i < 6; i++) {
        double p = 1 / (1 + exp(-(double)y[i]));
        loss -= want[i] > 0 ? (double)w[i % 3] * log(p) : log(1 - p);
    }
    hth_score_add(&s, &o, y, &t.shape, &t);
    json_t *doc = hth_score_result(&s, &o);
    near_to(doc, "loss", loss / 6);
    near_to(doc, "accuracy", 4.0 / 6);
    assert_int_equal(json_object_size(doc), 2);
    json_decref(doc);
}

// The first set counts; of equal ones the earlier; a loss that was not finite is no candidate.
static void best_of_some(void **state)
{
    json_t *list =
        json_loads("[{\"set\":\"a\",\"step\":3,\"epoch\":1,\"accuracy\":0.9},"
                   "{\"set\":\"b\",\"step\":3,\"epoch\":1,\"loss\":0.1,\"accuracy\":1},"
                   "{\"set\":\"a\",\"step\":6,\"epoch\":2,\"loss\":2,\"accuracy\":0.25},"
                   "{\"set\":\"a\",\"step\":9,\"epoch\":3,\"loss\":1,\"accuracy\":0.5},"
                   "{\"set\":\"a\",\"step\":12,\"epoch\":4,\"loss\":1,\"accuracy\":0.75},"
                   "{\"set\":\"a\",\"step\":15,\"epoch\":5,\"loss\":3,\"accuracy\":0.5}]",
                   0, NULL);
    hth_best b = hth_train_best(list, false);
    assert_int_equal(b.step, 9);
    assert_int_equal(b.epoch, 3);
    assert_int_equal(b.stale, 2);
    b = hth_train_best(list, true);
    assert_int_equal(b.step, 12);
    assert_int_equal(b.stale, 1);
    json_array_clear(list);
    b = hth_train_best(list, false);
    assert_int_equal(b.step, -1);
    assert_int_equal(b.stale, 0);
    json_decref(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cross_entropy),
        cmocka_unit_test(not_a_number),
        cmocka_unit_test(binary),
        cmocka_unit_test(best_of_some),
    };
    return cmocka_run_group_tests_name("train_score", tests, NULL, NULL);
}
