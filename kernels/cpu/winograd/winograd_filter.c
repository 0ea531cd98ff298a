// SPDX-License-Identifier: Apache-2.0
// Constant filters are transformed when they come to the device, in double, by all threads.
// Parameters change with every step: they are transformed in float (winograd_body_filter.h).
#include "kernels/cpu/winograd/winograd_filter.h"

#include "device/cpu/team.h"

#include <string.h>

static size_t filter_up(size_t channels, size_t block)
{
    return (channels + block - 1) / block * block;
}

static size_t filter_points(int pairs)
{
    size_t side = (size_t)(2 * pairs + 2);
    return side * side;
}

size_t hth_wino_filter_floats(const hth_wino_isa *isa, int pairs, const hth_wino_filter *filter)
{
    size_t whole = HTH_WINO_PANEL * isa->lanes, ins = filter_up(filter->in, isa->block);
    size_t outs = filter_up(filter->out, isa->block), rest = outs % whole;
    return filter_points(pairs) *
           (outs / whole * hth_wino_point(ins, whole) + (rest > 0 ? hth_wino_point(ins, rest) : 0));
}

size_t hth_wino_panel_floats(const hth_wino_isa *isa, int pairs, const hth_wino_filter *filter)
{
    return filter_points(pairs) *
           hth_wino_point(filter_up(filter->in, isa->block), HTH_WINO_PANEL * isa->lanes);
}

typedef struct filter_pack {
    const hth_wino_isa *isa;
    int pairs;
    const hth_wino_filter *f;
    const float *w;
    float *u;
    size_t ins, outs, whole, panels, floats;
} filter_pack;

// Input channels begin..end of a panel, and with its last ones what lies between its points.
static void pack_panel(const filter_pack *pack, size_t group, size_t panel, size_t begin,
                       size_t end)
{
    size_t points = filter_points(pack->pairs), first = panel * pack->whole;
    size_t width = pack->outs - first < pack->whole ? pack->outs - first : pack->whole;
    size_t step = hth_wino_point(pack->ins, width);
    float *u =
        pack->u + group * pack->floats + panel * points * hth_wino_point(pack->ins, pack->whole);
    pack->isa->constant[pack->pairs - 1](pack->f, pack->w, u, group, panel, begin, end);
    for (size_t k = 0; end == pack->ins && k < points; k++) {
        memset(u + k * step + pack->ins * width, 0, HTH_WINO_LINE * sizeof *u);
    }
}

// Thread i of n: its share of the input channels of all groups' panels.
static void pack_share(void *arg, int i, int n)
{
    const filter_pack *p = arg;
    size_t at, end;
    hth_team_range(p->f->groups * p->panels * p->ins, i, n, &at, &end);
    while (at < end) {
        size_t from = at % p->ins, panel = at / p->ins;
        size_t to = end - at < p->ins - from ? from + end - at : p->ins;
        pack_panel(p, panel / p->panels, panel % p->panels, from, to);
        at += to - from;
    }
}

void hth_wino_filter_pack(const hth_wino_isa *isa, int pairs, const hth_wino_filter *filter,
                          const float *w, float *u)
{
    filter_pack p = {.isa = isa, .pairs = pairs, .f = filter, .w = w, .u = u};
    p.ins = filter_up(filter->in, isa->block);
    p.outs = filter_up(filter->out, isa->block);
    p.whole = HTH_WINO_PANEL * isa->lanes;
    p.panels = (p.outs + p.whole - 1) / p.whole;
    p.floats = hth_wino_filter_floats(isa, pairs, filter);
    hth_team_run(pack_share, &p);
}
