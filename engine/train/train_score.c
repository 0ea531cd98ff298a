// SPDX-License-Identifier: Apache-2.0
#include "engine/train/train_score.h"
#include "engine/train/data/train_data.h"

#include <math.h>

#define SCORE_TOP 5

// The logits of one position, `stride` apart.
typedef struct score_row {
    const float *logit;
    int64_t classes, stride;
} score_row;

// log of the sum of exp, from the largest one on.
static double row_log_sum(const score_row *row, double *max)
{
    int64_t best = 0;
    double others = 0; // in addition to the largest one, which is 1
    for (int64_t k = 1; k < row->classes; k++) {
        best = row->logit[k * row->stride] > row->logit[best * row->stride] ? k : best;
    }
    *max = (double)row->logit[best * row->stride];
    for (int64_t k = 0; k < row->classes; k++) {
        others += k != best ? exp((double)row->logit[k * row->stride] - *max) : 0;
    }
    return log1p(others);
}

// How many classes are before the label's when they are sorted by their logits; of equal ones the
// first comes first, and all are before what is no number.
static int64_t row_rank(const score_row *row, int64_t label)
{
    int64_t before = 0;
    float own = row->logit[label * row->stride];
    for (int64_t k = 0; k < row->classes; k++) {
        float v = row->logit[k * row->stride];
        before += k != label && !(v < own || (v == own && k > label));
    }
    return before;
}

static void score_label(hth_score *score, const hth_train_options *options, const score_row *row,
                        int64_t label)
{
    double max, even = 0, smoothing = (double)options->label_smoothing,
                log_sum = row_log_sum(row, &max);
    double plain = log_sum + max - (double)row->logit[label * row->stride];
    double weight = options->weights != NULL ? (double)options->weights[label] : 1;
    for (int64_t k = 0; smoothing > 0 && k < row->classes; k++) {
        double w = options->weights != NULL ? (double)options->weights[k] : 1;
        even += w * (log_sum + max - (double)row->logit[k * row->stride]);
    }
    score->loss += (1 - smoothing) * weight * plain + smoothing / (double)row->classes * even;
    score->norm += weight;
    score->plain += plain;
    score->counted++;
    int64_t rank = row_rank(row, label);
    score->right += rank == 0;
    score->top5 += rank < SCORE_TOP;
}

static void score_xent(hth_score *score, const hth_train_options *options, const float *y,
                       const hth_shape *shape, const hth_tensor *target)
{
    int axis = options->class_axis < 0 ? shape->rank - 1 : 1;
    int64_t outer = 1, inner = 1, classes = shape->dim[axis];
    for (int i = 0; i < shape->rank; i++) {
        outer *= i < axis ? shape->dim[i] : 1;
        inner *= i > axis ? shape->dim[i] : 1;
    }
    score->classes = classes;
    for (int64_t i = 0; i < outer * inner; i++) {
        const score_row r = {y + i / inner * classes * inner + i % inner, classes, inner};
        int64_t label = hth_train_data_label(target, (size_t)i);
        if (label != HTH_TRAIN_IGNORED) {
            score_label(score, options, &r, label);
        }
    }
}

static void score_mse(hth_score *score, const float *y, const float *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double d = (double)y[i] - (double)want[i];
        score->loss += d * d;
    }
}

// How many elements in a row share a weight.
static int64_t bce_inner(const hth_train_options *options, const hth_shape *shape)
{
    int64_t inner = 1;
    for (int i = (options->class_axis < 0 ? shape->rank - 1 : 1) + 1; i < shape->rank; i++) {
        inner *= shape->dim[i];
    }
    return inner;
}

static void score_bce(hth_score *score, const hth_train_options *options, const float *y,
                      const hth_shape *shape, const float *want)
{
    int64_t inner = bce_inner(options, shape);
    for (int64_t i = 0; i < hth_shape_elements(shape); i++) {
        double w =
            options->weights != NULL ? (double)options->weights[i / inner % options->n_weights] : 1;
        double x = (double)y[i], positive = w * (double)want[i], negative = 1 - (double)want[i];
        score->loss += negative * fmax(x, 0) + positive * fmax(-x, 0) +
                       (negative + positive) * log1p(exp(-fabs(x)));
        score->right += (x > 0) == ((double)want[i] > 0.5);
    }
}

void hth_score_add(hth_score *score, const hth_train_options *options, const float *y,
                   const hth_shape *shape, const hth_tensor *target)
{
    int64_t n = hth_shape_elements(shape);
    if (options->loss == HTH_LOSS_SOFTMAX_XENT) {
        score_xent(score, options, y, shape, target);
        return;
    }
    if (options->loss == HTH_LOSS_BCE) {
        score_bce(score, options, y, shape, target->data);
    } else {
        score_mse(score, y, target->data, n);
    }
    score->counted += n;
    score->norm += (double)n;
}

json_t *hth_score_result(const hth_score *score, const hth_train_options *options)
{
    double n = (double)score->counted, perplexity = exp(score->plain / n);
    bool xent = options->loss == HTH_LOSS_SOFTMAX_XENT;
    json_t *doc = json_object();
    if (score->counted == 0) {
        return doc;
    }
    if (isfinite(score->loss / score->norm)) {
        json_object_set_new(doc, "loss", json_real(score->loss / score->norm));
    }
    if (options->loss != HTH_LOSS_MSE) {
        json_object_set_new(doc, "accuracy", json_real((double)score->right / n));
    }
    if (xent && score->classes > SCORE_TOP) {
        json_object_set_new(doc, "top5", json_real((double)score->top5 / n));
    }
    if (xent && isfinite(perplexity)) {
        json_object_set_new(doc, "perplexity", json_real(perplexity));
    }
    return doc;
}

hth_best hth_train_best(const json_t *held_out, bool accuracy)
{
    const json_t *set = json_object_get(json_array_get(held_out, 0), "set");
    hth_best best = {.step = -1, .epoch = -1};
    double least = INFINITY;
    json_t *v;
    size_t i;
    json_array_foreach(held_out, i, v)
    {
        const json_t *found = json_object_get(v, accuracy ? "accuracy" : "loss");
        double value = json_number_value(found) * (accuracy ? -1 : 1);
        if (!json_equal(json_object_get(v, "set"), set)) {
            continue;
        }
        best.stale++;
        if (found != NULL && json_object_get(v, "loss") != NULL && value < least) {
            least = value;
            best = (hth_best){.step = json_integer_value(json_object_get(v, "step")),
                              .epoch = json_integer_value(json_object_get(v, "epoch"))};
        }
    }
    return best;
}
