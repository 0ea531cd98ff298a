// SPDX-License-Identifier: Apache-2.0
// TLS handshakes. One costs the server a signature, a millisecond or so, and its peer next to
// nothing: a few hundred bytes that it may send again and again. Therefore they do not happen when
// they come, but a few at a time between everything else, and those go first that have got further,
// then those of peers that had the fewest in this second, then the oldest.
#include "server/rpc/rpc_impl.h"

#include "base/clock.h"

#define SHAKE_TURN 2 // steps of handshakes between two looks at everything else

void hth_rpc_shake_ready(hth_rpc_conn *c)
{
    static const struct timeval soon = {0};
    hth_rpc *r = c->r;
    if (!c->shaking) {
        c->shaking = true;
        event_del(c->read); // what there is to read is known
        if (r->n_shaking++ == 0) {
            event_add(r->shake, &soon);
        }
    }
}

void hth_rpc_shake_forget(hth_rpc_conn *c)
{
    if (c->shaking) {
        c->shaking = false;
        c->r->n_shaking--;
    }
}

// shake_before tells whether a handshake goes before another, which is younger.
static bool shake_before(const hth_rpc_conn *c, const hth_rpc_conn *other, uint64_t second)
{
    bool later = c->n_shakes > 0, other_later = other->n_shakes > 0;
    if (later != other_later) {
        return later;
    }
    return hth_allowance_shakes(c->allowance, second) <=
           hth_allowance_shakes(other->allowance, second);
}

static hth_rpc_conn *shake_next(const hth_rpc *r, uint64_t second)
{
    hth_rpc_conn *next = NULL;
    for (hth_rpc_conn *c = r->conns; c != NULL; c = c->next) { // the youngest first
        if (c->shaking && (next == NULL || shake_before(c, next, second))) {
            next = c;
        }
    }
    return next;
}

static void shake_step(hth_rpc_conn *c)
{
    hth_rpc_conn_hold(c);
    hth_rpc_shake_forget(c);
    hth_rpc_conn_turn(c);
    c->n_shakes++;
    int rv = hth_rpc_io_shake(c);
    if (rv == HTH_RPC_FAILED) {
        c->dead = true;
    } else {
        event_add(c->read, NULL);
    }
    if (rv == 1) {
        c->state = HTH_RPC_GREETING;
        hth_rpc_in(c);
    }
    hth_rpc_conn_settle(c);
    hth_rpc_conn_rele(c);
}

void hth_rpc_shake_run(hth_rpc *r)
{
    static const struct timeval soon = {0};
    uint64_t second = hth_now_ns() / 1000000000u;
    for (int i = 0; i < SHAKE_TURN && r->n_shaking > 0; i++) {
        hth_rpc_conn *c = shake_next(r, second);
        hth_allowance_shook(c->allowance, second);
        shake_step(c);
    }
    if (r->n_shaking > 0) {
        event_add(r->shake, &soon);
    }
}
