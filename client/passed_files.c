// SPDX-License-Identifier: Apache-2.0
// What a server wants of a model's external data is opened here like the server would: below the
// model's folder, whatever the names say. Else a server could ask for any file of its clients'.
#include "client/passed_files.h"

#include "base/alloc.h"
#include "base/file.h"
#include "client/descriptor.h"
#include "client/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

hth_err hth_passed_data(const char *data, char **out)
{
    if (strchr(data, '/') == NULL && access(data, F_OK) != 0) {
        *out = hth_strdup(data);
        return *out != NULL ? HTH_OK : hth_no_memory("a name");
    }
    return hth_passed_path(data, out);
}

hth_err hth_passed_path(const char *path, char **out)
{
    char cwd[4096];
    if (path[0] == '/') {
        *out = hth_strdup(path);
    } else if (getcwd(cwd, sizeof cwd) == NULL) {
        return hth_fail_errno(errno, "the working directory has no path");
    } else {
        *out = hth_asprintf("%s/%s", cwd, path);
    }
    return *out != NULL ? HTH_OK : hth_no_memory("a path");
}

bool hth_passed_to(hearth *handle)
{
    uint64_t uid;
    return strncmp(handle->url, "ipc://", 6) == 0 && hth_descriptor_server(handle, &uid) == HTH_OK;
}

// ---- import

typedef struct passed_import {
    hearth *h;
    const char *path;
    int folder;           // -1: not opened yet
    Hearth__File *files;  // the model first
    Hearth__File **lists; // .. as the message has them
    size_t n;
} passed_import;

static hth_err import_folder(passed_import *import)
{
    const char *slash = strrchr(import->path, '/');
    char *folder = slash == NULL ? hth_strdup(".")
                                 : hth_strndup(import->path, (size_t)(slash - import->path) + 1);
    if (folder == NULL) {
        return hth_no_memory("a request");
    }
    import->folder = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    hth_err err = import->folder >= 0 ? HTH_OK : hth_fail_errno(errno, "cannot open '%s'", folder);
    hth_free(folder);
    return err;
}

// import_pass opens the i-th file and passes it.
static hth_err import_pass(passed_import *import, size_t i)
{
    Hearth__File *f = &import->files[i];
    hth_file file;
    hth_err err = i == 0 ? hth_file_open(import->path, import->path, &file)
                         : hth_file_open_at(import->folder, f->location, f->location, &file);
    if (err != HTH_OK) {
        return i == 0 ? err : hth_err_prefix(err, "external data");
    }
    err = hth_descriptor_pass(import->h, file.fd, &f->handle);
    hth_file_close(&file);
    return err;
}

// import_list makes room for `n` files, and names them.
static hth_err import_list(passed_import *import, size_t n, char *const *locations)
{
    import->files = hth_calloc(n, sizeof *import->files);
    import->lists = hth_calloc(n, sizeof(Hearth__File *));
    if (import->files == NULL || import->lists == NULL) {
        return hth_no_memory("a request");
    }
    for (size_t i = 0; i < n; i++) {
        hearth__file__init(&import->files[i]);
        import->lists[i] = &import->files[i];
        import->files[i].location = i == 0 ? (char *)"" : locations[i - 1];
    }
    import->n = n;
    return HTH_OK;
}

static void import_clear(passed_import *import)
{
    hth_free(import->files);
    hth_free(import->lists);
    import->files = NULL;
    import->lists = NULL;
}

static hth_err import_try(passed_import *import, Hearth__Import *body, size_t n,
                          char *const *locations, const hth_watch *watch, hth_reply *reply)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    hth_err err = import_list(import, n, locations);
    for (size_t i = 0; i < n && err == HTH_OK; i++) {
        err = import_pass(import, i);
    }
    if (err == HTH_OK) {
        body->files = import->lists;
        body->n_files = n;
        q.body_case = HEARTH__REQUEST__BODY_IMPORT_MODEL;
        q.import_model = body;
        err = hth_exchange(import->h, &q, NULL, watch, reply);
    }
    import_clear(import);
    return err;
}

hth_err hth_passed_import(hearth *handle, Hearth__Import *body, const char *path,
                          const hth_watch *watch, hth_reply *reply)
{
    passed_import p = {.h = handle, .path = path, .folder = -1};
    hth_reply wanted;
    HTH_TRY(import_try(&p, body, 1, NULL, watch, reply));
    if (reply->head->body_case == HEARTH__REPLY__BODY_WANTED) {
        wanted = *reply;
        memset(reply, 0, sizeof *reply);
        hth_err err = import_folder(&p);
        if (err == HTH_OK) {
            err = import_try(&p, body, wanted.head->wanted->n_locations + 1,
                             wanted.head->wanted->locations, watch, reply);
        }
        hth_reply_fini(&wanted);
        if (p.folder >= 0) {
            close(p.folder);
        }
        HTH_TRY(err);
    }
    if (reply->head->body_case != HEARTH__REPLY__BODY_IMPORTED) {
        hth_reply_fini(reply);
        return hth_fail(HTH_ECORRUPT, "%s sent an unexpected kind of reply", handle->url);
    }
    return HTH_OK;
}

// ---- export

hth_err hth_passed_export(hearth *handle, Hearth__Export *body, const char *path,
                          const hth_watch *watch)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    hth_atomic_file w;
    hth_reply r;
    HTH_TRY(hth_atomic_file_begin(path, &w));
    hth_err err = hth_descriptor_pass(handle, w.fd, &body->handle);
    q.body_case = HEARTH__REQUEST__BODY_EXPORT_MODEL;
    q.export_model = body;
    if (err == HTH_OK) {
        err = hth_exchange(handle, &q, NULL, watch, &r);
    }
    if (err == HTH_OK) {
        hth_reply_fini(&r);
    }
    hth_err end = hth_atomic_file_end(&w, err == HTH_OK);
    HTH_TRY(err);
    return end;
}
