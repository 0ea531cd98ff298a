// SPDX-License-Identifier: Apache-2.0
// The files that a model consists of, mapped: the .onnx file and the external data files beside it.
// Because they are mapped, opening a model costs time by the number of its nodes and not by the
// number of its bytes. A file that somebody shortens while it is mapped kills the process that
// reads it (SIGBUS): models are replaced by renaming.
#include "graph/onnx_map.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static hth_err map_no_memory(void)
{
    return hth_fail(HTH_ENOMEM, "no memory to read the model");
}

// map_fd adds the file behind `fd` to m->map. `shown` is the name for messages.
static hth_err map_fd(hth_onnx_maps *m, int fd, const char *location, const char *shown)
{
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return hth_fail_errno(errno, "cannot read '%s'", shown);
    }
    if (!S_ISREG(st.st_mode)) {
        return hth_fail(HTH_EINVAL, "'%s' is not a regular file", shown);
    }
    m->bytes += (uint64_t)st.st_size;
    if (m->bytes > m->max_bytes) {
        return hth_fail(HTH_ETOOBIG, "'%s': the model is larger than the limit of %llu bytes",
                        shown, (unsigned long long)m->max_bytes);
    }
    if (HTH_GROW(m->map, m->n, m->cap) != 0) {
        return map_no_memory();
    }
    hth_onnx_map one = {.location = hth_strdup(location), .bytes = (size_t)st.st_size};
    if (one.location == NULL) {
        return map_no_memory();
    }
    if (one.bytes > 0) {
        one.data = mmap(NULL, one.bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (one.data == MAP_FAILED) {
            hth_free(one.location);
            return hth_fail_errno(errno, "cannot map '%s'", shown);
        }
    }
    m->map[m->n++] = one;
    return HTH_OK;
}

static hth_err map_path(hth_onnx_maps *m, const char *path, const char *location, const char *shown)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a FIFO must not block us
    if (fd < 0) {
        return hth_fail_errno(errno, "cannot open '%s'", shown);
    }
    hth_err err = map_fd(m, fd, location, shown);
    close(fd);
    return err;
}

static bool location_allowed(const char *location)
{
    if (location[0] == '\0' || location[0] == '/') {
        return false;
    }
    for (const char *part = location; part != NULL; part = strchr(part, '/')) {
        part += *part == '/';
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == '\0')) {
            return false;
        }
    }
    return true;
}

// map_external maps the file `location` of the model's folder. The name is checked as written and
// again after all links are followed: what it leads to must still lie below the folder.
static hth_err map_external(hth_onnx_maps *m, const char *location)
{
    char real[PATH_MAX];
    size_t n = strlen(m->folder);
    if (!location_allowed(location)) {
        return hth_fail(HTH_EDENIED, "external data '%s' is not a path below the model's folder",
                        location);
    }
    char *path = hth_asprintf("%s/%s", m->folder, location);
    if (path == NULL) {
        return map_no_memory();
    }
    const char *resolved = realpath(path, real);
    int errnum = errno;
    hth_free(path);
    if (resolved == NULL) {
        return hth_fail_errno(errnum, "cannot open external data '%s'", location);
    }
    n = n == 1 ? 0 : n; // the folder is "/"
    if (strncmp(real, m->folder, n) != 0 || real[n] != '/') {
        return hth_fail(HTH_EDENIED, "external data '%s' is a link out of the model's folder",
                        location);
    }
    return map_path(m, real, location, location);
}

hth_err hth_onnx_maps_external(hth_onnx_maps *m, const hth_onnx_head *t, hth_span *out)
{
    if (m->folder == NULL) {
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

// map_folder finds the real path of the folder that holds `path`, links followed.
static hth_err map_folder(hth_onnx_maps *m, const char *path)
{
    char real[PATH_MAX];
    const char *slash = strrchr(path, '/');
    char *folder = slash == NULL ? hth_strdup(".") : hth_strndup(path, (size_t)(slash - path) + 1);
    if (folder == NULL) {
        return map_no_memory();
    }
    const char *found = realpath(folder, real);
    int errnum = errno;
    hth_free(folder);
    if (found == NULL) {
        return hth_fail_errno(errnum, "cannot open '%s'", path);
    }
    m->folder = hth_strdup(real);
    return m->folder == NULL ? map_no_memory() : HTH_OK;
}

hth_err hth_onnx_maps_open(hth_onnx_maps *m, const char *path, uint64_t max_bytes, hth_span *out)
{
    m->max_bytes = max_bytes;
    HTH_TRY(map_folder(m, path));
    HTH_TRY(map_path(m, path, "", path));
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
    hth_free(m->folder);
}
