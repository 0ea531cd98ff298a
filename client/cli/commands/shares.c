// SPDX-License-Identifier: Apache-2.0
// `hearth shares`: who has which share of a server's devices, or would have by a problem in a file.
#include "client/cli/cmd.h"

#include "base/alloc.h"
#include "base/file.h"
#include "client/cli/table.h"
#include "fair/fair_file.h"

#include <stdio.h>
#include <stdlib.h>

#define SHARES_FILE ((size_t)64 << 20) // bytes of a problem, at most

static hth_err shares_read(const char *path, hth_fair_problem *out)
{
    void *text;
    size_t n;
    HTH_TRY(hth_file_load_own(path, SHARES_FILE, NULL, &text, &n));
    hth_err err = hth_fair_problem_read(text, n, out);
    hth_free(text);
    return hth_err_prefix(err, "'%s'", path);
}

// A row for each tenant, and one for what is left, with a column for each resource.
static json_t *shares_row(const hth_fair_problem *problem, const hth_fair_share *s,
                          const char *name)
{
    char share[24] = "-";
    json_t *row = json_pack("{s:s, s:o}", "tenant", name, "tasks",
                            s != NULL ? json_integer((json_int_t)s->tasks) : json_string("-"));
    if (s != NULL) {
        snprintf(share, sizeof share, "%.2f %%", s->dominant_share * 100);
    }
    json_object_set_new(row, "share", json_string(share));
    json_object_set_new(
        row, "dominant",
        json_string(s != NULL && s->dominant >= 0 ? problem->resource[s->dominant] : "-"));
    return row;
}

static void shares_used(const hth_fair_problem *problem, const hth_fair_amounts *used, json_t *row)
{
    for (int r = 0; r < problem->n_resources; r++) {
        char name[100];
        snprintf(name, sizeof name,
                 json_object_get(row, problem->resource[r]) ? "%.80s used" : "%.80s",
                 problem->resource[r]);
        json_object_set_new(row, name, hth_fair_amount_json(problem, r, used->of[r]));
    }
}

static int shares_print(const hth_cli *cli, const hth_fair_problem *problem,
                        const hth_fair_shares *shares)
{
    if (hth_cli_json(cli)) {
        json_t *doc = hth_fair_shares_json(problem, shares);
        char *text = doc != NULL ? json_dumps(doc, JSON_COMPACT) : NULL;
        int rv = text != NULL ? hth_cli_print(cli, text) : HTH_CLI_ERROR;
        json_decref(doc);
        free(text);
        return rv;
    }
    json_t *rows = json_array();
    for (int i = 0; i < problem->n_tenants; i++) {
        json_t *row = shares_row(problem, &shares->of[i], problem->tenants[i].name);
        shares_used(problem, &shares->of[i].used, row);
        json_array_append_new(rows, row);
    }
    json_t *left = shares_row(problem, NULL, "(left)");
    shares_used(problem, &shares->left, left);
    json_array_append_new(rows, left);
    hth_table_print(stdout, rows);
    json_decref(rows);
    return fflush(stdout) == 0 ? HTH_CLI_OK : HTH_CLI_ERROR;
}

// ---- of a server

// A share of a resource as people read it; "-": not known.
static json_t *live_share(const json_t *tenant, const char *resource)
{
    char text[24] = "-";
    const json_t *share = json_object_get(json_object_get(tenant, "share"), resource);
    if (json_is_number(share)) {
        snprintf(text, sizeof text, "%.0f %%", json_number_value(share) * 100);
    }
    return json_string(text);
}

static json_t *live_row(const json_t *device, const json_t *tenant)
{
    static const char *const resources[][2] = {{"device_time", "time"},
                                               {"device_memory", "memory"},
                                               {"host_memory", "host memory"},
                                               {"threads", "threads"},
                                               {"link", "link"}};
    const json_t *first = json_array_get(json_object_get(tenant, "waiting"), 0);
    const json_t *why = json_object_get(first, "why");
    json_t *row =
        json_pack("{s:O, s:O, s:O}", "device", json_object_get(device, "device"), "tenant",
                  json_object_get(tenant, "tenant"), "weight", json_object_get(tenant, "weight"));
    for (size_t i = 0; i < sizeof resources / sizeof *resources; i++) {
        json_object_set_new(row, resources[i][1], live_share(tenant, resources[i][0]));
    }
    json_object_set(row, "dominant", json_object_get(tenant, "dominant"));
    json_object_set(row, "running", json_object_get(tenant, "jobs_running"));
    json_object_set(row, "waiting", json_object_get(tenant, "jobs_waiting"));
    json_object_set_new(row, "why",
                        json_is_string(why) ? json_incref((json_t *)why) : json_string(""));
    return row;
}

// shares_live asks the server: a row for each tenant of each device.
static int shares_live(hth_cli *cli)
{
    char *json;
    size_t i, k;
    json_t *device, *tenant;
    int rv = hth_cmd_request(cli, "shares", json_object(), NULL, &json);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    if (hth_cli_json(cli)) {
        rv = hth_cli_print(cli, json);
        hearth_free(json);
        return rv;
    }
    json_t *doc = json_loads(json, 0, NULL), *rows = json_array();
    json_array_foreach(json_object_get(doc, "devices"), i, device)
    {
        json_array_foreach(json_object_get(device, "tenants"), k, tenant)
        {
            json_array_append_new(rows, live_row(device, tenant));
        }
    }
    if (json_array_size(rows) == 0) {
        printf("no tenant uses a device or waits for one\n");
    } else {
        hth_table_print(stdout, rows);
    }
    json_decref(rows);
    json_decref(doc);
    hearth_free(json);
    return fflush(stdout) == 0 ? HTH_CLI_OK : HTH_CLI_ERROR;
}

static int cmd_shares(hth_cli *cli)
{
    const char *path = hth_cli_text(cli, "problem");
    hth_fair_problem problem;
    hth_fair_shares shares;
    if (path == NULL) {
        return shares_live(cli);
    }
    hth_err err = shares_read(path, &problem);
    if (err != HTH_OK) {
        return hth_cli_error();
    }
    err = hth_fair_fill(&problem, HTH_FAIR_TASKS, &shares);
    int rv = err == HTH_OK ? shares_print(cli, &problem, &shares) : hth_cli_error();
    if (err == HTH_OK) {
        hth_fair_shares_fini(&shares);
    }
    hth_fair_problem_fini(&problem);
    return rv;
}

static const hth_option shares_options[] = {
    {"problem", HTH_OPTION_PATH, "FILE", "capacity and tenants, as JSON"},
    OPTION_END,
};

const hth_command hth_cmd_shares = {
    "shares",
    "[--problem FILE]",
    "show what each tenant has of each device, and why its jobs wait\n"
    "time, threads and link: of the last seconds. With --problem no server is asked: Dominant "
    "Resource\n"
    "Fairness with whole tasks, given one at a time to the tenant with the least dominant share "
    "by weight\n"
    "whose next task fits. The file:\n"
    "  {\"capacity\": {\"cpu\": 9, \"memory\": 18},\n"
    "   \"tenants\": [{\"name\": \"A\", \"weight\": 1, \"tasks\": null,\n"
    "                \"demand\": {\"cpu\": 1, \"memory\": 4}}]}\n"
    "tasks null: as many as fit. A demand may be a list, from best to least: any one will do.",
    0,
    0,
    shares_options,
    .run = cmd_shares};
