// SPDX-License-Identifier: Apache-2.0
// Safetensors files: their tensors are ranges of the file.
#include "client/data/data_impl.h"

#include "base/alloc.h"
#include "base/file.h"
#include "client/safetensors.h"

typedef struct safetensors_set {
    hth_file file;
    hth_safetensors_entry *entry;
    int n;
} safetensors_set;

static hth_err safetensors_open(hth_data *data, const hth_data_options *options)
{
    safetensors_set *s = data->of = hth_calloc(1, sizeof *s);
    if (s == NULL) {
        return hth_no_memory("a dataset");
    }
    s->file.fd = -1;
    HTH_TRY(hth_file_open(data->path, data->path, &s->file));
    HTH_TRY(hth_safetensors_look(&s->file, data->path, &s->entry, &s->n));
    for (int i = 0; i < s->n; i++) {
        const hth_safetensors_entry *e = &s->entry[i];
        HTH_TRY(hth_data_add(data, e->name, (int)e->dtype, e->rank, e->shape));
    }
    return HTH_OK;
}

static hth_err safetensors_read(hth_data *data, int i, uint64_t at, void *out, size_t n)
{
    const safetensors_set *s = data->of;
    return hth_file_read(&s->file, data->path, s->entry[i].at + at, out, n);
}

static void safetensors_close(hth_data *data)
{
    safetensors_set *s = data->of;
    if (s != NULL) {
        hth_safetensors_looked(s->entry, s->n);
        hth_file_close(&s->file);
        hth_free(s);
    }
}

const hth_data_reader hth_data_safetensors = {"safetensors", safetensors_open, safetensors_read,
                                              safetensors_close};
