// SPDX-License-Identifier: Apache-2.0
// `hearth infer`: arrays and pictures in, .npy files, the largest values and the best classes out.
#include "client/cli/cmd.h"

#include "base/alloc.h"
#include "base/utf8.h"
#include "client/cli/infer/infer_classes.h"
#include "client/cli/infer/infer_inputs.h"
#include "client/cli/infer/infer_model.h"
#include "client/cli/infer/infer_pictures.h"
#include "client/dtype.h"
#include "client/npy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// What one call of the command has.
typedef struct infer_call {
    hth_cli *cli;
    hth_infer_inputs in;
    json_t *model;         // the model's document; NULL: not asked for, or not there
    hth_class_names names; // of classes; n 0: none are known
} infer_call;

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

// infer_row is how many numbers a row (of the last axis) has; infer_rows how many rows there are.
static size_t infer_row(const hearth_tensor *tensor)
{
    return tensor->rank > 0 ? (size_t)tensor->shape[tensor->rank - 1] : 1;
}

static size_t infer_rows(const hearth_tensor *tensor)
{
    size_t n = infer_row(tensor);
    return n > 0 ? tensor->bytes / hth_dtype_names_of((int)tensor->dtype)->bytes / n : 0;
}

// infer_top lists the largest values of the first row (the last axis).
static json_t *infer_top(const hearth_tensor *tensor)
{
    json_t *list = json_array();
    size_t best[HTH_INFER_BEST];
    size_t n = infer_rows(tensor) > 0 ? infer_row(tensor) : 0;
    int found = hth_infer_best(tensor, 0, n, best);
    for (int k = 0; k < found; k++) {
        json_t *v = json_real(hth_dtype_value((int)tensor->dtype, tensor->data, best[k]));
        json_array_append_new(list, // NULL: infinity has no JSON
                              json_pack("{s:I, s:o}", "index", (json_int_t)best[k], "value",
                                        v != NULL ? v : json_null()));
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
    printf("]\n");
    if (json_object_get(json, "classes") != NULL) {
        hth_infer_ranking_print(json_object_get(json, "classes"));
        return;
    }
    fputs(infer_rows(tensor) > 1 ? "  top of the first row " : "  top ", stdout);
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

static int infer_output(const infer_call *call, const hearth_tensor *tensor, json_t *list)
{
    const hth_cli *cli = call->cli;
    const char *dir = hth_cli_text(cli, "output-dir");
    char *file = dir != NULL ? infer_file(dir, tensor->name) : NULL;
    int rv = dir == NULL || (file != NULL && hth_npy_write(file, tensor) == HTH_OK)
                 ? HTH_CLI_OK
                 : hth_cli_error();
    json_t *o = infer_describe(tensor, file);
    if (call->names.n > 0 && hth_infer_scores(tensor, call->names.n)) {
        json_object_set_new(o, "classes", hth_infer_ranking(tensor, &call->names, &call->in));
    }
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

// infer_misnamed refuses --classes whose names fit no output; output `i` is the nearest.
static int infer_misnamed(const infer_call *call, const hearth_tensor *out, int i)
{
    char name[256], shape[128];
    return hth_cli_usage("%s names %d classes, but output '%s' is %s, not [samples,%d] of floats",
                         hth_cli_text(call->cli, "classes"), call->names.n,
                         infer_name(&out[i], name, sizeof name),
                         infer_shape(&out[i], shape, sizeof shape), call->names.n);
}

// infer_answered asks for the document of the version that has answered. By the name that was asked
// for it is there already; only while versions change that is another one. The answer is there
// without: what goes wrong is not said.
static void infer_answered(infer_call *call, const hearth_tensor *out)
{
    char spec[256];
    if (call->model == NULL) {
        (void)hth_infer_describe(call->cli, call->cli->args[0], &call->model);
    }
    int version = (int)json_integer_value(json_object_get(call->model, "version"));
    if (call->model != NULL && version != hearth_outputs_version(out)) {
        json_decref(call->model);
        snprintf(spec, sizeof spec, "%s:%d", hearth_outputs_model(out),
                 hearth_outputs_version(out));
        (void)hth_infer_describe(call->cli, spec, &call->model);
    }
}

// infer_names finds the names of classes, of --classes or the model. An option whose names fit no
// output is an error; metadata may be about something else.
static int infer_names(infer_call *call, const hearth_tensor *out, int n)
{
    int scores = -1, fits = 0;
    for (int i = 0; i < n; i++) {
        scores = scores < 0 && hth_infer_scores(&out[i], 0) ? i : scores;
        fits += call->names.n > 0 && hth_infer_scores(&out[i], call->names.n);
    }
    if (call->names.n > 0 && fits == 0 && n > 0) {
        return infer_misnamed(call, out, scores < 0 ? 0 : scores);
    }
    if (call->names.n > 0 || scores < 0) {
        return HTH_CLI_OK;
    }
    infer_answered(call, out);
    hth_infer_model_names(call->model, &call->names);
    return HTH_CLI_OK;
}

// infer_failed says why the model did not answer. A misspelt input gets the name that is meant.
static int infer_failed(infer_call *call, hearth_status status)
{
    char why[1100];
    snprintf(why, sizeof why, "%s", hearth_error());
    bool named = false;
    for (int i = 0; i < call->in.n; i++) {
        named = named || call->in.name[i] != NULL;
    }
    if (named && call->model == NULL && status == HEARTH_EINVAL) {
        (void)hth_infer_describe(call->cli, call->cli->args[0], &call->model);
    }
    for (int i = 0; i < call->in.n && call->model != NULL; i++) {
        const char *name = call->in.name[i];
        if (name != NULL && hth_infer_find(call->model, name) == NULL &&
            hth_infer_nearest(call->model, name) != NULL) {
            return hth_infer_unknown(call->model, name);
        }
    }
    fprintf(stderr, "hearth: %s\n", why);
    return HTH_CLI_ERROR;
}

// infer_doc is the answer as JSON, with the list of outputs, which it takes over.
static json_t *infer_doc(const hth_cli *cli, const hearth_tensor *out, json_t *list)
{
    const char *asked = cli->args[0], *name = hearth_outputs_model(out);
    size_t n_name = strlen(name);
    bool same = strncmp(asked, name, n_name) == 0 && (asked[n_name] == 0 || asked[n_name] == ':');
    return json_pack("{s:s, s:i, s:o}", "model", same ? asked : name, "version",
                     hearth_outputs_version(out), "outputs", list);
}

// infer_answer writes what the model has answered.
static int infer_answer(infer_call *call, const hearth_tensor *out, int n)
{
    hth_cli *cli = call->cli;
    json_t *list = json_array();
    int rv = infer_apart(cli, out, n);
    if (rv == HTH_CLI_OK) {
        rv = infer_names(call, out, n);
    }
    if (!hth_cli_json(cli) && rv == HTH_CLI_OK) {
        printf("%s:%d\n", hearth_outputs_model(out), hearth_outputs_version(out));
    }
    for (int i = 0; i < n && rv == HTH_CLI_OK; i++) {
        rv = infer_output(call, &out[i], list);
    }
    json_t *doc = infer_doc(cli, out, list);
    if (rv == HTH_CLI_OK && n > 0 && hth_cli_text(cli, "labels") != NULL) {
        rv = infer_accuracy(cli, &out[0], doc);
    }
    if (hth_cli_json(cli) && rv == HTH_CLI_OK) {
        rv = json_dumpf(doc, stdout, JSON_COMPACT) == 0 && printf("\n") == 1 ? HTH_CLI_OK
                                                                             : HTH_CLI_ERROR;
    }
    json_decref(doc);
    return rv;
}

static int infer_ask(infer_call *call)
{
    hearth_tensor *out;
    int n;
    hth_cli *cli = call->cli;
    int64_t priority = hth_cli_int(cli, "priority", 0), timeout_ms = hth_cli_int(cli, "timeout", 0);
    if (priority < 0 || priority > UINT32_MAX || timeout_ms < 0 || timeout_ms > INT64_MAX / 1000) {
        return hth_cli_usage("--priority and --timeout are whole numbers, 1 or more");
    }
    hearth_infer_options options = {(uint32_t)priority, (uint64_t)timeout_ms * 1000u};
    hearth_status s =
        hearth_infer_with(cli->h, cli->args[0], call->in.t, call->in.n, &options, &out, &n);
    if (s != HEARTH_OK) {
        return infer_failed(call, s);
    }
    int rv = infer_answer(call, out, n);
    hearth_tensors_free(out, n);
    return rv;
}

// infer_pictures makes the pictures what the model wants; without any, what is about them is wrong.
static int infer_pictures(infer_call *call)
{
    static const char *const about[] = {"size", "scale", "mean", "std", "bgr"};
    if (call->in.n_pictures > 0) {
        int rv = hth_infer_describe(call->cli, call->cli->args[0], &call->model);
        return rv == HTH_CLI_OK ? hth_infer_pictures(call->cli, call->model, &call->in)
                                : hth_cli_error(); // it is HTH_CLI_ERROR: nothing was said
    }
    for (size_t i = 0; i < sizeof about / sizeof *about; i++) {
        if (json_object_get(call->cli->options, about[i]) != NULL) {
            return hth_cli_usage("--%s is for pictures, and no input is one", about[i]);
        }
    }
    return HTH_CLI_OK;
}

static int infer_run(infer_call *call)
{
    int rv = hth_infer_inputs_read(call->cli, &call->in);
    if (rv == HTH_CLI_OK) {
        rv = hth_infer_file_names(call->cli, &call->names);
    }
    if (rv == HTH_CLI_OK) {
        rv = hth_cli_connect(call->cli);
    }
    if (rv == HTH_CLI_OK) {
        rv = infer_pictures(call);
    }
    return rv == HTH_CLI_OK ? infer_ask(call) : rv;
}

static int cmd_infer(hth_cli *cli)
{
    const char *dir = hth_cli_text(cli, "output-dir");
    infer_call call = {.cli = cli};
    if (dir != NULL && mkdir(dir, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "hearth: cannot make the folder %s: %s\n", dir, strerror(errno));
        return HTH_CLI_ERROR;
    }
    int rv = infer_run(&call);
    hth_infer_inputs_free(&call.in);
    hth_class_names_fini(&call.names);
    json_decref(call.model);
    return rv;
}

static const hth_option infer_options[] = {
    {"input", HTH_OPTION_LIST, "[NAME=]FILE",
     "an input, or a picture of one; repeat for each. FILE is a .npy, a .npz (NAME=FILE.npz:ARRAY "
     "takes one array), a PNG or JPEG, or a folder of these; it may be a FIFO, and - is standard "
     "input"},
    {"size", HTH_OPTION_TEXT, "HxW",
     "pictures: height and width, where the model leaves them open"},
    {"scale", HTH_OPTION_TEXT, "S",
     "pictures: each value becomes (x * S - mean) / std: 1, 1/255, .. (the model's, else 1/255)"},
    {"mean", HTH_OPTION_TEXT, "M,..",
     "pictures: mean of all channels, or one of each (the model's, else 0)"},
    {"std", HTH_OPTION_TEXT, "D,..",
     "pictures: standard deviation of all channels, or one of each (the model's, else 1)"},
    {"bgr", HTH_OPTION_SWITCH, "on|off",
     "pictures: blue, green, red instead of red, green, blue (as the model says, else off)"},
    {"classes", HTH_OPTION_PATH, "FILE",
     "the names of the classes, one a line or a JSON list (the model's)"},
    {"output-dir", HTH_OPTION_PATH, "DIR", "write each output to DIR/NAME.npy"},
    {"labels", HTH_OPTION_PATH, "FILE.npy",
     "one label per row of the first output: prints the accuracy"},
    {"priority", HTH_OPTION_INT, "N",
     "priority in the queue; 1 is served first. Default: the model's"},
    {"timeout", HTH_OPTION_INT, "MS", "queue timeout in milliseconds. Default: the model's"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

const hth_command hth_cmd_infer = {
    "infer",
    "NAME[:VERSION] --input [NAME=]FILE [--output-dir DIR]",
    "run a model once\n"
    "Prints which version answered, and the outputs' names, types, shapes and largest values; of\n"
    "scores whose classes have names, the five best of each sample. NAME= may be left out where\n"
    "the model has one input. Several pictures of an input are a batch. Pictures are resampled\n"
    "(bilinear) to the input's height and width, not cropped; docs/pictures.md tells more.",
    1,
    1,
    infer_options,
    .run = cmd_infer,
    .examples = "hearth infer digits --input images.npy --output-dir out\n"
                "hearth infer pets --input cat.jpg --input dog.png --classes pets.txt\n"
                "hearth infer pets --input photos --mean 0.485,0.456,0.406 "
                "--std 0.229,0.224,0.225\n"
                "hearth infer pair --input left=a.npy --input right=arrays.npz:b\n"
                "hearth infer pets --input - <cat.jpg\n"};
