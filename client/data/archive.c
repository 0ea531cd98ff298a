// SPDX-License-Identifier: Apache-2.0
#include "client/data/archive.h"

#include "base/alloc.h"
#include "client/npy.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARRAY_HEAD ((size_t)12 + 65536) // most bytes of a header

// ---- an array in a stream

void hth_array_member(const hth_file *file, const hth_zip_member *member, const char *shown,
                      hth_stream *out)
{
    hth_stream_init(out, file, shown, member->kind, member->from, member->packed);
    out->bytes = member->bytes;
    out->crc = member->crc;
    out->has_crc = true;
}

hth_err hth_array_head(hth_stream *stream, uint64_t bytes, hearth_tensor *out, bool *fortran,
                       uint64_t *start)
{
    size_t got, at = 0;
    uint8_t *head = hth_alloc(ARRAY_HEAD);
    hth_err err =
        head != NULL ? hth_stream_some(stream, head, ARRAY_HEAD, &got) : hth_no_memory("an array");
    if (err == HTH_OK) {
        err = hth_npy_describe(head, got, out, fortran, &at);
    }
    if (err == HTH_OK) {
        hth_stream_head(stream, head, at);
    }
    hth_free(head);
    if (err != HTH_OK) {
        return err == HTH_ENOMEM ? err : hth_err_prefix(err, "'%s'", stream->shown);
    }
    *start = at;
    if (bytes < at || out->bytes != bytes - at) {
        return hth_fail(HTH_ECORRUPT, "'%s' claims an array of %llu bytes, but holds %llu",
                        stream->shown, (unsigned long long)out->bytes,
                        (unsigned long long)(bytes - at));
    }
    return HTH_OK;
}

hth_err hth_array_turn(hth_stream *stream, uint64_t start, const hearth_tensor *tensor,
                       uint8_t *out)
{
    hearth_tensor whole = *tensor;
    whole.data = hth_alloc((size_t)tensor->bytes + 1);
    hth_err err = whole.data != NULL
                      ? hth_stream_read(stream, start, whole.data, (size_t)tensor->bytes)
                      : hth_no_memory("the array '%s'", stream->shown);
    if (err == HTH_OK && tensor->bytes > 0) {
        hth_npy_transpose(&whole, out);
    }
    hth_free(whole.data);
    return err;
}

// ---- the archive

bool hth_archive_is(const void *data, size_t bytes)
{
    return bytes >= 4 && (memcmp(data, "PK\3\4", 4) == 0 || memcmp(data, "PK\5\6", 4) == 0);
}

// archive_arrays keeps the members that are arrays.
static void archive_arrays(hth_archive *archive)
{
    int n = 0;
    for (int i = 0; i < archive->n; i++) {
        size_t k = strlen(archive->member[i].name);
        if (k > 4 && strcmp(archive->member[i].name + k - 4, ".npy") == 0) {
            archive->member[i].name[k - 4] = 0;
            archive->member[n++] = archive->member[i];
        }
    }
    archive->n = n;
}

// archive_list reads the directory of archive->file, which is closed on an error.
static hth_err archive_list(hth_archive *archive)
{
    hth_err err = hth_zip_read(&archive->file, archive->shown, HTH_ARCHIVE_ARRAYS, &archive->member,
                               &archive->n);
    if (err == HTH_OK) {
        archive_arrays(archive);
        err = archive->n > 0 ? HTH_OK
                             : hth_fail(HTH_EINVAL, "'%s' has no arrays; numpy.savez writes them",
                                        archive->shown);
    }
    if (err != HTH_OK) {
        hth_archive_close(archive);
    }
    return err;
}

hth_err hth_archive_open(const char *path, hth_archive *out)
{
    *out = (hth_archive){.shown = path, .file = {.fd = -1}};
    HTH_TRY(hth_file_open(path, path, &out->file));
    return archive_list(out);
}

static hth_err archive_write(int fd, const char *shown, const void *data, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        ssize_t k = write(fd, (const char *)data + at, bytes - at);
        if (k < 0 && errno != EINTR) {
            return hth_fail_errno(errno, "cannot hold the %zu bytes of '%s'", bytes, shown);
        }
        at += k > 0 ? (size_t)k : 0;
    }
    return HTH_OK;
}

hth_err hth_archive_of(const char *shown, const void *data, size_t bytes, hth_archive *out)
{
    *out = (hth_archive){.shown = shown, .file = {.fd = -1}};
    int fd = memfd_create("hearth-archive", MFD_CLOEXEC);
    if (fd < 0) {
        return hth_fail_errno(errno, "cannot hold the %zu bytes of '%s'", bytes, shown);
    }
    out->file = (hth_file){.fd = fd, .bytes = bytes};
    hth_err err = archive_write(fd, shown, data, bytes);
    if (err != HTH_OK) {
        hth_archive_close(out);
        return err;
    }
    return archive_list(out);
}

void hth_archive_close(hth_archive *archive)
{
    if (archive->shown != NULL) {
        hth_file_close(&archive->file);
        hth_free(archive->member);
        *archive = (hth_archive){.shown = NULL};
    }
}

int hth_archive_find(const hth_archive *archive, const char *name)
{
    for (int i = 0; i < archive->n; i++) {
        if (strcmp(archive->member[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

const char *hth_archive_names(const hth_archive *archive, char *out, size_t cap)
{
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < archive->n; i++) {
        const char *name = archive->member[i].name, *comma = i > 0 ? ", " : "";
        bool last = i + 1 == archive->n;
        if (n + strlen(name) + strlen(comma) + 2 + (last ? 0 : strlen(", ..")) >= cap) {
            snprintf(out + n, cap - n, "%s", i > 0 ? ", .." : "..");
            break;
        }
        n += (size_t)snprintf(out + n, cap - n, "%s'%s'", comma, name);
    }
    return out;
}

// archive_elements reads what a header has described.
static hth_err archive_elements(hth_stream *stream, bool fortran, uint64_t start,
                                hearth_tensor *out)
{
    out->data = hth_alloc_aligned((size_t)out->bytes + 1, 64);
    if (out->data == NULL) {
        return hth_no_memory("the array '%s'", stream->shown);
    }
    hth_err err = fortran ? hth_array_turn(stream, start, out, out->data)
                          : hth_stream_read(stream, start, out->data, (size_t)out->bytes);
    if (err != HTH_OK) {
        hth_free(out->data);
        out->data = NULL;
    }
    return err;
}

hth_err hth_archive_read(const hth_archive *archive, int i, hearth_tensor *out)
{
    const hth_zip_member *m = &archive->member[i];
    hth_stream stream;
    bool fortran;
    uint64_t start;
    memset(out, 0, sizeof *out);
    hth_array_member(&archive->file, m, m->name, &stream);
    hth_err err = hth_array_head(&stream, m->bytes, out, &fortran, &start);
    if (err == HTH_OK) {
        err = archive_elements(&stream, fortran, start, out);
    }
    hth_stream_fini(&stream);
    return err == HTH_ENOMEM ? err : hth_err_prefix(err, "%s", archive->shown);
}
