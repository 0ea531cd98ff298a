// SPDX-License-Identifier: Apache-2.0
// The public functions that put models and datasets into a store and take them out.
#include "client/content/fetch.h"
#include "client/content/send.h"
#include "client/exchange.h"
#include "client/export_format.h"
#include "client/jobs/job_document.h"
#include "client/passed_files.h"
#include "client/query.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static hth_err store_path(hearth *h, const char *path, char **out)
{
    return h->same_machine
               ? hth_passed_path(path, out)
               : hth_fail(HTH_EDENIED,
                          "%s is not local: files are only passed by path on this machine", h->url);
}

static hth_err store_import(hearth *h, Hearth__Import *body, const char *path,
                            const hth_watch *watch, hearth_import_report *out)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    hth_reply r;
    HTH_TRY(store_path(h, path, &body->path));
    q.body_case = HEARTH__REQUEST__BODY_IMPORT_MODEL;
    q.import_model = body;
    hth_err err = hth_passed_to(h)
                      ? hth_passed_import(h, body, path, watch, &r)
                      : hth_exchange_call(h, &q, HEARTH__REPLY__BODY_IMPORTED, watch, &r);
    hth_free(body->path);
    HTH_TRY(err);
    hth_content_report(r.head->imported, 0, out);
    hth_reply_fini(&r);
    return HTH_OK;
}

// store_send imports a file into a server that is elsewhere: what it lacks of it is sent.
static hth_err store_send(hearth *h, const Hearth__Import *body, const char *path,
                          const hth_watch *watch, hearth_import_report *out)
{
    hth_content_version v = {
        .name = body->name, .max_batch = body->max_batch, .no_wait = body->no_wait};
    HTH_TRY(hth_exchange_check(h));
    return hth_content_import(h, path, &v, watch, out);
}

hearth_status hearth_import_with(hearth *h, const char *name, const char *path, int max_batch,
                                 const hearth_import_options *options, hearth_progress progress,
                                 void *ctx, hearth_import_report *out)
{
    Hearth__Import body = HEARTH__IMPORT__INIT;
    hearth_import_report report;
    hth_watch watch = {.fn = progress, .ctx = ctx};
    body.name = (char *)name;
    body.max_batch = max_batch;
    body.no_wait = options != NULL && options->no_wait != 0;
    hth_err err = h->same_machine ? store_import(h, &body, path, &watch, &report)
                                  : store_send(h, &body, path, &watch, &report);
    if (err == HTH_OK && out != NULL) {
        *out = report;
    }
    return (hearth_status)err;
}

hearth_status hearth_import(hearth *h, const char *name, const char *path, int max_batch,
                            hearth_progress progress, void *ctx, hearth_import_result *out)
{
    hearth_import_report report;
    hearth_status s = hearth_import_with(h, name, path, max_batch, NULL, progress, ctx, &report);
    if (s == HEARTH_OK && out != NULL) {
        *out = report.result;
    }
    return s;
}

// memory_write has a file of its own, at `path`, be the model in memory.
static hth_err memory_write(const char *path, const void *onnx, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const char *at = onnx;
    ssize_t n = fd < 0 ? -1 : 0;
    for (size_t left = bytes; n >= 0 && left > 0; left -= (size_t)n, at += n) {
        do {
            n = write(fd, at, left);
        } while (n < 0 && errno == EINTR);
    }
    hth_err err = n < 0 ? hth_fail_errno(errno, "a copy of the model at %s", path) : HTH_OK;
    if (fd >= 0 && close(fd) != 0 && err == HTH_OK) {
        err = hth_fail_errno(errno, "a copy of the model at %s", path);
    }
    return err;
}

// memory_import has a file in `folder`, its own, be the model while it is imported.
static hth_err memory_import(hearth *h, const char *folder, const char *name, const void *onnx,
                             size_t bytes, int max_batch, hearth_import_result *out)
{
    char *path = hth_asprintf("%s/model.onnx", folder);
    hth_err err = path == NULL ? hth_no_memory("a path") : memory_write(path, onnx, bytes);
    if (err == HTH_OK) {
        err = (hth_err)hearth_import(h, name, path, max_batch, NULL, NULL, out);
    }
    if (path != NULL) {
        unlink(path);
    }
    hth_free(path);
    return err;
}

hearth_status hearth_import_memory(hearth *h, const char *name, const void *onnx, size_t bytes,
                                   int max_batch, hearth_import_result *out)
{
    const char *temporary = getenv("TMPDIR");
    char folder[256];
    hth_err err = hth_exchange_check(h);
    if (err != HTH_OK) {
        return (hearth_status)err;
    }
    if (onnx == NULL || bytes == 0) {
        return (hearth_status)hth_fail(HTH_EINVAL, "a model of no bytes");
    }
    int n = snprintf(folder, sizeof folder, "%s/hearth-import-XXXXXX",
                     temporary != NULL && temporary[0] == '/' ? temporary : "/tmp");
    if (n >= (int)sizeof folder || mkdtemp(folder) == NULL) {
        return (hearth_status)hth_fail_errno(errno, "a folder for a copy of the model, %s", folder);
    }
    err = memory_import(h, folder, name, onnx, bytes, max_batch, out);
    rmdir(folder);
    return (hearth_status)err;
}

hearth_status hearth_remove(hearth *h, const char *model)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Remove body = HEARTH__REMOVE__INIT;
    hth_reply r;
    body.model = (char *)model;
    q.body_case = HEARTH__REQUEST__BODY_REMOVE;
    q.remove = &body;
    hth_err err = hth_exchange_call(h, &q, HEARTH__REPLY__BODY_FINISHED, NULL, &r);
    if (err == HTH_OK) {
        hth_reply_fini(&r);
    }
    return (hearth_status)err;
}

hearth_status hearth_gc(hearth *h, uint64_t *files, uint64_t *bytes)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Gc body = HEARTH__GC__INIT;
    hth_reply r;
    q.body_case = HEARTH__REQUEST__BODY_GC;
    q.gc = &body;
    hth_err err = hth_exchange_call(h, &q, HEARTH__REPLY__BODY_COLLECTED, NULL, &r);
    if (err == HTH_OK) {
        *files = r.head->collected->files;
        *bytes = r.head->collected->bytes;
        hth_reply_fini(&r);
    }
    return (hearth_status)err;
}

static hth_err store_export(hearth *h, Hearth__Export *body, const char *path,
                            const hth_watch *watch)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    hth_reply r;
    if (hth_passed_to(h)) {
        return hth_passed_export(h, body, path, watch);
    }
    q.body_case = HEARTH__REQUEST__BODY_EXPORT_MODEL;
    q.export_model = body;
    HTH_TRY(hth_exchange_call(h, &q, HEARTH__REPLY__BODY_FINISHED, watch, &r));
    hth_reply_fini(&r);
    return HTH_OK;
}

static hth_err store_exported(const char *path, hearth_export_report *out)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        return hth_fail_errno(errno, "%s was written, but", path);
    }
    *out = (hearth_export_report){.bytes = (uint64_t)st.st_size};
    return HTH_OK;
}

// store_export_here has a server of this machine write the file.
static hth_err store_export_here(hearth *h, const char *model, const char *path,
                                 const hth_watch *watch)
{
    Hearth__Export body = HEARTH__EXPORT__INIT;
    HTH_TRY(store_path(h, path, &body.path));
    body.model = (char *)model;
    hth_err err = store_export(h, &body, path, watch);
    hth_free(body.path);
    return err;
}

static hth_err store_export_any(hearth *h, const char *model, const char *path,
                                const hth_watch *watch, hearth_export_report *out)
{
    hth_export_format format;
    hearth_export_report report;
    HTH_TRY(hth_export_format_of(path, &format));
    HTH_TRY(hth_exchange_check(h));
    if (h->same_machine) {
        HTH_TRY(store_export_here(h, model, path, watch));
        return out != NULL ? store_exported(path, out) : HTH_OK;
    }
    HTH_TRY(hth_content_export(h, model, path, watch, &report));
    if (out != NULL) {
        *out = report;
    }
    return HTH_OK;
}

hearth_status hearth_export_with(hearth *h, const char *model, const char *path,
                                 hearth_progress progress, void *ctx, hearth_export_report *out)
{
    hth_watch watch = {.fn = progress, .ctx = ctx};
    return (hearth_status)store_export_any(h, model, path, &watch, out);
}

hearth_status hearth_export(hearth *h, const char *model, const char *path)
{
    return hearth_export_with(h, model, path, NULL, NULL, NULL);
}

// ---- datasets

hearth_status hearth_data_put(hearth *h, const char *name, const char *path,
                              const hearth_data_options *options, hearth_data_result *out)
{
    hearth_data_options o = {.size = sizeof o};
    json_t *doc = NULL;
    char *whole;
    if (options != NULL && hth_options_read(options, &o, sizeof o, sizeof o) != HTH_OK) {
        return HEARTH_ENOTSUP;
    }
    hth_err err = hth_passed_path(path, &whole);
    if (err != HTH_OK) {
        return (hearth_status)err;
    }
    json_t *args = json_pack("{s:s, s:s, s:s*, s:s*}", "name", name, "data", whole, "label",
                             o.label, "size", o.image_size);
    hth_free(whole);
    err = hth_query_document(h, "dataset_put", args, &doc);
    if (err == HTH_OK && out != NULL) {
        *out = (hearth_data_result){hth_query_count(doc, "bytes"), hth_query_count(doc, "moved")};
    }
    json_decref(doc);
    return (hearth_status)err;
}

hearth_status hearth_data_remove(hearth *h, const char *name)
{
    json_t *doc;
    hth_err err = hth_query_document(h, "dataset_rm", json_pack("{s:s}", "name", name), &doc);
    json_decref(doc);
    return (hearth_status)err;
}
