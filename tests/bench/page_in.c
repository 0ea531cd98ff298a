// SPDX-License-Identifier: Apache-2.0
// What it costs to bring a model back to the device: two models of which only one fits are asked in
// turns. usage: page_in A.onnx B.onnx STORE [DEVICE [ROUNDS]]; DEVICE: "cpu:threads=2" without
// memory. Says for each what its first answer takes beyond a later one, beside the bytes that were
// moved, at the link's measured rate, and 5 ms; and what it takes from unloaded, which adds the
// graph, kernels and a plan.
#include "tests/bench/serving.h"

static double infer_ms(hearth *h, const char *model, const hearth_tensor *input)
{
    hearth_tensor *out;
    int n;
    uint64_t start = hth_now_ns();
    check(hearth_infer(h, model, input, 1, &out, &n) != HEARTH_OK, "infer");
    double ms = (double)(hth_now_ns() - start) / 1e6;
    hearth_tensors_free(out, n);
    return ms;
}

static double figure(hearth *h, const char *group, const char *key)
{
    json_t *doc = serving_ask(h, "stats", "{}");
    double v = json_number_value(json_object_get(json_object_get(doc, group), key));
    json_decref(doc);
    return v;
}

static double link_rate(hearth *h)
{
    json_t *doc = serving_ask(h, "devices", "{}");
    const json_t *row = json_array_get(json_object_get(doc, "devices"), 0);
    double rate = json_number_value(json_object_get(row, "h2d_bytes_per_s"));
    json_decref(doc);
    check(rate <= 0, "the link's rate");
    return rate;
}

static void stop(serving *s, hearth *h)
{
    hearth_close(h);
    kill(s->pid, SIGTERM);
    waitpid(s->pid, NULL, 0);
}

static void report(hearth *h, const char *model, const hearth_tensor *input, const char *other,
                   const hearth_tensor *its, int rounds)
{
    series first = {0}, later = {0}, loaded = {0};
    double bytes = 0, rate = link_rate(h);
    char q[80];
    for (int i = 0; i < rounds; i++) {
        infer_ms(h, other, its);
        double before = figure(h, "residency", "filled_bytes");
        series_add(&first, infer_ms(h, model, input));
        bytes = figure(h, "residency", "filled_bytes") - before;
        series_add(&later, infer_ms(h, model, input));
        series_add(&later, infer_ms(h, model, input));
    }
    for (int i = 0; i < rounds; i++) {
        snprintf(q, sizeof q, "{\"model\":\"%s\"}", model);
        json_decref(serving_ask(h, "unload", q));
        series_add(&loaded, infer_ms(h, model, input));
    }
    double warm = series_part(&later, 0.5), beyond = series_part(&first, 0.5) - warm;
    double bound = bytes / rate * 1e3 + 5;
    printf(
        "%s: moved %.1f MB at %.2f GB/s; first answer %.1f ms, later %.1f: %.1f ms beyond; bytes / "
        "rate + 5 ms = %.1f: %.2fx; from unloaded %.1f ms beyond\n",
        model, bytes / 1e6, rate / 1e9, series_part(&first, 0.5), warm, beyond, bound,
        beyond / bound, series_part(&loaded, 0.5) - warm);
    free(first.ms);
    free(later.ms);
    free(loaded.ms);
}

int main(int argc, char **argv)
{
    static const char *const names[2] = {"a", "b"};
    char device[160], clear[96];
    double weights = 0, arena = 0;
    hearth_tensor input[2];
    serving s;
    if (argc < 4) {
        fprintf(stderr, "usage: page_in A.onnx B.onnx STORE [DEVICE [ROUNDS]]\n");
        return 2;
    }
    const char *kind = argc > 4 ? argv[4] : "cpu:threads=2";
    serving_begin(&s);
    s.store = argv[3];
    snprintf(device, sizeof device, "%s,mem=16GiB", kind);
    serving_start(&s, device, 0);
    hearth *h = serving_dial(&s);
    for (int i = 0; i < 2; i++) {
        hearth_import_result imported;
        char q[80];
        check(hearth_import(h, names[i], argv[1 + i], -1, NULL, NULL, &imported) != HEARTH_OK,
              "import");
        snprintf(q, sizeof q, "{\"model\":\"%s\",\"batch\":1,\"seconds\":0.5}", names[i]);
        json_decref(serving_ask(h, "bench", q));
        snprintf(q, sizeof q, "{\"model\":\"%s\"}", names[i]);
        json_decref(serving_ask(h, "unload", q));
        input[i] = serving_input(h, names[i], 1);
        infer_ms(h, names[i], &input[i]);
        double w = figure(h, "ledger", "weight_bytes"),
               a = figure(h, "ledger", "compute_arena_bytes");
        weights = w > weights ? w : weights;
        arena = a > arena ? a : arena;
        json_decref(serving_ask(h, "unload", q));
    }
    stop(&s, h);
    snprintf(device, sizeof device, "%s,mem=%.0f", kind, weights + arena + 65536);
    serving_start(&s, device, 0);
    h = serving_dial(&s);
    for (int i = 0; i < 2; i++) {
        report(h, names[i], &input[i], names[1 - i], &input[1 - i], argc > 5 ? atoi(argv[5]) : 7);
    }
    stop(&s, h);
    snprintf(clear, sizeof clear, "rm -rf %.63s", s.dir);
    check(system(clear), "removing a folder");
    return 0;
}
