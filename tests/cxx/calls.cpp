// SPDX-License-Identifier: Apache-2.0
// Every call of hearth.h from C++: an engine in this process, or a server. tests/cxx/cxx_test.py
// compiles it with all warnings as errors, and looks whether a call of the header is missing here.
// usage: calls URL STORE DIGITS-FOLDER
#include <hearth.h>

#include "dlpack.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

void must(hearth_status status, const char *what)
{
    if (status != HEARTH_OK) {
        std::fprintf(stderr, "%s: %s: %s\n", what, hearth_strerror(status), hearth_error());
        std::exit(1);
    }
}

void expect(bool holds, const char *what)
{
    if (!holds) {
        std::fprintf(stderr, "expected: %s (%s)\n", what, hearth_error());
        std::exit(1);
    }
}

int progress(void *ctx, const char *, uint64_t, uint64_t)
{
    ++*static_cast<int *>(ctx);
    return 0;
}

void models(hearth *h, const std::string &digits)
{
    int told = 0;
    hearth_import_result imported = {};
    must(hearth_import(h, "digits", (digits + "/digits.onnx").c_str(), -1, progress, &told, &imported),
         "import");
    std::ifstream file(digits + "/digits.onnx", std::ios::binary);
    const std::string onnx((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    must(hearth_import_memory(h, "small", onnx.data(), onnx.size(), 0, &imported), "import_memory");
    expect(imported.version == 1, "it is there");
    must(hearth_remove(h, "small"), "remove");
    expect(hearth_import_memory(h, "small", "no model", 8, 0, nullptr) != HEARTH_OK, "no ONNX file");
    hearth_import_options options = {};
    hearth_import_report report = {};
    must(hearth_import_with(h, "new", (digits + "/untrained.onnx").c_str(), -1, &options, nullptr,
                            nullptr, &report),
         "import_with");
    hearth_load_options load = {};
    load.size = sizeof load;
    load.pin = 1;
    hearth_load_result loaded = {};
    must(hearth_load(h, "digits", &load, &loaded), "load");
    expect(loaded.version == 1 && loaded.pinned == 1 && loaded.moved_bytes > 0, "it is pinned");
    must(hearth_load(h, "digits", nullptr, &loaded), "load");
    expect(loaded.pinned == 1 && loaded.moved_bytes == 0, "it was there");
    uint64_t freed = 0;
    must(hearth_unload(h, "digits", &freed), "unload");
    expect(freed > 0, "bytes are free");
    must(hearth_unload(h, "digits", nullptr), "unload");
    expect(hearth_load(h, "absent", nullptr, nullptr) == HEARTH_ENOENT, "no such model to load");
    expect(hearth_unload(h, "absent", &freed) == HEARTH_ENOENT, "no such model to unload");
    load.unpin = 1;
    expect(hearth_load(h, "digits", &load, nullptr) == HEARTH_EINVAL, "to pin and to unpin is refused");
}

void answered(void *ctx, hearth_status status, hearth_tensor *outputs, int n_outputs)
{
    *static_cast<hearth_status *>(ctx) = status;
    hearth_tensors_free(outputs, n_outputs);
}

// Calls in an event loop: one is answered, one may be canceled before that.
void submitted(hearth *h, const hearth_tensor &x)
{
    hearth_status first = HEARTH_EIO, second = HEARTH_EIO;
    hearth_call *call = nullptr;
    expect(hearth_event_fd(h) >= 0, "a descriptor for an event loop");
    must(hearth_submit(h, "digits", &x, 1, nullptr, answered, &first, nullptr), "submit");
    must(hearth_submit(h, "digits", &x, 1, nullptr, answered, &second, &call), "submit");
    hearth_call_cancel(call);
    for (int n = 0; n < 2;) {
        n += hearth_event_run(h);
    }
    expect(first == HEARTH_OK, "it was answered");
    expect(second == HEARTH_OK || second == HEARTH_ECANCELED, "it was answered, or canceled");
}

// An answer as another library gets it, and as an input again.
void lent(hearth *h, const hearth_tensor *y, int n)
{
    DLManagedTensorVersioned *lent = nullptr;
    DLManagedTensor *old = nullptr;
    hearth_tensor t = {};
    expect(hearth_outputs_dlpack(y, n, &lent) == HEARTH_EINVAL && lent == nullptr, "one too many");
    must(hearth_outputs_dlpack(y, 0, &lent), "outputs_dlpack");
    must(hearth_outputs_dlpack_unversioned(y, 0, &old), "outputs_dlpack_unversioned");
    must(hearth_tensor_from_dlpack(lent, "image", &t), "tensor_from_dlpack");
    expect(t.data == y[0].data && t.bytes == y[0].bytes, "in place");
    hearth_tensor *none = nullptr;
    expect(hearth_infer(h, "digits", &t, 1, &none, &n) == HEARTH_EINVAL, "logits are no image");
    must(hearth_tensor_from_dlpack_unversioned(old, nullptr, &t), "tensor_from_dlpack_unversioned");
    expect(t.data == y[0].data && t.rank == 2, "in place");
    lent->deleter(lent);
    old->deleter(old);
}

void inference(hearth *h)
{
    void *buffer = nullptr;
    must(hearth_buffer_alloc(h, 64 * sizeof(float), &buffer), "buffer_alloc");
    std::memset(buffer, 0, 64 * sizeof(float));
    hearth_tensor x = {};
    x.dtype = HEARTH_F32;
    x.rank = 4;
    x.shape[0] = x.shape[1] = 1;
    x.shape[2] = x.shape[3] = 8;
    x.data = buffer;
    x.bytes = 64 * sizeof(float);
    hearth_tensor *y = nullptr;
    int n = 0;
    must(hearth_infer(h, "digits", &x, 1, &y, &n), "infer");
    expect(n == 1 && y[0].rank == 2 && y[0].shape[1] == 10, "ten logits");
    expect(hearth_outputs_version(y) == 1, "of version 1");
    expect(std::strcmp(hearth_outputs_model(y), "digits") == 0, "of digits");
    lent(h, y, n);
    hearth_tensors_free(y, n);
    hearth_infer_options options = {};
    options.priority = 1;
    must(hearth_infer_with(h, "digits", &x, 1, &options, &y, &n), "infer_with");
    hearth_tensors_free(y, n);
    float logits[10] = {};
    hearth_tensor to = {};
    to.data = logits;
    to.bytes = sizeof logits;
    must(hearth_infer_into(h, "digits", &x, 1, &to, 1), "infer_into");
    expect(to.rank == 2 && to.shape[1] == 10 && logits[0] != 0, "ten logits, where they were to go");
    submitted(h, x);
    hearth_buffer_free(h, buffer);
}

struct Seen {
    int calls = 0, steps = 0;
    bool ends_at_once = false;
};

int watcher(void *ctx, const hearth_job_info *info)
{
    Seen *seen = static_cast<Seen *>(ctx);
    seen->calls++;
    seen->steps += info->step > 0 && !std::isnan(info->loss) ? 1 : 0;
    return seen->ends_at_once ? 1 : 0;
}

hearth_job_state state_of(hearth *h, hearth_job job)
{
    hearth_job_info *info = nullptr;
    must(hearth_job_status(h, job, &info), "job_status");
    hearth_job_state state = info->state;
    expect(info->id == job.id, "it is this job");
    hearth_free(info);
    return state;
}

// A job to its end: what is told of it, and what it has made.
void finished(hearth *h, const std::string &data)
{
    hearth_train_options options = {};
    options.size = sizeof options;
    options.optimizer = "adam";
    options.lr = 0.002;
    options.batch = 64;
    options.epochs = 3;
    options.seed = 1;
    options.budget = "60%";
    options.save_as = "made";
    options.hold_out = 0.1;
    options.more = "{\"warmup\": 4}";
    const double weights[10] = {1, 2, 1, 1, 1, 1, 1, 1, 1, 0.5};
    options.weights = weights;
    options.n_weights = 10;
    options.class_axis = 1;
    options.label_smoothing = 0.05;
    options.schedule = "one-cycle";
    options.keep = "best";
    options.patience = 2;
    hearth_job job = {}, found = {};
    must(hearth_train_submit(h, "new", data.c_str(), &options, &job), "train_submit");
    expect(job.id > 0, "it has a number");
    expect(hearth_train_submit(h, "new", data.c_str(), nullptr, &found) == HEARTH_OK && found.id > job.id,
           "another model is another job");
    Seen seen;
    hearth_job_info *info = nullptr;
    must(hearth_job_watch(h, job, watcher, &seen, &info), "job_watch");
    expect(seen.calls > 0 && info->state == HEARTH_JOB_FINISHED, "it was watched to its end");
    expect(info->step == info->steps && info->steps > 0 && info->ended_ns > 0, "all its steps");
    expect(info->version == 1 && std::strcmp(info->name, "made") == 0, "what it made");
    expect(std::strcmp(info->model, "new") == 0 && !std::isnan(info->held_out_loss), "of what");
    expect(info->lr > 0 && info->top5 > 0 && info->perplexity >= 1, "how it did");
    uint64_t steps = info->steps;
    hearth_free(info);
    hearth_train_result *result = nullptr;
    must(hearth_job_result(h, job, &result), "job_result");
    expect(std::strcmp(result->model, "made") == 0 && result->version == 1, "the result's name");
    expect(result->steps == steps && result->n_losses == steps && result->every == 1, "a loss a step");
    expect(result->losses[steps - 1] < result->losses[0] && result->step_ms[0] > 0, "it has learned");
    expect(result->n_evaluations == 3 && result->evaluations[2].epoch == 3, "an evaluation an epoch");
    expect(result->evaluations[2].accuracy > 0 && result->evaluations[2].accuracy <= 1, "a share");
    expect(std::strcmp(result->evaluations[0].set, "hold-out") == 0, "of the samples held out");
    expect(result->top5[2] >= result->evaluations[2].accuracy && result->perplexity[2] >= 1, "metrics");
    expect(result->best_epoch >= 1 && result->best_epoch <= 3 && result->stopped_early == 0, "the best");
    hearth_free(result);
    must(hearth_job_find(h, "made", &found), "job_find");
    expect(found.id == job.id, "the same by its name");
    must(hearth_job_find(h, std::to_string(job.id).c_str(), &found), "job_find");
    expect(found.id == job.id, "the same by its number");
    expect(hearth_job_find(h, "absent", &found) == HEARTH_ENOENT && found.id == 0, "no such job");
}

// A job that is paused, goes on, and is canceled.
void changed(hearth *h, const std::string &data)
{
    hearth_train_options options = {};
    options.epochs = 100000;
    options.save_as = "long";
    options.patience = 1; // a structure of the first version, whose size is 0, has no such field
    hearth_job job = {}, other = {};
    must(hearth_train_submit(h, "new", data.c_str(), &options, &job), "train_submit");
    expect(hearth_train_submit(h, "new", data.c_str(), &options, &other) == HEARTH_EBUSY,
           "one job of a name at a time");
    expect(other.id == 0 && std::strstr(hearth_error(), "long") != nullptr, "which says its name");
    hearth_train_result *result = nullptr;
    expect(hearth_job_result(h, job, &result) == HEARTH_EBUSY && result == nullptr, "no result yet");
    hearth_job_info *info = nullptr;
    expect(hearth_job_wait(h, job, 1, &info) == HEARTH_ETIMEDOUT && info == nullptr, "it is waited for");
    Seen seen;
    seen.ends_at_once = true;
    expect(hearth_job_watch(h, job, watcher, &seen, nullptr) == HEARTH_ECANCELED && seen.calls == 1,
           "watching ends, the job does not");
    must(hearth_job_pause(h, job), "job_pause");
    expect(state_of(h, job) == HEARTH_JOB_PAUSED, "paused");
    expect(hearth_job_pause(h, job) == HEARTH_EINVAL, "paused only once");
    must(hearth_job_resume(h, job, "80%"), "job_resume");
    expect(hearth_job_resume(h, job, nullptr) == HEARTH_EINVAL, "it goes on already");
    must(hearth_job_list(h, &info), "job_list");
    bool listed = false;
    for (const hearth_job_info *at = info; at != nullptr; at = at->next) {
        listed = listed || (at->id == job.id && std::strcmp(at->name, "long") == 0);
    }
    expect(listed, "it is listed");
    hearth_free(info);
    must(hearth_job_cancel(h, job), "job_cancel");
    must(hearth_job_wait(h, job, 60000, &info), "job_wait");
    expect(info->state == HEARTH_JOB_CANCELED, "canceled");
    hearth_free(info);
    expect(hearth_job_result(h, job, &result) == HEARTH_ECANCELED, "a canceled job has no result");
    expect(hearth_job_cancel(h, job) == HEARTH_EINVAL, "it has ended");
    expect(std::string(hearth_job_state_name(HEARTH_JOB_CANCELED)) == "canceled", "its word");
}

void refused(hearth *h, const std::string &data)
{
    hearth_job job = {7};
    hearth_train_options options = {};
    expect(hearth_train_submit(h, "absent", data.c_str(), nullptr, &job) == HEARTH_ENOENT && job.id == 0,
           "no such model");
    expect(hearth_train_submit(h, "new", (data + ".absent").c_str(), nullptr, &job) == HEARTH_ENOENT,
           "no such file");
    options.loss = "none";
    expect(hearth_train_submit(h, "new", data.c_str(), &options, &job) == HEARTH_EINVAL, "no such loss");
    options.loss = nullptr;
    options.lr = std::nan("");
    expect(hearth_train_submit(h, "new", data.c_str(), &options, &job) == HEARTH_EINVAL, "no number");
    options.lr = 0;
    options.size = sizeof options;
    options.patience = 1;
    expect(hearth_train_submit(h, "new", data.c_str(), &options, &job) == HEARTH_EINVAL,
           "nothing to compare epochs by");
    const double weight = std::nan("");
    options.patience = 0;
    options.weights = &weight;
    options.n_weights = 1;
    expect(hearth_train_submit(h, "new", data.c_str(), &options, &job) == HEARTH_EINVAL, "no weight");
    options.weights = nullptr;
    options.more = "[1]";
    expect(hearth_train_submit(h, "new", data.c_str(), &options, &job) == HEARTH_EINVAL, "no object");
    struct {
        hearth_train_options known;
        uint64_t later;
    } newer = {};
    newer.known.size = sizeof newer;
    newer.later = 1;
    expect(hearth_train_submit(h, "new", data.c_str(), &newer.known, &job) == HEARTH_ENOTSUP,
           "a field that the library does not know");
    options = {};
    options.save_as = "named"; // a refused job leaves its name free at once, refused early or late
    for (int i = 0; i < 20; i++) {
        options.budget = i % 2 > 0 ? "1KiB" : nullptr;
        options.loss = i % 2 > 0 ? nullptr : "none";
        hearth_status status = hearth_train_submit(h, "new", data.c_str(), &options, &job);
        expect(status == (i % 2 > 0 ? HEARTH_ETOOBIG : HEARTH_EINVAL) && job.id == 0, "no such job");
    }
    options.budget = options.loss = nullptr;
    must(hearth_train_submit(h, "new", data.c_str(), &options, &job), "train_submit after refusals");
    hearth_job_info *info = nullptr;
    must(hearth_job_wait(h, job, 0, &info), "job_wait");
    expect(info->state == HEARTH_JOB_FINISHED, "it ends");
    hearth_free(info);
    info = nullptr;
    job.id = 4711;
    expect(hearth_job_status(h, job, &info) == HEARTH_ENOENT && info == nullptr, "no such job");
    job.id = 0;
    expect(hearth_job_cancel(h, job) == HEARTH_EINVAL, "0 is no job");
}

// A job that is the only one of its ranks: a sum over it is what it was.
void ranks(hearth *h, const std::string &data)
{
    hearth_exchange *exchange = nullptr;
    expect(hearth_exchange_open(1, 1, &exchange) == HEARTH_EINVAL && exchange == nullptr, "no such rank");
    must(hearth_exchange_open(0, 1, &exchange), "exchange_open");
    expect(std::strstr(hearth_exchange_argument(exchange), "\"ranks\":1") != nullptr, "its argument");
    expect(hearth_exchange_fd(exchange) >= 0, "what to wait for");
    hearth_train_options options = {};
    options.size = sizeof options;
    options.save_as = "ranked";
    options.exchange = exchange;
    hearth_job job = {};
    must(hearth_train_submit(h, "new", data.c_str(), &options, &job), "train_submit as a rank");
    hearth_exchange_part part = {};
    hearth_status s;
    int parts = 0;
    while ((s = hearth_exchange_next(exchange, 0, &part)) == HEARTH_OK) {
        expect(part.data != nullptr && part.count > 0 && part.root == 0, "a part");
        parts += part.kind == HEARTH_EXCHANGE_SUM_F64 ? 1 : 0;
        must(hearth_exchange_done(exchange, &part), "exchange_done");
    }
    expect(s == HEARTH_ENOENT && parts > 1, "the job has ended");
    hearth_job_info *info = nullptr;
    must(hearth_job_wait(h, job, 60000, &info), "job_wait");
    expect(info->state == HEARTH_JOB_FINISHED, "it has finished");
    hearth_free(info);
    hearth_exchange_close(exchange);
    must(hearth_exchange_open(0, 1, &exchange), "exchange_open");
    options.exchange = exchange;
    options.save_as = "lost";
    options.epochs = 100000;
    must(hearth_train_submit(h, "new", data.c_str(), &options, &job), "train_submit as a rank");
    hearth_exchange_fail(exchange, "no network");
    must(hearth_job_wait(h, job, 60000, &info), "job_wait");
    expect(info->state == HEARTH_JOB_FAILED && std::strstr(info->why, "no network") != nullptr, "why");
    hearth_free(info);
    hearth_exchange_close(exchange);
}

void datasets(hearth *h, const std::string &data)
{
    hearth_data_options options = {};
    options.size = sizeof options;
    hearth_data_result put = {}, again = {};
    must(hearth_data_put(h, "samples", data.c_str(), &options, &put), "data_put");
    expect(put.bytes > 0 && put.moved_bytes == put.bytes, "its bytes");
    must(hearth_data_put(h, "samples", data.c_str(), nullptr, &again), "data_put again");
    expect(again.bytes == put.bytes && again.moved_bytes == 0, "no byte again");
    must(hearth_data_remove(h, "samples"), "data_remove");
    expect(hearth_data_remove(h, "samples") == HEARTH_ENOENT, "it is gone");
}

void rest(hearth *h, const std::string &store)
{
    char *json = nullptr;
    must(hearth_query(h, "models", nullptr, nullptr, nullptr, &json), "query");
    expect(std::strstr(json, "digits") != nullptr, "models");
    hearth_free(json);
    must(hearth_export(h, "made", (store + ".safetensors").c_str()), "export");
    hearth_export_report report;
    must(hearth_export_with(h, "made", (store + ".onnx").c_str(), nullptr, nullptr, &report),
         "export with");
    expect(report.bytes > 0 && report.moved == 0, "exported bytes");
    expect(hearth_export(h, "made", store.c_str()) == HEARTH_EINVAL, "an extension is needed");
    hearth_import_report pushed = {};
    must(hearth_push(h, "made", h, 0, nullptr, nullptr, &pushed), "push");
    expect(pushed.result.unchanged == 1 && pushed.result.tensors_new == 0, "it has that already");
    must(hearth_remove(h, "made"), "remove");
    uint64_t files = 0, bytes = 0;
    must(hearth_gc(h, &files, &bytes), "gc");
}

} // namespace

// An engine of its own, of which nothing is kept.
void embedded(const std::string &digits)
{
    const char *settings[] = {"queue.timeout_us=60000000"};
    hearth_embed_options options = {};
    options.size = sizeof options;
    options.store = ":memory:";
    options.device = "cpu:mem=1GiB,threads=1";
    options.settings = settings;
    options.n_settings = 1;
    hearth *h = nullptr;
    must(hearth_embed(&options, &h), "embed");
    must(hearth_import(h, "digits", (digits + "/digits.onnx").c_str(), -1, nullptr, nullptr, nullptr),
         "import");
    inference(h);
    hearth_close(h);
}

int main(int argc, char **argv)
{
    char local[200];
    if (argc != 4) {
        return 2;
    }
    std::string store = argv[2], digits = argv[3], data = digits + "/train.safetensors";
    hearth_options options = {};
    options.store = argv[2];
    options.device = "cpu:mem=1GiB,threads=1";
    hearth *h = nullptr;
    must(hearth_open(argv[1], &options, &h), "open");
    hearth_status found = hearth_local_url("/nowhere", local, sizeof local);
    expect(found == HEARTH_OK || found == HEARTH_ENOENT || found == HEARTH_EDENIED, "a server, or none");
    models(h, digits);
    datasets(h, data);
    inference(h);
    finished(h, data);
    changed(h, data);
    refused(h, data);
    ranks(h, data);
    rest(h, store);
    hearth_close(h);
    embedded(digits);
    std::puts("all calls");
    return 0;
}
