// SPDX-License-Identifier: Apache-2.0
#include "runtime/host.h"

#include "runtime/program.h"

#include "base/alloc.h"
#include "base/settings.h"
#include "base/size.h"
#include "device/cpu/machine.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// Of the machine's memory that one engine may take so, unless memory.host_bytes says more; and what
// it may take whatever the device has.
#define HOST_SHARE 4
#define HOST_LEAST ((uint64_t)64 << 20)

uint64_t hth_host_limit(hth_site *site)
{
    uint64_t set = (uint64_t)hth_setting_int(HTH_SET_HOST_BYTES);
    if (set == 0 && site->host_default_bytes == 0) {
        uint64_t share = hth_machine_memory() / HOST_SHARE, device;
        device = site->device->props.budget_bytes;
        device = device > HOST_LEAST ? device : HOST_LEAST;
        site->host_default_bytes = device < share ? device : share;
    }
    return set > 0 ? set : site->host_default_bytes;
}

uint64_t hth_host_used(const hth_site *site)
{
    uint64_t used = 0;
    for (int i = 0; i < HTH_HOST_N_USES; i++) {
        used += site->host_bytes[i];
    }
    return used;
}

// host_let_go frees the program that was used longest ago of those that keep contents and that
// nobody uses now; false: there is none.
static bool host_let_go(hth_site *site)
{
    hth_program *oldest = NULL;
    for (hth_program *p = site->programs; p != NULL; p = p->site_next) {
        if (p->content_bytes > 0 && p->held == 0 && !p->running && !p->pinned &&
            (oldest == NULL || p->used_at < oldest->used_at)) {
            oldest = p;
        }
    }
    if (oldest != NULL) {
        hth_program_free(site, oldest);
    }
    return oldest != NULL;
}

// .. what is kept for the next use comes first: no program has to be made again for it.
static bool host_let_go_spare(hth_site *site)
{
    return site->host_spare != NULL && site->host_spare(site->host_spare_ctx);
}

// host_refuse says why `what` does not get its bytes, and returns the code for that.
static hth_err host_refuse(hth_site *site, uint64_t bytes, const char *what)
{
    uint64_t limit = hth_host_limit(site);
    hth_size need, all;
    hth_size_pair(bytes, limit, &need, &all);
    if (bytes > limit) {
        site->host_refused = true;
        return hth_fail(HTH_ETOOBIG,
                        "%s takes %s of host memory: more than the limit of %s for all requests "
                        "(memory.host_bytes)",
                        what, need.text, all.text);
    }
    site->refused_over = site->refused_bytes = 0; // it is not the device's memory that it lacks
    return hth_fail(HTH_ENODEVMEM,
                    "%s takes %s of host memory: requests already use %s of the limit of %s "
                    "(memory.host_bytes)",
                    what, need.text, hth_size_of(hth_host_used(site)).text, all.text);
}

hth_err hth_host_take(hth_site *site, hth_host_use use, uint64_t bytes, const char *fmt, ...)
{
    uint64_t limit = hth_host_limit(site);
    bool fits = bytes <= limit;
    while (fits && hth_host_used(site) > limit - bytes &&
           (host_let_go_spare(site) || host_let_go(site))) {
    }
    if (!fits || hth_host_used(site) > limit - bytes) {
        char what[256];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(what, sizeof what, fmt, ap);
        va_end(ap);
        return host_refuse(site, bytes, what);
    }
    site->host_bytes[use] += bytes;
    return HTH_OK;
}

void hth_host_give(hth_site *site, hth_host_use use, uint64_t bytes)
{
    assert(site->host_bytes[use] >= bytes);
    site->host_bytes[use] -= bytes;
    site->freed += bytes > 0; // who waits for memory may look again
}

// host_is_elsewhere tells whether an output goes to memory that the client has brought.
static bool host_is_elsewhere(const hth_request *request, const hth_request_tensor *tensor)
{
    bool there = false;
    for (int i = 0; request != NULL && i < request->n_known && !there; i++) {
        const hth_request_tensor *k = &request->known[i];
        there = k->name != NULL && k->t.data != NULL && strcmp(k->name, tensor->name) == 0 &&
                k->t.bytes >= tensor->t.bytes;
    }
    return there && hth_shared_in_place(&tensor->t);
}

hth_err hth_host_answers(const hth_request *request, const hth_request_tensor *out, int n,
                         uint64_t *bytes)
{
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_LIMIT_MESSAGE_BYTES);
    const hth_request_tensor *largest = NULL;
    hth_size need, limit;
    *bytes = 0;
    for (int i = 0; i < n; i++) {
        if (!host_is_elsewhere(request, &out[i])) {
            largest = largest == NULL || out[i].t.bytes > largest->t.bytes ? &out[i] : largest;
            *bytes = __builtin_add_overflow(*bytes, out[i].t.bytes, bytes) ? UINT64_MAX : *bytes;
        }
    }
    if (*bytes <= most) {
        return HTH_OK;
    }
    bool one = largest->t.bytes > most;
    hth_size_pair(one ? largest->t.bytes : *bytes, most, &need, &limit);
    return hth_fail(HTH_EINVAL,
                    "output '%.100s' %stakes %s: more than the %s of an answer "
                    "(limits.message_bytes)",
                    largest->name, one ? "" : "with the others ", need.text, limit.text);
}

// host_largest is the most that a single tensor may have anywhere: on the device, in the host's
// memory for requests, in an answer or a client's memory, or because it is an input or a constant.
static uint64_t host_largest(hth_site *site, const hth_graph *graph, const hth_request *request)
{
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_LIMIT_MESSAGE_BYTES);
    uint64_t limit = hth_host_limit(site), device = site->device->props.budget_bytes;
    most = limit > most ? limit : most;
    most = device > most ? device : most;
    for (int i = 0; request != NULL && i < request->n_known; i++) {
        most = request->known[i].t.bytes > most ? request->known[i].t.bytes : most;
    }
    for (int v = 0; v < graph->n_values; v++) {
        const hth_value *x = &graph->values[v];
        size_t bytes = 0;
        if ((x->is_input || x->constant != NULL) &&
            hth_tensor_bytes(x->dtype, &x->shape, HTH_LAYOUT_PLAIN, &bytes) == HTH_OK) {
            most = bytes > most ? bytes : most;
        }
    }
    return most;
}

static hth_err host_outputs(const hth_program *program, const hth_request *request)
{
    hth_request_tensor *out = hth_calloc((size_t)program->n_final + 1, sizeof *out);
    uint64_t bytes;
    if (out == NULL) {
        return hth_no_memory("a program");
    }
    for (int i = 0; i < program->n_final; i++) {
        out[i] =
            (hth_request_tensor){.name = program->graph->values[program->graph->outputs[i]].name,
                                 .t = hth_program_output(program, i)};
    }
    hth_err err = hth_host_answers(request, out, program->n_final, &bytes);
    hth_free(out);
    return err;
}

hth_err hth_host_sizes(hth_site *site, const hth_program *program, const hth_request *request)
{
    const hth_graph *g = program->graph;
    bool answers = request != NULL && request->command == HTH_COMMAND_NONE; // one request, alone
    HTH_TRY(answers ? host_outputs(program, request) : HTH_OK);
    uint64_t most = host_largest(site, g, request);
    for (int i = 0; i < g->n_nodes; i++) {
        const hth_node *n = &g->nodes[i];
        for (int k = 0; k < n->n_outputs && !n->deleted; k++) {
            const hth_value *v = n->outputs[k] >= 0 ? &g->values[n->outputs[k]] : NULL;
            size_t bytes = 0;
            if (v != NULL) {
                HTH_TRY(hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN, &bytes));
            }
            if (bytes > most) {
                hth_size need, there;
                hth_size_pair(bytes, most, &need, &there);
                return hth_fail(
                    HTH_ETOOBIG,
                    "the result of node '%.80s' (%s) takes %s: more than the limit of %s", n->name,
                    hth_op_name(n->op), need.text, there.text);
            }
        }
    }
    return HTH_OK;
}
