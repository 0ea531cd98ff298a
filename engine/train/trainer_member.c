// SPDX-License-Identifier: Apache-2.0
// A group's member makes a step in two parts, between which others' gradients come in. Everything
// that a pass writes can be undone: gradients are zeros before it, running statistics are copied.
#include "engine/train/trainer_impl.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#define MEMBER_LANES   8
#define MEMBER_WEIGHTS 2 // numbers that members sum before a pass with sync_bn

static const hth_train_graph *member_graph(const hth_trainer *trainer)
{
    return &hth_trainer_current(trainer)->add.graph;
}

static bool member_summed(const hth_trainer *trainer, int slot)
{
    return member_graph(trainer)->slots[slot].output >= 0;
}

static bool member_statistic(const hth_trainer *trainer, int slot)
{
    return member_graph(trainer)->slots[slot].kind == HTH_SLOT_STAT;
}

static hth_err member_shares(const hth_trainer *trainer, hth_trainer_sums *sums)
{
    HTH_TRY(hth_train_shard_sums(member_graph(trainer), &sums->shares, &sums->n_shares));
    if (sums->n_shares > 0) {
        sums->shares[sums->n_shares++] = MEMBER_WEIGHTS; // there is room for one more
    }
    return HTH_OK;
}

bool hth_trainer_at_hand(const hth_trainer *trainer)
{
    const hth_device_props *props = &trainer->ms->site->device->props;
    return props->host_visible && props->inline_compute;
}

void hth_trainer_zeros_close(hth_trainer *trainer)
{
    if (trainer->zeros != NULL) {
        munmap(trainer->zeros, trainer->zeros_bytes);
    }
    trainer->zeros = NULL;
}

static hth_err member_zeros(hth_trainer *trainer, const hth_trainer_sums *sums)
{
    size_t most = 1;
    hth_trainer_zeros_close(trainer);
    for (int k = 0; k < sums->n; k++) {
        most = sums->floats[k] > most ? sums->floats[k] : most;
    }
    void *zeros = mmap(NULL, most * sizeof(float), PROT_READ,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (zeros == MAP_FAILED) {
        return hth_fail_errno(errno, "cannot map %zu bytes of zeros", most * sizeof(float));
    }
    trainer->zeros = zeros;
    trainer->zeros_bytes = most * sizeof(float);
    return HTH_OK;
}

hth_err hth_trainer_sums_open(hth_trainer *trainer, hth_trainer_sums *sums)
{
    size_t all = (size_t)trainer->slots.n + 1, statistics = 0;
    *sums = (hth_trainer_sums){.slot = hth_calloc(all, sizeof *sums->slot),
                               .tensor = hth_calloc(all, sizeof *sums->tensor),
                               .floats = hth_calloc(all, sizeof *sums->floats),
                               .statistic = hth_calloc(all, sizeof *sums->statistic),
                               .place = hth_calloc(all, sizeof *sums->place),
                               .ready = hth_calloc(all, sizeof *sums->ready),
                               .held = hth_calloc(all, sizeof *sums->held)};
    HTH_TRY(member_shares(trainer, sums));
    hth_free(trainer->elsewhere);
    trainer->elsewhere = hth_calloc(all, sizeof *trainer->elsewhere);
    if (sums->slot == NULL || sums->tensor == NULL || sums->floats == NULL ||
        sums->statistic == NULL || sums->place == NULL || sums->ready == NULL ||
        sums->held == NULL || trainer->elsewhere == NULL) {
        return hth_no_memory("a training job");
    }
    for (int i = 0; i < trainer->slots.n; i++) {
        if (member_summed(trainer, i)) {
            sums->slot[sums->n] = i;
            sums->floats[sums->n] = trainer->slots.bytes[i] / sizeof(float);
            sums->statistic[sums->n] = member_statistic(trainer, i);
            statistics += sums->statistic[sums->n] ? trainer->slots.bytes[i] : 0;
            sums->n++;
        }
    }
    hth_free(trainer->statistics);
    trainer->statistics = hth_alloc(statistics + 1);
    return trainer->statistics != NULL ? member_zeros(trainer, sums)
                                       : hth_no_memory("a training job");
}

void hth_trainer_sums_close(hth_trainer_sums *sums)
{
    hth_free(sums->slot);
    hth_free(sums->tensor);
    hth_free(sums->floats);
    hth_free(sums->statistic);
    hth_free(sums->shares);
    hth_free(sums->place);
    hth_free(sums->ready);
    hth_free(sums->held);
    *sums = (hth_trainer_sums){.n = 0};
}

static hth_err member_contents(hth_trainer *trainer, const void ***out)
{
    *out = hth_calloc((size_t)trainer->slots.n + 1, sizeof **out);
    hth_err err = *out != NULL ? hth_trainer_slots_view(&trainer->slots, *out)
                               : hth_no_memory("a training job");
    if (err != HTH_OK) {
        hth_free((void *)*out);
        *out = NULL;
    }
    return err;
}

// Copies the running statistics as they are.
static hth_err member_keep(hth_trainer *trainer)
{
    const void **view;
    char *to = (char *)trainer->statistics;
    HTH_TRY(member_contents(trainer, &view));
    for (int i = 0; i < trainer->slots.n; i++) {
        if (member_summed(trainer, i) && member_statistic(trainer, i)) {
            memcpy(to, view[i], trainer->slots.bytes[i]);
            to += trainer->slots.bytes[i];
        }
    }
    hth_free((void *)view);
    hth_trainer_slots_unview(&trainer->slots);
    return HTH_OK;
}

// Labels of which none counts have no mean, and weigh nothing.
static double member_weight(const hth_trainer *trainer, const hth_tensor *inputs,
                            const hth_tensor *target)
{
    bool labels = trainer->spec->options.loss == HTH_LOSS_SOFTMAX_XENT;
    return labels ? hth_trainer_norm(trainer, target) : (double)inputs[0].shape.dim[0];
}

// With sync_bn other shards' losses depend on samples of such labels, too: their gradients have to
// weigh something, whatever it is.
double hth_trainer_weight(const hth_trainer *trainer, const hth_tensor *inputs,
                          const hth_tensor *target)
{
    double weight = member_weight(trainer, inputs, target);
    return weight > 0 || !trainer->spec->sync_bn ? weight : 1;
}

// Memory of the host's takes a slot's place where kernels reach it, and where the slot has one for
// the whole run. What is zero before a pass stays so then.
static bool member_replaces(const hth_trainer *trainer, int slot)
{
    return hth_trainer_at_hand(trainer) && trainer->slots.resident[slot] != NULL &&
           !member_statistic(trainer, slot);
}

void hth_trainer_bind(const hth_trainer *trainer, hth_trainer_phase *phase)
{
    bool update = phase == &hth_trainer_current(trainer)->apply;
    for (int i = 0; trainer->elsewhere != NULL && i < trainer->slots.n; i++) {
        const hth_train_slot *slot = &phase->graph.slots[i];
        if (trainer->elsewhere[i] != NULL && update) {
            phase->in[slot->input].data = trainer->elsewhere[i];
        } else if (trainer->elsewhere[i] != NULL) { // it adds to the zeros that the slot has
            phase->in[slot->input].data = trainer->zeros;
            phase->out[slot->output].data = trainer->elsewhere[i];
        }
    }
}

static void member_bound(hth_trainer *trainer)
{
    memset(trainer->elsewhere, 0, (size_t)trainer->slots.n * sizeof *trainer->elsewhere);
}

typedef struct member_watch {
    const hth_trainer_watch *watch;
    hth_trainer_sums *sums;
    hth_kernel_group group;
    const hth_work_queue *queue;
    pthread_t loop;  // the queue's; a run on other threads shares its own with nobody
    int64_t took_ns; // that the caller's functions took, without what others computed meanwhile
} member_watch;

// watch_ns is the time of which a pass is the difference (hth_trainer_part): it may run backwards,
// for what others compute is counted when they have ended.
static int64_t watch_ns(const member_watch *watch)
{
    uint64_t now_ns = hth_now_ns();
    bool here = pthread_equal(pthread_self(), watch->loop) != 0;
    return (int64_t)(here ? now_ns - hth_work_others_ns(watch->queue) : now_ns);
}

static void member_written(void *ctx, int k, const void *content)
{
    member_watch *w = ctx;
    int64_t from_ns = watch_ns(w);
    w->sums->ready[k] = true;
    w->watch->ready(w->watch->ctx, k, content);
    w->took_ns += watch_ns(w) - from_ns;
}

static void member_between(void *ctx)
{
    member_watch *w = ctx;
    int64_t from_ns = watch_ns(w);
    w->watch->between(w->watch->ctx);
    w->took_ns += watch_ns(w) - from_ns;
}

static hth_err member_sum(void *ctx, int share, double *values, size_t n)
{
    member_watch *w = ctx;
    int64_t from_ns = watch_ns(w);
    if (share < 0 || share >= w->sums->n_shares || n != w->sums->shares[share]) {
        return hth_fail(HTH_ECORRUPT, "sum %d of the shards has no %zu numbers", share, n);
    }
    hth_err err = w->watch->sum(w->watch->ctx, share, values);
    w->took_ns += watch_ns(w) - from_ns;
    return err;
}

// What the loss of a shard is divided by, and multiplied again in the sum (hth_group_weigh), or
// that of a whole batch; 0: loss and gradients are 0. With sync_bn kernels weigh gradients among
// those of all shards; where some weigh more than their labels do, the sum of all is to be
// divided by what the labels weigh all the same.
static hth_err member_norm(double labels, double weight, member_watch *listener, double *norm)
{
    double all[MEMBER_WEIGHTS] = {labels, weight};
    *norm = listener->watch == NULL ? labels : hth_trainer_divisor(labels);
    if (listener->watch == NULL || listener->sums->n_shares == 0) {
        return HTH_OK;
    }
    HTH_TRY(member_sum(listener, listener->sums->n_shares - 1, all, MEMBER_WEIGHTS));
    listener->group =
        (hth_kernel_group){.sum = member_sum, .ctx = listener, .weight = weight / all[1]};
    *norm = all[0] < all[1] ? all[0] / all[1] * weight : weight;
    return HTH_OK;
}

// Has the pass write where the caller wants it, and report what it writes.
static hth_err member_listen(hth_trainer *trainer, hth_program *program, hth_trainer_sums *sums,
                             member_watch *listener)
{
    const hth_graph *g = program->graph;
    for (int k = 0; k < sums->n; k++) {
        const hth_train_slot *slot = &member_graph(trainer)->slots[sums->slot[k]];
        bool elsewhere = member_replaces(trainer, sums->slot[k]);
        sums->tensor[k] = program->value_tensor[g->outputs[slot->output]];
        sums->ready[k] = false;
        sums->held[k] = !elsewhere || sums->place[k] == NULL;
        trainer->elsewhere[sums->slot[k]] = elsewhere ? sums->place[k] : NULL;
    }
    if (!trainer->ms->site->device->props.inline_compute) {
        return HTH_OK; // all is read when the pass has ended
    }
    hth_run_group(program->run, sums->n_shares > 0 ? &listener->group : NULL);
    hth_run_between(program->run, member_between, listener);
    return hth_run_watch(program->run, sums->tensor, sums->n, member_written, listener);
}

// Reports what was not in the middle of the pass: of a device that does not, and what no operator
// wrote.
static hth_err member_rest(hth_trainer *trainer, hth_trainer_sums *sums,
                           const hth_trainer_watch *watch)
{
    const void **view;
    int left = 0;
    for (int k = 0; k < sums->n; k++) {
        left += !sums->ready[k];
    }
    if (left == 0) {
        return HTH_OK;
    }
    HTH_TRY(member_contents(trainer, &view));
    for (int k = 0; k < sums->n; k++) {
        int slot = sums->slot[k];
        const void *own = trainer->elsewhere[slot];
        if (!sums->ready[k]) {
            watch->ready(watch->ctx, k, own != NULL ? own : view[slot]);
        }
    }
    hth_free((void *)view);
    hth_trainer_slots_unview(&trainer->slots);
    return HTH_OK;
}

static hth_err member_pass(hth_trainer *trainer, int member, const hth_tensor *inputs,
                           const hth_tensor *target, member_watch *listener, float *loss)
{
    hth_trainer_phase *add = &hth_trainer_current(trainer)->add;
    double norm, labels = member_weight(trainer, inputs, target);
    double weight = hth_trainer_weight(trainer, inputs, target);
    HTH_TRY(member_norm(labels, weight, listener, &norm));
    listener->took_ns = 0; // of the run that follows
    hth_trainer_hyper(trainer, 1, norm);
    trainer->measured = hth_timeline_begin(trainer->timeline, hth_now_ns());
    if (listener->watch != NULL) {
        HTH_TRY(member_listen(trainer, add->program, listener->sums, listener));
    }
    HTH_TRY(hth_trainer_part(trainer, add, 0, (uint64_t)member, inputs, target, loss));
    trainer->aside_ns = listener->took_ns;
    return listener->watch != NULL ? member_rest(trainer, listener->sums, listener->watch) : HTH_OK;
}

hth_err hth_trainer_pass(hth_trainer *trainer, int member, const hth_tensor *inputs,
                         const hth_tensor *target, hth_trainer_sums *sums,
                         const hth_trainer_watch *watch, float *loss)
{
    hth_trainer_phase *add = &hth_trainer_current(trainer)->add;
    member_watch listener = {
        .watch = watch, .sums = sums, .queue = trainer->ms->site->queue, .loop = pthread_self()};
    trainer->stall_ns = trainer->run_ns = 0;
    trainer->aside_ns = 0;
    HTH_TRY(hth_trainer_enter(trainer, add));
    HTH_TRY(member_keep(trainer));
    for (int k = 0; k < sums->n; k++) {
        sums->held[k] = true; // unless it goes elsewhere
    }
    hth_err err = member_pass(trainer, member, inputs, target, &listener, loss);
    hth_run_group(add->program->run, NULL);
    hth_run_between(add->program->run, NULL, NULL);
    (void)hth_run_watch(add->program->run, NULL, 0, NULL, NULL);
    member_bound(trainer);
    return err;
}

void hth_trainer_pass_none(hth_trainer *trainer)
{
    hth_trainer_hyper(trainer, 1, 1);
    trainer->stall_ns = trainer->run_ns = 0;
    trainer->aside_ns = 0;
    trainer->measured = false;
}

double hth_trainer_pass_us(const hth_trainer *trainer)
{
    return fmax(0, (double)((int64_t)trainer->run_ns - trainer->aside_ns) / 1e3);
}

// The sums are read where they are, or take the places of what the pass left.
static hth_err member_take(hth_trainer *trainer, hth_trainer_phase *phase,
                           const hth_trainer_sums *sums, const float *const *summed)
{
    HTH_TRY(hth_trainer_enter(trainer, phase));
    for (int k = 0; k < sums->n; k++) {
        int slot = sums->slot[k];
        if (member_replaces(trainer, slot)) {
            trainer->elsewhere[slot] = (float *)summed[k];
        } else {
            HTH_TRY(hth_trainer_slots_set(&trainer->slots, slot, summed[k]));
        }
    }
    return HTH_OK;
}

// member_clear sets slots to zeros that are not: those that a pass or member_take has written.
// Statistics stay. On other devices the update does.
static hth_err member_clear(hth_trainer *trainer, hth_trainer_sums *sums, bool taken)
{
    bool clears = hth_trainer_at_hand(trainer);
    for (int k = 0; k < sums->n && clears; k++) {
        bool set = taken && !member_replaces(trainer, sums->slot[k]);
        if (!sums->statistic[k] && (sums->held[k] || set)) {
            HTH_TRY(hth_trainer_slots_set(&trainer->slots, sums->slot[k], trainer->zeros));
        }
        sums->held[k] = false;
    }
    return HTH_OK;
}

// Eight sums of squares side by side, each in its order, which is added up: of the same elements
// they are the same to the bit, whatever computes them.
static double member_squares(const float *x, size_t n)
{
    double lane[MEMBER_LANES] = {0}, sum = 0;
    for (size_t i = 0; i < n; i += MEMBER_LANES) {
        size_t left = n - i < MEMBER_LANES ? n - i : MEMBER_LANES;
        for (size_t k = 0; k < left; k++) {
            lane[k] += (double)x[i + k] * (double)x[i + k];
        }
    }
    for (size_t k = 0; k < MEMBER_LANES; k++) {
        sum += lane[k];
    }
    return sum;
}

// member_clip is the factor that the group's gradients are clipped by, 0: they are not. Members
// must have the same one, and their devices would sum in orders of their own.
static float member_clip(const hth_trainer *trainer, const hth_trainer_sums *sums,
                         const float *const *summed, double factor)
{
    double max_norm = (double)trainer->spec->options.clip_norm, squares = 0;
    if (max_norm <= 0) {
        return 0;
    }
    for (int k = 0; k < sums->n; k++) {
        squares += sums->statistic[k] ? 0 : member_squares(summed[k], sums->floats[k]);
    }
    return (float)fmin(1, max_norm / (sqrt(squares) * factor + 1e-6));
}

hth_err hth_trainer_update(hth_trainer *trainer, const hth_tensor *inputs, const hth_tensor *target,
                           hth_trainer_sums *sums, const float *const *summed, double factor)
{
    hth_trainer_phase *phase = &hth_trainer_current(trainer)->apply;
    float none;
    hth_trainer_slots_unview(&trainer->slots);
    hth_err err = summed != NULL ? member_take(trainer, phase, sums, summed) : HTH_OK;
    trainer->hyper[HTH_HYPER_GRAD_SCALE] = summed != NULL ? (float)factor : 1;
    trainer->hyper[HTH_HYPER_CLIP] =
        summed != NULL ? member_clip(trainer, sums, summed, factor) : 0;
    trainer->apply_ns = trainer->run_ns;
    if (err == HTH_OK) {
        err = hth_trainer_part(trainer, phase, 0, 0, inputs, target, &none);
    }
    trainer->apply_ns = trainer->run_ns - trainer->apply_ns;
    member_bound(trainer);
    HTH_TRY(err);
    HTH_TRY(member_clear(trainer, sums, summed != NULL));
    trainer->counter++;
    if (trainer->measured) {
        hth_timeline_end(trainer->timeline, trainer->counter, hth_now_ns());
    }
    return HTH_OK;
}

double hth_trainer_update_us(const hth_trainer *trainer)
{
    return (double)trainer->apply_ns / 1e3;
}

hth_err hth_trainer_undo(hth_trainer *trainer, const hth_trainer_sums *sums)
{
    const char *from = (const char *)trainer->statistics;
    hth_trainer_slots_unview(&trainer->slots);
    for (int k = 0; k < sums->n; k++) {
        const void *content = sums->statistic[k] ? (const void *)from : trainer->zeros;
        HTH_TRY(hth_trainer_slots_set(&trainer->slots, sums->slot[k], content));
        from += sums->statistic[k] ? sums->floats[k] * sizeof(float) : 0;
    }
    return HTH_OK;
}

// ---- the whole state

static bool member_copy(const hth_trainer *trainer, int slot)
{
    return member_graph(trainer)->slots[slot].kind == HTH_SLOT_COPY;
}

// member_whole: the slot is part of what members take from each other. A parameter server has the
// optimizer's state alone, and others take it between steps, when gradients are zeros.
static bool member_whole(const hth_trainer *trainer, int slot)
{
    return trainer->spec->server ? hth_slot_of_model(member_graph(trainer)->slots[slot].kind)
                                 : !member_copy(trainer, slot);
}

size_t hth_trainer_whole_bytes(const hth_trainer *trainer)
{
    size_t bytes = 0;
    for (int i = 0; i < trainer->slots.n; i++) {
        bytes += member_whole(trainer, i) ? trainer->slots.bytes[i] : 0;
    }
    return bytes;
}

hth_err hth_trainer_write(hth_trainer *trainer, void *to)
{
    const void **view;
    char *at = to;
    HTH_TRY(member_contents(trainer, &view));
    for (int i = 0; i < trainer->slots.n; i++) {
        if (member_whole(trainer, i)) {
            memcpy(at, view[i], trainer->slots.bytes[i]);
            at += trainer->slots.bytes[i];
        }
    }
    hth_free((void *)view);
    hth_trainer_slots_unview(&trainer->slots);
    return HTH_OK;
}

// A copy is set from its parameter, which belongs to the same initializer.
static hth_err member_read_copies(hth_trainer *trainer, int parameter, const void *content)
{
    const hth_train_graph *g = member_graph(trainer);
    for (int i = 0; i < trainer->slots.n; i++) {
        bool of = g->slots[parameter].kind == HTH_SLOT_PARAM && member_copy(trainer, i) &&
                  g->slots[i].initializer == g->slots[parameter].initializer;
        HTH_TRY(of ? hth_trainer_slots_set(&trainer->slots, i, content) : HTH_OK);
    }
    return HTH_OK;
}

hth_err hth_trainer_read(hth_trainer *trainer, const void *from, uint64_t steps)
{
    const char *at = from;
    hth_trainer_slots_unview(&trainer->slots);
    for (int i = 0; i < trainer->slots.n; i++) {
        if (member_whole(trainer, i)) {
            HTH_TRY(hth_trainer_slots_set(&trainer->slots, i, at));
            HTH_TRY(member_read_copies(trainer, i, at));
            at += trainer->slots.bytes[i];
        }
    }
    trainer->counter = steps;
    return HTH_OK;
}

uint64_t hth_trainer_fingerprint(const hth_trainer *trainer)
{
    const hth_train_graph *g = member_graph(trainer);
    uint64_t hash = 0xcbf29ce484222325u; // FNV-1a
    for (int i = 0; i < trainer->manifest.n_tensors; i++) {
        for (size_t k = 0; k < sizeof(hth_id); k++) {
            hash = (hash ^ trainer->manifest.tensors[i].id.byte[k]) * 0x100000001b3u;
        }
    }
    for (int i = 0; i < g->n_slots; i++) {
        if (!member_whole(trainer, i) && !member_summed(trainer, i)) {
            continue;
        }
        for (const char *c = g->slots[i].name; *c != 0; c++) {
            hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
        }
        hash = (hash ^ trainer->slots.bytes[i]) * 0x100000001b3u;
    }
    return hash;
}
