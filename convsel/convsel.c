// SPDX-License-Identifier: Apache-2.0
// Measuring, ordering, remembering. A result belongs to a descriptor, not to a node: the key spells
// out everything that the time depends on, so equal layers of one model, and of all models, are
// measured once per machine. What is cached is text, one line per choice, read with suspicion: a
// line that does not parse means measuring again.
#include "convsel/convsel.h"

#include "base/clock.h"
#include "base/id.h"
#include "base/thread.h"
#include "convsel/bench.h"
#include "convsel/in_step_times.h"
#include "convsel/successive_halving.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CACHE_VALUE 4096
#define KEY_TEXT    4096
#define SLACK       64 // of the operands' bytes: workspaces that differ by less are equal
#define FEWER       8  // resident bytes count as fewer when an eighth of them is saved

typedef struct text {
    char at[KEY_TEXT];
    size_t n;
} text;

// Replaces all after the first `keep` characters by the hash of everything, so that different texts
// stay different.
static void text_hash(const char *at, size_t n, size_t keep, char *out)
{
    hth_chunk piece = {at, n};
    hth_id id = hth_id_of(&piece, 1);
    char hex[HTH_ID_HEX];
    hth_id_hex(&id, hex);
    memmove(out, at, keep);
    memcpy(out + keep, hex, sizeof hex);
}

// Pieces are no longer than half of KEY_TEXT: where there is no room for one, what is there becomes
// shorter.
static void __attribute__((format(printf, 2, 3))) text_add(text *t, const char *fmt, ...)
{
    for (int tries = 0; tries < 2; tries++) {
        va_list ap;
        va_start(ap, fmt);
        int n = vsnprintf(t->at + t->n, sizeof t->at - t->n, fmt, ap);
        va_end(ap);
        if (n >= 0 && t->n + (size_t)n < sizeof t->at) {
            t->n += (size_t)n;
            return;
        }
        text_hash(t->at, t->n, KEY_TEXT / 4, t->at);
        t->n = KEY_TEXT / 4 + HTH_ID_HEX - 1;
    }
}

static void key_values(text *t, const hth_graph *graph, const int *values, int n)
{
    for (int i = 0; i < n; i++) {
        if (values[i] < 0) {
            text_add(t, " -");
            continue;
        }
        const hth_value *v = &graph->values[values[i]];
        char shape[128];
        const char *layout = v->layout == HTH_LAYOUT_PLAIN ? "" : hth_layout_name(v->layout);
        text_add(t, " %s%s%s%s", hth_dtype_name(v->dtype),
                 hth_shape_str(&v->shape, shape, sizeof shape), layout,
                 v->constant != NULL ? "!" : "");
    }
}

static void key_attr(text *t, const hth_attr *attr)
{
    text_add(t, " %s=", attr->name);
    for (int i = 0; attr->type == HTH_ATTR_INTS && i < attr->n; i++) {
        text_add(t, "%" PRId64 ",", attr->u.ints[i]);
    }
    for (int i = 0; attr->type == HTH_ATTR_FLOATS && i < attr->n; i++) {
        text_add(t, "%a,", (double)attr->u.floats[i]);
    }
    if (attr->type == HTH_ATTR_INT) {
        text_add(t, "%" PRId64, attr->u.i);
    } else if (attr->type == HTH_ATTR_FLOAT) {
        text_add(t, "%a", (double)attr->u.f);
    } else if (attr->type == HTH_ATTR_STRING) {
        for (const char *s = attr->u.s; *s != '\0'; s += strnlen(s, 256)) {
            text_add(t, "%.256s", s);
        }
    }
}

static void key_fit(const text *t, char *out, size_t cap)
{
    if (t->n < cap) {
        memcpy(out, t->at, t->n + 1);
    } else {
        text_hash(t->at, t->n, cap - HTH_ID_HEX, out);
    }
}

static void key_node(text *t, const hth_graph *graph, const hth_node *node)
{
    text_add(t, "%s", hth_op_name(node->op));
    if (graph->precision != HTH_PRECISION_FP32) {
        text_add(t, "@%s", hth_precision_name(graph->precision));
    }
    key_values(t, graph, node->inputs, node->n_inputs);
    text_add(t, " ->");
    key_values(t, graph, node->outputs, node->n_outputs);
    for (int i = 0; i < node->n_attrs; i++) {
        key_attr(t, &node->attrs[i]);
    }
    for (int i = 0; i < node->n_post; i++) {
        const hth_post_op *p = &node->post[i];
        bool again =
            false; // an operand that the node also reads elsewhere cannot share the output's buffer
        for (int k = 0; k < node->n_inputs; k++) {
            again = again ||
                    (p->input >= 0 && k != p->input && node->inputs[k] == node->inputs[p->input]);
        }
        text_add(t, " +%s(%d%s,%a,%a)", hth_op_name(p->op), p->input, again ? "again" : "",
                 (double)p->alpha, (double)p->beta);
    }
}

void hth_convsel_describe(const hth_graph *graph, const hth_node *node, char *out, size_t cap)
{
    text t = {.n = 0};
    key_node(&t, graph, node);
    key_fit(&t, out, cap < HTH_CONVSEL_KEY ? cap : HTH_CONVSEL_KEY);
}

void hth_convsel_key(hth_device *device, const hth_graph *graph, const hth_node *node,
                     const hth_cache_model *cache_state, char *out, size_t cap)
{
    const char *caches = hth_cache_model_text(cache_state, graph, node);
    text t = {.n = 0};
    text_add(&t, "convsel4 ");
    key_node(&t, graph, node);
    text_add(&t, " | %s", device->props.fingerprint);
    if (caches != NULL) {
        text_add(&t, "; %s", caches);
    }
    key_fit(&t, out,
            cap < HTH_CONVSEL_KEY ? cap : HTH_CONVSEL_KEY); // the same whatever room there is
}

bool hth_convsel_has_menu(hth_op op)
{
    return op == HTH_OP_CONV || op == HTH_OP_CONV_TRANSPOSE || op == HTH_OP_CONV_GRAD_DATA ||
           op == HTH_OP_CONV_GRAD_FILTER;
}

bool hth_convsel_lists(const hth_device *device, hth_op op)
{
    return hth_convsel_has_menu(op) ||
           (device->kernels != NULL && (op == HTH_OP_MAT_MUL || op == HTH_OP_GEMM));
}

const char *hth_convsel_direction(hth_op op)
{
    if (op == HTH_OP_CONV_GRAD_DATA) {
        return "bwd_data";
    }
    return op == HTH_OP_CONV_GRAD_FILTER ? "bwd_filter" : "fwd";
}

// Errors are of the largest result, against sums in double over factors that are not rounded. TF32
// keeps 10 bits of a factor: kernels that read f32 cut the rest off, 2^-10 of it at most, or round,
// half of that. So a product is off by 2^-9. bf16 keeps 7, rounded: 2^-8 of a factor, 2^-7 of a
// product, 2^-8 more of a result that is bf16, together less than 2^-6. Twice that is left for
// sums, whose terms may be larger than what they add up to. A wrong result is off by about 1.
double hth_convsel_tolerance(const hth_graph *graph, double setting)
{
    double rounding = 0;
    if (graph->precision == HTH_PRECISION_TF32) {
        rounding = 0x1p-8;
    } else if (graph->precision == HTH_PRECISION_BF16) {
        rounding = 0x1p-5;
    }
    return setting > rounding ? setting : rounding;
}

void hth_convsel_front(hth_choice *list, int n, double tolerance)
{
    for (int i = 0; i < n; i++) {
        hth_choice *c = &list[i];
        c->front = c->time_us >= 0 && !(c->error > tolerance) && !isnan(c->error);
        for (int k = 0; k < i && c->front; k++) {
            c->front = !list[k].front || list[k].workspace_bytes > c->workspace_bytes ||
                       list[k].resident_bytes / FEWER * (FEWER - 1) > c->resident_bytes;
        }
    }
}

static int choice_order(const void *a, const void *b)
{
    const hth_choice *x = a, *y = b;
    if (x->time_us != y->time_us) {
        return x->time_us < y->time_us ? -1 : 1;
    }
    return x->workspace_bytes < y->workspace_bytes ? -1 : x->workspace_bytes > y->workspace_bytes;
}

// tries: how often a disturbed measurement was taken, 0: it was not disturbed.
static void choices_write(const hth_choice *list, int n, int tries, char *out, size_t cap)
{
    size_t at = tries > 0 ? (size_t)snprintf(out, cap, "disturbed %d\n", tries) : 0;
    for (int i = 0; i < n && at < cap; i++) {
        const hth_choice *c = &list[i];
        at += (size_t)snprintf(out + at, cap - at,
                               "%s %" PRIu64 " %" PRIu64 " %.3f %.3e %.3e %d %d %d\n", c->name,
                               c->workspace_bytes, c->resident_bytes, c->time_us, c->error, c->rms,
                               c->split, c->accumulates, c->deterministic);
    }
}

// Returns how many choices the text has, 0 when anything in it is not as choices_write makes it.
static int choices_read(const char *in, hth_choice *list, int cap, int *tries)
{
    int n = 0, head = 0;
    *tries = 0;
    if (sscanf(in, "disturbed %d\n%n", tries, &head) == 1 && head > 0 && *tries > 0) {
        in += head;
    } else {
        *tries = 0;
    }
    while (*in != '\0' && n < cap) {
        hth_choice *c = &list[n];
        int accumulates, deterministic, used = 0;
        *c = (hth_choice){.split = 1};
        if (sscanf(in, "%47s %" SCNu64 " %" SCNu64 " %lf %lf %lf %d %d %d\n%n", c->name,
                   &c->workspace_bytes, &c->resident_bytes, &c->time_us, &c->error, &c->rms,
                   &c->split, &accumulates, &deterministic, &used) != 9 ||
            used == 0 || !(c->time_us >= 0 && c->time_us <= HTH_CONVSEL_MOST_US) || c->split < 1 ||
            (double)c->workspace_bytes > HTH_CONVSEL_MOST_BYTES ||
            (double)c->resident_bytes > HTH_CONVSEL_MOST_BYTES) {
            return 0;
        }
        c->accumulates = accumulates != 0;
        c->deterministic = deterministic != 0;
        c->disturbed = *tries > 0;
        in += used;
        n++;
    }
    return n;
}

// What `cache` has under the key. *tries: of a measurement that was disturbed, 0: it was not.
static int convsel_recall(const hth_timing_cache *cache, const char *key, hth_choice *list, int cap,
                          int *tries)
{
    char value[CACHE_VALUE];
    *tries = 0;
    if (cache == NULL || cache->get(cache->ctx, key, value, sizeof value) != HTH_OK) {
        return 0;
    }
    int n = choices_read(value, list, cap, tries);
    qsort(list, (size_t)n, sizeof *list, choice_order);
    return n;
}

int hth_convsel_alone(const hth_timing_cache *cache, const char *key, hth_choice *list, int cap)
{
    int tries;
    return convsel_recall(cache, key, list, cap, &tries);
}

// ---- what a measurement is worth

#define SAME       3    // algorithms with one time to the nanosecond were not timed one by one
#define FLOPS_US   4e6  // of one thread in f32: several times what any processor computes ..
#define FLOPS_HALF 4    // .. and so many times that in shorter numbers
#define DELAY      0.05 // of the time: threads that wait longer for a processor have company
#define AGAIN_US   1e5  // a measurement that took longer is not repeated at once

// Whether nodes run elsewhere and are timed by the device's own clock.
static bool convsel_device(const hth_device *device)
{
    return !device->props.host_visible && device->kernels != NULL;
}

// Floating point operations of a convolution in whatever direction, 0: another operator. Each
// element of the tensor with the filter's outer channels takes a multiplication and an addition for
// each element of one filter.
static double convsel_flops(const hth_graph *graph, const hth_node *node)
{
    int side = node->op == HTH_OP_CONV ? node->outputs[0] : node->inputs[0],
        filter = node->inputs[1];
    if (node->op == HTH_OP_CONV_GRAD_FILTER) {
        side = node->inputs[1];
        filter = node->outputs[0];
    }
    const hth_shape *w = &graph->values[filter].shape;
    if (w->rank < 1 || w->dim[0] < 1) {
        return 0;
    }
    return 2 * (double)hth_shape_elements(&graph->values[side].shape) *
           (double)hth_shape_elements(w) / (double)w->dim[0];
}

// Whether the times cannot be: of several algorithms the same, or less than the arithmetic takes.
static bool convsel_implausible(const hth_device *device, const hth_graph *graph,
                                const hth_node *node, const hth_choice *list, int count)
{
    double least = 0;
    int same = 1; // the list is sorted by time
    if (!convsel_device(device) && hth_convsel_has_menu(node->op)) {
        double rate = FLOPS_US * (device->props.n_threads > 0 ? device->props.n_threads : 1);
        least = convsel_flops(graph, node) / rate;
        least /= graph->precision == HTH_PRECISION_FP32 ? 1 : FLOPS_HALF;
    }
    for (int i = 0; i < count; i++) {
        same = i > 0 && list[i].time_us == list[i - 1].time_us ? same + 1 : 1;
        if (same >= SAME || list[i].time_us < least) {
            return true;
        }
    }
    return false;
}

static bool convsel_any_disturbed(const hth_choice *list, int count)
{
    bool any = false;
    for (int i = 0; i < count; i++) {
        any = any || list[i].disturbed;
    }
    return any;
}

bool hth_convsel_known(hth_device *device, const hth_graph *graph, const hth_node *node,
                       const hth_cache_model *cache_state, const hth_timing_cache *cache)
{
    char key[HTH_CONVSEL_KEY];
    hth_choice list[HTH_MAX_CHOICES];
    hth_convsel_key(device, graph, node, cache_state, key, sizeof key);
    return hth_convsel_alone(cache, key, list, HTH_MAX_CHOICES) > 0;
}

static hth_err convsel_turn(void *ctx, hth_choice *choice, hth_samples *samples)
{
    return hth_bench_turn(ctx, choice, samples);
}

static hth_err convsel_check(void *ctx, hth_choice *choice)
{
    return hth_bench_error(ctx, choice);
}

static hth_err convsel_device_turn(void *ctx, hth_choice *choice, hth_samples *samples)
{
    return hth_bench_device_turn(ctx, choice, samples);
}

static hth_err convsel_device_check(void *ctx, hth_choice *choice)
{
    return hth_bench_device_error(ctx, choice);
}

// Measures in place; a choice that cannot be run (out of memory, refused after all) is dropped.
// *whole: none was for want of memory, so that the result holds for other processes, too.
static hth_err convsel_run(hth_device *device, const hth_graph *graph, const hth_node *node,
                           const hth_timing_cache *cache, const hth_cache_model *cache_state,
                           hth_choice *list, int *count, bool *whole)
{
    hth_bench *b = NULL;
    hth_bench_device *f = NULL;
    bool far = convsel_device(device);
    HTH_TRY(far ? hth_bench_device_open(device, graph, node, cache, &f)
                : hth_bench_open(device, graph, node, cache, cache_state, &b));
    hth_racer r = {.turn = far ? convsel_device_turn : convsel_turn,
                   .check = far ? convsel_device_check : convsel_check,
                   .ctx = far ? (void *)f : (void *)b,
                   .tolerance = hth_convsel_tolerance(graph, HTH_CONVSEL_TOLERANCE),
                   .slack_bytes = (far ? hth_bench_device_bytes(f) : hth_bench_bytes(b)) / SLACK,
                   .step = hth_cache_model_text(cache_state, graph, node) != NULL};
    hth_err err = hth_race(&r, list, count, whole);
    hth_bench_device_close(f);
    hth_bench_close(b);
    return err;
}

// Measures what is listed, and marks all of it when something disturbed that.
static hth_err convsel_take(hth_device *device, const hth_graph *graph, const hth_node *node,
                            const hth_timing_cache *cache, const hth_cache_model *cache_state,
                            hth_choice *list, int cap, int *count, bool *whole, double *took_us)
{
    HTH_TRY(hth_kernel_algorithms(device, graph, node, list, cap, count));
    uint64_t delay_ns = hth_thread_delay_ns(), start_ns = hth_now_ns();
    HTH_TRY(convsel_run(device, graph, node, cache, cache_state, list, count, whole));
    *took_us = (double)(hth_now_ns() - start_ns) / 1e3;
    double waited_us = (double)hth_thread_delay_since(delay_ns) / 1e3;
    qsort(list, (size_t)*count, sizeof *list, choice_order);
    bool disturbed = (!convsel_device(device) && waited_us > DELAY * *took_us) ||
                     convsel_any_disturbed(list, *count) ||
                     convsel_implausible(device, graph, node, list, *count);
    for (int i = 0; i < *count; i++) {
        list[i].disturbed = disturbed;
    }
    return HTH_OK;
}

// Disturbances only ever add: where both were disturbed, the lesser of two times counts.
static void convsel_merge(hth_choice *list, int count, const hth_choice *old, int n_old)
{
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < n_old; k++) {
            bool less = strcmp(list[i].name, old[k].name) == 0 && old[k].time_us < list[i].time_us;
            list[i].time_us = less ? old[k].time_us : list[i].time_us;
        }
    }
    qsort(list, (size_t)count, sizeof *list, choice_order);
}

// Keeps it, and has the list as the next one will know it. The error is the cache's.
static hth_err convsel_keep(const hth_timing_cache *cache, const char *key, hth_choice *list,
                            int count, int tries)
{
    char value[CACHE_VALUE];
    hth_choice kept[HTH_MAX_CHOICES];
    int read;
    choices_write(list, count, tries, value, sizeof value);
    HTH_TRY(cache->put(cache->ctx, key, value));
    if (convsel_recall(cache, key, kept, HTH_MAX_CHOICES, &read) == count) {
        memcpy(list, kept, (size_t)count * sizeof *list);
    }
    return HTH_OK;
}

// Measures node, and takes into account what was known of it: `old`, taken `tries` times,
// disturbed.
static hth_err convsel_fresh(hth_device *device, const hth_graph *graph, const hth_node *node,
                             const hth_cache_model *cache_state, const hth_timing_cache *cache,
                             const hth_choice *old, int n_old, int tries, hth_choice *list, int cap,
                             int *count)
{
    char key[HTH_CONVSEL_KEY];
    bool whole;
    double took_us;
    HTH_TRY(
        convsel_take(device, graph, node, cache, cache_state, list, cap, count, &whole, &took_us));
    bool disturbed = convsel_any_disturbed(list, *count);
    if (disturbed && n_old > 0 && !convsel_implausible(device, graph, node, old, n_old)) {
        convsel_merge(list, *count, old, n_old);
    }
    bool step = hth_cache_model_text(cache_state, graph, node) != NULL;
    if (disturbed && step && tries == 0 && took_us < AGAIN_US) {
        hth_choice first[HTH_MAX_CHOICES];
        int n_first = *count;
        memcpy(first, list, (size_t)n_first * sizeof *list);
        return convsel_fresh(device, graph, node, cache_state, cache, first, n_first, 1, list, cap,
                             count);
    }
    hth_convsel_key(device, graph, node, cache_state, key, sizeof key);
    if (cache != NULL && whole) { // where it takes nothing (a full disk): measured again next time
        (void)convsel_keep(cache, key, list, *count, disturbed ? tries + 1 : 0);
    }
    return HTH_OK;
}

hth_err hth_convsel_measure(hth_device *device, const hth_graph *graph, const hth_node *node,
                            const hth_cache_model *cache_state, const hth_timing_cache *cache,
                            hth_choice *list, int cap, int *count)
{
    char key[HTH_CONVSEL_KEY];
    hth_convsel_key(device, graph, node, cache_state, key, sizeof key);
    *count = hth_convsel_alone(cache, key, list, cap);
    if (*count == 0) {
        HTH_TRY(
            convsel_fresh(device, graph, node, cache_state, cache, NULL, 0, 0, list, cap, count));
    } else if (convsel_implausible(device, graph, node, list, *count)) {
        for (int i = 0; i < *count; i++) {
            list[i].disturbed = true;
        }
    }
    if (cache_state != NULL) {
        hth_in_step_times_apply(cache, key, list, *count);
        qsort(list, (size_t)*count, sizeof *list, choice_order);
    }
    hth_convsel_front(list, *count, hth_convsel_tolerance(graph, HTH_CONVSEL_TOLERANCE));
    return HTH_OK;
}

hth_err hth_convsel_scaled(hth_device *device, const hth_graph *graph, const hth_node *node,
                           const hth_graph *kin_graph, const hth_node *kin,
                           const hth_cache_model *kin_caches, const hth_timing_cache *cache,
                           double scale, hth_choice *list, int cap, int *count)
{
    hth_choice known[HTH_MAX_CHOICES];
    int n_known = 0, n = 0;
    bool fastest = false;
    if (convsel_device(device) || !hth_convsel_known(device, kin_graph, kin, kin_caches, cache)) {
        return hth_fail(HTH_ENOENT, "node '%s' is not measured", kin->name);
    }
    HTH_TRY(hth_convsel_measure(device, kin_graph, kin, kin_caches, cache, known, HTH_MAX_CHOICES,
                                &n_known));
    HTH_TRY(hth_kernel_algorithms(device, graph, node, list, cap, count));
    for (int i = 0; i < *count; i++) {
        for (int k = 0; k < n_known; k++) {
            if (strcmp(list[i].name, known[k].name) == 0) {
                uint64_t workspace = list[i].workspace_bytes;
                list[n] = known[k]; // n <= i
                list[n].workspace_bytes = workspace;
                list[n++].time_us *= scale;
                fastest = fastest || k == 0;
                break;
            }
        }
    }
    *count = n;
    qsort(list, (size_t)n, sizeof *list, choice_order);
    return fastest ? HTH_OK : hth_fail(HTH_ENOENT, "node '%s' has other algorithms", node->name);
}

bool hth_convsel_disturbed(hth_device *device, const hth_graph *graph, const hth_node *node,
                           const hth_cache_model *cache_state, const hth_timing_cache *cache)
{
    char key[HTH_CONVSEL_KEY];
    hth_choice list[HTH_MAX_CHOICES];
    int tries;
    hth_convsel_key(device, graph, node, cache_state, key, sizeof key);
    int count = convsel_recall(cache, key, list, HTH_MAX_CHOICES, &tries);
    return count > 0 && tries < HTH_CONVSEL_TRIES &&
           (tries > 0 || convsel_implausible(device, graph, node, list, count));
}

hth_err hth_convsel_again(hth_device *device, const hth_graph *graph, const hth_node *node,
                          const hth_cache_model *cache_state, const hth_timing_cache *cache)
{
    char key[HTH_CONVSEL_KEY];
    hth_choice old[HTH_MAX_CHOICES], list[HTH_MAX_CHOICES];
    int tries, count;
    hth_convsel_key(device, graph, node, cache_state, key, sizeof key);
    int n_old = convsel_recall(cache, key, old, HTH_MAX_CHOICES, &tries);
    int before = tries > 0 ? tries : 1;
    hth_err err = convsel_fresh(device, graph, node, cache_state, cache, old, n_old, before, list,
                                HTH_MAX_CHOICES, &count);
    (void)convsel_recall(cache, key, list, HTH_MAX_CHOICES, &count);
    if (n_old > 0 && count == tries && (err != HTH_OK || tries > 0)) { // nothing was kept
        HTH_TRY(convsel_keep(cache, key, old, n_old, before + 1));
    }
    return err;
}

hth_err hth_convsel_forget(hth_device *device, const hth_graph *graph, const hth_node *node,
                           const hth_cache_model *cache_state, const hth_timing_cache *cache)
{
    char key[HTH_CONVSEL_KEY];
    hth_convsel_key(device, graph, node, cache_state, key, sizeof key);
    HTH_TRY(cache->put(cache->ctx, key, HTH_CONVSEL_NOTHING));
    return hth_in_step_times_forget(cache, key);
}
