// SPDX-License-Identifier: Apache-2.0
// convsel/profile.h - a cost table as a document: what every node of some programs takes on one
// device, and its link, so that plans for a device can be made and judged where it is not.
//
// Design notes
// It is JSON, "hearth-profile-1": {"format", "device", "memory_bytes", "link": {"h2d", "d2h",
// "latency_us", "interference", "copy_us"}, "traffic_bytes_per_s", "nodes": [{"node", "choices":
// [{"name", "time_us", "workspace", "error", "split", "accumulates", "deterministic"}]}]}. A node
// is named by its descriptor (hth_convsel_describe): operator, shapes, attributes, post ops. Where
// one is asked for that is there in other layouts only, those serve: layouts are the device's own
// business.
#ifndef HTH_CONVSEL_PROFILE_H
#define HTH_CONVSEL_PROFILE_H

#include "convsel/link.h"

#include <jansson.h>

typedef struct hth_profile hth_profile;

// hth_profile_new makes an empty table of device `name`.
hth_err hth_profile_new(const char *name, uint64_t memory_bytes, const hth_link *link,
                        hth_profile **out);
// hth_profile_add takes node's choices; equal nodes count once.
hth_err hth_profile_add(hth_profile *profile, const hth_graph *graph, const hth_node *node,
                        const hth_choice *list, int count);
// hth_profile_json is the table as JSON; NULL: no memory. The caller owns it.
json_t *hth_profile_json(const hth_profile *profile);
// hth_profile_from_json reads one. HTH_EINVAL says what is wrong in it, HTH_ENOTSUP: another
// format.
hth_err hth_profile_from_json(const json_t *root, hth_profile **out);
void hth_profile_close(hth_profile *profile); // NULL is allowed

// hth_profile_find copies node's choices, fastest first, front marked. A node without
// alternatives (hth_convsel_has_menu) that is not there costs its traffic at traffic_bytes_per_s.
// HTH_ENOENT names what is missing.
hth_err hth_profile_find(const hth_profile *profile, const hth_graph *graph, const hth_node *node,
                         hth_choice *list, int cap, int *count);
const char *hth_profile_device(const hth_profile *profile);
const hth_link *hth_profile_link(const hth_profile *profile);
uint64_t hth_profile_memory(const hth_profile *profile); // of the device, bytes

#endif
