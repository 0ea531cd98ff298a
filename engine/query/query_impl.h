// SPDX-License-Identifier: Apache-2.0
// engine/query/query_impl.h - what the questions to an engine (engine/query/query.h) share: their
// arguments, and the program that one is about. Internal to query*.c.
#ifndef HTH_ENGINE_QUERY_QUERY_IMPL_H
#define HTH_ENGINE_QUERY_QUERY_IMPL_H

#include "engine/query/query.h"
#include "engine/train/train.h"

typedef struct query {
    hth_models *ms;
    hth_request *r;
    json_t *args;
    hth_source other; // of the model in another precision, for this question; graph NULL: none
} query;

// Arguments: a text, NULL where there is none; a number, `dflt` where there is none; the model that
// "model" names.
const char *query_text(const query *call, const char *name);
double query_number(const query *call, const char *name, double dflt);
hth_err query_find_model(const query *call, hth_model **out);
// query_spec reads the step that `args`, the question's or a copy of them, are about.
hth_err query_spec(const query *call, json_t *args, hth_train_spec *out);

// query_program makes the program that a question is about: arguments model, batch, precision and
// budget (less than the device's: not kept). query_program_done, whether that succeeded or not,
// drops what was made for this question only, and the inputs.
typedef struct query_subject {
    hth_model *model;
    hth_tensor *inputs; // of numbers that are made up
    hth_program *program;
    bool own; // it was compiled for this question only
} query_subject;
hth_err query_program(query *call, query_subject *out);
void query_program_done(query *call, query_subject *subject);

// query_tensors_free frees a list of count tensors and their data; NULL: there is none.
void query_tensors_free(hth_tensor *tensor, int count);

// Answers, each in a file of its own or with those that are alike; the caller owns *out.
hth_err query_bench(query *call, json_t **out);
hth_err query_plan(query *call, json_t **out);
hth_err query_curve(query *call, json_t **out);
hth_err query_convsel(query *call, json_t **out);
hth_err query_pairs(query *call, json_t **out); // of query_convsel

#endif
