// SPDX-License-Identifier: Apache-2.0
// The url carries the process id and a count: nng's in-process names are global to the process.
#include "client/embed.h"

#include "base/alloc.h"
#include "runtime/arguments.h"
#include "engine/query/query.h"
#include "server/server.h"

#include <jansson.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct hth_embedded {
    hth_server *server;
    char url[64];
};

hth_err hth_embed_open(const char *store, const char *device, hth_embedded **out)
{
    static atomic_uint count;
    *out = NULL;
    hth_embedded *e = hth_calloc(1, sizeof *e);
    if (e == NULL) {
        return hth_no_memory("an embedded server");
    }
    snprintf(e->url, sizeof e->url, "inproc://hearth-%d-%u", (int)getpid(),
             atomic_fetch_add(&count, 1));
    const char *urls[] = {e->url};
    hth_server_config config = {
        .store = store, .may_only_read = true, .device = device, .listen = urls, .n_listen = 1};
    hth_err err = hth_server_open(&config, &e->server);
    if (err != HTH_OK) {
        hth_free(e);
        return err;
    }
    *out = e;
    return HTH_OK;
}

const char *hth_embed_url(const hth_embedded *embedded)
{
    return embedded->url;
}

void hth_embed_close(hth_embedded *embedded)
{
    if (embedded != NULL) {
        hth_server_close(embedded->server);
        hth_free(embedded);
    }
}

hth_err hth_embed_data(bool curve, const char *arguments, char **json)
{
    hth_command_id command = curve ? HTH_COMMAND_CURVE : HTH_COMMAND_PLAN;
    json_t *args, *doc = NULL;
    char *text = NULL;
    hth_err err;
    *json = NULL;
    HTH_GOTO(hth_arguments_read(command, arguments, &args), done);
    HTH_GOTO(hth_arguments_check(command, args), done);
    HTH_GOTO(hth_query_data(command, args, &doc), done);
    text = json_dumps(doc, JSON_COMPACT);
    *json = text != NULL ? hth_strdup(text) : NULL;
    err = *json != NULL ? HTH_OK : hth_no_memory("a plan");
done:
    free(text);
    json_decref(doc);
    json_decref(args);
    return err;
}
