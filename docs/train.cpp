// SPDX-License-Identifier: Apache-2.0
// usage: train URL STORE MODEL.onnx DATA
#include <hearth.h>
#include <cstdio>
#include <memory>
#include <stdexcept>

static void check(hearth_status status)
{
    if (status != HEARTH_OK) {
        throw std::runtime_error(hearth_error());
    }
}

static void run(char **args)
{
    hearth_options options = {};
    options.store = args[2];
    hearth *opened = nullptr;
    check(hearth_open(args[1], &options, &opened));
    std::unique_ptr<hearth, void (*)(hearth *)> h(opened, hearth_close);
    check(hearth_import(h.get(), "new", args[3], -1, nullptr, nullptr, nullptr));

    hearth_train_options train = {};
    train.size = sizeof train;
    train.epochs = 2;
    train.save_as = "trained";
    hearth_job job = {};
    check(hearth_train_submit(h.get(), "new", args[4], &train, &job));
    check(hearth_job_pause(h.get(), job)); // its memory is free for others
    check(hearth_job_resume(h.get(), job, "60%"));
    check(hearth_job_wait(h.get(), job, 0, nullptr));

    hearth_train_result *made = nullptr;
    check(hearth_job_result(h.get(), job, &made));
    std::unique_ptr<hearth_train_result, void (*)(void *)> result(made, hearth_free);
    std::printf("%s:%d after %d steps\n", result->model, result->version, int(result->steps));
}

int main(int argc, char **argv)
{
    try {
        return argc == 5 ? (run(argv), 0) : 2;
    } catch (const std::exception &e) {
        std::fprintf(stderr, "train: %s\n", e.what());
        return 1;
    }
}
