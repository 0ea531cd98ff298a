// SPDX-License-Identifier: Apache-2.0
// The form of a constant filter, made when it comes to the device. Threads share its panels.
#include "kernels/cpu/lowered.h"

#include "base/alloc.h"
#include "device/cpu/team.h"

typedef struct filter_pack {
    const hth_lowered_isa *isa;
    const hth_lowered_filter *f;
    const float *w;
    float *u, *panel; // panel: one of each thread, where the form is made of it; NULL: it is that
    size_t whole;     // channels of results of a panel that is not the last
} filter_pack;

static size_t pack_panels(const filter_pack *pack)
{
    return (pack->f->outs + pack->whole - 1) / pack->whole;
}

static size_t pack_width(const filter_pack *pack, size_t panel)
{
    size_t left = pack->f->outs - panel * pack->whole, block = pack->isa->block;
    return left < pack->whole ? (left + block - 1) / block * block : pack->whole;
}

static void pack_panel(const filter_pack *pack, size_t panel, size_t width, float *u)
{
    const hth_lowered_filter *f = pack->f;
    size_t block = pack->isa->block, taps = f->taps, out = panel * pack->whole;
    for (size_t row = 0; row < f->blocks * block; row++, u += width) {
        size_t tap = row / block % taps, in = row / block / taps * block + row % block;
        for (size_t o = 0; o < width; o++) {
            bool there = in < f->ins && out + o < f->outs;
            u[o] = there ? pack->w[((out + o) * f->ins + in) * taps + tap] : 0;
        }
    }
}

static void pack_share(void *arg, int i, int n)
{
    const filter_pack *p = arg;
    size_t begin, end, floats = p->f->blocks * p->isa->block * p->whole;
    hth_team_range(pack_panels(p), i, n, &begin, &end);
    for (size_t at = begin; at < end; at++) {
        float *u = p->u + at * floats;
        float *panel = p->panel != NULL ? p->panel + (size_t)i * floats : u;
        size_t width = pack_width(p, at);
        pack_panel(p, at, width, panel);
        if (panel != u) {
            p->isa->pack(panel, p->f->blocks, width / p->isa->block, u);
        }
    }
}

hth_err hth_lowered_pack(const hth_lowered_isa *isa, const hth_lowered_filter *filter,
                         const float *w, float *u)
{
    filter_pack p = {.isa = isa, .f = filter, .w = w, .u = u};
    p.whole = HTH_LOWERED_PANEL * isa->block;
    if (isa->pack != NULL) {
        size_t floats = (size_t)hth_team_size() * filter->blocks * isa->block * p.whole;
        p.panel = hth_alloc_aligned(floats * sizeof(float), 64);
        if (p.panel == NULL) {
            return hth_no_memory("a filter");
        }
    }
    hth_team_run(pack_share, &p);
    hth_free(p.panel);
    return HTH_OK;
}
