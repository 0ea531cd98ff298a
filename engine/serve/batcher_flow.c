// SPDX-License-Identifier: Apache-2.0
// Flows: what the tenants whose items wait have had of the device.
//
// A flow is charged when its items are taken, by what their samples took lately, so that the next
// decision already knows of them; and corrected by what the run really took when it has ended.
#include "engine/serve/batcher_choose_impl.h"

#include <stddef.h>

void hth_batch_flow_link(hth_batcher *batcher, hth_batch_flow *flow)
{
    flow->next = batcher->flows;
    batcher->flows = flow;
    flow->at = flow->at > batcher->at ? flow->at : batcher->at;
}

void hth_batch_flow_unlink(hth_batcher *batcher, hth_batch_flow *flow)
{
    hth_batch_flow **at = &batcher->flows;
    while (*at != flow) {
        at = &(*at)->next;
    }
    *at = flow->next;
    flow->next = NULL;
}

double hth_batch_item_ns(const hth_batch_item *item)
{
    return (double)(item->samples > 0 ? item->samples : 1) * item->queue->sample_ns;
}

void hth_batch_bill_open(hth_batch_bill *bill, const hth_batch_item *items)
{
    bill->n = 0;
    bill->samples = 0;
    for (const hth_batch_item *i = items; i != NULL; i = i->next) {
        int64_t samples = i->samples > 0 ? i->samples : 1;
        int k = 0;
        while (k < bill->n && bill->part[k].flow != i->flow) {
            k++;
        }
        if (k == bill->n) {
            bill->part[k].flow = i->flow;
            bill->part[k].samples = 0;
            bill->part[k].charged = 0;
            bill->n++;
        }
        bill->part[k].samples += samples;
        bill->part[k].charged += i->charged;
        bill->samples += samples;
    }
}

void hth_batch_bill_settle(const hth_batch_bill *bill, uint64_t took_ns)
{
    for (int k = 0; k < bill->n; k++) {
        hth_batch_flow *f = bill->part[k].flow;
        double ns = (double)took_ns * (double)bill->part[k].samples / (double)bill->samples;
        f->at += (ns - bill->part[k].charged) / f->weight;
        f->run_ns += (uint64_t)ns;
    }
}
