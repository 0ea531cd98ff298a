// SPDX-License-Identifier: Apache-2.0
// What rules about samples read of their node, and how they say what they found.
#include "graph/follow_impl.h"

#include "base/alloc.h"

#include <string.h>

// ---- inputs

bool hth_follow_has(const hth_follow *f, int i)
{
    return i < f->n_in && f->n->inputs[i] >= 0;
}

const hth_track *hth_follow_in(const hth_follow *f, int i)
{
    return &f->track[f->n->inputs[i]];
}

bool hth_follow_samples(const hth_follow *f, int i)
{
    return hth_follow_has(f, i) && hth_follow_in(f, i)->kind == HTH_TRACK_SAMPLES;
}

int hth_follow_any(const hth_follow *f)
{
    for (int i = 0; i < f->n_in; i++) {
        if (hth_follow_samples(f, i)) {
            return i;
        }
    }
    return -1;
}

bool hth_follow_only(hth_follow *f, unsigned mask)
{
    for (int i = 0; i < f->n_in; i++) {
        bool allowed = i < 32 && (mask >> i & 1) != 0;
        if (!allowed && hth_follow_samples(f, i)) {
            hth_follow_mixed(f, "reads as a parameter what depends on the samples", -1);
            return false;
        }
    }
    return true;
}

int64_t hth_follow_elements(const hth_follow *f, int i)
{
    if (!hth_follow_has(f, i)) {
        return -1;
    }
    const hth_track *t = hth_follow_in(f, i);
    int64_t n = 1, dim;
    for (int d = 0; d < t->rank; d++) {
        if (!hth_size_value(f->sizes, t->dim[d], &dim) || dim < 0 ||
            __builtin_mul_overflow(n, dim, &n)) {
            return -1;
        }
    }
    return t->rank >= 0 ? n : -1;
}

// A constant's elements, when it is asked for the first time.
static void read_constant(hth_follow *f, int value)
{
    hth_track *t = &f->track[value];
    hth_const *c = f->g->values[value].constant;
    int64_t n = c != NULL ? hth_shape_elements(&c->shape) : 0;
    if (t->n > 0 || c == NULL || n < 1 || n > FOLLOW_ELEMENTS) {
        return;
    }
    const void *data;
    if (hth_const_map(c, &data) != HTH_OK) {
        return; // then nothing is known of it
    }
    hth_size *element = hth_calloc((size_t)n, sizeof *element);
    if (element == NULL) {
        f->failed = true;
        hth_const_unmap(c);
        return;
    }
    for (int64_t k = 0; k < n; k++) {
        int64_t whole;
        element[k] = follow_whole(c->dtype, data, k, &whole) ? hth_size_number(f->sizes, whole)
                                                             : hth_size_fresh(f->sizes, false);
    }
    hth_const_unmap(c);
    t->element = element;
    t->n = (int)n;
}

hth_size hth_follow_element(hth_follow *f, int i, int k)
{
    if (!hth_follow_has(f, i)) {
        return HTH_SIZE_OTHER;
    }
    int value = f->n->inputs[i];
    const hth_track *t = &f->track[value];
    read_constant(f, value);
    if (k < t->n) {
        return t->element[k];
    }
    return t->kind == HTH_TRACK_FIXED ? hth_size_fresh(f->sizes, false) : HTH_SIZE_OTHER;
}

hth_size hth_follow_length(hth_follow *f)
{
    for (int i = 0; i < f->n_in; i++) {
        if (hth_follow_has(f, i) && hth_follow_in(f, i)->kind != HTH_TRACK_FIXED &&
            hth_follow_in(f, i)->kind != HTH_TRACK_SAMPLES) {
            return HTH_SIZE_OTHER;
        }
    }
    return hth_size_fresh(f->sizes, true);
}

int hth_follow_ints(hth_follow *f, int i, int64_t *out, int cap)
{
    if (!hth_follow_has(f, i)) {
        return 0;
    }
    int64_t n = hth_follow_elements(f, i);
    for (int k = 0; k < n && n <= cap; k++) {
        if (!hth_size_value(f->sizes, hth_follow_element(f, i, k), &out[k])) {
            return -1;
        }
    }
    return n <= cap ? (int)n : -1;
}

bool hth_follow_axis(hth_follow *f, int64_t axis, int rank, int *out)
{
    if (axis < -rank || axis >= rank) {
        hth_follow_mixed(f, "has an axis outside of its dimensions", -1);
        return false;
    }
    *out = (int)(axis < 0 ? axis + rank : axis);
    return true;
}

bool hth_follow_numbers(const hth_follow *f, int i, hth_shape *out)
{
    const hth_track *t = hth_follow_in(f, i);
    bool all = t->rank >= 0;
    out->rank = t->rank;
    for (int d = 0; d < t->rank; d++) {
        all = hth_size_value(f->sizes, t->dim[d], &out->dim[d]) && all;
    }
    return all;
}

// ---- outputs

void hth_follow_out(hth_follow *f, int i, const hth_track *t)
{
    if (i < f->n->n_outputs && f->n->outputs[i] >= 0) {
        hth_track *to = &f->track[f->n->outputs[i]];
        *to = *t;
        to->n = 0;
        to->element = NULL;
    }
}

int follow_reason(hth_follow *f, const char *does, int axis)
{
    if (HTH_GROW(f->reasons, f->n_reasons, f->cap_reasons) != 0) {
        f->failed = true;
        return 0;
    }
    f->reasons[f->n_reasons] = (hth_reason){f->node, axis, does};
    return f->n_reasons++;
}

void hth_follow_mix(hth_follow *f, int i, const char *does, int axis)
{
    hth_track mixed = {.kind = HTH_TRACK_MIXED, .rank = -1};
    mixed.reason = follow_reason(f, does, axis);
    hth_follow_out(f, i, &mixed);
}

void hth_follow_mixed(hth_follow *f, const char *does, int axis)
{
    for (int i = 0; i < f->n->n_outputs; i++) {
        if (f->n->outputs[i] >= 0) {
            hth_follow_mix(f, i, does, axis);
        }
    }
}

void hth_follow_lose(hth_follow *f, hth_track *t, int i)
{
    const hth_track *x = hth_follow_in(f, i);
    int reason =
        x->lost ? x->reason : follow_reason(f, "computes with the positions of samples", -1);
    t->index = false;
    t->coords = false;
    t->lost = true;
    t->reason = reason;
}

bool hth_follow_rows(hth_follow *f, int at)
{
    const hth_track *t = hth_follow_in(f, at);
    return t->index && hth_size_is(f->sizes, t->stride, 1) && hth_size_is(f->sizes, t->reach, 1);
}

void hth_follow_set(hth_follow *f, int i, hth_size *element, int n)
{
    bool steady = true;
    if (i >= f->n->n_outputs || f->n->outputs[i] < 0) {
        hth_free(element);
        return;
    }
    hth_track *t = &f->track[f->n->outputs[i]];
    for (int k = 0; k < n; k++) {
        steady = steady && hth_size_steady(f->sizes, element[k]);
    }
    t->kind = steady ? HTH_TRACK_FIXED : HTH_TRACK_COUNT;
    hth_free(t->element);
    t->element = element;
    t->n = n;
}

// ---- tracks

hth_size hth_follow_dims(hth_follow *f, const hth_track *t, int from, int to)
{
    hth_size n = hth_size_number(f->sizes, 1);
    for (int d = from; d < to; d++) {
        n = hth_size_mul(f->sizes, n, t->dim[d]);
    }
    return n;
}

bool hth_follow_alike(const hth_track *a, const hth_track *b)
{
    bool same = a->outer == b->outer && a->inner == b->inner;
    return same || ((a->equal || b->equal) && a->dim[a->axis] == b->dim[b->axis]);
}

void hth_follow_place(hth_track *to, int axis, const hth_track *a)
{
    to->kind = HTH_TRACK_SAMPLES;
    to->axis = (int8_t)axis;
    to->outer = a->outer;
    to->inner = a->inner;
    to->equal = a->equal;
    to->dim[axis] = a->dim[a->axis];
}

// The samples' place in the result of a join, from all inputs that hold samples.
static bool join_place(hth_follow *f, const hth_track *const *in, int n, hth_track *out)
{
    bool equal = true;
    for (int i = 0; i < n; i++) {
        if (in[i]->kind != HTH_TRACK_SAMPLES) {
            continue;
        }
        int at = out->rank - in[i]->rank + in[i]->axis;
        if (out->kind == HTH_TRACK_SAMPLES && (out->axis != at || !hth_follow_alike(out, in[i]))) {
            hth_follow_mixed(f, "combines each sample with all others", -1);
            return false;
        }
        if (out->kind != HTH_TRACK_SAMPLES || out->equal) {
            hth_follow_place(out, at, in[i]);
        }
        equal = equal && in[i]->equal;
    }
    out->equal = equal && out->kind == HTH_TRACK_SAMPLES;
    return true;
}

bool hth_follow_join(hth_follow *f, const hth_track *const *in, int n, hth_track *out)
{
    *out = (hth_track){.kind = HTH_TRACK_FIXED, .dtype = in[0]->dtype};
    for (int i = 0; i < n; i++) {
        out->rank = in[i]->rank > out->rank ? in[i]->rank : out->rank;
    }
    if (!join_place(f, in, n, out)) {
        return false;
    }
    for (int d = 0; d < out->rank; d++) {
        bool along = out->kind == HTH_TRACK_SAMPLES && d == out->axis;
        hth_size dim = hth_size_number(f->sizes, 1);
        for (int i = 0; i < n; i++) {
            int at = d - out->rank + in[i]->rank;
            bool samples = in[i]->kind == HTH_TRACK_SAMPLES && at == in[i]->axis;
            if (at < 0 || samples) {
                continue;
            }
            if (along && !hth_size_is(f->sizes, in[i]->dim[at], 1)) {
                hth_follow_mixed(f, "sets a dimension of fixed length against", d);
                return false;
            }
            dim = along ? dim : hth_size_broadcast(f->sizes, dim, in[i]->dim[at]);
        }
        out->dim[d] = along ? out->dim[d] : dim;
    }
    return true;
}
