// SPDX-License-Identifier: Apache-2.0
#include "engine/router/place.h"

static bool fits(const hth_place *place)
{
    return place->lacks_bytes <= place->room_bytes;
}

static bool possible(const hth_place *place)
{
    return place->up && !place->refused && place->lacks_bytes <= place->budget_bytes;
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

int hth_place_model(const hth_place *place, int count)
{
    int best = -1;
    for (int i = 0; i < count; i++) {
        if (possible(&place[i]) && (best < 0 || model_before(&place[i], &place[best]))) {
            best = i;
        }
    }
    return best;
}

// mean_service is over the devices that have measured it; 1: none has, and all are alike.
static double mean_service(const hth_place *place, int n)
{
    double sum = 0;
    int known = 0;
    for (int i = 0; i < n; i++) {
        if (place[i].has && place[i].service_ns > 0) {
            sum += place[i].service_ns;
            known++;
        }
    }
    return known > 0 ? sum / known : 1;
}

int hth_place_request(const hth_place *place, int count)
{
    int best = -1;
    double best_ns = 0, mean_ns = mean_service(place, count);
    for (int i = 0; i < count; i++) {
        double each_ns = place[i].service_ns > 0 ? place[i].service_ns : mean_ns;
        double ns = (place[i].requests + 1) * each_ns;
        if (place[i].up && place[i].has && (best < 0 || ns < best_ns)) {
            best = i;
            best_ns = ns;
        }
    }
    return best;
}

int hth_place_another(const hth_place *place, int count, int queue)
{
    int least = -1, best = -1;
    for (int i = 0; i < count; i++) {
        if (place[i].coming || (place[i].has && place[i].up && place[i].mine < queue)) {
            return -1;
        }
        if (place[i].has && place[i].up &&
            (least < 0 || place[i].requests < place[least].requests)) {
            least = i;
        }
    }
    for (int i = 0; least >= 0 && i < count; i++) {
        bool free = !place[i].has && possible(&place[i]) && fits(&place[i]) &&
                    place[i].host == place[least].host &&
                    place[i].requests * 2 <= place[least].requests;
        if (free && (best < 0 || model_before(&place[i], &place[best]))) {
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

int hth_place_job(const hth_place *place, int count)
{
    int best = -1;
    for (int i = 0; i < count; i++) {
        if (place[i].up && !place[i].refused && (best < 0 || job_before(&place[i], &place[best]))) {
            best = i;
        }
    }
    return best;
}
