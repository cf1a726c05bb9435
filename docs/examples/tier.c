/*
 * tier.c: the KV tier without a model runner. A prompt and some steps of a made-up model of four
 * layers (8 query heads over 2 KV heads, one layer sliding) under a budget of 25 %: most of K and V
 * is in host memory and streamed through. A second tier keeps all of it on the device: the results
 * are the same, bit for bit, or the exit status is 1.
 *
 *     cc tier.c $(pkg-config --cflags --libs pivotkv) -o tier && ./tier
 */
#include <pivotkv/pivotkv.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, HEADS = 8, KV_HEADS = 2, DIM = 64, CONTEXT = 2048, PROMPT = 1500, STEPS = 20 };
enum { Q = HEADS * DIM, KV = KV_HEADS * DIM, TOKENS = PROMPT + STEPS };

static struct pkv_device *device;
static pkv_addr q, k, v, out; /* device memory for the rows of one pass in one layer */
static float host[PROMPT * Q];
static float results[2][LAYERS][TOKENS][Q];

static void must(enum pkv_status status)
{
    if (status != PKV_OK) {
        fprintf(stderr, "%s: %s\n", pkv_status_name(status), pkv_error_text());
        exit(1);
    }
}

/* Stands for the model: values that depend on what, layer and token alone. */
static void make(struct pkv_tier *tier, pkv_addr to, uint32_t what, uint32_t first, uint32_t rows,
                 uint32_t cols)
{
    for (uint32_t i = 0; i < rows * cols; i++) {
        uint32_t hash = (what * TOKENS + first) * cols + i;
        hash = (hash ^ hash >> 15) * 2654435769u;
        hash = (hash ^ hash >> 13) * 2246822519u;
        host[i] = (float)(hash >> 8) / 8388608.0f - 1.0f;
    }
    must(pkv_tier_write(tier, to, host, rows * cols * sizeof *host));
}

/* Rows [first, first + rows) of a sequence through all layers. */
static void pass(struct pkv_tier *tier, uint32_t seq, uint32_t first, uint32_t rows,
                 float result[LAYERS][TOKENS][Q])
{
    const struct pkv_tier_part part = {.seq = seq, .rows = rows};
    must(pkv_tier_begin(tier, &part, 1));
    for (uint32_t l = 0; l < LAYERS; l++) {
        make(tier, q, 3 * l, first, rows, Q);
        make(tier, k, 3 * l + 1, first, rows, KV);
        make(tier, v, 3 * l + 2, first, rows, KV);
        const struct pkv_tier_rows all = {
            .layer = l, .rows = rows, .q = q, .k = k, .v = v, .out = out};
        must(pkv_tier_attend(tier, &all));
        must(pkv_tier_read(tier, result[l][first], out, rows * Q * sizeof(float)));
    }
    must(pkv_tier_end(tier));
}

static void run(struct pkv_tier_config config, float result[LAYERS][TOKENS][Q])
{
    struct pkv_tier_sizes sizes;
    struct pkv_kv_report report;
    struct pkv_tier *tier = NULL;
    uint32_t seq = 0;
    must(pkv_tier_plan(device, &config, &sizes));
    if (config.kv_policy == PKV_KV_FULL) {
        config.kv_budget_bytes = sizes.full_bytes / 4;
        must(pkv_tier_plan(device, &config, &sizes));
    }
    must(pkv_tier_open(device, &config, &tier));
    must(pkv_tier_seq_open(tier, &seq));
    pass(tier, seq, 0, PROMPT, result);
    for (uint32_t i = 0; i < STEPS; i++) {
        pass(tier, seq, PROMPT + i, 1, result);
    }
    pkv_tier_report(tier, &report);
    printf("policy %s: %.2f MiB of K and V, %u of %u global layers whole on the device; %.2f MiB "
           "stored to the host, %.2f MiB streamed back in %llu tiles\n",
           pkv_kv_policy_name(config.kv_policy),
           (double)sizes.full_bytes / CONTEXT * pkv_tier_seq_tokens(tier, seq) / 1048576.0,
           sizes.dense_layers, sizes.global_layers, (double)report.stored_bytes / 1048576.0,
           (double)report.loaded_bytes / 1048576.0, (unsigned long long)report.loaded_tiles);
    pkv_tier_close(tier);
}

int main(void)
{
    struct pkv_layer_info layers[LAYERS];
    struct pkv_tier_config config = pkv_tier_config_default();
    for (uint32_t l = 0; l < LAYERS; l++) {
        layers[l] = (struct pkv_layer_info){.heads = HEADS, .kv_heads = KV_HEADS, .head_dim = DIM};
    }
    layers[1].kind = PKV_LAYER_SLIDING;
    layers[1].window = 256;
    config.layer = layers;
    config.layers = LAYERS;
    config.context_tokens = CONTEXT;
    must(pkv_device_open("cpu", NULL, &device));
    must(pkv_memory_alloc(device, (Q + KV + KV + Q) * PROMPT * sizeof(float), &q));
    k = q + Q * PROMPT * sizeof(float);
    v = k + KV * PROMPT * sizeof(float);
    out = v + KV * PROMPT * sizeof(float);
    run(config, results[0]); /* policy full, the default */
    config.kv_policy = PKV_KV_DEVICE;
    run(config, results[1]);
    pkv_memory_free(device, q);
    pkv_device_close(device);
    const bool same = memcmp(results[0], results[1], sizeof results[0]) == 0;
    printf("%s\n", same ? "the same bits" : "WRONG: results differ");
    return same ? 0 : 1;
}
