// SPDX-License-Identifier: Apache-2.0
// What batches are gathered to when images are flipped and cropped; batches of other data are
// looked at where jobs are (engine/train/).
#include "base/test.h"
#include "engine/train/data/train_data.h"
#include "tests/rig/train_job.h"

#include <unistd.h>

#define SAMPLES 37
#define PIXELS  (3 * 36 * 40)

// Samples of a file, whose number is their label, for a model with inputs of these ranks.
typedef struct images {
    char path[40];
    int64_t dim[4]; // [N, C, H, W]
    size_t size, bytes;
    unsigned char *x; // all of them
    hth_value value[2];
    hth_graph g;
    int input[2];
    hth_model m;
    hth_site site; // nobody is served
    hth_train_scale scale;
} images;

static void images_open(images *images, const char *dtype, size_t size, int64_t c, int64_t h,
                        int64_t w)
{
    int64_t y[SAMPLES];
    memset(images, 0, sizeof *images);
    snprintf(images->path, sizeof images->path, "/tmp/hearth-images-XXXXXX");
    close(mkstemp(images->path));
    images->dim[0] = SAMPLES;
    images->dim[1] = c;
    images->dim[2] = h;
    images->dim[3] = w;
    images->size = size;
    images->bytes = (size_t)(c * h * w) * size;
    images->x = malloc(SAMPLES * images->bytes);
    for (size_t i = 0; i < SAMPLES * images->bytes; i++) {
        images->x[i] = (unsigned char)(1 + i * 2654435761u % 255);
    }
    writer file = {NULL, NULL, 0};
    writer_add(&file, "x", dtype, images->dim, 4, images->x, SAMPLES * images->bytes);
    for (int64_t i = 0; i < SAMPLES; i++) {
        y[i] = i;
    }
    writer_add(&file, "y", "I64", images->dim, 1, y, sizeof y);
    writer_close(&file, images->path);
    images->value[0] = (hth_value){
        .name = "x", .dtype = HTH_DT_F32, .shape = {4, {-1, c, h, w}}, .is_input = true};
    images->g =
        (hth_graph){.values = images->value, .n_values = 1, .inputs = images->input, .n_inputs = 1};
    images->m =
        (hth_model){.name = "m", .max_batch = -1, .source = {.graph = &images->g, .batched = true}};
    images->scale = (hth_train_scale){.on = strcmp(dtype, "U8") == 0, .scale = 1};
}

static void images_close(images *images)
{
    unlink(images->path);
    free(images->x);
}

static hth_train_part part_of(images *images, int64_t batch, const hth_augment *augment)
{
    return (hth_train_part){.path = images->path,
                            .batch = batch,
                            .share = 0.2,
                            .seed = 9,
                            .site = &images->site,
                            .fd = -1,
                            .scale = &images->scale,
                            .augment = augment};
}

// One epoch of batches; each sample at its number in out[]. Returns how many there are.
static int64_t epoch_of(images *images, const hth_train_part *part, uint64_t seed, int64_t epoch,
                        unsigned char *out)
{
    hth_train_data d = {.n_inputs = 0};
    int64_t n = 0;
    memset(out, 0, SAMPLES * images->bytes);
    assert_ok(hth_train_data_open(part, &images->m, &d));
    hth_train_data_order(&d, true, seed, epoch);
    for (int64_t at = 0; at < d.n_samples; at += part->batch) {
        assert_ok(hth_train_data_batch(&d, at, part->batch));
        for (int64_t i = 0; i < d.input[0].shape.dim[0]; i++, n++) {
            int64_t sample = ((int64_t *)d.target.data)[i];
            memcpy(out + (size_t)sample * images->bytes,
                   (char *)d.input[0].data + (size_t)i * images->bytes, images->bytes);
        }
    }
    hth_train_data_close(&d);
    return n;
}

// Of each sample there is what was drawn for it, or nothing; returns how many differ from those of
// the file.
static int check_samples(const images *images, const hth_augment *augment, uint64_t seed,
                         int64_t epoch, const unsigned char *got)
{
    unsigned char *want = malloc(images->bytes);
    int seen = 0, others = 0;
    for (int64_t i = 0; i < SAMPLES; i++) {
        const unsigned char *x = images->x + (size_t)i * images->bytes;
        const unsigned char *g = got + (size_t)i * images->bytes;
        bool there = false;
        for (size_t k = 0; k < images->bytes; k++) {
            there = there || g[k] != 0;
        }
        if (there) {
            hth_augment_draw d = hth_augment_at(augment, seed, (uint64_t)epoch, (uint64_t)i);
            hth_augment_image(&d, images->dim + 1, images->size, x, want);
            assert_memory_equal(g, want, images->bytes);
            others += memcmp(g, x, images->bytes) != 0;
        }
        seen += there;
    }
    free(want);
    assert_int_equal(seen, 30);
    return others;
}

// Whatever the batches are, in memory or read from the file: what a sample gets depends on seed,
// epoch and its number in the file, also where others are held out.
static void samples_get_the_same_in_any_batch(void **state)
{
    static const struct {
        const char *dtype;
        size_t size;
        int64_t c, h, w;
    } kinds[] = {
        {"F32", 4, 3, 6, 7}, {"F32", 4, 3, 36, 40}, {"U8", 1, 1, 8, 9}, {"U8", 1, 3, 40, 36}};
    static const int64_t batches[] = {1, 8, 11, 30};
    const hth_augment all = {.flip = true, .crop = 2}, flips = {.flip = true}, crops = {.crop = 3};
    const hth_augment *const some[] = {&all, &flips, &crops};
    unsigned char *got = malloc(SAMPLES * PIXELS * 4);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        images s;
        images_open(&s, kinds[k].dtype, kinds[k].size, kinds[k].c, kinds[k].h, kinds[k].w);
        for (size_t b = 0; b < 4; b++) {
            for (size_t a = 0; a < 3; a++) {
                const hth_train_part part = part_of(&s, batches[b], some[a]);
                for (int64_t epoch = 0; epoch < 3; epoch++) {
                    assert_int_equal(epoch_of(&s, &part, 5, epoch, got), 30);
                    assert_in_range(check_samples(&s, some[a], 5, epoch, got), 8, 30);
                }
            }
        }
        images_close(&s);
    }
    free(got);
}

// Neither what is held out nor what is trained on without being asked for is changed.
static void other_samples_stay_as_they_are(void **state)
{
    images s;
    images_open(&s, "F32", 4, 3, 6, 7);
    unsigned char *got = malloc(SAMPLES * s.bytes);
    const hth_augment none = {.flip = false};
    hth_train_part part = part_of(&s, 8, &none);
    assert_int_equal(epoch_of(&s, &part, 5, 1, got), 30);
    assert_int_equal(check_samples(&s, &none, 5, 1, got), 0);
    part = part_of(&s, 8, NULL);
    part.held = true;
    assert_int_equal(epoch_of(&s, &part, 5, 1, got), 7);
    for (int64_t i = 0; i < SAMPLES; i++) {
        const unsigned char *g = got + (size_t)i * s.bytes;
        assert_true(g[0] == 0 || memcmp(g, s.x + (size_t)i * s.bytes, s.bytes) == 0);
    }
    free(got);
    images_close(&s);
}

static void refused(images *images, const hth_train_part *part, const char *words)
{
    hth_train_data d = {.n_inputs = 0};
    assert_err(hth_train_data_open(part, &images->m, &d), HTH_EINVAL, words);
    hth_train_data_close(&d);
}

static void what_is_no_image_is_refused(void **state)
{
    images s;
    images_open(&s, "F32", 4, 3, 6, 7);
    hth_augment a = {.flip = true};
    hth_train_part part = part_of(&s, 8, &a);
    s.value[0].shape = (hth_shape){2, {-1, 3 * 6 * 7}};
    s.dim[1] = 3 * 6 * 7;
    writer file = {NULL, NULL, 0};
    writer_add(&file, "x", "F32", s.dim, 2, s.x, SAMPLES * s.bytes);
    int64_t y[SAMPLES] = {0};
    writer_add(&file, "y", "I64", s.dim, 1, y, sizeof y);
    writer_close(&file, s.path);
    refused(&s, &part, "--flip is for images [N, C, H, W]: no input of model 'm' has 4 dimensions");
    a = (hth_augment){.crop = 1};
    refused(&s, &part, "--crop is for images [N, C, H, W]: no input of model 'm' has 4 dimensions");
    a.crop = 0;
    s.scale = (hth_train_scale){.images = true, .scale = 1, .n_mean = 1, .n_std = 1, .std = {1}};
    refused(&s, &part, "--normalize is for images [N, C, H, W]");
    images_close(&s);
}

static void crops_of_everything_are_refused(void **state)
{
    images s;
    images_open(&s, "F32", 4, 3, 7, 6);
    hth_augment a = {.crop = 6};
    hth_train_part part = part_of(&s, 8, &a);
    refused(&s, &part,
            "--crop 6 may leave nothing of the images of 'x', which are 7 x 6: the most is 5");
    a.crop = 5;
    hth_train_data d = {.n_inputs = 0};
    assert_ok(hth_train_data_open(&part, &s.m, &d));
    hth_train_data_close(&d);
    images_close(&s);
}

// Which one is meant nobody says.
static void several_inputs_of_images_are_refused(void **state)
{
    images s;
    images_open(&s, "F32", 4, 3, 7, 6);
    const hth_augment a = {.flip = true};
    hth_train_part part = part_of(&s, 8, &a);
    int64_t y[SAMPLES] = {0};
    writer file = {NULL, NULL, 0};
    writer_add(&file, "x", "F32", s.dim, 4, s.x, SAMPLES * s.bytes);
    writer_add(&file, "mask", "F32", s.dim, 4, s.x, SAMPLES * s.bytes);
    writer_add(&file, "y", "I64", s.dim, 1, y, sizeof y);
    writer_close(&file, s.path);
    s.value[1] = s.value[0];
    s.value[1].name = "mask";
    s.input[1] = 1;
    s.g.n_inputs = s.g.n_values = 2;
    refused(&s, &part, "--flip is for one input of images: 'x' and 'mask' both are");
    part.augment = NULL;
    hth_train_data d = {.n_inputs = 0};
    assert_ok(hth_train_data_open(&part, &s.m, &d));
    hth_train_data_close(&d);
    images_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_get_the_same_in_any_batch),
        cmocka_unit_test(other_samples_stay_as_they_are),
        cmocka_unit_test(what_is_no_image_is_refused),
        cmocka_unit_test(crops_of_everything_are_refused),
        cmocka_unit_test(several_inputs_of_images_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
