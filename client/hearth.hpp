// SPDX-License-Identifier: Apache-2.0
// hearth.hpp - hearth.h for C++11 and later: what it opens is closed, what it gives is freed, and
// errors are exceptions. Nothing else: every call of hearth.h takes connection::get().
#ifndef HEARTH_HPP
#define HEARTH_HPP

#include <hearth.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// `struct hearth` of hearth.h has the short name.
namespace hearthpp {

class error : public std::runtime_error {
public:
    explicit error(hearth_status status)
        : std::runtime_error(hearth_error()), status_(status)
    {
    }
    hearth_status status() const { return status_; }

private:
    hearth_status status_;
};

inline void check(hearth_status status)
{
    if (status != HEARTH_OK) {
        throw error(status);
    }
}

// Elements that belong to somebody else; std::span takes it, too.
template <class T> class span {
public:
    span(T *data, std::size_t size) : data_(data), size_(size) {}
    T *data() const { return data_; }
    std::size_t size() const { return size_; }
    T *begin() const { return data_; }
    T *end() const { return data_ + size_; }
    T &operator[](std::size_t i) const { return data_[i]; }

private:
    T *data_;
    std::size_t size_;
};

template <class T> struct dtype;
#define HEARTHPP_DTYPE(T, value)                                                                   \
    template <> struct dtype<T> {                                                                  \
        static hearth_dtype of() { return value; }                                                 \
    }
HEARTHPP_DTYPE(float, HEARTH_F32);
HEARTHPP_DTYPE(double, HEARTH_F64);
HEARTHPP_DTYPE(bool, HEARTH_BOOL);
HEARTHPP_DTYPE(std::int8_t, HEARTH_I8);
HEARTHPP_DTYPE(std::int16_t, HEARTH_I16);
HEARTHPP_DTYPE(std::int32_t, HEARTH_I32);
HEARTHPP_DTYPE(std::int64_t, HEARTH_I64);
HEARTHPP_DTYPE(std::uint8_t, HEARTH_U8);
HEARTHPP_DTYPE(std::uint16_t, HEARTH_U16);
HEARTHPP_DTYPE(std::uint32_t, HEARTH_U32);
HEARTHPP_DTYPE(std::uint64_t, HEARTH_U64);
#undef HEARTHPP_DTYPE

// A tensor of `shape` at `data`, which stays the caller's; name NULL: the model's only input.
template <class T>
hearth_tensor tensor(T *data, std::initializer_list<std::int64_t> shape, const char *name = nullptr)
{
    if (shape.size() > HEARTH_MAX_RANK) {
        throw std::length_error("a tensor of more than HEARTH_MAX_RANK dimensions");
    }
    hearth_tensor t = hearth_tensor();
    t.name = name;
    t.dtype = dtype<typename std::remove_cv<T>::type>::of();
    t.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), t.shape);
    t.data = const_cast<typename std::remove_cv<T>::type *>(data);
    t.bytes = sizeof(T);
    for (std::int64_t d : shape) {
        t.bytes *= static_cast<std::size_t>(d);
    }
    return t;
}

inline void from_dlpack(const DLManagedTensorVersioned *lent, const char *name, hearth_tensor &out)
{
    check(hearth_tensor_from_dlpack(lent, name, &out));
}
inline void from_dlpack(const DLManagedTensor *lent, const char *name, hearth_tensor &out)
{
    check(hearth_tensor_from_dlpack_unversioned(lent, name, &out));
}

// A tensor that another library lends, of either of its dlpack.h's structures: an input for as long
// as this lives, which then gives it back; where hearth refuses it, at once.
template <class Managed> class borrowed {
public:
    explicit borrowed(Managed *lent, const char *name = nullptr)
        : lent_(lent, give_back), tensor_(hearth_tensor())
    {
        from_dlpack(lent, name, tensor_);
    }
    const hearth_tensor &get() const { return tensor_; }

private:
    static void give_back(Managed *lent)
    {
        if (lent->deleter != nullptr) {
            lent->deleter(lent);
        }
    }
    std::unique_ptr<Managed, void (*)(Managed *)> lent_;
    hearth_tensor tensor_;
};

// The outputs of an inference.
class outputs {
public:
    outputs(hearth_tensor *all, int n) : all_(all), n_(n) {}
    outputs(outputs &&other) noexcept : all_(other.all_), n_(other.n_) { other.all_ = nullptr; }
    outputs &operator=(outputs &&other) noexcept
    {
        std::swap(all_, other.all_);
        std::swap(n_, other.n_);
        return *this;
    }
    outputs(const outputs &) = delete;
    outputs &operator=(const outputs &) = delete;
    ~outputs() { hearth_tensors_free(all_, n_); }

    std::size_t size() const { return static_cast<std::size_t>(n_); }
    const hearth_tensor &operator[](std::size_t i) const { return all_[i]; }
    // The elements of output i, which has to be of T.
    template <class T> span<T> at(std::size_t i) const
    {
        if (i >= size() || all_[i].dtype != dtype<T>::of()) {
            throw std::invalid_argument("there is no such output of this type");
        }
        return span<T>(static_cast<T *>(all_[i].data), all_[i].bytes / sizeof(T));
    }
    // Output i for another library, in place: whoever has it calls its deleter, at any time.
    DLManagedTensorVersioned *dlpack(std::size_t i) const
    {
        DLManagedTensorVersioned *lent = nullptr;
        check(hearth_outputs_dlpack(all_, i < size() ? static_cast<int>(i) : -1, &lent));
        return lent;
    }
    int version() const { return n_ > 0 ? hearth_outputs_version(all_) : 0; }

private:
    hearth_tensor *all_;
    int n_;
};

// What hearth_free frees.
template <class T> using freed = std::unique_ptr<T, void (*)(void *)>;

class connection {
public:
    explicit connection(const std::string &url, const hearth_options &options = hearth_options())
        : handle_(nullptr, hearth_close)
    {
        hearth *h = nullptr;
        check(hearth_open(url.c_str(), &options, &h));
        handle_.reset(h);
    }
    explicit connection(hearth_embed_options options) : handle_(nullptr, hearth_close)
    {
        hearth *h = nullptr;
        options.size = sizeof options;
        check(hearth_embed(&options, &h));
        handle_.reset(h);
    }
    hearth *get() const { return handle_.get(); }

    hearth_import_result import(const std::string &name, const std::string &path, int max_batch = -1)
    {
        hearth_import_result result = hearth_import_result();
        check(hearth_import(get(), name.c_str(), path.c_str(), max_batch, nullptr, nullptr, &result));
        return result;
    }

    outputs infer(const std::string &model, const std::vector<hearth_tensor> &inputs)
    {
        hearth_tensor *all = nullptr;
        int n = 0;
        check(hearth_infer(get(), model.c_str(), inputs.data(), static_cast<int>(inputs.size()),
                           &all, &n));
        return outputs(all, n);
    }

    void infer_into(const std::string &model, const std::vector<hearth_tensor> &inputs,
                    std::vector<hearth_tensor> &results)
    {
        check(hearth_infer_into(get(), model.c_str(), inputs.data(),
                                static_cast<int>(inputs.size()), results.data(),
                                static_cast<int>(results.size())));
    }

    // `done` is called on the library's thread, or by hearth_event_run; it must not throw. Inputs
    // are borrowed until then.
    hearth_call *submit(const std::string &model, const std::vector<hearth_tensor> &inputs,
                        std::function<void(hearth_status, outputs)> done)
    {
        typedef std::function<void(hearth_status, outputs)> function;
        std::unique_ptr<function> kept(new function(std::move(done)));
        hearth_call *call = nullptr;
        check(hearth_submit(
            get(), model.c_str(), inputs.data(), static_cast<int>(inputs.size()), nullptr,
            [](void *ctx, hearth_status status, hearth_tensor *all, int n) {
                std::unique_ptr<function> mine(static_cast<function *>(ctx));
                (*mine)(status, outputs(all, n));
            },
            kept.get(), &call));
        kept.release();
        return call;
    }

private:
    std::unique_ptr<hearth, void (*)(hearth *)> handle_;
};

} // namespace hearthpp

#endif
