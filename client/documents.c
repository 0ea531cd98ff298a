// SPDX-License-Identifier: Apache-2.0
// The answer to a question that wants files written has them as "files": {"out": .., ..}. A file
// appears whole, in the place of what was there; what is no file, a terminal or a pipe, is written
// as it is.
#include "client/documents.h"

#include "base/alloc.h"
#include "base/file.h"
#include "client/atomic_file.h"

#include <jansson.h>

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DOCUMENT_BYTES ((size_t)256 << 20) // of a file that is read

static const char *const documents_read[] = {"problem", "profile", "shards"};
static const struct {
    const char *what, *key;
} documents_written[] = {
    {"plan", "out"}, {"plan", "trace"}, {"plan", "write-profile"}, {"bench", "trace"}};

// document_begins ends the reading of what cannot become JSON: it may have no end.
static hth_err document_begins(const void *data, size_t n, size_t *end)
{
    const char *text = data;
    size_t at = 0;
    (void)end;
    while (at < n && strchr(" \t\r\n", text[at]) != NULL && text[at] != 0) {
        at++;
    }
    return at == n || text[at] == '{' || text[at] == '['
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "line 1: it is not JSON, which begins with { or [");
}

static hth_err document_load(const char *path, json_t **out)
{
    json_error_t where;
    void *text;
    size_t bytes;
    HTH_TRY(hth_file_load_own(path, DOCUMENT_BYTES, document_begins, &text, &bytes));
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &where);
    hth_free(text);
    return *out != NULL ? HTH_OK
                        : hth_fail(HTH_EINVAL, "'%s' line %d: %s", path, where.line,
                                   hth_err_json(where.text));
}

// document_target is where `path` leads, links followed; hth_alloc'd.
static char *document_target(const char *path)
{
    char real[PATH_MAX];
    return hth_strdup(realpath(path, real) != NULL ? real : path);
}

// document_may says at once what would fail once the answer is there.
static hth_err document_may(const char *path)
{
    struct stat st;
    const char *slash = strrchr(path, '/');
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        return S_ISDIR(st.st_mode) ? hth_fail(HTH_EINVAL, "cannot write '%s': it is a folder", path)
                                   : HTH_OK;
    }
    char *folder = slash == NULL ? hth_strdup(".") : hth_strndup(path, (size_t)(slash - path) + 1);
    if (folder == NULL) {
        return hth_no_memory("a document");
    }
    int rc = access(folder, W_OK | X_OK), e = errno;
    hth_free(folder);
    return rc == 0 ? HTH_OK : hth_fail_errno(e, "cannot write '%s'", path);
}

static hth_err documents_note(hth_documents *documents, const char *what, json_t *args, bool *any)
{
    for (size_t i = 0; i < sizeof documents_written / sizeof *documents_written; i++) {
        const char *key = documents_written[i].key;
        const char *path = json_string_value(json_object_get(args, key));
        if (path == NULL || strcmp(what, documents_written[i].what) != 0) {
            continue;
        }
        documents->key[documents->n] = key;
        documents->path[documents->n] = document_target(path);
        if (documents->path[documents->n] == NULL) {
            return hth_no_memory("a document");
        }
        HTH_TRY(document_may(documents->path[documents->n++]));
        json_object_set_new(args, key, json_true());
        *any = true;
    }
    return HTH_OK;
}

static hth_err documents_fill(json_t *args, bool *any)
{
    for (size_t i = 0; i < sizeof documents_read / sizeof *documents_read; i++) {
        json_t *doc;
        const char *path = json_string_value(json_object_get(args, documents_read[i]));
        if (path != NULL) {
            HTH_TRY(document_load(path, &doc));
            json_object_set_new(args, documents_read[i], doc);
            *any = true;
        }
    }
    return HTH_OK;
}

static char *document_text(const json_t *doc)
{
    char *text = json_dumps(doc, JSON_COMPACT | JSON_ENCODE_ANY);
    char *out = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    return out;
}

hth_err hth_documents_read(const char *what, const char *arguments, hth_documents *documents,
                           char **changed)
{
    bool any = false;
    *documents = (hth_documents){.n = 0};
    *changed = NULL;
    json_t *args = arguments != NULL ? json_loads(arguments, 0, NULL) : NULL;
    if (!json_is_object(args)) { // the server says what is wrong with it
        json_decref(args);
        return HTH_OK;
    }
    hth_err err = documents_fill(args, &any);
    if (err == HTH_OK) {
        err = documents_note(documents, what, args, &any);
    }
    if (err == HTH_OK && any) {
        *changed = document_text(args);
        err = *changed != NULL ? HTH_OK : hth_no_memory("a document");
    }
    json_decref(args);
    return err;
}

// document_put writes to what is no file.
static hth_err document_put(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");
    bool good = f != NULL && fputs(text, f) >= 0 && fputc('\n', f) >= 0;
    int e = errno;
    good = (f == NULL || fclose(f) == 0) && good;
    return good ? HTH_OK : hth_fail_errno(e, "cannot write '%s'", path);
}

static hth_err document_write(const char *path, const json_t *doc)
{
    struct stat st;
    char *text = doc != NULL ? document_text(doc) : NULL;
    if (text == NULL) {
        return doc == NULL ? hth_fail(HTH_ENOTSUP, "the server sent nothing to write to '%s'", path)
                           : hth_no_memory("a document");
    }
    bool special = stat(path, &st) == 0 && !S_ISREG(st.st_mode);
    hth_atomic_file_piece piece[] = {{text, strlen(text)}, {"\n", 1}};
    hth_err err = special ? document_put(path, text) : hth_atomic_file_write(path, piece, 2);
    hth_free(text);
    return err;
}

hth_err hth_documents_write(const hth_documents *documents, char *json, char **out)
{
    hth_err err = HTH_OK;
    *out = json;
    if (documents->n == 0) {
        return HTH_OK;
    }
    json_t *doc = json_loads(json, 0, NULL);
    for (int i = 0; i < documents->n && err == HTH_OK; i++) {
        err = document_write(documents->path[i],
                             json_object_get(json_object_get(doc, "files"), documents->key[i]));
    }
    json_object_del(doc, "files");
    hth_free(json);
    *out = err == HTH_OK ? document_text(doc) : NULL;
    json_decref(doc);
    if (err == HTH_OK && *out == NULL) {
        return hth_no_memory("a document");
    }
    return err;
}

void hth_documents_fini(hth_documents *documents)
{
    for (int i = 0; i < documents->n; i++) {
        hth_free(documents->path[i]);
    }
    documents->n = 0;
}
