// SPDX-License-Identifier: Apache-2.0
// Reading a model file without its large initializers: the file's messages are walked once to see
// where those are, by the same rules as onnx_open.c walks them afterwards. Memory is reserved for
// the whole file, so that everything is where it is in the file, and is only there where it was
// read. Where the walk meets what is no field it ends, and the importer, which then reads zeros,
// says that the file is damaged.
#include "graph/onnx/onnx_impl.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PARTS_AHEAD 65536 // bytes that are read at once, at least
#define PARTS_FIELD 20    // of a field in front of its payload, at most: two numbers

// parts_add takes over an open file; on an error it is the caller's.
static hth_err parts_add(hth_onnx_parts *parts, const hth_file *file, const char *location)
{
    if (file->bytes > parts->max_bytes || parts->bytes > parts->max_bytes - file->bytes) {
        return hth_fail(HTH_ETOOBIG, "'%s': the model is larger than the limit of %llu bytes",
                        location, (unsigned long long)parts->max_bytes);
    }
    if (HTH_GROW(parts->part, parts->n, parts->cap) != 0) {
        return hth_no_memory("reading the model");
    }
    parts->part[parts->n] = (hth_onnx_part){hth_strdup(location), *file};
    if (parts->part[parts->n].location == NULL) {
        return hth_no_memory("reading the model");
    }
    parts->bytes += file->bytes;
    parts->n++;
    return HTH_OK;
}

// ---- the model file

typedef enum scan_level { SCAN_MODEL, SCAN_GRAPH, SCAN_TENSOR } scan_level;

typedef struct scan {
    const hth_file *file;
    const char *shown;
    uint8_t *to;
    uint64_t have; // everything before was read, or is left out
} scan;

typedef struct scan_field {
    uint32_t number;
    hth_wire_type type;
    uint64_t from, to; // its payload
    bool good;         // false: there is no field
} scan_field;

static hth_err scan_need(scan *s, uint64_t upto)
{
    if (upto <= s->have) {
        return HTH_OK;
    }
    uint64_t ahead = s->have + PARTS_AHEAD;
    ahead = ahead < s->file->bytes ? ahead : s->file->bytes;
    upto = upto > ahead ? upto : ahead;
    HTH_TRY(hth_file_read(s->file, s->shown, s->have, s->to + s->have, upto - s->have));
    s->have = upto;
    return HTH_OK;
}

// scan_next reads what stands in front of the payload of the field at `at`.
static hth_err scan_next(scan *s, uint64_t at, uint64_t end, scan_field *field)
{
    uint64_t head = end - at < PARTS_FIELD ? end - at : PARTS_FIELD, tag, n = 0;
    HTH_TRY(scan_need(s, at + head));
    hth_span rest = {s->to + at, (size_t)head};
    *field = (scan_field){.good = hth_wire_varint(&rest, &tag) == 0};
    if (!field->good) {
        return HTH_OK;
    }
    field->number = tag >> 3 < 1u << 29 ? (uint32_t)(tag >> 3) : 0;
    field->type = (hth_wire_type)(tag & 7);
    field->good = field->number != 0;
    switch (field->type) {
    case HTH_WIRE_VARINT:
        field->good = field->good && hth_wire_varint(&rest, &n) == 0;
        n = 0;
        break;
    case HTH_WIRE_FIXED64:
        n = 8;
        break;
    case HTH_WIRE_FIXED32:
        n = 4;
        break;
    case HTH_WIRE_BYTES:
        field->good = field->good && hth_wire_varint(&rest, &n) == 0;
        break;
    default:
        field->good = false;
    }
    field->from = (uint64_t)(rest.data - s->to);
    field->good = field->good && n <= end - field->from;
    field->to = field->from + n;
    return HTH_OK;
}

// scan_inside is the level of a field's payload that is looked into; -1: none.
static int scan_inside(scan_level level, uint32_t number)
{
    if (level == SCAN_MODEL && number == HTH_ONNX_M_GRAPH) {
        return SCAN_GRAPH;
    }
    return level == SCAN_GRAPH && number == HTH_ONNX_G_INITIALIZER ? (int)SCAN_TENSOR : -1;
}

// scan_left_out tells which payloads stay in the file: bytes of large tensors, and what nobody
// reads.
static bool scan_left_out(scan_level level, const scan_field *field)
{
    bool left_out = (level == SCAN_TENSOR && field->number == HTH_ONNX_T_RAW_DATA) ||
                    (level == SCAN_MODEL && field->number == HTH_ONNX_M_TRAINING);
    return left_out && field->type == HTH_WIRE_BYTES &&
           field->to - field->from > HTH_ONNX_KEPT_BYTES;
}

static hth_err scan_message(scan *s, uint64_t at, uint64_t end, scan_level level)
{
    scan_field f = {.good = true};
    for (; at < end && f.good; at = f.to) {
        HTH_TRY(scan_next(s, at, end, &f));
        int inside = f.good && f.type == HTH_WIRE_BYTES ? scan_inside(level, f.number) : -1;
        if (!f.good) {
            return HTH_OK;
        }
        if (inside >= 0) {
            HTH_TRY(scan_message(s, f.from, f.to, (scan_level)inside));
        }
        if (scan_left_out(level, &f)) {
            s->have = f.to > s->have ? f.to : s->have;
        } else if (inside < 0) {
            HTH_TRY(scan_need(s, f.to));
        }
    }
    return HTH_OK;
}

// scan_end reads the end of the file as well: what is no model is known by how it begins and ends
// (onnx_hint.h).
static hth_err scan_end(scan *s)
{
    uint64_t bytes = s->file->bytes, from = bytes > PARTS_AHEAD ? bytes - PARTS_AHEAD : 0;
    from = from > s->have ? from : s->have;
    return hth_file_read(s->file, s->shown, from, s->to + from, bytes - from);
}

static hth_err parts_read_model(hth_onnx_parts *parts)
{
    const hth_onnx_part *part = &parts->part[0];
    if (part->file.bytes == 0) {
        return HTH_OK;
    }
    void *m = mmap(NULL, part->file.bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED) {
        return hth_no_memory("the %llu bytes of '%s'", (unsigned long long)part->file.bytes,
                             part->location);
    }
    parts->model = m;
    parts->model_bytes = (size_t)part->file.bytes;
    scan s = {&part->file, part->location, m, 0};
    HTH_TRY(scan_message(&s, 0, part->file.bytes, SCAN_MODEL));
    HTH_TRY(scan_end(&s));
    return hth_file_unchanged(&part->file, part->location);
}

// parts_folder opens the folder that holds `path`.
static hth_err parts_folder(hth_onnx_parts *parts, const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash == NULL ? hth_strdup(".") : hth_strndup(path, (size_t)(slash - path) + 1);
    if (folder == NULL) {
        return hth_no_memory("reading the model");
    }
    parts->folder = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int errnum = errno;
    hth_free(folder);
    if (parts->folder < 0) {
        return hth_fail_errno(errnum, "cannot open '%s'", path);
    }
    parts->has_folder = true;
    return HTH_OK;
}

hth_err hth_onnx_parts_open(hth_onnx_parts *parts, const char *path, uint64_t max_bytes,
                            hth_span *out)
{
    hth_file f;
    parts->max_bytes = max_bytes;
    HTH_TRY(parts_folder(parts, path));
    HTH_TRY(hth_file_open(path, path, &f));
    hth_err err = parts_add(parts, &f, path);
    if (err != HTH_OK) {
        hth_file_close(&f);
        return err;
    }
    HTH_TRY(parts_read_model(parts));
    *out = (hth_span){parts->model, parts->model_bytes};
    return HTH_OK;
}

hth_err hth_onnx_parts_given(hth_onnx_parts *parts, const char *shown, uint64_t max_bytes,
                             hth_span *out)
{
    hth_file f;
    parts->max_bytes = max_bytes;
    HTH_TRY(hth_file_again(parts->given[0].fd, shown, &f));
    hth_err err = parts_add(parts, &f, shown);
    if (err != HTH_OK) {
        hth_file_close(&f);
        return err;
    }
    HTH_TRY(parts_read_model(parts));
    *out = (hth_span){parts->model, parts->model_bytes};
    return HTH_OK;
}

void hth_onnx_wanted_fini(hth_onnx_wanted *wanted)
{
    for (int i = 0; i < wanted->n; i++) {
        hth_free(wanted->location[i]);
    }
    hth_free(wanted->location);
    *wanted = (hth_onnx_wanted){NULL, 0, 0};
}

// ---- external data

static hth_err parts_want(hth_onnx_wanted *wanted, const char *location)
{
    for (int i = wanted->n - 1; i >= 0; i--) {
        if (strcmp(wanted->location[i], location) == 0) {
            return HTH_OK;
        }
    }
    if (wanted->n == HTH_ONNX_WANTED) {
        return hth_fail(HTH_ETOOBIG, "the model's data lies in more than %d files", wanted->n);
    }
    if (HTH_GROW(wanted->location, wanted->n, wanted->cap) != 0 ||
        (wanted->location[wanted->n] = hth_strdup(location)) == NULL) {
        return hth_no_memory("reading the model");
    }
    wanted->n++;
    return HTH_OK;
}

// parts_find takes the file `location` of those that are given; *found false: it is not.
static hth_err parts_find(hth_onnx_parts *parts, const char *location, bool *found)
{
    hth_file f;
    int i = 1;
    while (i < parts->n_given && strcmp(parts->given[i].location, location) != 0) {
        i++;
    }
    *found = i < parts->n_given;
    if (!*found) {
        return parts_want(parts->wanted, location);
    }
    HTH_TRY(hth_file_again(parts->given[i].fd, location, &f));
    hth_err err = parts_add(parts, &f, location);
    if (err != HTH_OK) {
        hth_file_close(&f);
    }
    return err;
}

// parts_locate opens the file `location` of the model's folder: the folder is a descriptor, and the
// kernel refuses what leads out of it, however names change meanwhile.
static hth_err parts_locate(hth_onnx_parts *parts, const char *location)
{
    hth_file f;
    hth_err err = hth_file_open_at(parts->folder, location, location, &f);
    if (err != HTH_OK) {
        return err == HTH_EDENIED ? hth_err_prefix(err, "external data") : err;
    }
    err = parts_add(parts, &f, location);
    if (err != HTH_OK) {
        hth_file_close(&f);
    }
    return err;
}

hth_err hth_onnx_parts_external(hth_onnx_parts *parts, const hth_onnx_head *head, int *part,
                                uint64_t *offset, uint64_t *bytes)
{
    if (!parts->has_folder && parts->given == NULL) {
        return hth_fail(
            HTH_ENOTSUP,
            "the model keeps its data in other files, which cannot be reached from here");
    }
    if (head->location.data == NULL ||
        memchr(head->location.data, '\0', head->location.bytes) != NULL) {
        return hth_fail(HTH_ECORRUPT, "its external data has no location");
    }
    char *location = hth_strndup((const char *)head->location.data, head->location.bytes);
    if (location == NULL) {
        return hth_no_memory("reading the model");
    }
    int i = parts->n - 1; // tensors of one file follow each other: look from the newest on
    while (i >= 1 && strcmp(parts->part[i].location, location) != 0) {
        i--;
    }
    hth_err err = HTH_OK;
    bool found = true;
    *part = -1;
    if (i < 1) {
        err = parts->given != NULL ? parts_find(parts, location, &found)
                                   : parts_locate(parts, location);
        i = parts->n - 1;
    }
    if (err == HTH_OK && found) {
        uint64_t has = parts->part[i].file.bytes;
        *part = i;
        *offset = head->offset;
        *bytes = head->has_length ? head->length : head->bytes;
        if (*offset > has || *bytes > has - *offset) {
            err = hth_fail(HTH_ECORRUPT, "'%s' is shorter than the model declares", location);
        }
    }
    hth_free(location);
    return err;
}

hth_err hth_onnx_parts_read(const hth_onnx_parts *parts, int part, uint64_t offset, void *dst,
                            size_t n)
{
    const hth_onnx_part *model = &parts->part[0], *from = &parts->part[part];
    HTH_TRY(hth_file_read(&from->file, from->location, offset, dst, n));
    HTH_TRY(hth_file_unchanged(&from->file, from->location));
    return from == model ? HTH_OK : hth_file_unchanged(&model->file, model->location);
}

void hth_onnx_parts_close(hth_onnx_parts *parts)
{
    for (int i = 0; i < parts->n; i++) {
        hth_free(parts->part[i].location);
        hth_file_close(&parts->part[i].file);
    }
    hth_free(parts->part);
    if (parts->model != NULL) {
        munmap(parts->model, parts->model_bytes);
    }
    if (parts->has_folder) {
        close(parts->folder);
    }
}
