// SPDX-License-Identifier: Apache-2.0
// The timeline as Chrome's trace event format, which Perfetto reads too: process 1 is the
// prediction, process 2 what was measured; one row per stream, and the device's memory by class. A
// buffer is owned in the compute stream's order, so that memory changes between two kernels, or
// once the copy was there that a buffer waited for; a workspace is there while its kernel runs.
// What lies below the end of the last buffer and is in none is a class of its own, "between
// buffers": so the highest sum is what the plan takes, weights and arena, to the byte.
#include "planner/plan_json.h"
#include "planner/plan_impl.h"

#include "base/alloc.h"

#include <math.h>

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

// The memory while instructions are issued. end[t] is where a live tensor ends in the arena, which
// it keeps when another took over the front of its place; 0: it is not there.
typedef struct trace_memory {
    hth_live live;
    uint64_t resident[HTH_N_MEM_CLASSES];
    uint64_t *end;
    uint64_t scratch_end; // of the kernel that runs
} trace_memory;

static uint64_t trace_height(const trace_memory *memory)
{
    uint64_t height = memory->scratch_end;
    for (int t = 0; t < memory->live.problem->n_tensors; t++) {
        height = memory->end[t] > height ? memory->end[t] : height;
    }
    return height;
}

// A sample of the memory at `us`: resident and live bytes, by class and in all.
static void trace_sample(json_t *events, int process, double us, const trace_memory *memory)
{
    static const char *const name[HTH_N_MEM_CLASSES] = {
        "weights", "activations", "gradients", "optimizer state", "inputs", "outputs"};
    json_t *args = json_object();
    const hth_live *live = &memory->live;
    uint64_t used = live->bytes + live->scratch, height = trace_height(memory), sum = 0;
    for (int c = 0; c < HTH_N_MEM_CLASSES; c++) {
        uint64_t bytes = memory->resident[c] + live->of_class[c];
        json_object_set_new(args, name[c], json_integer((json_int_t)bytes));
        sum += bytes;
    }
    uint64_t between = height > used ? height - used : 0;
    sum += live->scratch + between;
    json_object_set_new(args, "workspace", json_integer((json_int_t)live->scratch));
    json_object_set_new(args, "between buffers", json_integer((json_int_t)between));
    json_array_append_new(events, json_pack("{s:s, s:s, s:f, s:i, s:o}", "name", "memory", "ph",
                                            "C", "ts", us, "pid", process, "args", args));
    json_array_append_new(events, json_pack("{s:s, s:s, s:f, s:i, s:{s:I}}", "name",
                                            "memory in all", "ph", "C", "ts", us, "pid", process,
                                            "args", "bytes", (json_int_t)sum));
}

typedef struct trace_times {
    const hth_plan *plan;
    const double (*measured_us)[2]; // NULL: predicted
} trace_times;

static double trace_end(const trace_times *times, int i)
{
    return times->measured_us ? times->measured_us[i][1] : times->plan->instrs[i].end_us;
}

static double trace_start(const trace_times *times, int i)
{
    return times->measured_us ? times->measured_us[i][0] : times->plan->instrs[i].start_us;
}

// When what instruction i does to the memory happens, if the one before it was over at `us`.
static double trace_when(const trace_times *times, int i, double us)
{
    const hth_instr *in = &times->plan->instrs[i];
    if (in->kind == HTH_INSTR_COMPUTE) {
        return fmax(us, trace_start(times, i));
    }
    for (int j = 0; in->kind != HTH_INSTR_PREFETCH && j < in->n_waits; j++) {
        us = fmax(us, trace_end(times, in->waits[j]));
    }
    return us;
}

static hth_err trace_memory_open(const hth_problem *problem, const hth_plan *plan,
                                 trace_memory *out)
{
    *out = (trace_memory){.scratch_end = 0};
    for (int t = 0; t < problem->n_tensors; t++) {
        const hth_plan_tensor *x = &problem->tensors[t];
        bool here = hth_plan_home(x) == HTH_HOME_RESIDENT && !plan->streamed[t];
        out->resident[x->cls] += here ? hth_plan_round(x->bytes) : 0;
    }
    out->end = hth_calloc((size_t)problem->n_tensors, sizeof *out->end);
    if (out->end == NULL) {
        return hth_no_memory("a timeline");
    }
    hth_err err = hth_live_open(problem, &out->live);
    if (err != HTH_OK) {
        hth_free(out->end);
    }
    return err;
}

static void trace_memory_close(trace_memory *memory)
{
    hth_live_close(&memory->live);
    hth_free(memory->end);
}

static void trace_step(trace_memory *memory, const hth_instr *in)
{
    hth_live_step(&memory->live, in);
    memory->scratch_end = 0;
    if (in->kind == HTH_INSTR_ALLOC || in->kind == HTH_INSTR_PREFETCH) {
        uint64_t bytes = hth_plan_round(memory->live.problem->tensors[in->tensor].bytes);
        memory->end[in->tensor] = in->offset + bytes;
    } else if (in->kind == HTH_INSTR_FREE) {
        memory->end[in->tensor] = 0;
    } else if (in->kind == HTH_INSTR_COMPUTE && memory->live.scratch > 0) {
        memory->scratch_end = in->offset + memory->live.scratch;
    }
}

static hth_err trace_memory_events(json_t *events, int process, const hth_problem *problem,
                                   const trace_times *times)
{
    const hth_plan *plan = times->plan;
    trace_memory memory;
    double now = 0;
    HTH_TRY(trace_memory_open(problem, plan, &memory));
    for (int i = 0; i < plan->n_instrs; i++) {
        const hth_instr *in = &plan->instrs[i];
        if (in->kind == HTH_INSTR_OFFLOAD) {
            continue;
        }
        double at = trace_when(times, i, now);
        if (at > now) { // what was until then
            trace_sample(events, process, now, &memory);
            now = at;
        }
        trace_step(&memory, in);
        if (in->kind == HTH_INSTR_COMPUTE) {
            trace_sample(events, process, now, &memory);
            now = fmax(now, trace_end(times, i));
            memory.live.scratch = memory.scratch_end = 0;
        }
    }
    trace_sample(events, process, now, &memory);
    trace_memory_close(&memory);
    return HTH_OK;
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
        json_array_append_new(events, json_pack("{s:s, s:s, s:i, s:i, s:{s:i}}", "name",
                                                "thread_sort_index", "ph", "M", "pid", process,
                                                "tid", l, "args", "sort_index", l));
    }
}

static hth_err trace_process_events(json_t *events, int process, const hth_problem *problem,
                                    const hth_plan *plan, const double (*measured_us)[2])
{
    const trace_times times = {plan, measured_us};
    trace_rows(events, process);
    for (int i = 0; i < plan->n_instrs; i++) {
        const hth_instr *in = &plan->instrs[i];
        if (in->kind == HTH_INSTR_ALLOC || in->kind == HTH_INSTR_FREE) {
            continue;
        }
        double start = trace_start(&times, i), end = trace_end(&times, i);
        json_array_append_new(events,
                              json_pack("{s:s, s:s, s:f, s:f, s:i, s:i, s:o}", "name",
                                        trace_name(problem, in), "ph", "X", "ts", start, "dur",
                                        end - start, "pid", process, "tid", (int)hth_instr_lane(in),
                                        "args", trace_args(problem, in, i)));
    }
    return trace_memory_events(events, process, problem, &times);
}

json_t *hth_plan_trace_json(const hth_problem *problem, const hth_plan *plan,
                            const double (*measured_us)[2])
{
    json_t *events = json_array();
    hth_err err = trace_process_events(events, 1, problem, plan, NULL);
    if (err == HTH_OK && measured_us != NULL) {
        err = trace_process_events(events, 2, problem, plan, measured_us);
    }
    if (err != HTH_OK) {
        json_decref(events);
        return NULL;
    }
    return json_pack("{s:o, s:s}", "traceEvents", events, "displayTimeUnit", "ms");
}

hth_err hth_plan_write_trace(const char *path, const hth_problem *problem, const hth_plan *plan,
                             const double (*measured_us)[2])
{
    return hth_plan_json_save(hth_plan_trace_json(problem, plan, measured_us), path);
}
