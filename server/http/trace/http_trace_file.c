// SPDX-License-Identifier: Apache-2.0
// What is added waits as text for the file that is being written. A write begins where the array's
// closing bracket stands, and puts it again after what it adds.
#include "server/http/trace/http_trace_file.h"

#include "base/alloc.h"
#include "base/log.h"
#include "server/http/tensors/http_json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// Text that is written at once, without waiting for a flush.
#define TRACE_MOST_BYTES (256 << 10)

// Elements of a tensor that are written.
#define TRACE_ELEMENTS 65536

typedef struct trace_array {
    int fd;    // -1: none yet
    off_t end; // where the closing bracket stands; 1: nothing is in it
} trace_array;

struct hth_trace_file {
    char path[HTH_TRACE_PATH];
    trace_array whole, part; // FILE; FILE.index
    uint64_t index, in_part;
    hth_text text;        // of traces that are not written
    trace_array *pending; // where that goes
    bool failed;
};

static void array_close(trace_array *array)
{
    if (array->fd >= 0) {
        close(array->fd);
        array->fd = -1;
    }
}

static hth_err array_open(trace_array *array, const char *path)
{
    array->end = 1;
    struct stat st;
    array->fd =
        open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
    if (array->fd >= 0 && fstat(array->fd, &st) == 0 && !S_ISREG(st.st_mode)) {
        array_close(array);
        return hth_fail(HTH_EINVAL, "the file of traces is not a regular file");
    }
    return array->fd >= 0 && ftruncate(array->fd, 0) == 0 && write(array->fd, "[]\n", 3) == 3
               ? HTH_OK
               : hth_fail_errno(errno, "cannot write the file of traces");
}

// array_write adds n bytes, of which the last two close the array again. Where not all of them can
// be written the array ends as it did: the bracket goes to bytes that the file has already.
static bool array_write(trace_array *array, const char *s, size_t n)
{
    off_t from = array->end;
    while (n > 0) {
        ssize_t done = pwrite(array->fd, s, n, array->end);
        if (done <= 0) {
            int errnum = done < 0 ? errno : ENOSPC;
            bool closed = pwrite(array->fd, "]\n", 2, from) == 2;
            int cut = ftruncate(array->fd, closed ? from + 2 : from);
            (void)cut;
            array->end = from;
            errno = errnum;
            return false;
        }
        array->end += done;
        s += done;
        n -= (size_t)done;
    }
    array->end -= 2;
    return true;
}

void hth_trace_file_flush(hth_trace_file *file)
{
    trace_array *a = file->pending;
    if (file->text.n == 0 && !file->text.failed) {
        return;
    }
    hth_text_put(&file->text, "]\n");
    bool good = !file->text.failed && a->fd >= 0;
    if (good) {
        file->text.p[0] = a->end == 1 ? '\n' : ',';
        good = array_write(a, file->text.p, file->text.n);
    }
    if (!good && !file->failed) {
        file->failed = true;
        hth_log(ERROR, SERVER, "trace-file", "traces cannot be written: %s", strerror(errno));
    }
    file->text.n = 0;
    file->text.failed = false;
}

// file_place finds the file of a trace, and writes what waits for another one first.
static void file_place(hth_trace_file *file, uint64_t log_frequency)
{
    char path[HTH_TRACE_PATH + 24];
    trace_array *a = log_frequency > 0 ? &file->part : &file->whole;
    if (log_frequency > 0 && (file->part.fd < 0 || file->in_part >= log_frequency)) {
        hth_trace_file_flush(file);
        array_close(&file->part);
        snprintf(path, sizeof path, "%s.%llu", file->path, (unsigned long long)file->index++);
        (void)array_open(&file->part, path); // the flush says so
        file->in_part = 0;
    }
    if (file->pending != a) {
        hth_trace_file_flush(file);
        file->pending = a;
    }
    file->in_part += log_frequency > 0;
}

// text_inner adds what is between a list's brackets.
static void text_inner(hth_text *out, const hth_text *list)
{
    if (list->failed || list->n < 2) {
        out->failed = true;
    } else {
        hth_text_add(out, list->p + 1, list->n - 2);
    }
}

static void file_times(hth_text *out, const hth_trace *trace)
{
    static const char *const name[] = {
#define TRACE_NAME(id) #id,
        HTH_TRACE_EVENTS(TRACE_NAME)
#undef TRACE_NAME
    };
    bool first = true;
    hth_text_put(out, ",{\"id\":");
    hth_text_int(out, (int64_t)trace->id);
    hth_text_put(out, ",\"timestamps\":[");
    for (int i = 0; i < HTH_N_TRACE_EVENTS; i++) {
        if (trace->ns[i] != 0) {
            hth_text_put(out, first ? "{\"name\":\"" : ",{\"name\":\"");
            hth_text_put(out, name[i]);
            hth_text_put(out, "\",\"ns\":");
            hth_text_int(out, (int64_t)trace->ns[i]);
            hth_text_put(out, "}");
            first = false;
        }
    }
    hth_text_put(out, "]}\n");
}

void hth_trace_tensor(hth_trace *trace, const char *activity, const char *name,
                      const hth_tensor *tensor)
{
    hth_text *out = &trace->tensors, values = {.p = NULL}, shape = {.p = NULL};
    int64_t n = hth_shape_elements(&tensor->shape);
    hth_tensor part = *tensor;
    if (n > TRACE_ELEMENTS) {
        part.bytes = tensor->bytes / (size_t)n * TRACE_ELEMENTS;
        part.shape = (hth_shape){.rank = 1, .dim = {TRACE_ELEMENTS}};
    }
    hth_json_write(&values, &part); // "[1,2]", of which the brackets are left out
    hth_text_shape(&shape, &tensor->shape);
    hth_text_put(out, ",{\"id\":");
    hth_text_int(out, (int64_t)trace->id);
    hth_text_put(out, ",\"activity\":\"");
    hth_text_put(out, activity);
    hth_text_put(out, "\",\"tensor\":{\"name\":");
    hth_text_quoted(out, name != NULL ? name : "");
    hth_text_put(out, ",\"data\":\"");
    text_inner(out, &values);
    hth_text_put(out, n > TRACE_ELEMENTS ? ",..\",\"shape\":\"" : "\",\"shape\":\"");
    text_inner(out, &shape);
    hth_text_put(out, "\",\"dtype\":");
    hth_text_quoted(out, hth_dtype_name(tensor->dtype));
    hth_text_put(out, "}}\n");
    hth_text_fini(&values);
    hth_text_fini(&shape);
}

void hth_trace_file_add(hth_trace_file *file, const hth_trace *trace)
{
    hth_text *out = &file->text;
    file_place(file, trace->log_frequency);
    hth_text_put(out, ",{\"id\":");
    hth_text_int(out, (int64_t)trace->id);
    hth_text_put(out, ",\"model_name\":");
    hth_text_quoted(out, trace->model);
    hth_text_put(out, ",\"model_version\":");
    hth_text_int(out, trace->version);
    hth_text_put(out, ",\"request_id\":");
    hth_text_quoted(out, trace->request);
    hth_text_put(out, "}\n");
    if ((trace->level & HTH_TRACE_TIMESTAMPS) != 0) {
        file_times(out, trace);
    }
    if (trace->tensors.failed) {
        out->failed = true;
    } else if (trace->tensors.n > 0) {
        hth_text_add(out, trace->tensors.p, trace->tensors.n);
    }
    if (out->n > TRACE_MOST_BYTES) {
        hth_trace_file_flush(file);
    }
}

hth_err hth_trace_file_open(const char *path, hth_trace_file **out)
{
    *out = NULL;
    if (strlen(path) >= HTH_TRACE_PATH) {
        return hth_fail(HTH_EINVAL, "the path of the file of traces is too long");
    }
    hth_trace_file *f = hth_calloc(1, sizeof *f);
    if (f == NULL) {
        return hth_no_memory("traces");
    }
    strcpy(f->path, path);
    f->part.fd = -1;
    f->pending = &f->whole;
    hth_err err = array_open(&f->whole, path);
    if (err != HTH_OK) {
        hth_trace_file_close(f);
        return err;
    }
    *out = f;
    return HTH_OK;
}

void hth_trace_file_close(hth_trace_file *file)
{
    if (file == NULL) {
        return;
    }
    hth_trace_file_flush(file);
    array_close(&file->whole);
    array_close(&file->part);
    hth_text_fini(&file->text);
    hth_free(file);
}
