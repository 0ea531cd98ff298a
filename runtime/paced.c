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

void hth_paced_begin(hth_paced *paced, hth_site *site, const hth_request *request)
{
    *paced = (hth_paced){.site = site, .r = request};
    paced->pace = (hth_pace){
        .most_work = UINT64_MAX, .most_bytes = UINT64_MAX, .turn = paced_turn, .ctx = paced};
    paced->before = hth_pace_enter(&paced->pace);
}

void hth_paced_end(hth_paced *paced)
{
    hth_pace_leave(paced->before);
}
