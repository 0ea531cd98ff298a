// SPDX-License-Identifier: Apache-2.0
// Inference beside a running training job: a model asked at random moments with high priority,
// alone and beside a job, and the job's speed alone and beside the requests. Four windows of one
// run, the server in its own process. Prints one JSON line.
//
// usage, from the root: serve_train [OPTION VALUE]..
//   --serve FILE.onnx --train FILE.onnx --batch N    what is asked, what is trained
//   --seconds S     of a window (10)
//   --busy SHARE    of the time that requests would take alone (0.2)
//   --priority P    of the requests (1)
//   --job KEYS      more of the job's arguments: '"replan":"off"'
//   --store DIR     is kept, with what was measured there
#include "tests/bench/serving.h"

#include "client/safetensors.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct options {
    const char *serve, *train, *job, *store;
    int64_t batch;
    double seconds, busy;
    uint32_t priority;
} options;

// ---- requests

static uint64_t random_state = 88172645463325252u;

static double random_unit(void) // xorshift64
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (double)(random_state >> 11) / 9007199254740992.0;
}

static double ask_once(hearth *h, const hearth_tensor *in, uint32_t priority)
{
    hearth_tensor *y;
    int n;
    uint64_t from = hth_now_ns();
    check(hearth_infer_with(h, "serve", in, 1, &(hearth_infer_options){.priority = priority}, &y,
                            &n) != HEARTH_OK,
          "infer");
    hearth_tensors_free(y, n);
    return (double)(hth_now_ns() - from) / 1e6;
}

// Requests for `seconds`, a pause of a random length behind each: `mean_ms` on average.
static void ask(hearth *h, const hearth_tensor *in, const options *o, double mean_ms, series *out)
{
    uint64_t until = hth_now_ns() + (uint64_t)(o->seconds * 1e9);
    while (hth_now_ns() < until) {
        series_add(out, ask_once(h, in, o->priority));
        pause_ns(mean_ms * 2 * random_unit() * 1e6);
    }
}

// ---- the job

// A dataset of two batches: pseudorandom images, labels in turn.
static void write_data(hearth *h, const char *path, int64_t batch)
{
    hearth_tensor x = serving_input(h, "train", 2 * batch);
    json_t *doc = serving_ask(h, "model", "{\"model\":\"train\"}");
    json_t *y_shape = json_object_get(json_array_get(json_object_get(doc, "outputs"), 0), "shape");
    int64_t classes = json_integer_value(json_array_get(y_shape, 1)), *label;
    label = malloc((size_t)(2 * batch) * sizeof *label);
    check(label == NULL || classes < 1, "labels");
    for (int64_t i = 0; i < 2 * batch; i++) {
        label[i] = i % classes;
    }
    x.name = "x";
    hearth_tensor t[2] = {x,
                          {.name = "y",
                           .dtype = HEARTH_I64,
                           .rank = 1,
                           .shape = {2 * batch},
                           .data = label,
                           .bytes = (size_t)(2 * batch) * sizeof *label}};
    check(hth_safetensors_write(path, t, 2) != HTH_OK, "the dataset");
    json_decref(doc);
    free(x.data);
    free(label);
}

typedef struct job {
    pthread_t thread;
    const serving *s;
    char arguments[512];
    atomic_int ended;
} job;

static void *job_run(void *arg)
{
    job *j = arg;
    hearth *h = NULL;
    char *text = NULL;
    check(hearth_open(j->s->url, &(hearth_options){.timeout_ms = 7200000}, &h) != HEARTH_OK,
          "connecting");
    if (hearth_query(h, "train", j->arguments, NULL, NULL, &text) != HEARTH_OK) {
        fprintf(stderr, "job: %s\n", hearth_error());
    }
    hearth_free(text);
    hearth_close(h);
    j->ended = 1;
    return NULL;
}

// The question is answered between two steps: {when, how many there were}.
typedef struct mark {
    uint64_t ns;
    json_int_t step;
} mark;

static mark job_mark(hearth *h)
{
    json_t *doc = serving_ask(h, "job", "{\"job\":\"trained\"}");
    mark m = {hth_now_ns(), json_integer_value(json_object_get(doc, "step"))};
    json_decref(doc);
    return m;
}

static mark job_behind(hearth *h, json_int_t step)
{
    mark m = job_mark(h);
    while (m.step <= step) {
        pause_ns(2e5);
        m = job_mark(h);
    }
    return m;
}

static double rate(mark a, mark b)
{
    return (double)(b.step - a.step) / ((double)(b.ns - a.ns) / 1e9);
}

// Where the requests' time went, as the server counts it: milliseconds in all.
typedef struct parts {
    double requests, queue_ms, run_ms;
} parts;

static parts parts_now(hearth *h)
{
    json_t *doc = serving_ask(h, "stats", "{\"model\":\"serve\"}");
    json_t *m = json_array_get(json_object_get(doc, "models"), 0), *t = json_object_get(m, "times");
    parts p = {(double)json_integer_value(json_object_get(m, "requests")),
               (double)json_integer_value(json_object_get(t, "queue_ns")) / 1e6,
               (double)json_integer_value(json_object_get(t, "infer_ns")) / 1e6};
    json_decref(doc);
    return p;
}

static parts parts_mean(parts a, parts b)
{
    double n = b.requests > a.requests ? b.requests - a.requests : 1;
    return (parts){n, (b.queue_ms - a.queue_ms) / n, (b.run_ms - a.run_ms) / n};
}

// ---- all

static void run(hearth *h, hearth *watch, const serving *s, const options *o)
{
    char data[96];
    job j = {.s = s};
    series alone = {.n = 0}, beside = {.n = 0}, warm = {.n = 0};
    hearth_import_result r;
    check(hearth_import(h, "serve", o->serve, -1, NULL, NULL, &r) != HEARTH_OK, "import");
    check(hearth_import(h, "train", o->train, -1, NULL, NULL, &r) != HEARTH_OK, "import");
    snprintf(data, sizeof data, "%s/data.safetensors", s->dir);
    write_data(h, data, o->batch);
    hearth_tensor in = serving_input(h, "serve", 1);
    json_decref(serving_ask(h, "bench", "{\"model\":\"serve\",\"batch\":1,\"seconds\":1}"));
    for (int i = 0; i < 10; i++) { // algorithms are measured by now
        series_add(&warm, ask_once(h, &in, o->priority));
    }
    double mean_ms = series_part(&warm, 0.25) * (1 / o->busy - 1);
    parts p0 = parts_now(h);
    ask(h, &in, o, mean_ms, &alone);
    parts pa = parts_mean(p0, parts_now(h));
    snprintf(
        j.arguments, sizeof j.arguments,
        "{\"model\":\"train\",\"save-as\":\"trained\",\"data\":\"%s\",\"loss\":\"softmax-xent\","
        "\"optimizer\":\"momentum\",\"lr\":0.001,\"batch\":%lld,\"epochs\":1000000,"
        "\"checkpoint\":\"none\"%s%s}",
        data, (long long)o->batch, o->job[0] != 0 ? "," : "", o->job);
    check(pthread_create(&j.thread, NULL, job_run, &j) != 0, "a thread");
    pause_ns(1e9);
    mark first = job_behind(watch, 5);
    pause_ns(o->seconds * 1e9);
    mark solo = job_behind(watch, first.step);
    mark from = job_behind(watch, solo.step);
    p0 = parts_now(h);
    ask(h, &in, o, mean_ms, &beside);
    parts pb = parts_mean(p0, parts_now(h));
    mark to = job_behind(watch, from.step);
    json_decref(serving_ask(watch, "cancel", "{\"job\":\"trained\"}"));
    pthread_join(j.thread, NULL);
    double a50 = series_part(&alone, 0.5), a99 = series_part(&alone, 0.99);
    double b50 = series_part(&beside, 0.5), b99 = series_part(&beside, 0.99);
    printf("{\"serve\":\"%s\",\"train\":\"%s\",\"batch\":%lld,\"busy\":%.2f,\"priority\":%u,"
           "\"requests_alone\":%d,\"requests_beside\":%d,\"p50_alone_ms\":%.3f,"
           "\"p50_beside_ms\":%.3f,\"p99_alone_ms\":%.3f,\"p99_beside_ms\":%.3f,"
           "\"p50_ratio\":%.3f,\"p99_ratio\":%.3f,\"steps_per_second_alone\":%.3f,"
           "\"steps_per_second_beside\":%.3f,\"training_ratio\":%.3f,\"queue_alone_ms\":%.3f,"
           "\"queue_beside_ms\":%.3f,\"run_alone_ms\":%.3f,\"run_beside_ms\":%.3f}\n",
           strrchr(o->serve, '/') + 1, strrchr(o->train, '/') + 1, (long long)o->batch, o->busy,
           o->priority, alone.n, beside.n, a50, b50, a99, b99, b50 / a50, b99 / a99,
           rate(first, solo), rate(from, to), rate(from, to) / rate(first, solo), pa.queue_ms,
           pb.queue_ms, pa.run_ms, pb.run_ms);
}

int main(int argc, char **argv)
{
    options o = {.serve = "tests/data/digits/digits.onnx",
                 .train = "tests/data/train/mobile_adam.onnx",
                 .job = "",
                 .batch = 64,
                 .seconds = 10,
                 .busy = 0.2,
                 .priority = 1};
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *v = argv[i + 1];
        o.serve = strcmp(argv[i], "--serve") == 0 ? v : o.serve;
        o.train = strcmp(argv[i], "--train") == 0 ? v : o.train;
        o.store = strcmp(argv[i], "--store") == 0 ? v : o.store;
        o.job = strcmp(argv[i], "--job") == 0 ? v : o.job;
        o.batch = strcmp(argv[i], "--batch") == 0 ? atoll(v) : o.batch;
        o.seconds = strcmp(argv[i], "--seconds") == 0 ? atof(v) : o.seconds;
        o.busy = strcmp(argv[i], "--busy") == 0 ? atof(v) : o.busy;
        o.priority = strcmp(argv[i], "--priority") == 0 ? (uint32_t)atoi(v) : o.priority;
    }
    serving s;
    serving_begin(&s);
    s.store = o.store;
    serving_start(&s, "cpu:mem=3GiB", 0);
    hearth *h = serving_dial(&s), *watch = serving_dial(&s);
    run(h, watch, &s, &o);
    hearth_close(h);
    hearth_close(watch);
    serving_end(&s);
    return 0;
}
