// SPDX-License-Identifier: Apache-2.0
#include "engine/router/place.h"

static bool fits(const hth_place *p)
{
    return p->lacks_bytes <= p->room_bytes;
}

static bool possible(const hth_place *p)
{
    return p->up && !p->refused && p->lacks_bytes <= p->budget_bytes;
}

// model_before: a is the better place of two that are possible.
static bool model_before(const hth_place *a, const hth_place *b)
{
    if (fits(a) != fits(b)) {
        return fits(a);
    }
    if (a->host != b->host) {
        return b->host;
    }
    if (a->lacks_bytes != b->lacks_bytes) {
        return a->lacks_bytes < b->lacks_bytes;
    }
    return a->room_bytes > b->room_bytes;
}

int hth_place_model(const hth_place *d, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++) {
        if (possible(&d[i]) && (best < 0 || model_before(&d[i], &d[best]))) {
            best = i;
        }
    }
    return best;
}

// mean_service is over the devices that have measured it; 1: none has, and all are alike.
static double mean_service(const hth_place *d, int n)
{
    double sum = 0;
    int known = 0;
    for (int i = 0; i < n; i++) {
        if (d[i].has && d[i].service_ns > 0) {
            sum += d[i].service_ns;
            known++;
        }
    }
    return known > 0 ? sum / known : 1;
}

int hth_place_request(const hth_place *d, int n)
{
    int best = -1;
    double best_ns = 0, mean_ns = mean_service(d, n);
    for (int i = 0; i < n; i++) {
        double each_ns = d[i].service_ns > 0 ? d[i].service_ns : mean_ns;
        double ns = (d[i].requests + 1) * each_ns;
        if (d[i].up && d[i].has && (best < 0 || ns < best_ns)) {
            best = i;
            best_ns = ns;
        }
    }
    return best;
}

int hth_place_another(const hth_place *d, int n, int queue)
{
    int least = -1, best = -1;
    for (int i = 0; i < n; i++) {
        if (d[i].coming || (d[i].has && d[i].up && d[i].mine < queue)) {
            return -1;
        }
        if (d[i].has && d[i].up && (least < 0 || d[i].requests < d[least].requests)) {
            least = i;
        }
    }
    for (int i = 0; least >= 0 && i < n; i++) {
        bool free = !d[i].has && possible(&d[i]) && fits(&d[i]) && d[i].host == d[least].host &&
                    d[i].requests * 2 <= d[least].requests;
        if (free && (best < 0 || model_before(&d[i], &d[best]))) {
            best = i;
        }
    }
    return best;
}

static bool job_before(const hth_place *a, const hth_place *b)
{
    if (a->host != b->host) {
        return b->host;
    }
    if (a->jobs != b->jobs) {
        return a->jobs < b->jobs;
    }
    return a->room_bytes > b->room_bytes;
}

int hth_place_job(const hth_place *d, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++) {
        if (d[i].up && !d[i].refused && (best < 0 || job_before(&d[i], &d[best]))) {
            best = i;
        }
    }
    return best;
}
