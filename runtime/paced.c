// SPDX-License-Identifier: Apache-2.0
#include "runtime/paced.h"

static hth_err paced_turn(void *ctx)
{
    const hth_paced *p = ctx;
    (void)hth_work_point(p->site->queue);
    return p->r != NULL && p->r->canceled
               ? hth_fail(HTH_ECANCELED, "canceled while its model was being prepared")
               : HTH_OK;
}

void hth_paced_begin(hth_paced *p, hth_site *site, const hth_request *r)
{
    *p = (hth_paced){.site = site, .r = r};
    p->pace =
        (hth_pace){.most_work = UINT64_MAX, .most_bytes = UINT64_MAX, .turn = paced_turn, .ctx = p};
    p->before = hth_pace_enter(&p->pace);
}

void hth_paced_end(hth_paced *p)
{
    hth_pace_leave(p->before);
}
