// SPDX-License-Identifier: Apache-2.0
// The timeline as Chrome's trace event format, which Perfetto reads too: process 1 is the
// prediction, process 2 what was measured; one row per stream.
#include "planner/plan_json.h"
#include "planner/plan_impl.h"

static const char *const trace_row[] = {"compute", "host to device", "device to host"};
static const char *const trace_process[] = {"", "predicted", "measured"};

static const char *trace_name(const hth_problem *problem, const hth_instr *in)
{
    const char *name = in->kind == HTH_INSTR_COMPUTE ? problem->nodes[in->node].name
                                                     : problem->tensors[in->tensor].name;
    return name ? name : "?";
}

static json_t *trace_args(const hth_problem *problem, const hth_instr *in, int i)
{
    if (in->kind != HTH_INSTR_COMPUTE) {
        return json_pack("{s:i, s:I}", "instruction", i, "bytes",
                         (json_int_t)problem->tensors[in->tensor].bytes);
    }
    const hth_plan_node *n = &problem->nodes[in->node];
    const char *op = n->op ? n->op : "";
    const char *algorithm = in->alt < n->n_alternatives ? n->alternatives[in->alt].name : "";
    return json_pack("{s:i, s:s, s:s, s:I}", "instruction", i, "op", op, "algorithm", algorithm,
                     "workspace", (json_int_t)hth_plan_workspace(n, in->alt));
}

static void trace_rows(json_t *events, int process)
{
    json_array_append_new(events,
                          json_pack("{s:s, s:s, s:i, s:{s:s}}", "name", "process_name", "ph", "M",
                                    "pid", process, "args", "name", trace_process[process]));
    for (int l = 0; l < HTH_N_LANES; l++) {
        json_array_append_new(events, json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "name",
                                                "thread_name", "ph", "M", "pid", process, "tid", l,
                                                "args", "name", trace_row[l]));
    }
}

static void trace_process_events(json_t *events, int process, const hth_problem *problem,
                                 const hth_plan *plan, const double (*measured_us)[2])
{
    trace_rows(events, process);
    for (int i = 0; i < plan->n_instrs; i++) {
        const hth_instr *in = &plan->instrs[i];
        if (in->kind == HTH_INSTR_ALLOC || in->kind == HTH_INSTR_FREE) {
            continue;
        }
        double start = measured_us ? measured_us[i][0] : in->start_us;
        double end = measured_us ? measured_us[i][1] : in->end_us;
        json_array_append_new(events,
                              json_pack("{s:s, s:s, s:f, s:f, s:i, s:i, s:o}", "name",
                                        trace_name(problem, in), "ph", "X", "ts", start, "dur",
                                        end - start, "pid", process, "tid", (int)hth_instr_lane(in),
                                        "args", trace_args(problem, in, i)));
    }
}

json_t *hth_plan_trace_json(const hth_problem *problem, const hth_plan *plan,
                            const double (*measured_us)[2])
{
    json_t *events = json_array();
    trace_process_events(events, 1, problem, plan, NULL);
    if (measured_us != NULL) {
        trace_process_events(events, 2, problem, plan, measured_us);
    }
    return json_pack("{s:o, s:s}", "traceEvents", events, "displayTimeUnit", "ms");
}

hth_err hth_plan_write_trace(const char *path, const hth_problem *problem, const hth_plan *plan,
                             const double (*measured_us)[2])
{
    return hth_plan_json_save(hth_plan_trace_json(problem, plan, measured_us), path);
}
