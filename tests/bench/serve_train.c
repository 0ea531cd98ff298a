// SPDX-License-Identifier: Apache-2.0
// Inference beside a running training job: a model asked at random moments with high priority,
// alone and beside a job, and the job's speed alone and beside the requests. Windows in turns in
// one run, the server in its own process: requests alone, the job alone, both; so many rounds. The
// job's windows begin when the search for a better plan, which each job begins with, has ended.
// One JSON line: percentiles of all rounds' requests, and of each round's, with what the host took.
//
// usage, from the root: serve_train [OPTION VALUE]..
//   --serve FILE.onnx --train FILE.onnx --batch N    what is asked, what is trained
//   --rounds N      (3)
//   --seconds S     of a window with requests (12), at least; the job's alone is two thirds of it
//   --requests N    of a window, at least (200)
//   --settle S      for how long the end of the search is waited for, at most (60)
//   --busy SHARE    of the time that requests would take alone (0.2)
//   --priority P    of the requests (1)
//   --job KEYS      more of the job's arguments: '"replan":"off"'
//   --store DIR     is kept, with what was measured there
//   --log FILE      a line for each request: alone or beside, begin (ns, CLOCK_MONOTONIC), ms
#include "tests/bench/serving.h"

#include "client/safetensors.h"
#include "server/machine.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct options {
    const char *serve, *train, *job, *store;
    FILE *log;
    int64_t batch;
    int rounds, requests;
    double seconds, settle, busy;
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

// Requests for `seconds`, at least so many, a pause of a random length behind each: `mean_ms` on
// average.
static void ask(hearth *h, const hearth_tensor *in, const options *o, double mean_ms,
                const char *word, series *out)
{
    uint64_t from, until = hth_now_ns() + (uint64_t)(o->seconds * 1e9);
    while ((from = hth_now_ns()) < until || out->n < o->requests) {
        double ms = ask_once(h, in, o->priority);
        series_add(out, ms);
        if (o->log != NULL) {
            fprintf(o->log, "%s %llu %.3f\n", word, (unsigned long long)from, ms);
            fflush(o->log);
        }
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

#define SETTLED 20 // more steps than a job takes to see that they are not what was planned

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

static mark job_behind(hearth *h, const job *j, json_int_t step)
{
    mark m = job_mark(h);
    while (m.step <= step) {
        pause_ns(2e5);
        check(j->ended, "the job");
        m = job_mark(h);
    }
    return m;
}

// job_settles waits until the job has not looked for a better plan for SETTLED steps.
static void job_settles(hearth *h, const options *o)
{
    uint64_t until = hth_now_ns() + (uint64_t)(o->settle * 1e9);
    json_int_t from = 0, step = 0;
    while (step < from + SETTLED && hth_now_ns() < until) {
        json_t *doc = serving_ask(h, "job", "{\"job\":\"trained\"}");
        step = json_integer_value(json_object_get(doc, "step"));
        from = from == 0 || json_is_true(json_object_get(doc, "planning")) ? step : from;
        json_decref(doc);
        pause_ns(5e7);
    }
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

typedef struct window {
    double p50, p99;
    parts parts;   // the mean request's
    double stolen; // what the host of a virtual machine took of the processors, 0 .. 1
} window;

typedef struct round_ {
    window alone, beside;
    double steps_alone, steps_beside; // a second
} round_;

#define ROUNDS 64

typedef struct bench {
    hearth *h, *watch;
    const serving *s;
    const options *o;
    hearth_tensor in;
    double mean_ms; // of a pause
    char data[96];
    series alone, beside; // all rounds
    round_ round[ROUNDS];
} bench;

static window ask_window(bench *b, const char *word, series *all)
{
    series one = {.n = 0};
    hth_machine machine = {.all = 0};
    parts from = parts_now(b->h);
    hth_machine_read(&machine);
    ask(b->h, &b->in, b->o, b->mean_ms, word, &one);
    hth_machine_read(&machine);
    window w = {series_part(&one, 0.5), series_part(&one, 0.99), parts_mean(from, parts_now(b->h)),
                machine.stolen};
    for (int i = 0; i < one.n; i++) {
        series_add(all, one.ms[i]);
    }
    free(one.ms);
    return w;
}

static void run_round(bench *b, round_ *r)
{
    const options *o = b->o;
    job j = {.s = b->s};
    r->alone = ask_window(b, "alone", &b->alone);
    snprintf(
        j.arguments, sizeof j.arguments,
        "{\"model\":\"train\",\"save-as\":\"trained\",\"data\":\"%s\",\"loss\":\"softmax-xent\","
        "\"optimizer\":\"momentum\",\"lr\":1e-9,\"batch\":%lld,\"epochs\":1000000,"
        "\"checkpoint\":\"none\"%s%s}",
        b->data, (long long)o->batch, o->job[0] != 0 ? "," : "", o->job);
    check(pthread_create(&j.thread, NULL, job_run, &j) != 0, "a thread");
    pause_ns(1e9);
    job_settles(b->watch, o);
    mark first = job_behind(b->watch, &j, 3);
    pause_ns(o->seconds * 2 / 3 * 1e9);
    mark solo = job_behind(b->watch, &j, first.step);
    r->beside = ask_window(b, "beside", &b->beside);
    mark to = job_behind(b->watch, &j, solo.step);
    r->steps_alone = rate(first, solo);
    r->steps_beside = rate(solo, to);
    json_decref(serving_ask(b->watch, "cancel", "{\"job\":\"trained\"}"));
    pthread_join(j.thread, NULL);
}

static json_t *window_json(const window *w)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:i, s:f}", "p50_ms", w->p50, "p99_ms", w->p99,
                     "queue_ms", w->parts.queue_ms, "run_ms", w->parts.run_ms, "requests",
                     (int)w->parts.requests, "stolen", w->stolen);
}

static void report(bench *b)
{
    const options *o = b->o;
    double a50 = series_part(&b->alone, 0.5), a99 = series_part(&b->alone, 0.99);
    double b50 = series_part(&b->beside, 0.5), b99 = series_part(&b->beside, 0.99);
    double alone = 0, beside = 0;
    json_t *rounds = json_array();
    for (int i = 0; i < o->rounds; i++) {
        const round_ *r = &b->round[i];
        alone += r->steps_alone / o->rounds;
        beside += r->steps_beside / o->rounds;
        json_array_append_new(
            rounds,
            json_pack("{s:o, s:o, s:f, s:f, s:f, s:f}", "alone", window_json(&r->alone), "beside",
                      window_json(&r->beside), "p99_ratio", r->beside.p99 / r->alone.p99,
                      "steps_per_second_alone", r->steps_alone, "steps_per_second_beside",
                      r->steps_beside, "training_ratio", r->steps_beside / r->steps_alone));
    }
    json_t *doc = json_pack(
        "{s:s, s:s, s:I, s:f, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o}",
        "serve", strrchr(o->serve, '/') + 1, "train", strrchr(o->train, '/') + 1, "batch",
        (json_int_t)o->batch, "busy", o->busy, "priority", (int)o->priority, "requests_alone",
        b->alone.n, "requests_beside", b->beside.n, "p50_alone_ms", a50, "p50_beside_ms", b50,
        "p99_alone_ms", a99, "p99_beside_ms", b99, "p50_ratio", b50 / a50, "p99_ratio", b99 / a99,
        "steps_per_second_alone", alone, "steps_per_second_beside", beside, "training_ratio",
        beside / alone, "rounds", rounds);
    check(json_dumpf(doc, stdout, JSON_COMPACT | JSON_REAL_PRECISION(4)) != 0, "printing");
    printf("\n");
    json_decref(doc);
}

static void run(bench *b)
{
    const options *o = b->o;
    series warm = {.n = 0};
    hearth_import_result r;
    check(hearth_import(b->h, "serve", o->serve, -1, NULL, NULL, &r) != HEARTH_OK, "import");
    check(hearth_import(b->h, "train", o->train, -1, NULL, NULL, &r) != HEARTH_OK, "import");
    snprintf(b->data, sizeof b->data, "%s/data.safetensors", b->s->dir);
    write_data(b->h, b->data, o->batch);
    b->in = serving_input(b->h, "serve", 1);
    json_decref(serving_ask(b->h, "bench", "{\"model\":\"serve\",\"batch\":1,\"seconds\":1}"));
    for (int i = 0; i < 10; i++) { // algorithms are measured by now
        series_add(&warm, ask_once(b->h, &b->in, o->priority));
    }
    b->mean_ms = series_part(&warm, 0.25) * (1 / o->busy - 1);
    for (int i = 0; i < o->rounds; i++) {
        run_round(b, &b->round[i]);
    }
    report(b);
    free(warm.ms);
    free(b->alone.ms);
    free(b->beside.ms);
}

int main(int argc, char **argv)
{
    options o = {.serve = "tests/data/digits/digits.onnx",
                 .train = "tests/data/train/mobile_adam.onnx",
                 .job = "",
                 .batch = 64,
                 .rounds = 3,
                 .requests = 200,
                 .settle = 60,
                 .seconds = 12,
                 .busy = 0.2,
                 .priority = 1};
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *v = argv[i + 1];
        o.serve = strcmp(argv[i], "--serve") == 0 ? v : o.serve;
        o.train = strcmp(argv[i], "--train") == 0 ? v : o.train;
        o.store = strcmp(argv[i], "--store") == 0 ? v : o.store;
        o.job = strcmp(argv[i], "--job") == 0 ? v : o.job;
        o.batch = strcmp(argv[i], "--batch") == 0 ? atoll(v) : o.batch;
        o.rounds = strcmp(argv[i], "--rounds") == 0 ? atoi(v) : o.rounds;
        o.log = strcmp(argv[i], "--log") == 0 ? fopen(v, "w") : o.log;
        o.seconds = strcmp(argv[i], "--seconds") == 0 ? atof(v) : o.seconds;
        o.requests = strcmp(argv[i], "--requests") == 0 ? atoi(v) : o.requests;
        o.settle = strcmp(argv[i], "--settle") == 0 ? atof(v) : o.settle;
        o.busy = strcmp(argv[i], "--busy") == 0 ? atof(v) : o.busy;
        o.priority = strcmp(argv[i], "--priority") == 0 ? (uint32_t)atoi(v) : o.priority;
    }
    check(o.rounds < 1 || o.rounds > ROUNDS, "the number of rounds");
    serving s;
    serving_begin(&s);
    s.store = o.store;
    serving_start(&s, "cpu:mem=3GiB", 0);
    bench b = {.h = serving_dial(&s), .watch = serving_dial(&s), .s = &s, .o = &o};
    run(&b);
    hearth_close(b.h);
    hearth_close(b.watch);
    serving_end(&s);
    if (o.log != NULL) {
        fclose(o.log);
    }
    return 0;
}
