// SPDX-License-Identifier: Apache-2.0
#include "client/cli/infer/infer_classes.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/utf8.h"
#include "client/cli/infer/infer_model.h"
#include "client/dtype.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define CLASSES_FILE ((size_t)64 << 20) // most bytes of --classes
#define CLASSES_LINE 100                // most samples for people; JSON has all
#define CLASSES_NEAR 0.01               // of a sum of 1: half precision, a thousand classes

int hth_infer_best(const hearth_tensor *tensor, size_t from, size_t n, size_t best[HTH_INFER_BEST])
{
    int have = 0;
    double value[HTH_INFER_BEST];
    for (size_t i = 0; i < n; i++) {
        double v = hth_dtype_value((int)tensor->dtype, tensor->data, from + i);
        int at = have;
        while (at > 0 && v > value[at - 1]) {
            at--;
        }
        if (v != v || at == HTH_INFER_BEST) {
            continue;
        }
        have += have < HTH_INFER_BEST;
        for (int k = have - 1; k > at; k--) {
            value[k] = value[k - 1];
            best[k] = best[k - 1];
        }
        value[at] = v;
        best[at] = i;
    }
    return have;
}

// ---- names

int hth_infer_file_names(const hth_cli *cli, hth_class_names *out)
{
    const char *path = hth_cli_text(cli, "classes");
    void *text;
    size_t bytes;
    if (path == NULL) {
        return HTH_CLI_OK;
    }
    if (hth_file_load_own(path, CLASSES_FILE, NULL, &text, &bytes) != HTH_OK) {
        return hth_cli_error();
    }
    hth_err err = hth_class_names_parse(text, bytes, out);
    hth_free(text);
    hth_err_prefix(err, "%s", path);
    return err == HTH_OK ? HTH_CLI_OK : hth_cli_error();
}

void hth_infer_model_names(const json_t *model, hth_class_names *out)
{
    static const char *const keys[] = {"names", "class_names", "classes", "labels", "id2label"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys && out->n == 0; i++) {
        const char *text = hth_infer_metadata(model, keys[i]);
        // What cannot be read is something else that is called so.
        if (text != NULL && hth_class_names_parse(text, strlen(text), out) != HTH_OK) {
            *out = (hth_class_names){NULL, 0};
        }
    }
}

bool hth_infer_scores(const hearth_tensor *tensor, int classes)
{
    bool floats = tensor->dtype == HEARTH_F32 || tensor->dtype == HEARTH_F16 ||
                  tensor->dtype == HEARTH_BF16 || tensor->dtype == HEARTH_F64;
    return floats && tensor->rank == 2 && tensor->shape[1] > 1 &&
           (classes == 0 || tensor->shape[1] == classes);
}

// ---- values

// classes_distribution: all rows are probabilities.
static bool classes_distribution(const hearth_tensor *tensor, size_t rows, size_t n)
{
    for (size_t r = 0; r < rows; r++) {
        double sum = 0;
        for (size_t i = 0; i < n; i++) {
            double v = hth_dtype_value((int)tensor->dtype, tensor->data, r * n + i);
            if (!(v >= 0)) {
                return false;
            }
            sum += v;
        }
        if (!(fabs(sum - 1) <= CLASSES_NEAR)) {
            return false;
        }
    }
    return true;
}

// classes_below is the divisor of a row's softmax, exp(value - most) summed; NAN: it has none.
static double classes_below(const hearth_tensor *tensor, size_t from, size_t n, double most)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += exp(hth_dtype_value((int)tensor->dtype, tensor->data, from + i) - most);
    }
    return isfinite(most) ? sum : NAN;
}

// classes_real: what JSON has no number for is null.
static json_t *classes_real(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *classes_row(const hearth_tensor *tensor, size_t from, const hth_class_names *names,
                           bool given)
{
    size_t best[HTH_INFER_BEST], n = (size_t)names->n;
    int have = hth_infer_best(tensor, from, n, best);
    json_t *list = json_array();
    double most = 0, below = 1;
    if (have > 0 && !given) {
        most = hth_dtype_value((int)tensor->dtype, tensor->data, from + best[0]);
        below = classes_below(tensor, from, n, most);
    }
    for (int k = 0; k < have; k++) {
        double v = hth_dtype_value((int)tensor->dtype, tensor->data, from + best[k]);
        double probability = given ? v : exp(v - most) / below;
        json_array_append_new(list,
                              json_pack("{s:I, s:s, s:o, s:o}", "index", (json_int_t)best[k],
                                        "name", names->name[best[k]], "value", classes_real(v),
                                        "probability", classes_real(probability)));
    }
    return list;
}

// classes_sample is what a sample is called: its picture, where each has one, else its number.
static json_t *classes_sample(const hth_infer_inputs *in, size_t rows, size_t r)
{
    bool pictures = in->n == 1 && (size_t)in->n_pictures == rows;
    json_t *name = pictures ? json_string(in->picture[r].shown) : NULL;
    return name != NULL ? name : json_integer((json_int_t)r);
}

json_t *hth_infer_ranking(const hearth_tensor *tensor, const hth_class_names *names,
                          const hth_infer_inputs *in)
{
    size_t rows = (size_t)tensor->shape[0], n = (size_t)names->n;
    bool given = classes_distribution(tensor, rows, n);
    json_t *samples = json_array();
    for (size_t r = 0; r < rows; r++) {
        json_array_append_new(samples,
                              json_pack("{s:o, s:o}", "sample", classes_sample(in, rows, r), "best",
                                        classes_row(tensor, r * n, names, given)));
    }
    return json_pack("{s:s, s:o}", "probabilities", given ? "values" : "softmax", "samples",
                     samples);
}

// ---- for people

static void classes_print_one(const json_t *v, bool values)
{
    char name[200];
    const json_t *p = json_object_get(v, "probability");
    snprintf(name, sizeof name, "%s", json_string_value(json_object_get(v, "name")));
    hth_utf8_plain(name);
    printf("  %s", name);
    if (json_is_number(p)) {
        printf(" %.2f %%", 100 * json_number_value(p));
    }
    if (values) {
        printf(" (%.6g)", json_number_value(json_object_get(v, "value")));
    }
}

static void classes_print_row(const json_t *row, bool values)
{
    size_t i;
    const json_t *v, *sample = json_object_get(row, "sample");
    char name[300];
    if (json_is_string(sample)) {
        snprintf(name, sizeof name, "%s", json_string_value(sample));
        hth_utf8_plain(name);
    } else {
        snprintf(name, sizeof name, "sample %lld", (long long)json_integer_value(sample));
    }
    printf("  %s:", name);
    json_array_foreach(json_object_get(row, "best"), i, v)
    {
        classes_print_one(v, values);
    }
    printf("\n");
}

void hth_infer_ranking_print(const json_t *classes)
{
    size_t i, n = json_array_size(json_object_get(classes, "samples"));
    const json_t *row;
    bool softmax =
        strcmp(json_string_value(json_object_get(classes, "probabilities")), "softmax") == 0;
    json_array_foreach(json_object_get(classes, "samples"), i, row)
    {
        if (i == CLASSES_LINE) {
            printf("  .. and %zu more samples, which --json has\n", n - i);
            break;
        }
        classes_print_row(row, softmax);
    }
    printf("  probabilities: %s\n",
           softmax ? "softmax of the values in brackets" : "the values, which are a distribution");
}
