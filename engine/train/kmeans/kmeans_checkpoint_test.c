// SPDX-License-Identifier: Apache-2.0
// Checkpoints of K-means jobs whose centroids k-means++ chooses, on this thread: wherever one is
// made, it has what was chosen before.
#include "engine/train/kmeans/kmeans_job_impl.h"
#include "tests/rig/trainer_rig.h"

#define POINTS  500
#define COLUMNS 3
#define K       6

typedef struct job_rig {
    rig r;
    char *args[2]; // begins, goes on
    hth_request request;
    double made[K * COLUMNS]; // what a job comes to that is left alone
} job_rig;

static void write_points(const job_rig *j, char path[200])
{
    writer w = {NULL, NULL, 0};
    float x[POINTS * COLUMNS];
    uint32_t state = 7;
    for (size_t i = 0; i < POINTS * COLUMNS; i++) {
        state = state * 1664525U + 1013904223U;
        x[i] = (float)(state >> 8) * 0x1p-24F;
    }
    writer_add(&w, "x", "F32", (int64_t[]){POINTS, COLUMNS}, 2, x, sizeof x);
    snprintf(path, 200, "%s/points.safetensors", j->r.dir);
    writer_close(&w, path);
}

static kmeans_job *job_open(job_rig *j, bool goes_on)
{
    hth_job *job;
    j->request = (hth_request){.command = HTH_COMMAND_TRAIN, .arguments = j->args[goes_on ? 1 : 0]};
    assert_ok(hth_kmeans_job_open(&j->r.models, &j->request, (hth_train_events){0}, &job));
    return kmeans_job_of(job);
}

static void job_ends(job_rig *j, kmeans_job *job, double centroids[K * COLUMNS])
{
    for (bool done = false; !done;) {
        assert_ok(hth_job_slice(&job->job, &done));
    }
    memcpy(centroids, job->at.centroids, K * COLUMNS * sizeof *centroids);
    hth_job_free(&job->job);
    hth_free(j->request.json);
}

static void job_rig_open(job_rig *j)
{
    char data[200];
    rig_make(&j->r, &mlp, BATCH, HTH_POLICY_HEARTH);
    write_points(j, data);
    json_t *args = json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:s}", "kind", "kmeans", "data", data,
                             "k", K, "iterations", 3, "tolerance", 0, "seed", 3, "save-as", "made");
    j->args[0] = json_dumps(args, JSON_COMPACT);
    json_object_set_new(args, "resume", json_true());
    j->args[1] = json_dumps(args, JSON_COMPACT);
    json_decref(args);
    job_ends(j, job_open(j, false), j->made);
}

static void job_rig_close(job_rig *j)
{
    free(j->args[0]);
    free(j->args[1]);
    rig_close(&j->r);
}

// A job is left after each of its passes, goes on, and is left again before its first pass and
// after that: it has all centroids that it had, and comes to the same ones.
static void no_checkpoint_has_less(void **state)
{
    job_rig j;
    double centroids[K * COLUMNS], made[K * COLUMNS];
    bool done;
    job_rig_open(&j);
    for (int passes = 2; passes <= K + 2; passes++) { // the first one looks
        kmeans_job *job = job_open(&j, false);
        for (int i = 0; i < passes; i++) {
            assert_ok(hth_job_slice(&job->job, &done));
        }
        size_t seeded = job->at.phase == HTH_KMEANS_SEEDS ? job->at.seeded : K;
        assert_int_equal(seeded, passes <= K ? passes - 1 : K);
        size_t iterations = job->at.iterations;
        memcpy(centroids, job->at.centroids, seeded * COLUMNS * sizeof *centroids);
        assert_ok(hth_job_save(&job->job));
        hth_job_free(&job->job);
        for (int i = 0; i < 3; i++) {
            job = job_open(&j, true);
            for (int pass = 0; pass < i; pass++) {
                assert_ok(hth_job_slice(&job->job, &done));
            }
            assert_non_null(job->at.centroids);
            assert_int_equal(job->at.seeded, job->at.iterations == 0 && seeded < K ? seeded : 0);
            if (job->at.iterations == iterations) {
                assert_memory_equal(job->at.centroids, centroids,
                                    seeded * COLUMNS * sizeof *centroids);
            }
            assert_ok(hth_job_save(&job->job));
            hth_job_free(&job->job);
        }
        job_ends(&j, job_open(&j, true), made);
        assert_memory_equal(made, j.made, sizeof made);
    }
    job_rig_close(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_checkpoint_has_less)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
