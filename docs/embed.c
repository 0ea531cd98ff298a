// SPDX-License-Identifier: Apache-2.0
// hearth inside another program: no daemon. usage: embed STORE-DIRECTORY digits.onnx
// cc embed.c -lhearth
#include <hearth.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    const char *picture = "  .###. "
                          "  #. .# "
                          "     .# "
                          "    .#. "
                          "   .#.  "
                          "  .#.   "
                          "  #.    "
                          "  ##### ";
    float image[64];
    for (int i = 0; i < 64; i++) {
        image[i] = picture[i] == '.' ? 0.5F : (float)(picture[i] == '#');
    }
    hearth_options options = {.store = argc > 2 ? argv[1] : NULL};
    hearth_tensor x = {.dtype = HEARTH_F32,
                       .rank = 4,
                       .shape = {1, 1, 8, 8},
                       .data = image,
                       .bytes = sizeof image};
    hearth_tensor *y;
    hearth_import_result imported;
    hearth *h;
    int n, best = 0;
    if (hearth_open("inproc://", &options, &h) != HEARTH_OK ||
        hearth_import(h, "digits", argv[2], -1, NULL, NULL, &imported) != HEARTH_OK ||
        hearth_infer(h, "digits", &x, 1, &y, &n) != HEARTH_OK) {
        fprintf(stderr, "embed: %s\n", hearth_error());
        return 1;
    }
    const float *logits = y[0].data;
    for (int i = 1; i < 10; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    printf("this is a %d\n", best);
    hearth_tensors_free(y, n);
    hearth_close(h);
    return 0;
}
