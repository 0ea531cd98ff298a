// SPDX-License-Identifier: Apache-2.0
// A plug-in over the fake driver whose devices have kernels: those of the .cu files, compiled for
// the host, and the libraries' next to it.
#include "kernels/cuda/fake/fake.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/params.h"

#define FAKE_BODY(name, file) extern const hth_cuda_body hth_body_##name;
HTH_CUDA_KERNELS(FAKE_BODY)
#undef FAKE_BODY

#define FAKE_BODY(name, file) &hth_body_##name,
static const hth_cuda_body *const fake_bodies[] = {HTH_CUDA_KERNELS(FAKE_BODY)};
#undef FAKE_BODY

// The fake driver finds a kernel whatever the image.
const hth_cuda_image hth_cuda_images[] = {
    {"chain", ""},         {"typed", ""},     {"reduce", ""},   {"softmax", ""}, {"batch_norm", ""},
    {"row_norm", ""},      {"lrn", ""},       {"pool", ""},     {"move", ""},    {"gather", ""},
    {"resize", ""},        {"loss", ""},      {"step", ""},     {"dropout", ""}, {"attention", ""},
    {"scatter", ""},       {"topk", ""},      {"scan", ""},     {"select", ""},  {"convert", ""},
    {"channels_last", ""}, {"rnn", ""},       {"rnn_grad", ""}, {"sample", ""},  {"einsum", ""},
    {"make", ""},          {"line_norm", ""}, {"rotary", ""},   {"det", ""}};
const int hth_cuda_n_images = sizeof hth_cuda_images / sizeof *hth_cuda_images;

static hth_err fake_prepare(const hth_kernel_host *host, hth_device *device, const hth_graph *graph,
                            const hth_node *node, const char *algorithm, hth_kernel **out)
{
    return hth_cuda_prepare(device, graph, node, algorithm, out);
}

static hth_err fake_algorithms(const hth_kernel_host *host, hth_device *device,
                               const hth_graph *graph, const hth_node *node, bool first,
                               hth_choice *list, int cap, int *count)
{
    return hth_cuda_algorithms(device, graph, node, first, list, cap, count);
}

const struct hth_kernel_ops hth_cuda_kernel_ops = {
    fake_prepare, fake_algorithms, hth_cuda_oracle, hth_cuda_computes, hth_cuda_takes_half, NULL};

static hth_err fake_probe(const char *dirs, char *about, size_t cap)
{
    return hth_cuda_about(hth_cuda_fake_api(), about, cap);
}

static hth_err fake_open(const hth_device_spec *spec, hth_device **out)
{
    hth_device *d;
    HTH_TRY(hth_cuda_open_device(hth_cuda_fake_api(), spec, &d));
    hth_err err = hth_cuda_kernels_attach((hth_cuda *)d);
    if (err != HTH_OK) {
        hth_device_close(d);
        return err;
    }
    *out = d;
    return HTH_OK;
}

const hth_plugin *hth_cuda_fake_engine_plugin(void)
{
    static const hth_plugin plugin = {HTH_PLUGIN_ABI, fake_probe, fake_open};
    return &plugin;
}

hth_cuda_fake *hth_cuda_fake_engine_open(uint64_t seed, uint64_t bytes)
{
    hth_cuda_fake *f = hth_cuda_fake_open(seed);
    if (f != NULL) {
        f->total_bytes = bytes;
        memset(hth_cuda_fake_engines, 0, sizeof hth_cuda_fake_engines);
        hth_cuda_fake_bodies(fake_bodies, sizeof fake_bodies / sizeof *fake_bodies);
        hth_cuda_fake_fill_dnn(hth_cuda_fake_table());
        hth_cuda_fake_fill_blas(hth_cuda_fake_table());
        hth_plugin_use(hth_cuda_fake_engine_plugin());
    }
    return f;
}
