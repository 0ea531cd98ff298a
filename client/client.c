// SPDX-License-Identifier: Apache-2.0
// The public API over exchange.h. hearth_status and hth_err are one numbering; the sentence of an
// error is the calling thread's. Outputs are handed out in place: the array that hearth_infer
// returns has the reply in front of it.
#include "client/hearth.h"

#include "base/alloc.h"
#include "client/buffer.h"
#include "client/ring_exchange.h"
#include "client/default_url.h"
#include "client/descriptor.h"
#include "client/documents.h"
#include "client/dtype.h"
#include "client/exchange.h"
#include "client/passed_files.h"
#include "client/socket_exchange.h"
#include "client/wire.h"

#include <jansson.h>
#include <nng/protocol/reqrep0/req.h>

#include <stdlib.h>
#include <string.h>

#define CLIENT_TIMEOUT_MS   (10u * 60 * 1000)
#define CLIENT_RECONNECT_MS 50
// Where Debian's ca-certificates keeps the authorities that the system trusts.
#define CLIENT_CA_FILE "/etc/ssl/certs/ca-certificates.crt"

_Static_assert((int)HEARTH_ETIMEDOUT == (int)HTH_ETIMEDOUT &&
                   (int)HEARTH_ENOMEM == (int)HTH_ENOMEM &&
                   (int)HTH_ETIMEDOUT + 1 == (int)HTH_N_ERR,
               "hearth_status and hth_err are one numbering");

const char *hearth_error(void)
{
    return hth_err_detail();
}

const char *hearth_strerror(hearth_status s)
{
    return hth_strerror((hth_err)s);
}

void hearth_free(void *p)
{
    hth_free(p);
}

static void client_pipe_changed(nng_pipe p, nng_pipe_ev ev, void *arg)
{
    hearth *h = arg;
    if (ev == NNG_PIPE_EV_ADD_POST) {
        atomic_fetch_add(&h->generation, 1);
        atomic_fetch_add(&h->pipes, 1);
    } else {
        atomic_fetch_sub(&h->pipes, 1);
        hth_ring_exchange_lost(h);
    }
}

static bool client_is(const char *url, const char *scheme)
{
    return strncmp(url, scheme, strlen(scheme)) == 0;
}

static hth_err client_not_url(const char *url)
{
    return client_is(url, "http://") || client_is(url, "https://")
               ? hth_fail(HTH_EINVAL,
                          "%s is for clients of the Open Inference Protocol; this one takes "
                          "ipc://PATH, tcp://HOST:PORT or tls+tcp://HOST:PORT",
                          url)
               : hth_fail(HTH_EINVAL,
                          "'%s' is not ipc://PATH, tcp://HOST:PORT or tls+tcp://HOST:PORT", url);
}

hearth_status hearth_local_url(const char *runtime_dir, char *url, size_t bytes)
{
    return (hearth_status)hth_default_url_find(runtime_dir, url, bytes);
}

static hth_err client_dial(hearth *h, const char *url)
{
    int rv = nng_req0_open(&h->socket);
    if (rv != 0) {
        return hth_wire_fail(rv, "cannot open a socket");
    }
    h->socket_open = true;
    if ((rv = nng_socket_set_ms(h->socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE)) != 0 ||
        (rv = nng_socket_set_ms(h->socket, NNG_OPT_RECONNMINT, CLIENT_RECONNECT_MS)) != 0 ||
        (rv = nng_socket_set_ms(h->socket, NNG_OPT_RECONNMAXT, CLIENT_RECONNECT_MS)) != 0 ||
        (rv = nng_socket_set_size(h->socket, NNG_OPT_RECVMAXSZ, h->limits.message_bytes)) != 0 ||
        (rv = nng_pipe_notify(h->socket, NNG_PIPE_EV_ADD_POST, client_pipe_changed, h)) != 0 ||
        (rv = nng_pipe_notify(h->socket, NNG_PIPE_EV_REM_POST, client_pipe_changed, h)) != 0) {
        return hth_wire_fail(rv, "cannot set up a socket");
    }
    if ((rv = nng_dialer_create(&h->dialer, h->socket, url)) != 0) {
        return rv == NNG_EINVAL || rv == NNG_ENOTSUP || rv == NNG_EADDRINVAL
                   ? client_not_url(url)
                   : hth_wire_fail(rv, "cannot connect to %s", url);
    }
    rv = nng_dialer_start(h->dialer, 0);
    if (rv == NNG_EADDRINVAL) {
        return hth_fail(HTH_EINVAL, "no server at %s: the host is not known, or no port is given",
                        url);
    }
    if ((rv == NNG_ECONNSHUT || rv == NNG_ECONNRESET) && client_is(url, "tcp://")) {
        return hth_fail(HTH_EIO,
                        "no server at %s: the connection was closed; if TLS is spoken "
                        "there, it is tls+%s",
                        url, url);
    }
    return rv == 0 ? HTH_OK : hth_wire_fail(rv, "no server at %s", url);
}

static hth_err client_start(hearth *h, const char *url, const hearth_options *options)
{
    bool embedded = strcmp(url, "inproc://") == 0, tls = client_is(url, "tls+tcp://");
    hth_forked_begin();
    h->forks = hth_forks();
    h->by_socket = tls || h->forks > 0;
    bool inside = client_is(url, "inproc://");
    if (!inside && !tls && !client_is(url, "ipc://") && !client_is(url, "tcp://")) {
        return client_not_url(url);
    }
    if (inside && h->forks > 0) {
        return hth_fail(HTH_ENOTSUP,
                        "this process was forked from one that used hearth, and an engine's "
                        "threads do not survive a fork: use a server, or start a new process");
    }
    h->timeout_ms =
        options != NULL && options->timeout_ms != 0 ? options->timeout_ms : CLIENT_TIMEOUT_MS;
    h->timeout_ms = h->timeout_ms < INT32_MAX ? h->timeout_ms : INT32_MAX;
    h->same_machine = client_is(url, "ipc://") || client_is(url, "inproc://");
    h->shared_memory = !h->by_socket && client_is(url, "ipc://") &&
                       (options == NULL || !options->no_shared_memory);
    h->rings = h->shared_memory && (options == NULL || !options->no_ring);
    h->limits = hth_wire_default_limits;
    if (embedded) {
        if (options == NULL || options->store == NULL) {
            return hth_fail(HTH_EINVAL, "inproc:// needs options with the store's directory");
        }
        HTH_TRY(hth_embed_open(options->store, options->device, &h->embedded));
        url = hth_embed_url(h->embedded);
    }
    bool token = options != NULL && options->token != NULL && options->token[0] != 0;
    h->url = hth_strdup(url);
    h->token = token ? hth_strdup(options->token) : NULL;
    h->ca_file =
        hth_strdup(options != NULL && options->ca_file != NULL ? options->ca_file : CLIENT_CA_FILE);
    if (h->url == NULL || h->ca_file == NULL || (token && h->token == NULL)) {
        return hth_fail(HTH_ENOMEM, "out of memory for a connection");
    }
    return h->by_socket ? hth_socket_exchange_open(h) : client_dial(h, url);
}

hearth_status hearth_open(const char *url, const hearth_options *options, hearth **out)
{
    *out = NULL;
    hearth *h = hth_calloc(1, sizeof *h);
    if (h == NULL) {
        return (hearth_status)hth_fail(HTH_ENOMEM, "out of memory for a connection");
    }
    pthread_mutex_init(&h->lock, NULL);
    pthread_mutex_init(&h->passing, NULL);
    pthread_cond_init(&h->idle, NULL);
    h->passing_fd = -1;
    hth_err err = client_start(h, url, options);
    if (err != HTH_OK) {
        hearth_close(h);
        return (hearth_status)err;
    }
    *out = h;
    return HEARTH_OK;
}

void hearth_close(hearth *h)
{
    if (h == NULL || h->forks != hth_forks()) {
        return; // what it has is the parent's: locks that a thread there may hold, sockets, threads
    }
    pthread_mutex_lock(&h->lock);
    while (h->in_flight > 0) {
        pthread_cond_wait(&h->idle, &h->lock);
    }
    pthread_mutex_unlock(&h->lock);
    hth_ring_exchange_fini(h);
    hth_exchange_fini(h);
    hth_socket_exchange_fini(h);
    if (h->socket_open) {
        nng_close(h->socket);
    }
    hth_buffer_fini(h);
    hth_descriptor_fini(h);
    hth_embed_close(h->embedded);
    hth_passed_fini(h);
    pthread_cond_destroy(&h->idle);
    pthread_mutex_destroy(&h->passing);
    pthread_mutex_destroy(&h->lock);
    hth_free(h->url);
    hth_free(h->token);
    hth_free(h->ca_file);
    hth_free(h);
}

// ---- inference

typedef struct client_outputs {
    hth_reply reply;
    void *copy; // of the data section, when it was not aligned
    int version;
    char model[208]; // its name
    hearth_tensor t[];
} client_outputs;

static hth_err client_describe(const hearth_tensor *in, Hearth__Tensor *tensor)
{
    uint64_t bytes;
    hth_err err = hth_dtype_bytes_of((int)in->dtype, in->rank, in->shape, &bytes);
    if (err == HTH_OK && (bytes != in->bytes || (bytes > 0 && in->data == NULL))) {
        err = hth_fail(HTH_EINVAL, "%zu bytes at %s, but its shape and type make %llu", in->bytes,
                       in->data == NULL ? "NULL" : "data", (unsigned long long)bytes);
    }
    if (err != HTH_OK) {
        return hth_err_prefix(err, "input '%s'", in->name != NULL ? in->name : "");
    }
    hearth__tensor__init(tensor);
    tensor->name = in->name != NULL ? (char *)in->name : tensor->name;
    tensor->dtype = (uint32_t)in->dtype;
    tensor->n_shape = (size_t)in->rank;
    tensor->shape = (int64_t *)in->shape;
    tensor->bytes = bytes;
    return HTH_OK;
}

// client_outputs_new makes an array for n outputs, which keeps the reply once it is filled.
static client_outputs *client_outputs_new(size_t n)
{
    client_outputs *o = hth_calloc(1, sizeof *o + n * sizeof o->t[0]);
    if (o == NULL) {
        (void)hth_fail(HTH_ENOMEM, "out of memory for %zu outputs", n);
    }
    return o;
}

// client_outputs_named keeps whose outputs they are: of "name:version" the name. "": not said.
static void client_outputs_named(client_outputs *outputs, const char *spec)
{
    snprintf(outputs->model, sizeof outputs->model, "%.*s", (int)strcspn(spec, ":"), spec);
}

static void client_output(const char *name, uint32_t dtype, size_t rank, const int64_t *shape,
                          const void *data, uint64_t bytes, hearth_tensor *out)
{
    *out = (hearth_tensor){.name = name,
                           .dtype = (hearth_dtype)dtype,
                           .rank = (int)rank,
                           .data = (void *)data,
                           .bytes = bytes};
    if (rank > 0) { // a scalar's is NULL
        memcpy(out->shape, shape, rank * sizeof shape[0]);
    }
}

// client_record_outputs makes outputs of a record, client_frame_outputs of a frame: NULL, and why.
static client_outputs *client_record_outputs(const hth_ipc_record *record)
{
    client_outputs *o = client_outputs_new(record->n_tensors);
    for (uint32_t i = 0; o != NULL && i < record->n_tensors; i++) {
        const hth_ipc_record_tensor *t = &record->tensor[i];
        const char *name = hth_ipc_record_name(record, t);
        client_output(name != NULL ? name : "", t->dtype, t->rank, t->dim,
                      (const uint8_t *)record + t->at, t->bytes, &o->t[i]);
    }
    if (o != NULL) {
        const char *served = hth_ipc_record_text(record, HTH_IPC_RECORD_SERVED);
        o->version = record->version;
        client_outputs_named(o, served != NULL ? served : "");
    }
    return o;
}

static client_outputs *client_frame_outputs(const hth_reply *reply)
{
    const Hearth__Outputs *all = reply->head->outputs;
    client_outputs *o = client_outputs_new(all->n_outputs);
    const uint8_t *data =
        o != NULL ? hth_wire_aligned(reply->data, reply->data_bytes, &o->copy) : NULL;
    if (data == NULL && reply->data_bytes > 0) {
        hth_free(o);
        (void)hth_fail(HTH_ENOMEM, "out of memory for %zu outputs", all->n_outputs);
        return NULL;
    }
    for (size_t i = 0; o != NULL && i < all->n_outputs; i++) {
        const Hearth__Tensor *t = all->outputs[i];
        client_output(t->name, t->dtype, t->n_shape, t->shape, data + t->offset, t->bytes,
                      &o->t[i]);
    }
    if (o != NULL) {
        o->version = all->version;
        client_outputs_named(o, all->model);
    }
    return o;
}

// client_outputs_take hands the reply over to a fresh array; on error the caller keeps it. `model`:
// whose outputs they are, if the server does not say so.
static hth_err client_outputs_take(hth_reply *reply, const char *model, hearth_tensor **out,
                                   int *n_out)
{
    if (reply->record == NULL && reply->head->body_case != HEARTH__REPLY__BODY_OUTPUTS) {
        return hth_fail(HTH_ECORRUPT, "the server's answer has no outputs");
    }
    bool framed = reply->record == NULL;
    client_outputs *o = framed ? client_frame_outputs(reply) : client_record_outputs(reply->record);
    if (o == NULL) {
        return HTH_ENOMEM;
    }
    o->reply = *reply;
    *out = o->t;
    if (o->model[0] == 0) {
        client_outputs_named(o, model);
    }
    *n_out = framed ? (int)reply->head->outputs->n_outputs : (int)reply->record->n_tensors;
    return HTH_OK;
}

// client_try sends the request once; *shared tells whether inputs were passed through shared
// memory.
static hth_err client_try(hearth *h, Hearth__Infer *body, Hearth__Tensor *tensor,
                          const hearth_tensor *inputs, bool *shared, hth_reply *reply)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    bool may_share = *shared;
    *shared = false;
    for (size_t i = 0; i < body->n_inputs; i++) {
        body->inputs[i] = &tensor[i];
        HTH_TRY(client_describe(&inputs[i], &tensor[i]));
        if (may_share && tensor[i].bytes > 0) {
            hth_buffer_find(h, inputs[i].data, inputs[i].bytes, &tensor[i].region,
                            &tensor[i].offset);
            *shared = *shared || tensor[i].region != 0;
        }
    }
    q.body_case = HEARTH__REQUEST__BODY_INFER;
    q.infer = body;
    bool used = false;
    hth_err err = h->rings ? hth_ring_exchange(h, &q, inputs, reply, &used) : HTH_OK;
    return used ? err : hth_exchange(h, &q, inputs, NULL, reply);
}

hearth_status hearth_infer_with(hearth *h, const char *model, const hearth_tensor *inputs,
                                int n_inputs, const hearth_infer_options *options,
                                hearth_tensor **outputs, int *n_outputs)
{
    Hearth__Infer body = HEARTH__INFER__INIT;
    hth_reply r;
    bool shared = h->shared_memory;
    *outputs = NULL;
    *n_outputs = 0;
    if (hth_exchange_check(h) != HTH_OK) {
        return HEARTH_EINVAL;
    }
    if (n_inputs < 0 || n_inputs > (int)h->limits.tensors) {
        return (hearth_status)hth_fail(HTH_EINVAL, "%d inputs in one request", n_inputs);
    }
    size_t n = (size_t)n_inputs;
    Hearth__Tensor *t = hth_alloc(n * (sizeof *t + sizeof(Hearth__Tensor *)));
    if (t == NULL) {
        return (hearth_status)hth_fail(HTH_ENOMEM, "out of memory for a request");
    }
    body.inputs = (Hearth__Tensor **)(t + n);
    body.n_inputs = n;
    body.model = (char *)model;
    if (options != NULL) {
        body.priority = options->priority;
        body.timeout_us = options->timeout_us;
    }
    hth_err err = client_try(h, &body, t, inputs, &shared, &r);
    if (err == HTH_EIO &&
        shared) { // the connection changed between looking a buffer up and using it
        shared = false;
        err = client_try(h, &body, t, inputs, &shared, &r);
    }
    if (err == HTH_OK && (err = client_outputs_take(&r, model, outputs, n_outputs)) != HTH_OK) {
        hth_reply_fini(&r);
    }
    hth_free(t);
    return (hearth_status)err;
}

hearth_status hearth_infer(hearth *h, const char *model, const hearth_tensor *inputs, int n_inputs,
                           hearth_tensor **outputs, int *n_outputs)
{
    return hearth_infer_with(h, model, inputs, n_inputs, NULL, outputs, n_outputs);
}

int hearth_outputs_version(const hearth_tensor *outputs)
{
    const client_outputs *o =
        (const client_outputs *)((const char *)outputs - offsetof(client_outputs, t));
    return o->version;
}

const char *hearth_outputs_model(const hearth_tensor *outputs)
{
    const client_outputs *o =
        (const client_outputs *)((const char *)outputs - offsetof(client_outputs, t));
    return o->model;
}

void hearth_tensors_free(hearth_tensor *tensor, int n)
{
    if (tensor == NULL) {
        return;
    }
    client_outputs *o = (client_outputs *)((char *)tensor - offsetof(client_outputs, t));
    hth_reply_fini(&o->reply);
    hth_free(o->copy);
    hth_free(o);
}

// ---- queries

// client_arguments turns "model NAME" into {"model":"NAME"}; *what_end is where the query's word
// ends.
static hth_err client_arguments(const char *what, size_t word, char **out)
{
    json_t *j = json_pack("{s:s}", "model", what + word + 1);
    char *text = j != NULL ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    *out = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    return *out != NULL ? HTH_OK : hth_fail(HTH_EINVAL, "'%s' is not a query", what);
}

hearth_status hearth_query(hearth *h, const char *what, const char *arguments_json,
                           hearth_progress progress, void *ctx, char **json)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Query body = HEARTH__QUERY__INIT;
    hth_watch watch = {progress, ctx};
    hth_reply r;
    char *arguments = NULL, *passed = NULL, *answer = NULL;
    uint64_t handles[HTH_PASSED_FILES];
    hth_documents documents;
    size_t word = strcspn(what, " ");
    *json = NULL;
    hth_err err = hth_documents_read(what, arguments_json, &documents, &arguments);
    err = err == HTH_OK && what[word] == ' ' ? client_arguments(what, word, &arguments) : err;
    body.what = err == HTH_OK ? hth_strndup(what, word) : NULL;
    if (err == HTH_OK && body.what == NULL) {
        err = hth_fail(HTH_ENOMEM, "out of memory for a query");
    }
    if (err == HTH_OK) {
        body.arguments = arguments != NULL ? arguments : (char *)arguments_json;
        body.arguments = body.arguments != NULL ? body.arguments : "";
        err = hth_passed_query(h, body.what, body.arguments, &watch, &passed, handles,
                               &body.n_handles, &answer);
        *json = answer;
    }
    if (err == HTH_OK && answer == NULL) {
        body.arguments = passed != NULL ? passed : body.arguments;
        body.handles = handles;
        q.body_case = HEARTH__REQUEST__BODY_QUERY;
        q.query = &body;
        err = hth_exchange_call(h, &q, HEARTH__REPLY__BODY_DOCUMENT, &watch, &r);
        if (err != HTH_OK && err != HTH_EIO && err != HTH_ETIMEDOUT && err != HTH_ECANCELED) {
            hth_passed_undo(h, passed);
        }
    }
    if (err == HTH_OK && answer == NULL) {
        *json = hth_strndup((const char *)r.data, r.head->document->bytes);
        err = *json != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "out of memory for a document");
        hth_reply_fini(&r);
        err = err == HTH_OK ? hth_documents_write(&documents, *json, json) : err;
    }
    hth_documents_fini(&documents);
    hth_free(passed);
    hth_free(arguments);
    hth_free(body.what);
    return (hearth_status)err;
}
