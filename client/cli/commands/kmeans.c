// SPDX-License-Identifier: Apache-2.0
// `hearth kmeans`: a job like those of `hearth train`, of another kind.
#include "client/cli/cmd.h"

#include "base/alloc.h"
#include "client/cli/train_run.h"
#include "client/passed_files.h"

#include <stdlib.h>
#include <string.h>

// kmeans_file makes a path of what names a file; the name of a stored dataset stays.
static bool kmeans_file(json_t *q, const char *key, const char *text)
{
    char *path;
    if (hth_passed_data(text, &path) != HTH_OK) {
        return false;
    }
    json_object_set_new(q, key, json_string(path));
    hth_free(path);
    return true;
}

// kmeans_init has --init say where centroids begin: a word, or the file that has them.
static bool kmeans_init(const hth_cli *cli, json_t *q)
{
    const char *init = hth_cli_text(cli, "init");
    if (init == NULL || strcmp(init, "k-means++") == 0 || strcmp(init, "random") == 0) {
        return true;
    }
    json_object_del(q, "init");
    return kmeans_file(q, "start", init);
}

static int kmeans_arguments(const hth_cli *cli, json_t **out)
{
    json_t *q = *out = hth_cmd_arguments(cli);
    json_object_del(q, "model");
    json_object_del(q, "log-csv");
    json_object_del(q, "log-tensorboard");
    json_object_del(q, "threads");
    json_object_set_new(q, "detach", json_true()); // the job is the server's from the start
    if (json_is_true(json_object_get(q, "resume"))) {
        json_object_set_new(q, "job", json_string(cli->args[0]));
        return HTH_CLI_OK;
    }
    json_object_set_new(q, "kind", json_string("kmeans"));
    bool fine = kmeans_file(q, "data", cli->args[0]) && kmeans_init(cli, q);
    return fine ? HTH_CLI_OK : hth_cli_error();
}

static int kmeans_print(const hth_cli *cli, const json_t *doc)
{
    static const char *const keys[] = {"inertia", "iterations", "converged", "ms",
                                       "seconds", "version",    "shards"};
    json_t *shown = json_object();
    json_object_set(shown, "saved_as", json_object_get(doc, "job"));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_object_set(shown, keys[i], json_object_get(doc, keys[i]));
    }
    return hth_cmd_print(cli, shown);
}

static int cmd_kmeans(hth_cli *cli)
{
    return hth_train_run(cli, kmeans_arguments, kmeans_print);
}

static const hth_option kmeans_options[] = {
    {"on", HTH_OPTION_TEXT, "DEVICE,..|all",
     "device to compute on (cpu:1); of several each takes a shard of the points"},
    {"shards", HTH_OPTION_PATH, "FILE",
     "repeat the shards of an earlier job on these devices (\"shards\" of its summary)"},
    {"k", HTH_OPTION_INT, "N", "number of clusters"},
    {"iterations", HTH_OPTION_INT, "I", "iterations, at most (300)"},
    {"init", HTH_OPTION_DATA, "k-means++|random|FILE",
     "first centroids: chosen by k-means++, random points, or an array of k rows (k-means++)"},
    {"tolerance", HTH_OPTION_REAL, "T",
     "end once the centroids' squared moves are at most T times the columns' mean variance (1e-4)"},
    {"seed", HTH_OPTION_INT, "S", "random seed of the first centroids (0)"},
    {"budget", HTH_OPTION_TEXT, "BYTES",
     "memory budget: 512MiB, or 60% of what all points take; points are then read piece by piece"},
    {"save-as", HTH_OPTION_TEXT, "NAME",
     "model that receives the centroids as a new version (kmeans-jobN, after the job's number N)"},
    {"checkpoint-every", HTH_OPTION_INT, "N", "write a checkpoint every N iterations, too"},
    {"resume", HTH_OPTION_FLAG, NULL, "continue job DATA from its last checkpoint"},
    OPTIONS_LOG,
    OPTIONS_JOB,
    OPTION_END};

const hth_command hth_cmd_kmeans = {
    "kmeans",
    "FILE|NAME --k N [--iterations I] [--init k-means++|random|FILE]\n"
    "       hearth kmeans --resume JOB",
    "find clusters of points with K-means; the result is a model that finds a point's cluster\n"
    "The points are FP32 [points, columns]: an array file, the tensor x of a dataset file, or a\n"
    "dataset of `hearth data put`. The job belongs to the server, as those of `hearth train`:\n"
    "`hearth jobs`, pause, resume, cancel and the rest take it by name or number.\n"
    "`hearth infer RESULT --input x=FILE` gives each row's label, and its distance from the\n"
    "centroid.\n"
    "With --json prints {\"inertia\", \"iterations\", \"ms\" of one in the mean, \"seconds\"}.",
    1,
    1,
    kmeans_options,
    .run = cmd_kmeans,
    .makes_store = true,
    .own_budget = true,
    .timeout_ms = INT32_MAX};
