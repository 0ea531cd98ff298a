// SPDX-License-Identifier: Apache-2.0
#include "group/sequence.h"

static json_int_t sequence_number(const json_t *row, int i)
{
    return json_integer_value(json_array_get(row, (size_t)i));
}

// sequence_row tells whether a row is a step not before `step`, and each member's samples.
static bool sequence_row(const json_t *row, int members, int64_t batch, int64_t step, int64_t least)
{
    bool good = json_array_size(row) == (size_t)members + 1 && sequence_number(row, 0) >= step;
    for (int i = 0; i <= members && good; i++) {
        good = json_is_integer(json_array_get(row, (size_t)i));
    }
    for (int i = 1; i <= members && good; i++) {
        good = sequence_number(row, i) >= least && sequence_number(row, i) <= batch;
        batch -= sequence_number(row, i);
    }
    return good && batch == 0;
}

const json_t *hth_sequence_given(const json_t *args)
{
    const json_t *given = json_object_get(args, "shards");
    return json_is_object(given) ? json_object_get(given, "shards") : given;
}

hth_err hth_sequence_check(const json_t *rows, int members, int64_t batch)
{
    bool good = json_is_array(rows) && json_array_size(rows) > 0;
    int64_t step = 0;
    for (size_t i = 0; i < json_array_size(rows) && good; i++) {
        const json_t *row = json_array_get(rows, i);
        good = sequence_row(row, members, batch, step, i == 0 ? 1 : 0);
        step = sequence_number(row, 0);
    }
    return good ? HTH_OK
                : hth_fail(HTH_EINVAL,
                           "shards are rows of a step and the samples of each of %d devices, at "
                           "first 1 at least, in all %lld: [[0, ..], ..]",
                           members, (long long)batch);
}

bool hth_sequence_at(const json_t *rows, int members, int64_t step, int64_t n[HTH_GROUP_MEMBERS])
{
    size_t i;
    json_t *row;
    const json_t *last = NULL;
    json_array_foreach((json_t *)rows, i, row)
    {
        last = sequence_number(row, 0) <= step ? row : last;
    }
    for (int k = 0; k < members; k++) {
        n[k] = sequence_number(last, k + 1);
    }
    return json_array_size(last) == (size_t)members + 1;
}

hth_err hth_sequence_add(json_t *rows, int members, int64_t step, const int64_t *n)
{
    json_t *row = json_array();
    bool good = json_array_append_new(row, json_integer(step)) == 0;
    for (int i = 0; i < members && good; i++) {
        good = json_array_append_new(row, json_integer(n[i])) == 0;
    }
    good = good && json_array_append(rows, row) == 0;
    json_decref(row);
    return good ? HTH_OK : hth_no_memory("a training job");
}

void hth_sequence_cut(json_t *rows, int64_t step)
{
    for (size_t n = json_array_size(rows); n > 0; n--) {
        if (sequence_number(json_array_get(rows, n - 1), 0) < step) {
            break;
        }
        json_array_remove(rows, n - 1);
    }
}
