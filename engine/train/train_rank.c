// SPDX-License-Identifier: Apache-2.0
// A job that is one rank of a group: the others are jobs of other servers, and its client sums with
// theirs. What a rank brings is compared before the first step: model, data and options.
#include "engine/train/train_job_impl.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANK_SAMPLES 8 // of the data that are compared

hth_err hth_train_rank_open(hth_train_job *job)
{
    hth_rank *rank = &job->rank;
    HTH_TRY(hth_rank_read(job->args, rank));
    if (rank->ranks == 0) { // of devices of this server, or of none; or a paused rank, resumed
        return job->r->member == 0 || json_object_get(job->args, HTH_TRAIN_MEMBERS) != NULL
                   ? HTH_OK
                   : hth_fail(HTH_EINVAL,
                              "the job was a rank of several, who have ended: the same command "
                              "with --resume goes on with it, with any number of ranks");
    }
    if (job->r->member == 0) {
        return hth_fail(HTH_EINVAL,
                        "the job was rank %d of %d: the same command with --resume goes on with "
                        "it, with any number of ranks",
                        rank->rank, rank->ranks);
    }
    if (job->spec.sync_bn) {
        return hth_fail(HTH_EINVAL, "--sync-bn is for the devices of one server, not for ranks");
    }
    return rank->descriptor >= 0 && rank->descriptor < job->r->n_files &&
                   job->r->member == 1 + rank->rank
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "rank %d has no exchange", rank->rank);
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *c = data;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ c[i]) * 0x100000001b3u; // FNV-1a
    }
    return hash;
}

// What a job is to do, wherever it does it, for whom, and whatever becomes of it.
static uint64_t rank_options(const hth_train_job *job, uint64_t hash)
{
    static const char *const own[] = {"data",  "eval",     "job",     "keep",  "model",
                                      "owner", "patience", "save-as", "spill", "version"};
    json_t *args = json_copy(job->args);
    const char *key;
    json_t *v;
    void *next;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        json_object_del(args, own[i]);
    }
    json_object_foreach_safe(args, next, key, v)
    {
        if (hth_checkpoint_free_key(key)) {
            json_object_del(args, key);
        }
    }
    char *text = json_dumps(args, JSON_COMPACT | JSON_SORT_KEYS);
    hash = text != NULL ? hash_bytes(hash, text, strlen(text)) : hash;
    free(text);
    json_decref(args);
    return hash;
}

// Some of the samples, from the first to the last.
static hth_err rank_samples(const hth_train_job *job, const hth_dataset_tensor *tensor,
                            uint64_t *hash)
{
    int64_t n = job->data.set.n_samples, rows[RANK_SAMPLES];
    size_t bytes = n > 0 ? tensor->t.bytes / (size_t)n : 0;
    char *sample = hth_alloc(RANK_SAMPLES * bytes + 1);
    if (sample == NULL) {
        return hth_no_memory("samples");
    }
    for (int i = 0; i < RANK_SAMPLES; i++) {
        rows[i] = n > 0 ? (n - 1) * i / (RANK_SAMPLES - 1) : 0;
    }
    hth_err err =
        hth_dataset_gather(&job->data.set, tensor, rows, n > 0 ? RANK_SAMPLES : 0, sample);
    *hash = err == HTH_OK ? hash_bytes(*hash, sample, RANK_SAMPLES * bytes) : *hash;
    hth_free(sample);
    return err;
}

static hth_err rank_data(const hth_train_job *job, uint64_t *hash)
{
    const hth_train_data *d = &job->data;
    *hash = hash_bytes(*hash, &d->set.n_samples, sizeof d->set.n_samples);
    for (int i = 0; i < d->n_inputs; i++) {
        HTH_TRY(rank_samples(job, d->source[i], hash));
    }
    return rank_samples(job, d->target_source, hash);
}

hth_err hth_train_rank_join(const hth_train_job *job, hth_group_spec *spec, hth_group **out)
{
    const hth_rank *rank = &job->rank;
    if (job->r->crashes > 0) {
        return hth_fail(HTH_ECANCELED,
                        "rank %d of %d has lost its engine process, and with it what it shared "
                        "with the other ranks: with --resume the job goes on from its checkpoint",
                        rank->rank, rank->ranks);
    }
    spec->fingerprint = rank_options(job, spec->fingerprint);
    HTH_TRY(rank_data(job, &spec->fingerprint));
    int fd = fcntl(job->r->files[rank->descriptor], F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return hth_fail_errno(errno, "cannot take a rank's exchange");
    }
    hth_err err = hth_group_join_ranks(fd, rank->ranks, spec, out);
    if (err != HTH_OK) {
        close(fd);
    }
    job->r->joined = err == HTH_OK;
    return err;
}
