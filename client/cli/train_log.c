// SPDX-License-Identifier: Apache-2.0
// A row waits for the next step: the evaluation after it belongs to it, and is heard of later.
#include "client/cli/train_log.h"

#include "base/alloc.h"
#include "client/atomic_file.h"
#include "client/cli/tfevents.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOG_HEAD "step,epoch,loss,lr,ms,held_out_loss,accuracy,top5,perplexity\n"

typedef struct log_row {
    int64_t step, epoch; // step 0: there is no row
    double loss, lr, ms, wall;
    double held_out_loss, accuracy, top5, perplexity; // NAN: there is none
} log_row;

typedef struct log_file {
    char *path;
    FILE *f;           // NULL: it is not wanted
    bool events, made; // made: it was not there before
} log_file;

struct hth_train_log {
    log_file file[2]; // CSV, events
    log_row row;      // the last one, which is not written yet
    int64_t written;  // step of the last one that is
    bool begun;       // the files' old contents are gone
    bool gap;         // steps are missing
    hth_err err;      // of the first write that failed
    char why[400];
};

static double log_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void log_failed(hth_train_log *log, const char *path)
{
    if (log->err == HTH_OK) {
        log->err = HTH_EIO;
        snprintf(log->why, sizeof log->why, "cannot write %s: %s", path, strerror(errno));
    }
}

static bool csv_number(FILE *file, double v)
{
    return isnan(v) ? fputc(',', file) != EOF : fprintf(file, ",%.9g", v) > 0;
}

static bool csv_row(FILE *file, const log_row *row)
{
    return fprintf(file, "%lld,%lld", (long long)row->step, (long long)row->epoch) > 0 &&
           csv_number(file, row->loss) && csv_number(file, row->lr) && csv_number(file, row->ms) &&
           csv_number(file, row->held_out_loss) && csv_number(file, row->accuracy) &&
           csv_number(file, row->top5) && csv_number(file, row->perplexity) &&
           fputc('\n', file) != EOF;
}

static bool events_row(FILE *file, const log_row *row)
{
    const hth_scalar v[] = {
        {"train/loss", row->loss},         {"train/lr", row->lr},
        {"eval/loss", row->held_out_loss}, {"eval/accuracy", row->accuracy},
        {"eval/top5", row->top5},          {"eval/perplexity", row->perplexity}};
    return hth_tfevents_scalars(file, row->wall, row->step, v, sizeof v / sizeof *v);
}

static bool file_begin(const log_file *file, FILE *f, double wall)
{
    return file->events ? hth_tfevents_begin(f, wall) : fputs(LOG_HEAD, f) >= 0;
}

static bool file_row(const log_file *file, FILE *f, const log_row *row)
{
    return file->events ? events_row(f, row) : csv_row(f, row);
}

// What a file had before goes when there is something of the job to take its place.
static void log_begin(hth_train_log *log)
{
    for (int i = 0; i < 2 && !log->begun; i++) {
        const log_file *l = &log->file[i];
        struct stat st;
        bool regular = l->f != NULL && fstat(fileno(l->f), &st) == 0 && S_ISREG(st.st_mode);
        if (l->f != NULL && ((regular && ftruncate(fileno(l->f), 0) != 0) ||
                             !file_begin(l, l->f, log_now()) || fflush(l->f) != 0)) {
            log_failed(log, l->path);
        }
    }
    log->begun = true;
}

// Writes the row that waits.
static void log_flush(hth_train_log *log)
{
    const log_row *r = &log->row;
    for (int i = 0; i < 2 && r->step > 0; i++) {
        const log_file *l = &log->file[i];
        if (l->f != NULL && (!file_row(l, l->f, r) || fflush(l->f) != 0)) {
            log_failed(log, l->path);
        }
    }
    log->written = r->step > 0 ? r->step : log->written;
    log->row = (log_row){.step = 0};
}

static double row_number(const json_t *json, const char *key)
{
    const json_t *v = json_object_get(json, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static void row_evaluated(log_row *row, const json_t *json, const char *loss)
{
    row->held_out_loss = row_number(json, loss);
    row->accuracy = row_number(json, "accuracy");
    row->top5 = row_number(json, "top5");
    row->perplexity = row_number(json, "perplexity");
}

void hth_train_log_event(hth_train_log *log, const json_t *event)
{
    int64_t step = json_integer_value(json_object_get(event, "step"));
    if (log == NULL || step <= 0) {
        return;
    }
    log_begin(log);
    if (json_integer_value(json_object_get(event, "held_out_step")) == log->row.step) {
        row_evaluated(&log->row, event, "held_out_loss");
    }
    if (step == log->row.step) {
        return;
    }
    log_flush(log);
    log->gap = log->gap || step != log->written + 1;
    log->row = (log_row){.step = step,
                         .epoch = json_integer_value(json_object_get(event, "epoch")),
                         .loss = row_number(event, "loss"),
                         .lr = row_number(event, "lr"),
                         .ms = row_number(event, "ms"),
                         .wall = log_now(),
                         .held_out_loss = NAN,
                         .accuracy = NAN,
                         .top5 = NAN,
                         .perplexity = NAN};
    if (json_integer_value(json_object_get(event, "held_out_step")) == step) {
        row_evaluated(&log->row, event, "held_out_loss");
    }
}

// The evaluation after `step`, of the set that comes first; *at: where to look from.
static const json_t *doc_evaluation(const json_t *held, int64_t step, size_t *at)
{
    const json_t *set = json_object_get(json_array_get(held, 0), "set");
    for (; *at < json_array_size(held); ++*at) {
        const json_t *v = json_array_get(held, *at);
        int64_t of = json_integer_value(json_object_get(v, "step"));
        if (of > step) {
            return NULL;
        }
        if (of == step && json_equal(json_object_get(v, "set"), set)) {
            return v;
        }
    }
    return NULL;
}

// The evaluation after the last step need not have been heard of: where a client asks how the job
// stands, the next it hears is that it has ended.
static void log_evaluated(hth_train_log *log, const json_t *doc)
{
    size_t at = 0;
    if (log->row.step > 0 && isnan(log->row.held_out_loss)) {
        row_evaluated(&log->row,
                      doc_evaluation(json_object_get(doc, "held_out"), log->row.step, &at), "loss");
    }
}

// How many steps one of a document's stands for: those of a long job that has ended are thinned.
static int64_t doc_every(const json_t *doc)
{
    int64_t every = json_integer_value(json_object_get(doc, "every"));
    every = every > 1 ? every : 1;
    return every < INT32_MAX ? every : INT32_MAX;
}

// The i-th of the n steps of a document; its last one is there however it is thinned.
static int64_t doc_step(const json_t *doc, size_t i, size_t n)
{
    int64_t every = doc_every(doc);
    return every > 1 && i + 1 == n ? json_integer_value(json_object_get(doc, "step"))
                                   : 1 + (int64_t)i * every;
}

static double doc_ms(const json_t *step)
{
    return json_number_value(json_array_get(step, 1));
}

// When the steps of a document began, if they ended now.
static double doc_began(const json_t *doc)
{
    const json_t *v;
    size_t i;
    double ms = 0;
    json_array_foreach(json_object_get(doc, "history"), i, v)
    {
        ms += doc_ms(v) * (double)doc_every(doc);
    }
    return log_now() - ms / 1e3;
}

static log_row doc_row(const json_t *doc, int64_t step, double wall)
{
    int64_t per = json_integer_value(json_object_get(doc, "steps_per_epoch"));
    return (log_row){.step = step,
                     .epoch = per > 0 ? (step - 1) / per + 1 : 0,
                     .loss = NAN,
                     .lr = NAN,
                     .ms = NAN,
                     .wall = wall};
}

// Evaluations after steps that are not in a thinned document have rows without a loss.
static bool doc_between(const log_file *file, FILE *f, const json_t *doc, double wall, int64_t from,
                        int64_t to, size_t *at)
{
    const json_t *held = json_object_get(doc, "held_out"), *v;
    const json_t *set = json_object_get(json_array_get(held, 0), "set");
    for (bool good = true; good; ++*at) {
        v = json_array_get(held, *at);
        int64_t of = json_integer_value(json_object_get(v, "step"));
        if (v == NULL || of >= to) {
            return true;
        }
        if (of > from && json_equal(json_object_get(v, "set"), set)) {
            log_row r = doc_row(doc, of, wall);
            row_evaluated(&r, v, "loss");
            good = file_row(file, f, &r);
            from = of;
        }
    }
    return false;
}

static bool doc_rows(const log_file *file, FILE *f, const json_t *doc, double wall)
{
    const json_t *history = json_object_get(doc, "history"), *v;
    size_t i, at = 0, n = json_array_size(history);
    int64_t before = 0;
    bool good = true;
    json_array_foreach((json_t *)history, i, v)
    {
        const json_t *lr = json_array_get(v, 2);
        log_row r = doc_row(doc, doc_step(doc, i, n), wall);
        good = good && doc_between(file, f, doc, wall, before, r.step, &at);
        wall += doc_ms(v) * (double)doc_every(doc) / 1e3;
        r.wall = wall;
        r.loss = json_number_value(json_array_get(v, 0));
        r.ms = doc_ms(v);
        r.lr = lr != NULL ? json_number_value(lr) : NAN;
        row_evaluated(&r, doc_evaluation(json_object_get(doc, "held_out"), r.step, &at), "loss");
        good = good && file_row(file, f, &r);
        before = r.step;
    }
    return good;
}

// A file of all that a document knows.
static bool doc_file(const log_file *file, FILE *f, const json_t *doc)
{
    double wall = doc_began(doc);
    return file_begin(file, f, wall) && doc_rows(file, f, doc, wall);
}

// A link, as /dev/stdout is one, is nothing to replace: what it leads to is written anew.
static void log_rewrite(hth_train_log *log, const log_file *l, const json_t *doc)
{
    rewind(l->f);
    if (ftruncate(fileno(l->f), 0) != 0 || !doc_file(l, l->f, doc) || fflush(l->f) != 0) {
        log_failed(log, l->path);
    }
}

static void log_replace(hth_train_log *log, const log_file *l, const json_t *doc)
{
    hth_atomic_file file;
    struct stat st;
    if (fstat(fileno(l->f), &st) == 0 && !S_ISREG(st.st_mode)) {
        // a pipe has the rows that were heard of, if any
        if (log->written == 0 && (!doc_rows(l, l->f, doc, doc_began(doc)) || fflush(l->f) != 0)) {
            log_failed(log, l->path);
        }
        return;
    }
    if (lstat(l->path, &st) == 0 && !S_ISREG(st.st_mode)) {
        log_rewrite(log, l, doc);
        return;
    }
    if (hth_atomic_file_begin(l->path, &file) != HTH_OK) {
        log_failed(log, l->path);
        return;
    }
    FILE *f = fdopen(dup(file.fd), "w");
    bool good = f != NULL && doc_file(l, f, doc);
    if (!good) {
        log_failed(log, l->path);
    }
    if (f != NULL && fclose(f) != 0) {
        good = false;
        log_failed(log, l->path);
    }
    if (hth_atomic_file_end(&file, good) != HTH_OK) {
        log_failed(log, l->path);
    }
}

// Whether the document has more than the files. A job that failed has a record of the steps before
// its last checkpoint; and a thinned one is better only than nothing.
static bool log_is_more(const hth_train_log *log, const json_t *doc)
{
    size_t n = json_array_size(json_object_get(doc, "history"));
    bool thinned = doc_every(doc) > 1;
    int64_t last = n > 0 ? doc_step(doc, n - 1, n) : 0;
    bool more = n > 0 && (thinned ? log->written == 0
                                  : last >= log->written && (log->gap || log->written < last));
    if (thinned && n > 0 && (more || log->gap || log->written < last)) {
        fprintf(stderr, "hearth: the log has gaps: the job's record has every %lld-th step only\n",
                (long long)doc_every(doc));
    }
    return more;
}

hth_err hth_train_log_end(hth_train_log *log, const json_t *doc)
{
    if (log == NULL) {
        return HTH_OK;
    }
    if (doc != NULL) {
        log_begin(log);
    }
    log_evaluated(log, doc);
    log_flush(log);
    bool more = log_is_more(log, doc);
    for (int i = 0; i < 2; i++) {
        log_file *l = &log->file[i];
        if (l->f != NULL && more) {
            log_replace(log, l, doc);
        }
        if (l->f != NULL && fclose(l->f) != 0) {
            log_failed(log, l->path);
        }
        if (l->f != NULL && l->made && !log->begun) {
            (void)unlink(l->path); // as it was
        }
        hth_free(l->path);
    }
    hth_err err =
        log->err == HTH_OK ? HTH_OK : hth_fail(log->err, "the log is not whole: %s", log->why);
    hth_free(log);
    return err;
}

static hth_err file_open(log_file *file, char *path)
{
    file->path = path;
    if (path == NULL) {
        return hth_no_memory("a log");
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    file->made = fd >= 0;
    if (fd < 0 && errno == EEXIST) {
        fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    }
    file->f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (file->f == NULL) {
        int errnum = errno;
        if (fd >= 0) {
            close(fd);
        }
        return hth_fail(HTH_EIO, "cannot write %s: %s", path, strerror(errnum));
    }
    return HTH_OK;
}

// TensorBoard knows the files by "tfevents" in their names, and sorts them.
static hth_err events_open(log_file *file, const char *folder)
{
    char host[64] = "host";
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        return hth_fail(HTH_EIO, "cannot make the folder %s: %s", folder, strerror(errno));
    }
    (void)gethostname(host, sizeof host - 1);
    file->events = true;
    return file_open(file, hth_asprintf("%s/events.out.tfevents.%lld.%s.%ld.0", folder,
                                        (long long)log_now(), host, (long)getpid()));
}

hth_err hth_train_log_open(const char *csv, const char *tensorboard, hth_train_log **out)
{
    *out = NULL;
    if (csv == NULL && tensorboard == NULL) {
        return HTH_OK;
    }
    hth_train_log *log = hth_calloc(1, sizeof *log);
    if (log == NULL) {
        return hth_no_memory("a log");
    }
    hth_err err = csv != NULL ? file_open(&log->file[0], hth_strdup(csv)) : HTH_OK;
    if (err == HTH_OK && tensorboard != NULL) {
        err = events_open(&log->file[1], tensorboard);
    }
    if (err == HTH_OK) {
        *out = log;
        return HTH_OK;
    }
    for (int i = 0; i < 2; i++) {
        if (log->file[i].f != NULL) {
            fclose(log->file[i].f);
            if (log->file[i].made) {
                (void)unlink(log->file[i].path);
            }
        }
        hth_free(log->file[i].path);
    }
    hth_free(log);
    return err;
}
