// SPDX-License-Identifier: Apache-2.0
// The datasets that a question names: passed to a server on this machine, sent to one elsewhere, or
// left as the name of one that is stored.
#include "client/passed_files.h"

#include "base/alloc.h"
#include "base/file.h"
#include "client/content/dataset.h"
#include "client/data/data.h"
#include "client/descriptor.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The arguments that name datasets; no kind of job has more than HTH_PASSED_FILES of them.
static const char *const passed_keys[] = {"data", "eval", "start"};
#define PASSED_KEYS (int)(sizeof passed_keys / sizeof *passed_keys)

typedef struct passed_query {
    hearth *h;
    json_t *args;
    bool here;  // the server is on this machine: files can be passed, or their paths
    bool local; // .. over a socket; else the engine is in this process
    bool put;   // it stores a dataset: `data` is a file, and what it is goes with it
    bool again; // the server may open them by their paths as well
    hth_data_options options;
    uint64_t *handles;
    size_t n;
    const hth_watch *watch;
    char **answer; // of a dataset that is stored by content: there is nothing left to ask
} passed_query;

// query_options takes what is said about the files out of the arguments; strings stay the text's.
static hth_err query_options(passed_query *query, const json_t *args)
{
    const char *size = json_string_value(json_object_get(args, "size"));
    query->options.label = json_string_value(json_object_get(args, "label"));
    json_object_del(query->args, "label");
    json_object_del(query->args, "size");
    return size != NULL ? hth_data_size(size, &query->options) : HTH_OK;
}

// query_about has a dataset that is stored say what it was.
static hth_err query_about(passed_query *query, const hth_data *data)
{
    char *meta = query->put ? hth_data_meta(data) : NULL;
    json_t *about = meta != NULL ? json_loads(meta, 0, NULL) : NULL;
    bool kept = !query->put || json_object_set_new(query->args, "about", about) == 0;
    hth_free(meta);
    return kept ? HTH_OK : hth_fail(HTH_EINVAL, "%s: a class's name is not UTF-8", data->path);
}

// query_spool makes a file of a dataset that the server does not read; *fd is -1 for one that it
// does.
static hth_err query_spool(passed_query *query, const char *path, int *fd)
{
    const char *format;
    hth_data *data;
    *fd = -1;
    hth_err err = hth_data_format(path, &format);
    if (err != HTH_OK) {
        return hth_err_prefix(err, "dataset %s", path);
    }
    if (strcmp(format, "safetensors") == 0 && query->options.label == NULL &&
        query->options.width == 0) {
        return HTH_OK;
    }
    HTH_TRY(hth_data_open(path, &query->options, &data));
    err = query_about(query, data);
    if (err == HTH_OK) {
        err = hth_data_spool(data, fd, NULL);
    }
    hth_data_close(data);
    return err;
}

// query_here names a spooled file for an engine in this process, which may open it later, too.
static hth_err query_here(passed_query *query, const char *key, int fd)
{
    char name[40];
    hearth *h = query->h;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    pthread_mutex_lock(&h->passing);
    bool grown = HTH_GROW(h->spooled, h->n_spooled, h->cap_spooled) == 0;
    if (grown) {
        h->spooled[h->n_spooled++] = fd;
    }
    pthread_mutex_unlock(&h->passing);
    if (!grown) {
        close(fd);
        return hth_no_memory("a request");
    }
    return json_object_set_new(query->args, key, json_string(name)) == 0
               ? HTH_OK
               : hth_no_memory("a request");
}

// query_name makes a name of a stored dataset of what is no file: hth_passed_data left it as it
// was.
static hth_err query_name(passed_query *query, const char *key)
{
    const char *text = json_string_value(json_object_get(query->args, key));
    if (text == NULL || query->put || strchr(text, '/') != NULL) {
        return HTH_OK;
    }
    json_t *v = json_pack("{s:s}", "dataset", text);
    return v != NULL && json_object_set_new(query->args, key, v) == 0 ? HTH_OK
                                                                      : hth_no_memory("a request");
}

// query_descriptor passes the file at `path`, or what was made of it: `spooled`, which it takes
// over; -1: it is a file to pass as it is.
static hth_err query_descriptor(passed_query *query, const char *key, const char *path, int spooled)
{
    hth_file file = {.fd = spooled};
    if (spooled < 0) {
        HTH_TRY(hth_file_open(path, path, &file));
    }
    json_t *v = NULL;
    hth_err err;
    HTH_GOTO(hth_descriptor_pass(query->h, file.fd, &query->handles[query->n]), done);
    v = json_pack("{s:s, s:i}", "file", path, "descriptor", (int)query->n);
    if (query->again && spooled < 0) {
        json_object_set_new(v, "path", json_string(path));
    }
    if (v == NULL || json_object_set(query->args, key, v) != 0) {
        err = hth_no_memory("a request");
        goto done;
    }
    query->n++;
done:
    json_decref(v);
    hth_file_close(&file);
    return err;
}

// query_pass passes the file that one argument names.
static hth_err query_pass(passed_query *query, const char *key)
{
    HTH_TRY(query_name(query, key));
    json_t *path = json_incref(json_object_get(query->args, key));
    const char *text = json_string_value(path);
    int spooled = -1;
    hth_err err = HTH_OK;
    if (text == NULL) {
        goto done;
    }
    HTH_GOTO(query_spool(query, text, &spooled), done);
    if (query->local && query->n == HTH_PASSED_FILES) {
        err = hth_fail(HTH_EINVAL, "more than %d files for one job", HTH_PASSED_FILES);
    } else if (query->local) {
        err = query_descriptor(query, key, text, spooled);
    } else if (spooled >= 0) {
        err = query_here(query, key, spooled);
    }
done:
    json_decref(path);
    return err;
}

// query_exchange passes the socket of a job that is one rank of several.
static hth_err query_exchange(passed_query *query)
{
    json_t *exchange = json_object_get(query->args, "exchange");
    const json_t *fd = json_object_get(exchange, "fd");
    if (!json_is_integer(fd) || !query->local) {
        return HTH_OK; // an engine in this process has it already
    }
    if (query->n == HTH_PASSED_FILES) {
        return hth_fail(HTH_EINVAL, "more than %d files for one job", HTH_PASSED_FILES);
    }
    HTH_TRY(hth_descriptor_pass(query->h, (int)json_integer_value(fd), &query->handles[query->n]));
    json_t *passed =
        json_pack("{s:O, s:O, s:i}", "rank", json_object_get(exchange, "rank"), "ranks",
                  json_object_get(exchange, "ranks"), "descriptor", (int)query->n);
    query->n++;
    return passed != NULL && json_object_set_new(query->args, "exchange", passed) == 0
               ? HTH_OK
               : hth_no_memory("a request");
}

// query_sent says what became of a dataset that was sent: the answer, or the argument's new value.
static hth_err query_sent(passed_query *query, const char *key, const char *name,
                          const hth_content_dataset_result *result)
{
    json_t *v = query->put ? json_pack("{s:s, s:b, s:I, s:I}", "name", name, "unchanged",
                                       result->unchanged, "bytes", (json_int_t)result->bytes,
                                       "moved", (json_int_t)result->moved)
                           : json_pack("{s:s, s:b}", "dataset", name, "own", 1);
    if (v == NULL || !query->put) {
        return v != NULL && json_object_set_new(query->args, key, v) == 0
                   ? HTH_OK
                   : hth_no_memory("a request");
    }
    char *text = json_dumps(v, JSON_COMPACT);
    *query->answer = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    json_decref(v);
    return *query->answer != NULL ? HTH_OK : hth_no_memory("a request");
}

// query_upload sends `file`, a dataset, as what one argument names.
static hth_err query_upload(passed_query *query, const char *key, const hth_file *file,
                            const char *shown)
{
    char upload[HTH_CONTENT_UPLOAD];
    hth_content_dataset_result r;
    const hth_watch *watch = query->put ? query->watch : NULL;
    const char *name = query->put ? json_string_value(json_object_get(query->args, "name")) : "";
    if (name == NULL) {
        return hth_fail(HTH_EINVAL, "the argument 'name' is missing");
    }
    json_t *about = json_object_get(query->args, "about");
    char *meta = about != NULL ? json_dumps(about, JSON_COMPACT) : NULL;
    hth_err err = hth_content_dataset(query->h, name, meta, file, shown, watch, upload, &r);
    free(meta);
    HTH_TRY(err);
    return query_sent(query, key, query->put ? name : upload, &r);
}

// query_send sends the dataset that one argument names to a server that is elsewhere.
static hth_err query_send(passed_query *query, const char *key)
{
    hth_file f = {.fd = -1};
    HTH_TRY(query_name(query, key));
    json_t *path = json_incref(json_object_get(query->args, key));
    const char *text = json_string_value(path);
    int spooled = -1;
    hth_err err = HTH_OK;
    if (text == NULL) {
        goto done;
    }
    HTH_GOTO(query_spool(query, text, &spooled), done);
    HTH_GOTO(spooled >= 0 ? hth_file_again(spooled, text, &f) : hth_file_open(text, text, &f),
             done);
    err = query_upload(query, key, &f, text);
done:
    hth_file_close(&f);
    if (spooled >= 0) {
        close(spooled);
    }
    json_decref(path);
    return err;
}

static hth_err query_files(passed_query *query, const json_t *args)
{
    uint64_t uid = 0;
    HTH_TRY(query_options(query, args));
    if (!query->here && json_object_get(args, "exchange") != NULL) {
        return hth_fail(HTH_ENOTSUP,
                        "a rank of several needs a server on this machine (ipc://), or "
                        "an engine in this process");
    }
    for (int i = 0; i < PASSED_KEYS && !query->here; i++) {
        HTH_TRY(query_send(query, passed_keys[i]));
    }
    if (!query->here) {
        return HTH_OK;
    }
    if (query->local && hth_descriptor_server(query->h, &uid) != HTH_OK) {
        return json_object_get(query->args, "exchange") == NULL
                   ? HTH_OK // it takes none: the paths go
                   : hth_fail(HTH_ENOTSUP,
                              "this server takes no descriptors, and a rank needs one");
    }
    query->again = geteuid() == 0 || geteuid() == uid;
    for (int i = 0; i < PASSED_KEYS; i++) {
        HTH_TRY(query_pass(query, passed_keys[i]));
    }
    return query_exchange(query);
}

hth_err hth_passed_query(hearth *handle, const char *what, const char *arguments,
                         const hth_watch *watch, char **changed, uint64_t handles[HTH_PASSED_FILES],
                         size_t *count, char **answer)
{
    passed_query q = {.h = handle, .handles = handles, .watch = watch, .answer = answer};
    hth_err err = HTH_OK;
    bool any = false;
    *changed = *answer = NULL;
    *count = 0;
    q.here = handle->same_machine;
    q.put = strcmp(what, "dataset_put") == 0;
    q.local = strncmp(handle->url, "ipc://", 6) == 0;
    json_t *args = arguments != NULL ? json_loads(arguments, 0, NULL) : NULL;
    for (int i = 0; i < PASSED_KEYS; i++) {
        any = any || json_is_string(json_object_get(args, passed_keys[i]));
    }
    any = any || json_is_object(json_object_get(args, "exchange"));
    q.args = any ? json_copy(args) : NULL;
    if (any) {
        err = q.args != NULL ? query_files(&q, args) : hth_no_memory("a request");
    }
    if (err == HTH_OK && any && !json_equal(args, q.args)) {
        char *text = json_dumps(q.args, JSON_COMPACT);
        *changed = text != NULL ? hth_strdup(text) : NULL;
        free(text);
        err = *changed != NULL ? HTH_OK : hth_no_memory("a request");
    }
    *count = q.n;
    json_decref(q.args);
    json_decref(args);
    return err;
}

void hth_passed_fini(hearth *handle)
{
    for (int i = 0; i < handle->n_spooled; i++) {
        close(handle->spooled[i]);
    }
    hth_free(handle->spooled);
}

void hth_passed_undo(hearth *handle, const char *changed)
{
    char why[1024];
    json_t *args = changed != NULL ? json_loads(changed, 0, NULL) : NULL;
    snprintf(why, sizeof why, "%s", hth_err_detail());
    for (int i = 0; i < PASSED_KEYS; i++) {
        const json_t *data = json_object_get(args, passed_keys[i]);
        const char *name = json_string_value(json_object_get(data, "dataset"));
        if (name != NULL && json_is_true(json_object_get(data, "own"))) {
            (void)hearth_data_remove(handle, name);
        }
    }
    json_decref(args);
    hth_fail(HTH_EINVAL, "%s", why);
}
