// SPDX-License-Identifier: Apache-2.0
// What rules about samples read of their node, and how they say what they found.
#include "graph/follow_impl.h"

#include "base/alloc.h"

#include <string.h>

// ---- inputs

bool hth_follow_has(const hth_follow *follow, int i)
{
    return i < follow->n_in && follow->n->inputs[i] >= 0;
}

const hth_track *hth_follow_in(const hth_follow *follow, int i)
{
    return &follow->track[follow->n->inputs[i]];
}

bool hth_follow_samples(const hth_follow *follow, int i)
{
    return hth_follow_has(follow, i) && hth_follow_in(follow, i)->kind == HTH_TRACK_SAMPLES;
}

int hth_follow_any(const hth_follow *follow)
{
    for (int i = 0; i < follow->n_in; i++) {
        if (hth_follow_samples(follow, i)) {
            return i;
        }
    }
    return -1;
}

bool hth_follow_only(hth_follow *follow, unsigned mask)
{
    for (int i = 0; i < follow->n_in; i++) {
        bool allowed = i < 32 && (mask >> i & 1) != 0;
        if (!allowed && hth_follow_samples(follow, i)) {
            hth_follow_mixed(follow, "reads as a parameter what depends on the samples", -1);
            return false;
        }
    }
    return true;
}

int64_t hth_follow_elements(const hth_follow *follow, int i)
{
    if (!hth_follow_has(follow, i)) {
        return -1;
    }
    const hth_track *t = hth_follow_in(follow, i);
    int64_t n = 1, dim;
    for (int d = 0; d < t->rank; d++) {
        if (!hth_size_value(follow->sizes, t->dim[d], &dim) || dim < 0 ||
            __builtin_mul_overflow(n, dim, &n)) {
            return -1;
        }
    }
    return t->rank >= 0 ? n : -1;
}

// A constant's elements, when it is asked for the first time.
static void read_constant(hth_follow *follow, int value)
{
    hth_track *t = &follow->track[value];
    hth_const *c = follow->g->values[value].constant;
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
        follow->failed = true;
        hth_const_unmap(c);
        return;
    }
    for (int64_t k = 0; k < n; k++) {
        int64_t whole;
        element[k] = follow_whole(c->dtype, data, k, &whole) ? hth_size_number(follow->sizes, whole)
                                                             : hth_size_fresh(follow->sizes, false);
    }
    hth_const_unmap(c);
    t->element = element;
    t->n = (int)n;
}

hth_size hth_follow_element(hth_follow *follow, int i, int k)
{
    if (!hth_follow_has(follow, i)) {
        return HTH_SIZE_OTHER;
    }
    int value = follow->n->inputs[i];
    const hth_track *t = &follow->track[value];
    read_constant(follow, value);
    if (k < t->n) {
        return t->element[k];
    }
    return t->kind == HTH_TRACK_FIXED ? hth_size_fresh(follow->sizes, false) : HTH_SIZE_OTHER;
}

hth_size hth_follow_length(hth_follow *follow)
{
    for (int i = 0; i < follow->n_in; i++) {
        if (hth_follow_has(follow, i) && hth_follow_in(follow, i)->kind != HTH_TRACK_FIXED &&
            hth_follow_in(follow, i)->kind != HTH_TRACK_SAMPLES) {
            return HTH_SIZE_OTHER;
        }
    }
    return hth_size_fresh(follow->sizes, true);
}

int hth_follow_ints(hth_follow *follow, int i, int64_t *out, int cap)
{
    if (!hth_follow_has(follow, i)) {
        return 0;
    }
    int64_t n = hth_follow_elements(follow, i);
    for (int k = 0; k < n && n <= cap; k++) {
        if (!hth_size_value(follow->sizes, hth_follow_element(follow, i, k), &out[k])) {
            return -1;
        }
    }
    return n <= cap ? (int)n : -1;
}

bool hth_follow_axis(hth_follow *follow, int64_t axis, int rank, int *out)
{
    if (axis < -rank || axis >= rank) {
        hth_follow_mixed(follow, "has an axis outside of its dimensions", -1);
        return false;
    }
    *out = (int)(axis < 0 ? axis + rank : axis);
    return true;
}

bool hth_follow_numbers(const hth_follow *follow, int i, hth_shape *out)
{
    const hth_track *t = hth_follow_in(follow, i);
    bool all = t->rank >= 0;
    out->rank = t->rank;
    for (int d = 0; d < t->rank; d++) {
        bool number = hth_size_value(follow->sizes, t->dim[d], &out->dim[d]);
        all = all && number && out->dim[d] >= 0; // less is a claim that no tensor can keep
    }
    return all;
}

// ---- outputs

void hth_follow_out(hth_follow *follow, int i, const hth_track *track)
{
    if (i < follow->n->n_outputs && follow->n->outputs[i] >= 0) {
        hth_track *to = &follow->track[follow->n->outputs[i]];
        *to = *track;
        to->n = 0;
        to->element = NULL;
    }
}

int follow_reason(hth_follow *follow, const char *does, int axis)
{
    if (HTH_GROW(follow->reasons, follow->n_reasons, follow->cap_reasons) != 0) {
        follow->failed = true;
        return 0;
    }
    follow->reasons[follow->n_reasons] = (hth_reason){follow->node, axis, does};
    return follow->n_reasons++;
}

void hth_follow_mix(hth_follow *follow, int i, const char *does, int axis)
{
    hth_track mixed = {.kind = HTH_TRACK_MIXED, .rank = -1};
    mixed.reason = follow_reason(follow, does, axis);
    hth_follow_out(follow, i, &mixed);
}

void hth_follow_mixed(hth_follow *follow, const char *does, int axis)
{
    for (int i = 0; i < follow->n->n_outputs; i++) {
        if (follow->n->outputs[i] >= 0) {
            hth_follow_mix(follow, i, does, axis);
        }
    }
}

void hth_follow_lose(hth_follow *follow, hth_track *track, int i)
{
    const hth_track *x = hth_follow_in(follow, i);
    int reason =
        x->lost ? x->reason : follow_reason(follow, "computes with the positions of samples", -1);
    track->index = false;
    track->coords = false;
    track->lost = true;
    track->reason = reason;
}

bool hth_follow_rows(hth_follow *follow, int at)
{
    const hth_track *t = hth_follow_in(follow, at);
    return t->index && hth_size_is(follow->sizes, t->stride, 1) &&
           hth_size_is(follow->sizes, t->reach, 1);
}

void hth_follow_set(hth_follow *follow, int i, hth_size *element, int n)
{
    bool steady = true;
    if (i >= follow->n->n_outputs || follow->n->outputs[i] < 0) {
        hth_free(element);
        return;
    }
    hth_track *t = &follow->track[follow->n->outputs[i]];
    for (int k = 0; k < n; k++) {
        steady = steady && hth_size_steady(follow->sizes, element[k]);
    }
    t->kind = steady ? HTH_TRACK_FIXED : HTH_TRACK_COUNT;
    hth_free(t->element);
    t->element = element;
    t->n = n;
}

// ---- tracks

hth_size hth_follow_dims(hth_follow *follow, const hth_track *track, int from, int to)
{
    hth_size n = hth_size_number(follow->sizes, 1);
    for (int d = from; d < to; d++) {
        n = hth_size_mul(follow->sizes, n, track->dim[d]);
    }
    return n;
}

bool hth_follow_alike(const hth_track *a, const hth_track *b)
{
    bool same = a->outer == b->outer && a->inner == b->inner;
    return same || ((a->equal || b->equal) && a->dim[a->axis] == b->dim[b->axis]);
}

void hth_follow_settle(hth_track *to, const hth_track *by)
{
    bool open = to->kind == HTH_TRACK_SAMPLES && to->equal;
    if (open && by->kind == HTH_TRACK_SAMPLES && !by->equal) {
        to->outer = by->outer;
        to->inner = by->inner;
        to->equal = false;
    }
}

void hth_follow_place(hth_track *to, int axis, const hth_track *track)
{
    to->kind = HTH_TRACK_SAMPLES;
    to->axis = (int8_t)axis;
    to->outer = track->outer;
    to->inner = track->inner;
    to->equal = track->equal;
    to->dim[axis] = track->dim[track->axis];
}

// The samples' place in the result of a join, from all inputs that hold samples.
static bool join_place(hth_follow *follow, const hth_track *const *in, int n, hth_track *out)
{
    bool equal = true;
    for (int i = 0; i < n; i++) {
        if (in[i]->kind != HTH_TRACK_SAMPLES) {
            continue;
        }
        int at = out->rank - in[i]->rank + in[i]->axis;
        if (out->kind == HTH_TRACK_SAMPLES && (out->axis != at || !hth_follow_alike(out, in[i]))) {
            hth_follow_mixed(follow, "combines each sample with all others", -1);
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

bool hth_follow_join(hth_follow *follow, const hth_track *const *in, int n, hth_track *out)
{
    *out = (hth_track){.kind = HTH_TRACK_FIXED, .dtype = in[0]->dtype};
    for (int i = 0; i < n; i++) {
        out->rank = in[i]->rank > out->rank ? in[i]->rank : out->rank;
    }
    if (!join_place(follow, in, n, out)) {
        return false;
    }
    for (int d = 0; d < out->rank; d++) {
        bool along = out->kind == HTH_TRACK_SAMPLES && d == out->axis;
        hth_size dim = hth_size_number(follow->sizes, 1);
        for (int i = 0; i < n; i++) {
            int at = d - out->rank + in[i]->rank;
            bool samples = in[i]->kind == HTH_TRACK_SAMPLES && at == in[i]->axis;
            if (at < 0 || samples) {
                continue;
            }
            if (along && !hth_size_is(follow->sizes, in[i]->dim[at], 1)) {
                hth_follow_mixed(follow, "sets a dimension of fixed length against", d);
                return false;
            }
            dim = along ? dim : hth_size_broadcast(follow->sizes, dim, in[i]->dim[at]);
        }
        out->dim[d] = along ? out->dim[d] : dim;
    }
    return true;
}
