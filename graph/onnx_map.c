// SPDX-License-Identifier: Apache-2.0
// The files that a model consists of, mapped: the .onnx file and the external data files beside it.
// Because they are mapped, opening a model costs time by the number of its nodes and not by the
// number of its bytes. A file that somebody shortens while it is mapped kills the process that
// reads it (SIGBUS): models are replaced by renaming.
#include "graph/onnx_map.h"

#include "base/alloc.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static hth_err map_no_memory(void)
{
    return hth_fail(HTH_ENOMEM, "no memory to read the model");
}

// map_file adds an open file to m->map. `shown` is the name for messages.
static hth_err map_file(hth_onnx_maps *m, const hth_file *f, const char *location,
                        const char *shown)
{
    m->bytes += f->bytes;
    if (m->bytes > m->max_bytes) {
        return hth_fail(HTH_ETOOBIG, "'%s': the model is larger than the limit of %llu bytes",
                        shown, (unsigned long long)m->max_bytes);
    }
    if (HTH_GROW(m->map, m->n, m->cap) != 0) {
        return map_no_memory();
    }
    hth_onnx_map one = {.location = hth_strdup(location), .bytes = (size_t)f->bytes};
    if (one.location == NULL) {
        return map_no_memory();
    }
    if (one.bytes > 0) {
        one.data = mmap(NULL, one.bytes, PROT_READ, MAP_PRIVATE, f->fd, 0);
        if (one.data == MAP_FAILED) {
            hth_free(one.location);
            return hth_fail_errno(errno, "cannot map '%s'", shown);
        }
    }
    m->map[m->n++] = one;
    return HTH_OK;
}

// map_external maps the file `location` of the model's folder: the folder is a descriptor, and the
// kernel refuses what leads out of it, however names change meanwhile.
static hth_err map_external(hth_onnx_maps *m, const char *location)
{
    hth_file f;
    hth_err err = hth_file_open_at(m->folder, location, location, &f);
    if (err == HTH_OK) {
        err = map_file(m, &f, location, location);
        hth_file_close(&f);
    }
    return err == HTH_EDENIED ? hth_err_prefix(err, "external data") : err;
}

hth_err hth_onnx_maps_external(hth_onnx_maps *m, const hth_onnx_head *t, hth_span *out)
{
    if (m->folder <= 0) {
        return hth_fail(
            HTH_ENOTSUP,
            "the model keeps its data in other files, which cannot be reached from here");
    }
    if (t->location.data == NULL || memchr(t->location.data, '\0', t->location.bytes) != NULL) {
        return hth_fail(HTH_ECORRUPT, "its external data has no location");
    }
    char *location = hth_strndup((const char *)t->location.data, t->location.bytes);
    if (location == NULL) {
        return map_no_memory();
    }
    int i = m->n - 1; // tensors of one file follow each other: look from the newest on
    while (i >= 1 && strcmp(m->map[i].location, location) != 0) {
        i--;
    }
    hth_err err = HTH_OK;
    if (i < 1) {
        err = map_external(m, location);
        i = m->n - 1;
    }
    if (err == HTH_OK) {
        uint64_t length = t->has_length ? t->length : t->bytes;
        if (t->offset > m->map[i].bytes || length > m->map[i].bytes - t->offset) {
            err = hth_fail(HTH_ECORRUPT, "'%s' is shorter than the model says", location);
        } else {
            *out = (hth_span){(const uint8_t *)m->map[i].data + t->offset, (size_t)length};
        }
    }
    hth_free(location);
    return err;
}

// map_folder opens the folder that holds `path`.
static hth_err map_folder(hth_onnx_maps *m, const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash == NULL ? hth_strdup(".") : hth_strndup(path, (size_t)(slash - path) + 1);
    if (folder == NULL) {
        return map_no_memory();
    }
    int fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int errnum = errno;
    hth_free(folder);
    if (fd < 0) {
        return hth_fail_errno(errnum, "cannot open '%s'", path);
    }
    m->folder = fd;
    return HTH_OK;
}

hth_err hth_onnx_maps_open(hth_onnx_maps *m, const char *path, uint64_t max_bytes, hth_span *out)
{
    hth_file f;
    m->max_bytes = max_bytes;
    HTH_TRY(map_folder(m, path));
    HTH_TRY(hth_file_open(path, path, &f));
    hth_err err = map_file(m, &f, "", path);
    hth_file_close(&f);
    HTH_TRY(err);
    *out = (hth_span){m->map[0].data, m->map[0].bytes};
    return HTH_OK;
}

void hth_onnx_maps_close(hth_onnx_maps *m)
{
    for (int i = 0; i < m->n; i++) {
        hth_free(m->map[i].location);
        if (m->map[i].data != NULL) {
            munmap(m->map[i].data, m->map[i].bytes);
        }
    }
    hth_free(m->map);
    if (m->folder > 0) {
        close(m->folder);
    }
}
