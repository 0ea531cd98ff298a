// SPDX-License-Identifier: Apache-2.0
// Queries: arguments and documents are the caller's JSON, but for the files that they name.
#include "client/query.h"

#include "base/alloc.h"
#include "client/documents.h"
#include "client/passed_files.h"

#include <stdlib.h>
#include <string.h>

// query_arguments turns "model NAME" into {"model":"NAME"}; `word` is where the query's word ends.
static hth_err query_arguments(const char *what, size_t word, char **out)
{
    json_t *j = json_pack("{s:s}", "model", what + word + 1);
    char *text = j != NULL ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    *out = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    return *out != NULL ? HTH_OK : hth_fail(HTH_EINVAL, "'%s' is not a query", what);
}

// query_ask sends a query and reads the document that answers it. Where that fails for good, what
// was sent for it (`passed`) is removed again.
static hth_err query_ask(hearth *h, Hearth__Query *body, const hth_watch *watch, const char *passed,
                         hth_documents *documents, char **json)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    hth_reply r;
    q.body_case = HEARTH__REQUEST__BODY_QUERY;
    q.query = body;
    hth_err err = hth_exchange_call(h, &q, HEARTH__REPLY__BODY_DOCUMENT, watch, &r);
    if (err != HTH_OK && err != HTH_EIO && err != HTH_ETIMEDOUT && err != HTH_ECANCELED) {
        hth_passed_undo(h, passed);
    }
    HTH_TRY(err);
    *json = hth_strndup((const char *)r.data, r.head->document->bytes);
    hth_reply_fini(&r);
    return *json != NULL ? hth_documents_write(documents, *json, json)
                         : hth_no_memory("a document");
}

hearth_status hearth_query(hearth *h, const char *what, const char *arguments_json,
                           hearth_progress progress, void *ctx, char **json)
{
    Hearth__Query body = HEARTH__QUERY__INIT;
    hth_watch watch = {.fn = progress, .ctx = ctx};
    char *arguments = NULL, *passed = NULL, *answer = NULL;
    uint64_t handles[HTH_PASSED_FILES];
    hth_documents documents;
    size_t word = strcspn(what, " ");
    *json = NULL;
    body.what = NULL;
    hth_err err;
    HTH_GOTO(hth_documents_read(what, arguments_json, &documents, &arguments), done);
    if (what[word] == ' ') {
        hth_free(arguments);
        HTH_GOTO(query_arguments(what, word, &arguments), done);
    }
    body.what = hth_strndup(what, word);
    if (body.what == NULL) {
        err = hth_no_memory("a query");
        goto done;
    }
    body.arguments = arguments != NULL ? arguments : (char *)arguments_json;
    body.arguments = body.arguments != NULL ? body.arguments : "";
    err = hth_passed_query(h, body.what, body.arguments, &watch, &passed, handles, &body.n_handles,
                           &answer);
    *json = answer;
    if (err != HTH_OK || answer != NULL) {
        goto done;
    }
    body.arguments = passed != NULL ? passed : body.arguments;
    body.handles = handles;
    err = query_ask(h, &body, &watch, passed, &documents, json);
done:
    hth_documents_fini(&documents);
    hth_free(passed);
    hth_free(arguments);
    hth_free(body.what);
    return (hearth_status)err;
}

hth_err hth_query_document(hearth *h, const char *what, json_t *args, json_t **doc)
{
    char *text = args != NULL ? json_dumps(args, JSON_COMPACT) : NULL, *json = NULL;
    json_decref(args);
    *doc = NULL;
    if (text == NULL) {
        return hth_fail(HTH_EINVAL, "an argument of '%s' is not UTF-8", what);
    }
    hth_err err = (hth_err)hearth_query(h, what, text, NULL, NULL, &json);
    free(text);
    HTH_TRY(err);
    *doc = json_loads(json, 0, NULL);
    hth_free(json);
    return *doc != NULL ? HTH_OK
                        : hth_fail(HTH_ECORRUPT, "%s sent an unexpected kind of reply", h->url);
}

uint64_t hth_query_count(const json_t *doc, const char *key)
{
    json_int_t v = json_integer_value(json_object_get(doc, key));
    return v > 0 ? (uint64_t)v : 0;
}
