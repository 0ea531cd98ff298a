// SPDX-License-Identifier: Apache-2.0
// Inference beside a running training job: a model asked at random moments with high priority,
// alone and beside a job, and the job's speed alone and beside the requests. Windows in turns in
// one run, the server in its own process: requests alone, then the job alone and both, some turns,
// so that a machine whose speed changes does so for both; so many rounds, a job each. The job's
// windows begin when the search for a better plan, which each job begins with, has ended, and are
// whole steps, with requests from the first to the last.
// One JSON line: percentiles of all rounds' requests, and of each round's, with what the host took.
//
// usage, from the root: serve_train [OPTION VALUE]..
//   --serve FILE.onnx --train FILE.onnx --batch N    what is asked, what is trained
//   --rounds N      (3)
//   --turns N       of a job alone and beside requests (3)
//   --seconds S     of a round's windows of each kind (12), at least
//   --requests N    of a round's windows of each kind (200), at least
//   --settle S      for how long the end of the search is waited for, at most (60)
//   --busy SHARE    of the time that requests would take alone (0.2)
//   --priority P    of the requests (1)
//   --job KEYS      more of the job's arguments: '"replan":"off"'
//   --store DIR     is kept, with what was measured there
//   --log FILE      a line for each request: alone or beside, begin (ns, CLOCK_MONOTONIC), ms
#include "tests/bench/serving.h"

#include "client/safetensors.h"
#include "runtime/machine.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct options {
    const char *serve, *train, *job, *store;
    FILE *log;
    int64_t batch;
    int rounds, turns, requests;
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

// Somebody asks, with a pause of a random length behind each request: `mean_ms` on average.
typedef struct asker {
    pthread_t thread;
    hearth *h;
    const hearth_tensor *in;
    const options *o;
    double mean_ms;
    const char *word;
    series *out;
    atomic_int n, stop;
} asker;

static void *asker_run(void *arg)
{
    asker *a = arg;
    while (!a->stop) {
        uint64_t from = hth_now_ns();
        double ms = ask_once(a->h, a->in, a->o->priority);
        series_add(a->out, ms);
        if (a->o->log != NULL) {
            fprintf(a->o->log, "%s %llu %.3f\n", a->word, (unsigned long long)from, ms);
            fflush(a->o->log);
        }
        a->n++;
        pause_ns(a->mean_ms * 2 * random_unit() * 1e6);
    }
    return NULL;
}

static void asker_start(asker *a)
{
    a->n = a->stop = 0;
    check(pthread_create(&a->thread, NULL, asker_run, a) != 0, "a thread");
}

static void asker_wait(asker *a, int requests, double seconds)
{
    uint64_t until = hth_now_ns() + (uint64_t)(seconds * 1e9);
    while (a->n < requests || hth_now_ns() < until) {
        pause_ns(1e7);
    }
}

static void asker_end(asker *a)
{
    a->stop = 1;
    pthread_join(a->thread, NULL);
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

// Steps and the time that they took.
typedef struct pace {
    double steps, seconds;
} pace;

static pace pace_between(mark a, mark b)
{
    return (pace){(double)(b.step - a.step), (double)(b.ns - a.ns) / 1e9};
}

static void pace_add(pace *all, pace more)
{
    all->steps += more.steps;
    all->seconds += more.seconds;
}

static double pace_rate(pace p) // steps a second
{
    return p.steps / p.seconds;
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

typedef struct turn {
    pace alone, beside;
    double stolen_alone, stolen_beside;
} turn;

#define TURNS 32

typedef struct round_ {
    window alone, beside;
    pace pace_alone, pace_beside;
    turn turn[TURNS];
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

static double stolen(hth_machine *machine)
{
    hth_machine_read(machine);
    return machine->stolen;
}

static window window_of(series *one, series *all, parts p, double taken)
{
    window w = {series_part(one, 0.5), series_part(one, 0.99), p, taken};
    for (int i = 0; i < one->n; i++) {
        series_add(all, one->ms[i]);
    }
    return w;
}

static void ask_alone(bench *b, round_ *r)
{
    const options *o = b->o;
    series one = {.n = 0};
    hth_machine machine = {.all = 0};
    asker a = {.h = b->h, .in = &b->in, .o = o, .mean_ms = b->mean_ms, .word = "alone"};
    a.out = &one;
    parts from = parts_now(b->watch);
    hth_machine_read(&machine);
    asker_start(&a);
    asker_wait(&a, o->requests, o->seconds);
    asker_end(&a);
    double taken = stolen(&machine);
    r->alone = window_of(&one, &b->alone, parts_mean(from, parts_now(b->watch)), taken);
    free(one.ms);
}

static void run_turn(bench *b, const job *j, asker *a, turn *t)
{
    const options *o = b->o;
    hth_machine machine = {.all = 0};
    mark from = job_behind(b->watch, j, job_mark(b->watch).step);
    hth_machine_read(&machine);
    pause_ns(o->seconds / o->turns * 1e9);
    mark solo = job_behind(b->watch, j, job_mark(b->watch).step);
    t->stolen_alone = stolen(&machine);
    asker_start(a);
    asker_wait(a, (o->requests + o->turns - 1) / o->turns, o->seconds / o->turns);
    mark to = job_behind(b->watch, j, job_mark(b->watch).step);
    t->stolen_beside = stolen(&machine);
    asker_end(a);
    t->alone = pace_between(from, solo);
    t->beside = pace_between(solo, to);
}

static void run_turns(bench *b, const job *j, round_ *r)
{
    series one = {.n = 0};
    double taken = 0;
    asker a = {.h = b->h, .in = &b->in, .o = b->o, .mean_ms = b->mean_ms, .word = "beside"};
    a.out = &one;
    parts before = parts_now(b->watch);
    for (int i = 0; i < b->o->turns; i++) {
        turn *t = &r->turn[i];
        run_turn(b, j, &a, t);
        pace_add(&r->pace_alone, t->alone);
        pace_add(&r->pace_beside, t->beside);
        taken += t->stolen_beside * t->beside.seconds;
    }
    r->beside = window_of(&one, &b->beside, parts_mean(before, parts_now(b->watch)),
                          taken / r->pace_beside.seconds);
    free(one.ms);
}

static void run_round(bench *b, round_ *r)
{
    const options *o = b->o;
    job j = {.s = b->s};
    ask_alone(b, r);
    snprintf(
        j.arguments, sizeof j.arguments,
        "{\"model\":\"train\",\"save-as\":\"trained\",\"data\":\"%s\",\"loss\":\"softmax-xent\","
        "\"optimizer\":\"momentum\",\"lr\":1e-9,\"batch\":%lld,\"epochs\":1000000,"
        "\"checkpoint\":\"none\"%s%s}",
        b->data, (long long)o->batch, o->job[0] != 0 ? "," : "", o->job);
    check(pthread_create(&j.thread, NULL, job_run, &j) != 0, "a thread");
    pause_ns(1e9);
    job_settles(b->watch, o);
    run_turns(b, &j, r);
    json_decref(serving_ask(b->watch, "cancel", "{\"job\":\"trained\"}"));
    pthread_join(j.thread, NULL);
}

static json_t *turns_json(const round_ *r, int n)
{
    json_t *turns = json_array();
    for (int i = 0; i < n; i++) {
        const turn *t = &r->turn[i];
        json_array_append_new(turns, json_pack("{s:f, s:f, s:f, s:f, s:f}", "training_ratio",
                                               pace_rate(t->beside) / pace_rate(t->alone),
                                               "steps_alone", t->alone.steps, "stolen_alone",
                                               t->stolen_alone, "steps_beside", t->beside.steps,
                                               "stolen_beside", t->stolen_beside));
    }
    return turns;
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
        double one = pace_rate(r->pace_alone), two = pace_rate(r->pace_beside);
        alone += one / o->rounds;
        beside += two / o->rounds;
        json_array_append_new(
            rounds,
            json_pack("{s:o, s:o, s:f, s:f, s:f, s:f, s:o}", "alone", window_json(&r->alone),
                      "beside", window_json(&r->beside), "p99_ratio", r->beside.p99 / r->alone.p99,
                      "steps_per_second_alone", one, "steps_per_second_beside", two,
                      "training_ratio", two / one, "turns", turns_json(r, o->turns)));
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
                 .turns = 3,
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
        o.turns = strcmp(argv[i], "--turns") == 0 ? atoi(v) : o.turns;
        o.log = strcmp(argv[i], "--log") == 0 ? fopen(v, "w") : o.log;
        o.seconds = strcmp(argv[i], "--seconds") == 0 ? atof(v) : o.seconds;
        o.requests = strcmp(argv[i], "--requests") == 0 ? atoi(v) : o.requests;
        o.settle = strcmp(argv[i], "--settle") == 0 ? atof(v) : o.settle;
        o.busy = strcmp(argv[i], "--busy") == 0 ? atof(v) : o.busy;
        o.priority = strcmp(argv[i], "--priority") == 0 ? (uint32_t)atoi(v) : o.priority;
    }
    check(o.rounds < 1 || o.rounds > ROUNDS, "the number of rounds");
    check(o.turns < 1 || o.turns > TURNS, "the number of turns");
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
