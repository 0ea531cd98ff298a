// SPDX-License-Identifier: Apache-2.0
#include "fair/fair_file.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FILE_DECIMALS 9
#define FILE_TASKS    1e18 // of a resource, at most

static hth_err file_memory(void)
{
    return hth_no_memory("a problem of shares");
}

// What JSON calls a value.
static const char *file_kind(const json_t *json)
{
    static const char *const kind[] = {"an object", "a list", "a text", "a whole number",
                                       "a number",  "true",   "false",  "null"};
    return json != NULL ? kind[json_typeof(json)] : "missing";
}

static hth_err file_amount(const json_t *json, const char *of, const char *resource, double *out)
{
    if (!json_is_number(json)) {
        return hth_fail(HTH_EINVAL, "%s: '%s' must be a number, not %s", of, resource,
                        file_kind(json));
    }
    *out = json_number_value(json);
    if (!hth_fair_amount_valid(*out)) {
        return hth_fail(HTH_EINVAL, "%s: '%s' is %.15g; it must be 0, or from %g to %g", of,
                        resource, *out, HTH_FAIR_AMOUNT_MIN, HTH_FAIR_AMOUNT_MAX);
    }
    return HTH_OK;
}

static hth_err file_capacity(const json_t *root, hth_fair_problem *problem)
{
    const json_t *capacity = json_object_get(root, "capacity");
    const char *name;
    json_t *v;
    size_t n = json_object_size(capacity);
    if (!json_is_object(capacity)) {
        return hth_fail(HTH_EINVAL, "'capacity' must be an object of resources, not %s",
                        file_kind(capacity));
    }
    if (n == 0 || n > HTH_FAIR_RESOURCES) {
        return hth_fail(HTH_EINVAL, "'capacity' has %zu resources; it must have 1 to %d", n,
                        HTH_FAIR_RESOURCES);
    }
    json_object_foreach((json_t *)capacity, name, v)
    {
        int r = problem->n_resources;
        HTH_TRY(file_amount(v, "'capacity'", name, &problem->capacity.of[r]));
        problem->scale[r] = 1;
        problem->resource[r] = hth_strdup(name);
        if (problem->resource[r] == NULL) {
            return file_memory();
        }
        problem->n_resources++;
    }
    return HTH_OK;
}

static hth_err file_known(const json_t *json, const char *of, const char *const *keys)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)json, key, v)
    {
        int k = 0;
        while (keys[k] != NULL && strcmp(keys[k], key) != 0) {
            k++;
        }
        if (keys[k] == NULL) {
            return hth_fail(HTH_EINVAL, "%s has an unknown key '%s'", of, key);
        }
    }
    return HTH_OK;
}

static hth_err file_demand(const json_t *json, const char *of, const hth_fair_problem *problem,
                           hth_fair_amounts *out)
{
    const char *name;
    json_t *v;
    if (!json_is_object(json)) {
        return hth_fail(HTH_EINVAL, "%s: a demand must be an object of resources, not %s", of,
                        file_kind(json));
    }
    json_object_foreach((json_t *)json, name, v)
    {
        int r = 0;
        while (r < problem->n_resources && strcmp(problem->resource[r], name) != 0) {
            r++;
        }
        if (r == problem->n_resources) {
            return hth_fail(HTH_EINVAL, "%s needs '%s', which the capacity does not name", of,
                            name);
        }
        HTH_TRY(file_amount(v, of, name, &out->of[r]));
    }
    return HTH_OK;
}

static hth_err file_demands(const json_t *json, const char *of, const hth_fair_problem *problem,
                            hth_fair_tenant *tenant)
{
    bool list = json_is_array(json);
    size_t n = list ? json_array_size(json) : 1;
    if (!list && !json_is_object(json)) {
        return hth_fail(HTH_EINVAL, "%s: 'demand' must be an object or a list of objects, not %s",
                        of, file_kind(json));
    }
    if (n == 0) {
        return hth_fail(HTH_EINVAL, "%s has 0 demands; its tasks need 1 or more", of);
    }
    tenant->demand = hth_calloc(n, sizeof *tenant->demand);
    if (tenant->demand == NULL) {
        return file_memory();
    }
    for (size_t k = 0; k < n; k++) {
        HTH_TRY(
            file_demand(list ? json_array_get(json, k) : json, of, problem, &tenant->demand[k]));
    }
    tenant->n_demands = (int)n;
    return HTH_OK;
}

static hth_err file_tasks(const json_t *json, const char *of, uint64_t *out)
{
    double tasks = json_number_value(json);
    *out = HTH_FAIR_UNLIMITED;
    if (json == NULL || json_is_null(json)) {
        return HTH_OK;
    }
    if (!json_is_number(json) || !(tasks >= 0 && tasks <= FILE_TASKS && tasks == floor(tasks))) {
        return json_is_number(json)
                   ? hth_fail(HTH_EINVAL,
                              "%s wants %.15g tasks; it must be a whole number from 0 to %g, or "
                              "null for as many as fit",
                              of, tasks, FILE_TASKS)
                   : hth_fail(HTH_EINVAL,
                              "%s: 'tasks' must be a whole number, or null for as many as fit, not "
                              "%s",
                              of, file_kind(json));
    }
    *out = (uint64_t)tasks;
    return HTH_OK;
}

static hth_err file_tenant(const json_t *json, int i, hth_fair_problem *problem)
{
    static const char *const keys[] = {"name", "weight", "tasks", "demand", NULL};
    hth_fair_tenant *t = &problem->tenants[i];
    const char *name = json_string_value(json_object_get(json, "name"));
    const json_t *weight = json_object_get(json, "weight");
    char of[120];
    if (name == NULL || name[0] == 0) {
        return hth_fail(HTH_EINVAL, "tenant %d of %d must be an object with a 'name'", i + 1,
                        problem->n_tenants);
    }
    snprintf(of, sizeof of, "tenant '%.80s'", name);
    HTH_TRY(file_known(json, of, keys));
    if (weight != NULL && !json_is_number(weight)) {
        return hth_fail(HTH_EINVAL, "%s: 'weight' must be a number, not %s", of, file_kind(weight));
    }
    t->weight = weight != NULL ? json_number_value(weight) : 1;
    HTH_TRY(file_tasks(json_object_get(json, "tasks"), of, &t->tasks));
    t->name = hth_strdup(name);
    return t->name != NULL ? file_demands(json_object_get(json, "demand"), of, problem, t)
                           : file_memory();
}

static int file_by_name(const void *a, const void *b)
{
    const hth_fair_tenant *const *x = a, *const *y = b;
    int order = strcmp((*x)->name, (*y)->name);
    return order != 0 ? order : (*x > *y) - (*x < *y);
}

static hth_err file_twice(const hth_fair_problem *problem)
{
    hth_err err = HTH_OK;
    const hth_fair_tenant **by = hth_calloc((size_t)problem->n_tenants, sizeof *by);
    if (by == NULL) {
        return file_memory();
    }
    for (int i = 0; i < problem->n_tenants; i++) {
        by[i] = &problem->tenants[i];
    }
    qsort(by, (size_t)problem->n_tenants, sizeof *by, file_by_name);
    for (int i = 1; i < problem->n_tenants && err == HTH_OK; i++) {
        if (strcmp(by[i - 1]->name, by[i]->name) == 0) {
            err = hth_fail(HTH_EINVAL, "tenants %d and %d have the same name '%.80s'",
                           (int)(by[i - 1] - problem->tenants) + 1,
                           (int)(by[i] - problem->tenants) + 1, by[i]->name);
        }
    }
    hth_free(by);
    return err;
}

static hth_err file_tenants(const json_t *root, hth_fair_problem *problem)
{
    const json_t *list = json_object_get(root, "tenants");
    size_t n = json_array_size(list);
    if (!json_is_array(list)) {
        return hth_fail(HTH_EINVAL, "'tenants' must be a list, not %s", file_kind(list));
    }
    if (n == 0 || n > HTH_FAIR_TASKS) {
        return hth_fail(HTH_EINVAL, "'tenants' has %zu tenants; it must have 1 to %d", n,
                        HTH_FAIR_TASKS);
    }
    problem->tenants = hth_calloc(n, sizeof *problem->tenants);
    if (problem->tenants == NULL) {
        return file_memory();
    }
    problem->n_tenants = (int)n;
    for (int i = 0; i < problem->n_tenants; i++) {
        HTH_TRY(file_tenant(json_array_get(list, (size_t)i), i, problem));
    }
    return file_twice(problem);
}

static bool file_scales(const hth_fair_problem *problem, int r, double scale)
{
    bool whole = hth_fair_whole(problem->capacity.of[r], scale);
    for (int i = 0; i < problem->n_tenants && whole; i++) {
        for (int k = 0; k < problem->tenants[i].n_demands && whole; k++) {
            whole = hth_fair_whole(problem->tenants[i].demand[k].of[r], scale);
        }
    }
    return whole;
}

// file_scale has decimals be whole numbers, so that three times 0.1 fits 0.3. Numbers with too many
// decimals stay as they are.
static void file_scale(hth_fair_problem *problem, int r)
{
    double scale = 1;
    int decimals = 0;
    while (decimals < FILE_DECIMALS && !file_scales(problem, r, scale)) {
        scale *= 10;
        decimals++;
    }
    if (decimals == 0 || !file_scales(problem, r, scale)) {
        return;
    }
    problem->scale[r] = scale;
    problem->capacity.of[r] = nearbyint(problem->capacity.of[r] * scale);
    for (int i = 0; i < problem->n_tenants; i++) {
        for (int k = 0; k < problem->tenants[i].n_demands; k++) {
            double *amount = &problem->tenants[i].demand[k].of[r];
            *amount = nearbyint(*amount * scale);
        }
    }
}

static hth_err file_problem(const json_t *root, hth_fair_problem *problem)
{
    static const char *const keys[] = {"capacity", "tenants", NULL};
    if (!json_is_object(root)) {
        return hth_fail(HTH_EINVAL,
                        "the problem must be an object with 'capacity' and 'tenants', "
                        "not %s",
                        file_kind(root));
    }
    HTH_TRY(file_known(root, "the problem", keys));
    HTH_TRY(file_capacity(root, problem));
    HTH_TRY(file_tenants(root, problem));
    for (int r = 0; r < problem->n_resources; r++) {
        file_scale(problem, r);
    }
    return hth_fair_check(problem);
}

hth_err hth_fair_problem_read(const char *text, size_t n, hth_fair_problem *out)
{
    json_error_t why;
    *out = (hth_fair_problem){.n_resources = 0};
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    hth_err err = root != NULL ? file_problem(root, out)
                               : hth_fail(HTH_EINVAL, "line %d, column %d: %s", why.line,
                                          why.column, hth_err_json(why.text));
    json_decref(root);
    if (err != HTH_OK) {
        hth_fair_problem_fini(out);
    }
    return err;
}

json_t *hth_fair_amount_json(const hth_fair_problem *problem, int r, double amount)
{
    double said = amount / problem->scale[r];
    return said == nearbyint(said) && fabs(said) <= HTH_FAIR_EXACT ? json_integer((json_int_t)said)
                                                                   : json_real(said);
}

static json_t *file_amounts(const hth_fair_problem *problem, const hth_fair_amounts *amounts)
{
    json_t *o = json_object();
    for (int r = 0; r < problem->n_resources; r++) {
        if (json_object_set_new(o, problem->resource[r],
                                hth_fair_amount_json(problem, r, amounts->of[r])) != 0) {
            json_decref(o);
            return NULL;
        }
    }
    return o;
}

json_t *hth_fair_shares_json(const hth_fair_problem *problem, const hth_fair_shares *shares)
{
    json_t *tenants = json_array();
    for (int i = 0; i < problem->n_tenants; i++) {
        const hth_fair_share *s = &shares->of[i];
        json_t *o = json_pack("{s:s, s:I, s:o, s:f}", "name", problem->tenants[i].name, "tasks",
                              (json_int_t)s->tasks, "used", file_amounts(problem, &s->used),
                              "dominant_share", s->dominant_share);
        if (json_array_append_new(tenants, o) != 0) {
            json_decref(tenants);
            return NULL;
        }
    }
    return json_pack("{s:o, s:o}", "tenants", tenants, "left",
                     file_amounts(problem, &shares->left));
}
