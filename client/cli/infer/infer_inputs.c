// SPDX-License-Identifier: Apache-2.0
#include "client/cli/infer/infer_inputs.h"

#include "base/alloc.h"
#include "base/err.h"
#include "base/file.h"
#include "client/data/archive.h"
#include "client/data/image.h"
#include "client/data/picture.h"
#include "client/npy.h"

#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

// One --input, taken apart.
typedef struct input_words {
    char *name;        // NULL: not given
    char *path;        // a file, a folder, or "-"
    const char *array; // NULL: not given
    char *text;        // all of it; owns the others
} input_words;

void hth_infer_inputs_free(hth_infer_inputs *in)
{
    for (int i = 0; i < in->n; i++) {
        hth_free(in->t[i].data);
        hth_free(in->name[i]);
    }
    for (int i = 0; i < in->n_pictures; i++) {
        hth_free(in->picture[i].shown);
        hth_free(in->picture[i].data);
    }
    hth_free(in->picture);
}

// ---- words

static bool words_end(const char *text, size_t n, const char *tail)
{
    size_t k = strlen(tail);
    return n >= k && strncasecmp(text + n - k, tail, k) == 0;
}

static bool words_there(const char *path)
{
    return access(path, F_OK) == 0;
}

// words_split: a file whose own name has a '=' or a ':' is taken as it is.
static hth_err words_split(const char *text, input_words *out)
{
    *out = (input_words){.text = hth_strdup(text)};
    if (out->text == NULL) {
        return hth_no_memory("an input");
    }
    char *equals = strchr(out->text, '=');
    bool whole = equals == NULL || (words_there(text) && !words_there(equals + 1));
    out->path = out->text;
    if (!whole) {
        *equals = 0;
        out->name = out->text;
        out->path = equals + 1;
    }
    char *colon = words_there(out->path) ? NULL : strrchr(out->path, ':');
    size_t n = colon != NULL ? (size_t)(colon - out->path) : 0;
    if (n > 0 && (words_end(out->path, n, ".npz") || (n == 1 && out->path[0] == '-'))) {
        *colon = 0;
        out->array = colon + 1;
    }
    return HTH_OK;
}

static bool words_stdin(const char *path)
{
    static const char *const names[] = {"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(path, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

// ---- what becomes of a file

// input_new begins an input, whose name is copied.
static hth_err input_new(hth_infer_inputs *in, const char *name, int *out)
{
    for (int i = 0; i < in->n && name != NULL; i++) {
        if (in->name[i] != NULL && strcmp(in->name[i], name) == 0) {
            return hth_fail(HTH_EINVAL, "input '%s' is given twice; only pictures may be several",
                            name);
        }
    }
    if (in->n == HTH_INFER_INPUTS) {
        return hth_fail(HTH_ETOOBIG, "there are more than %d inputs", HTH_INFER_INPUTS);
    }
    char *copy = name != NULL ? hth_strdup(name) : NULL;
    if (name != NULL && copy == NULL) {
        return hth_no_memory("an input");
    }
    *out = in->n++;
    in->t[*out] = (hearth_tensor){.name = copy};
    in->name[*out] = copy;
    return HTH_OK;
}

// input_tensor makes an input of *tensor, whose data it takes over, on an error, too.
static hth_err input_tensor(hth_infer_inputs *in, const char *name, hearth_tensor *tensor)
{
    int i;
    hth_err err = input_new(in, name, &i);
    if (err != HTH_OK) {
        hth_free(tensor->data);
        return err;
    }
    tensor->name = in->name[i];
    in->t[i] = *tensor;
    return HTH_OK;
}

// input_pictures is the input of this name that has pictures, -1: there is none.
static int input_pictures(const hth_infer_inputs *in, const char *name)
{
    for (int i = 0; i < in->n; i++) {
        bool same = name == NULL || in->name[i] == NULL ? name == in->name[i]
                                                        : strcmp(name, in->name[i]) == 0;
        if (in->pictures[i] && same) {
            return i;
        }
    }
    return -1;
}

// input_picture adds a picture. data (may be NULL) is taken over, on an error, too.
static hth_err input_picture(hth_infer_inputs *in, const char *name, const char *path, void *data,
                             size_t bytes)
{
    int i = input_pictures(in, name);
    char *shown = hth_strdup(path);
    hth_err err = shown != NULL && HTH_GROW(in->picture, in->n_pictures, in->cap) == 0
                      ? HTH_OK
                      : hth_no_memory("a picture");
    if (err == HTH_OK && i < 0) {
        err = input_new(in, name, &i);
    }
    if (err != HTH_OK) {
        hth_free(shown);
        hth_free(data);
        return err;
    }
    in->pictures[i] = true;
    in->picture[in->n_pictures++] = (hth_infer_picture){i, shown, data, bytes};
    return HTH_OK;
}

static hth_err input_array(hth_infer_inputs *in, const hth_archive *archive, int i,
                           const char *name)
{
    hearth_tensor t;
    HTH_TRY(hth_archive_read(archive, i, &t));
    return input_tensor(in, name, &t);
}

// input_chosen is the array of an archive that one input is to have.
static hth_err input_chosen(const input_words *words, const hth_archive *archive, int *out)
{
    char names[300];
    const char *wanted = words->array != NULL ? words->array : words->name;
    *out = archive->n == 1 && words->array == NULL ? 0 : hth_archive_find(archive, wanted);
    if (*out >= 0) {
        return HTH_OK;
    }
    return words->array != NULL
               ? hth_fail(HTH_ENOENT, "'%s' has no array '%s'; it has %s", archive->shown, wanted,
                          hth_archive_names(archive, names, sizeof names))
               : hth_fail(HTH_EINVAL,
                          "'%s' has the arrays %s; %s=FILE.npz:ARRAY says which one is the input",
                          archive->shown, hth_archive_names(archive, names, sizeof names), wanted);
}

// input_archive: what numpy calls arr_0, for it was given no name, has none.
static hth_err input_archive(hth_infer_inputs *in, const input_words *words,
                             const hth_archive *archive)
{
    int i;
    if (words->array != NULL || words->name != NULL) {
        HTH_TRY(input_chosen(words, archive, &i));
        return input_array(in, archive, i, words->name);
    }
    bool alone = archive->n == 1 && strcmp(archive->member[0].name, "arr_0") == 0;
    for (i = 0; i < archive->n; i++) {
        HTH_TRY(input_array(in, archive, i, alone ? NULL : archive->member[i].name));
    }
    return HTH_OK;
}

static hth_err input_folder(hth_infer_inputs *in, const input_words *words)
{
    char **names;
    size_t n;
    HTH_TRY(hth_picture_files(words->path, &names, &n));
    hth_err err = HTH_OK;
    for (size_t i = 0; i < n && err == HTH_OK; i++) {
        char *path = hth_asprintf("%s/%s", words->path, names[i]);
        err = path != NULL ? input_picture(in, words->name, path, NULL, 0)
                           : hth_no_memory("a picture");
        hth_free(path);
    }
    hth_picture_files_free(names, n);
    return err;
}

// ---- what a file is

static hth_err input_begins(const void *data, size_t n, size_t *end)
{
    if (hth_npy_is(data, n)) {
        return hth_npy_begins(data, n, end);
    }
    if (hth_image_is(data, n)) {
        *end = HTH_PICTURE_FILE + 1;
        return HTH_OK;
    }
    if (n == 0) {
        return hth_fail(HTH_ECORRUPT, "not a .npy file, but empty");
    }
    return hth_archive_is(data, n)
               ? HTH_OK
               : hth_fail(HTH_ECORRUPT, "not a .npy file, and neither .npz, PNG nor JPEG");
}

static hth_err input_no_arrays(const char *shown)
{
    return hth_fail(HTH_EINVAL, "'%s' is no .npz file, which has arrays", shown);
}

// input_bytes makes inputs of all bytes of a file or stream, which it takes over.
static hth_err input_bytes(hth_infer_inputs *in, const input_words *words, void *data, size_t bytes)
{
    const char *shown = words_stdin(words->path) ? "standard input" : words->path;
    hth_archive archive = {.shown = NULL};
    hearth_tensor t = {.name = NULL};
    if (words->array != NULL && !hth_archive_is(data, bytes)) {
        hth_free(data);
        return input_no_arrays(shown);
    }
    if (hth_image_is(data, bytes) && bytes <= HTH_PICTURE_FILE) {
        return input_picture(in, words->name, shown, data, bytes);
    }
    hth_err err;
    if (hth_image_is(data, bytes)) {
        err = hth_fail(HTH_ETOOBIG, "%s: a picture has at most %zu bytes", shown, HTH_PICTURE_FILE);
    } else if (hth_archive_is(data, bytes)) {
        err = hth_archive_of(shown, data, bytes, &archive);
    } else {
        err = hth_npy_of(shown, data, bytes, &t);
    }
    hth_free(data);
    HTH_TRY(err);
    if (archive.shown == NULL) {
        return input_tensor(in, words->name, &t);
    }
    err = input_archive(in, words, &archive);
    hth_archive_close(&archive);
    return err;
}

static hth_err input_open_archive(hth_infer_inputs *in, const input_words *words)
{
    hth_archive archive;
    HTH_TRY(hth_archive_open(words->path, &archive));
    hth_err err = input_archive(in, words, &archive);
    hth_archive_close(&archive);
    return err;
}

// input_look reads the first bytes of a regular file; *n 0: it is none, or cannot be opened.
static void input_look(const char *path, uint8_t head[8], size_t *n)
{
    struct stat st;
    hth_file f;
    *n = 0;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || hth_file_open(path, path, &f) != HTH_OK) {
        return;
    }
    *n = f.bytes < 8 ? (size_t)f.bytes : 8;
    if (hth_file_read(&f, path, 0, head, *n) != HTH_OK) {
        *n = 0;
    }
    hth_file_close(&f);
}

static hth_err input_file(hth_infer_inputs *in, const input_words *words)
{
    uint8_t head[8] = {0};
    size_t n, bytes;
    void *data;
    input_look(words->path, head, &n);
    if (hth_archive_is(head, n)) {
        return input_open_archive(in, words);
    }
    if (words->array != NULL && n > 0) {
        return input_no_arrays(words->path);
    }
    if (hth_image_is(head, n)) {
        return input_picture(in, words->name, words->path, NULL, 0);
    }
    HTH_TRY(hth_file_load_own(words->path, HTH_NPY_FILE, input_begins, &data, &bytes));
    return input_bytes(in, words, data, bytes);
}

static int input_read(hth_infer_inputs *in, const input_words *words)
{
    struct stat st;
    bool folder = stat(words->path, &st) == 0 && S_ISDIR(st.st_mode);
    hth_err err = folder ? input_folder(in, words) : input_file(in, words);
    return err == HTH_OK ? HTH_CLI_OK : hth_cli_error();
}

// input_sound is asked of all inputs before the first one is read, which may take long.
static int input_sound(hth_infer_inputs *in, const input_words *words)
{
    bool stream = words_stdin(words->path);
    if (stream && in->streamed) {
        return hth_cli_usage("two inputs are to come from standard input, which is only one");
    }
    in->streamed = in->streamed || stream;
    return words->name == NULL || words->name[0] != 0
               ? HTH_CLI_OK
               : hth_cli_usage("--input '=%s' lacks the input's name in front of the '='",
                               words->path);
}

static int input_each(const hth_cli *cli, hth_infer_inputs *in,
                      int (*does)(hth_infer_inputs *in, const input_words *words))
{
    size_t i;
    const json_t *v;
    json_array_foreach(json_object_get(cli->options, "input"), i, v)
    {
        input_words words;
        if (words_split(json_string_value(v), &words) != HTH_OK) {
            return hth_cli_error();
        }
        int rv = does(in, &words);
        hth_free(words.text);
        if (rv != HTH_CLI_OK) {
            return rv;
        }
    }
    return HTH_CLI_OK;
}

int hth_infer_inputs_read(const hth_cli *cli, hth_infer_inputs *in)
{
    int rv = input_each(cli, in, input_sound);
    return rv == HTH_CLI_OK ? input_each(cli, in, input_read) : rv;
}
