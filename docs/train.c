// SPDX-License-Identifier: Apache-2.0
// usage: train URL STORE MODEL.onnx DATA
#include <hearth.h>
#include <stdio.h>

static int show(void *ctx, const hearth_job_info *at)
{
    (void)ctx;
    fprintf(stderr, "%s, step %d, loss %.2f\n", hearth_job_state_name(at->state), (int)at->step,
            at->loss);
    return 0; // another number: stop looking; the job goes on
}

int main(int argc, char **argv)
{
    hearth_options options = {.store = argc > 4 ? argv[2] : NULL};
    hearth_train_options train = {.size = sizeof train,
                                  .optimizer = "adam",
                                  .epochs = 3,
                                  .budget = "50%",
                                  .save_as = "trained"};
    hearth_train_result *result;
    hearth_job job;
    hearth *h;
    if (argc < 5 || hearth_open(argv[1], &options, &h) != HEARTH_OK ||
        hearth_import(h, "new", argv[3], -1, NULL, NULL, NULL) != HEARTH_OK ||
        hearth_train_submit(h, "new", argv[4], &train, &job) != HEARTH_OK ||
        hearth_job_watch(h, job, show, NULL, NULL) != HEARTH_OK ||
        hearth_job_result(h, job, &result) != HEARTH_OK) {
        fprintf(stderr, "train: %s\n", hearth_error());
        return 1;
    }
    printf("%s:%d\n", result->model, result->version);
    hearth_free(result);
    hearth_close(h);
    return 0;
}
