// SPDX-License-Identifier: Apache-2.0
// `hearth infer`: .npy files in, .npy files and the largest values out.
#include "client/cli/cmd.h"

#include "base/alloc.h"
#include "base/utf8.h"
#include "client/dtype.h"
#include "client/npy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INFER_MAX_INPUTS 64
#define INFER_TOP        5

typedef struct infer_inputs {
    int n;
    hearth_tensor t[INFER_MAX_INPUTS];
    char *name[INFER_MAX_INPUTS];
} infer_inputs;

static void infer_free(infer_inputs *in)
{
    for (int i = 0; i < in->n; i++) {
        hth_free(in->t[i].data);
        hth_free(in->name[i]);
    }
}

// infer_read reads "x=FILE.npy", or "FILE.npy" for a model's only input.
static int infer_read(const hth_cli *cli, infer_inputs *in)
{
    size_t i;
    const json_t *v, *list = json_object_get(cli->options, "input");
    json_array_foreach(list, i, v)
    {
        const char *text = json_string_value(v), *equals = strchr(text, '=');
        if (in->n == INFER_MAX_INPUTS) {
            return hth_cli_usage("more than %d inputs", INFER_MAX_INPUTS);
        }
        if (hth_npy_read(equals != NULL ? equals + 1 : text, &in->t[in->n]) != HTH_OK) {
            return hth_cli_error();
        }
        in->name[in->n] = equals != NULL ? hth_strndup(text, (size_t)(equals - text)) : NULL;
        in->t[in->n].name = in->name[in->n];
        in->n++;
    }
    return HTH_CLI_OK;
}

// infer_file makes DIR/NAME.npy; what would leave the folder or hide in it becomes '_'.
static char *infer_file(const char *dir, const char *name)
{
    char *path = hth_asprintf("%s/%s.npy", dir, name[0] != 0 ? name : "output");
    if (path != NULL) {
        char *base = path + strlen(dir) + 1;
        base[0] = base[0] == '.' ? '_' : base[0];
        for (char *p = base; *p != 0; p++) {
            *p = *p == '/' || (unsigned char)*p < ' ' ? '_' : *p;
        }
    }
    return path;
}

// infer_top lists the largest values of the first row (the last axis).
static json_t *infer_top(const hearth_tensor *tensor)
{
    json_t *list = json_array();
    size_t n = tensor->rank > 0 ? (size_t)tensor->shape[tensor->rank - 1] : 1;
    size_t have = tensor->bytes / hth_dtype_names_of((int)tensor->dtype)->bytes;
    double last = 0;
    size_t last_i = 0;
    n = n < have ? n : have;
    for (int k = 0; k < INFER_TOP && (size_t)k < n; k++) {
        size_t best = n;
        double best_v = 0;
        for (size_t i = 0; i < n; i++) {
            double v = hth_dtype_value((int)tensor->dtype, tensor->data, i);
            bool listed = k > 0 && (v > last || (v == last && i <= last_i));
            if (v == v && !listed && (best == n || v > best_v)) {
                best = i;
                best_v = v;
            }
        }
        if (best == n) {
            break;
        }
        json_t *v = json_real(best_v); // NULL: infinity has no JSON
        json_array_append_new(list, json_pack("{s:I, s:o}", "index", (json_int_t)best, "value",
                                              v != NULL ? v : json_null()));
        last = best_v;
        last_i = best;
    }
    return list;
}

static json_t *infer_describe(const hearth_tensor *tensor, const char *file)
{
    json_t *shape = json_array();
    for (int i = 0; i < tensor->rank; i++) {
        json_array_append_new(shape, json_integer(tensor->shape[i]));
    }
    json_t *o = json_pack("{s:s, s:s, s:o, s:o}", "name", tensor->name, "datatype",
                          hth_dtype_names_of((int)tensor->dtype)->name, "shape", shape, "top",
                          infer_top(tensor));
    if (file != NULL) {
        json_object_set_new(o, "file", json_string(file));
    }
    return o;
}

// infer_name is what a terminal can show of an output's name, which its model's author gave.
static const char *infer_name(const hearth_tensor *tensor, char *out, size_t cap)
{
    snprintf(out, cap, "%s", tensor->name);
    hth_utf8_plain(out);
    return out;
}

static void infer_print(const json_t *json, const hearth_tensor *tensor)
{
    size_t i;
    json_t *v;
    char name[256];
    printf("%s  %s  [", infer_name(tensor, name, sizeof name),
           hth_dtype_names_of((int)tensor->dtype)->name);
    for (int k = 0; k < tensor->rank; k++) {
        printf(k > 0 ? ",%lld" : "%lld", (long long)tensor->shape[k]);
    }
    printf("]\n  top ");
    json_array_foreach(json_object_get(json, "top"), i, v)
    {
        printf("  %lld: %.6g", (long long)json_integer_value(json_object_get(v, "index")),
               json_number_value(json_object_get(v, "value")));
    }
    printf("\n");
}

// infer_apart refuses outputs of which one would replace another: names that differ may make the
// same file name.
static int infer_apart(const hth_cli *cli, const hearth_tensor *out, int n)
{
    const char *dir = hth_cli_text(cli, "output-dir");
    char **file = dir != NULL ? hth_calloc((size_t)n + 1, sizeof(char *)) : NULL;
    char name[2][256];
    int rv = HTH_CLI_OK;
    for (int i = 0; i < n && file != NULL && rv == HTH_CLI_OK; i++) {
        file[i] = infer_file(dir, out[i].name);
        int k = 0;
        while (k < i && (file[i] == NULL || file[k] == NULL || strcmp(file[i], file[k]) != 0)) {
            k++;
        }
        if (k < i) {
            fprintf(stderr, "hearth: outputs '%s' and '%s' would both be written to %s\n",
                    infer_name(&out[k], name[0], sizeof name[0]),
                    infer_name(&out[i], name[1], sizeof name[1]), file[i]);
            rv = HTH_CLI_ERROR;
        }
    }
    for (int i = 0; i < n && file != NULL; i++) {
        hth_free(file[i]);
    }
    hth_free(file);
    return rv;
}

static int infer_output(const hth_cli *cli, const hearth_tensor *tensor, json_t *list)
{
    const char *dir = hth_cli_text(cli, "output-dir");
    char *file = dir != NULL ? infer_file(dir, tensor->name) : NULL;
    int rv = dir == NULL || (file != NULL && hth_npy_write(file, tensor) == HTH_OK)
                 ? HTH_CLI_OK
                 : hth_cli_error();
    json_t *o = infer_describe(tensor, file);
    if (!hth_cli_json(cli) && o != NULL) {
        infer_print(o, tensor);
    }
    json_array_append_new(list, o);
    hth_free(file);
    return rv;
}

// infer_shape writes "FP32 [360,10]".
static const char *infer_shape(const hearth_tensor *tensor, char *out, size_t cap)
{
    size_t n = (size_t)snprintf(out, cap, "%s [", hth_dtype_names_of((int)tensor->dtype)->name);
    for (int i = 0; i < tensor->rank && n < cap; i++) {
        n += (size_t)snprintf(out + n, cap - n, "%s%lld", i > 0 ? "," : "",
                              (long long)tensor->shape[i]);
    }
    if (n < cap) {
        snprintf(out + n, cap - n, "]");
    }
    return out;
}

// infer_accuracy counts for how many samples (rows of the first output; scores along axis 1) the
// largest score is at the label's index.
static int infer_accuracy(hth_cli *cli, const hearth_tensor *tensor, json_t *doc)
{
    hearth_tensor labels = {0};
    if (hth_npy_read(hth_cli_text(cli, "labels"), &labels) != HTH_OK) {
        return hth_cli_error();
    }
    int64_t rows = 0, classes = 0, right = 0;
    if (tensor->rank >= 2) {
        rows = tensor->shape[0];
        classes = tensor->shape[1];
    }
    int rv = HTH_CLI_OK;
    if (tensor->rank != 2 || labels.rank != 1 || labels.shape[0] != rows) {
        char name[256], out[128], got[128];
        rv = hth_cli_usage("--labels needs one label for each row of '%s' %s; %s has %s",
                           infer_name(tensor, name, sizeof name),
                           infer_shape(tensor, out, sizeof out), hth_cli_text(cli, "labels"),
                           infer_shape(&labels, got, sizeof got));
    }
    for (int64_t i = 0; i < rows && rv == HTH_CLI_OK; i++) {
        int64_t best = 0;
        for (int64_t k = 1; k < classes; k++) {
            double v = hth_dtype_value((int)tensor->dtype, tensor->data, (size_t)(i * classes + k));
            best =
                v > hth_dtype_value((int)tensor->dtype, tensor->data, (size_t)(i * classes + best))
                    ? k
                    : best;
        }
        right += best == (int64_t)hth_dtype_value((int)labels.dtype, labels.data, (size_t)i);
    }
    if (rv == HTH_CLI_OK) {
        double share = rows > 0 ? (double)right / (double)rows : 0;
        json_object_set_new(doc, "accuracy", json_real(share));
        if (!hth_cli_json(cli)) {
            printf("accuracy %.2f %%: %lld of %lld\n", 100 * share, (long long)right,
                   (long long)rows);
        }
    }
    hth_free(labels.data);
    return rv;
}

static int infer_ask(hth_cli *cli, const infer_inputs *in)
{
    hearth_tensor *out;
    int n;
    json_t *list = json_array();
    int64_t priority = hth_cli_int(cli, "priority", 0), timeout_ms = hth_cli_int(cli, "timeout", 0);
    if (priority < 0 || priority > UINT32_MAX || timeout_ms < 0 || timeout_ms > INT64_MAX / 1000) {
        json_decref(list);
        return hth_cli_usage("--priority and --timeout are whole numbers, 1 or more");
    }
    hearth_infer_options options = {(uint32_t)priority, (uint64_t)timeout_ms * 1000u};
    if (hearth_infer_with(cli->h, cli->args[0], in->t, in->n, &options, &out, &n) != HEARTH_OK) {
        json_decref(list);
        return hth_cli_error();
    }
    int rv = infer_apart(cli, out, n);
    int version = hearth_outputs_version(out);
    if (!hth_cli_json(cli) && rv == HTH_CLI_OK) {
        printf("%s:%d\n", hearth_outputs_model(out), version);
    }
    for (int i = 0; i < n && rv == HTH_CLI_OK; i++) {
        rv = infer_output(cli, &out[i], list);
    }
    const char *asked = cli->args[0], *name = hearth_outputs_model(out);
    size_t n_name = strlen(name);
    bool same = strncmp(asked, name, n_name) == 0 && (asked[n_name] == 0 || asked[n_name] == ':');
    json_t *doc = json_pack("{s:s, s:i, s:o}", "model", same ? asked : name, "version", version,
                            "outputs", list);
    if (rv == HTH_CLI_OK && n > 0 && hth_cli_text(cli, "labels") != NULL) {
        rv = infer_accuracy(cli, &out[0], doc);
    }
    hearth_tensors_free(out, n);
    if (hth_cli_json(cli) && rv == HTH_CLI_OK) {
        rv = json_dumpf(doc, stdout, JSON_COMPACT) == 0 && printf("\n") == 1 ? HTH_CLI_OK
                                                                             : HTH_CLI_ERROR;
    }
    json_decref(doc);
    return rv;
}

static int cmd_infer(hth_cli *cli)
{
    const char *dir = hth_cli_text(cli, "output-dir");
    infer_inputs in = {.n = 0};
    if (dir != NULL && mkdir(dir, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "hearth: cannot make the folder %s: %s\n", dir, strerror(errno));
        return HTH_CLI_ERROR;
    }
    int rv = infer_read(cli, &in);
    if (rv == HTH_CLI_OK) {
        rv = hth_cli_connect(cli);
    }
    if (rv == HTH_CLI_OK) {
        rv = infer_ask(cli, &in);
    }
    infer_free(&in);
    return rv;
}

static const hth_option infer_options[] = {
    {"input", HTH_OPTION_LIST, "NAME=FILE.npy",
     "an input; repeat for each. NAME= may be omitted if there is only one. FILE may be a FIFO; - "
     "is standard input"},
    {"output-dir", HTH_OPTION_PATH, "DIR", "write each output to DIR/NAME.npy"},
    {"labels", HTH_OPTION_PATH, "FILE.npy",
     "one label per row of the first output: prints the accuracy"},
    {"priority", HTH_OPTION_INT, "N",
     "priority in the queue; 1 is served first. Default: the model's"},
    {"timeout", HTH_OPTION_INT, "MS", "queue timeout in milliseconds. Default: the model's"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

const hth_command hth_cmd_infer = {"infer",
                                   "NAME[:VERSION] --input NAME=FILE.npy [--output-dir DIR]",
                                   "run a model once\nPrints which version answered, and the "
                                   "outputs' names, types, shapes and largest values.",
                                   1,
                                   1,
                                   infer_options,
                                   .run = cmd_infer};
