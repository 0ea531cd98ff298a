// SPDX-License-Identifier: Apache-2.0
// The file is read twice: for the tensors' ids, and for what the server lacks of them. It is never
// held: a piece at a time. What changes in between is refused by the server, for it has another id.
#include "client/content/dataset.h"

#include "base/alloc.h"
#include "client/content/hash.h"
#include "client/safetensors.h"
#include "graph/graph.h"

#include <stdio.h>
#include <string.h>

#define DATASET_WAIT_MS 1000

typedef struct dataset_job {
    const hth_file *file;
    const char *shown;
    hth_safetensors_entry *entry;
    hth_content_source source;
} dataset_job;

static hth_err dataset_read(void *ctx, int i, uint64_t at, void *dst, size_t n)
{
    const dataset_job *j = ctx;
    return hth_file_read(j->file, j->shown, j->entry[i].at + at, dst, n);
}

static hth_err dataset_objects(dataset_job *job, uint64_t *bytes)
{
    job->source.objects = hth_calloc((size_t)job->source.n + 1, sizeof *job->source.objects);
    if (job->source.objects == NULL) {
        return hth_no_memory("a dataset");
    }
    for (int i = 0; i < job->source.n; i++) {
        const hth_safetensors_entry *e = &job->entry[i];
        hth_content_object *o = &job->source.objects[i];
        *o = (hth_content_object){.name = e->name,
                                  .dtype = (hth_dtype)e->dtype,
                                  .shape = {.rank = e->rank},
                                  .bytes = e->bytes};
        memcpy(o->shape.dim, e->shape, sizeof e->shape);
        *bytes += e->bytes;
    }
    return HTH_OK;
}

// dataset_name calls a dataset after its tensors' names and ids.
static hth_err dataset_name(const dataset_job *job, char out[HTH_CONTENT_UPLOAD])
{
    char hex[HTH_ID_HEX];
    hth_chunk *chunk = hth_calloc(2 * (size_t)job->source.n + 1, sizeof *chunk);
    if (chunk == NULL) {
        return hth_no_memory("a dataset");
    }
    for (int i = 0; i < job->source.n; i++) {
        const hth_content_object *o = &job->source.objects[i];
        chunk[2 * i] = (hth_chunk){o->name, strlen(o->name) + 1};
        chunk[2 * i + 1] = (hth_chunk){&o->id, sizeof o->id};
    }
    hth_id id = hth_id_of(chunk, 2 * job->source.n);
    hth_free(chunk);
    snprintf(out, HTH_CONTENT_UPLOAD, "upload-%.24s", hth_id_hex(&id, hex));
    return HTH_OK;
}

// dataset_named waits until all of a dataset has been read, for its name says what it is.
static hth_err dataset_named(const dataset_job *job, char upload[HTH_CONTENT_UPLOAD])
{
    for (int known = 0; known < job->source.n;) {
        HTH_TRY(hth_content_ids_wait(job->source.ids, known, DATASET_WAIT_MS, &known));
    }
    return dataset_name(job, upload);
}

hth_err hth_content_dataset(hearth *handle, const char *name, const char *about,
                            const hth_file *file, const char *shown, const hth_watch *watch,
                            char upload[HTH_CONTENT_UPLOAD], hth_content_dataset_result *out)
{
    dataset_job j = {.file = file, .shown = shown};
    hth_content_version v = {.kind = "dataset",
                             .name = name,
                             .meta = about != NULL ? about : "",
                             .max_batch = -1,
                             .no_wait = true,
                             .skeleton = ""};
    hearth_import_report report;
    *out = (hth_content_dataset_result){0, 0, false};
    HTH_TRY(hth_safetensors_look(file, shown, &j.entry, &j.source.n));
    j.source.read = dataset_read;
    j.source.ctx = &j;
    hth_err err;
    HTH_GOTO(dataset_objects(&j, &out->bytes), done);
    HTH_GOTO(hth_content_ids_begin(j.source.objects, j.source.n, dataset_read, &j, &j.source.ids),
             done);
    if (name[0] == 0) {
        HTH_GOTO(dataset_named(&j, upload), done);
        v.name = upload;
    }
    HTH_GOTO(hth_content_send_version(handle, &j.source, &v, watch, &report), done);
    out->moved = report.bytes_moved;
    out->unchanged = report.result.unchanged != 0;
done:
    hth_content_ids_end(j.source.ids);
    hth_free(j.source.objects);
    hth_safetensors_looked(j.entry, j.source.n);
    return err;
}
