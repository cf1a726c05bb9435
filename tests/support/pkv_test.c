/* pkv_test.c: what tests share. */
#include "tests/support/pkv_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* splitmix64: small, and good enough for test data. */
uint64_t pkvt_rng_u64(struct pkvt_rng *rng)
{
    uint64_t z = (rng->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t pkvt_rng_below(struct pkvt_rng *rng, uint32_t limit)
{
    return (uint32_t)(((pkvt_rng_u64(rng) >> 32) * limit) >> 32);
}

float pkvt_rng_uniform(struct pkvt_rng *rng, float low, float high)
{
    return low + (high - low) * (float)(pkvt_rng_u64(rng) >> 40) * 0x1p-24f;
}

float pkvt_rng_normal(struct pkvt_rng *rng)
{
    double u = ((double)(pkvt_rng_u64(rng) >> 11) + 0.5) * 0x1p-53;
    double v = (double)(pkvt_rng_u64(rng) >> 11) * 0x1p-53;
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

const char *pkvt_path(const char *relative)
{
    static char buffers[8][1024];
    static unsigned next;
    char *path = buffers[next++ % 8];
    const char *source = getenv("PIVOTKV_SOURCE");
    snprintf(path, sizeof buffers[0], "%s/tests/%s", source ? source : ".", relative);
    return path;
}

char *pkvt_read_file(const char *path, size_t *bytes_out)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        fail_msg("cannot open %s", path);
        return NULL;
    }
    size_t bytes = 0, capacity = 1 << 16;
    char *data = malloc(capacity + 1);
    for (;;) {
        bytes += fread(data + bytes, 1, capacity - bytes, file);
        if (bytes < capacity) {
            break;
        }
        data = realloc(data, (capacity *= 2) + 1);
    }
    fclose(file);
    data[bytes] = '\0';
    if (bytes_out) {
        *bytes_out = bytes;
    }
    return data;
}

const char *pkvt_model_path(const char *name)
{
    static char buffers[4][1024];
    static unsigned next;
    int gemma = strcmp(name, "gemma3") == 0;
    const char *path = getenv(gemma ? "PIVOTKV_MODEL_GEMMA3" : "PIVOTKV_MODEL_SMOLLM2");
    if (!path) {
        const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
        const char *file = gemma ? "gemma-3-270m-q4_k_m.gguf" : "SmolLM2-135M-Instruct.Q4_1.gguf";
        char *buffer = buffers[next++ % 4];
        if (cache && *cache) {
            snprintf(buffer, sizeof buffers[0], "%s/pivotkv/models/%s", cache, file);
        } else {
            snprintf(buffer, sizeof buffers[0], "%s/.cache/pivotkv/models/%s", home ? home : "",
                     file);
        }
        path = buffer;
    }
    return access(path, R_OK) == 0 ? path : NULL;
}
