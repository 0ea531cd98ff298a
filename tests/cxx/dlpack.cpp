// SPDX-License-Identifier: Apache-2.0
// Tensors through hearth.hpp and DLPack: in, read where they lie, and out, where they are. Compiled
// with a dlpack.h of others where there is one (-DDLPACK_H='<FILE>'): it has to lay things out alike.
// usage: dlpack STORE DIGITS-FOLDER
#include <hearth.hpp>
#ifdef DLPACK_H
#include DLPACK_H
#else
#include "dlpack.h"
#endif

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

void expect(bool holds, const char *what)
{
    if (!holds) {
        std::fprintf(stderr, "expected: %s (%s)\n", what, hearth_error());
        std::exit(1);
    }
}

int given_back = 0;

template <class Managed> void give_back(Managed *)
{
    given_back++;
}

// A picture of somebody else, who counts how often it is given back.
template <class Managed> struct Picture {
    float pixels[64] = {};
    std::int64_t shape[4] = {1, 1, 8, 8}, strides[4] = {64, 64, 8, 1};
    Managed lent = Managed();

    Picture()
    {
        lent.deleter = give_back<Managed>;
        lent.dl_tensor.data = pixels;
        lent.dl_tensor.device.device_type = kDLCPU;
        lent.dl_tensor.ndim = 4;
        lent.dl_tensor.dtype.code = kDLFloat;
        lent.dl_tensor.dtype.bits = 32;
        lent.dl_tensor.dtype.lanes = 1;
        lent.dl_tensor.shape = shape;
        lent.dl_tensor.strides = strides;
    }
};

template <class Managed> void borrow(hearthpp::connection &h, Picture<Managed> &picture)
{
    given_back = 0;
    {
        hearthpp::borrowed<Managed> x(&picture.lent, "image");
        expect(x.get().data == picture.pixels && x.get().bytes == sizeof picture.pixels, "in place");
        hearthpp::outputs y = h.infer("digits", {x.get()});
        expect(y.at<float>(0).size() == 10 && given_back == 0, "ten logits of what is still lent");
    }
    expect(given_back == 1, "it is given back");
    picture.lent.dl_tensor.device.device_type = kDLCUDA;
    try {
        hearthpp::borrowed<Managed> x(&picture.lent, "image");
        expect(false, "a tensor on a device is refused");
    } catch (const hearthpp::error &e) {
        expect(e.status() == HEARTH_EINVAL && std::strstr(e.what(), "CUDA device 0"), "why");
    }
    expect(given_back == 2, "what is refused is given back, once");
    picture.lent.dl_tensor.device.device_type = kDLCPU;
    picture.lent.deleter = nullptr;
    hearthpp::borrowed<Managed> x(&picture.lent);
    expect(x.get().name == nullptr && x.get().rank == 4, "nothing to give back to");
}

// The logits of an answer, which outlive it and its connection.
DLManagedTensorVersioned *lent(const char *store, const std::string &digits)
{
    hearth_options options = {};
    options.store = store;
    options.device = "cpu:mem=1GiB,threads=1";
    hearthpp::connection h("inproc://", options);
    h.import("digits", digits + "/digits.onnx");
    Picture<DLManagedTensorVersioned> picture;
    picture.lent.version.major = 1;
    borrow(h, picture);
    Picture<DLManagedTensor> old;
    borrow(h, old);
    picture.lent.version.major = 2;
    hearth_tensor t;
    expect(hearth_tensor_from_dlpack(&picture.lent, nullptr, &t) == HEARTH_ENOTSUP, "a later version");
    hearthpp::outputs y = h.infer("digits", {hearthpp::tensor(old.pixels, {1, 1, 8, 8})});
    DLManagedTensor *unversioned = nullptr;
    hearthpp::check(hearth_outputs_dlpack_unversioned(&y[0], 0, &unversioned));
    expect(unversioned->dl_tensor.data == y[0].data, "the same memory");
    unversioned->deleter(unversioned);
    try {
        y.dlpack(1);
        expect(false, "there is one output");
    } catch (const hearthpp::error &e) {
        expect(e.status() == HEARTH_EINVAL, "there is one output");
    }
    DLManagedTensorVersioned *out = y.dlpack(0);
    expect(out->dl_tensor.data == y[0].data, "the same memory");
    return out;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 3) {
        return 2;
    }
    DLManagedTensorVersioned *out = lent(argv[1], argv[2]);
    const DLTensor &t = out->dl_tensor;
    expect(out->version.major == 1 && out->flags == 0, "to be written");
    expect(t.device.device_type == kDLCPU && t.device.device_id == 0 && t.byte_offset == 0, "here");
    expect(t.ndim == 2 && t.shape[0] == 1 && t.shape[1] == 10, "ten logits");
    expect(t.strides[0] == 10 && t.strides[1] == 1, "without gaps");
    expect(t.dtype.code == kDLFloat && t.dtype.bits == 32 && t.dtype.lanes == 1, "floats");
    float *logits = static_cast<float *>(t.data), sum = 0;
    for (int i = 0; i < 10; i++) {
        sum += logits[i] * logits[i];
        logits[i] = 0;
    }
    expect(sum > 0, "logits");
    out->deleter(out);
    std::puts("lent and given back");
    return 0;
}
