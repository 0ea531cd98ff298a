// SPDX-License-Identifier: Apache-2.0
// usage: train URL STORE MODEL.onnx DATA
#include <hearth.hpp>
#include <cstdio>

static void run(char **args)
{
    hearth_options options = {};
    options.store = args[2];
    hearthpp::connection h(args[1], options);
    h.import("new", args[3]);

    hearth_train_options train = {};
    train.size = sizeof train;
    train.epochs = 2;
    train.save_as = "trained";
    hearth_job job = {};
    hearthpp::check(hearth_train_submit(h.get(), "new", args[4], &train, &job));
    hearthpp::check(hearth_job_wait(h.get(), job, 0, nullptr));

    float image[64] = {};
    hearthpp::outputs y = h.infer("trained", {hearthpp::tensor(image, {1, 1, 8, 8})});
    std::printf("trained:%d says %zu logits\n", y.version(), y.at<float>(0).size());
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
